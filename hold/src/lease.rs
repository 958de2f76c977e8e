//! A lease: what a lock hangs on.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fencepost_locks::Within;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::debug;

use crate::clock::BootInstant;
use crate::error::StoreError;
use crate::etcd::{Etcd, random};

/// How long giving a lease back may take.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(3);

/// A lease of ours. It is given back with this value, in the background if nobody waits for that.
#[derive(Debug)]
pub(crate) struct Lease {
    etcd: Etcd,
    pub(crate) id: i64,
    /// As etcd granted it: it may be more than was asked for.
    pub(crate) ttl: Duration,
    /// When the last renewal that was confirmed was sent.
    confirmed: Mutex<BootInstant>,
    /// Whether it is to be given back when it is dropped.
    may_stand: bool,
}

impl Lease {
    /// A new one.
    ///
    /// # Cancel safety
    /// If it is given up, it is granted all the same, and given back then: a revocation that
    /// overtook the grant would find nothing to revoke.
    pub(crate) async fn grant(
        etcd: &Etcd,
        ttl: Duration,
        within: Duration,
    ) -> Result<Lease, StoreError> {
        let (grant, granted) = oneshot::channel();
        let for_task = etcd.clone();
        // Where nobody waits for it any more, the lease is dropped here.
        etcd.settle(async move { drop(grant.send(Lease::granted(for_task, ttl, within).await)) });
        granted.await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable("the runtime is shutting down".to_owned()))
        })
    }

    async fn granted(etcd: Etcd, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        // From 1 on: etcd takes 0 as a wish for a number of its own choice.
        let id = i64::try_from(random() >> 1).unwrap_or(i64::MAX).max(1);
        let confirmed = Mutex::new(BootInstant::now());
        // Made before anything is sent, so that whatever becomes of the call is given back.
        let mut lease = Lease { etcd, id, ttl, confirmed, may_stand: true };
        lease.ttl = lease.etcd.client().grant(id, ttl, Within::altogether(within)).await?;
        Ok(lease)
    }

    /// When the last renewal that was confirmed was sent.
    pub(crate) fn confirmed(&self) -> BootInstant {
        *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews it once. The renewal is dated by the moment before it was sent.
    async fn renew(&self) -> Result<(), StoreError> {
        let sent = BootInstant::now();
        self.etcd.client().keep_alive(self.id, attempt_within(self.ttl)).await?;
        *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = sent;
        Ok(())
    }

    /// Renews the lease until this future is dropped, or returns when the lease is gone. The caller
    /// has to check whether the lease is still valid.
    pub(crate) async fn kept(&self) {
        loop {
            until_due(self.confirmed(), self.ttl).await;
            match self.renew().await {
                Ok(()) => {}
                Err(StoreError::NoLease) => return,
                Err(error) => {
                    debug!(%error, "the lease of a waiting contender is not renewed");
                    sleep(retry_after(self.ttl)).await;
                }
            }
        }
    }

    /// Gives it back, and with it whatever hangs on it. Where that fails it is left to run out: it
    /// was tried for as long as it may take.
    pub(crate) async fn give_back(mut self) -> Result<(), StoreError> {
        let revoked =
            self.etcd.client().revoke(self.id, Within::altogether(GIVE_BACK_WITHIN)).await;
        self.may_stand = false;
        revoked
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.may_stand {
            return;
        }
        let (etcd, id) = (self.etcd.clone(), self.id);
        self.etcd.settle(async move {
            if let Err(error) = etcd.client().revoke(id, Within::altogether(GIVE_BACK_WITHIN)).await
            {
                debug!(%error, "a lease is left to run out");
            }
        });
    }
}

/// How long an attempt to renew may wait for its answer, and before that for a connection that is
/// coming up: several fit into the time that a renewal has.
pub(crate) fn attempt_within(ttl: Duration) -> Within {
    Within::one_attempt((ttl / 6).min(Duration::from_secs(1)))
}

/// How long after a failed attempt the next one follows.
pub(crate) fn retry_after(ttl: Duration) -> Duration {
    (ttl / 50).min(Duration::from_millis(200))
}

/// Waits until the next renewal is due.
pub(crate) async fn until_due(confirmed: BootInstant, ttl: Duration) {
    let due = confirmed + ttl / 3;
    sleep(due.since(BootInstant::now())).await;
}
