//! One message of the watch tells of several revisions, the first of which can't be built upon.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use fencepost_locks::{MemoryStore, MemoryWatch, RangeRead, StoreError, Watch, WatchNews};
use fencepost_policy::Layout;
use futures_util::FutureExt;
use tokio::sync::Semaphore;

use crate::world::{Faults, SECOND, enter_now, glance, pass, play_faulty, track};

/// Its watch tells all at once that there is, as etcd does of what a watch has to catch up with.
/// Once it is armed, the first read after the next watch is answered late, and no other is.
#[derive(Clone)]
struct Batching {
    store: MemoryStore,
    step: Arc<AtomicU8>,
    arrives: Arc<Semaphore>,
    /// What came behind the events that a watch put together.
    behind: Arc<Mutex<Option<WatchNews>>>,
}

const ARMED: u8 = 1;
const WATCHED: u8 = 2;
const SENT: u8 = 3;

impl Faults for Batching {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn after_read(&self, _: &[RangeRead]) -> Result<(), StoreError> {
        match self.step.load(Ordering::Relaxed) {
            WATCHED => {
                self.step.store(SENT, Ordering::Relaxed);
                self.arrives.acquire().await.unwrap().forget();
                Ok(())
            }
            SENT => Err(StoreError::Unavailable("it is slow".into())),
            _ => Ok(()),
        }
    }

    fn after_watch(&self) {
        self.behind.lock().unwrap().take();
        let _ = self.step.compare_exchange(ARMED, WATCHED, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn news(&self, watch: &mut MemoryWatch) -> Result<WatchNews, StoreError> {
        if let Some(news) = self.behind.lock().unwrap().take() {
            return Ok(news);
        }
        let mut news = watch.next().await?;
        while let WatchNews::Events { events, .. } = &mut news
            && let Some(Ok(next)) = watch.next().now_or_never()
        {
            match next {
                WatchNews::Events { events: more, .. } => events.extend(more),
                WatchNews::CaughtUp | WatchNews::Compacted { .. } => {
                    *self.behind.lock().unwrap() = Some(next);
                    break;
                }
            }
        }
        Ok(news)
    }
}

/// What comes behind it in the message was forgotten: a read that was sent before passed for all
/// there is, and what came later was built upon that.
#[tokio::test(start_paused = true)]
async fn events_behind_a_gap_are_not_forgotten() {
    let batching = Batching {
        store: MemoryStore::new(),
        step: Arc::default(),
        arrives: Arc::new(Semaphore::new(0)),
        behind: Arc::default(),
    };
    play_faulty(batching, async |Batching { store, step, arrives, .. }, source| {
        let ended = store.put("lock/a", "a"); // 2
        let lock = track(source, "lock", Layout::Mutex);
        pass(SECOND * 2).await;
        assert_eq!(enter_now(&lock, "lock/a", ended), "admitted");
        store.hold_watches();
        store.end_watches();
        store.put("lock/q", "q"); // 3
        step.store(ARMED, Ordering::Relaxed);
        while step.load(Ordering::Relaxed) != SENT {
            pass(SECOND / 1000).await;
        }
        let held = store.put("lock/x", "x"); // 4
        store.delete("lock/a"); // 5
        store.delete("lock/q"); // 6
        store.release_watches(); // 3 to 6, at once
        pass(SECOND / 100).await;
        arrives.add_permits(1); // The read as of 3.
        pass(SECOND / 100).await;
        store.put("lock/z", "z"); // 7
        pass(SECOND / 100).await;
        assert_ne!(glance(&lock, "lock/x", held), "not-owner", "it is the holder");
        assert_ne!(
            enter_now(&lock, "lock/a", ended),
            "admitted",
            "its tenure has ended, and the watch has told"
        );
    })
    .await;
}
