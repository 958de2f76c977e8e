//! A process from start to end: sources, routes, threads, admin listener, and the steps in which it stops.

use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_config::{Address, Config, HostPort, SourceKind, UpstreamAddress, UpstreamProtocol};
use fencepost_sources::{
    EtcdOptions, EtcdStore, FormatConflict, LockSource, Member, MemoryStore, SourceOptions, SpawnError,
    known_stale_reads,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tower::service_fn;

use crate::access_log::{AccessLog, OpenError};
use crate::admin::Admin;
use crate::decision::{DecisionIds, LogThrottle, Sample};
use crate::downstream::{self, BindError, Limits, ListenAddress, Listener, Protocol, Server, ThreadContext, serve};
use crate::exchange::{Fence, Worker};
use crate::forward::{self, Pool, Upstream};
use crate::logging::LogControl;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::observe::{Observations, RouteLabel, collector};
use crate::routes::RouteInForce;
use crate::stack::stack;
use crate::state::StateError;

/// What a process listens on, bound before anything runs.
pub struct Bound {
    /// Where requests come in.
    pub listeners: Vec<Listener>,
    /// Where operators look in.
    pub admin: Option<Listener>,
}

/// What a process is given besides its configuration.
#[derive(Default)]
pub struct Surroundings {
    /// The store behind sources of kind `memory`.
    pub memory: MemoryStore,
    /// What changes the log, if there is one.
    pub log: Option<LogControl>,
    /// Told once everything runs.
    pub started: Option<tokio::sync::oneshot::Sender<Started>>,
}

/// Where a process can be reached.
#[derive(Debug, Clone)]
pub struct Started {
    /// The listeners, with the ports that the system chose.
    pub listeners: Vec<ListenAddress>,
    /// The admin listener.
    pub admin: Option<ListenAddress>,
}

/// Why a process could not run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address can't be listened on.
    #[error("cannot listen")]
    Bind(#[from] BindError),
    /// The system gives no thread or no event queue.
    #[error("cannot start")]
    Start(#[from] io::Error),
    /// A source of locks can't be started.
    #[error("cannot start the lock source")]
    Source(#[from] SpawnError),
    /// The `state_dir` can't be used.
    #[error("cannot remember")]
    State(#[from] StateError),
    /// The access log can't be opened.
    #[error("cannot log")]
    AccessLog(#[from] OpenError),
    /// A lock would be read in two ways.
    #[error("cannot track a lock")]
    Lock(#[from] FormatConflict),
    /// A metric can't be registered.
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
    /// A thread ended that should not have.
    #[error("a worker thread ended unexpectedly")]
    ThreadEnded,
}

/// Binds what the configuration names.
///
/// # Errors
/// If an address is in use or can't be bound.
pub fn bind(config: &Config) -> Result<Bound, RunError> {
    let listeners = config.listeners.iter().map(|address| Listener::bind(&listen_address(address)));
    let admin = config.admin.as_ref().map(|address| Listener::bind(&listen_address(address)));
    Ok(Bound { listeners: listeners.collect::<Result<_, _>>()?, admin: admin.transpose()? })
}

/// Completes on SIGTERM or SIGINT.
pub async fn terminated() {
    let next = async |kind| match signal(kind) {
        Ok(mut signals) => drop(signals.recv().await),
        Err(error) => {
            tracing::warn!(%error, "a signal cannot be listened for");
            std::future::pending().await
        }
    };
    tokio::select! {
        () = next(SignalKind::terminate()) => {}
        () = next(SignalKind::interrupt()) => {}
    }
}

/// Runs until `shutdown` completes, then drains: not ready → asks clients to leave for `drain_delay` → accepts nothing more and
/// finishes, for `drain_timeout` at most → cuts the rest and says how much that was.
///
/// # Errors
/// If something can't be started, or a thread ends unexpectedly.
pub async fn run(
    config: Config,
    bound: Bound,
    surroundings: Surroundings,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let limits = config.limits;
    let memory = config.state_dir.as_deref().map(Memory::open).transpose()?;
    let sources = start_sources(&config, &surroundings.memory, memory.as_ref())?;
    let fence = Arc::new(put_in_force(config, &sources, memory)?);
    let threads = threads(&fence.config);
    let make_service = {
        let (fence, process) = (Arc::clone(&fence), DecisionIds::process());
        move |thread| stack(Rc::new(worker(Arc::clone(&fence), process, thread)))
    };
    let mut server = serve(bound.listeners, threads, client_limits(&limits), make_service)?;
    for address in server.addresses() {
        tracing::info!(%address, threads, "listening");
    }
    let connections = server.connections();
    let leaving = Arc::new(AtomicBool::new(false));
    let sources: Arc<[LockSource]> = sources.into();
    let observations = fence.observations.clone().unwrap_or_else(|| Arc::new(Observations::new(NonZeroUsize::MIN, 0)));
    let admin = Admin {
        fence: Arc::clone(&fence),
        sources: Arc::clone(&sources),
        leaving: Arc::clone(&leaving),
        connections,
        observations: Arc::clone(&observations),
        streams: Arc::default(),
        log: surroundings.log,
    };
    let admin_server = bound.admin.map(|listener| serve_admin(listener, admin.clone())).transpose()?;
    let started = Started {
        listeners: server.addresses().to_vec(),
        admin: admin_server.as_ref().and_then(|server| server.addresses().first().cloned()),
    };
    if let Some(tell) = surroundings.started {
        let _ = tell.send(started); // Whoever asked may have stopped to listen.
    }

    let remembering = async {
        match &fence.memory {
            Some(memory) => memory.note_revisions(&admin.sources).await,
            None => std::future::pending().await,
        }
    };
    let collecting = async {
        match &fence.observations {
            Some(observations) => collector::keep_collecting(observations, || Arc::clone(&sources)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shutdown => {}
        () = remembering => {}
        () = collecting => {}
        () = server.failed() => return Err(RunError::ThreadEnded),
    }

    tracing::info!(drain_delay = ?limits.drain_delay, "draining: not ready, clients are asked to leave");
    leaving.store(true, Ordering::Relaxed);
    server.leave();
    tokio::time::sleep(limits.drain_delay).await;
    tracing::info!(drain_timeout = ?limits.drain_timeout, "draining: nothing more is accepted");
    fence.draining.store(true, Ordering::Relaxed);
    // Held until the end, so that no gate is forgotten before it was asked what it left.
    let mut locks: Vec<_> = admin.sources.iter().flat_map(LockSource::locks).collect();
    let drained = server.shutdown(limits.drain_timeout).await;
    locks.extend(admin.sources.iter().flat_map(LockSource::locks));
    let clean = drained.cut == 0 && locks.iter().all(|lock| lock.is_clear(Instant::now()));
    if drained.cut > 0 {
        tracing::warn!(cut = drained.cut, "drained: connections and requests were cut");
    } else {
        tracing::info!("drained: everything has ended");
    }
    if let Some(server) = admin_server {
        server.shutdown(Duration::from_secs(1)).await;
    }
    let sources = Arc::clone(&admin.sources);
    drop(admin);
    // Every thread has ended, so that nobody else has it any more.
    if let Some(memory) = Arc::into_inner(fence).and_then(|fence| fence.memory) {
        memory.close(&sources, clean);
    }
    sources.iter().for_each(LockSource::stop);
    Ok(())
}

fn serve_admin(listener: Listener, admin: Admin) -> io::Result<Server> {
    let server = serve(vec![listener], NonZeroUsize::MIN, Limits::default(), move |_| {
        let admin = admin.clone();
        service_fn(move |request| admin.clone().answer(request))
    })?;
    for address in server.addresses() {
        tracing::info!(%address, "admin listening");
    }
    Ok(server)
}

/// Starts the sources of locks: `store` is behind those of kind `memory`.
pub(crate) fn start_sources(
    config: &Config,
    store: &MemoryStore,
    memory: Option<&Memory>,
) -> Result<Vec<LockSource>, RunError> {
    let start = |(index, source): (usize, &fencepost_config::Source)| {
        let max_ages = config.routes.iter().filter(|route| route.mode.lock().is_some_and(|lock| lock.source == index));
        let max_age = max_ages.map(|route| route.max_age).min().unwrap_or(Duration::from_secs(5));
        let options = SourceOptions {
            period: max_age / 5,
            tracked_locks_max: config.limits.tracked_locks_max as u64,
            caution: Some(caution),
            highest_seen: memory.and_then(|memory| memory.highest_seen(&source.name)),
            memory: memory.map(|memory| memory.of_source(&source.name)),
            ..SourceOptions::default()
        };
        match &source.kind {
            SourceKind::Etcd { endpoints, cluster_id } => {
                let etcd = etcd_options(endpoints, *cluster_id);
                LockSource::spawn(&source.name, options, move || EtcdStore::new(&etcd))
            }
            SourceKind::Memory => {
                let store = store.clone();
                LockSource::spawn(&source.name, options, move || store)
            }
        }
    };
    Ok(config.sources.iter().enumerate().map(start).collect::<Result<_, _>>()?)
}

/// What there is to warn of in a member of a store.
pub(crate) fn caution(member: &Member) -> Option<String> {
    let version = member.version.as_ref().ok()?;
    known_stale_reads(version).then(|| {
        format!(
            "{} runs etcd {version}, which can answer a linearizable read with old data after pauses (etcd-io/etcd#20418, fixed in \
             3.4.42, 3.5.28 and 3.6.9): max_age may be exceeded once in such a case",
            member.endpoint
        )
    })
}

/// How the etcd of a source is reached.
pub(crate) fn etcd_options(endpoints: &[HostPort], cluster_id: Option<u64>) -> EtcdOptions {
    let endpoints = endpoints.iter().map(|endpoint| format!("http://{endpoint}")).collect();
    EtcdOptions { endpoints, cluster_id }
}

fn put_in_force(config: Config, sources: &[LockSource], memory: Option<Memory>) -> Result<Fence, RunError> {
    let metrics = Metrics::new()?;
    let access_log = config.access_log.as_ref().map(AccessLog::open).transpose()?.map(Arc::new);
    // Without an admin listener nobody could look.
    let observed = config.admin.is_some();
    let observations = observed.then(|| Arc::new(Observations::new(threads(&config), config.decisions.kept)));
    let routes = config.routes.iter().map(|route| RouteInForce::new(route, &config.routes, sources, &metrics));
    Ok(Fence {
        routes: routes.collect::<Result<_, _>>()?,
        unrouted: metrics.route("none", "enforce"),
        metrics,
        log: LogThrottle::new(),
        observations,
        access_log,
        unrouted_label: Arc::new(RouteLabel::unrouted()),
        memory,
        waiting: AtomicUsize::new(0),
        draining: AtomicBool::new(false),
        config,
    })
}

fn worker(fence: Arc<Fence>, process: u32, thread: ThreadContext) -> Worker {
    let limits = &fence.config.limits;
    // Routes to one worker share its connections.
    let mut pools: Vec<(&fencepost_config::Upstream, Pool)> = Vec::new();
    let routes = fence.config.routes.iter().map(|route| {
        if let Some((_, pool)) = pools.iter().find(|(upstream, _)| **upstream == route.upstream) {
            return pool.clone();
        }
        let pool = Pool::new(upstream(&route.upstream, limits), thread.background.clone());
        pools.push((&route.upstream, pool.clone()));
        pool
    });
    let routes = routes.collect();
    let kept = fence.config.routes.iter().map(|route| {
        let from_header = route.mode.lock().is_some_and(|lock| lock.from_header);
        let mut kept = vec![route.owner_header.clone(), route.revision_header.clone()];
        kept.extend(from_header.then(|| route.lock_header.clone()));
        kept.into()
    });
    let kept_headers = kept.collect();
    let decisions = DecisionIds::new(process, thread.index);
    let sample = Sample::one_in(fence.config.decisions.admissions_one_in);
    Worker { pools: routes, kept_headers, decisions, sample, background: thread.background, fence }
}

/// As many threads as configured, else as the process may use: its CPU affinity and its cgroup's quota count.
fn threads(config: &Config) -> NonZeroUsize {
    config.threads.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

pub(crate) fn listen_address(address: &Address) -> ListenAddress {
    match address {
        Address::Tcp(address) => ListenAddress::Tcp(*address),
        Address::Unix(path) => ListenAddress::Unix(path.clone()),
    }
}

fn client_limits(limits: &fencepost_config::Limits) -> Limits {
    Limits {
        connections_max: limits.connections_max,
        header_timeout: limits.header_timeout,
        idle_timeout: limits.idle_timeout,
        body_timeout: limits.body_timeout,
        header_bytes_max: limits.header_bytes_max,
        headers_max: limits.headers_max,
        streams_max: limits.h2_streams_max,
        ..downstream::Limits::default()
    }
}

/// A worker as the upstream side knows it.
pub(crate) fn upstream(upstream: &fencepost_config::Upstream, limits: &fencepost_config::Limits) -> Upstream {
    let address = match &upstream.address {
        UpstreamAddress::Tcp(HostPort { host, port }) => {
            forward::UpstreamAddress::Tcp { host: host.clone(), port: *port }
        }
        UpstreamAddress::Unix(path) => forward::UpstreamAddress::Unix(path.clone()),
    };
    let protocol = match upstream.protocol {
        UpstreamProtocol::Http1 => Protocol::Http1,
        UpstreamProtocol::H2c => Protocol::Http2,
    };
    Upstream {
        connections_max: limits.upstream_connections_max,
        idle_timeout: limits.upstream_idle_timeout,
        ..Upstream::new(address, protocol)
    }
}
