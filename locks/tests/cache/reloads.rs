//! What a source keeps when it is told what is tracked from now on.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use fencepost_locks::{LockSource, MemoryStore, SourceOptions, Timing};
use fencepost_policy::{FenceToken, Layout};
use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, glance, load, options, pass, play, template, track, tracked};

/// How many ranges of locks and of templates were read in the last period.
async fn read_in_a_period(store: &MemoryStore) -> (u64, u64) {
    pass(SECOND * 2).await; // What began before has ended.
    let before = store.calls();
    pass(SECOND).await;
    let after = store.calls();
    (after.ranges_whole - before.ranges_whole, after.ranges_counted - before.ranges_counted)
}

#[tokio::test(start_paused = true)]
async fn lock_tracked_no_longer_is_read_while_it_is_held() {
    play(options(), async |store, source| {
        let at = store.put("one", "a");
        store.put("t/1", "a");
        let (one, templated) = (tracked(source, "one").await, template(source, "t/", Layout::Key));
        let of_template = load(&templated, "t/1").await;
        assert_eq!(read_in_a_period(store).await, (1, 1));

        source.keep(&[], &[]);
        drop(templated);
        assert_eq!(read_in_a_period(store).await, (1, 1), "both are held");
        assert_eq!(glance(&one, "a", at), "admit");
        assert!(Arc::ptr_eq(&one, &track(source, "one", Layout::Key)), "there is no second one");
        source.keep(&[], &[]);

        drop((one, of_template));
        assert_eq!(read_in_a_period(store).await, (0, 0));
        assert!(source.locks().is_empty() && source.ready());
    })
    .await;
}

/// It stayed in the cache for good, and kept its key from being read in another way, or from
/// another source.
#[tokio::test(start_paused = true)]
async fn lock_of_a_removed_template_is_not_kept() {
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
async fn store_is_neither_up_nor_down_while_nothing_is_read() {
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
async fn tracked_lock_keeps_its_gate_though_nobody_holds_it() {
    play(options(), async |store, source| {
        let at = store.put("one", "a");
        store.put("t/1", "a");
        store.put("u/1", "a");
        let (one, kept, left) = (
            tracked(source, "one").await,
            template(source, "t/", Layout::Key),
            template(source, "u/", Layout::Key),
        );
        load(&kept, "t/1").await;
        load(&left, "u/1").await;
        let now = Instant::now();
        let timing =
            Timing { arrived: now, not_before: None, now, max_age: MAX_AGE, linearizable: false };
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
        assert_eq!(read_in_a_period(store).await, (1, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn templated_lock_that_is_named_stays_fresh() {
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

/// What was to be read next in an hour was: uploads and tunnels under the lock were cut long
/// before.
#[tokio::test(start_paused = true)]
async fn whatever_is_kept_fresh_is_read_as_often_as_it_now_has_to_be() {
    let an_hour = SECOND * 3600;
    play(SourceOptions { period: an_hour, ..options() }, async |store, source| {
        store.put("one", "a");
        store.put("t/1", "a");
        let (_one, templated) = (tracked(source, "one").await, template(source, "t/", Layout::Key));
        let _of_template = load(&templated, "t/1").await;
        assert_eq!(read_in_a_period(store).await, (0, 0));
        source.set_period(SECOND);
        assert_eq!(read_in_a_period(store).await, (1, 1));

        // A file that was tried and refused leaves nothing of it behind.
        source.set_period(an_hour);
        pass(SECOND * 2).await;
        source.set_period(SECOND);
        assert_eq!(read_in_a_period(store).await, (1, 1));
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
