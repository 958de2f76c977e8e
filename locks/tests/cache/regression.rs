//! A store that goes back, as if restored from a backup.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Poll;

use fencepost_locks::{
    GateMemory, LockSource, MemoryStore, Remembered, SourceOptions, StorePast, TrackedLock,
};
use fencepost_policy::{Layout, LockKey, Revision};
use tokio::time::Instant;

use crate::world::{
    MAX_AGE, SECOND, ask, glance, load, options, pass, play, play_with, template, track, tracked,
};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

#[tokio::test(start_paused = true)]
async fn regressed_store_admits_nobody_until_accepted() {
    play(options(), async |store, source| {
        let lock = tracked(source, "lock").await;
        let locks = template(source, "t/", Layout::Key);
        let first = store.put("lock", "a"); // 2
        let templated = store.put("t/1", "a"); // 3
        let lost = store.put("lock", "b"); // 4
        let shard = load(&locks, "t/1").await;
        assert_eq!(ask(&lock, "b", lost).await, "admit");
        store.rewind_to(templated);
        pass(SECOND * 2).await;
        assert_eq!(source.status(Instant::now()).distrusted_through, Some(lost));
        assert_eq!(glance(&lock, "b", lost), "store-regressed");
        assert_eq!(
            ask(&lock, "a", first).await,
            "store-regressed",
            "it ended, but holds the lock of the restored store"
        );
        assert_eq!(ask(&shard, "a", templated).await, "store-regressed");
        pass(MAX_AGE).await;
        assert_eq!(source.status(Instant::now()).up, Some(false), "no answer counts");

        assert!(source.accept_regression().await.unwrap());
        assert_eq!(ask(&lock, "a", first).await, "admit");
        assert_eq!(ask(&shard, "a", templated).await, "admit");
        assert_eq!(ask(&lock, "b", lost).await, "ahead-of-store");
        assert_eq!(lock.describe(Instant::now()).gate.floor, first.get());
        assert!(!source.accept_regression().await.unwrap(), "there is nothing left to accept");

        let next = store.put("lock", "c");
        pass(SECOND / 10).await;
        assert_eq!(glance(&lock, "a", first), "stale-tenure", "it is watched again");
        assert_eq!(ask(&lock, "c", next).await, "admit");
    })
    .await;
}

/// A tenure of the restored store that began earlier ends none that was seen later: its news are
/// young, and say nothing of it.
#[tokio::test(start_paused = true)]
async fn what_is_under_way_goes_on_by_no_news_that_nobody_believes() {
    play(options(), async |store, source| {
        let lock = tracked(source, "lock").await;
        let kept = store.put("lock", "a");
        store.put("lock", "b");
        pass(SECOND).await;
        let good_for = || lock.view().good_for(MAX_AGE, Instant::now());
        assert!(good_for().is_some());
        store.rewind_to(kept);
        pass(SECOND * 3).await;
        store.put("other", "x");
        store.put("other", "y");
        pass(SECOND * 5).await;
        assert!(source.status(Instant::now()).distrusted_through.is_some());
        assert!(
            lock.view().age(Instant::now()).is_some_and(|age| age <= SECOND * 2),
            "it is read again"
        );
        assert_eq!(good_for(), None);
        // Whoever pauses asks for news each time that something of the lock has changed, as each
        // read does.
        let confirms = || source.status(Instant::now()).reads.confirms;
        let before = confirms();
        lock.want_news(MAX_AGE);
        pass(SECOND / 100).await;
        assert_eq!(confirms(), before, "what is young is not asked for");
        store.put("lock", "c"); // Above all that was seen.
        pass(SECOND / 10).await;
        assert!(good_for().is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_tenures_that_begin_above_all_that_was_seen_are_admitted() {
    play(options(), async |store, source| {
        let lock = tracked(source, "lock").await;
        let kept = store.put("lock", "a"); // 2
        let other = store.put("other", "x"); // 3
        store.put("lock", "b"); // 4
        let seen = store.put("lock", "b"); // 5
        assert_eq!(ask(&lock, "b", seen).await, "admit");
        store.rewind_to(other);
        pass(SECOND * 2).await;
        // The same numbers, another history: the dead b's token is that of a living c.
        let reused = store.put("lock", "c"); // 4
        assert_ne!(ask(&lock, "c", reused).await, "admit");
        pass(SECOND * 2).await;
        store.put("other", "y"); // 5
        store.put("other", "z"); // 4, 5, 6
        pass(SECOND * 2).await;
        assert_eq!(ask(&lock, "c", reused).await, "store-regressed");
        assert_eq!(ask(&lock, "a", kept).await, "store-regressed");
        let above = store.put("lock", "d"); // 7
        assert_eq!(ask(&lock, "d", above).await, "admit");
        assert_eq!(source.status(Instant::now()).distrusted_through, Some(seen));
        assert!(source.accept_regression().await.unwrap());
        assert_eq!(ask(&lock, "d", above).await, "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_process_has_seen_counts() {
    let options = SourceOptions { highest_seen: Some(revision(100)), ..options() };
    play(options, async |store, source| {
        let at = store.put("lock", "a");
        let lock = track(source, "lock", Layout::Key);
        pass(SECOND).await;
        assert_eq!(ask(&lock, "a", at).await, "store-regressed");
        assert!(!source.ready());
        assert!(source.accept_regression().await.unwrap());
        assert_eq!(ask(&lock, "a", at).await, "admit");
        assert!(source.ready());
    })
    .await;
}

/// A restart took a store for trustworthy that had gone back and grown beyond what was seen: a
/// tenure that an earlier one might have had the revision of was admitted, though nobody had
/// accepted that.
#[tokio::test(start_paused = true)]
async fn inherited_distrust_lasts_until_an_operator_accepts() {
    let through = revision(5);
    let options = SourceOptions {
        highest_seen: Some(revision(6)),
        distrusted_through: Some(through),
        ..options()
    };
    play(options, async |store, source| {
        let doubtful = store.put("lock", "a"); // 2
        let other = store.put("other", "a"); // 3
        for value in ["x", "y", "z"] {
            store.put("elsewhere", value); // 4, 5, 6
        }
        let lock = tracked(source, "lock").await;
        let of_other = tracked(source, "other").await;
        assert_eq!(source.status(Instant::now()).distrusted_through, Some(through));
        assert_eq!(ask(&lock, "a", doubtful).await, "store-regressed");
        assert_eq!(ask(&of_other, "a", other).await, "store-regressed");
        let above = store.put("lock", "b"); // 7
        assert_eq!(ask(&lock, "b", above).await, "admit");
        assert_eq!(ask(&of_other, "a", other).await, "store-regressed");

        assert!(source.accept_regression().await.unwrap());
        assert_eq!(ask(&lock, "b", above).await, "admit");
        assert_eq!(ask(&of_other, "a", other).await, "admit");
        assert!(!source.accept_regression().await.unwrap(), "there is nothing left to accept");
    })
    .await;
}

/// What a later process would be told, in the order in which it came, and the floor of a lock then.
#[derive(Debug, Default)]
struct Told {
    said: Mutex<Vec<(&'static str, u64)>>,
    lock: OnceLock<Weak<TrackedLock>>,
}

impl Told {
    fn note(&self, what: &'static str) {
        let lock = self.lock.get().and_then(Weak::upgrade).unwrap();
        self.said.lock().unwrap().push((what, lock.describe(Instant::now()).gate.floor));
    }

    fn all(&self) -> Vec<(&'static str, u64)> {
        self.said.lock().unwrap().clone()
    }
}

impl GateMemory for Told {
    fn of(&self, _lock: &LockKey, _layout: Layout) -> Option<Remembered> {
        None
    }

    fn clear(&self, _lock: &LockKey) {}

    fn distrust(&self, through: Revision) {
        assert_eq!(through, revision(4));
        self.note("distrust");
    }

    fn forget_tenures(&self) {
        self.note("forget");
    }
}

/// That it went back, before that it has grown beyond; that this was accepted, before any gate
/// starts anew, whether or not the operator is still there: what is recorded then comes after.
#[tokio::test(start_paused = true)]
async fn later_process_learns_of_a_regression_in_order() {
    let told = Arc::new(Told::default());
    let memory = Arc::clone(&told) as Arc<dyn GateMemory>;
    play(SourceOptions { memory: Some(memory), ..options() }, async |store, source| {
        let kept = store.put("lock", "a"); // 2
        for value in ["x", "y"] {
            store.put("elsewhere", value); // 3, 4
        }
        let lock = tracked(source, "lock").await;
        told.lock.set(Arc::downgrade(&lock)).unwrap();
        pass(SECOND * 2).await;
        assert_eq!(told.all(), []);
        store.rewind_to(kept);
        pass(SECOND * 5).await;
        assert_eq!(source.status(Instant::now()).revision, Some(revision(4)));
        assert_eq!(told.all(), [("distrust", 2)]);
        for value in ["x", "y", "z"] {
            store.put("elsewhere", value); // 3, 4, 5
        }
        pass(SECOND * 5).await;
        assert_eq!(source.status(Instant::now()).revision, Some(revision(5)));
        assert_eq!(told.all(), [("distrust", 2)]);
        {
            let mut accepts = pin!(source.accept_regression());
            assert!(
                poll_fn(|context| Poll::Ready(accepts.as_mut().poll(context))).await.is_pending()
            );
        }
        pass(SECOND * 2).await;
        assert_eq!(source.status(Instant::now()).distrusted_through, None);
        assert_eq!(told.all(), [("distrust", 2), ("forget", 2)]);
        assert_eq!(glance(&lock, "a", kept), "admit");
    })
    .await;
}

/// A lock that had been loaded was refused as `store-regressed` for as long as it stayed cached:
/// what was known of it had been dropped, and nothing read it again.
#[tokio::test(start_paused = true)]
async fn templated_lock_is_read_again_once_the_store_recovers() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let kept = store.put("t/1", "a");
        store.put("other", "x");
        let seen = store.put("other", "x");
        drop(load(&locks, "t/1").await);
        pass(SECOND * 2).await;
        store.rewind_to(kept);
        pass(SECOND * 2).await;
        assert!(source.status(Instant::now()).distrusted_through >= Some(seen));
        for _ in 0..6 {
            store.put("other", "y");
        }
        pass(SECOND * 2).await;
        let above = store.put("t/1", "c");
        pass(SECOND * 2).await;
        let lock = load(&locks, "t/1").await;
        assert_eq!(ask(&lock, "c", above).await, "admit");
    })
    .await;
}

/// A watch that ends is no reason to read each lock by itself: the newest change is there still.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_leaves_no_lock_to_be_read_anew() {
    for ends in [MemoryStore::end_watches as fn(&MemoryStore), |store| {
        store.end_watches();
        store.put("t/1", "a"); // So its state then is asked for.
    }] {
        play(options(), async |store, source| {
            let locks = template(source, "t/", Layout::Key);
            pass(SECOND).await;
            let at = store.put("t/1", "a");
            let lock = load(&locks, "t/1").await;
            pass(SECOND * 2).await;
            let before = store.calls().ranges_whole;
            ends(store);
            pass(MAX_AGE * 2).await;
            assert_eq!(store.calls().ranges_whole, before);
            assert_eq!(ask(&lock, "a", at).await, "admit");
        })
        .await;
    }
}

/// A source over a store that goes on where another has ended, with all that it has learnt for the
/// one after it.
async fn next(
    store: &MemoryStore,
    past: Option<StorePast>,
    test: impl AsyncFnOnce(&LockSource),
) -> Option<StorePast> {
    let mut learnt = None;
    let options = SourceOptions { past, highest_seen: Some(Revision::MIN), ..options() };
    play_with(store.clone(), options, async |_, source| {
        test(source).await;
        learnt = Some(source.past());
    })
    .await;
    learnt
}

/// A source that has no users for a while still knows that its store went back. An earlier holder
/// of a lock that has since been another's is not admitted again.
#[tokio::test(start_paused = true)]
async fn what_a_source_learns_of_its_store_outlives_it() {
    let store = MemoryStore::new();
    let first = store.put("lock", "a"); // 2
    let lost = store.put("lock", "b"); // 3
    let past = next(&store, None, async |source| {
        assert_eq!(ask(&*tracked(source, "lock").await, "b", lost).await, "admit");
    })
    .await;
    store.rewind_to(first);
    let regressed = async |source: &LockSource| {
        let (lock, locks) = (track(source, "lock", Layout::Key), template(source, "", Layout::Key));
        assert_eq!(ask(&lock, "a", first).await, "store-regressed");
        assert_eq!(ask(&lock, "b", lost).await, "store-regressed");
        pass(SECOND).await;
        assert!(!source.ready());
        assert!(locks.load("other", Instant::now() + SECOND).await.is_err());
        assert_eq!(source.status(Instant::now()).distrusted_through, Some(lost));
    };
    let past = next(&store, past, regressed).await;
    let past = next(&store, past, regressed).await;
    let believed = async |source: &LockSource| {
        let lock = tracked(source, "lock").await;
        assert_eq!(ask(&lock, "a", first).await, "admit");
        assert_eq!(ask(&lock, "b", lost).await, "ahead-of-store");
        let shard = load(&template(source, "", Layout::Key), "other").await;
        assert_eq!(ask(&shard, "b", first).await, "no-owner");
    };
    let accepted = past.clone();
    assert!(accepted.unwrap().accept_regression(|| {}), "by nobody's source");
    let past = next(&store, past, believed).await;
    let past = next(&store, past, believed).await;
    // In the era that has begun it is watched, and notices again.
    next(&store, past, async |source| {
        let lock = tracked(source, "lock").await;
        let later = store.put("lock", "c");
        pass(SECOND / 10).await;
        assert_eq!(glance(&lock, "a", first), "stale-tenure");
        assert_eq!(ask(&lock, "c", later).await, "admit");
        store.rewind_to(first);
        pass(SECOND * 2).await;
        assert_eq!(ask(&lock, "a", first).await, "store-regressed");
        assert!(source.accept_regression().await.unwrap());
        assert_eq!(ask(&lock, "a", first).await, "admit");
    })
    .await;
}
