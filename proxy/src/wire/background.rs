//! Work that goes on after the request that caused it, on the same thread.

use std::future::Future;

use tokio_util::task::TaskTracker;
pub(crate) use tokio_util::task::task_tracker::TaskTrackerToken as BackgroundGuard;

/// Counts what a thread still does for requests whose client has left, so that the thread does not
/// end before it.
#[derive(Clone, Default)]
pub struct Background {
    running: TaskTracker,
    /// What does not count as running, and is waited for all the same.
    held: TaskTracker,
}

impl Background {
    /// Runs `work` to its end, on this thread.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        self.running.spawn_local(work);
    }

    /// Keeps the thread from ending as long as this lives.
    pub(crate) fn guard(&self) -> BackgroundGuard {
        self.running.token()
    }

    /// Keeps the thread from ending as long as this lives, uncounted.
    pub(crate) fn hold(&self) -> BackgroundGuard {
        self.held.token()
    }

    /// How many futures have not ended yet.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Waits until nothing runs any more.
    pub async fn idle(&self) {
        self.running.close();
        self.held.close();
        while !self.running.is_empty() || !self.held.is_empty() {
            self.running.wait().await;
            self.held.wait().await;
        }
    }
}
