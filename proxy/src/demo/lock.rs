//! The lock that both masters want: one key, holding the name of its holder.

use std::hash::{BuildHasher, RandomState};

use anyhow::Context;
use fencepost_locks::MemoryStore;
use fencepost_policy::Revision;

use super::client::Token;
use super::etcd_lock::EtcdLock;

/// A lock, as masters use it.
pub(super) struct Lock {
    key: String,
    store: Store,
}

enum Store {
    Memory(MemoryStore),
    Etcd(Box<EtcdLock>),
}

impl Lock {
    /// A lock in the etcd at that URL, else in a store of our own. Nothing is connected yet.
    pub(super) fn named_by(etcd: Option<&str>) -> Lock {
        match etcd {
            None => Lock { key: "/fencepost-demo/lock".to_owned(), store: Store::Memory(MemoryStore::new()) },
            Some(url) => {
                // A key that nobody else has, so that two demos do not meet. Each `RandomState` has keys of its own.
                let random = RandomState::new().hash_one(std::process::id());
                let key = format!("/fencepost-demo/{random:016x}/lock");
                let store = Store::Etcd(Box::new(EtcdLock::new(url, &key)));
                Lock { key, store }
            }
        }
    }

    /// Its key.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The store behind the proxy's source of kind `memory`, which has none with etcd.
    pub(super) fn memory(&self) -> MemoryStore {
        match &self.store {
            Store::Memory(memory) => memory.clone(),
            Store::Etcd(_) => MemoryStore::new(),
        }
    }

    /// The URL of the etcd that it is in, if it is.
    pub(super) fn etcd(&self) -> Option<&str> {
        match &self.store {
            Store::Memory(_) => None,
            Store::Etcd(etcd) => Some(etcd.url()),
        }
    }

    /// Fails, soon and plainly, if the store does not answer.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        match &self.store {
            Store::Memory(_) => Ok(()),
            Store::Etcd(etcd) => etcd.check().await,
        }
    }

    /// Takes the lock, which has to be free, and returns what names the tenure that begins.
    pub(super) async fn acquire(&mut self, owner: &'static str) -> anyhow::Result<Token> {
        let taken: Option<Revision> = match &mut self.store {
            Store::Memory(memory) => memory.put_if_absent(self.key.clone(), owner),
            Store::Etcd(etcd) => etcd.put_if_absent(owner).await?,
        };
        let revision = taken.with_context(|| format!("the lock {} is not free for {owner}", self.key))?;
        Ok(Token { owner, revision })
    }

    /// Ends the lease of the holder, as time would: the lock is free.
    pub(super) async fn expire(&mut self) -> anyhow::Result<()> {
        match &mut self.store {
            Store::Memory(memory) => {
                memory.delete(self.key.clone()).with_context(|| format!("nobody holds the lock {}", self.key))?;
                Ok(())
            }
            Store::Etcd(etcd) => etcd.revoke().await,
        }
    }

    /// Keeps the holder's lease alive for as long as this is polled, and returns why that has come to an end.
    pub(super) async fn keep_alive(&self) -> anyhow::Error {
        match &self.store {
            // It forgets nothing by itself.
            Store::Memory(_) => std::future::pending().await,
            Store::Etcd(etcd) => etcd.keep_alive().await,
        }
    }

    /// Removes every trace of it.
    pub(super) async fn remove(self) -> anyhow::Result<()> {
        match self.store {
            Store::Memory(_) => Ok(()),
            Store::Etcd(etcd) => {
                let key = self.key;
                etcd.remove()
                    .await
                    .with_context(|| format!("{key} could not be removed and goes when its lease runs out"))
            }
        }
    }
}
