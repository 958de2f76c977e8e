//! The two slots of a lock's confirming reads: one runs, one is next (`shared-confirm`).
//!
//! A request may use only a read that was sent after it arrived. So a request that comes while a
//! read runs is served by the next one, together with all others that come meanwhile. However many
//! requests come, two reads serve them.

use std::sync::{Arc, PoisonError};

use crate::store::StoreError;
use crate::sync::{Mutex, MutexGuard, Notify};

/// Why a lock could not be confirmed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unconfirmed {
    /// The deadline came first.
    #[error("the lock store did not answer in time")]
    Deadline,
    /// The store failed.
    #[error("the lock could not be read")]
    Store(#[source] Arc<StoreError>),
    /// Too many locks wait to be looked for that have no record, as far as we know.
    #[error("too many locks without a record were asked for")]
    Overloaded,
    /// The store answered with less than it had shown before.
    #[error("the lock store shows less than it has shown before")]
    Regressed,
    /// Each time that it was read, the answer was of no use any more as it came.
    #[error("the lock store changes faster than the lock can be looked into")]
    Overtaken,
    /// The source was stopped.
    #[error("the lock source was stopped")]
    Stopped,
}

/// Which of a lock's reads serves somebody; counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The slots. All changes are atomic steps.
#[derive(Debug)]
pub(crate) struct Slots {
    state: Mutex<State>,
    changes: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// How many reads have begun, and how many of them have ended. At most one runs.
    begun: u64,
    done: u64,
    /// Somebody waits for the next one.
    wanted: bool,
    /// A task reads, or has been asked to.
    active: bool,
    /// How the last one failed.
    failure: Option<Unconfirmed>,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots { state: Mutex::default(), changes: Notify::new() }
    }

    /// Asks for a read that is sent from now on. Also tells whether a task has to be set on it.
    pub(crate) fn ask(&self) -> (Ticket, bool) {
        self.state().ask()
    }

    /// Asks for a read. A read that runs already counts.
    pub(crate) fn join(&self) -> (Ticket, bool) {
        let mut state = self.state();
        if state.begun > state.done { (Ticket(state.begun), false) } else { state.ask() }
    }

    /// Begins the next read, if one is wanted; otherwise the task is done. Requests that ask from
    /// here on are not served by this read.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state();
        let begins = std::mem::take(&mut state.wanted);
        state.begun += u64::from(begins);
        state.active = begins;
        begins
    }

    /// Ends the read that runs.
    pub(crate) fn finish(&self, outcome: Result<(), Unconfirmed>) {
        let mut state = self.state();
        state.done = state.begun;
        state.failure = outcome.err();
        drop(state);
        self.news();
    }

    /// Ends the task, unless a read is wanted. Whether it goes on.
    pub(crate) fn goes_on(&self) -> bool {
        let mut state = self.state();
        state.active = state.wanted;
        state.active
    }

    /// What became of that read or, if it has ended long since, of a later one; `None` while there
    /// is no telling.
    pub(crate) fn outcome(&self, ticket: Ticket) -> Option<Result<(), Unconfirmed>> {
        let state = self.state();
        (state.done >= ticket.0).then(|| state.failure.clone().map_or(Ok(()), Err))
    }

    /// Tells all who wait to look again.
    pub(crate) fn news(&self) {
        self.changes.notify_waiters();
    }

    /// Tells of the next change. To miss none, take it before the look at what is known, and await
    /// it after.
    pub(crate) fn changes(&self) -> &Notify {
        &self.changes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // Each step is whole or has not begun.
    }
}

impl State {
    fn ask(&mut self) -> (Ticket, bool) {
        self.wanted = true;
        (Ticket(self.begun + 1), !std::mem::replace(&mut self.active, true))
    }
}
