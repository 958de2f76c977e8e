//! What a request that was let out holds on to: the gate's proof, and its place in the counts.

use std::sync::Arc;

use fencepost_policy::{Admission, OrphanId, Pass, PassReason};
use fencepost_sources::TrackedLock;
use prometheus::IntGauge;
use tokio::time::{Instant, sleep_until};

use crate::exchange::{InFlight, Place};
use crate::forward::{Ending, Permit};

/// What the gate gave.
enum Proof {
    Admission(Arc<TrackedLock>, Admission),
    Pass(Option<Arc<TrackedLock>>, Pass),
}

/// The proof that a request may go to the worker, given back to the gate when the request is no longer there.
///
/// The upstream side sends nothing without one, and only what the gate gives makes one: a stack that forgets the fence
/// does not compile.
pub struct Ticket {
    /// `None` once it is given back.
    proof: Option<Proof>,
    /// The request's place among the orphans, once it has one.
    orphan: Option<Orphan>,
    place: Place,
    in_flight: Option<InFlight>,
}

/// A request that may run on at the worker, unseen. Its lock is held for as long as it counts, so that no cache forgets the gate
/// that counts it.
struct Orphan {
    lock: Arc<TrackedLock>,
    id: OrphanId,
    until: Instant,
    gauge: IntGauge,
}

impl Ticket {
    /// For a request whose token was admitted.
    pub fn admitted(place: Place, lock: Arc<TrackedLock>, admission: Admission, in_flight: InFlight) -> Ticket {
        Ticket::new(place, Proof::Admission(lock, admission), in_flight)
    }

    /// For a request that passes without having been admitted. It is counted where its lock is at hand.
    pub fn passing(place: Place, lock: Option<Arc<TrackedLock>>, reason: PassReason, in_flight: InFlight) -> Ticket {
        let pass = lock.as_ref().map_or_else(|| Pass::uncounted(reason), |lock| lock.pass(reason));
        Ticket::new(place, Proof::Pass(lock, pass), in_flight)
    }

    fn new(place: Place, proof: Proof, in_flight: InFlight) -> Ticket {
        Ticket { proof: Some(proof), orphan: None, place, in_flight: Some(in_flight) }
    }

    /// Leaves the gate with a request that provably was not sent.
    ///
    /// # Panics
    /// Never: a ticket has its place in the count until it is given back.
    pub fn leave(mut self) -> InFlight {
        self.give_back();
        self.in_flight.take().expect("a ticket is given back once")
    }

    /// The request may run on at the worker, unseen: from now on its time is bounded.
    fn lose(&mut self) {
        match self.proof.take() {
            Some(Proof::Admission(lock, admission)) => {
                let until = Instant::now() + self.place.route().orphan_timeout;
                let id = lock.lose(admission, until);
                let gauge = self.place.metrics().orphans.clone();
                gauge.inc();
                self.orphan = Some(Orphan { lock, id, until, gauge });
            }
            passed => self.proof = passed, // Nobody waits for a request that only passed.
        }
    }

    /// The request is not at the worker.
    fn give_back(&mut self) {
        match self.proof.take() {
            Some(Proof::Admission(lock, admission)) => lock.leave(admission),
            Some(Proof::Pass(Some(lock), pass)) => lock.leave_pass(pass),
            Some(Proof::Pass(None, _)) | None => {}
        }
        if let Some(orphan) = self.orphan.take() {
            orphan.lock.end_orphan(orphan.id);
        }
    }
}

impl Permit for Ticket {
    fn overdue(&mut self) {
        self.lose();
    }

    fn finished(mut self, how: Ending) {
        match how {
            Ending::Complete => self.give_back(),
            Ending::Reset | Ending::TimedOut | Ending::BodyCut => {
                self.lose();
                // Its end will not be seen any more: only time ends it. Not in the thread's background work, since a
                // process that drains need not wait for it.
                if let Some(orphan) = self.orphan.take() {
                    tokio::task::spawn_local(orphan.outlive(self.place.clone()));
                }
            }
        }
    }
}

impl Drop for Ticket {
    /// A ticket that was never used leaves the gate as if it had never entered.
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Orphan {
    async fn outlive(self, place: Place) {
        sleep_until(self.until).await;
        if self.lock.end_orphan(self.id) {
            place.metrics().orphans_expired.inc();
        }
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}
