//! What is read while nothing is watched, and a watch that takes the place of another.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{MemoryStore, RangeRead, RangeWatch, StoreError};
use fencepost_policy::Layout;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::world::{Faults, SECOND, ask, glance, load, pass, play_faulty, template, track};

/// Each answer of this store takes a while.
const LATENCY: Duration = Duration::from_millis(10);

/// How many watches it may begin at the start.
const WATCHES: usize = 100;

/// Begins as many watches as it may.
#[derive(Clone)]
struct Unwatched {
    store: MemoryStore,
    may_begin: Arc<Semaphore>,
}

impl Unwatched {
    fn new() -> Unwatched {
        Unwatched { store: MemoryStore::new(), may_begin: Arc::new(Semaphore::new(WATCHES)) }
    }

    fn begin_no_more(&self) {
        self.may_begin.forget_permits(WATCHES);
    }
}

impl Faults for Unwatched {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn before_read(&self, _: &[RangeRead]) -> Result<(), StoreError> {
        pass(LATENCY).await;
        Ok(())
    }

    async fn before_read_at(&self) -> Result<(), StoreError> {
        pass(LATENCY).await;
        Ok(())
    }

    async fn before_watch(&self, _: &[RangeWatch]) -> Result<(), StoreError> {
        self.may_begin.acquire().await.unwrap().forget();
        Ok(())
    }
}

/// Its history was looked at for each of its writes, and what that had shown was dropped if the
/// lock was renewed meanwhile: a holder that renewed it often was refused for as long as nothing
/// was watched.
#[tokio::test(start_paused = true)]
async fn lock_renewed_fast_is_known_though_nothing_is_watched() {
    for templated in [false, true] {
        play_faulty(Unwatched::new(), async |unwatched, source| {
            let store = &unwatched.store;
            let locks = template(source, "t/", Layout::Key);
            let held = store.put("t/1", "a");
            let lock = if templated {
                load(&locks, "t/1").await
            } else {
                track(source, "t/1", Layout::Key)
            };
            pass(SECOND * 2).await;
            unwatched.begin_no_more();
            store.end_watches();
            let renews = async {
                loop {
                    pass(LATENCY * 10).await;
                    store.put("t/1", "a");
                }
            };
            let asks = async {
                for nth in 0..20 {
                    pass(SECOND).await;
                    assert_eq!(
                        ask(&lock, "a", held).await,
                        "admit",
                        "templated: {templated}, the {nth}th"
                    );
                }
            };
            tokio::select! {
                () = renews => {}
                () = asks => {}
            }
            let walks = source.status(Instant::now()).reads.walks;
            assert!(
                walks <= 400,
                "each write is looked at once, and what was read is once more: {walks} reads"
            );
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn holder_that_renewed_often_may_present_any_revision() {
    for others_between in [0, 5] {
        play_faulty(Unwatched::new(), async |Unwatched { store, .. }, source| {
            let ended = store.put("t/1", "b");
            let first = store.put("t/1", "a");
            for nth in 0..400 {
                for _ in 0..nth % (others_between + 1) {
                    store.put("other", "x");
                }
                store.put("t/1", "a");
            }
            let lock = track(source, "t/1", Layout::Key);
            pass(SECOND * 6).await;
            assert_eq!(ask(&lock, "a", first).await, "admit");
            assert_eq!(ask(&lock, "b", ended).await, "stale-tenure");
            let walks = source.status(Instant::now()).reads.walks;
            assert!(walks <= 500, "{walks} reads of 400 writes");
        })
        .await;
    }
}

/// A store that stopped right after a start had a stale master told that nothing could be known.
#[tokio::test(start_paused = true)]
async fn lock_read_before_the_first_watch_refuses_stale_tokens() {
    play_faulty(Unwatched::new(), async |Unwatched { store, .. }, source| {
        let ended = store.put("t/1", "b");
        store.put("t/1", "a");
        let lock = load(&template(source, "t/", Layout::Key), "t/1").await;
        for ms in 0..100 {
            assert_eq!(glance(&lock, "b", ended), "stale-tenure", "after {ms} ms");
            pass(SECOND / 1000).await;
        }
    })
    .await;
}
