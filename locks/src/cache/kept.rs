//! The templated locks that stay in memory though nobody holds them, so that not each request has
//! to read its lock.
//!
//! A lock that is dropped here while somebody holds it is found again in the
//! [`Registry`](super::registry::Registry), which also says why forgetting the others cannot admit
//! an ended tenure.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use fencepost_policy::LockKey;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::scope::Scope;
use super::tracked::TrackedLock;

/// How many locks are kept that have no record.
const WITHOUT_RECORD_MAX: u64 = 10_000;

/// Two caches, least recently used first out: a flood of made-up keys pushes out made-up keys only.
///
/// LRU, because TinyLFU may refuse a new lock, whose every request would read it then.
#[derive(Debug)]
pub(crate) struct KeptLocks {
    with_record: Cache<LockKey, Slot>,
    without_record: Cache<LockKey, Slot>,
}

/// Emptied when the cache evicts it, because moka frees its entries some time later, and a lock is
/// to be dropped now.
type Slot = Arc<ArcSwapOption<Kept>>;

/// A lock that is kept for the templates of a scope.
#[derive(Debug)]
struct Kept {
    lock: Arc<TrackedLock>,
    scope: Arc<Scope>,
}

impl KeptLocks {
    pub(crate) fn new(with_record_max: u64) -> KeptLocks {
        let cache = |max| {
            let lru = Cache::builder().max_capacity(max).eviction_policy(EvictionPolicy::lru());
            lru.eviction_listener(|_, slot: Slot, _| slot.store(None)).build()
        };
        KeptLocks { with_record: cache(with_record_max), without_record: cache(WITHOUT_RECORD_MAX) }
    }

    /// Keeps a lock that a request has asked for by a template. One that comes to have a record
    /// moves to those that have, and stays there.
    pub(crate) fn keep(&self, lock: &Arc<TrackedLock>, scope: &Arc<Scope>) {
        let key = lock.key();
        let is_in =
            |slot: Slot| slot.load().as_ref().is_some_and(|kept| Arc::ptr_eq(&kept.lock, lock));
        let has = |cache: &Cache<LockKey, Slot>| cache.get(key).is_some_and(is_in);
        let exists = lock.exists();
        if !scope.is_kept() || has(&self.with_record) || !exists && has(&self.without_record) {
            return;
        }
        let cache = if exists { &self.with_record } else { &self.without_record };
        let kept = Kept { lock: Arc::clone(lock), scope: Arc::clone(scope) };
        cache.insert(key.clone(), Arc::new(ArcSwapOption::from_pointee(kept)));
        if exists {
            self.without_record.invalidate(key);
        }
        if !scope.is_kept() {
            cache.invalidate(key); // Its template has gone meanwhile, and all its locks with it.
        }
        self.settle();
    }

    /// Lets go of the locks of scopes that are not kept any more.
    pub(crate) fn drop_unnamed(&self) {
        for cache in [&self.with_record, &self.without_record] {
            let is_kept =
                |slot: &Slot| slot.load().as_ref().is_some_and(|kept| kept.scope.is_kept());
            let others = cache.iter().filter(|(_, slot)| !is_kept(slot));
            others.for_each(|(key, _)| cache.invalidate(&*key));
        }
        self.settle();
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.with_record.entry_count() + self.without_record.entry_count())
            .unwrap_or(usize::MAX)
    }

    /// Drops what has to go now, not when moka gets to it: a simulation is the same each time, and
    /// memory is bounded at once.
    fn settle(&self) {
        self.with_record.run_pending_tasks();
        self.without_record.run_pending_tasks();
    }
}
