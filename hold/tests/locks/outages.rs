//! etcd pauses, restarts, loses a member.

use std::time::{Duration, Instant};

use etcd_client::PutOptions;
use fencepost_hold::{AcquireError, BootInstant, Etcd, Lock, Over, Standing, StoreError};
use fencepost_tests::{
    self as support, Cluster, EtcdOptions, EtcdVersion, PATIENCE, Relay, eventually,
};
use tokio::task::JoinSet;

use crate::store::{KEY, Store, over};

const SECOND: Duration = Duration::from_secs(1);

/// Long enough for a busy machine to renew in time.
const TTL: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_tenure_that_is_not_renewed_is_over_at_three_quarters_of_its_time_to_live_and_stays_so() {
    let store = Store::start().await;
    let tenure = store.lock_with("a", |lock| lock.ttl(TTL)).acquire().await.unwrap();
    store.member.pause().await;
    let standing = *tenure.standing().borrow();
    let Standing::Held { until } = standing else { panic!("{standing:?}") };
    assert_eq!(over(&tenure).await, Over::NotRenewed);
    let now = BootInstant::now();
    assert!(now >= until && !tenure.is_held());
    // A renewal that was under way when etcd stopped may still have counted.
    assert!(now.since(until) < TTL / 2, "{:?} late", now.since(until));
    store.member.resume();
    // The lock may still stand in etcd; it is given back, and nobody is told that it is held after
    // all.
    eventually("etcd answers again", async || store.client().get(KEY, None).await.ok().map(drop))
        .await;
    assert!(!tenure.is_held());
    tenure.release().await.unwrap();
    store.is_clean().await;
}

/// Its transaction reaches etcd, and is carried out when nobody waits for it any more; so are those
/// that were sent again.
#[tokio::test]
async fn an_acquisition_whose_outcome_is_not_known_is_found_out() {
    let store = Store::start().await;
    for round in 0..3 {
        let lock = store.lock("a");
        lock.acquire().await.unwrap().release().await.unwrap();
        store.member.pause().await;
        let acquiring = tokio::spawn(async move { lock.acquire().await.unwrap() });
        // Longer than one attempt takes.
        tokio::time::sleep(Duration::from_millis(1_200 + 300 * round)).await;
        store.member.resume();
        let tenure = acquiring.await.unwrap();
        let keys = store.keys("/").await;
        assert_eq!(keys.len(), 1);
        assert_eq!(keys[0].create_revision(), tenure.revision().get().cast_signed());
        tenure.release().await.unwrap();
        store.is_free().await;
    }
}

/// The lock is taken, and the answer that says so comes too late: it must not be waited for as if
/// it were another's.
#[tokio::test]
async fn a_lock_that_was_taken_without_its_holder_hearing_of_it_is_its_own() {
    let store = Store::start().await;
    let relay = Relay::before(&store.member).await;
    let etcd = Etcd::at([format!("http://{}", relay.address())]).unwrap();
    let held = store.lock("a").acquire().await.unwrap();
    let lock = Lock::builder(KEY, "b").ttl(SECOND * 600).build(&etcd).unwrap();
    let before = store.member.requests_total().await;
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    eventually("b has been told that it waits", async || {
        (store.member.requests_total().await.since(&before).of("Txn") >= 1 && relay.accepted() >= 2)
            .then_some(())
    })
    .await;
    // There and back takes longer than an attempt may.
    relay.delay(Duration::from_millis(700)).await;
    held.release().await.unwrap();
    eventually("b has the lock", async || {
        store.keys(KEY).await.first().filter(|record| record.value() == b"b").map(drop)
    })
    .await;
    relay.delay(Duration::ZERO).await;
    let tenure = tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("b learns that it has the lock")
        .unwrap();
    assert_eq!(store.keys(KEY).await[0].create_revision(), tenure.revision().get().cast_signed());
    tenure.release().await.unwrap();
    etcd.settled().await;
    store.is_clean().await;
}

/// One late answer cost the lock that was just won, and ended a standby that had waited for days.
#[tokio::test]
async fn a_won_lock_is_kept_though_its_first_renewal_is_late() {
    for stands in [true, false] {
        let store = Store::start().await;
        let relay = Relay::before(&store.member).await;
        let etcd = Etcd::at([format!("http://{}", relay.address())]).unwrap();
        let held = store.lock("a").acquire().await.unwrap();
        let renewals = async || store.member.requests_total().await.of("LeaseKeepAlive");
        // An attempt to renew has a third of a second, any other a second.
        let lock = Lock::builder(KEY, "b").ttl(SECOND * 2).build(&etcd).unwrap();
        let mut waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        eventually("b waits, and has renewed its lease", async || {
            (renewals().await >= 1).then_some(())
        })
        .await;
        let before = renewals().await;
        relay.delay(Duration::from_millis(300)).await;
        // So that the last renewal in time is too old to begin a tenure with, whenever b tries to
        // take the lock.
        eventually("a renewal is late", async || (renewals().await > before).then_some(())).await;
        held.release().await.unwrap();
        let first = eventually("b has the lock", async || {
            store.keys(KEY).await.into_iter().find(|record| record.value() == b"b")
        })
        .await;
        // One may be of the time before it was told so.
        let before = renewals().await;
        let late = eventually("its renewals are late", async || {
            (renewals().await >= before + 3).then_some(())
        });
        tokio::select! {
            over = &mut waiting => panic!("it was not waited for: {over:?}"),
            () = late => {}
        }
        if !stands {
            // Its lease lives.
            store.client().delete(KEY, None).await.unwrap();
        }
        relay.delay(Duration::ZERO).await;
        let tenure =
            tokio::time::timeout(PATIENCE, waiting).await.expect("b has the lock").unwrap();
        let revision = tenure.revision().get().cast_signed();
        assert_eq!(
            store.keys(KEY).await.iter().map(|record| record.create_revision()).collect::<Vec<_>>(),
            [revision]
        );
        assert_eq!(revision == first.create_revision(), stands);
        assert!(tenure.is_held());
        tenure.release().await.unwrap();
        etcd.settled().await;
        store.is_clean().await;
    }
}

#[tokio::test]
async fn an_acquisition_that_is_given_up_while_etcd_does_not_answer_leaves_nothing_behind() {
    let store = Store::start().await;
    let lock = store.lock("a");
    lock.acquire().await.unwrap().release().await.unwrap();
    let before = store.member.requests_total().await;
    store.member.pause().await;
    let given_up = tokio::time::timeout(Duration::from_millis(500), lock.acquire()).await;
    assert!(given_up.is_err());
    store.member.resume();
    store.gets_a_lease_back_since(&before).await;
    store.is_free().await;
    store.is_free().await;
}

/// A process that ends must not wait for an etcd that may never answer.
#[tokio::test]
async fn what_is_given_up_is_waited_for_no_longer_than_promised() {
    let store = Store::start().await;
    let lock = store.lock("a");
    lock.acquire().await.unwrap().release().await.unwrap();
    let before = store.member.requests_total().await;
    store.member.pause().await;
    // Each attempt is given up after a second: this is in the middle of one.
    assert!(tokio::time::timeout(SECOND / 2, lock.acquire()).await.is_err());
    let began = Instant::now();
    store.etcd.settled().await;
    assert!(began.elapsed() < SECOND * 5, "{:?}", began.elapsed());
    // Whoever goes on gives it back later.
    store.member.resume();
    store.gets_a_lease_back_since(&before).await;
    store.is_free().await;
    store.is_free().await;
}

#[tokio::test]
async fn who_waits_through_the_loss_of_its_lease_gets_the_lock_in_the_end() {
    let mut store = Store::start().await;
    let held = store.lock("a").acquire().await.unwrap();
    let lock = store.lock_with("b", |lock| lock.ttl(TTL).queue(true));
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    store.until_queued(1).await;
    let entry = store.keys("/lock.queue/").await[0].clone();
    store.client().lease_revoke(entry.lease()).await.unwrap();
    eventually("b queues under another lease", async || {
        let queue = store.keys("/lock.queue/").await;
        (queue.len() == 1 && queue[0].lease() != entry.lease()).then_some(())
    })
    .await;
    // Also while etcd is away.
    store.member.kill();
    store.member.restart().await;
    held.release().await.unwrap();
    let tenure = waiting.await.unwrap();
    assert!(tenure.is_held());
    tenure.release().await.unwrap();
    store.is_clean().await;
}

/// An endpoint of another cluster that nobody had heard of at the start would have given the lock
/// away a second time.
#[tokio::test]
async fn another_cluster_that_comes_later_is_not_believed() {
    let ours = Store::start().await;
    let mut theirs = support::Etcd::start(EtcdVersion::V3_5).await;
    theirs.kill();
    let etcd = Etcd::at([ours.member.endpoint(), theirs.endpoint()]).unwrap();
    let lock = Lock::builder(KEY, "a").ttl(TTL).answer_within(TTL).build(&etcd).unwrap();
    let tenure = lock.acquire().await.unwrap();
    theirs.restart().await;
    ours.member.pause().await;
    assert_eq!(over(&tenure).await, Over::NotRenewed);
    let error = lock.try_acquire().await.unwrap_err();
    let AcquireError::Store(StoreError::Unavailable(why)) = error else { panic!("{error}") };
    assert!(why.contains("belongs to cluster") && why.contains(&theirs.endpoint()), "{why}");
    assert_eq!(theirs.etcdctl(&["get", "--prefix", "/"]).await, "");
    ours.member.resume();
    tenure.release().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// They watched from revisions that the restored store had yet to reach: nobody heard that the lock
/// was free, and it stood free for ever.
#[tokio::test]
async fn a_waiter_gets_the_lock_though_etcd_was_restored() {
    let mut store = Store::start().await;
    let mut client = store.client();
    client.put(KEY, "a", None).await.unwrap();
    let mut waiting = JoinSet::new();
    for owner in ["b", "c", "d"] {
        let lock = store.lock_with(owner, |lock| lock.ttl(TTL).queue(true));
        waiting.spawn(async move { lock.acquire().await.unwrap() });
        store.until_queued(waiting.len()).await;
    }
    let until_watches = async |count| {
        let watches =
            async || (store.member.requests_total().await.of("Watch") >= count).then_some(());
        eventually("those who wait watch what they wait for", watches).await;
    };
    until_watches(3).await;
    // The backup has the lock and all leases, and one place only. c learns that nobody is before
    // it; then b and c wait for the lock, and d for c's place.
    let places = store.keys("/lock.queue/").await;
    client.delete(places[0].key(), None).await.unwrap();
    until_watches(4).await;
    client.delete(places[2].key(), None).await.unwrap();
    let backup = store.member.save_snapshot().await;
    for _ in 0..20 {
        client.put("/other", "x", None).await.unwrap();
    }
    client.put(KEY, "a", None).await.unwrap();
    client
        .put(places[1].key(), "c", Some(PutOptions::new().with_lease(places[1].lease())))
        .await
        .unwrap();
    until_watches(7).await;
    store.member.restore_snapshot(&backup).await;
    store.until_queued(3).await;
    store.client().delete(KEY, None).await.unwrap();
    while let Some(acquired) =
        tokio::time::timeout(PATIENCE, waiting.join_next()).await.expect("it is heard of")
    {
        acquired.unwrap().release().await.unwrap();
    }
    store.is_clean().await;
}

/// It takes 8 s to find out that a watch's connection is dead, and a watch of a restored store that
/// has grown since is silent without that.
#[tokio::test]
async fn who_waits_gets_the_lock_though_its_watch_is_silent() {
    let store = Store::start().await;
    let relay = Relay::before(&store.member).await;
    let etcd = Etcd::at([format!("http://{}", relay.address())]).unwrap();
    let held = store.lock("a").acquire().await.unwrap();
    let lock = Lock::builder(KEY, "b").ttl(TTL).build(&etcd).unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let watches = async || (store.member.requests_total().await.of("Watch") >= 2).then_some(());
    eventually("both watch", watches).await;
    // The first connection is for calls, the second for watches.
    relay.freeze_connection(1).await;
    let free = BootInstant::now();
    held.release().await.unwrap();
    let tenure = tokio::time::timeout(PATIENCE, waiting).await.expect("b has the lock").unwrap();
    assert!(BootInstant::now().since(free) < SECOND * 6);
    relay.restore().await;
    tenure.release().await.unwrap();
    store.is_clean().await;
}

#[tokio::test]
async fn a_tenure_outlives_a_restart_of_etcd() {
    let mut store = Store::start().await;
    let tenure = store.lock_with("a", |lock| lock.ttl(SECOND * 10)).acquire().await.unwrap();
    store.member.kill();
    store.member.restart().await;
    tenure.standing().changed().await.unwrap();
    assert!(tenure.is_held());
    // It is watched again, too.
    store.client().delete(KEY, None).await.unwrap();
    assert_eq!(over(&tenure).await, Over::KeyDeleted);
}

#[tokio::test]
async fn a_tenure_outlives_the_member_that_it_was_taken_from() {
    let options = EtcdOptions {
        heartbeat: Some(Duration::from_millis(50)),
        election: Some(Duration::from_millis(500)),
        ..EtcdOptions::default()
    };
    let mut cluster = Cluster::start_with(EtcdVersion::V3_5, 3, &options).await;
    let etcd = Etcd::at(cluster.endpoints()).unwrap();
    let lock = Lock::builder(KEY, "a").ttl(SECOND * 12).build(&etcd).unwrap();
    for killed in [false, true] {
        let tenure = lock.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap() }
        });
        // The endpoint in use is the first; once that was left, the second.
        match killed {
            true => cluster.members[1].kill(),
            false => cluster.members[0].pause().await,
        }
        let mut standing = tenure.standing();
        standing.changed().await.unwrap();
        assert!(tenure.is_held(), "{:?}", *standing.borrow());
        tenure.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
        cluster.members[0].resume();
    }
}
