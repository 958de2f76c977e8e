//! Many holders have renewed their locks often before a start.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{
    KeyValue, LockStore, Member, MemoryStore, MemoryWatch, RangeRead, RangeWatch, ReadAnswer,
    StoreError, Write,
};
use fencepost_policy::{Layout, Revision};
use tokio::sync::Semaphore;

use crate::world::{SECOND, ask, options, pass, play_with, track};

/// It answers seven reads of the past at a time, each in a millisecond.
#[derive(Clone)]
struct Busy {
    store: MemoryStore,
    answering: Arc<Semaphore>,
}

impl LockStore for Busy {
    type Watch = MemoryWatch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        self.store.read(ranges).await
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        let _turn = self.answering.acquire().await.unwrap();
        pass(Duration::from_millis(1)).await;
        self.store.read_at(key, at).await
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<MemoryWatch, StoreError> {
        self.store.watch(ranges).await
    }

    async fn members(&self) -> Vec<Member> {
        self.store.members().await
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
    play_with(busy.clone(), options(), async |_, source| {
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
