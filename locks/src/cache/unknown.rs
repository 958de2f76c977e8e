//! Locks of templates that have no record, as far as we know: keys are easily made up, and each has to be looked for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::bucket::Bucket;

/// How many requests may look for such locks: at once, and a second.
const REQUESTS: (u32, u32) = (500, 100);

/// How many are looked for in one request: as many as etcd takes. It costs etcd little more than one does.
pub(crate) const TOGETHER_MAX: usize = 128;

/// How many may wait: as many as are looked for in half a second. One more is refused.
const WAITING_MAX: usize = 6_400;

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

    /// One more waits.
    pub(crate) fn comes(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// One waits no more.
    pub(crate) fn goes(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
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
