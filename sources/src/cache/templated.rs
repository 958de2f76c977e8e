//! Locks whose keys come with the requests.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use fencepost_policy::{InvalidLockKey, LockKey};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::time::Instant;

use super::record::{LockSpec, RecordFormat};
use super::registry::FormatConflict;
use super::scope::Scope;
use super::slots::Unconfirmed;
use super::source::Shared;
use super::tracked::TrackedLock;

/// How many locks are kept that have no record.
const WITHOUT_RECORD_MAX: u64 = 10_000;

/// Which locks a template names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateSpec {
    /// What all its keys begin with. The shorter, the more of the store is watched; empty is all of it.
    pub prefix: String,
    /// How their records are read.
    pub format: RecordFormat,
}

/// Why a lock could not be loaded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// The key is none.
    #[error(transparent)]
    Invalid(#[from] InvalidLockKey),
    /// The key does not begin as the template does.
    #[error("the lock key is not one of the template's")]
    Outside,
    /// The lock is tracked already, and read in another way.
    #[error(transparent)]
    Conflict(#[from] FormatConflict),
    /// There were too many reads of locks that have no record: try again later.
    #[error("too many locks without a record were asked for")]
    Overloaded,
    /// It could not be read.
    #[error("the lock could not be loaded")]
    Unread(#[source] Unconfirmed),
}

/// How many locks may wait to be read for the first time, beside static ones and those that fell out of a cache while held.
const UNREAD_MAX: usize = 20_000;

/// The templated locks that are kept though nobody holds them, so that they need not be loaded each time. They are apart by
/// whether the store has a record: a flood of made-up keys pushes out made-up keys only.
///
/// What falls out while somebody holds it is found again in the [`Registry`](super::registry::Registry), which also says why
/// forgetting the others can't admit an ended tenure.
#[derive(Debug)]
pub(crate) struct Caches {
    with_record: Cache<LockKey, Kept>,
    without_record: Cache<LockKey, Kept>,
}

/// A lock for as long as it is kept. A cache drops what has fallen out of it when it sees fit, but a lock that nobody holds shall be
/// gone at once.
type Kept = Arc<ArcSwapOption<TrackedLock>>;

impl Caches {
    pub(crate) fn new(with_record_max: u64) -> Caches {
        // Least recently used, since the default keeps out a newcomer that is asked for less often than what is there: each of its
        // requests would load it again.
        let cache = |max| {
            let lru = Cache::builder().max_capacity(max).eviction_policy(EvictionPolicy::lru());
            lru.eviction_listener(|_, kept: Kept, _| kept.store(None)).build()
        };
        Caches { with_record: cache(with_record_max), without_record: cache(WITHOUT_RECORD_MAX) }
    }

    fn get(&self, key: &str) -> Option<Arc<TrackedLock>> {
        if let Some(lock) = self.with_record.get(key).and_then(|kept| kept.load_full()) {
            return Some(lock);
        }
        let lock = self.without_record.get(key)?.load_full()?;
        if lock.exists() {
            self.keep(&lock);
        }
        Some(lock)
    }

    /// Lets go of all others.
    pub(crate) fn keep_only(&self, is_kept: impl Fn(&TrackedLock) -> bool) {
        for cache in [&self.with_record, &self.without_record] {
            let left_out = cache
                .iter()
                .filter(|(_, kept)| kept.load_full().is_some_and(|lock| !is_kept(&lock)))
                .map(|(key, _)| key);
            left_out.for_each(|key| cache.invalidate(&*key));
            cache.run_pending_tasks(); // Until then it holds on to them.
        }
    }

    fn keep(&self, lock: &Arc<TrackedLock>) {
        let kept = Arc::new(ArcSwapOption::from(Some(Arc::clone(lock))));
        if lock.exists() {
            self.with_record.insert(lock.key().clone(), kept);
            self.without_record.invalidate(lock.key().as_str());
        } else {
            self.without_record.insert(lock.key().clone(), kept);
        }
        // Now, and not when a cache sees fit: its bound and its count are exact.
        self.with_record.run_pending_tasks();
        self.without_record.run_pending_tasks();
    }
}

/// The locks of one template.
#[derive(Clone)]
pub struct TemplatedLocks {
    shared: Arc<Shared>,
    scope: Arc<Scope>,
    spec: TemplateSpec,
}

impl TemplatedLocks {
    pub(crate) fn new(shared: Arc<Shared>, scope: Arc<Scope>, spec: TemplateSpec) -> TemplatedLocks {
        TemplatedLocks { shared, scope, spec }
    }

    /// The lock of that key, if it has been loaded and is still kept or held by somebody.
    pub fn get(&self, key: &str) -> Option<Arc<TrackedLock>> {
        if let Some(lock) = self.shared.caches.get(key) {
            // Nothing is known of it if the store went back since: then it has to be read like one that is new.
            return (lock.is_known() && self.is_ours(&lock)).then_some(lock);
        }
        let lock = self.shared.common.registry.find(key)?;
        if !lock.is_known() || !self.is_ours(&lock) {
            return None;
        }
        self.shared.caches.keep(&lock);
        Some(lock)
    }

    /// The lock of that key, read or not, for as long as this is held: what goes to the worker unjudged is counted at its gate.
    /// `None` if the key is none of the template's, or too many locks wait to be read.
    pub fn hold(&self, key: &str) -> Option<Arc<TrackedLock>> {
        let common = &self.shared.common;
        if !key.starts_with(&self.spec.prefix) || self.unread() > UNREAD_MAX {
            return None;
        }
        let spec = LockSpec { key: LockKey::new(key).ok()?, format: self.spec.format.clone() };
        let make = |spec| TrackedLock::new(spec, Some(Arc::clone(&self.scope)), Arc::clone(common));
        common.registry.find_or_make(spec, make).ok()
    }

    /// The lock of that key, read first if need be: once, however many wait for it.
    ///
    /// # Errors
    /// [`LoadError`], by the deadline at the latest.
    pub async fn load(&self, key: &str, deadline: Instant) -> Result<Arc<TrackedLock>, LoadError> {
        if let Some(lock) = self.get(key) {
            return Ok(lock);
        }
        if !key.starts_with(&self.spec.prefix) {
            return Err(LoadError::Outside);
        }
        let spec = LockSpec { key: LockKey::new(key)?, format: self.spec.format.clone() };
        let common = &self.shared.common;
        let full = !common.without_record.has(Instant::now()) || self.unread() > UNREAD_MAX;
        if full && common.registry.find(key).is_none() {
            return Err(LoadError::Overloaded);
        }
        let make = |spec| TrackedLock::new(spec, Some(Arc::clone(&self.scope)), Arc::clone(common));
        let lock = common.registry.find_or_make(spec, make)?;
        match lock.loaded(deadline).await {
            Ok(()) => {}
            Err(Unconfirmed::Overloaded) => return Err(LoadError::Overloaded),
            Err(
                unread
                @ (Unconfirmed::Deadline | Unconfirmed::Store(_) | Unconfirmed::Regressed | Unconfirmed::Stopped),
            ) => return Err(LoadError::Unread(unread)),
        }
        self.shared.caches.keep(&lock);
        Ok(lock)
    }

    /// About how many locks wait to be read for the first time. While the store does not answer nothing takes them away, whoever
    /// asked for them has left long ago.
    fn unread(&self) -> usize {
        let shared = &self.shared;
        let kept = shared.caches.with_record.entry_count() + shared.caches.without_record.entry_count();
        shared.common.registry.len().saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX))
    }

    /// Whether the lock is one of this template's, and kept fresh for it.
    pub(crate) fn names(&self, lock: &TrackedLock) -> bool {
        self.is_ours(lock) && lock.key().as_str().starts_with(&self.spec.prefix)
    }

    /// The same key may be asked for under another template; its record is read in one way only.
    fn is_ours(&self, lock: &TrackedLock) -> bool {
        lock.spec().format == self.spec.format
    }
}

impl fmt::Debug for TemplatedLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TemplatedLocks").field(&self.spec).finish()
    }
}
