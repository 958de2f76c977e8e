//! What a request claims: which lock, under which token.

use std::sync::Arc;

use fencepost_locks::{LoadError, TrackedLock};
use fencepost_policy::{FenceToken, LockKey, Rejection, Verdict};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use crate::confirm::{confirm, unloaded};
use crate::handoff::retry_after;
use crate::rules::{Guard, Rules};

/// A token, and the lock that it claims to hold.
pub(crate) struct Claim {
    pub(crate) token: FenceToken<HeaderValue>,
    pub(crate) lock: Arc<TrackedLock>,
    pub(crate) arrived: Instant,
}

/// A request is refused, or a call of the fence is.
pub(crate) struct Denial {
    pub(crate) reason: Rejection,
    /// Whatever of it is known.
    pub(crate) lock: Option<LockKey>,
    pub(crate) token: Option<FenceToken<HeaderValue>>,
    /// When to try again, where that helps, in seconds.
    pub(crate) retry_after: u64,
    /// Why the lock could not be read, if that is why. For the log alone.
    pub(crate) error: Option<LoadError>,
}

impl Denial {
    fn of_head(reason: Rejection, lock: Option<&LockKey>) -> Denial {
        Denial { reason, lock: lock.cloned(), token: None, retry_after: 1, error: None }
    }
}

impl Claim {
    /// What a request claims. A lock that is not known yet is read.
    pub(crate) async fn of(parts: &Parts, guard: &Guard, rules: &Rules, arrived: Instant) -> Result<Claim, Denial> {
        let key = match guard {
            Guard::One(_) => None,
            Guard::Below { lock, .. } => {
                let key = lock(parts).ok_or_else(|| Denial::of_head(Rejection::LockNotAllowed, None))?;
                Some(key)
            }
        };
        Claim::to(key, &parts.headers, guard, rules, arrived).await
    }

    /// What a call of the fence claims: it names the lock, unless there is only one.
    pub(crate) async fn of_call(
        headers: &HeaderMap,
        guard: &Guard,
        rules: &Rules,
        arrived: Instant,
    ) -> Result<Claim, Denial> {
        let deny = |reason| Denial::of_head(reason, None);
        let is_named = headers.contains_key(&rules.headers.lock);
        let named = if is_named { Some(rules.headers.lock(headers).map_err(deny)?) } else { None };
        let key = match (guard, named) {
            (Guard::One(_), None) => None,
            (Guard::One(lock), Some(named)) if lock.key().is_presented_as(named) => None,
            // As it is: what is encoded may be a key of its own here, since nobody knows beforehand which keys there are.
            (Guard::Below { .. }, Some(named)) => {
                Some(LockKey::new(named).map_err(|_| deny(Rejection::LockNotAllowed))?)
            }
            (Guard::One(_), Some(_)) | (Guard::Below { .. }, None) => return Err(deny(Rejection::LockNotAllowed)),
        };
        Claim::to(key, headers, guard, rules, arrived).await
    }

    async fn to(
        key: Option<LockKey>,
        headers: &HeaderMap,
        guard: &Guard,
        rules: &Rules,
        arrived: Instant,
    ) -> Result<Claim, Denial> {
        let known = match guard {
            Guard::One(lock) => Some(lock.key()),
            Guard::Below { .. } => key.as_ref(),
        };
        // The token is looked at first: a request without one costs no read of the store.
        let token = rules.headers.token(headers).map_err(|reason| Denial::of_head(reason, known))?;
        let lock = match (guard, &key) {
            (Guard::One(lock), _) => Arc::clone(lock),
            (Guard::Below { locks, .. }, Some(key)) => match locks.get(key.as_str()) {
                Some(lock) => lock,
                None => locks.load(key.as_str(), arrived + rules.confirm_timeout).await.map_err(|error| {
                    let denial = Denial::of_head(unloaded(&error), known);
                    Denial { token: Some(token.clone()), error: Some(error), ..denial }
                })?,
            },
            (Guard::Below { .. }, None) => return Err(Denial::of_head(Rejection::LockNotAllowed, None)),
        };
        Ok(Claim { token, lock, arrived })
    }

    /// Judges by what is known, without waiting for anybody.
    pub(crate) fn judge(&self, rules: &Rules) -> Verdict {
        self.lock.view().judge(&self.token, &rules.timing(self.arrived))
    }

    /// Asks the store until it is clear whether the claim stands.
    ///
    /// # Errors
    /// The reason why it does not; `unverifiable` if the store does not answer in time.
    pub(crate) async fn confirm(&self, rules: &Rules) -> Result<(), Rejection> {
        let deadline = Instant::now() + rules.confirm_timeout;
        confirm(&self.lock, &self.token, deadline, || rules.timing(self.arrived)).await.verdict()
    }

    /// What becomes of this claim when it is refused for that reason.
    pub(crate) fn denied(&self, reason: Rejection) -> Denial {
        let retry_after = if reason == Rejection::HandoffTimeout { retry_after(&self.lock) } else { 1 };
        let (lock, token) = (Some(self.lock.key().clone()), Some(self.token.clone()));
        Denial { reason, lock, token, retry_after, error: None }
    }
}
