//! What a cluster and the network can do to the etcd store.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType};
use fencepost_locks::{
    EtcdAccess, EtcdOptions, EtcdStore, EtcdTls, EtcdWatch, LockStore, MemberProblem, RangeRead,
    RangeWatch, StoreError, Wanted, WatchNews,
};
use fencepost_policy::Revision;
use fencepost_tests::{
    Cluster, Etcd, EtcdSecurity, EtcdVersion, FreePort, GrpcProxy, PATIENCE, Relay, Tokens,
    eventually,
};
use tokio::time::{Instant, timeout};

use crate::deadlines::timed;
use crate::world::{
    CALL_MAX, after, key, news, next, next_events, numbered, prefix, put, spelled, tls, transact,
    writer,
};

every_version! {
    each_member_may_be_paused,
    each_member_may_be_killed,
    paused_cluster_is_unavailable_in_time_and_comes_back,
    a_member_that_was_killed_answers_once_it_is_back,
    an_endpoint_of_another_cluster_is_not_believed,
    a_cluster_other_than_the_configured_one_is_not_believed,
    a_frozen_connection_is_left_for_another,
    a_frozen_connection_is_replaced_once_the_network_is_back,
    connection_that_comes_up_slowly_is_used,
    a_learner_is_passed_over,
    without_a_quorum_nothing_is_read,
    a_restored_backup_shows_as_lower_revisions,
    what_a_member_tells_of_its_log_falls_by_a_restore_alone,
    a_store_that_wants_a_login_refuses,
    members_are_asked_side_by_side,
    a_dropped_watch_ends_in_etcd,
    alarms_and_versions_are_problems_of_members,
    large_ranges_are_read_alone_or_refused_by_name,
    grpc_proxy_is_named_and_members_are_used_instead,
}

/// How long a cluster may take to find a leader again, and we to find the cluster, on a busy
/// machine.
const RECOVERY_MAX: Duration = Duration::from_secs(10);

/// By when the watch on an endpoint that is gone has ended: before the keepalive of its connection
/// (8 s) would notice.
const WATCH_END_MAX: Duration = Duration::from_secs(5);

pub(crate) fn store(endpoints: &[String]) -> EtcdStore {
    EtcdStore::new(&EtcdOptions { endpoints: endpoints.to_vec(), ..EtcdOptions::default() })
}

pub(crate) async fn cluster(version: EtcdVersion) -> Cluster {
    Cluster::start(version, 3).await
}

/// What the lock's value is, by a read that must end in time.
pub(crate) async fn read(
    store: &EtcdStore,
) -> (Result<(Revision, Option<String>), StoreError>, Duration) {
    let (outcome, took) =
        timed(store.read(&[RangeRead { range: key("lock"), wanted: Wanted::All }])).await;
    assert!(took < CALL_MAX, "{took:?}: {outcome:?}");
    let outcome = outcome.map(|mut answer| {
        let found = answer.ranges.swap_remove(0).keys.pop();
        (answer.revision, found.map(|found| String::from_utf8(found.value.to_vec()).unwrap()))
    });
    (outcome, took)
}

/// Reads until it succeeds again, and then some more.
async fn read_through(store: &EtcdStore, what: &str, expected: &str, may_be_away: bool) {
    let began = Instant::now();
    let mut back = None;
    let mut slowest = Duration::ZERO;
    let mut slow = 0;
    let mut in_a_row = 0;
    while in_a_row < 20 {
        let (outcome, took) = read(store).await;
        let outcome = match outcome {
            Ok(answer) => answer,
            Err(error) => {
                // Whoever was elected may be late, so that there is another election.
                assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
                assert!(
                    may_be_away && began.elapsed() < RECOVERY_MAX,
                    "{what}: {error} after {:?}",
                    began.elapsed()
                );
                (back, in_a_row) = (None, 0);
                continue;
            }
        };
        in_a_row += 1;
        back.get_or_insert(began.elapsed());
        assert_eq!(outcome.1.as_deref(), Some(expected));
        slowest = slowest.max(took);
        slow += usize::from(took > Duration::from_millis(100));
    }
    println!(
        "{what}: answered after {:?}; of 20 reads {slow} took over 100 ms, the slowest {slowest:?}",
        back.unwrap()
    );
}

async fn watch(store: &EtcdStore, from: Revision) -> EtcdWatch {
    let ranges = [RangeWatch { range: key("lock"), from }];
    eventually("the store can be watched", async || store.watch(&ranges).await.ok()).await
}

/// How a watch ends, while the store is read as it is in service.
async fn watch_ends(store: &EtcdStore, watch: &mut EtcdWatch) -> Duration {
    let began = Instant::now();
    let reading = async {
        loop {
            let _ = read(store).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let error = tokio::select! {
        () = reading => unreachable!("the reads never end"),
        news = timeout(PATIENCE, news(watch)) => news.expect("the watch ends").expect_err("there is no news"),
    };
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    let took = began.elapsed();
    assert!(took < WATCH_END_MAX, "{took:?}: {error}");
    took
}

async fn next_event(watch: &mut EtcdWatch) -> String {
    spelled(&next_events(watch).await.1[0])
}

async fn each_member_may_be_paused(version: EtcdVersion) {
    each_member_may_be(version, "paused").await;
}

async fn each_member_may_be_killed(version: EtcdVersion) {
    each_member_may_be(version, "killed").await;
}

async fn each_member_may_be(version: EtcdVersion, gone: &str) {
    let mut cluster = cluster(version).await;
    for index in 0..3 {
        let mut endpoints = cluster.endpoints();
        // The one that goes is the one that is read and watched.
        endpoints.rotate_left(index);
        let store = store(&endpoints);
        let leads = eventually("a leader", async || cluster.leader().await).await == index;
        let others = writer(&[cluster.members[(index + 1) % 3].endpoint()]).await;
        let known = transact(&others, vec![put("lock", "shard-1")]).await;
        let mut running = watch(&store, after(known)).await;
        match gone {
            "paused" => cluster.members[index].pause().await,
            _ => cluster.members[index].kill(),
        }
        let what = format!("etcd {version}, {} {gone}", if leads { "leader" } else { "follower" });
        let (ended, ()) = tokio::join!(
            watch_ends(&store, &mut running),
            read_through(&store, &what, "shard-1", leads)
        );
        let (mut moved, took) = timed(watch(&store, after(known))).await;
        println!("{what}: its watch ended after {ended:?}, another ran {took:?} later");
        let revision = transact(&others, vec![put("lock", "shard-2")]).await;
        assert_eq!(next_event(&mut moved).await, format!("lock=shard-2@{revision}"));
        match gone {
            "paused" => cluster.members[index].resume(),
            _ => cluster.members[index].restart().await,
        }
        read_through(&store, &format!("{what}, and back"), "shard-2", true).await;
    }
}

async fn paused_cluster_is_unavailable_in_time_and_comes_back(version: EtcdVersion) {
    let cluster = cluster(version).await;
    let store = store(&cluster.endpoints());
    let hand = writer(&cluster.endpoints()[..1]).await;
    let known = transact(&hand, vec![put("lock", "shard-1")]).await;
    let mut running = watch(&store, after(known)).await;
    read_through(&store, "whole cluster", "shard-1", false).await;
    for member in &cluster.members {
        member.pause().await;
    }
    for _ in 0..3 {
        let (outcome, took) = read(&store).await;
        println!("etcd {version}, whole cluster paused: a read took {took:?}: {outcome:?}");
        assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    }
    let ended = timeout(PATIENCE, news(&mut running)).await.expect("the watch has ended");
    assert!(matches!(ended, Err(StoreError::Unavailable(_))), "{ended:?}");
    let (outcome, took) =
        timed(store.watch(&[RangeWatch { range: key("lock"), from: after(known) }])).await;
    assert!(
        matches!(outcome, Err(StoreError::Unavailable(_))),
        "a paused cluster can't be watched"
    );
    assert!(took < CALL_MAX, "{took:?}");
    cluster.members.iter().for_each(Etcd::resume);
    read_through(&store, &format!("etcd {version}, whole cluster resumed"), "shard-1", true).await;
    let mut again = watch(&store, after(known)).await;
    let revision = transact(&hand, vec![put("lock", "shard-2")]).await;
    assert_eq!(next_event(&mut again).await, format!("lock=shard-2@{revision}"));
}

async fn a_member_that_was_killed_answers_once_it_is_back(version: EtcdVersion) {
    let mut etcd = Etcd::start(version).await;
    let store = store(&[etcd.endpoint()]);
    let hand = writer(&[etcd.endpoint()]).await;
    let known = transact(&hand, vec![put("lock", "shard-1")]).await;
    let mut running = watch(&store, after(known)).await;
    read_through(&store, "the only member", "shard-1", false).await;
    etcd.kill();
    let ended = timeout(PATIENCE, news(&mut running)).await.expect("the watch has ended");
    assert!(matches!(ended, Err(StoreError::Unavailable(_))), "{ended:?}");
    // Long enough for the longest pause between two attempts.
    for _ in 0..3 {
        let (outcome, _) = read(&store).await;
        assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    }
    etcd.restart().await;
    read_through(
        &store,
        &format!("etcd {version}, the only member killed and restarted"),
        "shard-1",
        true,
    )
    .await;
    let mut again = watch(&store, after(known)).await;
    let revision = transact(&hand, vec![put("lock", "shard-2")]).await;
    assert_eq!(next_event(&mut again).await, format!("lock=shard-2@{revision}"));
}

/// A member that is being added is in the list before it votes.
async fn a_learner_is_passed_over(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    let learner = etcd.add_learner().await;
    let at = transact(&writer(&[etcd.endpoint()]).await, vec![put("lock", "a")]).await;
    let store = store(&[learner.endpoint(), etcd.endpoint()]);
    assert_eq!(read(&store).await.0.unwrap(), (at, Some("a".to_owned())));
    let mut watch = watch(&store, at).await;
    let news = next(&mut watch).await;
    assert!(matches!(news, WatchNews::Events { .. }), "{news:?}");
}

async fn an_endpoint_of_another_cluster_is_not_believed(version: EtcdVersion) {
    let (mut ours, theirs) = (Etcd::start(version).await, Etcd::start(version).await);
    transact(&writer(&[ours.endpoint()]).await, vec![put("lock", "ours")]).await;
    transact(&writer(&[theirs.endpoint()]).await, vec![put("lock", "theirs")]).await;
    // Where the first is slow, the second is asked too: known is the cluster that answers first.
    let known = store(&[ours.endpoint()]);
    read_through(&known, "ours alone", "ours", false).await;
    let store = EtcdStore::new(&EtcdOptions {
        endpoints: vec![ours.endpoint(), theirs.endpoint()],
        cluster_id: known.cluster_id(),
        ..EtcdOptions::default()
    });
    read_through(&store, "ours", "ours", false).await;
    eventually("the other is not believed", async || {
        let versions: Vec<_> =
            store.members().await.into_iter().map(|member| member.version).collect();
        matches!(versions[..], [Ok(_), Err(StoreError::AnotherCluster { .. })]).then_some(())
    })
    .await;
    ours.kill();
    for _ in 0..3 {
        let (outcome, _) = read(&store).await;
        let Err(StoreError::AnotherCluster { endpoint, found, pinned }) = &outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(**endpoint, *theirs.endpoint());
        assert_ne!(found, pinned);
        let watch =
            store.watch(&[RangeWatch { range: key("lock"), from: Revision::MIN }]).await.err();
        assert!(matches!(watch, Some(StoreError::AnotherCluster { .. })), "{watch:?}");
    }
    ours.restart().await;
    eventually("ours is back", async || read(&store).await.0.ok()).await;
    read_through(&store, "ours again", "ours", false).await;
}

async fn a_cluster_other_than_the_configured_one_is_not_believed(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    transact(&writer(&[etcd.endpoint()]).await, vec![put("lock", "shard-1")]).await;
    let configured = |cluster_id| {
        let (endpoints, cluster_id) = (vec![etcd.endpoint()], Some(cluster_id));
        EtcdStore::new(&EtcdOptions { endpoints, cluster_id, ..EtcdOptions::default() })
    };
    let (outcome, _) = read(&configured(7)).await;
    let Err(StoreError::AnotherCluster { found, pinned: 7, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    let (outcome, _) = read(&configured(found)).await;
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// A relay to a member.
async fn relay_to(member: &Etcd) -> (Relay, String) {
    let relay = Relay::start(address(member)).await;
    let address = format!("http://{}", relay.address());
    (relay, address)
}

fn address(member: &Etcd) -> SocketAddr {
    member.endpoint().trim_start_matches("http://").parse().expect("an endpoint is an address")
}

async fn a_frozen_connection_is_left_for_another(version: EtcdVersion) {
    let cluster = cluster(version).await;
    let (relay, relayed) = relay_to(&cluster.members[0]).await;
    let store = store(&[relayed, cluster.members[1].endpoint(), cluster.members[2].endpoint()]);
    let hand = writer(&cluster.endpoints()).await;
    let known = transact(&hand, vec![put("lock", "shard-1")]).await;
    let mut running = watch(&store, after(known)).await;
    read_through(&store, "relayed", "shard-1", false).await;
    relay.freeze().await;
    let what = format!("etcd {version}, connection frozen");
    let (ended, ()) = tokio::join!(
        watch_ends(&store, &mut running),
        read_through(&store, &what, "shard-1", false)
    );
    println!("{what}: its watch ended after {ended:?}");
    let mut moved = watch(&store, after(known)).await;
    let revision = transact(&hand, vec![put("lock", "shard-2")]).await;
    assert_eq!(next_event(&mut moved).await, format!("lock=shard-2@{revision}"));
}

/// Each read waited for a connection of its own, for no longer than for an answer, and gave it up
/// then.
async fn connection_that_comes_up_slowly_is_used(version: EtcdVersion) {
    let security = EtcdSecurity::new(Tokens::Simple(PATIENCE));
    let options =
        fencepost_tests::EtcdOptions { security: Some(security.clone()), ..Default::default() };
    let etcd = Etcd::start_with(version, &options).await;
    let target =
        etcd.endpoint().trim_start_matches("https://").parse().expect("an endpoint is an address");
    let relay = Relay::start(target).await;
    let tls = EtcdTls { client: tls(&security), server_name: None };
    let store = EtcdStore::new(&EtcdOptions {
        endpoints: vec![format!("https://{}", relay.address())],
        cluster_id: None,
        access: Arc::new(EtcdAccess::new(Some(tls), None)),
    });
    // By TLS 1.2, which etcd 3.5.1 has, it takes 800 ms, and by TLS 1.3 an answer more than 500
    // with it.
    relay.delay(Duration::from_millis(200)).await;
    let known = eventually("it is read", async || read(&store).await.0.ok()).await.0;
    watch(&store, after(known)).await;
}

async fn a_frozen_connection_is_replaced_once_the_network_is_back(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    let (relay, relayed) = relay_to(&etcd).await;
    let store = store(&[relayed]);
    transact(&writer(&[etcd.endpoint()]).await, vec![put("lock", "shard-1")]).await;
    read_through(&store, "relayed", "shard-1", false).await;
    let connections = relay.accepted();
    for (name, fault) in [("frozen", true), ("cut", false)] {
        if fault {
            relay.freeze().await
        } else {
            relay.cut().await
        }
        for _ in 0..3 {
            let (outcome, _) = read(&store).await;
            assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
        }
        // The relay accepts while it is frozen, so that whoever looks for a better connection
        // shows.
        assert!(relay.accepted() > connections, "a connection that failed is not used again");
        relay.restore().await;
        read_through(
            &store,
            &format!("etcd {version}, only connection {name} and restored"),
            "shard-1",
            true,
        )
        .await;
    }
}

async fn without_a_quorum_nothing_is_read(version: EtcdVersion) {
    let mut cluster = cluster(version).await;
    let store = store(&cluster.endpoints());
    let known = transact(&writer(&cluster.endpoints()).await, vec![put("lock", "shard-1")]).await;
    read_through(&store, "with a quorum", "shard-1", false).await;
    cluster.members[0].kill();
    cluster.members[2].kill();
    let lock = RangeRead { range: key("lock"), wanted: Wanted::All };
    let count = RangeRead { range: key("lock"), wanted: Wanted::Count };
    // The member that is left knows the answers, but not that they are still right.
    for ranges in [vec![lock.clone()], vec![count.clone()], vec![lock, count]] {
        let (outcome, took) = timed(store.read(&ranges)).await;
        assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{ranges:?}: {outcome:?}");
        assert!(took < CALL_MAX, "{took:?}");
    }
    let (outcome, took) = timed(store.read_at(b"lock", known)).await;
    assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    assert!(took < CALL_MAX, "{took:?}");
}

async fn a_restored_backup_shows_as_lower_revisions(version: EtcdVersion) {
    let mut etcd = Etcd::start(version).await;
    let store = store(&[etcd.endpoint()]);
    let hand = writer(&[etcd.endpoint()]).await;
    let backed_up = transact(&hand, vec![put("lock", "shard-1")]).await;
    let snapshot = etcd.save_snapshot().await;
    for number in 0..10 {
        transact(&hand, vec![put("lock", number.to_string())]).await;
    }
    read_through(&store, "before", "9", false).await;
    etcd.restore_snapshot(&snapshot).await;
    let (revision, value) =
        eventually("the store answers", async || read(&store).await.0.ok()).await;
    assert_eq!((revision, value.as_deref()), (backed_up, Some("shard-1")));
}

async fn what_a_member_tells_of_its_log_falls_by_a_restore_alone(version: EtcdVersion) {
    let mut etcd = Etcd::start(version).await;
    let store = store(&[etcd.endpoint()]);
    let snapshot = etcd.save_snapshot().await;
    let lock = RangeRead { range: key("lock"), wanted: Wanted::All };
    let by = async || {
        let read = async || store.read(std::slice::from_ref(&lock)).await.ok();
        eventually("the store answers", read).await.by.expect("etcd tells who answers")
    };
    let mut last = by().await;
    for _ in 0..2 {
        etcd.kill();
        etcd.restart().await;
        let next = by().await;
        assert_eq!((next.cluster, next.member), (last.cluster, last.member));
        assert!(next.term > last.term, "each start is an election: {next:?} after {last:?}");
        last = next;
    }
    etcd.restore_snapshot(&snapshot).await;
    let restored = by().await;
    assert_eq!((restored.cluster, restored.member), (last.cluster, last.member));
    assert!((1..last.term).contains(&restored.term), "{restored:?} after {last:?}");
}

async fn a_store_that_wants_a_login_refuses(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    let known = transact(&writer(&[etcd.endpoint()]).await, vec![put("lock", "shard-1")]).await;
    for command in
        ["user add root:secret", "role add root", "user grant-role root root", "auth enable"]
    {
        etcd.etcdctl(&command.split(' ').collect::<Vec<_>>()).await;
    }
    let store = store(&[etcd.endpoint()]);
    let (outcome, _) = read(&store).await;
    println!("etcd {version} wants a login: {outcome:?}");
    assert!(matches!(outcome, Err(StoreError::NoLogin(_))), "{outcome:?}");
    let refused = store.watch(&[RangeWatch { range: key("lock"), from: known }]).await.err();
    println!("etcd {version} wants a login: {refused:?}");
    assert!(matches!(refused, Some(StoreError::NoLogin(_))), "{refused:?}");
}

async fn members_are_asked_side_by_side(version: EtcdVersion) {
    let mut cluster = cluster(version).await;
    let store = store(&cluster.endpoints());
    cluster.members[0].pause().await;
    cluster.members[1].kill();
    let expected: Vec<_> = cluster.endpoints().into_iter().zip([false, false, true]).collect();
    eventually("the one that is left is heard in time", async || {
        let (members, took) = timed(store.members()).await;
        assert!(took < CALL_MAX, "{took:?}");
        let told: Vec<_> = members
            .iter()
            .map(|member| (member.endpoint.to_string(), member.version.is_ok()))
            .collect();
        (told == expected).then_some(())
    })
    .await;
    cluster.members[0].resume();
}

async fn a_dropped_watch_ends_in_etcd(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    let store = store(&[etcd.endpoint()]);
    let known = transact(&writer(&[etcd.endpoint()]).await, vec![put("lock", "shard-1")]).await;
    let streams = async || {
        let address = address(&etcd);
        let metrics = fencepost_tests::request(address, "GET", "/metrics", &[], b"")
            .await
            .expect("etcd answers")
            .text();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("etcd_debugging_mvcc_watch_stream_total "));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .expect("etcd counts its watch streams")
    };
    let running = watch(&store, after(known)).await;
    // Whether it is a member was asked by one that has ended.
    eventually("one stream is left", async || (streams().await == 1).then_some(())).await;
    drop(running);
    eventually("etcd has ended the stream", async || (streams().await == 0).then_some(())).await;
}

/// A read of all locks failed for the queue of one, and did not say which.
async fn large_ranges_are_read_alone_or_refused_by_name(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    let (store, writer) = (store(&[etcd.endpoint()]), writer(&[etcd.endpoint()]).await);
    let value = vec![b'v'; 1 << 20];
    for number in 0..17 {
        transact(&writer, vec![put(numbered("queue/", number), &value)]).await;
    }
    let counts = async |names: &[&str]| {
        let read = |name: &&str| RangeRead { range: prefix(name), wanted: Wanted::All };
        let answer = store.read(&names.iter().map(read).collect::<Vec<_>>()).await?;
        Ok::<_, StoreError>(answer.ranges.iter().map(|range| range.count).collect::<Vec<_>>())
    };
    assert_eq!(counts(&["queue/0000", "lock", "queue/0001"]).await.unwrap(), [10, 0, 7]);
    for names in [&["queue/"][..], &["lock", "queue/", "other"]] {
        let error = counts(names).await.unwrap_err();
        assert_eq!(error.refused_range(), Some(&prefix("queue/")), "{error}");
    }
    let told = store.members().await.swap_remove(0);
    assert!(told.version.is_ok(), "the member is not suspect: {told:?}");
}

/// An alarm shows in no read.
async fn alarms_and_versions_are_problems_of_members(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    let (store, writer) = (store(&[etcd.endpoint()]), writer(&[etcd.endpoint()]).await);
    let mut expected = BTreeSet::from(["old-version"]);
    for (alarm, name) in [(AlarmType::Nospace, "nospace"), (AlarmType::Corrupt, "corrupt")] {
        writer.maintenance_client().alarm(AlarmAction::Activate, alarm, None).await.unwrap();
        expected.insert(name);
        let problems = store.members().await.swap_remove(0).problems;
        assert_eq!(problems.iter().map(MemberProblem::name).collect::<BTreeSet<_>>(), expected);
    }
    assert!(read(&store).await.0.is_ok(), "nothing fails");
}

/// With its leasing namespace it answered linearizable reads with the old holder, 8 s after the
/// takeover.
async fn grpc_proxy_is_named_and_members_are_used_instead(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    let known = transact(&writer(&[etcd.endpoint()]).await, vec![put("lock", "shard-1")]).await;
    for is_leasing in [false, true] {
        let running = GrpcProxy::start(version, &etcd.endpoint(), is_leasing);
        let proxy = running.endpoint();
        let alone = store(std::slice::from_ref(&proxy));
        let is_told = |error: &StoreError| {
            assert!(!matches!(error, StoreError::AnotherCluster { .. }), "{error}");
            matches!(error, StoreError::NoMember { endpoint } if **endpoint == *proxy).then_some(())
        };
        eventually("it is no member", async || {
            is_told(&read(&alone).await.0.expect_err("it is not believed"))
        })
        .await;
        let ranges = [RangeWatch { range: key("lock"), from: after(known) }];
        is_told(&alone.watch(&ranges).await.unwrap_err()).expect("nor is it watched");
        is_told(alone.members().await[0].version.as_ref().unwrap_err()).expect("nor asked");
        let nobody = format!("http://{}", FreePort::reserve().address());
        for endpoints in
            [vec![proxy.clone(), etcd.endpoint()], vec![proxy.clone(), nobody, etcd.endpoint()]]
        {
            let store = store(&endpoints);
            let mut watch = watch(&store, after(known)).await;
            let holder = format!("shard-{}", endpoints.len());
            transact(&writer(&[etcd.endpoint()]).await, vec![put("lock", &holder)]).await;
            next_events(&mut watch).await;
            assert_eq!(read(&store).await.0.unwrap().1, Some(holder));
        }
    }
}

/// An operator reads it in the log: the endpoint, what was tried and why it failed, each once.
#[tokio::test]
async fn endpoint_without_a_listener_is_one_plain_line() {
    let nobody = FreePort::reserve();
    let endpoint = format!("http://{}", nobody.address());
    let (outcome, _) = read(&store(std::slice::from_ref(&endpoint))).await;
    let told = outcome.unwrap_err().to_string();
    let expected = format!(
        "the lock store does not answer: {endpoint}: no connection: Connection refused (os error 111)"
    );
    assert_eq!(told, expected);
}
