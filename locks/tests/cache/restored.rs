//! A read that is on its way as an operator accepts that the store went back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_locks::{MemoryStore, RangeRead, StoreError};
use tokio::sync::Semaphore;

use crate::world::{Faults, SECOND, ask, glance, pass, play_faulty, tracked};

/// The answer of one read is on its way for long.
#[derive(Clone)]
struct Late {
    store: MemoryStore,
    armed: Arc<AtomicBool>,
    arrives: Arc<Semaphore>,
}

impl Late {
    fn new() -> Late {
        Late {
            store: MemoryStore::new(),
            armed: Arc::default(),
            arrives: Arc::new(Semaphore::new(0)),
        }
    }
}

impl Faults for Late {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn after_read(&self, _: &[RangeRead]) -> Result<(), StoreError> {
        if self.armed.swap(false, Ordering::Relaxed) {
            self.arrives.acquire().await.unwrap().forget();
        }
        Ok(())
    }
}

impl Late {
    async fn arrive(&self) {
        self.arrives.add_permits(1);
        pass(SECOND / 100).await;
    }
}

/// An operator accepts what the store lost while a confirming read is on its way. What is planned
/// to be watched in between is only what is known of the restored store, which is nothing.
#[tokio::test(start_paused = true)]
async fn lock_read_while_a_restore_is_accepted_is_watched() {
    play_faulty(Late::new(), async |late, source| {
        let Late { store, armed, .. } = late;
        let kept = store.put("lock", "a"); // 2
        let lock = tracked(source, "lock").await;
        store.put("lock", "b"); // 3
        pass(SECOND * 2).await;
        store.rewind_to(kept);
        pass(SECOND * 5 / 2).await;
        armed.store(true, Ordering::Relaxed);
        lock.want_news(Duration::ZERO);
        pass(SECOND / 100).await;
        assert!(!armed.swap(true, Ordering::Relaxed)); // And so is the read that the new era begins with.
        assert!(source.accept_regression().await.unwrap());
        pass(SECOND / 100).await;
        assert!(!armed.load(Ordering::Relaxed));
        late.arrive().await;
        assert_eq!(ask(&lock, "a", kept).await, "admit");
        pass(SECOND / 100).await;
        store.put("lock", "c");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "a", kept), "stale-tenure");
    })
    .await;
}
