//! The lock that both masters want: one key, holding the name of its holder.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fencepost_hold::{Etcd, Lock as HolderLock, Tenure};
use fencepost_locks::{EtcdClient, KeyRange, MemoryStore, Within};
use fencepost_policy::Revision;

use super::client::Token;

/// The timeout of a call. Short, so that the user soon learns that the demo cannot run.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a lease outlives this program, if it is killed. The story itself takes less than half
/// of it.
const LEASE_LENGTH: Duration = Duration::from_secs(60);

/// A lock, as masters use it.
pub(super) struct Lock {
    key: String,
    store: Store,
}

enum Store {
    Memory(MemoryStore),
    Etcd { url: String, tenure: Option<Box<Tenure>>, holders: Etcd },
}

impl Lock {
    /// A lock in the etcd at that URL, else in a store of our own. Nothing is connected yet.
    pub(super) fn named_by(etcd: Option<&str>) -> anyhow::Result<Lock> {
        let Some(url) = etcd else {
            return Ok(Lock {
                key: "/fencepost-demo/lock".to_owned(),
                store: Store::Memory(MemoryStore::new()),
            });
        };
        // A key that nobody else has, so that two demos do not meet. Each `RandomState` has keys of
        // its own.
        let random = RandomState::new().hash_one(std::process::id());
        let key = format!("/fencepost-demo/{random:016x}/lock");
        let store = Store::Etcd { url: url.to_owned(), tenure: None, holders: Etcd::at([url])? };
        Ok(Lock { key, store })
    }

    /// Its key.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The store behind the proxy's source of kind `memory`, which has none with etcd.
    pub(super) fn memory(&self) -> MemoryStore {
        match &self.store {
            Store::Memory(memory) => memory.clone(),
            Store::Etcd { .. } => MemoryStore::new(),
        }
    }

    /// The URL of the etcd that it is in, if it is.
    pub(super) fn etcd(&self) -> Option<&str> {
        match &self.store {
            Store::Memory(_) => None,
            Store::Etcd { url, .. } => Some(url),
        }
    }

    /// Fails, soon and plainly, if the store does not answer.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        let Some(url) = self.etcd() else { return Ok(()) };
        // A cluster that has no leader can't answer that.
        client(url)
            .get(&self.record(), Default::default(), Within::one_attempt(CALL_TIMEOUT))
            .await?;
        Ok(())
    }

    /// Takes the lock, which has to be free, and returns what names the tenure that begins.
    pub(super) async fn acquire(&mut self, owner: &'static str) -> anyhow::Result<Token> {
        let revision: Revision = match &mut self.store {
            Store::Memory(memory) => memory
                .put_if_absent(self.key.clone(), owner)
                .with_context(|| format!("the lock {} is not free for {owner}", self.key))?,
            Store::Etcd { tenure, holders, .. } => {
                let lock = HolderLock::builder(&self.key, owner)
                    .ttl(LEASE_LENGTH)
                    .answer_within(CALL_TIMEOUT);
                tenure.insert(Box::new(lock.build(holders)?.try_acquire().await?)).revision()
            }
        };
        Ok(Token { owner, revision })
    }

    /// Ends the lease of the holder, as time would: the lock is free.
    pub(super) async fn expire(&mut self) -> anyhow::Result<()> {
        match &mut self.store {
            Store::Memory(memory) => {
                memory
                    .delete(self.key.clone())
                    .with_context(|| format!("nobody holds the lock {}", self.key))?;
            }
            Store::Etcd { tenure, .. } => {
                tenure
                    .take()
                    .with_context(|| format!("nobody holds the lock {}", self.key))?
                    .release()
                    .await?;
            }
        }
        Ok(())
    }

    /// Returns why the holder's tenure has ended. It is renewed until then.
    pub(super) async fn lost(&self) -> String {
        match &self.store {
            Store::Etcd { tenure: Some(tenure), .. } => tenure.lost().await.to_string(),
            // A store in memory forgets nothing by itself.
            Store::Etcd { tenure: None, .. } | Store::Memory(_) => std::future::pending().await,
        }
    }

    /// Removes every trace of it, also what somebody may have written without a lease meanwhile.
    pub(super) async fn remove(self) -> anyhow::Result<()> {
        let range = self.record();
        let Store::Etcd { url, tenure, holders } = self.store else { return Ok(()) };
        let remaining =
            || format!("{} could not be removed and goes when its lease runs out", self.key);
        if let Some(tenure) = tenure {
            tenure.release().await.with_context(remaining)?;
        }
        holders.settled().await;
        client(&url)
            .delete(&range, Within::altogether(CALL_TIMEOUT))
            .await
            .with_context(remaining)?;
        Ok(())
    }

    fn record(&self) -> KeyRange {
        KeyRange::Key(self.key.as_bytes().into())
    }
}

fn client(url: &str) -> EtcdClient {
    EtcdClient::new(&[url.to_owned()], &Arc::default())
}
