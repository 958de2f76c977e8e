//! Locks whose keys come with the requests.

use std::sync::Arc;

use fencepost_locks::{LoadError, SourceOptions};
use fencepost_policy::Layout;
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

/// Nobody waits for these reads, and idle locks cost nothing.
#[tokio::test(start_paused = true)]
async fn locks_in_use_are_kept_fresh_by_few_requests() {
    for layout in [Layout::Key, Layout::Mutex] {
        play(options(), async |store, source| {
            let locks = template(source, "t/", layout);
            pass(SECOND).await; // It is watched.
            let mut held = Vec::new();
            for nth in 0..200 {
                let key = format!("t/{nth}");
                let stored = if layout == Layout::Key { key.clone() } else { format!("{key}/1") };
                let at = store.put(stored.clone(), stored.clone());
                held.push((load(&locks, &key).await, key, stored, at));
            }
            pass(MAX_AGE * 2).await;
            let before = store.calls();
            for (lock, _, owner, at) in &held {
                assert_eq!(ask(lock, owner, *at).await, "admit", "{layout:?}");
            }
            pass(SECOND).await;
            let asked = store.calls();
            for _ in 0..40 {
                pass(SECOND / 4).await;
                for (_, key, owner, at) in &held {
                    assert_eq!(glance(&locks.get(key).unwrap(), owner, *at), "admit", "{layout:?}");
                }
            }
            let after = store.calls();
            assert!(after.reads - asked.reads <= 10 + 6 * 3, "{layout:?}: {before:?}, {after:?}");
            pass(SECOND * 10).await;
            let idle = store.calls();
            assert_eq!(
                (idle.reads - after.reads, idle.ranges_whole),
                (10, after.ranges_whole),
                "{layout:?}"
            );
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn releases_and_takeovers_are_known_by_the_watch() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        pass(SECOND).await; // It is watched.
        let at = store.put("t/1", "a");
        let lock = load(&locks, "t/1").await;
        store.delete("t/1");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "a", at), "no-owner");
        let next = store.put("t/1", "b");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "a", at), "stale-tenure");
        assert_eq!(glance(&lock, "b", next), "admit");
        pass(SECOND * 20).await;
        assert_eq!(ask(&lock, "b", next).await, "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn release_that_the_watch_holds_back_is_no_renewal() {
    for layout in [Layout::Key, Layout::Election] {
        play(options(), async |store, source| {
            let locks = template(source, "t/", layout);
            let (mine, other) =
                if layout == Layout::Key { ("t/1", "t/2") } else { ("t/1/x", "t/2/x") };
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
            let next = store.put(mine, "c");
            assert_eq!(ask(&lock, "c", next).await, "admit");
            store.release_watches();
            pass(SECOND * 3).await;
            assert_eq!(glance(&lock, "c", next), "admit");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn compacted_history_of_a_template_has_its_locks_read_again() {
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

#[tokio::test(start_paused = true)]
async fn flood_of_made_up_keys_is_bounded_and_pushes_out_no_lock() {
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
        assert!(
            store.calls().reads - before.reads <= 101 * (seconds + 1),
            "{:?} in {seconds} s",
            store.calls()
        );
        // As many at once as never before: some are turned away, and the others are read together.
        let before = store.calls();
        let names: Vec<String> = (0..19_000).map(|nth| format!("t/made-up-too-{nth}")).collect();
        let loaded =
            join_all(names.iter().map(|name| locks.load(name, Instant::now() + SECOND))).await;
        let overloaded =
            loaded.iter().filter(|loaded| matches!(loaded, Err(LoadError::Overloaded))).count();
        assert_eq!(
            (loaded.iter().filter(|loaded| loaded.is_ok()).count(), overloaded),
            (6_400, 12_600)
        );
        assert!(
            store.calls().reads - before.reads <= 6_400 / 128 + 2,
            "{:?}, {:?}",
            before,
            store.calls()
        );
        for (key, at) in &real {
            let lock = locks.get(key).expect("it is still there");
            assert_eq!(ask(&lock, "a", *at).await, "admit");
        }
        pass(SECOND / 50).await;
        store.put("t/late", "a");
        load(&locks, "t/late").await;
    })
    .await;
}

/// A flood of unknown locks does not have the true holders refused, right after a restart too.
#[tokio::test(start_paused = true)]
async fn true_holder_gets_in_beside_a_flood_of_made_up_keys() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let real: Vec<String> = (0..50).map(|nth| format!("t/{nth}")).collect();
        let held: Vec<_> = real.iter().map(|key| store.put(key.clone(), "a")).collect();
        let flood = async {
            for round in 0.. {
                let names: Vec<String> =
                    (0..100).map(|nth| format!("t/made-up-{round}-{nth}")).collect();
                let asked =
                    join_all(names.iter().map(|name| locks.load(name, Instant::now() + SECOND)));
                tokio::join!(asked, pass(SECOND / 100));
            }
        };
        let holders = async {
            pass(SECOND * 10).await;
            for (key, at) in real.iter().zip(held) {
                let came = Instant::now();
                let lock = load(&locks, key).await;
                assert_eq!(ask(&lock, "a", at).await, "admit");
                assert!(came.elapsed() < SECOND / 5, "{:?}", came.elapsed());
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
async fn lock_in_use_is_never_forgotten_and_idle_ones_are() {
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
        assert!(
            source.status(Instant::now()).templated_locks < 300,
            "{:?}",
            source.status(Instant::now())
        );
        assert!(Arc::ptr_eq(&held, &locks.get("t/held").unwrap()));
        assert!(Arc::ptr_eq(&held, &load(&locks, "t/held").await));
        store.put("t/held", "b");
        pass(SECOND / 100).await;
        assert_eq!(
            glance(&held, "a", at),
            "stale-tenure",
            "what fell out of the cache is still watched"
        );
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
        let kept =
            || (0..30).filter(|nth| source.find(&name(*nth)).is_some()).collect::<Vec<u32>>();
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
async fn lock_that_comes_to_exist_is_found_by_earlier_requests() {
    play(options(), async |store, source| {
        let locks = template(source, "t/", Layout::Key);
        let lock = load(&locks, "t/1").await;
        assert_eq!(ask(&lock, "a", store.revision()).await, "no-owner");
        let at = store.put("t/1", "a");
        assert_eq!(ask(&lock, "a", at).await, "admit");
        assert!(Arc::ptr_eq(&lock, &locks.get("t/1").unwrap()));
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
        assert!(
            source.find("t/1").is_none() && source.find("t/2").is_some(),
            "one of them is kept"
        );
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
        assert!(matches!(
            other.load("t/1", Instant::now() + SECOND).await,
            Err(LoadError::Conflict(_))
        ));
        assert!(matches!(
            locks.load("u/1", Instant::now() + SECOND).await,
            Err(LoadError::Outside)
        ));
        let _others = load(&template(source, "u/", Layout::Key), "u/1").await;
        assert!(locks.get("u/1").is_none(), "whoever else has it tracked");
        assert!(matches!(
            locks.load("u/1", Instant::now() + SECOND).await,
            Err(LoadError::Outside)
        ));
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

/// Named locks were counted among those that wait to be read for the first time: beside 20,000 of
/// them no other was ever looked for.
#[tokio::test(start_paused = true)]
async fn however_many_locks_are_named_others_are_found() {
    play(options(), async |store, source| {
        let named: Vec<_> = (0..20_001)
            .map(|number| track(source, &format!("named/{number}"), Layout::Key))
            .collect();
        let held = store.put("t/1", "a");
        while !source.ready() {
            pass(SECOND / 10).await;
        }
        let locks = template(source, "t/", Layout::Key);
        pass(SECOND * 2).await;
        let lock =
            locks.load("t/1", Instant::now() + SECOND).await.expect("nobody else asks for a lock");
        assert_eq!(ask(&lock, "a", held).await, "admit");
        drop(named);
    })
    .await;
}
