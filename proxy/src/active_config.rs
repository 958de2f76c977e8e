//! The configuration in force, and how worker threads follow it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_config::{Limits, Upstream};
use fencepost_locks::Membership;
use tokio::sync::watch;

use crate::decision::{DecisionIds, Sample};
use crate::generation::Generation;
use crate::metrics::RequestCounts;
use crate::server::ThreadContext;
use crate::upstream::{self, KeptFields, Pool};
use crate::wire::Background;

/// Shows the configuration in force. Clones show the same.
#[derive(Clone)]
pub struct ActiveConfig(watch::Receiver<Arc<Generation>>);

/// Puts one configuration after another in force.
pub struct ActiveConfigSwitch(watch::Sender<Arc<Generation>>);

impl ActiveConfigSwitch {
    /// Begins with that one.
    pub fn new(generation: Arc<Generation>) -> ActiveConfigSwitch {
        ActiveConfigSwitch(watch::Sender::new(generation))
    }

    /// Puts another one in force. Requests under way keep theirs, and hold on to what it is made
    /// of.
    pub fn to(&self, generation: Arc<Generation>) {
        generation.keep_labels();
        if let Some(observations) = &generation.process.observations {
            observations.keep(generation.config.decisions.kept);
        }
        self.0.send_replace(generation);
    }

    /// Shows what is in force.
    pub fn in_force(&self) -> ActiveConfig {
        ActiveConfig(self.0.subscribe())
    }
}

impl ActiveConfig {
    /// What is in force now.
    pub fn now(&self) -> Arc<Generation> {
        Arc::clone(&self.0.borrow())
    }
}

/// What one worker thread works with: the configuration in force, and its own share of it.
pub struct ThreadInForce {
    seen: RefCell<ActiveConfig>,
    share: RefCell<Rc<ThreadShare>>,
}

impl ThreadInForce {
    /// Follows what is in force, on a worker thread, until that thread ends.
    pub fn follow(
        in_force: ActiveConfig,
        process: u32,
        thread: ThreadContext,
    ) -> Rc<ThreadInForce> {
        let mut changes = in_force.clone();
        changes.0.mark_unchanged();
        let decisions = Rc::new(DecisionIds::new(process, thread.index));
        changes.now().process.pulses.answer_here(&format!("worker-{}", thread.index));
        let requests = Rc::new(DecisionIds::new(DecisionIds::process(), thread.index));
        let first = ThreadShare::new(changes.now(), None, [decisions, requests], thread);
        let following = Rc::new(ThreadInForce {
            seen: RefCell::new(changes.clone()),
            share: RefCell::new(Rc::new(first)),
        });
        let to_follow = Rc::clone(&following);
        // A thread without requests must not hold on to what is no longer in force.
        tokio::task::spawn_local(async move {
            while changes.0.changed().await.is_ok() {
                to_follow.share();
            }
        });
        following
    }

    /// What a request that arrives now works with.
    pub fn share(&self) -> Rc<ThreadShare> {
        // One atomic load. An error means that the process is about to end.
        if self.seen.borrow().0.has_changed().unwrap_or(false) {
            self.catch_up();
        }
        Rc::clone(&self.share.borrow())
    }

    #[cold]
    fn catch_up(&self) {
        let generation = Arc::clone(&self.seen.borrow_mut().0.borrow_and_update());
        let before = Rc::clone(&self.share.borrow());
        let thread = ThreadContext { index: before.thread, background: before.background.clone() };
        let ids = [&before.decisions, &before.request_ids].map(Rc::clone);
        let share = ThreadShare::new(generation, Some(&before), ids, thread);
        *self.share.borrow_mut() = Rc::new(share);
    }
}

/// What one worker thread has for itself.
pub struct ThreadShare {
    /// The configuration in force.
    pub generation: Arc<Generation>,
    /// The connections to the worker of each route, in the order of the routes.
    pub pools: Vec<RoutePools>,
    /// The fields of each route that are known by their names: its token's, and those that it
    /// replaces. In the order of the routes.
    pub kept_headers: Vec<Rc<KeptFields>>,
    /// What the requests of each route count on the thread, in the order of the routes.
    pub counts: Vec<Rc<RequestCounts>>,
    /// What those count whose route is not known.
    pub unrouted_counts: Rc<RequestCounts>,
    /// Names decisions.
    pub decisions: Rc<DecisionIds>,
    /// Names requests. Another process's or thread's ids never begin alike.
    pub request_ids: Rc<DecisionIds>,
    /// Which admissions are recorded.
    pub sample: Sample,
    /// The number of the thread.
    pub thread: usize,
    /// Runs what outlives its request.
    pub background: Background,
}

impl ThreadShare {
    /// A thread's share of `fence`. Connections to workers that stay what they were are those of
    /// `before`.
    fn new(
        generation: Arc<Generation>,
        before: Option<&ThreadShare>,
        [decisions, request_ids]: [Rc<DecisionIds>; 2],
        thread: ThreadContext,
    ) -> ThreadShare {
        // Routes to one worker share its connections.
        let mut pools: Vec<(Reach<'_>, Pool)> =
            before.into_iter().flat_map(ThreadShare::reached).collect();
        let routes = generation.config.routes.iter().zip(&generation.upstreams);
        let routes = routes.map(|(route, upstream)| {
            let mut pool = |group: Option<&Arc<Membership>>| {
                let reach = Reach::new(&route.upstream, upstream, &generation.config.limits, group);
                if let Some((_, pool)) = pools.iter().find(|(other, _)| *other == reach) {
                    return pool.clone();
                }
                let (upstream, background) = (upstream.clone(), thread.background.clone());
                let pool = match group {
                    None => Pool::new(upstream, background),
                    Some(group) => Pool::in_group(upstream, background, Arc::clone(group)),
                };
                pools.push((reach, pool.clone()));
                pool
            };
            let fenced = pool(generation.group());
            RoutePools { fenced, unfenced: pool(None) }
        });
        let routes = routes.collect();
        // A route without a lock may have a worker of one that has.
        let judges_paths = generation.config.routes.iter().any(|route| route.mode.lock().is_some());
        let kept = generation.config.routes.iter().map(|route| {
            let from_header = route.mode.lock().is_some_and(|lock| lock.from_header);
            let mut kept = vec![route.owner_header.clone(), route.revision_header.clone()];
            kept.extend(from_header.then(|| route.lock_header.clone()));
            // What a route sets or removes comes in no other spelling either, nor in trailers.
            kept.extend(route.rewrite.request_headers.replaced().cloned());
            let kept = KeptFields::new(kept);
            let kept = if judges_paths { kept.and_one_path() } else { kept };
            Rc::new(if generation.config.fences_by_host() { kept.and_one_host() } else { kept })
        });
        let kept_headers = kept.collect();
        drop(pools);
        let counts =
            generation.routes.iter().map(|route| Rc::new(route.metrics.requests.clone())).collect();
        let unrouted_counts = Rc::new(generation.unrouted.requests.clone());
        let sample = Sample::one_in(generation.config.decisions.admissions_one_in);
        ThreadShare {
            pools: routes,
            kept_headers,
            counts,
            unrouted_counts,
            decisions,
            request_ids,
            sample,
            thread: thread.index,
            background: thread.background,
            generation,
        }
    }

    fn reached(&self) -> impl Iterator<Item = (Reach<'_>, Pool)> {
        let Generation { config, upstreams, .. } = &*self.generation;
        let routes = config.routes.iter().zip(upstreams).zip(&self.pools);
        routes.flat_map(|((route, upstream), pools)| {
            let reach = |group| Reach::new(&route.upstream, upstream, &config.limits, group);
            [
                (reach(self.generation.group()), pools.fenced.clone()),
                (reach(None), pools.unfenced.clone()),
            ]
        })
    }
}

/// The connections of one thread to the worker of a route. In a group, requests that have entered a
/// gate share none with others: theirs are paused and reset with the standing of this process.
pub struct RoutePools {
    /// For requests that have entered a gate.
    pub fenced: Pool,
    /// For all others; the same pool without a group.
    pub unfenced: Pool,
}

/// All that a pool of connections depends on.
#[derive(PartialEq, Eq)]
struct Reach<'c> {
    upstream: &'c Upstream,
    limits: (usize, Duration, Duration, u32, usize),
    group: Option<*const Membership>,
}

impl<'c> Reach<'c> {
    fn new(
        upstream: &'c Upstream,
        made: &upstream::Upstream,
        limits: &Limits,
        group: Option<&Arc<Membership>>,
    ) -> Reach<'c> {
        let Limits { upstream_connections_max, upstream_idle_timeout, .. } = *limits;
        let Limits { connect_retries, upstream_headers_max, .. } = *limits;
        Reach {
            upstream,
            limits: (
                upstream_connections_max,
                upstream_idle_timeout,
                made.unacknowledged_max,
                connect_retries,
                upstream_headers_max,
            ),
            group: group.map(Arc::as_ptr),
        }
    }
}
