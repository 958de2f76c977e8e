//! The end of a run before its time.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// Whether a run is to end now.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_stopped: Mutex<bool>,
    for_threads: Condvar,
    for_tasks: Notify,
}

impl Stop {
    /// Ends the run.
    pub(crate) fn stop(&self) {
        *self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.for_threads.notify_all();
        self.for_tasks.notify_waiters();
    }

    /// Whether it is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks the thread until that moment or the end; says whether it is the end.
    pub(crate) fn wait_until(&self, moment: Instant) -> bool {
        let stopped = self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = moment.saturating_duration_since(Instant::now());
        let waited = self.for_threads.wait_timeout_while(stopped, wait, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Completes at the end.
    pub(crate) async fn stopped(&self) {
        let notified = self.for_tasks.notified();
        tokio::pin!(notified);
        // Registered before the look, so that an end in between is not missed.
        notified.as_mut().enable();
        if !self.is_stopped() {
            notified.await;
        }
    }
}
