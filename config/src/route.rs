//! Which requests go where, and which lock guards them.

use std::time::Duration;

use http::{HeaderName, Method, StatusCode};

use crate::address::host_name;
use crate::identity::PeerIdentity;
use crate::lock::Lock;
use crate::path_template::PathTemplate;
use crate::problem::{Place, must_be};
use crate::reader::{Table, one_of, parse_name};
use crate::rewrite::Rewrite;
use crate::source::Source;
use crate::token_header::read_token_headers;
use crate::units::{HOUR, MINUTE, SECOND, Unit};
use crate::upstream::Upstream;

/// Requests of one kind: which they are, who answers them and which lock guards them.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Its name: `[A-Za-z0-9_-]{1,64}`, a metric label; no other route has it.
    pub name: String,
    /// The host that it serves, in lower case, without port and without a dot at its end; `None`:
    /// every host.
    pub host: Option<String>,
    /// The paths that it takes.
    pub path: PathTemplate,
    /// The worker.
    pub upstream: Upstream,
    /// Whether requests are fenced, and by which lock.
    pub mode: Mode,
    /// How senders prove which owner they are, where the route wants that; every listener then asks
    /// for client certificates.
    pub identity: Option<PeerIdentity>,
    /// Methods that pass without a token.
    pub exempt_methods: Vec<Method>,
    /// What news of the lock may admit.
    pub freshness: Freshness,
    /// News older than this admits nothing; 500 ms to 1 h, by default 5 s.
    pub max_age: Duration,
    /// How long a request waits for those of an earlier holder; 100 ms to 1 h, by default 10 s.
    pub handoff_timeout: Duration,
    /// How long a worker may go on with a request whose end was not seen; 100 ms to 1 h, by default
    /// 30 s.
    pub orphan_timeout: Duration,
    /// From the request sent to the head of its response; 10 ms to 1 h, by default 30 s.
    pub upstream_timeout: Duration,
    /// The longest silence in the body of a response; 10 ms to 24 h, by default 5 min; `None`: as
    /// long as it takes.
    pub stream_idle_timeout: Option<Duration>,
    /// The longest a request may take in all; 10 ms to 24 h; `None`: as long as it takes.
    pub request_timeout: Option<Duration>,
    /// The status of a refusal for a token that is not, or no longer, the holder's.
    pub stale_status: StaleStatus,
    /// What happens to a request while its lock is unknown.
    pub on_unavailable: OnUnavailable,
    /// What happens to a request that waited `handoff_timeout` for those of an earlier holder.
    pub on_handoff_timeout: OnHandoffTimeout,
    /// What a request is to the worker if the worker never gets the whole of it.
    pub partial_requests: PartialRequests,
    /// Whether responses have no end of their own, so that they are cut when their tenure ends and
    /// not waited for.
    pub streaming: bool,
    /// Whether responses say what the verdict was, in `Fence-Verdict`.
    pub verdict_header: bool,
    /// What changes of its requests and responses on their way.
    pub rewrite: Rewrite,
    /// The request header with the owner.
    pub owner_header: HeaderName,
    /// The request header with the revision.
    pub revision_header: HeaderName,
    /// The request header with the lock key, where the caller names the lock.
    pub lock_header: HeaderName,
}

/// Whether the requests of a route are fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Only the holder's requests are forwarded.
    Enforce(Lock),
    /// Every request is forwarded; what `Enforce` would have done is recorded.
    Shadow(Lock),
    /// Every request is forwarded.
    Off,
}

impl Mode {
    /// The name used in the configuration and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Mode::Enforce(_) => "enforce",
            Mode::Shadow(_) => "shadow",
            Mode::Off => "off",
        }
    }

    /// The lock that guards the requests, or would guard them.
    pub fn lock(&self) -> Option<&Lock> {
        match self {
            Mode::Enforce(lock) | Mode::Shadow(lock) => Some(lock),
            Mode::Off => None,
        }
    }
}

/// What news of a lock may admit a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// News no older than the route's `max_age`.
    Cached,
    /// Only a read of the store that began after the request arrived.
    Linearizable,
}

/// What becomes of a request while the lock store cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnUnavailable {
    /// It is refused.
    Reject,
    /// It is forwarded without being judged.
    DangerousAdmit,
}

/// What becomes of a request that waited as long as it may for those of an earlier holder to leave
/// the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnHandoffTimeout {
    /// It is refused.
    Reject,
    /// It is forwarded while those of the earlier holder may still be at the worker.
    DangerousProceed,
}

/// What a request is to the worker if the worker never gets the whole of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartialRequests {
    /// An orphan: the worker may act on the part that it has.
    Orphans,
    /// Nothing: the worker acts on whole requests only.
    Harmless,
}

/// The status of a refusal for a token that is not, or no longer, the holder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StaleStatus {
    /// 412, the default: clients do not retry it by themselves.
    PreconditionFailed,
    /// 409.
    Conflict,
}

impl StaleStatus {
    /// The status as HTTP has it.
    pub fn status(self) -> StatusCode {
        match self {
            StaleStatus::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            StaleStatus::Conflict => StatusCode::CONFLICT,
        }
    }
}

/// A route as it is written, for what must hold between routes.
pub(crate) struct WrittenRoute<'t> {
    pub(crate) table: Table<'t>,
    /// Whatever is written as the name: problems of other routes call it so.
    pub(crate) name: String,
    /// Before the table got the route's name.
    pub(crate) name_place: Place,
    /// The lock that is written, whatever the mode: a route that is off today keeps its lock right.
    pub(crate) lock: Option<Lock>,
    /// `None` if something is wrong with the route itself.
    pub(crate) route: Option<Route>,
}

impl<'t> WrittenRoute<'t> {
    /// How a problem of another route names this one, with the line of a key.
    pub(crate) fn named(&self, key: &str) -> String {
        format!("route {:?}{}", self.name, self.table.place_of(key).reference(self.table.notes))
    }

    pub(crate) fn read(mut table: Table<'t>, sources: &[Source]) -> WrittenRoute<'t> {
        let t = &mut table;
        let name_place = t.place_of("name");
        let mut label = String::new();
        let name = t.required("name", "the name of the route, a metric label", |name| {
            label = name.to_owned();
            parse_name(name)
        });
        if let Some(name) = &name {
            t.rename(format!("route.{name}"));
        }
        let what = r#"the paths that the route takes, like "/" or "/shards/{shard}/""#;
        let path = t.required("path", what, PathTemplate::parse);
        let host = t.text("host", parse_host);
        if matches!(host.as_deref(), Some("keep" | "upstream")) {
            t.warning(
                "host",
                "takes only requests for this host: what the worker gets as Host is upstream_host",
            );
        }
        let upstream = Upstream::read(t);
        let kind = t.text_or("mode", "enforce", |word| one_of(word, &MODES));
        let lock = t.table("lock", |t| Lock::read(t, path.as_ref(), sources));
        if matches!(kind, Some(Some(_))) && !t.is_written("lock") {
            let what = r#"the lock that guards the route (only mode = "off" needs none)"#;
            t.problem("lock", format_args!("missing: {what}"));
        }
        let identity = t.table("identity", |t| PeerIdentity::read(t, lock.as_ref()));
        let mode = kind.and_then(|with_lock| match with_lock {
            Some(with_lock) => lock.clone().map(with_lock),
            None => (lock.is_some() || !t.is_written("lock")).then_some(Mode::Off),
        });
        if mode == Some(Mode::Off) && t.is_written("identity") {
            t.warning("identity", "nobody is asked for it while the route is off");
        }
        let exempt_methods = t.list("exempt_methods", parse_method);
        for (place, method) in exempt_methods.iter().filter(|(_, method)| !method.is_safe()) {
            let text = "requests pass without a token, an ended holder's too";
            t.notes.warning(place, format_args!("{method} {text}"));
        }
        let freshness = t.choice("freshness", &FRESHNESS);
        let max_age = t.time("max_age", 500..=HOUR, 5 * SECOND);
        let handoff_timeout = t.time("handoff_timeout", 100..=HOUR, 10 * SECOND);
        let orphan_timeout = t.time("orphan_timeout", 100..=HOUR, 30 * SECOND);
        if orphan_timeout < Duration::from_secs(1) {
            t.warning("orphan_timeout", SHORT_ORPHAN_TIMEOUT);
        }
        let upstream_timeout = t.time("upstream_timeout", 10..=HOUR, 30 * SECOND);
        let stream_idle_timeout = t.time_or_off("stream_idle_timeout", 10..=24 * HOUR, 5 * MINUTE);
        let request_timeout = t.optional("request_timeout", Unit::Time, 10..=24 * HOUR);
        let stale_status = t.count("stale_status", i64::MIN..=i64::MAX, 412_i64);
        if !matches!(stale_status, 412 | 409) {
            t.problem("stale_status", format_args!("must be 412 or 409, not {stale_status}"));
        }
        let on_unavailable = t.choice("on_unavailable", &ON_UNAVAILABLE);
        let on_handoff_timeout = t.choice("on_handoff_timeout", &ON_HANDOFF_TIMEOUT);
        let partial_requests = t.choice("partial_requests", &PARTIAL_REQUESTS);
        let (streaming, verdict_header) = (t.flag("streaming"), t.flag("verdict_header"));
        let headers = read_token_headers(t);
        let token = headers.as_ref().map_or(&[][..], |headers| headers);
        let rewrite = Rewrite::read(t, path.as_ref(), token);
        let admits = on_unavailable == OnUnavailable::DangerousAdmit;
        let proceeds = on_handoff_timeout == OnHandoffTimeout::DangerousProceed;
        let weakenings = [
            ("mode", matches!(mode, Some(Mode::Shadow(_))), SHADOW),
            ("on_unavailable", admits, DANGEROUS_ADMIT),
            ("on_handoff_timeout", proceeds, DANGEROUS_PROCEED),
            ("partial_requests", partial_requests == PartialRequests::Harmless, HARMLESS),
        ];
        for (key, _, text) in weakenings.iter().filter(|(_, is_chosen, _)| *is_chosen) {
            t.warning(key, text);
        }
        t.finish();
        let route = (|| {
            let [owner_header, revision_header, lock_header] = headers?;
            Some(Route {
                name: name?,
                host,
                path: path?,
                upstream: upstream?,
                mode: mode?,
                identity,
                exempt_methods: exempt_methods.into_iter().map(|(_, method)| method).collect(),
                freshness,
                max_age,
                handoff_timeout,
                orphan_timeout,
                upstream_timeout,
                stream_idle_timeout,
                request_timeout: request_timeout.map(Duration::from_millis),
                stale_status: match stale_status {
                    409 => StaleStatus::Conflict,
                    _ => StaleStatus::PreconditionFailed,
                },
                on_unavailable,
                on_handoff_timeout,
                partial_requests,
                streaming,
                verdict_header,
                rewrite,
                owner_header,
                revision_header,
                lock_header,
            })
        })();
        WrittenRoute { table, name: label, name_place, lock, route }
    }
}

type WithLock = fn(Lock) -> Mode;

/// The modes. Only a route that is off does without a lock.
const MODES: [(&str, Option<WithLock>); 3] =
    [("enforce", Some(Mode::Enforce)), ("shadow", Some(Mode::Shadow)), ("off", None)];
const FRESHNESS: [(&str, Freshness); 2] =
    [("cached", Freshness::Cached), ("linearizable", Freshness::Linearizable)];
const ON_UNAVAILABLE: [(&str, OnUnavailable); 2] =
    [("reject", OnUnavailable::Reject), ("dangerous_admit", OnUnavailable::DangerousAdmit)];
const ON_HANDOFF_TIMEOUT: [(&str, OnHandoffTimeout); 2] = [
    ("reject", OnHandoffTimeout::Reject),
    ("dangerous_proceed", OnHandoffTimeout::DangerousProceed),
];
const PARTIAL_REQUESTS: [(&str, PartialRequests); 2] =
    [("orphans", PartialRequests::Orphans), ("harmless", PartialRequests::Harmless)];
const SHADOW: &str = r#"refuses nothing: it only records what "enforce" would have done"#;
const DANGEROUS_ADMIT: &str =
    "forwards requests unjudged, an ended holder's too, while the lock store cannot be asked";
const DANGEROUS_PROCEED: &str = "forwards requests of a new holder after handoff_timeout, while those of an \
    earlier one may still be at the worker";
const HARMLESS: &str = "takes the worker's word that it does nothing with a request that it gets only a part of: \
    the next holder does not wait for one that was cut";
const SHORT_ORPHAN_TIMEOUT: &str = "below 1s, connections to the worker end when it acknowledges nothing for \
    500ms, and a new holder may wait for that long: write \"1s\" or more";

fn parse_host(text: &str) -> Result<String, String> {
    let host = host_name(text.strip_suffix('.').unwrap_or(text));
    host.ok_or_else(|| must_be(r#"a host without a port, like "worker.example""#, text))
}

fn parse_method(text: &str) -> Result<Method, String> {
    let upper = text.to_ascii_uppercase();
    if STANDARD_METHODS.contains(&upper.as_str()) && upper != text {
        let text = must_be(&format!("{upper:?}"), text);
        return Err(format!("{text}: methods are told apart by upper and lower case"));
    }
    let what = r#"the name of a method, like "GET""#;
    Method::from_bytes(text.as_bytes()).map_err(|_| must_be(what, text))
}

const STANDARD_METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

#[cfg(test)]
pub(crate) mod tests {
    /// A route of `/` that enforces the lock `/k`.
    pub(crate) fn any_route() -> super::Route {
        route_with("").unwrap()
    }

    fn route_with(more: &str) -> Result<super::Route, String> {
        let text = "listener = [{ address = \"127.0.0.1:0\" }]\nsource.main.kind = \"memory\"\n[[route]]\nname = \"r\"\n\
            path = \"/\"\nupstream = \"http://127.0.0.1:9000\"\nlock = { source = \"main\", key = \"/k\" }\n";
        let config = crate::Config::from_toml("f.toml", &format!("{text}{more}\n"));
        config.map(|config| config.routes[0].clone()).map_err(|problems| problems.to_string())
    }

    #[test]
    fn silence_of_a_body_may_be_off() {
        let off = route_with(r#"stream_idle_timeout = "off""#).unwrap();
        assert_eq!(off.stream_idle_timeout, None);
        let problem = route_with(r#"stream_idle_timeout = "never""#).unwrap_err();
        assert!(
            problem.contains(
                r#"f.toml:8: route.r.stream_idle_timeout: must be a duration, like "5m", or "off""#
            ),
            "{problem}"
        );
    }
}
