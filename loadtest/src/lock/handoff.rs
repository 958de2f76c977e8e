//! A lock passes from its holder to a successor that waits, as its users hand it over.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
};
use fencepost_locks::{EtcdWatch, Event, KeyRange, Watch as _, WatchNews};
use fencepost_policy::Revision;
use tokio::time::timeout;

use super::{CALL_TIMEOUT, Held, Lock, ONCE, REPEATED, revision};
use crate::cli::Layout;
use crate::client::Token;

const GIVING_UP_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Handoff {
    pub(crate) released: Instant,
    /// A watch tells the successor that the predecessor's record is gone.
    pub(crate) told: Instant,
    /// etcd has answered the successor that it holds the lock.
    pub(crate) held: Instant,
}

/// A successor that waits, with the watch that tells it when its turn has come.
pub(crate) struct Successor {
    owner: String,
    lease: i64,
    /// Its key in the queue, and the revision that created it. A plain key has no queue.
    queued: Option<(String, i64)>,
    watch: EtcdWatch,
}

impl Successor {
    pub(super) fn lease(&self) -> i64 {
        self.lease
    }
}

impl Lock {
    /// Makes a successor wait for the lock's holder, which loses nothing yet.
    pub(crate) async fn successor(&self, owner: &str) -> Result<Successor> {
        let refused = || self.refused(owner);
        let lease = self.lease().await.with_context(refused)?;
        let waiting = timeout(CALL_TIMEOUT, async {
            let queued = match self.layout {
                Layout::Key => None,
                Layout::Election | Layout::Mutex => Some(self.queue_up(owner, lease).await?),
            };
            let watch = self.watch_before(queued.as_ref()).await?;
            Ok(Successor { owner: owner.to_owned(), lease, queued, watch })
        });
        let waiting = waiting.await.context("etcd does not answer in time").flatten();
        if waiting.is_err() {
            self.give_up(lease).await;
        }
        waiting.with_context(refused)
    }

    /// Ends the predecessor's tenure, and returns as soon as the successor holds the lock.
    pub(crate) async fn hand_over(
        &self,
        predecessor: &Held,
        successor: Successor,
    ) -> Result<(Held, Handoff)> {
        let Successor { owner, lease, queued, mut watch } = successor;
        let released = Instant::now();
        let taking = async {
            // The event alone counts: the release's own response may come later.
            deleted(&mut watch).await?;
            let told = Instant::now();
            let token = self.take(&owner, lease, queued.as_ref()).await?;
            Ok((token, Handoff { released, told, held: Instant::now() }))
        };
        let handing_over = async { tokio::try_join!(self.release(predecessor), taking) };
        let changed = timeout(CALL_TIMEOUT, handing_over).await;
        match changed.context("the lock does not change hands").flatten() {
            Ok(((), (token, handoff))) => Ok((Held { token, lease, shares_lease: false }, handoff)),
            Err(error) => {
                self.give_up(lease).await;
                Err(error.context(self.refused(&owner)))
            }
        }
    }

    /// Ends a successor's lease. If etcd does not answer, the lease ends when its time is over.
    async fn give_up(&self, lease: i64) {
        let _ = timeout(GIVING_UP_TIMEOUT, self.leases.revoke(lease)).await;
    }

    async fn take(&self, owner: &str, lease: i64, queued: Option<&(String, i64)>) -> Result<Token> {
        let Some((key, created)) = queued else {
            return self.put_if(self.is_absent(), owner, lease).await;
        };
        let before = self.queued_before(*created).await?;
        ensure!(before.kvs().is_empty(), "somebody else is in the queue before {owner}");
        if self.layout == Layout::Election {
            return Token::new(owner, *created);
        }
        // `etcdctl lock` hands its child the revision of the response that gave it the lock.
        Token::new(key, revision(before.header())?)
    }

    /// Puts the contender's key, named by its lease, and returns it with its creating revision.
    async fn queue_up(&self, owner: &str, lease: i64) -> Result<(String, i64)> {
        let key = format!("{}{lease:x}", self.below());
        let value = if self.layout == Layout::Mutex { "" } else { owner };
        let put = TxnOp::put(&*key, value, Some(PutOptions::new().with_lease(lease)));
        let is_absent = Compare::create_revision(&*key, CompareOp::Equal, 0);
        let transaction = Txn::new().when([is_absent]).and_then([put]);
        let response = self.etcd.transact(&self.queue(), &transaction, ONCE).await?;
        ensure!(response.succeeded(), "the key {key} is there already");
        let created = revision(response.header())?;
        Ok((key, created))
    }

    async fn queued_before(&self, created: i64) -> Result<GetResponse> {
        let youngest = GetOptions::new()
            .with_max_create_revision(created - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_limit(1);
        Ok(self.etcd.get(&self.queue(), youngest, REPEATED).await?)
    }

    /// Watches the record whose end is the successor's turn, and returns when the watch is in
    /// place.
    async fn watch_before(&self, queued: Option<&(String, i64)>) -> Result<EtcdWatch> {
        let before = match queued {
            None => self.etcd.get(&self.record(), GetOptions::new(), REPEATED).await?,
            Some((_, created)) => self.queued_before(*created).await?,
        };
        let holder = before.kvs().first().context("nobody has the lock before the successor")?;
        let from = u64::try_from(revision(before.header())? + 1).ok().and_then(Revision::new);
        let from = from.context("etcd names no revision")?;
        Ok(self.etcd.watch(&KeyRange::Key(holder.key().into()), from, CALL_TIMEOUT).await?)
    }
}

async fn deleted(watch: &mut EtcdWatch) -> Result<()> {
    loop {
        if let WatchNews::Events { events, .. } = watch.next().await?
            && events.iter().any(|event| matches!(event, Event::Delete { .. }))
        {
            return Ok(());
        }
    }
}
