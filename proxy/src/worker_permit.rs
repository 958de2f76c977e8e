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
use unseen::{Lost, Unseen};

/// The proof that a request may go to the worker, given back to the gate when the request is no
/// longer there.
///
/// The upstream side sends nothing without one, and only what the gate gives makes one: a stack
/// that forgets the fence does not compile.
pub struct WorkerPermit {
    counted: Counted,
    context: Rc<RequestContext>,
    _in_flight: Rc<InFlight>,
}

/// Where a request counts.
enum Counted {
    /// At the gate of its lock.
    Entered(Entry),
    /// With what its route lets past.
    Passing(Pass),
    /// Nowhere, because its route is off.
    Uncounted,
    /// Where it was, until its time is over. Boxed, as all that is rare: each request would move
    /// the room for it.
    Unseen(Box<Unseen>),
    /// Nowhere any more.
    GivenBack,
}

/// Watches what a long request depends on.
struct RequestWatch {
    depends_on: Dependence,
    context: Rc<RequestContext>,
    is_counted: Cell<bool>,
}

/// What may end while a request is at the worker.
enum Dependence {
    /// The tenure that it was admitted under.
    Tenure(Tenure),
    /// Shadow mode of its route: the request may be anybody's.
    Watching(Arc<LetPast>),
}

/// When a route in shadow mode is looked at again without having changed.
const WATCHING_PERIOD: Duration = Duration::from_secs(3600);

impl WorkerPermit {
    /// For a request that has entered the gate.
    pub fn admitted(
        context: Rc<RequestContext>,
        entry: Entry,
        in_flight: Rc<InFlight>,
    ) -> WorkerPermit {
        WorkerPermit { counted: Counted::Entered(entry), context, _in_flight: in_flight }
    }

    /// For a request that passes without having been admitted. It is counted with its route. `None`
    /// if its route was in shadow mode when it came and enforces now: it has to be judged.
    pub fn passing(
        context: Rc<RequestContext>,
        reason: PassReason,
        in_flight: Rc<InFlight>,
    ) -> Option<WorkerPermit> {
        let counted = match &context.active_route().let_past {
            None => Counted::Uncounted,
            Some(let_past) => Counted::Passing(let_past.pass(reason)?),
        };
        Some(WorkerPermit { counted, context, _in_flight: in_flight })
    }

    /// What may end while the request is at the worker.
    fn dependence(&self) -> Option<Dependence> {
        match &self.counted {
            Counted::Entered(entry) => {
                Some(Dependence::Tenure(entry.tenure(self.context.route().max_age)))
            }
            Counted::Passing(pass) => Some(Dependence::Watching(Arc::clone(pass.watched()?))),
            Counted::Uncounted | Counted::Unseen(_) | Counted::GivenBack => None,
        }
    }

    /// The request may run on at the worker, unseen: its time ends `orphan_timeout` after its last
    /// bytes. If it was lost before, its time begins anew, unless that would end sooner. Its
    /// connection, if it has one yet, is reset when that is over.
    fn lose(&mut self, LastBytes { until: last_bytes, connection }: LastBytes) {
        let until = last_bytes + self.context.route().orphan_timeout;
        let lost = match std::mem::replace(&mut self.counted, Counted::GivenBack) {
            Counted::Entered(entry) => Lost::orphan(entry.lose(until), &self.context),
            // Nobody waits for it, unless its route turns to enforce meanwhile.
            Counted::Passing(pass) => Lost::pass(pass),
            Counted::Unseen(unseen) => {
                unseen.postpone(until);
                self.counted = Counted::Unseen(unseen);
                return;
            }
            Counted::Uncounted | Counted::GivenBack => return,
        };
        self.counted = Counted::Unseen(Box::new(Unseen::new(
            lost,
            until,
            Rc::clone(&self.context),
            connection,
        )));
    }

    /// Loses a request on whose connection nothing more is read.
    fn lose_sight(&mut self, last_bytes: Instant) {
        self.lose(LastBytes { until: last_bytes, connection: None });
        self.counted = Counted::GivenBack; // Only time ends it.
    }

    /// The request is not at the worker.
    fn give_back(&mut self) {
        match std::mem::replace(&mut self.counted, Counted::GivenBack) {
            Counted::Unseen(unseen) => unseen.end(),
            // What counts them is dropped here.
            Counted::Entered(_) | Counted::Passing(_) | Counted::Uncounted | Counted::GivenBack => {
            }
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
        Some(Rc::new(RequestWatch {
            depends_on,
            context: Rc::clone(&self.context),
            is_counted: Cell::new(false),
        }))
    }

    fn is_endless(&self) -> bool {
        self.context.route().streaming && self.dependence().is_some()
    }

    fn may_be_left(&self) -> bool {
        match &self.counted {
            Counted::Entered(_) | Counted::Unseen(_) | Counted::GivenBack => false,
            // Where its route comes to judge, what it watched is waited for.
            Counted::Passing(pass) => pass.watched().is_none(),
            Counted::Uncounted => true,
        }
    }

    fn answered(&self, took: Duration) {
        self.context.counts().upstream_took(took);
    }

    fn lost(&mut self, how: Ending, last_bytes: LastBytes) {
        if how == Ending::BodyCut {
            self.settle_partial(last_bytes);
        } else {
            self.lose(last_bytes);
        }
    }

    fn heard(&mut self) {
        if let Counted::Unseen(unseen) = &self.counted {
            unseen.postpone(Instant::now() + self.context.route().orphan_timeout);
        }
    }

    fn counts_until(&self) -> Option<Instant> {
        match &self.counted {
            Counted::Unseen(unseen) => Some(unseen.until()),
            Counted::Entered(_) | Counted::Passing(_) | Counted::Uncounted | Counted::GivenBack => {
                None
            }
        }
    }

    fn finished(mut self, how: Ending, last_bytes: Instant) {
        let time_has_come = self.counts_until().is_some_and(|until| until <= Instant::now());
        match how {
            Ending::Complete => self.give_back(),
            // The worker has been silent since: nothing that was to be read put that off. Or its
            // connection was reset because of that.
            Ending::TimedOut | Ending::Reset | Ending::BodyCut if time_has_come => {}
            Ending::BodyCut => {
                self.settle_partial(LastBytes { until: last_bytes, connection: None })
            }
            Ending::Reset | Ending::TimedOut | Ending::Cut => self.lose_sight(last_bytes),
        }
        self.counted = Counted::GivenBack; // Its end will not be seen any more: only time ends it.
    }
}

impl TenureWatch for RequestWatch {
    fn state(&self) -> TenureState {
        match &self.depends_on {
            Dependence::Tenure(tenure) => tenure.state(),
            Dependence::Watching(let_past) if let_past.is_closed() => TenureState::Ended,
            Dependence::Watching(_) => {
                TenureState::Good { until: Instant::now() + WATCHING_PERIOD }
            }
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
            Dependence::Tenure(tenure) => tenure.next_look(),
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
    /// A permit that was never used leaves the gate as if it had never entered. In a panic nobody
    /// knows what it was used for.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lose_sight(Instant::now());
        } else {
            self.give_back();
        }
    }
}
