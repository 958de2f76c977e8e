//! Admission by cached news while no watch is up: at the start, after a loss, and while reads fail
//! too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_locks::{
    LockSource, MemoryStore, RangeRead, RangeWatch, StoreError, Timing, TrackedLock,
};
use fencepost_policy::{FenceToken, Layout, Revision, Verdict};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::world::{
    Faults, Lines, MAX_AGE, SECOND, ask, glance, load, pass, play_faulty, template, track,
};

/// A store that begins watches only while they are let, and fails reads on command.
#[derive(Clone)]
struct Held {
    store: MemoryStore,
    watches: Arc<watch::Sender<bool>>,
    fails_reads: Arc<AtomicBool>,
    refuses_watches: Arc<AtomicBool>,
}

impl Held {
    fn new() -> Held {
        Held {
            store: MemoryStore::new(),
            watches: Arc::new(watch::Sender::new(false)),
            fails_reads: Arc::default(),
            refuses_watches: Arc::default(),
        }
    }

    fn let_watches(&self, are_let: bool) {
        self.watches.send_replace(are_let);
    }

    fn lose_watch(&self) {
        self.let_watches(false);
        self.store.end_watches();
    }

    fn fail_reads(&self, fail: bool) {
        self.fails_reads.store(fail, Ordering::Relaxed);
    }
}

impl Faults for Held {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn before_read(&self, _: &[RangeRead]) -> Result<(), StoreError> {
        pass(SECOND / 1000).await;
        match self.fails_reads.load(Ordering::Relaxed) {
            true => Err(StoreError::Unavailable("no leader".into())),
            false => Ok(()),
        }
    }

    async fn before_watch(&self, _: &[RangeWatch]) -> Result<(), StoreError> {
        if self.refuses_watches.load(Ordering::Relaxed) {
            return Err(StoreError::Refused("no watch for you".into()));
        }
        let mut let_watches = self.watches.subscribe();
        let_watches.wait_for(|are_let| *are_let).await.expect("the store is there");
        Ok(())
    }
}

/// A lock, static or found by a template, that is held and known.
async fn held(
    source: &LockSource,
    store: &MemoryStore,
    templated: bool,
) -> (Arc<TrackedLock>, Revision) {
    let at = store.put("t/1", "a");
    let lock = if templated {
        load(&template(source, "t/", Layout::Key), "t/1").await
    } else {
        track(source, "t/1", Layout::Key)
    };
    while !lock.is_known() {
        pass(SECOND / 1000).await;
    }
    pass(SECOND / 10).await;
    // A lock of a template is read when somebody asks for it.
    assert_eq!(ask(&lock, "a", at).await, "admit");
    (lock, at)
}

/// Right after `/readyz` said 200, a superseded holder was admitted for as long as the watch was
/// not there.
#[tokio::test(start_paused = true)]
async fn start_without_watch_is_not_ready_and_confirms() {
    for templated in [false, true] {
        play_faulty(Held::new(), async |held_store, source| {
            let (lock, old) = held(source, &held_store.store, templated).await;
            assert!(!source.ready(), "templated: {templated}");
            assert_eq!(glance(&lock, "a", old), "confirm");
            assert_eq!(ask(&lock, "a", old).await, "admit");
            let new = held_store.store.put("t/1", "b");
            assert_eq!(ask(&lock, "a", old).await, "stale-tenure", "templated: {templated}");
            assert_eq!(ask(&lock, "b", new).await, "admit");

            held_store.let_watches(true);
            pass(SECOND / 10).await;
            assert!(source.ready(), "templated: {templated}");
            assert_eq!(ask(&lock, "b", new).await, "admit", "templated: {templated}");
            assert_eq!(glance(&lock, "b", new), "admit", "templated: {templated}");
        })
        .await;
    }
}

/// While a lost watch was not there again, a superseded holder was admitted until the next periodic
/// read.
#[tokio::test(start_paused = true)]
async fn lost_watch_confirms_each_request_until_the_next() {
    for templated in [false, true] {
        let store = Held::new();
        store.let_watches(true);
        play_faulty(store, async |held_store, source| {
            let (lock, old) = held(source, &held_store.store, templated).await;
            assert_eq!(glance(&lock, "a", old), "admit", "templated: {templated}");
            held_store.lose_watch();
            pass(SECOND / 1000).await;
            assert_eq!(glance(&lock, "a", old), "confirm", "templated: {templated}");
            assert_eq!(ask(&lock, "a", old).await, "admit");
            let new = held_store.store.put("t/1", "b");
            assert_eq!(ask(&lock, "a", old).await, "stale-tenure", "templated: {templated}");
            assert!(source.ready(), "a process that has started stays ready");

            held_store.let_watches(true);
            pass(SECOND * 2).await;
            assert_eq!(ask(&lock, "b", new).await, "admit", "templated: {templated}");
            assert_eq!(glance(&lock, "b", new), "admit", "templated: {templated}");
        })
        .await;
    }
}

/// A watch that is behind delivers events late.
#[tokio::test(start_paused = true)]
async fn watch_that_has_not_caught_up_admits_nobody() {
    let store = Held::new();
    store.let_watches(true);
    store.store.hold_watches();
    play_faulty(store, async |held_store, source| {
        let (lock, old) = held(source, &held_store.store, false).await;
        assert!(!source.ready());
        assert_eq!(glance(&lock, "a", old), "confirm");
        held_store.store.release_watches();
        pass(SECOND / 10).await;
        assert!(source.ready());
        assert_eq!(glance(&lock, "a", old), "admit");
    })
    .await;
}

/// A lock that a reload adds was admitted by cached news before a watch covered it.
#[tokio::test(start_paused = true)]
async fn added_lock_waits_for_a_watch_of_its_own() {
    let store = Held::new();
    store.let_watches(true);
    play_faulty(store, async |held_store, source| {
        let (first, held_first) = held(source, &held_store.store, false).await;
        held_store.let_watches(false);
        let at = held_store.store.put("t/2", "a");
        let added = track(source, "t/2", Layout::Key);
        let templates = template(source, "u/", Layout::Key);
        let under_template = held_store.store.put("u/1", "a");
        let templated = load(&templates, "u/1").await;
        pass(SECOND * 2).await;
        assert_eq!(glance(&added, "a", at), "confirm");
        assert_eq!(glance(&templated, "a", under_template), "confirm");
        assert_eq!(ask(&added, "a", at).await, "admit");
        assert_eq!(ask(&first, "a", held_first).await, "admit");
        assert!(source.ready(), "no reload makes a process unready");

        held_store.let_watches(true);
        pass(SECOND).await;
        assert_eq!(glance(&added, "a", at), "admit");
        assert_eq!(ask(&templated, "a", under_template).await, "admit");
        assert_eq!(glance(&templated, "a", under_template), "admit");
    })
    .await;
}

/// An election in etcd must refuse nobody that holds its lock, nor have each request wait for a
/// read that fails.
#[tokio::test(start_paused = true)]
async fn failing_reads_admit_by_cached_news_up_to_max_age() {
    for templated in [false, true] {
        let store = Held::new();
        store.let_watches(true);
        play_faulty(store, async |held_store, source| {
            let (lock, at) = held(source, &held_store.store, templated).await;
            let lost = Instant::now();
            held_store.fail_reads(true);
            held_store.lose_watch();
            pass(SECOND / 1000).await;
            assert_eq!(glance(&lock, "a", at), "confirm", "no shared read has failed yet");
            assert_eq!(ask(&lock, "a", at).await, "admit", "templated: {templated}");
            while lost.elapsed() < MAX_AGE - SECOND * 2 {
                assert_eq!(glance(&lock, "a", at), "admit", "templated: {templated}");
                pass(SECOND / 10).await;
            }
            pass(SECOND * 3).await;
            assert_eq!(ask(&lock, "a", at).await, "unverifiable", "no news admits beyond max_age");

            held_store.fail_reads(false);
            pass(SECOND * 2).await;
            assert_eq!(
                glance(&lock, "a", at),
                "confirm",
                "reads are answered, and nothing is watched"
            );
            assert_eq!(ask(&lock, "a", at).await, "admit");
        })
        .await;
    }
}

/// One failed read lets all go on that wait for reads of other locks.
#[tokio::test(start_paused = true)]
async fn first_failed_read_ends_all_waits() {
    let store = Held::new();
    store.let_watches(true);
    play_faulty(store, async |held_store, source| {
        let locks: Vec<_> =
            (0..200).map(|nth| track(source, &format!("lock/{nth}"), Layout::Key)).collect();
        let held: Vec<_> =
            (0..200).map(|nth| held_store.store.put(format!("lock/{nth}"), "a")).collect();
        pass(SECOND / 10).await;
        held_store.store.pause();
        held_store.lose_watch();
        pass(SECOND / 1000).await;
        let lost = Instant::now();
        let waits = locks.iter().zip(&held).map(|(lock, at)| async move {
            let now = Instant::now();
            let token = FenceToken { owner: "a", revision: *at };
            let judge = || {
                let timing = Timing {
                    arrived: now,
                    not_before: None,
                    now: Instant::now(),
                    max_age: MAX_AGE,
                    linearizable: false,
                };
                lock.view().judge(&token, &timing)
            };
            assert_eq!(judge(), Verdict::Confirm);
            let _ = lock.confirm_unless(now, now + SECOND * 10, || judge() == Verdict::Admit).await;
            assert_eq!(judge(), Verdict::Admit);
        });
        futures_util::future::join_all(waits).await;
        // A read that was under way when the watch was lost tells nothing; the one behind it fails
        // 500 ms later.
        assert!(lost.elapsed() < SECOND * 2, "{:?}", lost.elapsed());
    })
    .await;
}

/// Each attempt was logged as an outage, and each read in between as its end: 2.7 lines a second.
#[tokio::test(start_paused = true)]
async fn refused_watch_is_logged_once() {
    let (store, lines) = (Held::new(), Lines::collect());
    store.let_watches(true);
    store.refuses_watches.store(true, Ordering::Relaxed);
    play_faulty(store, async |held_store, source| {
        let (lock, at) = held(source, &held_store.store, false).await;
        pass(SECOND * 60).await;
        assert_eq!(ask(&lock, "a", at).await, "admit");
        let told = lines.with("");
        assert!(told.len() == 1 && told[0].contains("cannot be watched"), "{told:#?}");
        held_store.refuses_watches.store(false, Ordering::Relaxed);
        pass(SECOND * 3).await;
        assert_eq!(lines.with("").len(), 2, "{:#?}", lines.with(""));
        assert_eq!(lines.with("is watched again").len(), 1);
    })
    .await;
}
