//! What etcd does not read together is read by several requests, and still as it was at one
//! revision.

use fencepost_locks::{EtcdOptions, EtcdStore, LockStore, RangeRead, RangeWatch, Wanted};
use fencepost_tests::{Etcd, EtcdOptions as Member, EtcdVersion, eventually};

use crate::world::{after, key, next_events, put, spelled, transact, writer};

const LOCKS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Reads all locks, as often as it takes to know that the watch goes on, beside a writer that
/// renews them all at once.
async fn check(etcd: &Etcd, what_else: &[&str]) {
    let store =
        EtcdStore::new(&EtcdOptions { endpoints: vec![etcd.endpoint()], ..EtcdOptions::default() });
    let ranges = LOCKS.map(|lock| RangeRead { range: key(lock), wanted: Wanted::All });
    let answer = store.read(&ranges).await.unwrap();
    for (lock, range) in LOCKS.iter().zip(&answer.ranges) {
        assert_eq!(range.keys[0].key, lock.as_bytes(), "{what_else:?}");
        assert!(range.keys[0].modified <= answer.revision);
    }
    let mut watch =
        store.watch(&[RangeWatch { range: key("a"), from: after(answer.revision) }]).await.unwrap();
    for _ in 0..3 {
        store.read(&ranges).await.unwrap();
    }
    etcd.etcdctl(what_else).await;
    let (_, events) = next_events(&mut watch).await;
    assert_eq!(events.len(), 1, "{}", spelled(&events[0]));
}

async fn with_locks(version: EtcdVersion, arguments: [&str; 2]) -> Etcd {
    let member = Member { arguments: arguments.map(str::to_owned).to_vec(), ..Member::default() };
    let etcd = Etcd::start_with(version, &member).await;
    let hand = writer(&[etcd.endpoint()]).await;
    for lock in LOCKS {
        transact(&hand, vec![put(lock, "shard-1")]).await;
    }
    etcd
}

/// No static lock could be read, nor a process become ready.
#[tokio::test]
async fn locks_are_read_alone_where_transactions_are_small() {
    for version in EtcdVersion::ALL {
        let etcd = with_locks(version, ["--max-txn-ops", "2"]).await;
        check(&etcd, &["put", "a", "shard-2"]).await;
    }
}

/// etcd 3.5.1 takes no transaction then that compares nothing, be it of reads only
/// (etcd-io/etcd#13429). What it takes, as a deletion, is watched.
#[tokio::test]
async fn locks_are_read_alone_where_space_is_exceeded() {
    for version in EtcdVersion::ALL {
        let etcd = with_locks(version, ["--quota-backend-bytes", "1000000"]).await;
        let value = "x".repeat(100_000);
        eventually("its space is exceeded", async || {
            let written =
                etcd.etcdctl_command().args(["put", "large", &value]).output().await.unwrap();
            String::from_utf8_lossy(&written.stderr)
                .contains("database space exceeded")
                .then_some(())
        })
        .await;
        check(&etcd, &["del", "a"]).await;
    }
}
