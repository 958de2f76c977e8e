//! What the layers of a fence share.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencepost_locks::LockSource;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::enter::WAITING_MAX;
use crate::permit::Orphan;
use crate::readings::Readings;

/// What the layers of a fence share.
pub(crate) struct Shared {
    pub(crate) source: LockSource,
    pub(crate) readings: Readings,
    /// The smallest `max_age` of all layers.
    max_age: Mutex<Duration>,
    /// Requests that may have left something running, until their time has come.
    orphans: Mutex<Vec<(Instant, Orphan)>>,
    pub(crate) waiting_room: Arc<Semaphore>,
    /// Tells this process from others, in the ids of refusals; and the number of the next.
    decisions: (u32, AtomicU64),
}

impl Shared {
    pub(crate) fn new(source: LockSource) -> Shared {
        Shared {
            source,
            readings: Readings::default(),
            max_age: Mutex::new(Duration::MAX),
            orphans: Mutex::default(),
            waiting_room: Arc::new(Semaphore::new(WAITING_MAX)),
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

    /// Keeps an orphan until its time has come, so that no cache forgets the gate that counts it.
    pub(crate) fn keep_orphan(&self, orphan: Orphan, until: Instant) {
        let now = Instant::now();
        let over: Vec<_> = {
            let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner); // Requests end in panics too.
            orphans.push((until, orphan));
            orphans.extract_if(.., |(until, _)| *until <= now).collect()
        };
        // The gate goes by their time, so nobody waits for these any more.
        over.iter().for_each(|(_, orphan)| _ = orphan.end());
    }
}

fn random() -> u32 {
    (RandomState::new().hash_one(std::process::id()) >> 32) as u32
}
