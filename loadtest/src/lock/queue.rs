//! Waiting in a lock's queue, as `etcdctl lock` and `etcdctl elect` do.
//!
//! etcd's own services do the same, but look for the end of a predecessor with a watch that etcd serves only every 100 ms. By
//! then everybody knows of it; here the successor is as fast as etcd tells it, and races with the news to fencepost.

use anyhow::{Context, bail, ensure};
use etcd_client::{
    Compare, CompareOp, EventType, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    WatchOptions, WatchStream,
};

use super::{Held, Layout, Lock, revision};
use crate::token::Token;

impl Lock {
    /// Queues up behind the predecessor, lets it go, and returns as soon as the lock is the successor's.
    pub(super) async fn take_turn(&self, predecessor: Held, owner: &str, lease: i64) -> anyhow::Result<Token> {
        // The libraries name a contender's key by its lease.
        let key = format!("{}/{lease:x}", self.key);
        let created = self.queue_up(&key, owner, lease).await?;
        let before = self.older_than(created).await?;
        let holder = before.kvs().first().context("nobody is in the queue before the successor")?;
        let mut watch = self.watch(holder.key(), revision(before.header())? + 1).await?;

        let released = self.release(predecessor);
        let gone = deleted(&mut watch);
        tokio::pin!(released, gone);
        // Whoever waits does not know when the predecessor is told: the event alone counts.
        tokio::select! {
            biased;
            gone = &mut gone => gone?,
            released = &mut released => {
                released?;
                gone.await?;
            }
        }

        let before = self.older_than(created).await?;
        ensure!(before.kvs().is_empty(), "somebody else is in the queue before {owner}");
        match self.layout {
            Layout::Election => Token::new(owner, created),
            // What `etcdctl lock` hands its child: the revision of the answer that said that the lock is ours.
            Layout::Mutex => Token::new(&key, revision(before.header())?),
            Layout::Key => bail!("a plain key has no queue"),
        }
    }

    /// Puts the contender's key, and returns the revision that created it: its place in the queue.
    async fn queue_up(&self, key: &str, owner: &str, lease: i64) -> anyhow::Result<i64> {
        let value = match self.layout {
            Layout::Election | Layout::Key => owner,
            Layout::Mutex => "",
        };
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
