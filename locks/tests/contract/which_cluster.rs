//! Which cluster is meant where none is configured.

use fencepost_locks::{EtcdOptions, EtcdStore, LockStore, Member, RangeWatch, StoreError};
use fencepost_tests::{Etcd, EtcdVersion, FreePort, eventually};
use tokio::join;

use crate::faults::{cluster, read, store};
use crate::world::{key, put, transact, writer};

every_version! {
    endpoints_of_two_clusters_are_believed_neither_at_the_start,
    the_configured_cluster_is_meant_whoever_else_answers,
    minority_of_endpoints_is_not_believed,
    member_stopped_at_the_start_delays_only_the_first_read,
}

/// A wrong one is believed by chance if the rule is a race. Each way of starting is tried so often.
const STARTS: usize = 12;

/// Two clusters with another holder of one lock each.
async fn ours_and_theirs(version: EtcdVersion) -> [Etcd; 2] {
    let (ours, theirs) = join!(Etcd::start(version), Etcd::start(version));
    for (etcd, holder) in [(&ours, "ours"), (&theirs, "theirs")] {
        transact(&writer(&[etcd.endpoint()]).await, vec![put("lock", holder)]).await;
    }
    [ours, theirs]
}

/// The id of an etcd's cluster.
async fn id(etcd: &Etcd) -> u64 {
    let alone = store(&[etcd.endpoint()]);
    read(&alone).await.0.expect("it answers");
    alone.cluster_id().expect("it has answered")
}

/// As a source starts: it is read and watched while its members are asked how they are.
async fn start(
    store: &EtcdStore,
) -> (Result<Option<String>, StoreError>, Option<StoreError>, Vec<Member>) {
    let ranges = [RangeWatch { range: key("lock"), from: fencepost_policy::Revision::MIN }];
    let ((read, _), watch, members) = join!(read(store), store.watch(&ranges), store.members());
    (read.map(|(_, holder)| holder), watch.err(), members)
}

/// The old holder was admitted by the wrong cluster in 5 of 24 starts, and the true one refused.
async fn endpoints_of_two_clusters_are_believed_neither_at_the_start(version: EtcdVersion) {
    let [ours, mut theirs] = ours_and_theirs(version).await;
    let mut belongings = Vec::new();
    for etcd in [&ours, &theirs] {
        belongings.push(format!("{} to {:x}", etcd.endpoint(), id(etcd).await));
    }
    let check = |error: Option<&StoreError>| {
        let said = error.map(StoreError::to_string).unwrap_or_default();
        let is_told = belongings.iter().all(|belonging| said.contains(belonging))
            && said.contains("set cluster_id");
        assert!(is_told, "{belongings:?}: {error:?}");
    };
    for round in 0..STARTS {
        let mut endpoints = [ours.endpoint(), theirs.endpoint()];
        endpoints.rotate_left(round % 2);
        let store = store(&endpoints);
        let (read, watch, members) = start(&store).await;
        check(read.as_ref().err());
        check(watch.as_ref());
        members.iter().for_each(|member| check(member.version.as_ref().err()));
        assert_eq!(store.cluster_id(), None, "nobody has decided it");
    }
    // Without a start anew.
    let store = store(&[theirs.endpoint(), ours.endpoint()]);
    check(read(&store).await.0.as_ref().err());
    theirs.kill();
    let (_, holder) = eventually("one cluster is left", async || read(&store).await.0.ok()).await;
    assert_eq!(holder.as_deref(), Some("ours"));
    // What is known stays.
    theirs.restart().await;
    eventually("the wrong one is seen again", async || {
        let members = store.members().await;
        matches!(members[0].version, Err(StoreError::AnotherCluster { .. })).then_some(())
    })
    .await;
    assert_eq!(read(&store).await.0.unwrap().1.as_deref(), Some("ours"));
}

async fn the_configured_cluster_is_meant_whoever_else_answers(version: EtcdVersion) {
    let both = ours_and_theirs(version).await;
    let endpoints = both.each_ref().map(Etcd::endpoint);
    for (meant, holder) in both.iter().zip(["ours", "theirs"]) {
        let cluster_id = Some(id(meant).await);
        for round in 0..STARTS {
            let mut endpoints = endpoints.to_vec();
            endpoints.rotate_left(round % 2);
            let store =
                EtcdStore::new(&EtcdOptions { endpoints, cluster_id, ..EtcdOptions::default() });
            let (read, watch, members) = start(&store).await;
            assert_eq!(read.unwrap().as_deref(), Some(holder));
            assert!(watch.is_none(), "{watch:?}");
            let well: Vec<_> = members.iter().filter(|member| member.version.is_ok()).collect();
            assert!(well.len() == 1 && *well[0].endpoint == *meant.endpoint(), "{members:?}");
        }
    }
}

/// As when a whole site starts and the wrong cluster is the first that is up.
async fn minority_of_endpoints_is_not_believed(version: EtcdVersion) {
    let [mut ours, theirs] = ours_and_theirs(version).await;
    let nobody = FreePort::reserve();
    ours.kill();
    let store =
        store(&[theirs.endpoint(), ours.endpoint(), format!("http://{}", nobody.address())]);
    let (read, watch, _) = start(&store).await;
    for error in [read.err(), watch] {
        let said = error.expect("it is not believed").to_string();
        assert!(said.contains("only 1 of 3 endpoints says which cluster it belongs to"), "{said}");
        assert!(said.contains("no cluster_id") && said.contains("Connection refused"), "{said}");
    }
    ours.restart().await;
    eventually("the right one is heard", async || {
        let error = crate::faults::read(&store).await.0.expect_err("there are two clusters");
        matches!(error, StoreError::ManyClusters { .. }).then_some(())
    })
    .await;
}

async fn member_stopped_at_the_start_delays_only_the_first_read(version: EtcdVersion) {
    let cluster = cluster(version).await;
    transact(&writer(&cluster.endpoints()).await, vec![put("lock", "shard-1")]).await;
    let leader = eventually("a leader", async || cluster.leader().await).await;
    let stopped = (leader + 1) % 3;
    cluster.members[stopped].pause().await;
    let mut endpoints = cluster.endpoints();
    endpoints.rotate_left(stopped);
    // A list of two, too: half of them answer.
    for endpoints in [&endpoints[..], &endpoints[..2]] {
        let store = store(endpoints);
        let (outcome, took) = read(&store).await;
        assert_eq!(
            outcome.unwrap().1.as_deref(),
            Some("shard-1"),
            "a read has a deadline: after {took:?}"
        );
        let (_, again) = read(&store).await;
        println!(
            "etcd {version}, one of {} stopped: first read after {took:?}, then {again:?}",
            endpoints.len()
        );
    }
    cluster.members[stopped].resume();
}
