//! Several fences in a group: each counts what runs in the others.

use std::time::Duration;

use fencepost_fence::{Fence, InvalidLock};
use fencepost_tests::PATIENCE;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::handoff::waits_there;
use crate::scene::{Door, LOCK, Log, SHORT, verdict};

fn joining(cluster: &Cluster) -> Fence {
    let (member_ttl, orphan_timeout) = (Duration::from_secs(15), Duration::from_secs(30));
    cluster.builder().group("g", member_ttl, orphan_timeout).build().unwrap()
}

#[tokio::test]
async fn a_new_tenure_waits_for_what_runs_in_another_member_until_that_has_ended_or_left() {
    let cluster = Cluster::start().await;
    let (one, other) = (joining(&cluster), joining(&cluster));
    let layer = one.lock(LOCK).layer().unwrap();
    let impatient = other.lock(LOCK).handoff_timeout(SHORT).layer().unwrap();
    let (door, log) = (Door::default(), Log::default());
    timeout(PATIENCE, one.ready()).await.unwrap();
    timeout(PATIENCE, other.ready()).await.unwrap();
    let old = cluster.put(LOCK, "a").await;
    let running = waits_there(&layer, &door, &log, "a", old).await;
    let new = cluster.put(LOCK, "b").await;
    assert_eq!(verdict(&impatient, "b", new).await, "503 handoff-timeout");
    assert_eq!(verdict(&layer, "a", old).await, "412 stale-tenure");
    door.open.open();
    assert_eq!(running.await.unwrap().status(), 200);
    let patient = other.lock(LOCK).layer().unwrap();
    assert_eq!(verdict(&patient, "b", new).await, "200");
    timeout(PATIENCE, one.leave()).await.expect("the others are told");
    assert_eq!(verdict(&layer, "b", new).await, "503 out-of-group");
    let next = cluster.put(LOCK, "c").await;
    assert_eq!(verdict(&patient, "c", next).await, "200");
}

#[tokio::test]
async fn no_layer_counts_what_is_lost_for_longer_than_its_group() {
    let fence = Fence::etcd(["http://127.0.0.1:1"]);
    let group = fence.group("g", Duration::from_secs(3), Duration::from_secs(1)).build().unwrap();
    let refused = group.lock(LOCK).layer().err();
    assert_eq!(refused, Some(InvalidLock::LongerOrphans(Duration::from_secs(1))));
}
