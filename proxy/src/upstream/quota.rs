//! Limits how many connections to workers the whole process has.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use scopeguard::guard;

/// How often who waits for the quota looks at it.
pub(super) const QUOTA_LOOK: Duration = Duration::from_millis(50);

/// How long a connection without a request is kept before it is asked whether others wait for one.
pub(super) const IDLE_LOOK: Duration = Duration::from_secs(1);

/// A pool that has fewer connections than that gets one also where the others have all but a
/// quarter.
const FEW_MAX: usize = 8;

/// How many connections to workers all threads may have at once, over all upstreams. Clones share
/// it.
///
/// A quarter is for pools that have few. So requests that wait at one worker, on as many
/// connections as possible, block neither another worker nor another thread at the same worker.
#[derive(Debug, Clone)]
pub struct ConnectionQuota(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connections: usize,
    /// How many of them are only for pools that have fewer than `few`.
    reserve: usize,
    few: usize,
    taken: AtomicUsize,
    /// Who waits for one.
    waiting: AtomicUsize,
}

/// The right to one of them, until it is dropped.
#[derive(Debug)]
pub(super) struct QuotaPermit(Arc<Shared>);

impl ConnectionQuota {
    /// So many connections, for pools on so many threads.
    pub fn of(connections: usize, threads: NonZeroUsize) -> ConnectionQuota {
        let reserve = connections / 4;
        // The pools of one upstream are not to have more than half of it. In a group, where an
        // upstream has two on each thread, they may have all.
        let few = (reserve / (2 * threads.get())).clamp(1, FEW_MAX);
        let (taken, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        ConnectionQuota(Arc::new(Shared { connections, reserve, few, taken, waiting }))
    }

    /// As many as anybody wants.
    pub fn unlimited() -> ConnectionQuota {
        ConnectionQuota::of(usize::MAX, NonZeroUsize::MIN)
    }

    /// Takes one more connection for a pool that has this many, if the quota has room.
    pub(super) fn take(&self, has: usize) -> Option<QuotaPermit> {
        let most = self.most(has);
        let one_more = |taken: usize| (taken < most).then(|| taken + 1);
        self.0.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(QuotaPermit(Arc::clone(&self.0)))
    }

    /// Takes one more connection for a caller that can do without: never one of the reserve.
    pub(super) fn take_spare(&self) -> Option<QuotaPermit> {
        self.take(usize::MAX)
    }

    /// Whether a pool that has so many is to leave what it is done with to those with few, who wait
    /// for one.
    pub(super) fn is_for_others(&self, has: usize) -> bool {
        has >= self.0.few
            && self.is_wanted()
            && self.0.taken.load(Ordering::Relaxed) > self.most(has)
    }

    /// Whether there is one more for a pool that has so many.
    pub(super) fn has_room(&self, has: usize) -> bool {
        self.0.taken.load(Ordering::Relaxed) < self.most(has)
    }

    fn most(&self, has: usize) -> usize {
        if has < self.0.few { self.0.connections } else { self.0.connections - self.0.reserve }
    }

    /// Says that somebody waits for one: connections without a request are not to be kept
    /// meanwhile, until what this returns is dropped.
    pub(super) fn want(&self) -> impl Sized + use<> {
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        guard(Arc::clone(&self.0), |shared| _ = shared.waiting.fetch_sub(1, Ordering::Relaxed))
    }

    /// Whether somebody waits for one.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use super::*;

    fn threads(threads: usize) -> NonZeroUsize {
        NonZeroUsize::new(threads).unwrap()
    }

    #[test]
    fn whoever_has_many_leaves_some_to_those_who_have_few() {
        let quota = ConnectionQuota::of(64, threads(1));
        let many: Vec<_> = from_fn(|| quota.take(8)).collect();
        assert_eq!(many.len(), 48);
        assert!(quota.take_spare().is_none() && !quota.has_room(8) && quota.has_room(7));
        let few: Vec<_> = from_fn(|| quota.take(7)).collect();
        assert_eq!(few.len(), 16);
        assert!(!quota.has_room(0) && quota.take(0).is_none());
        drop(few);
        assert!(quota.take(8).is_none(), "these are for those with few");
        assert!(quota.take(0).is_some());
        drop(many);
        assert!(quota.take_spare().is_some());
        assert!(ConnectionQuota::unlimited().take(1_000_000).is_some());
        assert!(ConnectionQuota::of(1, threads(4)).take(0).is_some());
    }

    /// One upstream's had all, where threads were many.
    #[test]
    fn the_pools_of_one_upstream_have_half_of_what_is_for_those_with_few() {
        for (connections, threads_, of_each) in
            [(256, 1, 8), (256, 4, 8), (256, 12, 2), (256, 100, 1), (94, 16, 1)]
        {
            let quota = ConnectionQuota::of(connections, threads(threads_));
            let _many: Vec<_> = from_fn(|| quota.take_spare()).collect();
            let of_one = (0..).take_while(|has| quota.take(*has).is_some()).count();
            assert_eq!(of_one, of_each, "{connections} on {threads_} threads");
        }
    }

    #[test]
    fn it_is_wanted_as_long_as_anybody_waits() {
        let quota = ConnectionQuota::of(1, threads(1));
        let (first, second) = (quota.want(), quota.want());
        drop(first);
        assert!(quota.is_wanted());
        drop(second);
        assert!(!quota.is_wanted());
    }
}
