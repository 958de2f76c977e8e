//! The leases of a run, so that it leaves none behind, however it ends.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use fencepost_locks::{EtcdClient, EtcdError};
use futures_util::{StreamExt, stream};
use tokio::sync::RwLock;
use tokio::time::sleep;

use super::{CONCURRENT_CALLS_MAX, REPEATED};

const RENEWALS: u32 = 3;

#[derive(Clone)]
pub(super) struct Leases {
    etcd: EtcdClient,
    /// Read-locked while a lease is being granted, so a writer knows all leases.
    granted: Arc<RwLock<Granted>>,
}

type Granted = Mutex<BTreeSet<i64>>;

fn all(granted: &Granted) -> MutexGuard<'_, BTreeSet<i64>> {
    granted.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leases {
    pub(super) fn new(etcd: EtcdClient) -> Leases {
        Leases { etcd, granted: Arc::default() }
    }

    /// Asks for a lease and renews it until it is revoked. The lease has a name of ours, so it can
    /// be revoked even when etcd's response is lost.
    pub(super) async fn grant(&self, length: Duration) -> Result<i64> {
        let (etcd, granted) = (self.etcd.clone(), Arc::clone(&self.granted).read_owned().await);
        // In a task of its own: a caller that is cancelled would leave a lease that nobody knows.
        let granting = tokio::spawn(async move {
            let lease = (RandomState::new().hash_one(()) >> 1) as i64; // Names are positive.
            all(&granted).insert(lease);
            etcd.grant(lease, length, REPEATED).await.map(|_| lease)
        });
        let lease = granting.await?.context("etcd grants no lease")?;
        tokio::spawn(self.clone().keep_alive(lease, length));
        Ok(lease)
    }

    async fn keep_alive(self, lease: i64, length: Duration) {
        loop {
            sleep(length / RENEWALS).await;
            if !all(&*self.granted.read().await).contains(&lease) {
                return;
            }
            // The next round tries again.
            let _ = self.etcd.keep_alive(lease, REPEATED).await;
        }
    }

    /// Ends a lease and what depends on it. A lease that has ended already is no error.
    pub(super) async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        self.etcd.revoke(lease, REPEATED).await?;
        all(&*self.granted.read().await).remove(&lease);
        Ok(())
    }

    /// Ends all leases, those included that are just being granted.
    pub(super) async fn revoke_all(&self) -> Result<()> {
        let leases = all(&*self.granted.write().await).clone();
        let revoking = leases.into_iter().map(|lease| self.revoke(lease));
        let mut revoked = stream::iter(revoking).buffer_unordered(CONCURRENT_CALLS_MAX);
        let mut errors = Vec::new();
        // One error stops no other revocation, but many errors mean that the store is gone.
        while let (Some(outcome), true) =
            (revoked.next().await, errors.len() < CONCURRENT_CALLS_MAX)
        {
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
    use etcd_client::Client;
    use fencepost_tests::{Etcd, EtcdVersion, eventually};
    use std::time::Instant;

    /// Connections that took longer to open than the lease was long cost the run its locks.
    #[tokio::test]
    async fn lease_lasts_until_it_is_revoked() {
        let etcd = Etcd::start(EtcdVersion::V3_5).await;
        let client = Client::connect([etcd.endpoint()], None).await.unwrap();
        let leases = Leases::new(EtcdClient::new(&[etcd.endpoint()], &Arc::default()));
        let (granted, lease) =
            (Instant::now(), leases.grant(Duration::from_secs(6)).await.unwrap());
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
