//! The leases that a run has been granted, so that it leaves none behind, however it ends.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use etcd_client::{Client, Error, LeaseGrantOptions};
use futures_util::{StreamExt, stream};
use tokio::sync::RwLock;
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::{CALL_TIMEOUT, CALLS_MAX};

/// How often a lease is renewed within its length: two times may fail.
const RENEWALS: u32 = 3;

/// The leases of all locks that were opened together.
#[derive(Clone)]
pub(super) struct Leases {
    etcd: Client,
    /// Read-locked while one is being granted: whoever gets to write knows of all.
    granted: Arc<RwLock<Granted>>,
}

#[derive(Default)]
struct Granted(Mutex<BTreeSet<i64>>);

impl Granted {
    fn all(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leases {
    /// None yet, of that store.
    pub(super) fn new(etcd: Client) -> Leases {
        Leases { etcd, granted: Arc::default() }
    }

    /// Asks for one of so many seconds, which lasts until it is revoked. We name it, so that it is known where etcd's answer is lost.
    pub(super) async fn grant(&self, seconds: i64) -> anyhow::Result<i64> {
        let (mut etcd, granted) = (self.etcd.clone(), Arc::clone(&self.granted).read_owned().await);
        // On a task of its own: whoever asked may be told to end before etcd answers, and the lease would be nobody's.
        let granting = tokio::spawn(async move {
            let lease = (RandomState::new().hash_one(()) >> 1) as i64; // Not negative: that is no name.
            granted.all().insert(lease);
            let granted = etcd.lease_grant(seconds, Some(LeaseGrantOptions::new().with_id(lease))).await;
            granted.map(|granted| granted.id())
        });
        let lease = granting.await?.context("etcd grants no lease")?;
        tokio::spawn(self.clone().keep_alive(lease, Duration::from_secs(seconds.unsigned_abs())));
        Ok(lease)
    }

    /// Nobody knows how long a run takes before it begins: to take all its locks, and to open its connections.
    async fn keep_alive(self, lease: i64, length: Duration) {
        loop {
            sleep(length / RENEWALS).await;
            if !self.granted.read().await.all().contains(&lease) {
                return;
            }
            // What fails is tried again next time.
            let _ = timeout(CALL_TIMEOUT, self.etcd.clone().lease_keep_alive(lease)).await;
        }
    }

    /// Ends one, and whatever hangs on it. One that has ended already is none to speak of.
    pub(super) async fn revoke(&self, lease: i64) -> Result<(), Error> {
        let revoked = self.etcd.clone().lease_revoke(lease).await;
        let is_gone = matches!(&revoked, Err(Error::GRpcStatus(status)) if status.code() == Code::NotFound);
        if revoked.is_ok() || is_gone {
            self.granted.read().await.all().remove(&lease);
            return Ok(());
        }
        revoked.map(|_| ())
    }

    /// Ends all that have not ended.
    ///
    /// # Errors
    /// If one of them can't be: it ends by itself when its time is over.
    pub(super) async fn revoke_all(&self) -> anyhow::Result<()> {
        // Those that are just being granted are waited for.
        let leases = self.granted.write().await.all().clone();
        let mut revoked = stream::iter(leases.into_iter().map(|lease| self.revoke(lease))).buffer_unordered(CALLS_MAX);
        let mut errors = Vec::new();
        // One that fails keeps the others from nothing, but a store that is gone is not asked for each of them.
        while let (Some(outcome), true) = (revoked.next().await, errors.len() < CALLS_MAX) {
            errors.extend(outcome.err());
        }
        match errors.into_iter().next() {
            None => Ok(()),
            Some(error) => Err(error).context("a lease of the locks cannot be revoked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost_testsupport::{Etcd, EtcdVersion, eventually};
    use std::time::Instant;

    /// Connections that took longer to open than the lease was long cost the run its locks, and each holder was a false refusal.
    #[tokio::test]
    async fn a_lease_outlives_its_length_and_ends_when_it_is_revoked() {
        let etcd = Etcd::start(EtcdVersion::V3_5).await;
        let client = Client::connect([etcd.endpoint()], None).await.unwrap();
        let leases = Leases::new(client.clone());
        let (granted, lease) = (Instant::now(), leases.grant(6).await.unwrap());
        let left = async || client.clone().lease_time_to_live(lease, None).await.unwrap().ttl();
        eventually("its length is over", async || {
            assert!(left().await >= 0, "it has ended after {:?}", granted.elapsed());
            (granted.elapsed() > Duration::from_secs(8)).then_some(())
        })
        .await;
        leases.revoke(lease).await.unwrap();
        assert_eq!(left().await, -1);
    }
}
