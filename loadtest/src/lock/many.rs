//! Many locks of one store, taken together and handed over one by one.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use etcd_client::{PutOptions, Txn, TxnOp};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::handoff::{Handoff, Successor};
use super::{CONCURRENT_CALLS_MAX, Held, Lock, ONCE, revision};
use crate::cli::{Layout, LockOptions};
use crate::client::Token;

const KEYS_PER_TRANSACTION: usize = 100;

pub(crate) struct HeldLocks {
    locks: Vec<Lock>,
    held: Vec<Held>,
    /// Locks whose last handoff did not end, with the lease of the successor.
    unsettled: HashMap<usize, i64>,
}

impl HeldLocks {
    pub(crate) async fn open(
        options: &LockOptions,
        count: usize,
        run: Duration,
    ) -> Result<HeldLocks> {
        let template = options.lock.as_ref().context("--etcd needs --lock")?;
        let first = Lock::open(options, run).await?;
        let locks = (0..count).map(|number| first.named(template.of(number))).collect();
        Ok(HeldLocks { locks, held: Vec::new(), unsettled: HashMap::new() })
    }

    /// Takes all locks; returns each token, and the token of an earlier tenure if one is wanted.
    pub(crate) async fn take(
        &mut self,
        with_superseded: bool,
    ) -> Result<Vec<(Token, Option<Token>)>> {
        let mut superseded = vec![None; self.locks.len()];
        if with_superseded {
            let before = acquire_all(&self.locks, "loadtest-before").await?;
            superseded = before.into_iter().map(|held| Some(held.token)).collect();
            self.release().await?;
        }
        self.held = acquire_all(&self.locks, "loadtest").await?;
        Ok(self.held.iter().map(|held| held.token.clone()).zip(superseded).collect())
    }

    /// Makes another owner wait for a lock. `None` where the last handoff did not end.
    pub(crate) async fn successor(&self, lock: usize, owner: &str) -> Result<Option<Successor>> {
        if self.unsettled.contains_key(&lock) {
            return Ok(None);
        }
        self.locks[lock].successor(owner).await.map(Some)
    }

    pub(crate) async fn hand_over(
        &mut self,
        lock: usize,
        successor: Successor,
    ) -> Result<(Token, Handoff)> {
        self.unsettled.insert(lock, successor.lease());
        let (held, handoff) = self.locks[lock].hand_over(&self.held[lock], successor).await?;
        Ok((self.settle(lock, held), handoff))
    }

    /// Takes a lock whose last handoff did not end, and which either of the two may hold.
    pub(crate) async fn take_anew(&mut self, lock: usize, owner: &str) -> Result<Token> {
        if let Some(successor) = self.unsettled.get(&lock) {
            let revoked = self.locks[lock].leases.revoke(*successor).await;
            revoked.context("the lease of a successor cannot be revoked")?;
        }
        self.locks[lock].release(&self.held[lock]).await?;
        let held = self.locks[lock].acquire(owner).await?;
        Ok(self.settle(lock, held))
    }

    fn settle(&mut self, lock: usize, held: Held) -> Token {
        self.unsettled.remove(&lock);
        self.held[lock] = held;
        self.held[lock].token.clone()
    }

    /// Gives all locks up, and leaves nothing of them in etcd.
    pub(crate) async fn release(&self) -> Result<()> {
        self.locks.first().context("there is no lock")?.give_back().await
    }
}

pub(crate) async fn acquire_all(locks: &[Lock], owner: &str) -> Result<Vec<Held>> {
    let first = locks.first().context("there is no lock")?;
    if first.layout != Layout::Key {
        let acquire = async |lock: &Lock| lock.acquire(owner).await;
        let acquiring = stream::iter(locks.iter().map(acquire)).buffered(CONCURRENT_CALLS_MAX);
        return acquiring.try_collect().await;
    }
    let lease = first.lease().await?;
    let put = async |chunk: &[Lock]| put_all(chunk, owner, lease).await;
    let putting = stream::iter(locks.chunks(KEYS_PER_TRANSACTION).map(put));
    let chunks: Vec<_> = putting.buffered(CONCURRENT_CALLS_MAX).try_collect().await?;
    Ok(chunks.into_iter().flatten().collect())
}

async fn put_all(locks: &[Lock], owner: &str, lease: i64) -> Result<Vec<Held>> {
    let absent: Vec<_> = locks.iter().map(Lock::is_absent).collect();
    let put = |lock: &Lock| {
        TxnOp::put(lock.key.as_str(), owner, Some(PutOptions::new().with_lease(lease)))
    };
    let puts: Vec<_> = locks.iter().map(put).collect();
    let first = locks.first().context("a chunk is not empty")?;
    let response =
        first.etcd.transact(&first.record(), &Txn::new().when(absent).and_then(puts), ONCE).await?;
    let count = locks.len();
    ensure!(response.succeeded(), "one of {count} locks from {} on is not free", first.key);
    let token = Token::new(owner, revision(response.header())?)?;
    Ok(locks.iter().map(|_| Held { token: token.clone(), lease, shares_lease: true }).collect())
}
