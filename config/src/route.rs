//! Which requests go where, and which lock guards them.

use std::time::Duration;

use fencepost_policy::Layout;
use http::{HeaderName, Method, StatusCode};

use crate::identity::PeerIdentity;
use crate::lock_template::LockTemplate;
use crate::path_template::PathTemplate;
use crate::upstream::Upstream;

/// Requests of one kind: which they are, who answers them and which lock guards them.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Its name: `[A-Za-z0-9_-]{1,64}`, a metric label; no other route has it.
    pub name: String,
    /// The host that it serves, in lower case, without port and without a dot at its end; `None`: every host.
    pub host: Option<String>,
    /// The paths that it takes.
    pub path: PathTemplate,
    /// The worker.
    pub upstream: Upstream,
    /// Whether requests are fenced, and by which lock.
    pub mode: Mode,
    /// How senders prove which owner they are, where the route wants that; every listener then asks for client certificates.
    pub identity: Option<PeerIdentity>,
    /// Methods that pass without a token.
    pub exempt_methods: Vec<Method>,
    /// What news of the lock may admit.
    pub freshness: Freshness,
    /// News older than this admits nothing; 500 ms to 1 h, by default 5 s.
    pub max_age: Duration,
    /// How long a request waits for those of an earlier holder; 100 ms to 1 h, by default 10 s.
    pub handoff_timeout: Duration,
    /// How long a worker may go on with a request whose end was not seen; 100 ms to 1 h, by default 30 s.
    pub orphan_timeout: Duration,
    /// From the request sent to the head of its response, and the longest silence after it; 10 ms to 1 h, by default 30 s.
    pub upstream_timeout: Duration,
    /// The longest a request may take in all; 10 ms to 24 h; `None`: as long as it takes.
    pub request_timeout: Option<Duration>,
    /// The status of a refusal for a token that is not, or no longer, the holder's.
    pub stale_status: StaleStatus,
    /// What becomes of a request while nothing can be said of its lock.
    pub on_unavailable: OnUnavailable,
    /// What becomes of a request that waited `handoff_timeout` for those of an earlier holder.
    pub on_handoff_timeout: OnHandoffTimeout,
    /// What a request is to the worker if the worker never gets the whole of it.
    pub partial_requests: PartialRequests,
    /// Whether responses have no end of their own, so that they are cut when their tenure ends and not waited for.
    pub streaming: bool,
    /// Whether responses say what the verdict was, in `Fence-Verdict`.
    pub verdict_header: bool,
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

/// Which lock guards the requests of a route, and how its record is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Which of [`Config::sources`](crate::Config::sources) keeps it.
    pub source: usize,
    /// Its key.
    pub key: LockTemplate,
    /// Whether the caller names the key, in [`Route::lock_header`]: it is then matched against `key`
    /// ([`LockTemplate::named_on_path`]) and not rendered from the path.
    pub from_header: bool,
    /// How a record becomes a tenure.
    pub record: Record,
}

/// How the record of a lock is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// One key whose value names the owner.
    Key {
        /// Values that mean that nobody holds the lock; in order, each once.
        free_values: Vec<String>,
        /// The value is a JSON object and this field of it the owner; `None`: the value is the owner.
        owner_field: Option<String>,
    },
    /// etcd's Election.
    Election,
    /// etcd's Mutex.
    Mutex,
}

impl Record {
    /// The layout without its details.
    pub fn layout(&self) -> Layout {
        match self {
            Record::Key { .. } => Layout::Key,
            Record::Election => Layout::Election,
            Record::Mutex => Layout::Mutex,
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

/// What becomes of a request that waited as long as it may for those of an earlier holder to leave the worker.
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
