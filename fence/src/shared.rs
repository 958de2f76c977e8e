//! What the layers of a fence share.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_locks::{LockSource, TrackedLock};
use fencepost_policy::OrphanId;
use tokio::time::Instant;

use crate::readings::Readings;

/// How many requests wait at barriers in all, beside the 1,000 of each lock.
const WAITING_MAX: usize = 10_000;

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

impl Shared {
    pub(crate) fn new(source: LockSource) -> Shared {
        Shared {
            source,
            readings: Readings::default(),
            max_age: Mutex::new(Duration::MAX),
            orphans: Mutex::default(),
            waiting: AtomicUsize::new(0),
            decisions: (random(), AtomicU64::new(1)),
        }
    }

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
    /// Counts one more request that waits. `None` if too many wait already.
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

    use fencepost_locks::{MemoryStore, SourceOptions};

    use super::*;

    #[test]
    fn ten_thousand_wait_at_barriers_and_one_more_only_when_another_has_left() {
        let source = LockSource::spawn("memory", SourceOptions::default(), MemoryStore::new).unwrap();
        let shared = Arc::new(Shared::new(source));
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
