//! A watch that is begun in the place of another.

use std::sync::Arc;

use fencepost_policy::{Layout, Revision};
use fencepost_sources::{
    KeyValue, LockStore, Member, MemoryStore, RangeAnswer, RangeRead, RangeWatch, ReadAnswer, StoreError,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, ask, glance, load, options, pass, play_with, template, track};

/// Begins as many watches as it is allowed to.
#[derive(Clone)]
struct SlowToWatch {
    store: MemoryStore,
    may_begin: Arc<Semaphore>,
}

impl LockStore for SlowToWatch {
    type Watch = <MemoryStore as LockStore>::Watch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        self.store.read(ranges).await
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.store.read_at(key, at).await
    }

    async fn range_at(&self, read: &RangeRead, at: Revision) -> Result<RangeAnswer, StoreError> {
        self.store.range_at(read, at).await
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<Self::Watch, StoreError> {
        self.may_begin.acquire().await.unwrap().forget();
        self.store.watch(ranges).await
    }

    async fn members(&self) -> Vec<Member> {
        self.store.members().await
    }
}

/// It was taken for one that had gone on: nobody looked whether the store was still the same, and the holder of before was admitted for good.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_restored_while_another_watch_is_begun_is_looked_at_anew() {
    let store = SlowToWatch { store: MemoryStore::new(), may_begin: Arc::new(Semaphore::new(100)) };
    play_with(store, options(), async |SlowToWatch { store, may_begin }, source| {
        let locks = template(source, "t/", Layout::Key);
        let kept = store.put("t/1", "a");
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        let lost = store.put("t/1", "b");
        pass(SECOND * 2).await;
        assert_eq!(glance(&lock, "b", lost), "admit");

        may_begin.forget_permits(100);
        let another = track(source, "another", Layout::Key);
        pass(SECOND / 100).await;
        assert!(another.is_known(), "it is to be watched");
        store.rewind_to(kept);
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        may_begin.add_permits(100);
        pass(MAX_AGE * 2).await;
        assert_ne!(ask(&lock, "b", lost).await, "admit");
        assert_eq!(source.status(Instant::now()).distrusted_through, None, "it was not seen to go back");
    })
    .await;
}
