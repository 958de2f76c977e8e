//! Linearizable requests, many at once, and what they make the store answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost_locks::{KeyRange, MemoryStore, RangeRead, StoreError, Wanted};
use fencepost_policy::Layout;
use futures_util::future::join_all;

use crate::world::{Faults, ask_linearizable, load, pass, play_faulty, template};

/// How long a read takes.
const ANSWER: Duration = Duration::from_millis(2);

/// Takes a while to answer, and counts the reads that are under way.
#[derive(Clone)]
struct Slow {
    store: MemoryStore,
    reads: Arc<Mutex<HashMap<KeyRange, Reads>>>,
}

/// Of one lock.
#[derive(Debug, Default)]
struct Reads {
    under_way: u32,
    most_at_a_time: u32,
    all: u32,
}

/// The ranges that are read whole.
fn whole(ranges: &[RangeRead]) -> impl Iterator<Item = &KeyRange> {
    ranges.iter().filter(|read| read.wanted == Wanted::All).map(|read| &read.range)
}

impl Faults for Slow {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn before_read(&self, ranges: &[RangeRead]) -> Result<(), StoreError> {
        let mut reads = self.reads.lock().unwrap();
        for range in whole(ranges) {
            let of_lock = reads.entry(range.clone()).or_default();
            of_lock.all += 1;
            of_lock.under_way += 1;
            of_lock.most_at_a_time = of_lock.most_at_a_time.max(of_lock.under_way);
        }
        Ok(())
    }

    async fn after_read(&self, ranges: &[RangeRead]) -> Result<(), StoreError> {
        pass(ANSWER).await;
        let mut reads = self.reads.lock().unwrap();
        whole(ranges).for_each(|range| reads.get_mut(range).unwrap().under_way -= 1);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn linearizable_requests_share_one_read_at_a_time() {
    const CONNECTIONS: u32 = 64;
    const REQUESTS: u32 = 50;
    const PAUSE: Duration = Duration::from_micros(37);
    let (store, reads) = (MemoryStore::new(), Arc::<Mutex<HashMap<KeyRange, Reads>>>::default());
    let slow = Slow { store: store.clone(), reads: Arc::clone(&reads) };
    play_faulty(slow, async |_, source| {
        let locks = template(source, "t/", Layout::Key);
        let mut clients = Vec::new();
        for key in ["t/1", "t/2"] {
            let (at, lock) = (store.put(key, "a"), load(&locks, key).await);
            clients.extend((0..CONNECTIONS).map(|nth| (at, Arc::clone(&lock), nth)));
        }
        reads.lock().unwrap().clear();
        join_all(clients.iter().map(async |(at, lock, nth)| {
            for _ in 0..REQUESTS {
                pass(PAUSE * *nth).await; // So that they come at any point of a read.
                assert_eq!(ask_linearizable(lock, "a", *at).await, "admit");
            }
        }))
        .await;
        let reads = reads.lock().unwrap();
        assert_eq!(reads.len(), 2);
        for (lock, reads) in &*reads {
            assert_eq!(reads.most_at_a_time, 1, "{lock}");
            assert!(reads.all * 10 <= CONNECTIONS * REQUESTS, "{lock}: {} reads", reads.all);
        }
    })
    .await;
}
