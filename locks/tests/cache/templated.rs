//! Locks whose keys come with the requests.

use std::sync::Arc;

use fencepost_locks::{LoadError, SourceOptions, Timing};
use fencepost_policy::{FenceToken, Layout, Verdict};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, ask, glance, load, options, pass, play, template, track};

#[tokio::test(start_paused = true)]
async fn however_many_ask_for_a_lock_it_is_loaded_once() {
    play(options(), async |store, source| {
        let at = store.put("t/1", "a");
        let locks = template(source, "t/", Layout::Key);
        pass(SECOND / 10).await;
        store.pause();
        let resume = async {
            pass(SECOND / 10).await;
            store.resume();
        };
        let loads = (0..256).map(|nth| {
            let locks = locks.clone();
            async move {
                pass(SECOND / 10_000 * nth).await;
                load(&locks, "t/1").await
            }
        });
        let (loaded, ()) = tokio::join!(join_all(loads), resume);
        assert!(loaded.iter().all(|lock| Arc::ptr_eq(lock, &loaded[0])));
        assert_eq!(store.calls().ranges_whole, 1);
        assert_eq!(glance(&loaded[0], "a", at), "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_cost_of_freshness_does_not_grow_with_the_number_of_locks() {
    for layout in [Layout::Key, Layout::Mutex] {
        play(options(), async |store, source| {
            let locks = template(source, "t/", layout);
            pass(SECOND).await; // It is watched.
            let keys: Vec<String> = (0..200).map(|nth| format!("t/{nth}")).collect();
            let mut held = Vec::new();
            for key in &keys {
                let stored = if layout == Layout::Key { key.clone() } else { format!("{key}/1") };
                let at = store.put(stored.clone(), stored.clone());
                held.push((load(&locks, key).await, stored, at));
            }
            pass(SECOND * 2).await;
            let before = store.calls();
            for _ in 0..10 {
                store.put("t/untracked/1", "x");
                pass(SECOND).await;
                assert!(held.iter().all(|(lock, owner, at)| glance(lock, owner, *at) == "admit"));
                assert!(held.iter().all(|(lock, ..)| lock.view().age(Instant::now()).unwrap() <= SECOND * 2));
            }
            let after = store.calls();
            assert_eq!((after.reads - before.reads, after.ranges_whole), (10, before.ranges_whole), "{layout:?}");
            assert_eq!((after.watches, after.reads_at), (before.watches, before.reads_at));
            assert_eq!(after.ranges_changed, before.ranges_changed, "the store never looked at all the keys");
        })
        .await;
    }
}

/// Each write has a revision of its own: one that the watch has not told of may be any.
#[tokio::test(start_paused = true)]
async fn what_is_written_elsewhere_or_is_not_here_yet_costs_a_windowed_read() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        pass(SECOND).await; // It is watched.
        let at = store.put("t/1", "a");
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        for hold in [false, true] {
            let before = store.calls();
            let key = if hold { "t/2" } else { "elsewhere" };
            if hold {
                store.hold_watches();
            }
            store.put(key, "x");
            pass(SECOND * 5).await;
            assert_eq!(store.calls().ranges_changed - before.ranges_changed, 1, "{key}");
            assert_eq!(glance(&lock, "a", at), "admit");
            assert!(lock.view().age(Instant::now()).unwrap() <= SECOND * 2);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn releases_and_takeovers_are_known_by_the_watch() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let at = store.put("t/1", "a");
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        store.delete("t/1");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "a", at), "no-owner");
        let next = store.put("t/1", "b");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "a", at), "stale-tenure");
        assert_eq!(glance(&lock, "b", next), "admit");
        pass(SECOND * 20).await;
        assert_eq!(glance(&lock, "b", next), "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_the_watch_holds_back_is_never_taken_for_no_change() {
    for layout in [Layout::Key, Layout::Election] {
        play(options(), async |store, source| {
            let locks = template(source, "t/", layout);
            let (mine, other) = if layout == Layout::Key { ("t/1", "t/2") } else { ("t/1/x", "t/2/x") };
            let at = store.put(mine, "a");
            let lock = load(&locks, "t/1").await;
            pass(SECOND * 2).await;
            store.hold_watches();
            // The number of keys stays what it was.
            store.delete(mine);
            store.put(other, "b");
            pass(MAX_AGE + SECOND).await;
            assert_eq!(glance(&lock, "a", at), "confirm", "{layout:?}");
            assert_eq!(ask(&lock, "a", at).await, "no-owner");
            // With the watch down, windows are begun anew; the lock is confirmed by itself, and right.
            let next = store.put(mine, "c");
            assert_eq!(ask(&lock, "c", next).await, "admit");
            store.release_watches();
            pass(SECOND * 3).await;
            assert_eq!(glance(&lock, "c", next), "admit");
            pass(SECOND * 20).await;
            assert_eq!(glance(&lock, "c", next), "admit", "the clock covers it again");
        })
        .await;
    }
}

/// `etcdctl lock` tells a holder that had to wait a revision above that of its key. Its request was confirmed and waited at the gate
/// while the watch was down: it was told `ahead-of-store`.
#[tokio::test(start_paused = true)]
async fn a_confirmed_mutex_holder_is_not_refused_because_a_new_window_begins_while_it_waits() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Mutex);
        store.put("t/1/a", "");
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        let token = FenceToken { owner: "t/1/a", revision: store.put("t/2/b", "") };
        pass(SECOND * 5 / 2).await;
        let arrived = Instant::now();
        lock.confirm(arrived, arrived + SECOND).await.unwrap();
        store.hold_watches();
        store.delete("t/2/b"); // No window can be verified until the watch has named it.
        pass(SECOND * 4).await;
        let timing = Timing { arrived, not_before: None, now: Instant::now(), max_age: MAX_AGE, linearizable: true };
        assert_eq!(lock.view().judge(&token, &timing), Verdict::Admit);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn history_of_a_scope_that_was_compacted_while_the_watch_was_down_begins_a_new_window() {
    let options = SourceOptions { period: MAX_AGE * 100, ..options() };
    play(options, async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let at = store.put("t/1", "a");
        let lock = load(&locks, "t/1").await;
        pass(SECOND).await;
        store.end_watches();
        store.put("t/1", "b");
        let newest = store.put("t/1", "c");
        store.compact(newest);
        pass(SECOND).await;
        assert_eq!(ask(&lock, "c", newest).await, "admit");
        assert_eq!(glance(&lock, "a", at), "stale-tenure");
        store.put("t/1", "d");
        pass(SECOND / 10).await;
        assert_eq!(glance(&lock, "c", newest), "stale-tenure", "it is watched again");
    })
    .await;
}

/// What dates the whole scope does not speak for a lock that was read before it began anew. One read is enough for it to do so again.
#[tokio::test(start_paused = true)]
async fn a_lock_that_a_new_window_has_left_behind_is_kept_fresh_again_once_that_is_asked_for() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        store.put("t/1", "a");
        store.put("t/2", "b");
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        store.hold_watches();
        store.delete("t/2"); // No window can be verified until the watch has named it.
        pass(SECOND * 3).await;
        store.release_watches();
        pass(MAX_AGE).await;
        let good_for = || lock.view().good_for(MAX_AGE, Instant::now());
        assert_eq!(good_for(), None);
        lock.want_news(MAX_AGE);
        for _ in 0..10 {
            pass(MAX_AGE).await;
            assert!(good_for() > Some(MAX_AGE / 2), "{:?}", good_for());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_made_up_keys_costs_a_bounded_number_of_reads_and_pushes_out_no_lock() {
    let options = SourceOptions { tracked_locks_max: 50, ..options() };
    play(options, async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let mut real = Vec::new();
        for nth in 0..50 {
            let key = format!("t/{nth}");
            let at = store.put(key.clone(), "a");
            load(&locks, &key).await;
            real.push((key, at));
        }
        let (before, began) = (store.calls(), Instant::now());
        for nth in 0..1_000 {
            let lock = load(&locks, &format!("t/made-up-{nth}")).await;
            // A token of the future makes it be read again, and that is paid for too.
            let _ = ask(&lock, "x", fencepost_policy::Revision::MAX).await;
        }
        let seconds = began.elapsed().as_secs();
        assert!(seconds >= 14, "2,000 requests took {seconds} s");
        // And one each second that keeps the locks fresh.
        assert!(store.calls().reads - before.reads <= 500 + 101 * (seconds + 1), "{:?} in {seconds} s", store.calls());
        // As many at once as never before: some are turned away, and the others are read together.
        let before = store.calls();
        let names: Vec<String> = (0..19_000).map(|nth| format!("t/made-up-too-{nth}")).collect();
        let loaded = join_all(names.iter().map(|name| locks.load(name, Instant::now() + SECOND))).await;
        let overloaded = loaded.iter().filter(|loaded| matches!(loaded, Err(LoadError::Overloaded))).count();
        assert_eq!((loaded.iter().filter(|loaded| loaded.is_ok()).count(), overloaded), (6_400, 12_600));
        assert!(store.calls().reads - before.reads <= 6_400 / 128 + 2, "{:?}, {:?}", before, store.calls());
        for (key, at) in &real {
            let lock = locks.get(key).expect("it is still there");
            assert_eq!(glance(&lock, "a", *at), "admit");
        }
        // Locks that exist are loaded all the same once there is a token, and give it back.
        pass(SECOND / 50).await;
        store.put("t/late", "a");
        load(&locks, "t/late").await;
    })
    .await;
}

/// Its bucket was empty, and whoever came with a lock that was not known was refused at once, true holders too: for 22 s after a restart.
#[tokio::test(start_paused = true)]
async fn a_true_holder_whose_lock_is_not_known_gets_in_beside_a_flood_of_made_up_keys() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let real: Vec<String> = (0..50).map(|nth| format!("t/{nth}")).collect();
        let held: Vec<_> = real.iter().map(|key| store.put(key.clone(), "a")).collect();
        let flood = async {
            for round in 0.. {
                let names: Vec<String> = (0..100).map(|nth| format!("t/made-up-{round}-{nth}")).collect();
                let asked = join_all(names.iter().map(|name| locks.load(name, Instant::now() + SECOND)));
                tokio::join!(asked, pass(SECOND / 100));
            }
        };
        let holders = async {
            pass(SECOND * 10).await;
            for (key, at) in real.iter().zip(held) {
                let came = Instant::now();
                let lock = load(&locks, key).await;
                assert_eq!(ask(&lock, "a", at).await, "admit");
                assert!(came.elapsed() < SECOND / 10, "{:?}", came.elapsed());
            }
        };
        tokio::select! {
            () = flood => {}
            () = holders => {}
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_in_use_is_never_forgotten_nor_doubled_and_idle_ones_are() {
    let options = SourceOptions { tracked_locks_max: 10, ..options() };
    play(options, async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let at = store.put("t/held", "a");
        let held = load(&locks, "t/held").await;
        for nth in 0..500 {
            let key = format!("t/{nth}");
            store.put(key.clone(), "a");
            load(&locks, &key).await;
        }
        assert!(source.status(Instant::now()).templated_locks < 300, "{:?}", source.status(Instant::now()));
        assert!(Arc::ptr_eq(&held, &locks.get("t/held").unwrap()));
        assert!(Arc::ptr_eq(&held, &load(&locks, "t/held").await));
        store.put("t/held", "b");
        pass(SECOND / 100).await;
        assert_eq!(glance(&held, "a", at), "stale-tenure", "what fell out of the cache is still watched");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn for_one_more_lock_one_goes_that_nobody_has_asked_for_of_late() {
    let options = SourceOptions { tracked_locks_max: 10, ..options() };
    play(options, async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let name = |nth: u32| format!("t/{nth}");
        for nth in 0..30 {
            store.put(name(nth), "a");
        }
        for nth in 0..10 {
            load(&locks, &name(nth)).await;
        }
        for nth in [0, 2, 4] {
            assert!(locks.get(&name(nth)).is_some());
        }
        for nth in 10..15 {
            load(&locks, &name(nth)).await;
        }
        let kept = || (0..30).filter(|nth| source.find(&name(*nth)).is_some()).collect::<Vec<u32>>();
        assert_eq!(kept(), [0, 2, 4, 8, 9, 10, 11, 12, 13, 14]);
        for nth in kept() {
            assert!(locks.get(&name(nth)).is_some());
        }
        load(&locks, &name(15)).await;
        assert_eq!(kept().len(), 10, "though all were asked for");
        assert!(source.find(&name(15)).is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_comes_to_exist_is_found_by_those_who_asked_before() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let lock = load(&locks, "t/1").await;
        assert_eq!(ask(&lock, "a", store.revision()).await, "no-owner");
        let at = store.put("t/1", "a");
        assert_eq!(ask(&lock, "a", at).await, "admit");
        assert!(Arc::ptr_eq(&lock, &locks.get("t/1").unwrap()));
        pass(SECOND * 10).await;
        assert_eq!(glance(&lock, "a", at), "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_comes_to_exist_is_kept_among_those_that_do() {
    let options = SourceOptions { tracked_locks_max: 1, ..options() };
    play(options, async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        store.put("t/1", "a");
        pass(SECOND / 10).await;
        assert!(locks.get("t/1").is_some());
        store.put("t/2", "a");
        load(&locks, "t/2").await;
        assert!(source.find("t/1").is_none() && source.find("t/2").is_some(), "one of them is kept");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_static_lock_below_a_template_is_one_lock() {
    play(options(), async |store, source| {
        let fixed = track(source, "t/1", Layout::Key);
        let locks = template(source, "t/", Layout::Key);
        assert!(Arc::ptr_eq(&fixed, &load(&locks, "t/1").await));
        let other = template(source, "t/", Layout::Mutex);
        assert!(other.get("t/1").is_none());
        assert!(matches!(other.load("t/1", Instant::now() + SECOND).await, Err(LoadError::Conflict(_))));
        assert!(matches!(locks.load("u/1", Instant::now() + SECOND).await, Err(LoadError::Outside)));
        let _others = load(&template(source, "u/", Layout::Key), "u/1").await;
        assert!(locks.get("u/1").is_none(), "whoever else has it tracked");
        assert!(matches!(locks.load("u/1", Instant::now() + SECOND).await, Err(LoadError::Outside)));
        let at = store.put("t/1", "a");
        assert_eq!(ask(&fixed, "a", at).await, "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_load_ends_by_its_deadline_though_the_store_is_silent() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        store.pause();
        let asked = Instant::now();
        assert!(matches!(locks.load("t/1", asked + SECOND / 5).await, Err(LoadError::Unread(_))));
        assert!(asked.elapsed() <= SECOND / 5);
        store.resume();
        load(&locks, "t/1").await;
    })
    .await;
}

/// Five thousand at once were more than etcd answers in the time of a read: none was answered, and all began anew.
#[tokio::test(start_paused = true)]
async fn however_many_prefixes_there_are_five_hundred_are_read_at_once() {
    play(options(), async |store, source| {
        store.pause();
        let _templates: Vec<_> = (0..600).map(|number| template(source, &format!("/{number}/"), Layout::Key)).collect();
        pass(SECOND / 100).await;
        assert_eq!(store.calls().reads, 512);
        store.resume();
        pass(SECOND / 100).await;
        assert!(store.calls().reads >= 600, "the others have their turn");
    })
    .await;
}

/// Named locks were counted among those that wait to be read for the first time: beside 20,000 of them no other was ever looked for.
#[tokio::test(start_paused = true)]
async fn however_many_locks_are_named_others_are_found() {
    play(options(), async |store, source| {
        let named: Vec<_> = (0..20_001).map(|number| track(source, &format!("named/{number}"), Layout::Key)).collect();
        let held = store.put("t/1", "a");
        while !source.ready() {
            pass(SECOND / 10).await;
        }
        let locks = template(source, "t/", Layout::Key);
        pass(SECOND * 2).await;
        let lock = locks.load("t/1", Instant::now() + SECOND).await.expect("nobody else asks for a lock");
        assert_eq!(ask(&lock, "a", held).await, "admit");
        drop(named);
    })
    .await;
}
