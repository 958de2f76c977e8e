//! While a tenure is known to have ended, and nobody knows yet who holds the lock since when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_locks::{
    LockSource, MemoryStore, MemoryWatch, RangeRead, StoreError, Wanted, Watch, WatchNews,
};
use fencepost_policy::Layout;
use tokio::sync::Semaphore;

use crate::world::{
    Faults, MAX_AGE, SECOND, enter_now, glance, load, pass, play_faulty, template, tracked,
};

/// A store that never shows its past, and the present of a lock only as long as a test lets it.
#[derive(Clone)]
struct WithoutPast {
    store: MemoryStore,
    /// Reads of whole locks need one of these: there is one, or none.
    present: Arc<Semaphore>,
    /// Whether its watches lose what happens.
    loses_news: Arc<AtomicBool>,
}

impl WithoutPast {
    fn new() -> WithoutPast {
        WithoutPast {
            store: MemoryStore::new(),
            present: Arc::new(Semaphore::new(1)),
            loses_news: Arc::default(),
        }
    }

    /// From now on no lock is read by itself.
    fn hide_locks(&self) {
        self.present.forget_permits(1);
    }

    fn lose_news(&self, loses: bool) {
        self.loses_news.store(loses, Ordering::Relaxed);
    }
}

impl Faults for WithoutPast {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn before_read(&self, ranges: &[RangeRead]) -> Result<(), StoreError> {
        if ranges.iter().any(|read| matches!(read.wanted, Wanted::All)) {
            drop(self.present.acquire().await.unwrap());
        }
        Ok(())
    }

    async fn before_read_at(&self) -> Result<(), StoreError> {
        std::future::pending().await
    }

    async fn news(&self, watch: &mut MemoryWatch) -> Result<WatchNews, StoreError> {
        loop {
            let news = watch.next().await?;
            if !self.loses_news.load(Ordering::Relaxed) {
                return Ok(news);
            }
        }
    }
}

async fn play(test: impl AsyncFnOnce(&WithoutPast, &LockSource)) {
    play_faulty(WithoutPast::new(), test).await;
}

#[tokio::test(start_paused = true)]
async fn tenure_that_a_read_ends_is_out_while_history_is_read() {
    for templated in [false, true] {
        play(async |slow, source| {
            let at = slow.store.put("/l/a", "a");
            let locks = template(source, "/l/", Layout::Key);
            let lock =
                if templated { load(&locks, "/l/a").await } else { tracked(source, "/l/a").await };
            pass(SECOND * 3).await;
            lock.want_news(Duration::ZERO); // It is read by itself while it is watched.
            pass(SECOND / 100).await;
            assert_eq!(enter_now(&lock, "a", at), "admitted");
            slow.store.hold_watches();
            slow.store.put("/l/a", "b");
            slow.store.put("/l/a", "b");
            lock.want_news(Duration::ZERO);
            pass(MAX_AGE / 5 * 2).await;
            assert_eq!(glance(&lock, "a", at), "admit", "its successor is not known yet");
            assert_eq!(enter_now(&lock, "a", at), "replayed-tenure", "templated: {templated}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn tenure_that_an_event_behind_a_gap_ends_is_out_at_once() {
    play(async |slow, source| {
        let at = slow.store.put("/l/a", "a");
        let lock = tracked(source, "/l/a").await;
        pass(SECOND * 3 / 2).await; // Half a period before the next read of it.
        slow.hide_locks();
        slow.lose_news(true);
        slow.store.put("/l/a", "b");
        pass(SECOND / 100).await;
        assert_eq!(enter_now(&lock, "a", at), "admitted", "nothing has shown it yet");
        slow.lose_news(false);
        slow.store.put("/l/a", "b");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "a", at), "admit", "its successor is not known yet");
        assert_eq!(enter_now(&lock, "a", at), "replayed-tenure");
    })
    .await;
}
