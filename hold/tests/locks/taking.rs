//! Who gets the lock, and when.

use std::time::Duration;

use fencepost_hold::{AcquireError, Owner, StoreError};
use fencepost_tests::eventually;
use tokio::task::JoinSet;

use crate::store::{KEY, Store};

#[tokio::test]
async fn a_lock_is_a_leased_key_with_the_revision_of_its_write() {
    let store = Store::start().await;
    let tenure = store.lock("shard-1").acquire().await.unwrap();
    assert!(tenure.is_held());
    let keys = store.keys("/").await;
    let [record] = keys.as_slice() else { panic!("{keys:?}") };
    assert_eq!((record.key(), record.value()), (KEY.as_bytes(), "shard-1".as_bytes()));
    let revision = tenure.revision().get().cast_signed();
    assert_eq!((record.create_revision(), record.mod_revision()), (revision, revision));
    assert_eq!(store.leases().await, [record.lease()]);

    tenure.release().await.unwrap();
    store.is_clean().await;
    let next = store.lock("shard-1").acquire().await.unwrap();
    assert!(next.revision().get().cast_signed() > revision);
}

#[tokio::test]
async fn a_held_lock_is_refused_to_a_try_which_leaves_nothing() {
    let store = Store::start().await;
    let held = store.lock("a").try_acquire().await.unwrap();
    for other in ["a", "b"] {
        let refused = store.lock(other).try_acquire().await.err();
        assert_eq!(
            refused,
            Some(AcquireError::Held { owner: Owner::new(*b"a"), leased: true }),
            "{other}"
        );
    }
    assert_eq!(store.leases().await.len(), 1);
    held.release().await.unwrap();
    store.is_clean().await;
}

#[tokio::test]
async fn a_waiter_asks_nothing_between_its_looks() {
    let store = Store::start().await;
    for queue in [false, true] {
        let watches = async || store.member.requests_total().await.of("Watch");
        let until_one_more_than = async |before: u64| {
            eventually("one more watches the lock", async || {
                (watches().await > before).then_some(())
            })
            .await;
        };
        let before = watches().await;
        let held = store.lock("a").acquire().await.unwrap();
        until_one_more_than(before).await;
        let before = watches().await;
        let lock = store.lock_with("b", |lock| lock.queue(queue).ttl(Duration::from_secs(600)));
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        // This is the last that it has to ask for. With this time to live, it looks at the lock
        // after 10 s.
        until_one_more_than(before).await;
        let quiet = store.member.requests_total().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked = store.member.requests_total().await.since(&quiet);
        assert_eq!(asked.total(), 0, "{asked:?}");
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
        store.is_clean().await;
    }
}

#[tokio::test]
async fn a_queue_is_served_in_order_and_a_leaver_holds_up_nobody() {
    let store = Store::start().await;
    let held = store.lock("first").acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    let mut tasks = Vec::new();
    for number in 0..6_usize {
        let lock = store
            .lock_with(&number.to_string(), |lock| lock.queue(true).ttl(Duration::from_secs(600)));
        tasks.push(waiting.spawn(async move { (number, lock.acquire().await.unwrap()) }));
        store.until_queued(number + 1).await;
    }
    // One in the middle and the very next leave.
    for leaving in [3, 0] {
        tasks[leaving].abort();
        assert!(waiting.join_next().await.unwrap().unwrap_err().is_cancelled());
    }
    store.until_queued(4).await;
    held.release().await.unwrap();
    let mut order = Vec::new();
    while let Some(acquired) = waiting.join_next().await {
        let (number, tenure) = acquired.unwrap();
        order.push(number);
        // The place in the queue was given up with the taking.
        assert_eq!(store.keys("/lock.queue/").await.len(), 4 - order.len());
        tenure.release().await.unwrap();
    }
    assert_eq!(order, [1, 2, 4, 5]);
    store.is_clean().await;
}

#[tokio::test]
async fn one_at_a_time_holds_the_lock_under_ever_higher_revisions() {
    let store = Store::start().await;
    let inside = std::sync::Arc::new(std::sync::Mutex::new(0_u64));
    let mut contenders = JoinSet::new();
    for number in 0..6 {
        let lock = store.lock_with("same name", |lock| {
            lock.queue(number % 2 == 0).ttl(Duration::from_secs(600))
        });
        let inside = std::sync::Arc::clone(&inside);
        contenders.spawn(async move {
            for _ in 0..5 {
                let tenure = lock.acquire().await.unwrap();
                {
                    let mut last = inside.try_lock().expect("nobody else is inside");
                    assert!(*last < tenure.revision().get());
                    *last = tenure.revision().get();
                }
                tokio::task::yield_now().await;
                tenure.release().await.unwrap();
            }
        });
    }
    while let Some(done) = contenders.join_next().await {
        done.unwrap();
    }
    store.is_clean().await;
}

#[tokio::test]
async fn a_wait_that_is_given_up_leaves_nothing_behind() {
    let store = Store::start().await;
    let held = store.lock("a").acquire().await.unwrap();
    for queue in [false, true] {
        let lock = store.lock_with("b", |lock| lock.queue(queue));
        let before = store.member.requests_total().await;
        let until_waiting = eventually("b has been told that it waits", async || {
            (store.member.requests_total().await.since(&before).of("Txn") > u64::from(queue))
                .then_some(())
        });
        tokio::select! {
            acquired = lock.acquire() => panic!("{acquired:?}"),
            () = until_waiting => {}
        }
        store.etcd.settled().await;
        assert_eq!(store.keys("/lock").await.len(), 1);
        assert_eq!(store.leases().await.len(), 1);
    }
    drop(held);
    store.is_clean().await;
}

#[tokio::test]
async fn without_etcd_acquiring_fails_in_time_and_names_the_endpoint() {
    let nobody = fencepost_tests::FreePort::reserve();
    let etcd = fencepost_hold::Etcd::at([format!("http://{}", nobody.address())]).unwrap();
    let lock = fencepost_hold::Lock::builder(KEY, "a")
        .answer_within(Duration::from_millis(300))
        .build(&etcd)
        .unwrap();
    for failed in [lock.acquire().await.err(), lock.try_acquire().await.err()] {
        let Some(AcquireError::Store(StoreError::Unavailable(why))) = failed else {
            panic!("{failed:?}")
        };
        assert!(why.contains(&nobody.address().to_string()) && why.contains("refused"), "{why}");
    }
}
