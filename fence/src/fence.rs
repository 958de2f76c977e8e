//! What is known of the locks, and the gates: one per process.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_locks::{LockSource, MemoryStore, SourceOptions, TrackedLock};
use fencepost_policy::{LockKey, OrphanId};
use http::request::Parts;
use tokio::time::{Instant, sleep};

use crate::etcd::{FenceBuilder, InvalidFence};
use crate::lock::{LayerBuilder, Which};
use crate::readings::Readings;

/// How many requests wait at barriers in all, beside the 1,000 of each lock.
const WAITING_MAX: usize = 10_000;

/// How often [`Fence::ready`] looks.
const READY_PERIOD: Duration = Duration::from_millis(10);

/// What is known of the locks in one etcd, and their gates. Cheap to clone; clones are the same.
///
/// Make **one** for a process, and all layers from it: two of them would each know only half of what runs.
#[derive(Clone)]
pub struct Fence(pub(crate) Arc<Shared>);

/// What the layers of a fence share.
pub(crate) struct Shared {
    pub(crate) source: LockSource,
    pub(crate) readings: Readings,
    /// The smallest `max_age` of all layers.
    max_age: Mutex<Duration>,
    orphans: Mutex<Vec<Orphan>>,
    waiting: AtomicUsize,
    /// Tells this process from others, in the ids of refusals; and the number of the next.
    decisions: (u32, AtomicU64),
}

/// A request that may have left something running. It is held until its time has come, so that no cache forgets the gate
/// that counts it.
struct Orphan {
    lock: Arc<TrackedLock>,
    id: OrphanId,
    until: Instant,
}

impl Fence {
    /// A fence over the locks in the etcd at these endpoints: `http://host:port`, or `https://host:port`.
    pub fn etcd<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> FenceBuilder {
        FenceBuilder::at(endpoints)
    }

    /// A fence over locks in memory, for tests of a service that has no etcd at hand.
    ///
    /// # Errors
    /// [`InvalidFence::Thread`] if the system gives no thread.
    pub fn in_memory(store: &MemoryStore) -> Result<Fence, InvalidFence> {
        let store = store.clone();
        Ok(Fence::over(LockSource::spawn("memory", SourceOptions::default(), move || store)?))
    }

    pub(crate) fn over(source: LockSource) -> Fence {
        Fence(Arc::new(Shared {
            source,
            readings: Readings::default(),
            max_age: Mutex::new(Duration::MAX),
            orphans: Mutex::default(),
            waiting: AtomicUsize::new(0),
            decisions: (random(), AtomicU64::new(1)),
        }))
    }

    /// A layer whose requests need this lock.
    pub fn lock(&self, key: impl Into<String>) -> LayerBuilder {
        LayerBuilder::new(self.clone(), Which::One(key.into()))
    }

    /// A layer whose requests each need a lock of their own, below `prefix`. `lock` finds it in the head of a request; `None`
    /// refuses the request with `lock-not-allowed`, and so does a key that is not below `prefix`.
    ///
    /// All that is below `prefix` in etcd is watched, so keep other things out of it: locks below it that other layers of the fence name or
    /// find have to be read in the same way. Where records are queues ([`Layout::Election`], [`Layout::Mutex`]), no key that is found may be
    /// below another, which would take it for a contender: nobody finds that out beforehand. Where the lock is found in the path, take care
    /// that your router reads the path in the same way. A call of the fence names its lock as it is: a name that is percent-encoded is that
    /// of another lock here, unlike with [`Fence::lock`].
    ///
    /// [`Layout::Election`]: crate::Layout::Election
    /// [`Layout::Mutex`]: crate::Layout::Mutex
    ///
    /// ```no_run
    /// # use fencepost_fence::{Fence, LockKey};
    /// # fn example(fence: Fence) -> Result<(), Box<dyn std::error::Error>> {
    /// // `/shards/2/jobs` needs the lock `/shards/2/lock`.
    /// let shards = fence.locks_below("/shards/", |request| {
    ///     let shard = request.uri.path().strip_prefix("/shards/")?.split('/').next()?;
    ///     let is_number = !shard.is_empty() && shard.bytes().all(|digit| digit.is_ascii_digit());
    ///     is_number.then(|| LockKey::new(&format!("/shards/{shard}/lock")).ok())?
    /// });
    /// let layer = shards.layer()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn locks_below<F>(&self, prefix: impl Into<String>, lock: F) -> LayerBuilder
    where
        F: Fn(&Parts) -> Option<LockKey> + Send + Sync + 'static,
    {
        LayerBuilder::new(self.clone(), Which::Below { prefix: prefix.into(), lock: Arc::new(lock) })
    }

    /// Whether the locks of all layers are watched, each lock that a layer names was read after that, and the thread of the cache
    /// lives: for readiness probes. A store or watch that is lost later does not make it false.
    pub fn is_ready(&self) -> bool {
        self.0.source.ready() && !self.0.source.has_ended()
    }

    /// Completes once [`Fence::is_ready`] is true. Requests that come before are not refused for it: they wait for the store,
    /// for `confirm_timeout` at most.
    pub async fn ready(&self) {
        while !self.is_ready() {
            sleep(READY_PERIOD).await;
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("source", &self.0.source).finish_non_exhaustive()
    }
}

impl Shared {
    /// Has everything read often enough for a layer with that `max_age`.
    pub(crate) fn keep_fresh(&self, max_age: Duration) {
        let mut smallest = self.max_age.lock().unwrap_or_else(PoisonError::into_inner);
        if max_age < *smallest {
            *smallest = max_age;
            self.source.set_period(max_age / 5);
        }
    }

    /// The id of the next refusal.
    pub(crate) fn next_decision(&self) -> String {
        let (process, next) = &self.decisions;
        format!("{process:08x}-0-{:x}", next.fetch_add(1, Ordering::Relaxed))
    }

    /// Holds a request that may have left something running, until its time has come.
    pub(crate) fn keep_orphan(&self, lock: Arc<TrackedLock>, id: OrphanId, until: Instant) {
        let now = Instant::now();
        let over: Vec<Orphan> = {
            let mut orphans = self.orphans();
            orphans.push(Orphan { lock, id, until });
            orphans.extract_if(.., |orphan| orphan.until <= now).collect()
        };
        // Nobody waits for these any more: the gate goes by their time.
        for Orphan { lock, id, .. } in over {
            lock.end_orphan(id);
        }
    }

    fn orphans(&self) -> MutexGuard<'_, Vec<Orphan>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner) // Requests end in panics too.
    }
}

fn random() -> u32 {
    (RandomState::new().hash_one(std::process::id()) >> 32) as u32
}

/// One of those that wait at barriers, for as long as this lives.
pub(crate) struct Waiting(Arc<Shared>);

impl Waiting {
    /// One more, unless there are too many already.
    pub(crate) fn join(shared: &Arc<Shared>) -> Option<Waiting> {
        let joined = Waiting(Arc::clone(shared));
        (shared.waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX).then_some(joined)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_with;

    use super::*;

    #[test]
    fn ten_thousand_wait_at_barriers_and_one_more_only_when_another_has_left() {
        let Fence(shared) = Fence::in_memory(&MemoryStore::new()).unwrap();
        let join = || Waiting::join(&shared);
        let mut waiting: Vec<Waiting> = repeat_with(join).map_while(|joined| joined).take(10_001).collect();
        assert_eq!(waiting.len(), 10_000);
        assert!(join().is_none());
        waiting.pop();
        assert!(join().is_some());
        drop(waiting);
        assert_eq!(shared.waiting.load(Ordering::Relaxed), 0);
    }
}
