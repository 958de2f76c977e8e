//! Real etcd members, started, stopped and taken back.

use std::process::Stdio;
use std::time::Duration;

use fencepost_tests::{Cluster, Etcd, EtcdOptions, EtcdVersion, eventually};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::test]
async fn a_restored_store_has_gone_back_and_is_the_same_cluster() {
    for version in EtcdVersion::ALL {
        let mut etcd = Etcd::start(version).await;
        etcd.etcdctl(&["put", "a", "old"]).await;
        let before = ids(&etcd).await;
        let snapshot = etcd.save_snapshot().await;
        etcd.etcdctl(&["put", "a", "new"]).await;
        let newest = revision(&etcd).await;

        etcd.restore_snapshot(&snapshot).await;

        assert_eq!(get(&etcd, "a").await, "old", "{version}");
        assert!(revision(&etcd).await < newest, "{version}");
        assert_eq!(ids(&etcd).await, before, "{version}");
    }
}

#[tokio::test]
async fn requests_are_counted_by_method() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start(version).await;
        let before = etcd.requests_total().await;
        etcd.etcdctl(&["put", "a", "1"]).await;
        get(&etcd, "a").await;
        get(&etcd, "a").await;
        let added = etcd.requests_total().await.since(&before);
        assert_eq!(
            (added.of("Put"), added.of("Range"), added.of("Watch")),
            (1, 2, 0),
            "{version}: {added:?}"
        );
        assert_eq!(added.total(), 3, "{version}: {added:?}");
    }
}

#[tokio::test]
async fn a_lock_is_held_by_a_running_etcdctl() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start(version).await;
        let mut lock = etcd.etcdctl_command();
        let mut holder = lock.args(["lock", "shard"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = BufReader::new(holder.stdout.take().unwrap()).lines();
        let key = printed.next_line().await.unwrap().unwrap();
        assert_eq!(
            etcd.etcdctl(&["get", "--prefix", "shard/", "--keys-only"]).await.trim(),
            key,
            "{version}"
        );
        holder.kill().await.unwrap();
    }
}

#[tokio::test]
async fn a_paused_leader_is_replaced_and_comes_back() {
    for version in EtcdVersion::ALL {
        let cluster = Cluster::start_with(version, 3, &quick()).await;
        let old = leader(&cluster).await;
        cluster.members[old].pause().await;
        let new = leader_other_than(&cluster, old).await;
        cluster.members[new].etcdctl(&["put", "a", "1"]).await;

        cluster.members[old].resume();

        assert_eq!(get(&cluster.members[old], "a").await, "1", "{version}");
    }
}

#[tokio::test]
async fn a_killed_member_of_three_comes_back_to_the_others() {
    for version in EtcdVersion::ALL {
        let mut cluster = Cluster::start_with(version, 3, &quick()).await;
        let victim = leader(&cluster).await;
        cluster.members[victim].kill();
        let other = leader_other_than(&cluster, victim).await;
        cluster.members[other].etcdctl(&["put", "a", "1"]).await;

        cluster.members[victim].restart().await;

        assert_eq!(get(&cluster.members[victim], "a").await, "1", "{version}");
    }
}

#[tokio::test]
async fn a_whole_cluster_is_taken_back() {
    let mut cluster = Cluster::start_with(EtcdVersion::V3_5, 3, &quick()).await;
    cluster.members[0].etcdctl(&["put", "a", "old"]).await;
    let snapshot = cluster.members[0].save_snapshot().await;
    cluster.members[1].etcdctl(&["put", "a", "new"]).await;

    cluster.restore_snapshot(&snapshot).await;

    for member in &cluster.members {
        assert_eq!(get(member, "a").await, "old");
    }
}

fn quick() -> EtcdOptions {
    let (heartbeat, election) = (Duration::from_millis(50), Duration::from_millis(500));
    EtcdOptions { heartbeat: Some(heartbeat), election: Some(election), ..EtcdOptions::default() }
}

async fn get(etcd: &Etcd, key: &str) -> String {
    etcd.etcdctl(&["get", "--print-value-only", key]).await
}

async fn revision(etcd: &Etcd) -> u64 {
    field(etcd, "Revision").await.parse().unwrap()
}

async fn ids(etcd: &Etcd) -> (String, String) {
    (field(etcd, "ClusterID").await, field(etcd, "MemberID").await)
}

async fn field(etcd: &Etcd, name: &str) -> String {
    let fields = etcd.etcdctl(&["endpoint", "status", "--write-out", "fields"]).await;
    let value = fields.lines().find_map(|line| line.strip_prefix(&format!("\"{name}\" : ")));
    value.unwrap_or_else(|| panic!("no {name} in {fields}")).to_owned()
}

async fn leader(cluster: &Cluster) -> usize {
    eventually("a leader", async || cluster.leader().await).await
}

async fn leader_other_than(cluster: &Cluster, old: usize) -> usize {
    eventually("another leader", async || cluster.leader().await.filter(|leader| *leader != old))
        .await
}
