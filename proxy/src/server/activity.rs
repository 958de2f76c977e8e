//! Counts what keeps a connection from being idle. Holds the connection's slot for as long as any
//! of that goes on.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Waker;

use tokio::time::Instant;

use super::client::ClientAddress;
use super::connection_limiter::{ClientPlace, Slot};
use super::idle_connections::TrackedConnection;
use super::limits::Closing;

/// What goes on on one connection. Shared by the connection and, beyond its end, by its requests
/// that are still at the worker.
pub(super) struct Activity {
    counts: Cell<Counts>,
    tracked: TrackedConnection,
    slot: Slot,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// Requests whose response hyper has not written yet.
    in_flight: usize,
    /// Requests that are on their way or at the worker, whether or not a client waits for them.
    under_way: usize,
    /// Whether the client does not read what is written.
    is_write_blocked: bool,
}

impl Activity {
    /// A connection that is idle, and served by the task of this waker.
    pub(super) fn new(slot: Slot, task: Waker) -> Rc<Activity> {
        Rc::new(Activity { counts: Cell::default(), tracked: slot.idle().track(task), slot })
    }

    /// Counts a request as in flight on its connection for as long as the guard lives.
    pub(super) fn in_flight(self: &Rc<Self>) -> InFlight {
        self.change(|counts| counts.in_flight += 1);
        InFlight(Rc::clone(self))
    }

    /// Counts a request as under way for as long as the guard lives.
    pub(super) fn under_way(self: &Rc<Self>) -> UnderWay {
        self.change(|counts| counts.under_way += 1);
        UnderWay(Rc::clone(self))
    }

    pub(super) fn set_write_blocked(&self, is_write_blocked: bool) {
        if self.counts.get().is_write_blocked != is_write_blocked {
            self.change(|counts| counts.is_write_blocked = is_write_blocked);
        }
    }

    pub(super) fn count_in_flight(&self) -> usize {
        self.counts.get().in_flight
    }

    pub(super) fn count_under_way(&self) -> usize {
        self.counts.get().under_way
    }

    /// Since when nothing goes on. `None` if something does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.tracked.idle_since()
    }

    /// The connection is idle from now on: its idle time begins anew.
    pub(super) fn restart_idle_time(self: &Rc<Self>) {
        drop(self.in_flight());
    }

    /// Whether the connection is to close because others need its slot. The task that serves the
    /// connection is woken then.
    pub(super) fn is_evicted(&self) -> bool {
        self.tracked.is_evicted()
    }

    /// Counts a request as one of that client's; see [`Slot::place_of_request`].
    pub(super) fn place_of_request(&self, client: ClientAddress) -> Option<ClientPlace> {
        self.slot.place_of_request(client)
    }

    /// Counts the connection as closed by this limit.
    pub(super) fn count_closing(&self, closing: Closing) {
        self.slot.count(closing);
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let before = self.counts.get();
        let mut counts = before;
        change(&mut counts);
        self.counts.set(counts);
        match (before == Counts::default(), counts == Counts::default()) {
            (true, false) => self.tracked.begin(),
            (false, true) => self.tracked.end(),
            (true, true) | (false, false) => {}
        }
    }
}

/// A request in flight.
pub(super) struct InFlight(Rc<Activity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.change(|counts| counts.in_flight -= 1);
    }
}

/// A request that is on its way or at the worker.
pub struct UnderWay(Rc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.change(|counts| counts.under_way -= 1);
    }
}
