//! The templated locks that stay in memory though nobody holds them, so that not each request has to read its lock.
//!
//! A lock that is dropped here while somebody holds it is found again in the [`Registry`](super::registry::Registry), which also
//! says why forgetting the others cannot admit an ended tenure.

use std::sync::{Arc, PoisonError, RwLock};

use arc_swap::ArcSwapOption;
use fencepost_policy::LockKey;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::by_prefix::ByPrefix;
use super::record::{LockSpec, RecordFormat, TemplateSpec};
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
    /// Whose locks are kept; `None` until that is known. Requests of an earlier configuration go on to ask for others.
    templates: RwLock<Option<Templates>>,
}

/// Emptied when the cache evicts it, because moka frees its entries some time later, and a lock is to be dropped now.
type Slot = Arc<ArcSwapOption<TrackedLock>>;

impl KeptLocks {
    pub(crate) fn new(with_record_max: u64) -> KeptLocks {
        let cache = |max| {
            let lru = Cache::builder().max_capacity(max).eviction_policy(EvictionPolicy::lru());
            lru.eviction_listener(|_, slot: Slot, _| slot.store(None)).build()
        };
        KeptLocks {
            with_record: cache(with_record_max),
            without_record: cache(WITHOUT_RECORD_MAX),
            templates: RwLock::default(),
        }
    }

    /// Keeps a lock that a request has asked for. One that comes to have a record moves to those that have, and stays there.
    pub(crate) fn keep(&self, lock: &Arc<TrackedLock>) {
        let key = lock.key();
        let is_in = |slot: Slot| slot.load().as_ref().is_some_and(|kept| Arc::ptr_eq(kept, lock));
        let has = |cache: &Cache<LockKey, Slot>| cache.get(key).is_some_and(is_in);
        let exists = lock.exists();
        if has(&self.with_record) || !exists && has(&self.without_record) {
            return;
        }
        // Held until the lock is in, so that it is not kept for a template that is gone.
        let templates = self.templates.read().unwrap_or_else(PoisonError::into_inner);
        if templates.as_ref().is_some_and(|templates| !templates.name(lock.spec())) {
            return;
        }
        let cache = if exists { &self.with_record } else { &self.without_record };
        cache.insert(key.clone(), Arc::new(ArcSwapOption::from(Some(Arc::clone(lock)))));
        if exists {
            self.without_record.invalidate(key);
        }
        self.settle();
    }

    /// Keeps locks of these templates only, from now on, and lets go of all others.
    pub(crate) fn keep_only<'t>(&self, templates: impl Iterator<Item = &'t TemplateSpec>) {
        let templates: Templates = templates.collect();
        let mut kept = self.templates.write().unwrap_or_else(PoisonError::into_inner);
        for cache in [&self.with_record, &self.without_record] {
            let is_named = |slot: &Slot| slot.load().as_ref().is_some_and(|lock| templates.name(lock.spec()));
            let others = cache.iter().filter(|(_, slot)| !is_named(slot));
            others.for_each(|(key, _)| cache.invalidate(&*key));
        }
        *kept = Some(templates);
        drop(kept);
        self.settle();
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.with_record.entry_count() + self.without_record.entry_count()).unwrap_or(usize::MAX)
    }

    /// Drops what has to go now, not when moka gets to it: a simulation is the same each time, and memory is bounded at once.
    fn settle(&self) {
        self.with_record.run_pending_tasks();
        self.without_record.run_pending_tasks();
    }
}

/// The formats of templates, by their prefixes.
#[derive(Debug)]
struct Templates(ByPrefix<Vec<Arc<RecordFormat>>>);

impl Templates {
    /// Whether any of them names that lock: see [`TemplateSpec::names`].
    fn name(&self, lock: &LockSpec) -> bool {
        self.0.of(lock.key.as_str()).flatten().any(|format| *format == lock.format)
    }
}

impl<'t> FromIterator<&'t TemplateSpec> for Templates {
    fn from_iter<I: IntoIterator<Item = &'t TemplateSpec>>(templates: I) -> Templates {
        let mut by_prefix: ByPrefix<Vec<Arc<RecordFormat>>> = ByPrefix::default();
        for TemplateSpec { prefix, format } in templates {
            let formats = by_prefix.at(prefix);
            if !formats.contains(format) {
                formats.push(Arc::clone(format));
            }
        }
        Templates(by_prefix)
    }
}
