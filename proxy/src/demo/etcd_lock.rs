//! The lock in a real etcd, as a master takes it: a transaction that writes the key if it is absent, under a lease.

use std::error::Error as StdError;
use std::time::Duration;

use anyhow::{Context, anyhow};
use etcd_client::{Client, Compare, CompareOp, Error, PutOptions, Txn, TxnOp};
use fencepost_policy::Revision;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

/// How long a call may take: whoever waits for a story wants to know soon that there will be none.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a lease outlives this program, if it is killed. The story itself takes less than half of it.
const LEASE_SECONDS: u32 = 60;

/// How soon a lease that could not be renewed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A lock in etcd and the lease of its holder.
pub(super) struct EtcdLock {
    url: String,
    key: String,
    client: OnceCell<Client>,
    lease: Option<i64>,
}

impl EtcdLock {
    /// Nothing is connected yet.
    pub(super) fn new(url: &str, key: &str) -> EtcdLock {
        EtcdLock { url: url.to_owned(), key: key.to_owned(), client: OnceCell::new(), lease: None }
    }

    /// Where etcd is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Reads the key: a cluster that has no leader can't answer that.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        self.call(async |client| client.get(self.key.as_str(), None).await).await.map(drop)
    }

    /// Writes the key, if it is absent, under a new lease, and returns the revision of that.
    pub(super) async fn put_if_absent(&mut self, owner: &str) -> anyhow::Result<Option<Revision>> {
        let granted = self.call(async |client| client.lease_grant(LEASE_SECONDS.into(), None).await).await?;
        self.lease = Some(granted.id());
        let absent = Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0);
        let put = TxnOp::put(self.key.as_str(), owner, Some(PutOptions::new().with_lease(granted.id())));
        let transaction = Txn::new().when([absent]).and_then([put]);
        let answer = self.call(async |client| client.txn(transaction).await).await?;
        let written_at = answer.header().map(|header| header.revision()).filter(|_| answer.succeeded());
        Ok(written_at.and_then(|revision| Revision::new(u64::try_from(revision).ok()?)))
    }

    /// Ends the lease, and with it the key that was written under it.
    pub(super) async fn revoke(&mut self) -> anyhow::Result<()> {
        let lease = self.lease.context("nobody holds a lease")?;
        self.call(async |client| client.lease_revoke(lease).await).await?;
        self.lease = None;
        Ok(())
    }

    /// Renews the lease well before it would run out, again and again, and returns why that has come to an end.
    pub(super) async fn keep_alive(&self) -> anyhow::Error {
        let Some(lease) = self.lease else { return anyhow!("nobody holds a lease") };
        loop {
            // Opening the stream renews the lease once, which is all that is needed.
            let renewed = self.call(async |client| client.lease_keep_alive(lease).await).await;
            if renewed.is_ok() {
                sleep(Duration::from_secs(u64::from(LEASE_SECONDS) / 4)).await;
                continue;
            }
            // etcd may be away for a while. That the lease is gone, only etcd can say.
            let left = self.call(async |client| client.lease_time_to_live(lease, None).await).await;
            if left.is_ok_and(|left| left.ttl() <= 0) {
                return anyhow!("it has run out");
            }
            sleep(RETRY_AFTER).await;
        }
    }

    /// Ends the lease and removes the key, which somebody may have written without a lease meanwhile.
    pub(super) async fn remove(mut self) -> anyhow::Result<()> {
        if let Some(lease) = self.lease {
            let left = self.call(async |client| client.lease_time_to_live(lease, None).await).await?;
            self.call(async |client| client.delete(self.key.as_str(), None).await).await?;
            // One that has run out can't be revoked, and need not be.
            if left.ttl() > 0 {
                self.revoke().await?;
            }
        }
        Ok(())
    }

    /// Makes a call, with a deadline, and says whom it was made to if it fails.
    async fn call<T>(&self, make: impl AsyncFnOnce(&mut Client) -> Result<T, Error>) -> anyhow::Result<T> {
        let called = async {
            let connect = || Client::connect([&self.url], None);
            make(&mut self.client.get_or_try_init(connect).await?.clone()).await
        };
        let url = &self.url;
        match timeout(CALL_TIMEOUT, called).await {
            Ok(answered) => answered.map_err(|error| anyhow!("etcd at {url} cannot be used: {}", plainly(&error))),
            Err(_) => Err(anyhow!("etcd at {url} does not answer within {CALL_TIMEOUT:?}; is it running?")),
        }
    }
}

/// What went wrong, without the names of the library's own types: what etcd said, and the innermost cause.
fn plainly(error: &Error) -> String {
    let Error::GRpcStatus(status) = error else {
        return error.to_string();
    };
    let mut cause = status.source();
    while let Some(deeper) = cause.and_then(StdError::source) {
        cause = Some(deeper);
    }
    cause.map_or_else(|| status.message().to_owned(), |cause| format!("{}: {cause}", status.message()))
}
