//! How a source is, for the eyes of an operator.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_policy::Revision;
use tokio::time::Instant;

use super::LockSource;
use crate::cache::identity::StoreIdentity;
use crate::member::Member;
use crate::store::StoreError;

/// How a source is.
#[derive(Debug, Clone)]
pub struct SourceStatus {
    /// Whether the store answers quorum reads: the newest one that was answered was sent within the
    /// last five periods, or, once reads fail, within the last two (a second at least). `None` as
    /// long as nothing has to be read from it, which nobody can tell then.
    pub up: Option<bool>,
    /// Whether it is up, and yet what is known is older than five periods, the smallest `max_age`.
    pub is_stale: bool,
    /// How long ago the newest freshness read was sent that was answered.
    pub age: Option<Duration>,
    /// The highest revision seen of the store, in this process or before.
    pub revision: Option<Revision>,
    /// The identity that the store has reported.
    pub store: StoreIdentity,
    /// How often the watch had to be begun again.
    pub watch_restarts: u64,
    /// How many tenures were seen to begin, of locks that were known before.
    pub tenures: u64,
    /// How many static locks there are.
    pub static_locks: usize,
    /// How many templated locks are known.
    pub templated_locks: usize,
    /// The revision up to which nothing is believed, if the store went back, in this process or
    /// before, and nobody has accepted that.
    pub distrusted_through: Option<Revision>,
    /// How many answers showed less than was seen before they were asked for.
    pub answers_behind: u64,
    /// How often the store was asked.
    pub reads: ReadCounts,
    /// The last failure of the store.
    pub last_error: Option<Arc<StoreError>>,
    /// How the members were when they were last asked: at the start, when the store began to fail
    /// or answered again, every few seconds while one does not answer, and every half minute.
    pub members: Vec<Member>,
}

/// How often the store was asked, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadCounts {
    /// To keep static locks fresh, and to see how the store is.
    pub freshness: u64,
    /// To load or confirm locks, or to keep templated locks fresh that are in use.
    pub confirms: u64,
    /// To look back through one key's history.
    pub walks: u64,
    /// Before a watch was begun again.
    pub resumes: u64,
}

impl LockSource {
    /// How it is.
    pub fn status(&self, now: Instant) -> SourceStatus {
        let (shared, common) = (&self.0.shared, self.common());
        let health = common.health().clone();
        let age = |sent: Option<Instant>| sent.map(|sent| now.saturating_duration_since(sent));
        let static_locks = shared.named().len();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &common.counts;
        let is_old = |age: Duration| age > common.period() * 5;
        let is_up = || !common.is_stopped() && health.is_up(now, common.period());
        let up = shared.is_read_from().then(is_up);
        SourceStatus {
            up,
            is_stale: up == Some(true) && age(health.fresh).is_some_and(is_old),
            age: age(health.fresh),
            revision: common.trust.max_seen(),
            store: common.trust.identity(),
            watch_restarts: load(&counts.watch_restarts),
            tenures: common.tenures.begun(),
            static_locks,
            templated_locks: common.registry.len().saturating_sub(static_locks),
            distrusted_through: common.trust.distrusted_through(),
            answers_behind: common.trust.anomalies(),
            reads: ReadCounts {
                freshness: load(&counts.freshness),
                confirms: load(&counts.confirms),
                walks: load(&counts.walks),
                resumes: load(&counts.resumes),
            },
            last_error: health.last_error,
            members: shared.members().clone(),
        }
    }
}
