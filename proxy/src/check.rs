//! `fencepost check`: is the configuration right, and does what it names answer?

mod files;
mod group;
mod probe;

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use fencepost_config::{Config, Route, SourceKind, UpstreamAddress};
use fencepost_fence::claim::Guard;
use fencepost_locks::{
    KeyRange, LockDescription, LockSource, LockStore, MemberProblem, RangeRead, SourceStatus,
    StoreError, Wanted,
};
use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, sleep};

pub use files::{User, files, trusted};
use group::show_group;
use probe::{Spoken, spoken};

use crate::generation::Generation;
use crate::layout_hint;
use crate::observe::text::owner_in_words;
use crate::output::{Unprinted, print};
use crate::process::Process;
use crate::routes::record_range;
use crate::server::Protocol;
use crate::upstream::{Speaks, Upstream, UpstreamError, connects};

/// How long the lock stores may take to show every lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many reads, or connections to workers, are tried at a time.
const AT_A_TIME: usize = 64;

/// What the configuration amounts to, in a line.
pub fn summary(config: &Config) -> String {
    let count = |number: usize, what: &str| {
        format!("{number} {what}{}", if number == 1 { "" } else { "s" })
    };
    let fenced = config.routes.iter().filter(|route| route.mode.name() == "enforce").count();
    format!(
        "{}, {} ({fenced} enforced), {}",
        count(config.listeners.len(), "listener"),
        count(config.routes.len(), "route"),
        count(config.sources.len(), "lock source"),
    )
}

/// Reads each lock that is named in the configuration and connects to each worker; prints what it
/// finds.
///
/// # Errors
/// If something does not answer, or nobody takes what is printed.
pub async fn live(config: &Config) -> anyhow::Result<()> {
    let process = Arc::new(Process::alone()?);
    // A check leaves nothing behind, no file of an access log either.
    let without_log = Config { access_log: None, ..config.clone() };
    let Generation { sources, routes, upstreams, .. } =
        Generation::new(without_log, 1, Arc::clone(&process))?;
    let deadline = Instant::now() + PATIENCE;
    let mut failures = 0;
    for (source, configured) in sources.iter().zip(&config.sources) {
        let answered = match &configured.kind {
            SourceKind::Etcd { .. } => show_etcd(source, deadline).await?,
            SourceKind::Memory => show_memory(source, deadline).await?,
            kind @ (SourceKind::Consul { .. }
            | SourceKind::Kubernetes { .. }
            | SourceKind::Zookeeper { .. }
            | SourceKind::Postgres(_)
            | SourceKind::Mysql(_)) => show_records(source, kind, deadline).await?,
        };
        failures += usize::from(!answered);
    }
    failures += usize::from(!show_group(&process, config).await?);
    let denied = denied(&process, config, &sources).await;
    for route in config.routes.iter() {
        let Some(error) =
            route.mode.lock().and_then(|lock| denied.get(&(lock.source, record_range(lock))))
        else {
            continue;
        };
        print(format_args!("route {}: {error}", route.name))?;
        failures += 1;
    }
    for (route, in_force) in config.routes.iter().zip(&routes) {
        let Some(Guard::Static(lock)) = &in_force.guard else {
            if let Some(hint) = templates_hint(&process, config, route).await {
                print(format_args!("warning: route {}: {hint}", route.name))?;
            }
            continue;
        };
        let described = lock.describe(Instant::now());
        failures += usize::from(described.age.is_none() || described.problem.is_some());
        print(format_args!("route {}: {}", route.name, lock_line(&described)))?;
        if let Some(store) = process.sources.etcd(lock.source())
            && let Some(hint) = layout_hint::hint(&store, &described).await
        {
            print(format_args!("warning: route {}: lock {}: {hint}", route.name, described.key))?;
        }
    }
    let mut known = HashSet::new();
    let once =
        config.routes.iter().zip(&upstreams).filter(|(route, _)| known.insert(&route.upstream));
    let workers = once.map(|(route, upstream)| async move {
        let connected = connects(upstream, config.limits.connect_timeout).await;
        let spoken = match (&connected, &upstream.speaks) {
            (Ok(_), Speaks::Cleartext(protocol)) => spoken(upstream, *protocol).await,
            // A worker in the clear may wait for the rest of what is a handshake to us.
            (Err(UpstreamError::Tls { .. } | UpstreamError::Timeout), Speaks::Tls(_)) => {
                spoken(upstream, Protocol::Http1).await
            }
            _ => None,
        };
        (route, upstream, connected, spoken)
    });
    // In the order of the file.
    let mut workers = pin!(stream::iter(workers).buffered(AT_A_TIME));
    while let Some((route, upstream, connected, spoken)) = workers.next().await {
        if config
            .admin
            .as_ref()
            .is_some_and(|admin| route.upstream.address.leads_to(&admin.address))
        {
            print(format_args!(
                "worker {}: is the admin listener of this configuration, which is there once it is served",
                config.places.shown(route.upstream.to_string())
            ))?;
            continue;
        }
        failures += usize::from(!show_worker(config, route, upstream, (connected, spoken))?);
    }
    sources.iter().for_each(LockSource::stop);
    if failures > 0 {
        bail!("{failures} of these did not answer as they should");
    }
    Ok(())
}

/// What may be wrong with the layout of a route's templated locks.
async fn templates_hint(process: &Process, config: &Config, route: &Route) -> Option<String> {
    let lock = route.mode.lock()?;
    let store = process.sources.etcd(&config.sources[lock.source].name)?;
    layout_hint::hint_of_template(&store, lock).await
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

/// Says how a store is whose records name their own tenures.
async fn show_records(
    source: &LockSource,
    kind: &SourceKind,
    deadline: Instant,
) -> Result<bool, Unprinted> {
    let status = until_answered(source, deadline).await;
    let (name, kind) = (source.name(), kind.name());
    match status.up {
        Some(true) => print(format_args!("source {name}: {kind} answers"))?,
        Some(false) => {
            let cause = unsaid_cause(&status);
            print(format_args!("source {name}: {kind} cannot be read{cause}"))?;
        }
        None => print(format_args!("source {name}: no lock is read from it"))?,
    }
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
        for problem in &member.problems {
            let warning = match problem {
                // That is the line above.
                MemberProblem::NoAnswer(_) | MemberProblem::NotUsed(_) => continue,
                MemberProblem::NoSpace(_) | MemberProblem::Corrupt(_) => problem.to_string(),
                MemberProblem::StaleReads(_) => format!("{}: {problem}", member.endpoint),
            };
            if said.insert(warning.clone()) {
                print(format_args!("warning: source {}: {warning}", source.name()))?;
            }
        }
    }
    let is_one_cluster =
        !status.members.iter().any(|member| member.version.as_ref().is_err_and(is_misconfigured));
    let answered = match status.up {
        Some(true) => {
            let revision = status
                .revision
                .map_or_else(|| "unknown".to_owned(), |revision| revision.to_string());
            print(format_args!(
                "source {}: answers quorum reads, store revision {revision}",
                source.name()
            ))?;
            true
        }
        Some(false) => {
            print(format_args!(
                "source {}: cannot be read{}",
                source.name(),
                unsaid_cause(&status)
            ))?;
            false
        }
        // Whoever is about to use it wants to know whether it could be.
        None => {
            print(format_args!(
                "source {}: not in use: no route judges by a lock of it",
                source.name()
            ))?;
            status.members.iter().any(|member| member.version.is_ok())
        }
    };
    Ok(answered && is_one_cluster)
}

/// A member that is away may come back; one of another cluster, or none, is a mistake in the
/// configuration.
fn is_misconfigured(error: &StoreError) -> bool {
    match error {
        StoreError::AnotherCluster { .. }
        | StoreError::ManyClusters { .. }
        | StoreError::NoMember { .. } => true,
        StoreError::Unavailable(_)
        | StoreError::Refused(_)
        | StoreError::NoLogin(_)
        | StoreError::Denied { .. }
        | StoreError::TooLarge { .. }
        | StoreError::Compacted => false,
    }
}

/// Why a source cannot be read, unless the line of a member already gives that cause.
fn unsaid_cause(status: &SourceStatus) -> String {
    let cause =
        status.last_error.as_deref().map_or_else(|| "no answer".to_owned(), StoreError::to_string);
    let is_said = |error: &StoreError| error.to_string() == cause;
    let is_said = status.members.iter().any(|member| member.version.as_ref().is_err_and(is_said));
    if is_said { String::new() } else { format!(": {cause}") }
}

/// An error of that endpoint, with the endpoint once.
fn at_endpoint(endpoint: &str, error: &StoreError) -> String {
    let text = error.to_string();
    if text.contains(endpoint) { text } else { format!("{endpoint}: {text}") }
}

/// Where locks are read from that cannot be read, and what the lock store says to that.
/// Each is read once, however many routes have it; not at all where no member of the store has
/// answered.
async fn denied(
    process: &Process,
    config: &Config,
    sources: &[LockSource],
) -> HashMap<(usize, KeyRange), StoreError> {
    let is_silent = |source: &LockSource| {
        let status = source.status(Instant::now());
        status.up == Some(false) && status.members.iter().all(|member| member.version.is_err())
    };
    let is_silent: Vec<bool> = sources.iter().map(is_silent).collect();
    let locks = config
        .routes
        .iter()
        .filter_map(|route| route.mode.lock())
        .filter(|lock| !is_silent[lock.source]);
    let ranges: HashSet<(usize, KeyRange)> =
        locks.map(|lock| (lock.source, record_range(lock))).collect();
    let reads = ranges.into_iter().filter_map(|(source, range)| {
        let store = process.sources.etcd(&config.sources[source].name)?;
        Some(async move {
            let outcome =
                store.read(&[RangeRead { range: range.clone(), wanted: Wanted::Count }]).await;
            // Whatever else is wrong is said of the source.
            let error = outcome.err().filter(|error| error.refused_range().is_some())?;
            Some(((source, range), error))
        })
    });
    let mut reads =
        pin!(stream::iter(reads).buffer_unordered(AT_A_TIME).take_until(sleep(PATIENCE)));
    let mut denied = HashMap::new();
    while let Some(read) = reads.next().await {
        denied.extend(read);
    }
    denied
}

pub(crate) fn lock_line(lock: &LockDescription) -> String {
    let LockDescription { key, layout_name: layout, holder, as_of, age, waiters, problem, .. } =
        lock;
    if let Some(problem) = problem {
        return format!("lock {key} ({layout}): {problem}");
    }
    let Some(age) = age else {
        return format!("lock {key} ({layout}) could not be read");
    };
    let holder = match holder {
        Some((owner, first, last)) if first == last => {
            format!("held by {}, revision {first}", owner_in_words(owner))
        }
        Some((owner, first, last)) => {
            format!("held by {}, revisions {first} to {last}", owner_in_words(owner))
        }
        None => "free".to_owned(),
    };
    let as_of = as_of.map_or_else(String::new, |as_of| format!("as of revision {as_of}, "));
    format!(
        "lock {key} ({layout}) is {holder}; {} waiting; {as_of}age {} ms",
        waiters.len(),
        age.as_millis()
    )
}

/// Says what came of connecting to a worker, and what it speaks, as far as that can be told.
fn show_worker(
    config: &Config,
    route: &Route,
    upstream: &Upstream,
    (connected, spoken): (Result<Protocol, UpstreamError>, Option<Spoken>),
) -> Result<bool, Unprinted> {
    let wrong = other_protocol(&upstream.speaks, spoken);
    let is_well = connected.is_ok() && wrong.is_none();
    let outcome = match (connected, &upstream.speaks) {
        (Ok(_), Speaks::Cleartext(_)) if let Some(wrong) = wrong => wrong.to_owned(),
        (Ok(_), Speaks::Cleartext(_)) if spoken.is_none() => {
            "accepts connections, but answers neither HTTP/1.1, HTTP/2 nor TLS in time".to_owned()
        }
        (Ok(_), Speaks::Cleartext(_)) if spoken == Some(Spoken::Http10) => {
            "accepts connections, speaks HTTP/1.0: a connection for each request".to_owned()
        }
        (Ok(_), Speaks::Cleartext(Protocol::Http1)) => {
            "accepts connections, speaks HTTP/1.1".to_owned()
        }
        (Ok(_), Speaks::Cleartext(Protocol::Http2)) => {
            "accepts connections, speaks HTTP/2".to_owned()
        }
        (Ok(Protocol::Http1), Speaks::Tls(_)) => "accepts connections, picks HTTP/1.1".to_owned(),
        (Ok(Protocol::Http2), Speaks::Tls(_)) => "accepts connections, picks HTTP/2".to_owned(),
        (Err(UpstreamError::Timeout), _) if let Some(wrong) = wrong => {
            format!("no TLS: {wrong}")
        }
        (Err(UpstreamError::Timeout), _) => {
            format!("did not accept a connection within {:?}", config.limits.connect_timeout)
        }
        (Err(UpstreamError::Unreachable(error)), _) => {
            let advice = match &upstream.address {
                UpstreamAddress::Unix(path) => unix_advice(path, error.kind()),
                UpstreamAddress::Tcp(_) => "",
            };
            format!("cannot be reached: {error}{advice}")
        }
        (Err(error @ UpstreamError::Tls { .. }), _) if let Some(wrong) = wrong => {
            format!("{error}: {wrong}")
        }
        (Err(error), _) => format!("{:#}", anyhow::Error::new(error)),
    };
    let line = format!("worker {}: {outcome}", route.upstream);
    print(format_args!("{}", config.places.shown(line)))?;
    Ok(is_well)
}

/// What to write where a worker speaks something else than its URL says.
fn other_protocol(configured: &Speaks, spoken: Option<Spoken>) -> Option<&'static str> {
    Some(match (configured, spoken?) {
        (Speaks::Cleartext(_), Spoken::Other) => {
            "answers with something that is neither HTTP/1.0, HTTP/1.1, HTTP/2 nor TLS: write the address of a server of HTTP"
        }
        (Speaks::Cleartext(_), Spoken::Tls) => {
            "speaks TLS: write https:// in upstream, and upstream_tls = { ca = \"/path\" }"
        }
        (Speaks::Cleartext(Protocol::Http1), Spoken::Http(Protocol::Http2)) => {
            "speaks HTTP/2 only, as gRPC does: write h2c:// in upstream"
        }
        (Speaks::Cleartext(Protocol::Http2), Spoken::Http10 | Spoken::Http(Protocol::Http1)) => {
            "speaks HTTP/1.1 and not HTTP/2: write http:// in upstream"
        }
        (Speaks::Tls(_), Spoken::Http10 | Spoken::Http(Protocol::Http1)) => {
            "it speaks HTTP/1.1 in the clear: write http:// in upstream, without upstream_tls"
        }
        (Speaks::Tls(_), Spoken::Http(Protocol::Http2)) => {
            "it speaks HTTP/2 in the clear: write h2c:// in upstream, without upstream_tls"
        }
        (Speaks::Tls(_), Spoken::Tls | Spoken::Other)
        | (Speaks::Cleartext(Protocol::Http1), Spoken::Http10 | Spoken::Http(Protocol::Http1))
        | (Speaks::Cleartext(Protocol::Http2), Spoken::Http(Protocol::Http2)) => return None,
    })
}

/// What to look at where nothing answers at a unix socket.
fn unix_advice(path: &Path, kind: ErrorKind) -> &'static str {
    match (kind, path.metadata()) {
        (ErrorKind::NotFound, _) => ": start the worker, or write the path at which it listens",
        (ErrorKind::PermissionDenied, _) => {
            ": let this user write to the socket, and enter the directories above it"
        }
        (_, Ok(metadata)) if !metadata.file_type().is_socket() => {
            ": that is no socket: write the path at which the worker listens"
        }
        _ => ": nobody listens at this socket: start the worker anew",
    }
}
