//! Locks of templates that have no record, as far as we know: keys are easily made up, and each has to be looked for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::bucket::Bucket;
use super::tracked::TrackedLock;

/// How many requests may look for such locks: at once, and a second.
const REQUESTS: (u32, u32) = (500, 100);

/// How many are looked for in one request: as many as etcd takes. It costs etcd little more than one does.
pub(crate) const TOGETHER_MAX: usize = 128;

/// How many may wait: as many as are looked for in half a second. One more is refused.
const WAITING_MAX: usize = 6_400;

/// For how long each is looked for by a request of its own once one of several could not be read: the store would have to be asked which it was.
const APART_PERIOD: Duration = Duration::from_secs(60);

/// How often it is logged that some are refused.
const TOLD_EACH: Duration = Duration::from_secs(60);

/// What the handles of a source know of it.
#[derive(Debug)]
pub(crate) struct Unknown {
    requests: Bucket,
    /// How many wait.
    waiting: AtomicUsize,
    refused: Mutex<Refused>,
}

#[derive(Debug, Default)]
struct Refused {
    /// How many were since that was last logged.
    count: u64,
    told: Option<Instant>,
}

impl Unknown {
    pub(crate) fn new() -> Unknown {
        let requests = Bucket::new(REQUESTS.0, REQUESTS.1);
        Unknown { requests, waiting: AtomicUsize::new(0), refused: Mutex::default() }
    }

    /// Whether one more is refused.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= WAITING_MAX
    }

    /// Takes note of one that is refused. Said once in a while, so that nobody takes the store for slow.
    pub(crate) fn refuse(&self, source: &str) {
        let now = Instant::now();
        let mut refused = self.refused.lock().expect("nothing panics while it counts");
        refused.count += 1;
        if refused.told.is_some_and(|told| now.saturating_duration_since(told) < TOLD_EACH) {
            return;
        }
        refused.told = Some(now);
        let count = std::mem::take(&mut refused.count);
        drop(refused);
        tracing::warn!(
            source,
            refused = count,
            "locks that are not known are asked for faster than they are read: requests with such locks are refused (unverifiable), \
             true holders' among them if theirs is not known yet; that alone says nothing against the lock store"
        );
    }

    /// Waits until a request may be sent.
    pub(crate) async fn pay(&self) {
        while !self.requests.take(Instant::now()) {
            sleep(Duration::from_secs(1) / REQUESTS.1).await;
        }
    }

    /// A request was not sent, or has cost no more than those for locks in use.
    pub(crate) fn give_back(&self) {
        self.requests.give_back();
    }
}

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
        unknown.waiting.fetch_add(1, Ordering::Relaxed);
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
            unknown.waiting.fetch_sub(1, Ordering::Relaxed);
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
