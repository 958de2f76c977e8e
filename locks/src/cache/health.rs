//! How the store has been of late, by the answers and failures of its reads. Decides nothing about
//! requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{KeyRange, RangeRead, StoreError};

/// For how long a range that the store could only read at a great cost is not read again.
const TOO_LARGE_FOR: Duration = Duration::from_secs(5);

/// How many ranges that cannot be read are logged, and how many are remembered: what is not would
/// keep others from being read and watched.
const DENIED_MAX: (usize, usize) = (16, 1024);

/// How old the last answer is, at least, where failing reads make a source one that is down.
const DOWN_AFTER_MIN: Duration = Duration::from_secs(1);

/// How the store has been of late.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// When the newest quorum read was sent that was answered.
    pub(crate) answered: Option<Instant>,
    /// When the newest freshness read was sent that was answered.
    pub(crate) fresh: Option<Instant>,
    /// The last failure, and whether it was the last thing that happened.
    pub(crate) last_error: Option<Arc<StoreError>>,
    pub(crate) last_failed: bool,
    /// Whether the store has failed since it last answered. A refusal of some keys does not count.
    pub(crate) failing: bool,
    /// Whether the store has refused a call since it last answered. A refusal differs from a
    /// missing answer, and is logged for itself.
    pub(crate) refused: bool,
    /// Whether it has been logged that the store cannot be watched.
    pub(crate) is_unwatchable: bool,
    /// Keys of which it has been logged that they cannot be read, as long as they cannot.
    pub(crate) denied: Vec<KeyRange>,
    /// Those of them that are too large, with the answer and its time.
    too_large: Vec<(KeyRange, Instant, Arc<StoreError>)>,
    /// That the store went back has been logged.
    pub(crate) regression_told: bool,
}

impl Health {
    /// Whether the store answers, as far as can be told by then; everything is read once a period.
    pub(crate) fn is_up(&self, now: Instant, period: Duration) -> bool {
        let Some(answered) = self.answered else { return false };
        let age = now.saturating_duration_since(answered);
        // A single read that is lost is no outage: the next one is due a period later. Five of them
        // are all of `max_age`.
        let is_missed = self.last_failed && age >= (period * 2).max(DOWN_AFTER_MIN);
        !is_missed && age <= period * 5
    }

    /// Whether a scope of that range may not be read. It may have been asked for by one key of it,
    /// which it is asked for by again once there is a window.
    pub(crate) fn denies_scope(&self, range: &KeyRange) -> bool {
        self.denied.contains(range)
            || self.denied.contains(&KeyRange::Key(range.first_key().into()))
    }

    /// Whether a range was too large when it was last read.
    pub(crate) fn has_too_large(&self, range: &KeyRange) -> bool {
        self.too_large.iter().any(|(refused, ..)| refused == range)
    }

    /// Why a range is not read now, if it was too large a moment ago.
    pub(crate) fn too_large(&self, range: &KeyRange, now: Instant) -> Option<Arc<StoreError>> {
        let (_, at, error) = self.too_large.iter().find(|(refused, ..)| refused == range)?;
        let is_recent = now.saturating_duration_since(*at) < TOO_LARGE_FOR;
        is_recent.then(|| Arc::clone(error))
    }

    /// Takes note of a failure. Whether it is the first of its kind in a row.
    pub(crate) fn failed(&mut self, error: &Arc<StoreError>) -> bool {
        self.last_error = Some(Arc::clone(error));
        self.last_failed = true;
        match &**error {
            // Others are answered meanwhile: that ends no row.
            StoreError::Denied { range, .. } | StoreError::TooLarge { range } => {
                self.too_large.retain(|(known, ..)| known != range);
                if matches!(**error, StoreError::TooLarge { .. })
                    && self.too_large.len() < DENIED_MAX.1
                {
                    self.too_large.push((range.clone(), Instant::now(), Arc::clone(error)));
                }
                let known = self.denied.len();
                let is_new = known < DENIED_MAX.1 && !self.denied.contains(range);
                self.denied.extend(is_new.then(|| range.clone()));
                is_new && known < DENIED_MAX.0
            }
            StoreError::Refused(_)
            | StoreError::NoLogin(_)
            | StoreError::AnotherCluster { .. }
            | StoreError::NoMember { .. }
            | StoreError::ManyClusters { .. } => {
                self.failing = true;
                !std::mem::replace(&mut self.refused, true)
            }
            StoreError::Unavailable(_) | StoreError::Compacted => {
                !std::mem::replace(&mut self.failing, true)
            }
        }
    }

    /// Takes note of an answer to a read that was sent then. Whether it ends a row of failures.
    pub(crate) fn answered(&mut self, sent: Instant, ranges: &[RangeRead]) -> bool {
        self.answered = self.answered.max(Some(sent));
        self.last_failed = false;
        self.refused = false;
        let denied = self.denied.len();
        let is_read = |range: &KeyRange| ranges.iter().any(|read| read.range == *range);
        self.denied.retain(|range| !is_read(range));
        self.too_large.retain(|(range, ..)| !is_read(range));
        std::mem::take(&mut self.failing) || self.denied.len() < denied
    }
}
