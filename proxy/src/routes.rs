//! The routes in force: which lock guards a request, and where its token stands.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use fencepost_config::{Captures, Lock, Record, Route};
use fencepost_fence::claim::Guard;
use fencepost_locks::{
    FormatConflict, KeyRange, LockSource, LockSpec, OwnerIn, RecordFormat, TemplateSpec,
};
use fencepost_policy::{Layout, LockKey, Rejection};
use http::HeaderMap;

use crate::let_past::LetPast;
use crate::metrics::{Counted, RouteMetrics};
use crate::observe::RouteLabel;
use crate::process::Process;
use crate::token::TokenHeaders;

/// What stands behind a configured route.
pub struct ActiveRoute {
    /// Where a request's token stands.
    pub headers: TokenHeaders,
    /// The route's counters.
    pub metrics: RouteMetrics,
    /// What its decisions say of it.
    pub label: Arc<RouteLabel>,
    /// The longest `orphan_timeout` of all routes whose locks are of the same source: whichever of
    /// them lets a tenure in, requests of the others may follow.
    pub orphan_timeout_max: Duration,
    /// What guards it; `None` if nothing does.
    pub guard: Option<Guard>,
    /// Where the requests are counted that it lets past unjudged; `None` if nothing guards it.
    pub let_past: Option<Arc<LetPast>>,
    /// What routes of earlier configurations let past, and this one waits for. Each is gone with
    /// the last request of its configuration.
    pub earlier: Arc<[Weak<LetPast>]>,
}

impl ActiveRoute {
    /// Puts a route in force, with this guard.
    pub fn new(
        route: &Route,
        guard: Option<Guard>,
        orphan_timeout_max: Duration,
        sources: &[LockSource],
        process: &Process,
    ) -> ActiveRoute {
        let source_name = route.mode.lock().map(|lock| sources[lock.source].name());
        let metrics = process.metrics.route(&route.name, route.mode.name());
        ActiveRoute {
            headers: token_headers(route),
            label: process.label(
                &route.name,
                route.mode.name(),
                source_name,
                metrics.requests.of(Counted::Admitted),
            ),
            metrics,
            orphan_timeout_max,
            let_past: guard.is_some().then(Arc::default),
            earlier: Arc::default(),
            guard,
        }
    }
}

/// The longest `orphan_timeout` of the routes whose locks are of each source, and of those without
/// a lock.
pub(crate) fn longest_orphan_timeouts(routes: &[Route]) -> HashMap<Option<usize>, Duration> {
    let mut longest = HashMap::new();
    for route in routes {
        let of_source: &mut Duration = longest.entry(source_of(route)).or_default();
        *of_source = route.orphan_timeout.max(*of_source);
    }
    longest
}

/// Which of the sources has a route's lock.
pub(crate) fn source_of(route: &Route) -> Option<usize> {
    route.mode.lock().map(|lock| lock.source)
}

/// What guards a route. A lock that is always the same is kept current from now on.
///
/// # Errors
/// If its lock is tracked already, but read in another way.
pub fn guard_of(route: &Route, sources: &[LockSource]) -> Result<Option<Guard>, FormatConflict> {
    let Some(lock) = route.mode.lock() else { return Ok(None) };
    let (source, format) = (&sources[lock.source], Arc::new(record_format(&lock.record)));
    if let Some(key) = lock.key.static_key().filter(|_| !lock.from_header) {
        return Ok(Some(Guard::Static(source.track(LockSpec { key: key.clone(), format })?)));
    }
    let prefix = lock.key.literal_prefix().to_owned();
    Ok(Some(Guard::Templated(source.template(&TemplateSpec { prefix, format }))))
}

/// Where a request's token stands on a route.
pub(crate) fn token_headers(route: &Route) -> TokenHeaders {
    TokenHeaders {
        owner: route.owner_header.clone(),
        revision: route.revision_header.clone(),
        lock: route.lock_header.clone(),
    }
}

/// How a lock's record is read.
pub(crate) fn record_format(record: &Record) -> RecordFormat {
    match record {
        Record::Key { free_values, owner_field } => RecordFormat {
            layout: Layout::Key,
            free_values: free_values
                .iter()
                .map(|value| Bytes::copy_from_slice(value.as_bytes()))
                .collect(),
            owner_field: owner_field.clone(),
            owner_in: OwnerIn::Value,
        },
        Record::Session => {
            RecordFormat { owner_in: OwnerIn::Session, ..RecordFormat::plain(Layout::Key) }
        }
        Record::Lease => {
            RecordFormat { owner_in: OwnerIn::HolderIdentity, ..RecordFormat::plain(Layout::Key) }
        }
        Record::Counter => {
            RecordFormat { owner_in: OwnerIn::Column, ..RecordFormat::plain(Layout::Key) }
        }
        Record::Election => RecordFormat::plain(Layout::Election),
        Record::Mutex => RecordFormat::plain(Layout::Mutex),
    }
}

/// Where a lock is read from; with a templated key, all of its template's are.
pub(crate) fn record_range(lock: &Lock) -> KeyRange {
    match lock.key.static_key().filter(|_| !lock.from_header) {
        Some(key) => {
            LockSpec { key: key.clone(), format: record_format(&lock.record).into() }.range()
        }
        None => KeyRange::Prefix(lock.key.literal_prefix().as_bytes().into()),
    }
}

/// The name of the lock that guards a request on this path with these headers.
///
/// # Errors
/// `lock-not-allowed` if it is too long or is not one of the route's; `token-missing` and
/// `token-malformed` as for the token, where the caller names the lock.
pub fn lock_name(
    lock: &Lock,
    captures: &Captures<'_>,
    names: &TokenHeaders,
    headers: &HeaderMap,
) -> Result<String, Rejection> {
    let mut name = String::with_capacity(64);
    if lock.from_header {
        let key = lock.key.named_on_path(names.lock(headers)?, captures);
        name.push_str(&key.ok_or(Rejection::LockNotAllowed)?);
    } else {
        let rendered = lock.key.render_into(captures, &mut name);
        rendered.map_err(|fmt::Error| Rejection::LockNotAllowed)?;
    }
    if name.len() <= LockKey::BYTES_MAX { Ok(name) } else { Err(Rejection::LockNotAllowed) }
}
