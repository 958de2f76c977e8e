//! Requests that may run on at the worker though nobody will see their end: each counts until its time has come.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use fencepost_policy::{LostPassId, OrphanId, Pass};
use fencepost_sources::TrackedLock;
use prometheus::IntGauge;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::Counter;
use crate::exchange::Place;
use crate::wire::caught_up;

/// A request that may run on at the worker, unseen, until its time has come or its end is seen after all. Its worker is listened to:
/// without this, time alone ends it.
pub(super) struct Orphan {
    lock: Arc<TrackedLock>,
    id: OrphanId,
    /// When its time has come, unless its worker is heard of before.
    pub(super) until: Rc<Cell<Instant>>,
    /// The task that ends it in time. It goes on without this.
    timer: AbortHandle,
}

impl Orphan {
    pub(super) fn new(lock: Arc<TrackedLock>, id: OrphanId, until: Instant, place: Rc<Place>) -> Orphan {
        // Not in the thread's background work, since a process that drains need not wait for it.
        let counted = Counted::new(place.metrics().orphans.clone());
        let until = Rc::new(Cell::new(until));
        lock.set_heard(id, true);
        let outlive = outlive(Arc::clone(&lock), id, Rc::clone(&until), place, counted);
        let timer = tokio::task::spawn_local(outlive).abort_handle();
        Orphan { lock, id, until, timer }
    }

    /// Its time starts anew, unless it is over: then others may have been let in.
    pub(super) fn postpone(&self, until: Instant) {
        self.until.set(until);
        self.lock.postpone(self.id, until);
    }

    pub(super) fn end(self) {
        self.lock.end_orphan(self.id);
        self.timer.abort();
    }
}

impl Drop for Orphan {
    /// Nobody listens any more.
    fn drop(&mut self) {
        self.lock.set_heard(self.id, false);
    }
}

/// The same of a request that was let past: it counts until its time has come, or its end is seen after all.
pub(super) struct LostPass {
    counter: Counter,
    id: LostPassId,
    /// When its time has come, unless its worker is heard of before.
    pub(super) until: Rc<Cell<Instant>>,
    /// The task that ends it in time. It goes on without this.
    timer: AbortHandle,
}

impl LostPass {
    pub(super) fn new(counter: Counter, pass: Pass, until: Instant, place: Rc<Place>) -> LostPass {
        let (id, until) = (counter.lose_pass(pass), Rc::new(Cell::new(until)));
        let outlive = outlive_pass(counter.clone(), id, Rc::clone(&until), place);
        let timer = tokio::task::spawn_local(outlive).abort_handle();
        LostPass { counter, id, until, timer }
    }

    /// Its time starts anew.
    pub(super) fn postpone(&self, until: Instant) {
        self.until.set(until);
    }

    pub(super) fn end(self) {
        self.counter.end_lost_pass(self.id);
        self.timer.abort();
    }
}

/// Completes when that time has come and nothing is left to be read that would put it off. If nobody else has it, nobody reads.
async fn comes(until: &Rc<Cell<Instant>>) {
    loop {
        sleep_until(until.get()).await;
        if Rc::strong_count(until) > 1 {
            caught_up().await;
        }
        if until.get() <= Instant::now() {
            return;
        }
    }
}

/// Waits for that time as long as the request counts; false if an operator has ended it. Whoever counts it tells of each change.
async fn is_due<C: Future<Output = ()>>(
    until: &Rc<Cell<Instant>>,
    counts: impl Fn() -> bool,
    changed: impl Fn() -> C,
) -> bool {
    let mut time = pin!(comes(until));
    loop {
        let changed = changed();
        if !counts() {
            return false;
        }
        tokio::select! {
            () = changed => {}
            () = &mut time => return true,
        }
    }
}

/// Holds the lock for as long as an orphan of it counts, so that no cache forgets the gate that counts it, and ends the orphan
/// when its time has come.
async fn outlive(lock: Arc<TrackedLock>, id: OrphanId, until: Rc<Cell<Instant>>, place: Rc<Place>, _counted: Counted) {
    let _untimely = Untimely { counts: || lock.counts_orphan(id), place: Rc::clone(&place) };
    if !is_due(&until, || lock.counts_orphan(id), || lock.gate_changed()).await {
        return;
    }
    if lock.end_orphan(id) {
        place.metrics().orphans_expired.inc();
    }
}

/// The same of a request that was let past. It holds its place too, so that neither its source is forgotten nor the configuration that it
/// came under.
async fn outlive_pass(counter: Counter, id: LostPassId, until: Rc<Cell<Instant>>, place: Rc<Place>) {
    let _untimely = Untimely { counts: || counter.counts_lost_pass(id), place };
    if is_due(&until, || counter.counts_lost_pass(id), || counter.changed()).await {
        counter.end_lost_pass(id);
    }
}

/// Lives with the task that ends a request's time. If the task goes with its thread before, the process is told: nobody may have the gate
/// any more that counts the request, and so nobody could ask it.
struct Untimely<F: Fn() -> bool> {
    /// Whether the request still counts.
    counts: F,
    place: Rc<Place>,
}

impl<F: Fn() -> bool> Drop for Untimely<F> {
    fn drop(&mut self) {
        if (self.counts)() {
            self.place.worker.fence.process.leave_unseen();
        }
    }
}

/// One more, for as long as this lives.
struct Counted(IntGauge);

impl Counted {
    fn new(gauge: IntGauge) -> Counted {
        gauge.inc();
        Counted(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
