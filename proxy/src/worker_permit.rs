//! What a request that was let out holds on to: the gate's proof, and its place in the counts.

mod unseen;

use std::cell::Cell;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use fencepost_config::PartialRequests;
use fencepost_locks::TrackedLock;
use fencepost_policy::{Admission, Term};
use tokio::time::Instant;

use crate::let_past::{LetPast, Pass, PassReason};
use crate::request_context::{InFlight, RequestContext};
use crate::upstream::{Ending, LastBytes, Permit, TenureState, TenureWatch};
use crate::wire::Socket;
use unseen::{Counted, Unseen};

/// What the gate gave.
enum Proof {
    Admission(Arc<TrackedLock>, Admission),
    Pass(Pass),
    /// Its route is off.
    Uncounted,
}

/// The proof that a request may go to the worker, given back to the gate when the request is no longer there.
///
/// The upstream side sends nothing without one, and only what the gate gives makes one: a stack that forgets the fence
/// does not compile.
pub struct WorkerPermit {
    /// `None` once it is given back.
    proof: Option<Proof>,
    /// What bounds the request's time, once that is bounded. Boxed, as all that is rare: each request would move the room for it.
    unseen: Option<Box<Unseen>>,
    context: Rc<RequestContext>,
    in_flight: Option<InFlight>,
}

/// What a request that takes long depends on, and what its route says of that.
struct RequestWatch {
    depends_on: Dependence,
    context: Rc<RequestContext>,
    is_counted: Cell<bool>,
}

/// What may end while a request is at the worker.
enum Dependence {
    /// The tenure that it was admitted under.
    Tenure(Arc<TrackedLock>, Term),
    /// That its route only watches. It may be anybody's.
    Watching(Arc<LetPast>),
}

/// When a route that only watches is looked at again without having changed.
const WATCHING_PERIOD: Duration = Duration::from_secs(3600);

impl WorkerPermit {
    /// For a request whose token was admitted.
    pub fn admitted(
        context: Rc<RequestContext>,
        lock: Arc<TrackedLock>,
        admission: Admission,
        in_flight: InFlight,
    ) -> WorkerPermit {
        WorkerPermit::new(context, Proof::Admission(lock, admission), in_flight)
    }

    /// For a request that passes without having been admitted. It is counted with its route.
    ///
    /// # Errors
    /// Its place in the counts, if its route only watched when it came and enforces by now: it has to be judged.
    pub fn passing(
        context: Rc<RequestContext>,
        reason: PassReason,
        in_flight: InFlight,
    ) -> Result<WorkerPermit, InFlight> {
        let Some(let_past) = &context.in_force().let_past else {
            return Ok(WorkerPermit::new(context, Proof::Uncounted, in_flight));
        };
        match let_past.pass(reason) {
            Some(pass) => Ok(WorkerPermit::new(context, Proof::Pass(pass), in_flight)),
            None => Err(in_flight),
        }
    }

    fn new(context: Rc<RequestContext>, proof: Proof, in_flight: InFlight) -> WorkerPermit {
        WorkerPermit { proof: Some(proof), unseen: None, context, in_flight: Some(in_flight) }
    }

    /// Leaves the gate with a request that provably was not sent.
    ///
    /// # Panics
    /// Never: a permit has its place in the count until it is given back.
    pub fn leave(mut self) -> InFlight {
        self.give_back();
        self.in_flight.take().expect("a permit is given back once")
    }

    /// What may end while the request is at the worker.
    fn dependence(&self) -> Option<Dependence> {
        match self.proof.as_ref()? {
            Proof::Admission(lock, admission) => Some(Dependence::Tenure(Arc::clone(lock), admission.term())),
            Proof::Pass(pass) => Some(Dependence::Watching(Arc::clone(pass.watched()?))),
            Proof::Uncounted => None,
        }
    }

    /// The request may run on at the worker, unseen: from now on its time is bounded. Its connection, if it has one yet, is reset when that
    /// is over.
    fn lose(&mut self, last_bytes: Instant, connection: Option<Weak<Socket>>) {
        let until = self.lost_until(last_bytes);
        let counted = match self.proof.take() {
            Some(Proof::Admission(lock, admission)) => {
                let id = lock.lose(admission, until);
                Counted::orphan(lock, id, self.context.metrics().orphans.clone())
            }
            // Nobody waits for it, unless its route turns to enforce meanwhile.
            Some(Proof::Pass(pass)) => Counted::pass(pass),
            Some(Proof::Uncounted) | None => return,
        };
        self.unseen = Some(Box::new(Unseen::new(counted, until, Rc::clone(&self.context), connection)));
    }

    /// Until when a request may run on whose last bytes may reach the worker at `last_bytes`.
    fn lost_until(&self, last_bytes: Instant) -> Instant {
        last_bytes + self.context.route().orphan_timeout
    }

    /// The request, lost before or not, was at the worker until now, and from now on less is seen of it, or nothing.
    fn lose_sight(&mut self, last_bytes: Instant) {
        self.postpone(last_bytes);
        self.lose(last_bytes, None);
    }

    /// Its time, if it is lost, begins anew at `last_bytes`, unless that would end sooner.
    fn postpone(&self, last_bytes: Instant) {
        let until = self.lost_until(last_bytes);
        if let Some(unseen) = &self.unseen {
            unseen.postpone(until);
        }
    }

    /// Whether the request was lost before, and its time has come.
    fn time_has_come(&self) -> bool {
        self.counts_until().is_some_and(|until| until <= Instant::now())
    }

    /// The request is not at the worker.
    fn give_back(&mut self) {
        match self.proof.take() {
            Some(Proof::Admission(lock, admission)) => lock.leave(admission),
            Some(Proof::Pass(_) | Proof::Uncounted) | None => {}
        }
        if let Some(unseen) = self.unseen.take() {
            unseen.end();
        }
    }

    /// The worker never has the whole of the request.
    fn settle_partial(&mut self, last_bytes: LastBytes) {
        match self.context.route().partial_requests {
            PartialRequests::Orphans => {
                self.postpone(last_bytes.until);
                self.lose(last_bytes.until, last_bytes.connection);
            }
            PartialRequests::Harmless => self.give_back(),
        }
    }
}

impl Permit for WorkerPermit {
    fn watch(&self) -> Option<Rc<dyn TenureWatch>> {
        let depends_on = self.dependence()?;
        Some(Rc::new(RequestWatch { depends_on, context: Rc::clone(&self.context), is_counted: Cell::new(false) }))
    }

    fn is_endless(&self) -> bool {
        self.context.route().streaming && self.dependence().is_some()
    }

    fn may_be_left(&self) -> bool {
        match &self.proof {
            Some(Proof::Admission(..)) | None => false,
            // Where its route comes to judge, what it watched is waited for.
            Some(Proof::Pass(pass)) => pass.watched().is_none(),
            Some(Proof::Uncounted) => true,
        }
    }

    fn answered(&self, took: Duration) {
        self.context.counts().upstream_took(took);
    }

    fn gives_way(&self) -> bool {
        !matches!(self.proof, Some(Proof::Admission(..)))
    }

    fn body_cut(&mut self, last_bytes: LastBytes) {
        self.settle_partial(last_bytes);
    }

    fn overdue(&mut self, last_bytes: LastBytes) {
        self.lose(last_bytes.until, last_bytes.connection);
    }

    fn heard(&mut self) {
        self.postpone(Instant::now());
    }

    fn counts_until(&self) -> Option<Instant> {
        self.unseen.as_ref().map(|unseen| unseen.until())
    }

    fn finished(mut self, how: Ending, last_bytes: Instant) {
        match how {
            Ending::Complete => self.give_back(),
            // The worker has been silent since: nothing that was to be read put that off. Or its connection was reset because of that.
            Ending::TimedOut | Ending::Reset | Ending::BodyCut if self.time_has_come() => {}
            Ending::BodyCut => self.settle_partial(LastBytes { until: last_bytes, connection: None }),
            Ending::Reset | Ending::TimedOut | Ending::Cut => self.lose_sight(last_bytes),
        }
        self.unseen = None; // Its end will not be seen any more: only time ends it.
    }
}

impl TenureWatch for RequestWatch {
    fn standing(&self) -> TenureState {
        let now = Instant::now();
        let (lock, term) = match &self.depends_on {
            Dependence::Watching(let_past) if let_past.is_closed() => return TenureState::Ended,
            Dependence::Watching(_) => return TenureState::Good { until: now + WATCHING_PERIOD },
            Dependence::Tenure(lock, term) => (lock, *term),
        };
        if lock.has_ended(term) {
            return TenureState::Ended;
        }
        match lock.good_for(self.context.route().max_age, now) {
            Some(left) => TenureState::Good { until: now + left },
            None => TenureState::Stale,
        }
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        match &self.depends_on {
            Dependence::Tenure(lock, _) => Box::pin(lock.gate_changed()),
            Dependence::Watching(let_past) => Box::pin(let_past.changed()),
        }
    }

    fn fetch_news(&self) -> Instant {
        Instant::now() + self.context.route().max_age / 10
    }

    fn pause_max(&self) -> Duration {
        self.context.route().handoff_timeout
    }

    fn cut(&self) {
        if !self.is_counted.replace(true) {
            self.context.metrics().cut_requests.inc();
        }
    }
}

impl Drop for WorkerPermit {
    /// A permit that was never used leaves the gate as if it had never entered. In a panic nobody knows what it was used for.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lose_sight(Instant::now());
            self.unseen = None; // Its end will not be seen: only time ends it.
        } else {
            self.give_back();
        }
    }
}
