//! The tenure that a request was admitted under, for as long as the request is at the worker.
//! It does not hold the request's place there.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::TrackedLock;
use fencepost_policy::Term;
use tokio::time::{Instant, timeout_at};

/// What is known of a tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenureState {
    /// It goes on, by news that are good until then.
    Good {
        /// When they will be too old, unless newer ones come.
        until: Instant,
    },
    /// It may have ended: the news are too old.
    Stale,
    /// It has ended, for good.
    Ended,
}

/// A tenure under which a request was admitted.
#[derive(Debug, Clone)]
pub struct Tenure {
    lock: Arc<TrackedLock>,
    term: Term,
    max_age: Duration,
}

impl Tenure {
    pub(crate) fn new(lock: Arc<TrackedLock>, term: Term, max_age: Duration) -> Tenure {
        Tenure { lock, term, max_age }
    }

    pub(crate) fn lock(&self) -> &Arc<TrackedLock> {
        &self.lock
    }

    /// Its state now.
    pub fn state(&self) -> TenureState {
        if self.has_ended() {
            return TenureState::Ended;
        }
        let now = Instant::now();
        match self.lock.good_for(self.max_age, now) {
            Some(left) => TenureState::Good { until: now + left },
            None => TenureState::Stale,
        }
    }

    /// Whether it has ended, as far as is known.
    pub fn has_ended(&self) -> bool {
        self.lock.has_ended(self.term)
    }

    /// Completes when the tenure may have ended. To miss nothing, take it before a look at the
    /// state, and await it after.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.lock.gate_changed()
    }

    /// Returns when to look at the state again at the latest: a read that changes nothing wakes
    /// nobody. Each look has news read that are too old.
    pub fn next_look(&self) -> Instant {
        Instant::now() + self.max_age / 10
    }

    /// Waits until it has ended, as far as is known.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ended(&self) {
        loop {
            let changed = self.changed();
            let look_at = match self.state() {
                TenureState::Ended => return,
                TenureState::Good { until } => until,
                TenureState::Stale => self.next_look(),
            };
            let _ = timeout_at(look_at, changed).await; // Whichever it was: look again.
        }
    }
}

/// Waits until one of these tenures has ended.
pub(crate) fn any_ended(tenures: &[Tenure]) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let [first, others @ ..] = tenures else { return pending().await };
        tokio::select! {
            () = first.ended() => {}
            () = any_ended(others) => {}
        }
    })
}
