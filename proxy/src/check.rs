//! `fencepost check`: is the configuration right, and does what it names answer?

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use fencepost_config::{AccessLogTarget, Config, Problem, Problems, Route, Source, SourceKind, UpstreamProtocol};
use fencepost_sources::{
    KeyRange, LockDescription, LockSource, LockStore, MemoryStore, RangeRead, SourceStatus, StoreError, Wanted, caution,
};
use fencepost_tls::{Expiry, FileRole, Flaw, Followed, TlsError};
use futures_util::stream::{self, StreamExt};
use rustix::fs::{Access, PROC_SUPER_MAGIC, access, statfs};
use rustix::io::Errno;
use tokio::time::{Instant, sleep};

use crate::client_tls;
use crate::downstream::Protocol;
use crate::etcd_access::made_user;
use crate::fence::Fence;
use crate::forward::{Speaks, Upstream, UpstreamError, connects};
use crate::output::{Unprinted, print};
use crate::process::Process;
use crate::routes::{Guard, record_range};
use crate::server_tls;

/// How long the lock stores may take to show every lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many reads, or connections to workers, are tried at a time.
const AT_A_TIME: usize = 64;

/// What the configuration amounts to, in a line.
pub fn summary(config: &Config) -> String {
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let fenced = config.routes.iter().filter(|route| route.mode.name() == "enforce").count();
    format!(
        "{}, {} ({fenced} enforced), {}",
        count(config.listeners.len(), "listener"),
        count(config.routes.len(), "route"),
        count(config.sources.len(), "lock source"),
    )
}

/// Who is to use what a configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// This process.
    Ourselves,
    /// The service, which may be another user: what this process can't read or write is worth a warning.
    Service,
}

/// Reads the TLS and password files that the configuration names, and looks whether its `state_dir` and its access log can be written.
/// Returns what has ended or soon will, what has not begun, and what is not there yet. Leaves nothing behind.
///
/// # Errors
/// Every one that is of no use.
pub fn files(config: &Config, user: User) -> Result<Vec<Problem>, Problems> {
    let places = &config.places;
    let (now, mut problems, mut warnings) = (SystemTime::now(), Vec::new(), Vec::new());
    for TlsTable { key, authorities, ends } in tls(config) {
        match ends {
            Ok(ends) => {
                let cautions = ends.iter().filter_map(|end| end.caution(now));
                warnings.extend(cautions.map(|caution| places.problem(&key, caution)));
            }
            Err(error) => {
                let of = match error.role {
                    FileRole::Certificate => "certificate",
                    FileRole::Key => "key",
                    FileRole::Authorities => authorities,
                    FileRole::Crl => "crl",
                };
                let is_for_us = user == User::Service && is_the_services_own(&error);
                let list = if is_for_us { &mut warnings } else { &mut problems };
                list.push(places.problem(&format!("{key}.{of}"), error));
            }
        }
    }
    warnings.extend(config.sources.iter().filter_map(|source| {
        let key = format!("source.{}.password_file", source.name);
        Some(places.problem(&key, password_caution(source)?))
    }));
    let log = config.access_log.as_ref().and_then(|log| match &log.target {
        AccessLogTarget::File(path) => Some(path.as_path()),
        AccessLogTarget::Stdout | AccessLogTarget::Stderr => None,
    });
    let looks = [
        ("state_dir", config.state_dir.as_deref().map(look_at_state_dir)),
        ("access_log.path", log.map(look_at_access_log)),
    ];
    for (key, look) in looks {
        match look {
            None | Some(Ok(())) => {}
            Some(Err(Unusable::ForUs(why))) if user == User::Service => warnings.push(places.problem(key, why)),
            Some(Err(Unusable::ForUs(why) | Unusable::ForAnybody(why))) => problems.push(places.problem(key, why)),
        }
    }
    Problems::none(problems).map(|()| warnings)
}

/// Whether the service may read a file that this process can't: it may be another user, and what systemd hands it (`LoadCredential=`) is there
/// while it runs.
fn is_the_services_own(error: &TlsError) -> bool {
    let is_denied = || access(&error.file, Access::READ_OK) == Err(Errno::ACCESS);
    matches!(error.flaw, Flaw::Unreadable(_)) && (error.file.starts_with("/run/credentials") || is_denied())
}

/// A table of TLS.
struct TlsTable {
    /// Its key.
    key: String,
    /// What the authorities are called in it.
    authorities: &'static str,
    /// When its files begin and end.
    ends: Result<Arc<[Expiry]>, TlsError>,
}

fn tls(config: &Config) -> impl Iterator<Item = TlsTable> {
    let listeners = config.listeners.iter().enumerate();
    let listeners = listeners.map(|(index, one)| (format!("listener[{index}].tls"), one.tls.as_ref()));
    let admin = config.admin.iter().map(|admin| ("admin.tls".to_owned(), admin.tls.as_ref()));
    let accepting = listeners.chain(admin).filter_map(|(key, tls)| {
        Some(TlsTable { key, authorities: "client_ca", ends: server_tls::load(tls?).map(ends) })
    });
    let sources = config.sources.iter().filter_map(|source| match &source.kind {
        SourceKind::Etcd { tls, .. } => Some((format!("source.{}.tls", source.name), tls.as_deref()?)),
        SourceKind::Memory => None,
    });
    let workers = config.routes.iter().filter_map(|route| match &route.upstream.protocol {
        UpstreamProtocol::Tls(tls) => Some((format!("route.{}.upstream_tls", route.name), &tls.files)),
        UpstreamProtocol::Http1 | UpstreamProtocol::H2c => None,
    });
    let connecting = sources.chain(workers).map(|(key, tls)| {
        let ends = client_tls::load(tls, &[]).map(ends);
        TlsTable { key, authorities: "ca", ends }
    });
    accepting.chain(connecting)
}

/// It is read when the source logs in: until it is there, etcd refuses that.
fn password_caution(source: &Source) -> Option<String> {
    let SourceKind::Etcd { user: Some(user), .. } = &source.kind else { return None };
    let error = made_user(user).check().err()?;
    Some(format!("{}: {error}", user.password_file.display()))
}

/// Why something can't be written.
enum Unusable {
    /// By whoever runs this.
    ForUs(String),
    ForAnybody(String),
}

/// The directory is made when it is first used, with those above it that are missing.
fn look_at_state_dir(path: &Path) -> Result<(), Unusable> {
    let Some(there) = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok()) else { return Ok(()) };
    look_at_directory(path, there)
}

/// The file is made when it is first opened, and nothing above it.
fn look_at_access_log(path: &Path) -> Result<(), Unusable> {
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Err(Unusable::ForAnybody(format!("{} is a directory", path.display()))),
        Ok(metadata) if metadata.file_type().is_socket() => {
            Err(Unusable::ForAnybody(format!("{} is a socket", path.display())))
        }
        Ok(_) => may(path, path, Access::WRITE_OK),
        Err(error) if error.kind() == ErrorKind::NotFound => look_at_directory(path, path.parent().unwrap_or(path)),
        Err(error) => Err(seen(path, path, &error)),
    }
}

/// Whether something can be made in a directory, on the way to `path`.
fn look_at_directory(path: &Path, there: &Path) -> Result<(), Unusable> {
    let metadata = there.metadata().map_err(|error| seen(path, there, &error))?;
    if !metadata.is_dir() {
        return Err(Unusable::ForAnybody(format!("{}: {} is no directory", path.display(), there.display())));
    }
    // Nobody is refused there by its mode who is root, and nobody can make anything.
    if statfs(there).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC) {
        return Err(Unusable::ForAnybody(format!("{}: nothing can be made in {}", path.display(), there.display())));
    }
    may(path, there, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)
}

fn may(path: &Path, there: &Path, what: Access) -> Result<(), Unusable> {
    let cannot = |error| format!("{}: {} cannot be written by this user: {error}", path.display(), there.display());
    access(there, what).map_err(|error| Unusable::ForUs(cannot(error)))
}

/// What is not there is so for every user; what else can't be looked at may be there for others.
fn seen(path: &Path, there: &Path, error: &io::Error) -> Unusable {
    let why = format!("{}: {}: {error}", path.display(), there.display());
    let is_missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    if is_missing { Unusable::ForAnybody(why) } else { Unusable::ForUs(why) }
}

fn ends(tls: impl Followed) -> Arc<[Expiry]> {
    tls.expiries()
}

/// Reads each lock that is named in the configuration and connects to each worker; prints what it finds.
///
/// # Errors
/// If something does not answer, or nobody takes what is printed.
pub async fn live(config: &Config) -> anyhow::Result<()> {
    let process = Arc::new(Process::new(None, MemoryStore::default(), None)?);
    // A check leaves nothing behind, no file of an access log either.
    let without_log = Config { access_log: None, ..config.clone() };
    let Fence { sources, routes, upstreams, .. } = Fence::new(without_log, 1, Arc::clone(&process))?;
    let deadline = Instant::now() + PATIENCE;
    let mut failures = 0;
    for (source, configured) in sources.iter().zip(&config.sources) {
        let answered = match &configured.kind {
            SourceKind::Etcd { .. } => show_etcd(source, deadline).await?,
            SourceKind::Memory => show_memory(source, deadline).await?,
        };
        failures += usize::from(!answered);
    }
    let denied = denied(&process, config, &sources).await;
    for route in &config.routes {
        let Some(error) = route.mode.lock().and_then(|lock| denied.get(&(lock.source, record_range(lock)))) else {
            continue;
        };
        print(format_args!("route {}: {error}", route.name))?;
        failures += 1;
    }
    for (route, in_force) in config.routes.iter().zip(&routes) {
        let Some(Guard::Static(lock)) = &in_force.guard else { continue };
        let described = lock.describe(Instant::now());
        failures += usize::from(described.as_of.is_none() || described.problem.is_some());
        print(format_args!("route {}: {}", route.name, lock_line(&described)))?;
    }
    let routes = config.routes.iter().zip(&upstreams).enumerate();
    let workers = routes.filter_map(|(index, (route, upstream))| {
        let is_first = config.routes[..index].iter().all(|earlier| earlier.upstream != route.upstream);
        is_first.then_some(async move { (route, upstream, connects(upstream, config.limits.connect_timeout).await) })
    });
    // In the order of the file.
    let mut workers = pin!(stream::iter(workers).buffered(AT_A_TIME));
    while let Some((route, upstream, connected)) = workers.next().await {
        if config.admin.as_ref().is_some_and(|admin| route.upstream.address.leads_to(&admin.address)) {
            print(format_args!(
                "worker {}: is the admin listener of this configuration, which is there once it is served",
                route.upstream
            ))?;
            continue;
        }
        failures += usize::from(!show_worker(config, route, upstream, connected)?);
    }
    sources.iter().for_each(LockSource::stop);
    if failures > 0 {
        bail!("{failures} of these did not answer as they should");
    }
    Ok(())
}

/// Waits until every lock of the source was read or the deadline has come.
async fn until_answered(source: &LockSource, deadline: Instant) -> SourceStatus {
    let mut poll = tokio::time::interval(Duration::from_millis(20));
    loop {
        let status = source.status(Instant::now());
        let is_told = source.ready() && status.up != Some(false) && !status.members.is_empty();
        if is_told || Instant::now() >= deadline {
            return status;
        }
        poll.tick().await;
    }
}

/// Says what a source in memory is.
async fn show_memory(source: &LockSource, deadline: Instant) -> Result<bool, Unprinted> {
    let status = until_answered(source, deadline).await;
    print(format_args!(
        "source {}: a store inside of this process, for demonstrations: nobody outside can take a lock in it",
        source.name()
    ))?;
    Ok(status.up != Some(false))
}

/// Says how the members of an etcd are.
async fn show_etcd(source: &LockSource, deadline: Instant) -> Result<bool, Unprinted> {
    let status = until_answered(source, deadline).await;
    // What concerns all of them is said once.
    let mut said = HashSet::new();
    for member in &status.members {
        let line = match &member.version {
            Ok(version) => format!("{} runs etcd {version}", member.endpoint),
            Err(error) => at_endpoint(&member.endpoint, error),
        };
        if said.insert(line.clone()) {
            print(format_args!("source {}: {line}", source.name()))?;
        }
        if let Some(warning) = caution(member) {
            print(format_args!("warning: source {}: {warning}", source.name()))?;
        }
    }
    let is_one_cluster = !status.members.iter().any(|member| member.version.as_ref().is_err_and(is_of_another));
    let answered = match status.up {
        Some(true) => {
            let revision = status.revision.map_or_else(|| "unknown".to_owned(), |revision| revision.to_string());
            print(format_args!("source {}: answers quorum reads, store revision {revision}", source.name()))?;
            true
        }
        Some(false) => {
            print(format_args!("source {}: cannot be read{}", source.name(), unsaid_cause(&status)))?;
            false
        }
        // Whoever is about to use it wants to know whether it could be.
        None => {
            print(format_args!("source {}: not in use: no route judges by a lock of it", source.name()))?;
            status.members.iter().any(|member| member.version.is_ok())
        }
    };
    Ok(answered && is_one_cluster)
}

/// A member that is away may come back; one of another cluster is a mistake in the configuration.
fn is_of_another(error: &StoreError) -> bool {
    match error {
        StoreError::AnotherCluster { .. } | StoreError::ManyClusters { .. } => true,
        StoreError::Unavailable(_) | StoreError::Refused(_) | StoreError::Denied { .. } | StoreError::Compacted => {
            false
        }
    }
}

/// Why a source cannot be read, unless that has been said of a member.
fn unsaid_cause(status: &SourceStatus) -> String {
    let cause = status.last_error.as_deref().map_or_else(|| "no answer".to_owned(), StoreError::to_string);
    let is_said = |error: &StoreError| error.to_string() == cause;
    let is_said = status.members.iter().any(|member| member.version.as_ref().is_err_and(is_said));
    if is_said { String::new() } else { format!(": {cause}") }
}

/// An error of that endpoint, with the endpoint once.
fn at_endpoint(endpoint: &str, error: &StoreError) -> String {
    let text = error.to_string();
    if text.contains(endpoint) { text } else { format!("{endpoint}: {text}") }
}

/// Where locks are read from that the lock store does not let us read, and what it says to that. Each is read once, however many routes have
/// it; not at all where no member of the store has answered.
async fn denied(process: &Process, config: &Config, sources: &[LockSource]) -> HashMap<(usize, KeyRange), StoreError> {
    let is_silent = |source: &LockSource| {
        let status = source.status(Instant::now());
        status.up == Some(false) && status.members.iter().all(|member| member.version.is_err())
    };
    let is_silent: Vec<bool> = sources.iter().map(is_silent).collect();
    let locks = config.routes.iter().filter_map(|route| route.mode.lock()).filter(|lock| !is_silent[lock.source]);
    let ranges: HashSet<(usize, KeyRange)> = locks.map(|lock| (lock.source, record_range(lock))).collect();
    let reads = ranges.into_iter().filter_map(|(source, range)| {
        let store = process.sources.etcd(&config.sources[source].name)?;
        Some(async move {
            let outcome = store.read(&[RangeRead { range: range.clone(), wanted: Wanted::Count }]).await;
            // Whatever else is wrong is said of the source.
            let error = outcome.err().filter(|error| matches!(error, StoreError::Denied { .. }))?;
            Some(((source, range), error))
        })
    });
    let mut reads = pin!(stream::iter(reads).buffer_unordered(AT_A_TIME).take_until(sleep(PATIENCE)));
    let mut denied = HashMap::new();
    while let Some(read) = reads.next().await {
        denied.extend(read);
    }
    denied
}

pub(crate) fn lock_line(lock: &LockDescription) -> String {
    let LockDescription { key, layout, holder, as_of, age, waiters, problem, .. } = lock;
    let layout = layout.name();
    let Some(as_of) = as_of else {
        return format!("lock {key} ({layout}) could not be read");
    };
    if let Some(problem) = problem {
        return format!("lock {key} ({layout}): {problem}");
    }
    let holder = match holder {
        Some((owner, first, last)) if first == last => format!("held by {owner}, revision {first}"),
        Some((owner, first, last)) => format!("held by {owner}, revisions {first} to {last}"),
        None => "free".to_owned(),
    };
    let age = age.map_or_else(|| "unknown".to_owned(), |age| format!("{} ms", age.as_millis()));
    format!("lock {key} ({layout}) is {holder}; {} waiting; as of revision {as_of}, age {age}", waiters.len())
}

/// Says what came of connecting to a worker.
fn show_worker(
    config: &Config,
    route: &Route,
    upstream: &Upstream,
    connected: Result<Protocol, UpstreamError>,
) -> Result<bool, Unprinted> {
    let reached = connected.is_ok();
    let outcome = match (connected, &upstream.speaks) {
        (Ok(_), Speaks::Cleartext(_)) => "accepts connections".to_owned(),
        (Ok(Protocol::Http1), Speaks::Tls(_)) => "accepts connections, picks HTTP/1.1".to_owned(),
        (Ok(Protocol::Http2), Speaks::Tls(_)) => "accepts connections, picks HTTP/2".to_owned(),
        (Err(UpstreamError::Timeout), _) => {
            format!("did not accept a connection within {:?}", config.limits.connect_timeout)
        }
        (Err(UpstreamError::Unreachable(error)), _) => format!("cannot be reached: {error}"),
        (Err(error), _) => format!("{:#}", anyhow::Error::new(error)),
    };
    print(format_args!("worker {}: {outcome}", route.upstream))?;
    Ok(reached)
}
