//! Locks whose keys come with the requests.

use std::fmt;
use std::sync::Arc;

use fencepost_policy::{InvalidLockKey, LockKey};
use tokio::time::Instant;

use super::record::{LockSpec, TemplateSpec};
use super::registry::FormatConflict;
use super::scope::Scope;
use super::shared::Shared;
use super::slots::Unconfirmed;
use super::tracked::TrackedLock;

/// Why a lock could not be loaded.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// The key is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidLockKey),
    /// The key does not begin as the template does.
    #[error("the lock key is not one of the template's")]
    Outside,
    /// The lock is tracked already, and read in another way.
    #[error(transparent)]
    Conflict(#[from] FormatConflict),
    /// Too many locks wait to be looked for that have no record, as far as we know: try again
    /// later.
    #[error("too many locks without a record were asked for")]
    Overloaded,
    /// It could not be read.
    #[error("the lock could not be loaded")]
    Unread(#[source] Unconfirmed),
}

/// How many locks may wait to be read for the first time, beside static ones and those that are
/// kept no more, yet held.
const UNREAD_MAX: usize = 20_000;

/// After how many periods a request has its lock read again, without waiting for that. News that is
/// five periods old admits nobody.
const REFRESH_AFTER: u32 = 2;

/// The locks of one template.
#[derive(Clone)]
pub struct TemplatedLocks {
    shared: Arc<Shared>,
    scope: Arc<Scope>,
    spec: TemplateSpec,
}

impl TemplatedLocks {
    pub(crate) fn new(
        shared: Arc<Shared>,
        scope: Arc<Scope>,
        spec: TemplateSpec,
    ) -> TemplatedLocks {
        TemplatedLocks { shared, scope, spec }
    }

    /// The lock of that key, if it is one of the template's, has been loaded and is still kept or
    /// held by somebody.
    pub fn get(&self, key: &str) -> Option<Arc<TrackedLock>> {
        let lock = self.shared.common.registry.find(key)?;
        // Nothing is known of it if the store went back since: then it has to be read like one that
        // is new.
        if !lock.is_known() || !self.names(&lock) {
            return None;
        }
        self.shared.kept.keep(&lock, &self.scope);
        if lock.is_templated() {
            // Its next requests need not wait for a read then.
            lock.want_news(self.shared.common.period() * REFRESH_AFTER);
        }
        Some(lock)
    }

    /// The lock of that key, read or not, for as long as the result is held. A request that goes to
    /// the worker unjudged may later have to be judged by this lock. Returns `None` if the key does
    /// not belong to the template, or if too many locks wait to be read.
    pub fn hold(&self, key: &str) -> Option<Arc<TrackedLock>> {
        if !key.starts_with(&self.spec.prefix) || self.unread() > UNREAD_MAX {
            return None;
        }
        self.find_or_make(LockKey::new(key).ok()?).ok()
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
        let name = LockKey::new(key)?;
        let common = &self.shared.common;
        let full = common.is_overloaded() || self.unread() > UNREAD_MAX;
        if full && common.registry.find(key).is_none() {
            common.note_refusal();
            return Err(LoadError::Overloaded);
        }
        let lock = self.find_or_make(name)?;
        match lock.loaded(deadline).await {
            Ok(()) => {}
            Err(Unconfirmed::Overloaded) => return Err(LoadError::Overloaded),
            Err(unread) => return Err(LoadError::Unread(unread)),
        }
        self.shared.kept.keep(&lock, &self.scope);
        Ok(lock)
    }

    fn find_or_make(&self, key: LockKey) -> Result<Arc<TrackedLock>, FormatConflict> {
        let common = &self.shared.common;
        let make = |spec| TrackedLock::new(spec, Some(Arc::clone(&self.scope)), Arc::clone(common));
        common.registry.find_or_make(LockSpec { key, format: self.spec.format.clone() }, make)
    }

    /// About how many locks wait to be read for the first time. While the store does not answer,
    /// they stay, even if the requests for them have left long ago.
    fn unread(&self) -> usize {
        let shared = &self.shared;
        shared
            .common
            .registry
            .len()
            .saturating_sub(shared.kept.len())
            .saturating_sub(shared.read_whole())
    }

    /// Whether the lock is one of this template's, and read as that says.
    fn names(&self, lock: &TrackedLock) -> bool {
        self.spec.names(lock.spec())
    }

    pub(crate) fn scope(&self) -> &Arc<Scope> {
        &self.scope
    }
}

impl fmt::Debug for TemplatedLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TemplatedLocks").field(&self.spec).finish()
    }
}
