//! What a request carries along on its way, and how it is answered if it gets no further.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use fencepost_config::{Config, Freshness, Mode, Route};
use fencepost_sources::{FormatConflict, LockSource, Timing, TrackedLock};
use fencepost_tls::PeerNames;
use http::{Request, Response};
use tokio::time::Instant;

use crate::about::About;
use crate::access_log::{AccessLog, OpenError};
use crate::decision::{DecisionIds, Sample, WallClock};
use crate::downstream::{ClientAddress, ClientBody, UnderWay};
use crate::forward::{KeptFields, Pool, ResponseBody, Upstream};
use crate::in_place::boxed;
use crate::lock_sources::SourcesError;
use crate::log_throttle::LeftOut;
use crate::metrics::{RequestCounts, RouteMetrics};
use crate::process::Process;
use crate::refusal::{AnswerForm, Failure};
use crate::routes::{Guard, RouteInForce};
use crate::ticket::Ticket;
use crate::upstreams::{Identity, UpstreamsError};
use crate::wire::Background;

/// An answer on its way to the client.
///
/// Behind a pointer, as the request: it is moved from layer to layer.
pub type Answer = Box<Response<ResponseBody<Ticket>>>;

/// A request, and how far it has come: `S` is what the last layer found out.
///
/// It is moved from layer to layer, so what is large is behind a pointer.
pub struct Exchange<S> {
    /// The request, as the client sent it.
    pub request: Box<Request<ClientBody>>,
    /// Where it is.
    pub place: Rc<Place>,
    /// Counted as long as it is on its way.
    pub in_flight: InFlight,
    /// What is known of it by now.
    pub state: S,
}

/// What all threads share of a configuration in force. A reload puts another one in its place; requests that came in under
/// this one keep it to their end, and with it all that it is made of.
pub struct Fence {
    /// How many configurations this process has had, with this one.
    pub generation: u64,
    /// What was configured.
    pub config: Config,
    /// The sources of `config`, in the same order.
    pub sources: Arc<[LockSource]>,
    /// What stands behind each route of `config`, in the same order.
    pub routes: Vec<RouteInForce>,
    /// The worker of each route of `config`, in the same order.
    pub upstreams: Vec<Upstream>,
    /// What the connections to them are made of, where they speak TLS.
    pub identities: Vec<Identity>,
    /// Counts what is refused before its route is known.
    pub unrouted: RouteMetrics,
    /// Where requests that have ended get a line, if anywhere.
    pub access_log: Option<AccessLog>,
    /// What is there once, whatever the configuration.
    pub process: Arc<Process>,
}

/// A configuration that is ready and not in force yet, and may never be: nothing is shown of it.
pub struct Prepared {
    /// Which one it would be.
    pub generation: u64,
    /// What was configured.
    pub config: Config,
    /// The sources of `config`, in the same order.
    pub sources: Arc<[LockSource]>,
    /// What guards each route of `config`, in the same order.
    pub guards: Vec<Option<Guard>>,
    upstreams: Vec<Upstream>,
    identities: Vec<Identity>,
    access_log: Option<AccessLog>,
    /// What is there once, whatever the configuration.
    pub process: Arc<Process>,
}

impl Prepared {
    /// Makes a configuration ready to be put in force: from now on its sources work and its static locks are kept current.
    ///
    /// # Errors
    /// If a source can't be started, if a lock is tracked already and read in another way, or if TLS to a worker can't be had.
    pub fn new(config: Config, generation: u64, process: Arc<Process>) -> Result<Prepared, FenceError> {
        let (upstreams, identities) = process.identities.upstreams(&config)?;
        let sources = process.sources.of(&config, process.memory.as_ref())?;
        let guards = config.routes.iter().map(|route| Guard::of(route, &sources));
        let access_log = |log| AccessLog::open(log, process.access_lines_lost.clone(), &process.closing);
        Ok(Prepared {
            generation,
            guards: guards.collect::<Result<_, _>>()?,
            sources: sources.into(),
            upstreams,
            identities,
            access_log: config.access_log.as_ref().map(access_log).transpose()?,
            process,
            config,
        })
    }

    /// The locks of its routes that are always the same.
    pub fn static_locks(&self) -> impl Iterator<Item = &Arc<TrackedLock>> {
        self.guards.iter().filter_map(|guard| guard.as_ref()?.static_lock())
    }

    /// What is to be put in force. From now on its routes are among the metrics, before their first request.
    pub fn fence(self) -> Fence {
        let Prepared { generation, config, sources, guards, upstreams, identities, access_log, process } = self;
        let routes = config.routes.iter().zip(guards);
        let routes =
            routes.map(|(route, guard)| RouteInForce::new(route, guard, &config, &sources, &process)).collect();
        let unrouted = process.metrics.unrouted();
        Fence { generation, routes, sources, upstreams, identities, unrouted, access_log, process, config }
    }
}

impl Fence {
    /// A configuration that is put in force without further ado.
    ///
    /// # Errors
    /// Those of [`Prepared::new`].
    pub fn new(config: Config, generation: u64, process: Arc<Process>) -> Result<Fence, FenceError> {
        Prepared::new(config, generation, process).map(Prepared::fence)
    }

    /// Whether each of its own locks has been read that are always the same, and the store has answered where there are others. A source
    /// may have more of them: those of a configuration that is tried.
    pub fn is_ready(&self, source: &LockSource) -> bool {
        let mut of_source = self.static_locks().filter(|lock| lock.source() == source.name());
        source.has_answered() && of_source.all(|lock| lock.is_known())
    }

    /// The locks of its routes that are always the same.
    pub fn static_locks(&self) -> impl Iterator<Item = &Arc<TrackedLock>> {
        self.routes.iter().filter_map(|route| route.guard.as_ref()?.static_lock())
    }

    /// Its routes are those in force, as far as decisions are concerned.
    pub fn keep_labels(&self) {
        self.process.keep_labels(self.routes.iter().map(|route| Arc::clone(&route.label)));
    }
}

/// Why a configuration can't be put in force.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// A source can't be had.
    #[error(transparent)]
    Source(#[from] SourcesError),
    /// A lock would be read in two ways.
    #[error(transparent)]
    Lock(#[from] FormatConflict),
    /// TLS to a worker can't be had.
    #[error(transparent)]
    Upstream(#[from] UpstreamsError),
    /// The access log can't be opened.
    #[error(transparent)]
    AccessLog(#[from] OpenError),
}

/// What one worker thread has for itself.
pub struct Worker {
    /// The configuration in force.
    pub fence: Arc<Fence>,
    /// The connections to the worker of each route, in the order of the routes.
    pub pools: Vec<Pool>,
    /// Each route's token headers, in the order of the routes.
    pub kept_headers: Vec<Rc<KeptFields>>,
    /// What the requests of each route count on the thread, in the order of the routes.
    pub counts: Vec<Rc<RequestCounts>>,
    /// What those count whose route is not known.
    pub unrouted_counts: Rc<RequestCounts>,
    /// Names decisions.
    pub decisions: Rc<DecisionIds>,
    /// Which admissions are recorded.
    pub sample: Sample,
    /// What it has left out of the log.
    pub left_out: LeftOut,
    /// Tells when decisions were made.
    pub wall_clock: WallClock,
    /// The number of the thread.
    pub thread: usize,
    /// Runs what outlives its request.
    pub background: Background,
}

/// Where a request is: on which thread and route, from whom, since when.
pub struct Place {
    /// The thread.
    pub worker: Rc<Worker>,
    /// The number of its route; `None` before that is known.
    pub route: Cell<Option<usize>>,
    /// How it wants to be answered.
    pub form: AnswerForm,
    /// Where it came from.
    pub client: ClientAddress,
    /// The names of the certificate that its connection has proved to be its own.
    pub peer: Option<Rc<PeerNames>>,
    /// When it arrived.
    pub arrived: Instant,
    /// What it said of itself.
    pub about: About,
}

impl Place {
    /// The route as configured.
    pub fn route(&self) -> &Route {
        &self.worker.fence.config.routes[self.known_route()]
    }

    /// What stands behind the route.
    pub fn in_force(&self) -> &RouteInForce {
        &self.worker.fence.routes[self.known_route()]
    }

    /// The connections to the route's worker.
    pub fn pool(&self) -> &Pool {
        &self.worker.pools[self.known_route()]
    }

    /// The headers named like fencing that the worker gets to see.
    pub fn kept_headers(&self) -> &Rc<KeptFields> {
        &self.worker.kept_headers[self.known_route()]
    }

    fn known_route(&self) -> usize {
        self.route.get().expect("only the routing layer is passed without a route")
    }

    /// The counters of the route.
    pub fn metrics(&self) -> &RouteMetrics {
        match self.route.get() {
            Some(route) => &self.worker.fence.routes[route].metrics,
            None => &self.worker.fence.unrouted,
        }
    }

    /// What the requests of the route count on the thread.
    pub fn counts(&self) -> &Rc<RequestCounts> {
        match self.route.get() {
            Some(route) => &self.worker.counts[route],
            None => &self.worker.unrouted_counts,
        }
    }

    /// Whether refusals are only recorded.
    pub fn is_shadow(&self) -> bool {
        matches!(self.route().mode, Mode::Shadow(_))
    }

    /// The facts of time that a verdict on this request depends on, now.
    pub fn timing(&self) -> Timing {
        let route = self.route();
        Timing {
            arrived: self.arrived,
            now: Instant::now(),
            max_age: route.max_age,
            linearizable: route.freshness == Freshness::Linearizable,
        }
    }

    /// Records that the worker did not answer, and writes what the client is told.
    pub fn fail(&self, failure: Failure) -> Answer {
        self.metrics().failed(failure);
        self.about.note_failure(failure);
        boxed(|| failure.answer(self.form).map(ResponseBody::Whole))
    }

    /// What a client is told whose request made us panic.
    pub fn panicked(&self) -> Answer {
        self.fail(if self.about.may_be_sent() { Failure::InternalAfterSending } else { Failure::Internal })
    }
}

/// Counts a request as in flight on its route, and as under way on its connection, for as long as this lives.
pub struct InFlight {
    counts: Rc<RequestCounts>,
    _under_way: UnderWay,
}

impl InFlight {
    /// One more.
    pub fn new(counts: Rc<RequestCounts>, under_way: UnderWay) -> InFlight {
        counts.begin();
        InFlight { counts, _under_way: under_way }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.counts.end();
    }
}
