//! Many holders have renewed their locks often before a start.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{MemoryStore, StoreError, Write};
use fencepost_policy::Layout;
use tokio::sync::Semaphore;

use crate::world::{Faults, SECOND, ask, pass, play_faulty, track};

/// It answers seven reads of the past at a time, each in a millisecond.
#[derive(Clone)]
struct Busy {
    store: MemoryStore,
    answering: Arc<Semaphore>,
}

impl Faults for Busy {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn before_read_at(&self) -> Result<(), StoreError> {
        let _turn = self.answering.acquire().await.unwrap();
        pass(Duration::from_millis(1)).await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn long_histories_are_gone_through_a_few_at_a_time() {
    const LOCKS: usize = 20;
    let busy = Busy { store: MemoryStore::new(), answering: Arc::new(Semaphore::new(7)) };
    let key = |number: usize| format!("lock/{number}");
    let renew = || {
        let puts =
            (0..LOCKS).map(|number| Write::Put { key: key(number).into(), value: "a".into() });
        busy.store.transact(puts)
    };
    let first = renew();
    (0..5_000).for_each(|_| _ = renew());
    play_faulty(busy.clone(), async |_, source| {
        let track = |number| track(source, &key(number), Layout::Key);
        let tracked: Vec<_> = (0..LOCKS).map(track).collect();
        while !source.ready() {
            pass(SECOND).await;
        }
        for lock in &tracked {
            assert_eq!(ask(lock, "a", first).await, "admit");
        }
    })
    .await;
}
