//! A configuration that is put in force, with all that it is made of.

use std::sync::{Arc, Weak};

use fencepost_config::{Config, Mode};
use fencepost_fence::claim::Guard;
use fencepost_locks::{FormatConflict, LockSource, Membership, TrackedLock};
use tokio::time::Instant;

use crate::access_log::{AccessLog, OpenError};
use crate::let_past::LetPast;
use crate::lock_sources::SourcesError;
use crate::metrics::RouteMetrics;
use crate::process::Process;
use crate::routes::{ActiveRoute, guard_of, longest_orphan_timeouts, source_of};
use crate::upstream::Upstream;
use crate::upstreams::{Identity, UpstreamsError};

/// What all threads share of a configuration in force. A reload puts another one in its place;
/// requests that came in under this one keep it to their end, and with it all that it is made of.
pub struct Generation {
    /// How many configurations this process has had, with this one.
    pub number: u64,
    /// What was configured.
    pub config: Arc<Config>,
    /// The sources of `config`, in the same order.
    pub sources: Arc<[LockSource]>,
    /// What stands behind each route of `config`, in the same order.
    pub routes: Vec<ActiveRoute>,
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
pub struct PreparedGeneration {
    /// Which one it would be.
    pub number: u64,
    /// What was configured.
    pub config: Arc<Config>,
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

impl PreparedGeneration {
    /// Makes a configuration ready to be put in force: from now on its sources work and its static
    /// locks are kept current.
    ///
    /// # Errors
    /// If a source can't be started, if a lock is tracked already and read in another way, or if
    /// TLS to a worker can't be had.
    pub fn new(
        config: Config,
        number: u64,
        process: Arc<Process>,
    ) -> Result<PreparedGeneration, GenerationError> {
        let (upstreams, identities) = process.identities.upstreams(&config)?;
        let sources = process.sources.of(&config, process.memory.as_ref())?;
        let guards = config.routes.iter().map(|route| guard_of(route, &sources));
        let access_log =
            |log| AccessLog::open(log, process.access_lines_lost.clone(), &process.closing);
        Ok(PreparedGeneration {
            number,
            guards: guards.collect::<Result<_, _>>()?,
            sources: sources.into(),
            upstreams,
            identities,
            access_log: config.access_log.as_ref().map(access_log).transpose()?,
            process,
            config: Arc::new(config),
        })
    }

    /// The locks of its routes that are always the same.
    pub fn static_locks(&self) -> impl Iterator<Item = &Arc<TrackedLock>> {
        self.guards.iter().filter_map(|guard| guard.as_ref()?.static_lock())
    }

    /// What is to be put in force. From now on its routes are among the metrics, before their first
    /// request.
    pub fn activate(self) -> Generation {
        let PreparedGeneration {
            number,
            config,
            sources,
            guards,
            upstreams,
            identities,
            access_log,
            process,
        } = self;
        let orphan_timeouts = longest_orphan_timeouts(&config.routes);
        let routes = config.routes.iter().zip(guards).map(|(route, guard)| {
            let orphan_timeout_max = orphan_timeouts[&source_of(route)];
            ActiveRoute::new(route, guard, orphan_timeout_max, &sources, &process)
        });
        let routes = routes.collect();
        let unrouted = process.metrics.unrouted();
        Generation {
            number,
            routes,
            sources,
            upstreams,
            identities,
            unrouted,
            access_log,
            process,
            config,
        }
    }
}

impl Generation {
    /// A configuration that is put in force without further ado.
    ///
    /// # Errors
    /// Those of [`PreparedGeneration::new`].
    pub fn new(
        config: Config,
        number: u64,
        process: Arc<Process>,
    ) -> Result<Generation, GenerationError> {
        let generation = PreparedGeneration::new(config, number, process)?.activate();
        generation.tell_group();
        Ok(generation)
    }

    /// Tells the group for which locks this process cannot answer: those of routes that only watch,
    /// or that did, and what they let past may be at the worker. To be called before it is in force.
    pub fn tell_group(&self) {
        let Some(group) = self.group() else { return };
        let routes = self.config.routes.iter().zip(&self.routes);
        let guarded = routes.filter_map(|(route, in_force)| {
            let enforces = matches!(route.mode, Mode::Enforce(_));
            Some((route.mode.lock()?.key.clone(), enforces, Arc::clone(&in_force.earlier)))
        });
        let guarded: Vec<_> = guarded.collect();
        group.set_unfenced(move |key| {
            let now = Instant::now();
            let bars = |earlier: &[Weak<LetPast>]| {
                let passes = earlier.iter().filter_map(Weak::upgrade);
                passes.filter_map(|passes| passes.bars_until(now)).next().is_some()
            };
            let of_lock = guarded.iter().filter(|(keys, ..)| keys.matches_key(key.as_str()));
            let (mut watches, mut has_passes) = (None, false);
            for (_, enforces, earlier) in of_lock {
                watches = Some(watches.unwrap_or(true) && !enforces);
                has_passes |= bars(earlier);
            }
            watches == Some(true) || has_passes
        });
    }

    /// The group that this process is a member of, if there is one.
    pub fn group(&self) -> Option<&Arc<Membership>> {
        self.sources.iter().find_map(LockSource::group)
    }

    /// Whether the source has started, and each static lock of this configuration has been read,
    /// or is too large. The source may track more: the locks of a configuration that is tried.
    pub fn is_ready(&self, source: &LockSource) -> bool {
        let mut of_source = self.static_locks().filter(|lock| lock.source() == source.name());
        let stands = source.group().is_none_or(|group| group.stands());
        stands && source.has_started() && of_source.all(|lock| lock.is_answered())
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
pub enum GenerationError {
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
