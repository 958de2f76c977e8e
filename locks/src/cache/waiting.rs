//! The queue of the locks that have no record, as far as we know, and wait to be looked for. [`Unknown`] bounds it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::tracked::TrackedLock;
use super::unknown::Unknown;

/// For how long each is looked for by a request of its own once one of several could not be read: the store would have to be asked which it was.
const APART_PERIOD: Duration = Duration::from_secs(60);

/// Those that wait to be looked for. The driver's own: it goes with it.
#[derive(Default)]
pub(crate) struct Waiting {
    locks: RefCell<VecDeque<Arc<TrackedLock>>>,
    came: Notify,
    apart_until: Cell<Option<Instant>>,
}

impl Waiting {
    pub(crate) fn push(&self, lock: Arc<TrackedLock>, unknown: &Unknown) {
        self.locks.borrow_mut().push_back(lock);
        unknown.comes();
        self.came.notify_one();
    }

    /// Waits until there is one.
    pub(crate) async fn any(&self) {
        while self.locks.borrow().is_empty() {
            self.came.notified().await;
        }
    }

    /// The next, `most` of them at the most, whose reads begin with this.
    pub(crate) fn begin(&self, most: usize, unknown: &Unknown) -> Vec<Arc<TrackedLock>> {
        let most = if self.are_apart() { 1 } else { most };
        let (mut locks, mut begun) = (self.locks.borrow_mut(), Vec::new());
        while begun.len() < most
            && let Some(lock) = locks.pop_front()
        {
            unknown.goes();
            if lock.slots().begin() {
                begun.push(lock);
            }
        }
        begun
    }

    /// One of several may not be read.
    pub(crate) fn keep_apart(&self) {
        self.apart_until.set(Some(Instant::now() + APART_PERIOD));
    }

    fn are_apart(&self) -> bool {
        self.apart_until.get().is_some_and(|until| Instant::now() < until)
    }
}
