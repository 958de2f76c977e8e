//! What a source keeps when it is told what is tracked from now on.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use fencepost_locks::{LockSource, MemoryStore, SourceOptions, Timing, Turning};
use fencepost_policy::{FenceToken, Layout, PassReason};
use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, glance, load, options, pass, play, template, track, tracked};

/// How many ranges of locks and of templates were read in the last period.
async fn read_in_a_period(store: &MemoryStore, source: &LockSource) -> (u64, u64) {
    pass(SECOND * 2).await; // What began before has ended.
    let before = (store.calls().ranges_whole, source.status(Instant::now()).reads.windows);
    pass(SECOND).await;
    (store.calls().ranges_whole - before.0, source.status(Instant::now()).reads.windows - before.1)
}

#[tokio::test(start_paused = true)]
async fn what_is_tracked_no_longer_is_read_for_as_long_as_somebody_holds_it() {
    play(options(), async |store, source| {
        let at = store.put("one", "a");
        store.put("t/1", "a");
        let (one, templated) = (tracked(source, "one").await, template(source, "t/", Layout::Key));
        let of_template = load(&templated, "t/1").await;
        assert_eq!(read_in_a_period(store, source).await, (1, 1));

        source.keep(&[], &[]);
        drop(templated);
        assert_eq!(read_in_a_period(store, source).await, (1, 1), "both are held");
        assert_eq!(glance(&one, "a", at), "admit");
        assert!(Arc::ptr_eq(&one, &track(source, "one", Layout::Key)), "there is no second one");
        source.keep(&[], &[]);

        drop((one, of_template));
        assert_eq!(read_in_a_period(store, source).await, (0, 0));
        assert!(source.locks().is_empty() && source.ready());
    })
    .await;
}

/// It stayed in the cache for good, and kept its key from being read in another way, or from another source.
#[tokio::test(start_paused = true)]
async fn a_lock_that_a_request_of_before_asks_for_is_not_kept_once_its_template_is_not() {
    play(options(), async |store, source| {
        store.put("t/1", "a");
        let templated = template(source, "t/", Layout::Key);
        pass(SECOND).await;
        store.pause();
        let mut loading = pin!(load(&templated, "t/1"));
        assert!(poll_fn(|context| Poll::Ready(loading.as_mut().poll(context))).await.is_pending());
        source.keep(&[], &[]);
        store.resume();
        let lock = loading.await;
        assert!(source.find("t/1").is_some(), "it is held");
        drop(lock);
        assert!(source.find("t/1").is_none());
        source.keep(&[], std::slice::from_ref(&templated));
        drop(load(&templated, "t/1").await);
        assert!(source.find("t/1").is_some(), "it is kept");
    })
    .await;
}

/// It was called down from then on, and a store that nobody had ever asked from the start.
#[tokio::test(start_paused = true)]
async fn whether_a_store_answers_is_not_known_as_long_as_nothing_is_read_from_it() {
    play(options(), async |store, source| {
        let is_up = || source.status(Instant::now()).up;
        pass(SECOND * 60).await;
        assert_eq!(is_up(), None);
        store.put("one", "a");
        for _ in 0..2 {
            let one = tracked(source, "one").await;
            assert_eq!(is_up(), Some(true));
            source.keep(&[], &[]);
            pass(SECOND * 60).await;
            assert_eq!(is_up(), Some(true), "a request may still hold it");
            drop(one);
            pass(SECOND * 60).await;
            assert_eq!(is_up(), None);
        }
        let templated = template(source, "t/", Layout::Key);
        pass(SECOND * 60).await;
        assert_eq!(is_up(), Some(true));
        drop(templated);
        pass(SECOND * 60).await;
        assert_eq!(is_up(), None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_still_tracked_stays_with_its_gate_though_nobody_else_holds_it() {
    play(options(), async |store, source| {
        let at = store.put("one", "a");
        store.put("t/1", "a");
        store.put("u/1", "a");
        let (one, kept, left) =
            (tracked(source, "one").await, template(source, "t/", Layout::Key), template(source, "u/", Layout::Key));
        load(&kept, "t/1").await;
        load(&left, "u/1").await;
        let now = Instant::now();
        let timing = Timing { arrived: now, now, max_age: MAX_AGE, linearizable: false };
        let Ok(admission) = one.enter(&FenceToken { owner: "a", revision: at }, &timing) else {
            panic!("the holder gets in");
        };
        source.keep(&[Arc::clone(&one)], std::slice::from_ref(&kept));
        drop((one, left));
        let keys: Vec<String> = source.locks().iter().map(|lock| lock.key().to_string()).collect();
        assert_eq!(keys, ["one", "t/1"]);
        let one = track(source, "one", Layout::Key);
        assert!(!one.is_clear(Instant::now()), "its request is still counted");
        one.leave(admission);
        assert!(one.is_clear(Instant::now()));
        assert_eq!(read_in_a_period(store, source).await, (1, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_a_template_that_is_then_named_is_the_same_and_stays_fresh() {
    play(options(), async |store, source| {
        let old = store.put("t/1", "a");
        let templated = template(source, "t/", Layout::Key);
        pass(SECOND).await; // It is watched.
        let lock = load(&templated, "t/1").await;
        let named = track(source, "t/1", Layout::Key);
        assert!(Arc::ptr_eq(&lock, &named));
        source.keep(std::slice::from_ref(&named), &[]);
        drop((templated, lock));
        pass(SECOND * 20).await;
        assert_eq!(glance(&named, "a", old), "admit");
        let new = store.put("t/1", "b");
        pass(SECOND / 10).await;
        assert_eq!((glance(&named, "a", old), glance(&named, "b", new)), ("stale-tenure", "admit"));
    })
    .await;
}

/// What was to be read next in an hour was: uploads and tunnels under the lock were cut long before.
#[tokio::test(start_paused = true)]
async fn whatever_is_kept_fresh_is_read_as_often_as_it_now_has_to_be() {
    let an_hour = SECOND * 3600;
    play(SourceOptions { period: an_hour, ..options() }, async |store, source| {
        store.put("one", "a");
        store.put("t/1", "a");
        let (_one, templated) = (tracked(source, "one").await, template(source, "t/", Layout::Key));
        let _of_template = load(&templated, "t/1").await;
        assert_eq!(read_in_a_period(store, source).await, (0, 0));
        source.set_period(SECOND);
        assert_eq!(read_in_a_period(store, source).await, (1, 1));

        // A file that was tried and refused leaves nothing of it behind.
        source.set_period(an_hour);
        pass(SECOND * 2).await;
        source.set_period(SECOND);
        assert_eq!(read_in_a_period(store, source).await, (1, 1));

        // Nor does whoever waits by a long period for what the watch does not bring: after a probe, and after a read that it has to verify.
        for into_the_read in [SECOND, an_hour / 5] {
            store.put("t/2", "a");
            pass(SECOND * 3).await;
            source.set_period(an_hour);
            store.hold_watches();
            store.delete("t/2");
            pass(an_hour + into_the_read).await;
            source.set_period(SECOND);
            assert_eq!(read_in_a_period(store, source).await, (1, 1), "{into_the_read:?}");
            store.release_watches();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_a_source_that_works_answers() {
    let (source, driver) = LockSource::build("test", options(), MemoryStore::new());
    let answers = source.answers();
    tokio::pin!(answers);
    assert!(tokio::time::timeout(SECOND, &mut answers).await.is_err(), "nobody works");
    tokio::select! {
        () = driver => panic!("the driver ended"),
        answered = answers => assert!(answered.is_ok()),
    }
    assert!(source.answers().await.is_err(), "nobody is there");
}

#[tokio::test(start_paused = true)]
async fn a_source_is_found_again_for_as_long_as_anybody_has_a_handle() {
    let (source, driver) = LockSource::build("test", options(), MemoryStore::new());
    let found = source.downgrade();
    drop(source);
    assert!(found.upgrade().is_none());
    driver.await; // It was stopped with its last handle.
}

/// The locks below that prefix turn, and were those that were watched.
fn turning(prefix: &'static str, generation: u64, counts_for: Duration) -> Turning {
    let keys = format!("{prefix}{{}}");
    let names = Arc::new(move |key: &str| key.starts_with(prefix));
    let (watched, prefix) = ([keys.clone()].into(), prefix.to_owned());
    Turning { watched, keys, prefix, names, generation, counts_for }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_asked_for_after_its_route_has_turned_lets_nobody_past_who_came_before() {
    play(options(), async |_, source| {
        let locks = template(source, "t/", Layout::Key);
        let before = locks.hold("t/before").unwrap();
        source.enforce_since(&[turning("t/", 2, SECOND), turning("t/a", 3, Duration::ZERO)]);
        let (after, later) = (locks.hold("t/after").unwrap(), locks.hold("t/later").unwrap());
        let other = template(source, "u/", Layout::Key).hold("u/1").unwrap();
        for (lock, since) in [(&before, 2), (&after, 3), (&later, 2), (&other, 0)] {
            for generation in 1..=3 {
                let pass = lock.pass(PassReason::Shadow, generation);
                assert_eq!(pass.is_some(), generation >= since, "{} under {generation}", lock.key());
                pass.into_iter().for_each(|pass| lock.leave_pass(pass));
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_said_of_the_same_keys_before_is_not_taken_back() {
    play(options(), async |_, source| {
        let locks = template(source, "t/", Layout::Key);
        let until = Instant::now() + SECOND * 60;
        source.enforce_since(&[turning("t/", 2, SECOND * 60)]);
        source.enforce_since(&[turning("t/", 4, Duration::ZERO)]);
        let lock = locks.hold("t/1").unwrap();
        let passes: Vec<_> = [1, 3, 4].map(|generation| lock.pass(PassReason::Exempt, generation).unwrap()).into();
        assert_eq!(lock.unseen_until(), Some(until));
        passes.into_iter().for_each(|pass| lock.leave_pass(pass));
        assert_eq!(lock.unseen_until(), None);
    })
    .await;
}

/// Each route that turned had each lock held against all that had turned before: with some hundred routes a reload took so long that the
/// service's watchdog ended it. With some thousand it was enough to hold each lock against each route once.
#[tokio::test(start_paused = true)]
async fn a_lock_is_held_once_against_those_routes_that_turn_and_begin_alike_then_only_where_somebody_is_unnamed() {
    const LOCKS: usize = 30;
    for begin_alike in [true, false] {
        play(options(), async |_, source| {
            let locks = template(source, "t/", Layout::Key);
            let key = |at: usize| format!("t/{at:02}");
            let locks: Vec<_> = (0..LOCKS).map(|at| locks.hold(&key(at)).unwrap()).collect();
            let asked = Arc::new(AtomicUsize::new(0));
            let turn = |at: usize, generation| {
                let (keys, own, asked) = (key(at), key(at), Arc::clone(&asked));
                let names = Arc::new(move |other: &str| {
                    asked.fetch_add(1, Ordering::Relaxed);
                    other == own
                });
                let prefix = if begin_alike { "t/".to_owned() } else { keys.clone() };
                Turning { watched: [keys.clone()].into(), keys, prefix, names, generation, counts_for: SECOND * 60 }
            };
            let turn_all = |generation| {
                let turning: Vec<_> = (0..LOCKS).map(|at| turn(at, generation)).collect();
                source.enforce_since(&turning);
                asked.swap(0, Ordering::Relaxed)
            };
            let barred = || locks.iter().filter(|lock| lock.unseen_until().is_some()).count();
            let alike = if begin_alike { LOCKS } else { 1 };

            assert_eq!(turn_all(2), LOCKS * alike, "nobody is there whose lock is not known");
            assert!(locks.iter().all(|lock| lock.pass(PassReason::Shadow, 1).is_none()));
            assert_eq!(barred(), 0);

            let nameless = source.nameless(&key(7));
            let passes = [2, 2].map(|generation| nameless.pass(PassReason::Shadow, generation).unwrap());
            assert_eq!(turn_all(3), LOCKS * alike + alike, "of all that have turned, one has somebody");
            assert_eq!(barred(), 1);

            for (pass, still_barred) in passes.into_iter().zip([1, 0]) {
                nameless.leave_pass(pass);
                assert_eq!((asked.load(Ordering::Relaxed), barred()), (0, still_barred));
            }
            nameless.leave_pass(nameless.pass(PassReason::Shadow, 3).unwrap());
            source.enforce_since(&[]);
            assert_eq!(asked.load(Ordering::Relaxed), 0, "where nothing turns, nothing is asked");
        })
        .await;
    }
}
