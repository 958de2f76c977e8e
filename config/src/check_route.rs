//! From what is written to what it means, for one route at a time.

use http::{HeaderName, Method};

use crate::address::host_name;
use crate::check::{DeclaredSource, NAME_RULE, is_name, millis, minutes};
use crate::check_identity::check_identity;
use crate::check_lock::check_lock;
use crate::check_upstream::check_upstream;
use crate::path_template::PathTemplate;
use crate::problem::{Notes, Place};
use crate::raw::RawRoute;
use crate::route::{Freshness, Lock, Mode, OnHandoffTimeout, OnUnavailable, PartialRequests, Route, StaleStatus};
use crate::setting::Setting;
use crate::units::show_duration;

/// What could be read of a route, and where, for problems that it has with others.
pub(crate) struct CheckedRoute {
    /// How problems of other routes name this one.
    pub(crate) name: String,
    /// The lock that is written, whatever the mode: a route that is off today keeps its lock right.
    pub(crate) lock: Option<Lock>,
    pub(crate) lock_place: Place,
    pub(crate) path_place: Place,
    pub(crate) upstream_place: Place,
    pub(crate) identity_place: Place,
    /// Nothing if something is wrong with the route itself.
    pub(crate) route: Option<Route>,
}

pub(crate) fn check_route(raw: RawRoute, sources: &[DeclaredSource], notes: &Notes) -> CheckedRoute {
    let RawRoute {
        name,
        path,
        host,
        upstream,
        upstream_tls,
        mode,
        lock,
        identity,
        exempt_methods,
        freshness,
        max_age,
        handoff_timeout,
        orphan_timeout,
        upstream_timeout,
        request_timeout,
        stale_status,
        on_unavailable,
        on_handoff_timeout,
        partial_requests,
        streaming,
        verdict_header,
        owner_header,
        revision_header,
        lock_header,
    } = raw;
    warn_of_weakened_fencing([&mode, &on_unavailable, &on_handoff_timeout, &partial_requests], notes);
    let time = |setting: Setting<_>, range, default| setting.within(notes, range, show_duration).or(default);
    let (path_place, lock_place, identity_place) = (path.place.clone(), lock.place.clone(), identity.place.clone());
    let upstream_place = upstream.place.clone();
    let label = name.value().cloned().unwrap_or_default();
    let headers = check_headers([owner_header, revision_header, lock_header], notes);
    let name = name.parse(notes, |name| if is_name(&name) { Ok(name) } else { Err(NAME_RULE) });
    let name = name.required(notes, "the name of the route, a metric label");
    let upstream = check_upstream(upstream, upstream_tls, notes);
    let host = host.parse(notes, |text| parse_host(&text)).into_value();
    let exempt_methods = check_exempt_methods(exempt_methods, notes);
    let freshness =
        freshness.choice(notes, &[("cached", Freshness::Cached), ("linearizable", Freshness::Linearizable)]);
    let max_age = time(max_age, millis(500)..=minutes(60), millis(5_000));
    let handoff_timeout = time(handoff_timeout, millis(100)..=minutes(60), millis(10_000));
    let orphan_place = orphan_timeout.place.clone();
    let orphan_timeout = time(orphan_timeout, millis(100)..=minutes(60), millis(30_000));
    if orphan_timeout < millis(1_000) {
        notes.warning(&orphan_place, SHORT_ORPHAN_TIMEOUT);
    }
    let upstream_timeout = time(upstream_timeout, millis(10)..=minutes(60), millis(30_000));
    let request_timeout = request_timeout.within(notes, millis(10)..=minutes(24 * 60), show_duration).into_value();
    let stale_status = stale_status.parse(notes, |status| match status {
        412 => Ok(StaleStatus::PreconditionFailed),
        409 => Ok(StaleStatus::Conflict),
        other => Err(format!("must be 412 or 409, not {other}")),
    });
    let on_unavailable = on_unavailable.choice(notes, &ON_UNAVAILABLE);
    let on_handoff_timeout = on_handoff_timeout.choice(notes, &ON_HANDOFF_TIMEOUT);
    let partial_requests = partial_requests.choice(notes, &PARTIAL_REQUESTS);
    let path = path.parse(notes, |text| PathTemplate::parse(&text));
    let path = path.required(notes, r#"the paths that the route takes, like "/" or "/shards/{shard}/""#);
    let mode = mode.choice(notes, &MODES).or_if_absent(ModeName::Enforce);
    if mode.is_some_and(|mode| mode != ModeName::Off) && !lock.is_written() {
        notes.problem(&lock_place, r#"missing: the lock that guards the route (only mode = "off" needs none)"#);
    }
    let lock_written = lock.is_written();
    let lock = lock.map(|lock| check_lock(lock, path.as_ref(), sources, notes)).into_value().flatten();
    let identity = check_identity(identity, lock.as_ref(), mode == Some(ModeName::Off), notes);
    let mode = mode.filter(|_| lock.is_some() || !lock_written).and_then(|mode| mode.guarded_by(lock.clone()));
    let make_route = || {
        let [owner_header, revision_header, lock_header] = headers?;
        Some(Route {
            name: name?,
            host,
            path: path?,
            upstream: upstream?,
            mode: mode?,
            identity,
            exempt_methods,
            freshness: freshness.or(Freshness::Cached),
            max_age,
            handoff_timeout,
            orphan_timeout,
            upstream_timeout,
            request_timeout,
            stale_status: stale_status.or(StaleStatus::PreconditionFailed),
            on_unavailable: on_unavailable.or(OnUnavailable::Reject),
            on_handoff_timeout: on_handoff_timeout.or(OnHandoffTimeout::Reject),
            partial_requests: partial_requests.or(PartialRequests::Orphans),
            streaming: streaming.or(false),
            verdict_header: verdict_header.or(false),
            owner_header,
            revision_header,
            lock_header,
        })
    };
    CheckedRoute { name: label, lock, lock_place, path_place, upstream_place, identity_place, route: make_route() }
}

#[derive(Clone, Copy, PartialEq)]
enum ModeName {
    Enforce,
    Shadow,
    Off,
}

impl ModeName {
    /// Only a route that is off does without a lock.
    fn guarded_by(self, lock: Option<Lock>) -> Option<Mode> {
        match self {
            ModeName::Enforce => lock.map(Mode::Enforce),
            ModeName::Shadow => lock.map(Mode::Shadow),
            ModeName::Off => Some(Mode::Off),
        }
    }
}

const MODES: [(&str, ModeName); 3] =
    [("enforce", ModeName::Enforce), ("shadow", ModeName::Shadow), ("off", ModeName::Off)];

const ON_UNAVAILABLE: [(&str, OnUnavailable); 2] =
    [("reject", OnUnavailable::Reject), ("dangerous_admit", OnUnavailable::DangerousAdmit)];

const ON_HANDOFF_TIMEOUT: [(&str, OnHandoffTimeout); 2] =
    [("reject", OnHandoffTimeout::Reject), ("dangerous_proceed", OnHandoffTimeout::DangerousProceed)];

const PARTIAL_REQUESTS: [(&str, PartialRequests); 2] =
    [("orphans", PartialRequests::Orphans), ("harmless", PartialRequests::Harmless)];

/// Values that weaken the fence, each of one setting only, and what they do.
const WEAKENINGS: [(&str, &str); 4] = [
    ("shadow", "refuses nothing: it only records what \"enforce\" would have done"),
    ("dangerous_admit", "forwards requests unjudged, an ended holder's too, while the lock store cannot be asked"),
    (
        "dangerous_proceed",
        "forwards requests of a new holder after handoff_timeout, while those of an earlier one may still be at the worker",
    ),
    (
        "harmless",
        "takes the worker's word that it does nothing with a request that it gets only a part of: the next holder does not wait for one that was cut",
    ),
];

const SHORT_ORPHAN_TIMEOUT: &str = "below 1s, connections to the worker end when it acknowledges nothing for 500ms, and a new \
                                    holder may wait for that long: write \"1s\" or more";

fn warn_of_weakened_fencing(settings: [&Setting<String>; 4], notes: &Notes) {
    for setting in settings {
        let weakening = WEAKENINGS.iter().find(|(value, _)| setting.value().is_some_and(|text| text == value));
        if let Some((_, what_it_does)) = weakening {
            notes.warning(&setting.place, what_it_does);
        }
    }
}

fn parse_host(text: &str) -> Result<String, String> {
    let host = host_name(text.strip_suffix('.').unwrap_or(text));
    host.ok_or_else(|| format!(r#"must be a host without a port, like "worker.example", not {text:?}"#))
}

fn check_exempt_methods(raw: Setting<Vec<Setting<String>>>, notes: &Notes) -> Vec<Method> {
    let mut methods = Vec::new();
    for method in raw.or(Vec::new()) {
        let place = method.place.clone();
        let Some(method) = method.parse(notes, |text| parse_method(&text)).into_value() else {
            continue;
        };
        if methods.contains(&method) {
            notes.problem(&place, format_args!("{method} is in the list already"));
        }
        if !method.is_safe() {
            notes.warning(&place, format_args!("{method} requests pass without a token, an ended holder's too"));
        }
        methods.push(method);
    }
    methods
}

fn parse_method(text: &str) -> Result<Method, String> {
    let wrong = || format!(r#"must be the name of a method, like "GET", not {text:?}"#);
    let method = Method::from_bytes(text.as_bytes()).map_err(|_| wrong())?;
    let upper = text.to_ascii_uppercase();
    match STANDARD_METHODS.contains(&upper.as_str()) && upper != text {
        true => Err(format!("must be {upper:?}, not {text:?}: methods are told apart by upper and lower case")),
        false => Ok(method),
    }
}

const STANDARD_METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

/// The headers for owner, revision and lock, in this order.
fn check_headers(raw: [Setting<String>; 3], notes: &Notes) -> Option<[HeaderName; 3]> {
    let defaults = ["fence-owner", "fence-revision", "fence-lock"].map(HeaderName::from_static);
    let places: Vec<Place> = raw.iter().map(|setting| setting.place.clone()).collect();
    let mut names: Vec<Option<HeaderName>> = Vec::new();
    for (setting, default) in raw.into_iter().zip(defaults) {
        names.push(setting.parse(notes, |text| parse_token_header(&text)).or_if_absent(default));
    }
    for (later, earlier) in [(1, 0), (2, 0), (2, 1)] {
        let (Some(name), Some(other)) = (&names[later], &names[earlier]) else { continue };
        let key = places[earlier].key();
        if name == other {
            notes.problem(&places[later], format_args!("{name:?} is {key} too"));
            return None;
        }
        if folds_alike(name.as_str(), other.as_str()) {
            notes.problem(&places[later], format_args!("{name:?} is {key}, {other:?}, to a worker that folds names"));
            return None;
        }
    }
    names.into_iter().collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// The header for owner, revision or lock that has this name.
///
/// # Errors
/// Why there is none: it is no name of a header, or a proxy uses it for itself.
pub fn parse_token_header(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text.parse().map_err(|_| format!("must be the name of a header, not {text:?}"))?;
    if RESERVED_HEADERS.iter().any(|reserved| folds_alike(reserved, name.as_str())) {
        return Err(format!(
            "{text:?} has a meaning of its own for the connection, the framing or the routing of requests"
        ));
    }
    Ok(name)
}

/// Whether a server that makes one mark of all that is neither letter nor digit, as CGI does of `-` and `_`, takes both for one name.
pub fn folds_alike(one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> bool {
    let (one, other) = (one.as_ref(), other.as_ref());
    let fold = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'_' };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| fold(*one) == fold(*other))
}

/// What a proxy removes, rewrites or goes by, and so cannot pass on as it came.
const RESERVED_HEADERS: [&str; 19] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];
