//! A store that is away, or forgets.

use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, ask, glance, options, pass, play, tracked};

#[tokio::test(start_paused = true)]
async fn store_that_is_away_admits_nobody_after_max_age() {
    play(options(), async |store, source| {
        let ended = store.put("lock", "a");
        let present = store.put("lock", "b");
        let lock = tracked(source, "lock").await;
        pass(SECOND / 2).await;
        store.pause();
        pass(MAX_AGE - SECOND).await;
        assert_eq!(ask(&lock, "b", present).await, "admit");
        pass(SECOND).await;
        let asked = Instant::now();
        assert_eq!(ask(&lock, "b", present).await, "unverifiable");
        assert!(asked.elapsed() <= SECOND, "it is answered by its deadline");
        assert_eq!(glance(&lock, "a", ended), "stale-tenure");
        assert_eq!(source.status(Instant::now()).up, Some(false));
        store.resume();
        pass(SECOND * 3 / 2).await;
        assert_eq!(glance(&lock, "b", present), "admit");
        assert_eq!(source.status(Instant::now()).up, Some(true));
    })
    .await;
}

/// It used to be called up until nobody was admitted any more, and its members were as they had
/// been at the start.
#[tokio::test(start_paused = true)]
async fn failing_store_is_down_soon_and_its_members_are_asked() {
    play(options(), async |store, source| {
        tracked(source, "lock").await;
        let is_up = || source.status(Instant::now()).up == Some(true);
        let is_well =
            || source.status(Instant::now()).members.iter().all(|member| member.version.is_ok());
        pass(SECOND / 2).await;
        store.pause();
        pass(SECOND / 10).await;
        assert!(is_up(), "no read has failed yet");
        // The last read that was answered was sent at the start, and the one after it fails within
        // half a second.
        pass(SECOND * 13 / 10).await;
        assert!(is_up(), "a single read that is lost is no outage");
        pass(SECOND * 2 / 10).await;
        assert!(!is_up(), "two fifths of max_age have passed");
        assert!(!is_well(), "the members were asked when the reads began to fail");
        let before = store.calls().members;
        pass(SECOND * 60).await;
        assert!((11..=13).contains(&(store.calls().members - before)), "every five seconds");
        store.resume();
        pass(SECOND * 2).await;
        assert!(is_up() && is_well(), "they were asked when it answered again");
        let before = store.calls().members;
        pass(SECOND * 60).await;
        assert_eq!(store.calls().members - before, 2, "all is well: twice a minute");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn store_read_often_is_not_down_within_a_second() {
    let often = fencepost_locks::SourceOptions { period: SECOND / 5, ..options() };
    play(often, async |store, source| {
        tracked(source, "lock").await;
        let is_up = || source.status(Instant::now()).up == Some(true);
        pass(SECOND / 10).await;
        store.pause();
        pass(SECOND * 8 / 10).await;
        assert!(is_up());
        pass(SECOND * 2 / 10).await;
        assert!(!is_up());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn takeover_in_an_outage_is_known_once_the_store_is_back() {
    play(options(), async |store, source| {
        let old = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        store.pause();
        store.end_watches();
        store.delete("lock");
        let new = store.put("lock", "b");
        pass(MAX_AGE * 2).await;
        store.resume();
        assert_eq!(ask(&lock, "b", new).await, "admit");
        assert_eq!(ask(&lock, "a", old).await, "stale-tenure");
        pass(SECOND * 2).await;
        store.put("lock", "c");
        pass(SECOND / 10).await;
        assert_eq!(glance(&lock, "b", new), "stale-tenure", "it is watched again");
        assert!(source.status(Instant::now()).watch_restarts > 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn history_compacted_while_the_watch_is_down_is_read_again() {
    // So that no freshness read comes first.
    let options = fencepost_locks::SourceOptions { period: MAX_AGE * 100, ..options() };
    play(options, async |store, source| {
        let old = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        pass(SECOND).await;
        store.end_watches();
        store.put("lock", "b");
        let newest = store.put("lock", "c");
        store.compact(newest);
        pass(SECOND).await;
        assert_eq!(glance(&lock, "c", newest), "admit");
        assert_eq!(glance(&lock, "a", old), "stale-tenure");
        store.put("lock", "d");
        pass(SECOND / 10).await;
        assert_eq!(glance(&lock, "c", newest), "stale-tenure", "it is watched again");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failing_reads_are_repeated_with_pauses_that_grow() {
    play(options(), async |store, source| {
        tracked(source, "lock").await;
        store.pause();
        let before = store.calls().reads;
        pass(SECOND * 60).await;
        let reads = store.calls().reads - before;
        assert!((30..130).contains(&reads), "{reads} reads in a minute");
        assert!(source.status(Instant::now()).last_error.is_some());
    })
    .await;
}
