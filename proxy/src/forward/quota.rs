//! How many connections to workers the process may have, whoever opens them.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A pool that has fewer connections than that gets one where the others have all that are for everybody.
const FEW: usize = 8;

/// How long a connection without a request is kept before it is asked whether others may wait for one.
pub(super) const QUOTA_LOOK: Duration = Duration::from_secs(1);

/// How many connections to workers all threads may have at once, whatever the upstreams. Clones share it.
///
/// A quarter of them is for pools that have few: whoever has requests wait at one worker, on as many connections as there may be, keeps
/// nobody from another worker.
#[derive(Debug, Clone)]
pub struct ConnectionQuota {
    for_all: Arc<Semaphore>,
    for_few: Arc<Semaphore>,
}

/// The right to one of them, until it is dropped.
#[derive(Debug)]
pub(super) struct QuotaPermit {
    _permit: OwnedSemaphorePermit,
}

impl ConnectionQuota {
    /// So many connections.
    pub fn of(connections: usize) -> ConnectionQuota {
        let for_few = connections / 4;
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        ConnectionQuota { for_all: semaphore(connections - for_few), for_few: semaphore(for_few) }
    }

    /// As many as anybody wants.
    pub fn unlimited() -> ConnectionQuota {
        ConnectionQuota::of(usize::MAX)
    }

    /// One more for a pool that has so many, if there is one.
    pub(super) fn take(&self, has: usize) -> Option<QuotaPermit> {
        let few = || if has < FEW { Arc::clone(&self.for_few).try_acquire_owned().ok() } else { None };
        let permit = Arc::clone(&self.for_all).try_acquire_owned().ok().or_else(few)?;
        Some(QuotaPermit { _permit: permit })
    }

    /// Whether there is one more for a pool that has so many.
    pub(super) fn has_room(&self, has: usize) -> bool {
        !self.is_used_up() || has < FEW && self.for_few.available_permits() > 0
    }

    /// Whether there is none left for everybody: connections without a request are not to be kept.
    pub(super) fn is_used_up(&self) -> bool {
        self.for_all.available_permits() == 0
    }

    /// Waits for one more, for a pool that has so many. Who has waited longest is first.
    pub(super) async fn wait(&self, has: usize) -> QuotaPermit {
        let few = async {
            match has {
                ..FEW => Arc::clone(&self.for_few).acquire_owned().await,
                FEW.. => pending().await,
            }
        };
        let permit = tokio::select! {
            permit = Arc::clone(&self.for_all).acquire_owned() => permit,
            permit = few => permit,
        };
        QuotaPermit { _permit: permit.expect("the quota is never closed") }
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn whoever_has_many_leaves_some_to_those_who_have_few() {
        let quota = ConnectionQuota::of(40);
        let many: Vec<_> = from_fn(|| quota.take(FEW)).collect();
        assert_eq!(many.len(), 30);
        assert!(quota.is_used_up() && !quota.has_room(FEW) && quota.has_room(FEW - 1));
        assert!(quota.wait(FEW).now_or_never().is_none());
        let few: Vec<_> = from_fn(|| quota.take(FEW - 1)).collect();
        assert_eq!(few.len(), 10);
        assert!(!quota.has_room(0));
        assert!(quota.wait(0).now_or_never().is_none());
        drop(few);
        assert!(quota.take(FEW).is_none() && quota.wait(FEW).now_or_never().is_none(), "these are for those with few");
        assert!(quota.wait(0).now_or_never().is_some());
        let waits = quota.wait(FEW);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        drop(many);
        assert!(waits.now_or_never().is_some());
        assert!(ConnectionQuota::unlimited().take(1_000_000).is_some());
    }
}
