//! Waiting for a lock, as lock clients do: a watch says when the predecessor's record is gone.
//!
//! etcd's own services wait so too, but with a watch that etcd serves only every 100 ms. By then everybody knows of it; here the
//! successor is as fast as etcd tells it, and races with the news to fencepost.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use etcd_client::{
    Compare, CompareOp, EventType, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    WatchOptions, WatchStream,
};

use super::{CALL_TIMEOUT, Held, Layout, Lock, revision};
use crate::token::Token;

/// How long to wait for etcd where nothing depends on its answer.
const GIVING_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// The moments of a handoff, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handoff {
    /// The predecessor sends its release to etcd.
    pub(crate) released: Instant,
    /// The successor's watch says that the predecessor's record is gone.
    pub(crate) told: Instant,
    /// etcd has answered the successor that the lock is its own.
    pub(crate) held: Instant,
}

/// A successor that waits, with the watch that says when it is its turn.
pub(crate) struct Successor<'a> {
    waiter: Waiter<'a>,
    watch: WatchStream,
}

struct Waiter<'a> {
    owner: &'a str,
    lease: i64,
    /// Its place in the queue: its key, and the revision that created it. With a plain key there is no queue.
    place: Option<(String, i64)>,
}

impl Successor<'_> {
    /// The lease that its place, and then the lock, hangs on.
    pub(crate) fn lease(&self) -> i64 {
        self.waiter.lease
    }
}

impl Lock {
    /// Has a successor wait for the lock's holder, which loses nothing yet.
    pub(crate) async fn successor<'a>(&self, owner: &'a str) -> anyhow::Result<Successor<'a>> {
        let lease = self.lease().await.with_context(|| self.refused(owner))?;
        let waiting = tokio::time::timeout(CALL_TIMEOUT, async {
            let waiter = self.waiter(owner, lease).await?;
            let (key, from) = self.record_before(&waiter).await?;
            let watch = self.watch(&key, from).await?;
            Ok(Successor { waiter, watch })
        });
        let waiting = waiting.await.context("etcd does not answer in time").flatten();
        if waiting.is_err() {
            self.give_up(lease).await;
        }
        waiting.with_context(|| self.refused(owner))
    }

    /// Lets the predecessor go, for whom the successor waits, and returns as soon as the lock is the successor's.
    pub(crate) async fn hand_over(
        &self,
        predecessor: &Held,
        successor: Successor<'_>,
    ) -> anyhow::Result<(Held, Handoff)> {
        let Successor { waiter, mut watch } = successor;
        let handing_over = tokio::time::timeout(CALL_TIMEOUT, async {
            let released = Instant::now();
            self.release_until(predecessor, deleted(&mut watch)).await?;
            let told = Instant::now();
            let token = self.take(&waiter).await?;
            Ok((token, Handoff { released, told, held: Instant::now() }))
        });
        match handing_over.await.context("the lock does not change hands").flatten() {
            Ok((token, handoff)) => Ok((Held { token, lease: waiter.lease, shares_lease: false }, handoff)),
            Err(error) => {
                self.give_up(waiter.lease).await;
                Err(error.context(self.refused(waiter.owner)))
            }
        }
    }

    /// A successor waits no longer. If etcd does not hear of it, its lease ends by itself.
    async fn give_up(&self, lease: i64) {
        let _ = tokio::time::timeout(GIVING_UP_TIMEOUT, self.leases.revoke(lease)).await;
    }

    /// With its place in the queue, if there is one.
    async fn waiter<'a>(&self, owner: &'a str, lease: i64) -> anyhow::Result<Waiter<'a>> {
        let place = match self.layout {
            Layout::Key => None,
            Layout::Election | Layout::Mutex => {
                // The libraries name a contender's key by its lease.
                let key = format!("{}/{lease:x}", self.key);
                let created = self.queue_up(&key, owner, lease).await?;
                Some((key, created))
            }
        };
        Ok(Waiter { owner, lease, place })
    }

    /// The key whose end is the waiter's turn, and the revision from which to watch it.
    async fn record_before(&self, waiter: &Waiter<'_>) -> anyhow::Result<(Vec<u8>, i64)> {
        let before = match &waiter.place {
            None => self.etcd.clone().get(self.key.as_str(), None).await?,
            Some((_, created)) => self.older_than(*created).await?,
        };
        let holder = before.kvs().first().context("nobody has the lock before the successor")?;
        Ok((holder.key().to_vec(), revision(before.header())? + 1))
    }

    /// Whoever waits does not know when the predecessor is told: the event alone counts.
    async fn release_until(
        &self,
        predecessor: &Held,
        gone: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let released = self.release(predecessor);
        tokio::pin!(released, gone);
        tokio::select! {
            biased;
            gone = &mut gone => gone,
            released = &mut released => {
                released?;
                gone.await
            }
        }
    }

    /// Takes the lock, now that it is the waiter's turn.
    async fn take(&self, waiter: &Waiter<'_>) -> anyhow::Result<Token> {
        let Some((key, created)) = &waiter.place else {
            return self.put_if(self.is_absent(), waiter.owner, waiter.lease).await;
        };
        let before = self.older_than(*created).await?;
        ensure!(before.kvs().is_empty(), "somebody else is in the queue before {}", waiter.owner);
        match self.layout {
            Layout::Election => Token::new(waiter.owner, *created),
            // What `etcdctl lock` hands its child: the revision of the answer that said that the lock is ours.
            Layout::Mutex => Token::new(key, revision(before.header())?),
            Layout::Key => bail!("a plain key has no queue"),
        }
    }

    /// Puts the contender's key, and returns the revision that created it: its place in the queue.
    async fn queue_up(&self, key: &str, owner: &str, lease: i64) -> anyhow::Result<i64> {
        let value = if self.layout == Layout::Mutex { "" } else { owner };
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        let transaction = Txn::new().when([Compare::create_revision(key, CompareOp::Equal, 0)]).and_then([put]);
        let response = self.etcd.clone().txn(transaction).await?;
        ensure!(response.succeeded(), "the key {key} is there already");
        revision(response.header())
    }

    /// The youngest of those in the queue before this place.
    async fn older_than(&self, created: i64) -> anyhow::Result<GetResponse> {
        let youngest = GetOptions::new()
            .with_prefix()
            .with_max_create_revision(created - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_limit(1);
        Ok(self.etcd.clone().get(format!("{}/", self.key), Some(youngest)).await?)
    }

    /// A watch that is in place: what happens from now on shows at once.
    async fn watch(&self, key: &[u8], from: i64) -> anyhow::Result<WatchStream> {
        let options = WatchOptions::new().with_start_revision(from);
        let mut watch = self.etcd.clone().watch(key, Some(options)).await?;
        let created = watch.message().await?.context("etcd ended the watch")?;
        ensure!(created.created(), "etcd does not confirm the watch");
        Ok(watch)
    }
}

async fn deleted(watch: &mut WatchStream) -> anyhow::Result<()> {
    while let Some(news) = watch.message().await? {
        ensure!(!news.canceled(), "etcd cancelled the watch: {}", news.cancel_reason());
        if news.events().iter().any(|event| event.event_type() == EventType::Delete) {
            return Ok(());
        }
    }
    bail!("etcd ended the watch")
}
