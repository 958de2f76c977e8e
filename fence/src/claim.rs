//! What a request claims: a lock, and a token that says who holds it. The proxy and the layer use
//! it. It does not decide what follows from a verdict.

use std::borrow::Borrow;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{LoadError, TemplatedLocks, Timing, TrackedLock, Unconfirmed};
use fencepost_policy::{FenceToken, LockKey, Rejection, Verdict};
use http::HeaderValue;
use tokio::time::Instant;

/// Which lock guards requests.
#[derive(Debug, Clone)]
pub enum Guard {
    /// One lock guards every request.
    Static(Arc<TrackedLock>),
    /// The one that the request names.
    Templated(TemplatedLocks),
}

/// The lock that guards a request.
#[derive(Debug)]
pub enum NamedLock {
    /// The cache knows it.
    Tracked(Arc<TrackedLock>),
    /// The cache has to read it first.
    Unread(LockKey),
}

/// A token, and the lock that its sender claims to hold.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The token.
    pub token: FenceToken<HeaderValue>,
    /// The lock.
    pub lock: Arc<TrackedLock>,
}

/// The result of a confirming read of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmed {
    /// The sender holds the lock.
    Admitted,
    /// The claim is refused.
    Refused(Rejection),
    /// The store did not answer by the deadline.
    Unanswered,
}

impl Guard {
    /// The lock of a request; `key` renders its name where requests name their locks.
    ///
    /// # Errors
    /// Those of `key`; `lock-not-allowed` for a name that no lock can have.
    pub fn lock<K: Borrow<str>>(
        &self,
        key: impl FnOnce() -> Result<K, Rejection>,
    ) -> Result<NamedLock, Rejection> {
        let locks = match self {
            Guard::Static(lock) => return Ok(NamedLock::Tracked(Arc::clone(lock))),
            Guard::Templated(locks) => locks,
        };
        let key = key()?;
        match locks.get(key.borrow()) {
            Some(lock) => Ok(NamedLock::Tracked(lock)),
            None => LockKey::new(key.borrow())
                .map(NamedLock::Unread)
                .map_err(|_| Rejection::LockNotAllowed),
        }
    }

    /// The lock, if it is the same for every request.
    pub fn static_lock(&self) -> Option<&Arc<TrackedLock>> {
        match self {
            Guard::Static(lock) => Some(lock),
            Guard::Templated(_) => None,
        }
    }

    /// Reads a lock that the cache does not know yet.
    ///
    /// # Errors
    /// `unverifiable` if the store does not answer by the deadline; `lock-not-allowed` for a key
    /// that is not one of the template's.
    pub async fn load(
        &self,
        key: &LockKey,
        deadline: Instant,
    ) -> Result<Arc<TrackedLock>, Rejection> {
        let locks = match self {
            Guard::Static(lock) => return Ok(Arc::clone(lock)),
            Guard::Templated(locks) => locks,
        };
        locks.load(key.as_str(), deadline).await.map_err(|error| {
            tracing::debug!(%key, error = &error as &dyn Error, "the lock could not be looked up");
            match error {
                LoadError::Unread(Unconfirmed::Regressed) => Rejection::StoreRegressed,
                LoadError::Invalid(_) | LoadError::Outside => Rejection::LockNotAllowed,
                LoadError::Conflict(_) | LoadError::Overloaded | LoadError::Unread(_) => {
                    Rejection::Unverifiable
                }
            }
        })
    }
}

impl NamedLock {
    /// Its key.
    pub fn key(&self) -> &LockKey {
        match self {
            NamedLock::Tracked(lock) => lock.key(),
            NamedLock::Unread(key) => key,
        }
    }
}

impl Claim {
    /// Judges by what the cache knows, without waiting.
    pub fn judge(&self, timing: &Timing) -> Verdict {
        self.lock.view().judge(&self.token, timing)
    }

    /// Asks the store until the claim is decided. `timing` is read at each look.
    pub async fn confirm(&self, deadline: Instant, timing: impl Fn() -> Timing) -> Confirmed {
        let mut asked_at = timing().arrived;
        loop {
            let is_decided = || self.judge(&timing()) != Verdict::Confirm;
            let answered = self.lock.confirm_unless(asked_at, deadline, is_decided).await;
            match self.judge(&timing()) {
                Verdict::Admit => return Confirmed::Admitted,
                Verdict::Reject(reason) => return Confirmed::Refused(reason),
                Verdict::Confirm if answered.is_err() || Instant::now() >= deadline => {
                    return Confirmed::Unanswered;
                }
                Verdict::Confirm => asked_at = Instant::now(), // The request has waited for so long that the answer has aged.
            }
        }
    }

    /// How many seconds a request should wait after `handoff-timeout`: as long as an orphan may
    /// count, or a member of the group that is gone; one at least.
    pub fn retry_after(&self) -> u64 {
        let until = self.lock.unseen_until();
        let left =
            until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        let left = left.max(self.lock.waits_for_gone_members().unwrap_or_default());
        (left.as_secs() + u64::from(left.subsec_nanos() > 0)).max(1)
    }
}
