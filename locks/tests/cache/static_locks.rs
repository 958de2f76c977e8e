//! Locks whose keys are known beforehand.

use std::sync::Arc;

use fencepost_locks::{LockSource, LockSpec, MemoryStore, RecordFormat, Unconfirmed, Write};
use fencepost_policy::{Layout, LockKey, Revision};
use fencepost_tests::eventually;
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::world::{
    MAX_AGE, SECOND, ask, ask_linearizable, glance, options, pass, play, play_with, track, tracked,
};

#[tokio::test(start_paused = true)]
async fn a_successor_is_admitted_at_once_and_its_predecessor_no_more() {
    play(options(), async |store, source| {
        let mut holder = store.put("lock", "m0");
        let lock = tracked(source, "lock").await;
        for takeover in 1..=100 {
            let (old, new) = (format!("m{}", takeover - 1), format!("m{takeover}"));
            let successor = store.put("lock", new.clone());
            assert_eq!(ask(&lock, &new, successor).await, "admit");
            assert_eq!(ask(&lock, &old, holder).await, "stale-tenure");
            holder = successor;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_successor_is_admitted_though_the_watch_says_nothing() {
    play(options(), async |store, source| {
        let old = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        store.hold_watches();
        let new = store.put("lock", "b");
        assert_eq!(glance(&lock, "b", new), "confirm");
        assert_eq!(ask(&lock, "b", new).await, "admit");
        store.release_watches();
        pass(SECOND / 10).await;
        assert_eq!(ask(&lock, "a", old).await, "stale-tenure");
        assert_eq!(glance(&lock, "b", new), "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_watch_tells_of_a_takeover_without_a_read() {
    play(options(), async |store, source| {
        let old = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        pass(SECOND / 100).await; // It is read again as soon as the watch has begun.
        let (before, _) = (source.status(Instant::now()).reads, store.put("lock", "b"));
        pass(SECOND / 10).await;
        assert_eq!(glance(&lock, "a", old), "stale-tenure");
        assert_eq!(source.status(Instant::now()).reads, before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tenures_that_passed_while_the_watch_was_down_are_not_bridged() {
    play(options(), async |store, source| {
        let first = store.put("lock", "shard-1");
        let lock = tracked(source, "lock").await;
        store.pause();
        store.end_watches();
        store.put("lock", "shard-2");
        let third = store.put("lock", "shard-1");
        store.resume();
        assert_eq!(ask(&lock, "shard-1", third).await, "admit");
        assert_eq!(ask(&lock, "shard-1", first).await, "replayed-tenure");
        pass(SECOND * 3).await;
        assert_eq!(ask(&lock, "shard-1", first).await, "replayed-tenure");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cold_start_looks_back_to_where_the_tenure_began() {
    for compacted in [false, true] {
        let store = MemoryStore::new();
        let other = store.put("lock", "b");
        let first = store.put("lock", "a");
        let renewal = store.put("lock", "a");
        let last = store.put("lock", "a");
        if compacted {
            store.compact(renewal);
        }
        play_with(store, options(), async |_, source| {
            let lock = tracked(source, "lock").await;
            assert_eq!(ask(&lock, "b", other).await, "stale-tenure");
            assert_eq!(
                ask(&lock, "a", first).await,
                if compacted { "replayed-tenure" } else { "admit" }
            );
            assert_eq!(ask(&lock, "a", renewal).await, "admit");
            assert_eq!(ask(&lock, "a", last).await, "admit");
        })
        .await;
    }
}

/// It was read again a period later only, and a renewal meanwhile had to be looked at from its end:
/// the holder was refused who had sent an earlier one.
#[tokio::test(start_paused = true)]
async fn lock_renewed_and_compacted_at_the_start_is_one_tenure() {
    play(options(), async |store, source| {
        let first = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        pass(SECOND / 100).await;
        let renewal = store.put("lock", "a");
        store.compact(renewal);
        pass(SECOND / 100).await;
        assert_eq!(ask(&lock, "a", renewal).await, "admit");
        assert_eq!(ask(&lock, "a", first).await, "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_hundred_and_fifty_six_waiters_cost_two_reads() {
    play(options(), async |store, source| {
        let at = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        let before = source.status(Instant::now()).reads.confirms;
        store.pause();
        let resume = async {
            pass(SECOND / 100).await;
            store.resume();
        };
        let requests = (0..256).map(|nth| {
            let lock = Arc::clone(&lock);
            async move {
                pass(SECOND / 100_000 * nth).await;
                ask_linearizable(&lock, "a", at).await
            }
        });
        let (verdicts, ()) = tokio::join!(join_all(requests), resume);
        assert!(verdicts.iter().all(|verdict| *verdict == "admit"));
        assert_eq!(source.status(Instant::now()).reads.confirms - before, 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn steady_state_costs_freshness_reads_only() {
    play(options(), async |store, source| {
        let at = [store.put("one", "a"), store.put("two", "a")];
        let locks = [tracked(source, "one").await, tracked(source, "two").await];
        pass(SECOND / 2).await;
        let before = store.calls();
        for _ in 0..1000 {
            for (lock, at) in locks.iter().zip(at) {
                assert_eq!(glance(lock, "a", at), "admit");
            }
            pass(SECOND / 100).await;
        }
        let after = store.calls();
        assert_eq!(
            (after.reads - before.reads, after.ranges_whole - before.ranges_whole),
            (10, 20)
        );
        assert_eq!((after.reads_at, after.watches), (before.reads_at, before.watches));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_linearizable_route_admits_only_by_a_read_of_its_own() {
    play(options(), async |store, source| {
        let old = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        store.hold_watches();
        store.put("lock", "b");
        assert_eq!(glance(&lock, "a", old), "admit", "a cached route can't know better yet");
        assert_eq!(ask_linearizable(&lock, "a", old).await, "stale-tenure");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn lock_tracked_later_is_watched_and_is_one_for_all() {
    play(options(), async |store, source| {
        tracked(source, "one").await;
        pass(SECOND / 2).await;
        let old = store.put("two", "a");
        let two = tracked(source, "two").await;
        assert!(Arc::ptr_eq(&two, &track(source, "two", Layout::Key)));
        let format = RecordFormat::plain(Layout::Mutex).into();
        assert!(source.track(LockSpec { key: LockKey::new("two").unwrap(), format }).is_err());
        pass(SECOND / 10).await;
        store.put("two", "b");
        pass(SECOND / 10).await;
        assert_eq!(glance(&two, "a", old), "stale-tenure");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_named_and_admits_nobody() {
    play(options(), async |store, source| {
        let format = RecordFormat {
            owner_field: Some("owner".to_owned()),
            ..RecordFormat::plain(Layout::Key)
        }
        .into();
        let lock = source.track(LockSpec { key: LockKey::new("lock").unwrap(), format }).unwrap();
        let at = store.put("lock", r#"{"holder":"a"}"#);
        pass(SECOND / 10).await;
        assert_eq!(ask(&lock, "a", at).await, "unverifiable");
        let description = lock.describe(Instant::now());
        let problem = "the record of lock is a JSON object without the field \"owner\"";
        assert_eq!(description.problem.as_deref(), Some(problem));
        assert!(source.ready(), "it has been read");
        let at = store.put("lock", r#"{"owner":"a"}"#);
        assert_eq!(ask(&lock, "a", at).await, "admit");
        assert!(lock.describe(Instant::now()).problem.is_none());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_keys_of_one_transaction_do_not_enter_side_by_side() {
    let put = |key: &'static str, value: &'static str| Write::Put {
        key: key.into(),
        value: value.into(),
    };
    for (layout, owners) in [(Layout::Mutex, ["l/a", "l/b"]), (Layout::Election, ["a", "b"])] {
        for read in [true, false] {
            play(options(), async |store, source| {
                let pair = [put("l/a", "a"), put("l/b", "b")];
                let before = read.then(|| store.transact(pair.clone()));
                let lock = track(source, "l", layout);
                pass(SECOND / 10).await;
                let at = before.unwrap_or_else(|| store.transact(pair));
                for owner in owners {
                    assert_eq!(ask(&lock, owner, at).await, "unverifiable", "{layout:?}, {owner}");
                }
                let problem = format!(
                    "below l one transaction created several keys that are first (create_revision {at}), so that nobody is the \
                     holder: delete all but one"
                );
                assert_eq!(lock.describe(Instant::now()).problem.as_deref(), Some(problem.as_str()));
                store.delete("l/a").unwrap();
                assert_eq!(ask(&lock, owners[0], at).await, "not-owner", "{layout:?}");
                assert_eq!(ask(&lock, owners[1], at).await, "admit", "{layout:?}");
                assert!(lock.describe(Instant::now()).problem.is_none());
            })
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn queues_are_read_and_watched_as_their_clients_lay_them_out() {
    play(options(), async |store, source| {
        let (mutex, election) =
            (track(source, "m", Layout::Mutex), track(source, "e", Layout::Election));
        let holder = store.put("m/1", "");
        let waiter = store.put("m/2", "");
        let leader = store.put("e/1", "a");
        assert_eq!(ask(&mutex, "m/1", holder).await, "admit");
        assert_eq!(
            ask(&mutex, "m/1", store.revision()).await,
            "admit",
            "etcdctl lock tells a later revision"
        );
        assert_eq!(ask(&mutex, "m/2", waiter).await, "not-owner");
        assert_eq!(ask(&election, "a", leader).await, "admit");
        store.put("e/1", "renamed");
        assert_eq!(ask(&election, "renamed", leader).await, "admit");
        store.delete("m/1");
        store.delete("e/1");
        pass(SECOND / 10).await;
        assert_eq!(glance(&mutex, "m/1", holder), "stale-tenure");
        assert_eq!(glance(&election, "renamed", leader), "no-owner");
        assert_eq!(ask(&mutex, "m/2", waiter).await, "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn request_that_waited_beyond_max_age_is_confirmed_again() {
    use fencepost_locks::Timing;
    use fencepost_policy::{EnterError, FenceToken};

    play(options(), async |store, source| {
        let at = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        let arrived = Instant::now();
        lock.confirm(arrived, arrived + SECOND).await.unwrap();
        store.pause();
        pass(MAX_AGE + SECOND).await;
        let token = FenceToken { owner: "a", revision: at };
        let timing = Timing {
            arrived,
            not_before: None,
            now: Instant::now(),
            max_age: MAX_AGE,
            linearizable: true,
        };
        assert!(matches!(lock.enter(&token, &timing), Err(EnterError::Confirm)));
        store.resume();
        lock.confirm(timing.now, timing.now + SECOND).await.unwrap();
        let Ok(admission) = lock.enter(&token, &timing) else { panic!("it is admitted") };
        lock.leave(admission);
    })
    .await;
}

#[tokio::test]
async fn source_on_its_own_thread_serves_others_until_stopped() {
    let store = MemoryStore::new();
    let at = store.put("lock", "a");
    let source = LockSource::spawn("test", options(), move || store).unwrap();
    let lock = track(&source, "lock", Layout::Key);
    let now = Instant::now();
    lock.confirm(now, now + 10 * SECOND).await.unwrap();
    eventually("it is watched, too", async || source.ready().then_some(())).await;
    assert_eq!(glance(&lock, "a", at), "admit");
    assert!(source.status(Instant::now()).up == Some(true));
    source.stop();
    // A read that was asked for before may still confirm; then nobody reads any more.
    let ended = loop {
        let now = Instant::now();
        if let Err(ended) = lock.confirm(now, now + 10 * SECOND).await {
            break ended;
        }
    };
    assert!(matches!(ended, Unconfirmed::Stopped), "{ended}");
    assert!(source.accept_regression().await.is_err());
    assert_eq!(source.status(Instant::now()).up, Some(false));
}

#[tokio::test(start_paused = true)]
async fn what_is_described_is_what_is_known() {
    play(options(), async |store, source| {
        let at = store.put("lock", "a");
        let lock = tracked(source, "lock").await;
        store.put("elsewhere", "x");
        pass(SECOND * 2).await;
        let description = lock.describe(Instant::now());
        let (owner, first, last) = description.holder.unwrap();
        assert_eq!((owner.to_string().as_str(), first, last), ("a", at, at));
        assert_eq!(description.as_of, Revision::new(3));
        assert!(description.age.unwrap() <= SECOND);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tenures_are_counted_and_renewals_are_not() {
    play(options(), async |store, source| {
        let tenures = || source.status(Instant::now()).tenures;
        store.put("lock", "a");
        let _lock = tracked(source, "lock").await;
        pass(SECOND / 10).await;
        assert_eq!(tenures(), 0, "the first began before anybody looked");
        for (owner, begun) in
            [(Some("b"), 1), (Some("b"), 1), (None, 1), (Some("b"), 2), (Some("a"), 3), (None, 3)]
        {
            match owner {
                Some(owner) => {
                    store.put("lock", owner);
                }
                None => {
                    store.delete("lock");
                }
            }
            pass(SECOND / 10).await;
            assert_eq!(tenures(), begun, "after {owner:?}");
        }
    })
    .await;
}
