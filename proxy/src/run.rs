//! A process from start to end: sources, routes, threads, admin listener, and the steps in which it
//! stops.

use std::io;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fencepost_config::{Address, Config};
use fencepost_locks::{LockSource, MemoryStore};
use fencepost_tls::TlsError;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tower::service_fn;

use crate::active_config::{ActiveConfig, ThreadInForce};
use crate::admin::{Admin, STREAMS_MAX};
use crate::cli::VERSION;
use crate::decision::DecisionIds;
use crate::descriptors::{ADMIN_CONNECTIONS, Connections};
use crate::drain::drain;
use crate::generation::{Generation, GenerationError};
use crate::logging::LogControl;
use crate::metrics::TlsUse;
use crate::observe::{Observations, collector};
use crate::process::Process;
use crate::reload::{Origin, ReloadSignals, Reloader, Reloads};
use crate::server::{
    BindError, Limits, ListenAddress, Listener, OpenConnections, PassedSockets, Server,
    ThreadService, serve,
};
use crate::server_tls;
use crate::service_manager::{Attended, ServiceManager};
use crate::signals::terminated;
use crate::stack::stack;
use crate::state::StateError;
use crate::tenure_log::Memory;

/// Who looks in and takes nothing for so long is lost, with its place among those that hear events.
const ADMIN_SILENCE_MAX: Duration = Duration::from_secs(90);

/// How long telling the other members of a group that this one ends may take.
const LEAVE_MAX: Duration = Duration::from_secs(3);

/// How often a process that starts looks whether it is ready.
const READINESS_PERIOD: Duration = Duration::from_millis(100);

/// What a process listens on, bound before anything runs.
pub struct Bound {
    /// Where requests come in.
    pub listeners: Vec<Listener>,
    /// Where operators look in: nowhere, or at one address; systemd may pass several sockets under
    /// one name.
    pub admin: Vec<Listener>,
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
    /// Where the configuration comes from, to read it again.
    pub origin: Origin,
}

/// Where a process can be reached.
#[derive(Debug, Clone)]
pub struct Started {
    /// The listeners, with the ports that the system chose.
    pub listeners: Vec<ListenAddress>,
    /// The admin listener, or the first of its sockets.
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
    /// A source or a lock can't be had.
    #[error("cannot put the configuration in force")]
    Generation(#[from] GenerationError),
    /// A file of TLS is of no use.
    #[error("cannot speak TLS")]
    Tls(#[from] TlsError),
    /// The `state_dir` can't be used.
    #[error("the state_dir cannot be used")]
    State(#[from] StateError),
    /// A metric can't be registered.
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
    /// A thread ended that should not have.
    #[error("a worker thread ended unexpectedly")]
    ThreadEnded,
    /// The thread of a lock source ended that should not have.
    #[error("the thread of source {name:?} ended unexpectedly")]
    SourceEnded {
        /// Its name.
        name: String,
    },
}

/// Binds what the configuration names.
///
/// # Errors
/// If an address is in use or can't be bound, or a file of TLS is of no use.
pub fn bind(config: &Config) -> Result<Bound, RunError> {
    // Before anything is opened, which could have the number of one that was not passed.
    let mut passed = PassedSockets::of_environment();
    let mut bind = |address: &Address, tls: Option<&fencepost_config::ServerTls>| {
        let tls = tls.map(server_tls::load).transpose()?;
        let bound = match address {
            Address::Tcp(address) => vec![Listener::bind(&ListenAddress::Tcp(*address))?],
            Address::Unix(path) => vec![Listener::bind(&ListenAddress::Unix(path.clone()))?],
            Address::Systemd(name) => passed.take(name)?,
        };
        Ok::<_, RunError>(
            bound.into_iter().map(|listener| listener.with_tls(tls.clone())).collect::<Vec<_>>(),
        )
    };
    let listeners =
        config.listeners.iter().map(|fencepost_config::Listener { address, tls, proxies }| {
            let bound = bind(address, tls.as_ref())?.into_iter();
            Ok::<_, RunError>(
                bound.map(|listener| listener.with_proxies(proxies.clone())).collect(),
            )
        });
    let listeners: Vec<Vec<Listener>> = listeners.collect::<Result<_, _>>()?;
    let admin =
        config.admin.as_ref().map(|admin| bind(&admin.address, admin.tls.as_ref())).transpose()?;
    let admin =
        admin.into_iter().flatten().map(|listener| listener.with_silence_max(ADMIN_SILENCE_MAX));
    let bound =
        Bound { listeners: listeners.into_iter().flatten().collect(), admin: admin.collect() };
    passed.close_rest();
    Ok(bound)
}

/// Runs until `shutdown` completes, then drains ([`drain`]). `shutdown` is called before anything
/// is written that the end has to take back: until then, a process that is asked to end has nothing
/// to finish.
///
/// # Errors
/// If something can't be started, or a thread ends unexpectedly.
pub async fn run<S: Future<Output = ()>>(
    config: Config,
    bound: Bound,
    surroundings: Surroundings,
    shutdown: impl FnOnce() -> S,
) -> Result<(), RunError> {
    let Surroundings { memory: store, log, started, origin } = surroundings;
    let (limits, threads) = (config.limits, threads(&config));
    let connections = Connections::of(&config, threads);
    let memory = match config.state_dir.as_deref() {
        Some(path) => Some(Memory::open(path)?),
        None => None,
    };
    // Without an admin listener nobody could look.
    let observed = config.admin.is_some();
    let observations = observed.then(|| Arc::new(Observations::new(config.decisions.kept)));
    let process = Arc::new(Process::new(memory, store, observations, connections.to_workers)?);
    process.sources.take_part();
    let generation = Generation::new(config, 1, Arc::clone(&process))?;
    let signals = ReloadSignals::listen(&origin);
    let mut shutdown = pin!(shutdown());
    process
        .memory
        .iter()
        .for_each(|memory| memory.raise_orphan_timeouts(&generation.config, &generation.sources));
    let manager = ServiceManager::of(&origin);
    let configuration: Arc<str> = origin.to_string().into();
    let (reloader, reloads) = Reloader::new(origin, signals, generation);
    let make_service = {
        let (in_force, process) = (reloader.in_force(), DecisionIds::process());
        move |thread| {
            let in_force = ThreadInForce::follow(in_force.clone(), process, thread);
            let service = ThreadService::new(stack(Rc::clone(&in_force)));
            service
                .on_unread_head(move |client, why| in_force.share().note_unread_head(client, why))
        }
    };
    let Bound { listeners, admin: admin_listeners } = bound;
    let listeners = server_tls::follow(listeners, TlsUse::Listener, &process);
    let admin_listeners = server_tls::follow(admin_listeners, TlsUse::Admin, &process);
    let limits = client_limits(&limits, connections.with_clients);
    let server = serve(listeners, threads, limits, make_service)?;
    let leaving = Arc::new(AtomicBool::new(false));
    let admin = AdminShare {
        connections: server.connections(),
        leaving: Arc::clone(&leaving),
        observations: process
            .observations
            .clone()
            .unwrap_or_else(|| Arc::new(Observations::new(0))),
        streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        log,
        reloads,
        configuration: Arc::clone(&configuration),
    };
    let admin_server = serve_admin(admin_listeners, reloader.in_force(), admin)?;
    // Last of all that may fail: what fails before leaves everything as the last process left it.
    if let Some(memory) = &process.memory {
        let config = Arc::clone(&reloader.in_force().now().config);
        let begun = tokio::select! {
            biased;
            begun = memory.begin(&config) => Some(begun),
            () = &mut shutdown => None,
        };
        if !matches!(begun, Some(Ok(()))) {
            drop(reloader);
            for server in [server].into_iter().chain(admin_server) {
                server.cut().await;
            }
            let ended = end_before_serving(process).await;
            return begun.unwrap_or(ended).map_err(RunError::from);
        }
    }
    tracing::info!(configuration = &*configuration, "fencepost {VERSION}");
    for address in server.addresses() {
        tracing::info!(%address, threads, "listening");
    }
    let is_secure =
        reloader.in_force().now().config.admin.as_ref().is_some_and(|admin| admin.tls.is_some());
    for address in admin_server.iter().flat_map(Server::addresses) {
        tracing::info!(%address, page = page_url(address, is_secure), "admin listening");
    }
    [&server].into_iter().chain(&admin_server).for_each(Server::begin);
    let addresses = Started {
        listeners: server.addresses().to_vec(),
        admin: admin_server.as_ref().and_then(|server| server.addresses().first().cloned()),
    };
    if let Some(tell) = started {
        let _ = tell.send(addresses); // Whoever asked may have stopped to listen.
    }
    manager.ready();
    let attended = Attended {
        process: Arc::downgrade(&process),
        leaving: &leaving,
        connections: server.connections(),
    };
    let running =
        Running { server, admin: admin_server, process, reloader, manager, leaving: &leaving };
    tokio::select! {
        ended = Box::pin(running.until(shutdown)) => ended,
        () = manager.attend(attended) => unreachable!("attending never ends"),
    }
}

/// A process that runs.
struct Running<'r> {
    server: Server,
    admin: Option<Server>,
    process: Arc<Process>,
    reloader: Reloader,
    manager: ServiceManager,
    leaving: &'r AtomicBool,
}

impl Running<'_> {
    async fn until(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let Running { mut server, admin, process, mut reloader, manager, leaving } = self;
        let remembering = async {
            match &process.memory {
                Some(memory) => memory.note_revisions(&process.sources).await,
                None => std::future::pending().await,
            }
        };
        let collecting = async || match &process.observations {
            Some(observations) => {
                collector::keep_collecting(observations, || process.sources.all()).await;
            }
            None => std::future::pending().await,
        };
        let readiness = log_readiness(reloader.in_force());
        tokio::select! {
            () = shutdown => {}
            () = readiness => unreachable!("looking at it never ends"),
            () = process.layout_hints.keep_looking(&process.sources) => {}
            () = remembering => {}
            () = collecting() => {}
            () = process.tls_files.keep_looking() => {}
            () = reloader.run() => {}
            () = server.failed() => return Err(RunError::ThreadEnded),
            name = process.sources.failed() => return Err(RunError::SourceEnded { name }),
        }

        let again = terminated(); // Before anybody can see a step of the end.
        // Held until the end, so that no gate is forgotten before it was asked what it left.
        let sources = process.sources.all();
        let mut locks: Vec<_> = sources.iter().flat_map(LockSource::locks).collect();
        let limits = reloader.in_force().now().config.limits;
        manager.stopping();
        drop(reloader); // Nothing is put in force any more.
        let ending = async {
            drain(server, &process, leaving, &limits, again).await;
            locks.extend(sources.iter().flat_map(LockSource::locks));
            // What is lost while the process drains may have been counted by a gate that its last
            // thread has taken along. What was cut though no lock guards it, as an endless answer
            // to a page, holds nobody up.
            let clean =
                !process.has_unseen() && locks.iter().all(|lock| lock.is_clear(Instant::now()));
            // What is left at the worker is known now, and no more will be.
            leave_group(&sources).await;
            if let Some(server) = admin {
                server.shutdown(Duration::from_secs(1)).await;
            }
            clean
        };
        // Whoever looks on sees it to its end.
        let clean = tokio::select! {
            clean = ending => clean,
            () = collecting() => unreachable!("collecting never ends"),
        };
        // Every thread has ended, so that nobody else has it any more.
        let mut remembered = Ok(());
        if let Some(process) = Arc::into_inner(process) {
            if let Some(memory) = process.memory {
                remembered = close(memory, sources.clone(), clean).await;
            }
            // Last, since somebody else has to read them.
            process.closing.finish();
        }
        sources.iter().for_each(LockSource::stop);
        remembered.map_err(RunError::from)
    }
}

/// Tells the other members of the group that this process ends, so that they wait for nothing.
async fn leave_group(sources: &[LockSource]) {
    let Some(group) = sources.iter().find_map(LockSource::group) else { return };
    if timeout(LEAVE_MAX, group.leave()).await.is_err() {
        tracing::warn!(
            "the other members of the group could not be told of the end: they wait for member_ttl and orphan_timeout"
        );
    }
}

/// Logs when requests can come for the first time. Never ends.
async fn log_readiness(in_force: ActiveConfig) {
    let is_ready = || {
        let generation = in_force.now();
        generation.sources.iter().all(|source| generation.is_ready(source))
    };
    let mut poll = tokio::time::interval(READINESS_PERIOD);
    while !is_ready() {
        poll.tick().await;
    }
    tracing::info!("ready");
    std::future::pending().await
}

/// Where a browser on this machine finds the page; `None` of a unix socket.
fn page_url(address: &ListenAddress, is_secure: bool) -> Option<String> {
    let ListenAddress::Tcp(address) = address else { return None };
    let scheme = if is_secure { "https" } else { "http" };
    Some(match address.ip().is_unspecified() {
        true => format!("{scheme}://localhost:{}/", address.port()),
        false => format!("{scheme}://{address}/"),
    })
}

/// Nothing was served: whatever this process has begun to write, it leaves nothing at the worker.
async fn end_before_serving(process: Arc<Process>) -> Result<(), StateError> {
    match Arc::into_inner(process).and_then(|process| process.memory) {
        Some(memory) => close(memory, Vec::new(), true).await,
        None => Ok(()),
    }
}

/// Not on this thread, which feeds the watchdog to the end: a disk may take its time.
async fn close(memory: Memory, sources: Vec<LockSource>, clean: bool) -> Result<(), StateError> {
    spawn_blocking(move || memory.close(&sources, clean)).await.unwrap_or(Err(StateError::Stopped))
}

/// What the admin listener has beside the configuration in force.
#[derive(Clone)]
struct AdminShare {
    connections: OpenConnections,
    leaving: Arc<AtomicBool>,
    observations: Arc<Observations>,
    streams: Arc<Semaphore>,
    log: Option<LogControl>,
    reloads: Reloads,
    configuration: Arc<str>,
}

impl AdminShare {
    fn admin(&self, in_force: ActiveConfig) -> Admin {
        let AdminShare { connections, leaving, observations, streams, log, reloads, configuration } =
            self.clone();
        Admin {
            generation: in_force.now(),
            in_force,
            connections,
            leaving,
            observations,
            streams,
            log,
            reloads,
            configuration,
        }
    }
}

/// `None` if nobody is to look in.
fn serve_admin(
    listeners: Vec<Listener>,
    in_force: ActiveConfig,
    share: AdminShare,
) -> io::Result<Option<Server>> {
    if listeners.is_empty() {
        return Ok(None);
    }
    let limits = Limits {
        connections_max: ADMIN_CONNECTIONS,
        // Whoever looks in does so from one address or a few: before `makes-room` closed the one
        // that has waited longest, all would be refused.
        connections_per_client_max: usize::MAX,
        ..Limits::default()
    };
    let server = serve(listeners, NonZeroUsize::MIN, limits, move |_| {
        let (in_force, share) = (in_force.clone(), share.clone());
        ThreadService::new(service_fn(move |request| {
            share.admin(in_force.clone()).answer_contained(request)
        }))
    })?;
    Ok(Some(server))
}

/// As many threads as configured, else as the process may use: its CPU affinity and its cgroup's
/// quota count.
fn threads(config: &Config) -> NonZeroUsize {
    config
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// With so many connections in all: as many as configured, or as the descriptors allow.
fn client_limits(limits: &Limits, connections_max: usize) -> Limits {
    // What a client may have was set for more connections than there are: it is not to get them
    // all.
    let per_client_max = if connections_max < limits.connections_max {
        limits.connections_per_client_max.min(Limits::all_but_a_few(connections_max))
    } else {
        limits.connections_per_client_max
    };
    Limits { connections_max, connections_per_client_max: per_client_max, ..*limits }
}
