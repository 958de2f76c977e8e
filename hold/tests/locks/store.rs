//! A real etcd, and what stands in it.

use std::time::Duration;

use etcd_client::{Client, GetOptions, KeyValue};
use fencepost_hold::{Etcd, Lock, LockBuilder, Over, Tenure};
use fencepost_tests as support;
use fencepost_tests::{EtcdOptions, EtcdVersion, PATIENCE, Requests, eventually};

/// An etcd with elections so short that it grants leases of one second.
pub(crate) struct Store {
    pub(crate) member: support::Etcd,
    pub(crate) etcd: Etcd,
    client: Client,
}

/// The lock of these tests.
pub(crate) const KEY: &str = "/lock";

impl Store {
    pub(crate) async fn start() -> Store {
        let election = Some(Duration::from_millis(200));
        let options = EtcdOptions {
            heartbeat: Some(Duration::from_millis(20)),
            election,
            ..EtcdOptions::default()
        };
        let member = support::Etcd::start_with(EtcdVersion::V3_5, &options).await;
        let etcd = Etcd::at([member.endpoint()]).unwrap();
        let client = Client::connect([member.endpoint()], None).await.unwrap();
        Store { member, etcd, client }
    }

    /// A client of our own.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The lock, for that owner, with a time to live that no test waits for.
    pub(crate) fn lock(&self, owner: &str) -> Lock {
        self.lock_with(owner, |lock| lock.ttl(Duration::from_secs(600)))
    }

    pub(crate) fn lock_with(
        &self,
        owner: &str,
        more: impl FnOnce(LockBuilder) -> LockBuilder,
    ) -> Lock {
        more(Lock::builder(KEY, owner)).build(&self.etcd).unwrap()
    }

    /// All keys with this beginning, the oldest first.
    pub(crate) async fn keys(&self, prefix: &str) -> Vec<KeyValue> {
        let mut answer =
            self.client().get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
        let mut keys = answer.take_kvs();
        keys.sort_by_key(KeyValue::create_revision);
        keys
    }

    pub(crate) async fn leases(&self) -> Vec<i64> {
        self.client().leases().await.unwrap().leases().iter().map(|lease| lease.id()).collect()
    }

    /// Waits until so many stand in the queue.
    pub(crate) async fn until_queued(&self, count: usize) {
        eventually(&format!("{count} in the queue"), async || {
            (self.keys("/lock.queue/").await.len() == count).then_some(())
        })
        .await;
    }

    /// Nobody of ours holds anything or waits for it.
    ///
    /// There may be a lease on which nothing hangs, until it runs out: etcd may carry out at any
    /// time what it was sent while it stood still. An attempt to be granted a lease that was made
    /// again since may come last, when the lease has been given back.
    pub(crate) async fn is_free(&self) {
        self.etcd.settled().await;
        assert!(self.keys("/").await.is_empty(), "keys are left behind");
    }

    /// Waits until a lease was given back, since etcd had had these requests.
    pub(crate) async fn gets_a_lease_back_since(&self, before: &Requests) {
        eventually("a lease is given back", async || {
            (self.member.requests_total().await.since(before).of("LeaseRevoke") >= 1).then_some(())
        })
        .await;
    }

    /// Nothing of ours is left: neither a key nor a lease.
    pub(crate) async fn is_clean(&self) {
        self.is_free().await;
        assert_eq!(self.leases().await, Vec::<i64>::new(), "leases are left behind");
    }
}

/// Why a tenure is over, once it is.
pub(crate) async fn over(tenure: &Tenure) -> Over {
    tokio::time::timeout(PATIENCE, tenure.lost()).await.expect("the tenure is over in time")
}
