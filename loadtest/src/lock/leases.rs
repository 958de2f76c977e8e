//! The leases that a run has been granted, so that it leaves none behind, however it ends.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use etcd_client::{Client, Error};
use futures_util::{StreamExt, stream};
use tokio::sync::RwLock;
use tonic::Code;

use super::CALLS_MAX;

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

    /// Asks for one of so many seconds.
    pub(super) async fn grant(&self, seconds: i64) -> anyhow::Result<i64> {
        let (mut etcd, granted) = (self.etcd.clone(), Arc::clone(&self.granted).read_owned().await);
        // On a task of its own: whoever asked may be told to end before etcd answers, and the lease would be nobody's.
        let granting = tokio::spawn(async move {
            let lease = etcd.lease_grant(seconds, None).await?.id();
            granted.all().insert(lease);
            Ok::<i64, Error>(lease)
        });
        granting.await?.context("etcd grants no lease")
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
