//! Many locks of one store, taken together.

use std::time::Duration;

use anyhow::ensure;
use etcd_client::{PutOptions, Txn, TxnOp};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{CALLS_MAX, Held, LEASE_SECONDS, Layout, Lock, revision};
use crate::token::Token;

/// How many keys one transaction takes: etcd allows 128 operations unless told otherwise.
const KEYS_PER_TRANSACTION: usize = 100;

impl Lock {
    /// The same lock, whose tenures outlive a run of that length though etcd is away, and are seldom renewed meanwhile.
    pub(crate) fn for_a_run_of(self, length: Duration) -> Lock {
        let seconds = i64::try_from(length.as_secs()).unwrap_or(i64::MAX / 2);
        Lock { lease_seconds: LEASE_SECONDS.saturating_add(seconds), ..self }
    }

    /// Another lock of the same store, laid out the same.
    pub(crate) fn named(&self, key: String) -> Lock {
        Lock { key, ..self.clone() }
    }
}

/// Takes all of these locks, which are of one store and layout. They must be free.
pub(crate) async fn acquire_all(locks: &[Lock], owner: &str) -> anyhow::Result<Vec<Held>> {
    let Some(first) = locks.first() else { return Ok(Vec::new()) };
    match first.layout {
        Layout::Key => {
            let lease = first.lease().await?;
            let put = async |chunk: &[Lock]| put_all(chunk, owner, lease).await;
            let chunks: Vec<Vec<Held>> =
                stream::iter(locks.chunks(KEYS_PER_TRANSACTION).map(put)).buffered(CALLS_MAX).try_collect().await?;
            Ok(chunks.into_iter().flatten().collect())
        }
        Layout::Election | Layout::Mutex => {
            let acquire = async |lock: &Lock| lock.acquire(owner).await;
            stream::iter(locks.iter().map(acquire)).buffered(CALLS_MAX).try_collect().await
        }
    }
}

/// One transaction, and so one revision, for some plain keys.
async fn put_all(locks: &[Lock], owner: &str, lease: i64) -> anyhow::Result<Vec<Held>> {
    let Some(first) = locks.first() else { return Ok(Vec::new()) };
    let absent: Vec<_> = locks.iter().map(Lock::is_absent).collect();
    let under = || Some(PutOptions::new().with_lease(lease));
    let puts: Vec<_> = locks.iter().map(|lock| TxnOp::put(lock.key.as_str(), owner, under())).collect();
    let response = first.etcd.clone().txn(Txn::new().when(absent).and_then(puts)).await?;
    let last = locks.last().map_or("", |lock| &lock.key);
    ensure!(response.succeeded(), "one of the locks from {} to {last} is not free", first.key);
    let token = Token::new(owner, revision(response.header())?)?;
    Ok(locks.iter().map(|_| Held { token: token.clone(), lease, shares_lease: true }).collect())
}
