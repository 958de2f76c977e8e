//! What a request holds from the gate on until it is no longer at the worker.
//! It does not decide when that is: `upstream` tells it.

mod unseen;

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_config::PartialRequests;
use fencepost_fence::permit::Entry;
use fencepost_fence::tenure::Tenure;
use tokio::time::Instant;

use crate::let_past::{LetPast, Pass, PassReason};
use crate::request_context::{InFlight, RequestContext};
use crate::upstream::{Ending, LastBytes, Permit, TenureState, TenureWatch};
use unseen::{Counted, Unseen};

/// The proof that a request may go to the worker, given back to the gate when the request is no longer there.
///
/// The upstream side sends nothing without one, and only what the gate gives makes one: a stack that forgets the fence
/// does not compile.
pub struct WorkerPermit {
    place: Place,
    context: Rc<RequestContext>,
    in_flight: Option<InFlight>,
}

/// Where a request counts.
enum Place {
    /// At the gate of its lock.
    Entered(Entry),
    /// With what its route lets past.
    Passing(Pass),
    /// Nowhere, because its route is off.
    Uncounted,
    /// Where it was, until its time is over. Boxed, as all that is rare: each request would move the room for it.
    Unseen(Box<Unseen>),
    /// Nowhere any more.
    GivenBack,
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
    Tenure(Tenure),
    /// That its route only watches. It may be anybody's.
    Watching(Arc<LetPast>),
}

/// When a route that only watches is looked at again without having changed.
const WATCHING_PERIOD: Duration = Duration::from_secs(3600);

impl WorkerPermit {
    /// For a request that has entered the gate.
    pub fn admitted(context: Rc<RequestContext>, entry: Entry, in_flight: InFlight) -> WorkerPermit {
        WorkerPermit { place: Place::Entered(entry), context, in_flight: Some(in_flight) }
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
        let place = match &context.active_route().let_past {
            None => Place::Uncounted,
            Some(let_past) => match let_past.pass(reason) {
                Some(pass) => Place::Passing(pass),
                None => return Err(in_flight),
            },
        };
        Ok(WorkerPermit { place, context, in_flight: Some(in_flight) })
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
        match &self.place {
            Place::Entered(entry) => Some(Dependence::Tenure(entry.tenure(self.context.route().max_age))),
            Place::Passing(pass) => Some(Dependence::Watching(Arc::clone(pass.watched()?))),
            Place::Uncounted | Place::Unseen(_) | Place::GivenBack => None,
        }
    }

    /// The request may run on at the worker, unseen: its time ends `orphan_timeout` after its last bytes. If it was lost before, its time begins
    /// anew, unless that would end sooner. Its connection, if it has one yet, is reset when that is over.
    fn lose(&mut self, LastBytes { until: last_bytes, connection }: LastBytes) {
        let until = last_bytes + self.context.route().orphan_timeout;
        let counted = match std::mem::replace(&mut self.place, Place::GivenBack) {
            Place::Entered(entry) => Counted::orphan(entry.lose(until), &self.context),
            // Nobody waits for it, unless its route turns to enforce meanwhile.
            Place::Passing(pass) => Counted::pass(pass),
            Place::Unseen(unseen) => {
                unseen.postpone(until);
                self.place = Place::Unseen(unseen);
                return;
            }
            Place::Uncounted | Place::GivenBack => return,
        };
        self.place = Place::Unseen(Box::new(Unseen::new(counted, until, Rc::clone(&self.context), connection)));
    }

    /// Loses a request on whose connection nothing more is read.
    fn lose_sight(&mut self, last_bytes: Instant) {
        self.lose(LastBytes { until: last_bytes, connection: None });
        self.place = Place::GivenBack; // Only time ends it.
    }

    /// The request is not at the worker.
    fn give_back(&mut self) {
        match std::mem::replace(&mut self.place, Place::GivenBack) {
            Place::Unseen(unseen) => unseen.end(),
            // What counts them is dropped here.
            Place::Entered(_) | Place::Passing(_) | Place::Uncounted | Place::GivenBack => {}
        }
    }

    /// The worker never has the whole of the request.
    fn settle_partial(&mut self, last_bytes: LastBytes) {
        match self.context.route().partial_requests {
            PartialRequests::Orphans => self.lose(last_bytes),
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
        match &self.place {
            Place::Entered(_) | Place::Unseen(_) | Place::GivenBack => false,
            // Where its route comes to judge, what it watched is waited for.
            Place::Passing(pass) => pass.watched().is_none(),
            Place::Uncounted => true,
        }
    }

    fn answered(&self, took: Duration) {
        self.context.counts().upstream_took(took);
    }

    fn gives_way(&self) -> bool {
        !matches!(self.place, Place::Entered(_))
    }

    fn body_cut(&mut self, last_bytes: LastBytes) {
        self.settle_partial(last_bytes);
    }

    fn overdue(&mut self, last_bytes: LastBytes) {
        self.lose(last_bytes);
    }

    fn heard(&mut self) {
        if let Place::Unseen(unseen) = &self.place {
            unseen.postpone(Instant::now() + self.context.route().orphan_timeout);
        }
    }

    fn counts_until(&self) -> Option<Instant> {
        match &self.place {
            Place::Unseen(unseen) => Some(unseen.until()),
            Place::Entered(_) | Place::Passing(_) | Place::Uncounted | Place::GivenBack => None,
        }
    }

    fn finished(mut self, how: Ending, last_bytes: Instant) {
        let time_has_come = self.counts_until().is_some_and(|until| until <= Instant::now());
        match how {
            Ending::Complete => self.give_back(),
            // The worker has been silent since: nothing that was to be read put that off. Or its connection was reset because of that.
            Ending::TimedOut | Ending::Reset | Ending::BodyCut if time_has_come => {}
            Ending::BodyCut => self.settle_partial(LastBytes { until: last_bytes, connection: None }),
            Ending::Reset | Ending::TimedOut | Ending::Cut => self.lose_sight(last_bytes),
        }
        self.place = Place::GivenBack; // Its end will not be seen any more: only time ends it.
    }
}

impl TenureWatch for RequestWatch {
    fn state(&self) -> TenureState {
        match &self.depends_on {
            Dependence::Tenure(tenure) => tenure.state(),
            Dependence::Watching(let_past) if let_past.is_closed() => TenureState::Ended,
            Dependence::Watching(_) => TenureState::Good { until: Instant::now() + WATCHING_PERIOD },
        }
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        match &self.depends_on {
            Dependence::Tenure(tenure) => Box::pin(tenure.changed()),
            Dependence::Watching(let_past) => Box::pin(let_past.changed()),
        }
    }

    fn fetch_news(&self) -> Instant {
        match &self.depends_on {
            Dependence::Tenure(tenure) => tenure.fetch_news(),
            Dependence::Watching(_) => Instant::now() + WATCHING_PERIOD,
        }
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
        } else {
            self.give_back();
        }
    }
}
