//! The locks that a run holds in etcd.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;

use super::tenures::Tenures;
use crate::cli::DriveSettings;
use crate::cli::LockSettings;
use crate::lock::{Handoff, Held, Lock, Successor, acquire_all};
use crate::token::Token;

/// Locks, and their present tenures.
pub(crate) struct HeldLocks {
    locks: Vec<Lock>,
    held: Vec<Held>,
    /// Locks whose handoff has begun and not come to its end, with the lease of whoever was to have them.
    between: HashMap<usize, i64>,
}

impl HeldLocks {
    /// None yet of the locks that the settings name, for a run of that length.
    pub(crate) async fn open(settings: &DriveSettings, length: Duration) -> anyhow::Result<HeldLocks> {
        let template = settings.lock.as_ref().context("--etcd needs --lock")?;
        let first = LockSettings { etcd: settings.etcd.clone(), access: settings.access.clone(), lock: template.of(0) };
        let first = Lock::open(&first, settings.layout).await?.for_a_run_of(length);
        let locks = (0..settings.locks.get()).map(|number| first.named(template.of(number))).collect();
        Ok(HeldLocks { locks, held: Vec::new(), between: HashMap::new() })
    }

    /// Takes them. If there are to be superseded requests from the start, each lock has had a tenure before.
    ///
    /// # Cancel safety
    /// What was taken by then is given up by [`HeldLocks::release`].
    pub(crate) async fn take(&mut self, with_superseded: bool) -> anyhow::Result<Tenures> {
        let mut superseded = vec![None; self.locks.len()];
        if with_superseded {
            let before = acquire_all(&self.locks, "loadtest-before").await?;
            superseded = before.into_iter().map(|held| Some(held.token)).collect();
            self.release().await?;
        }
        self.held = acquire_all(&self.locks, "loadtest").await?;
        Ok(Tenures::new(self.held.iter().map(|held| held.token.clone()).zip(superseded)))
    }

    /// Has another owner wait for a lock.
    pub(crate) async fn successor<'a>(&self, lock: usize, owner: &'a str) -> anyhow::Result<Successor<'a>> {
        self.locks[lock].successor(owner).await
    }

    /// Whether it is known who holds a lock: not where a handoff broke off.
    pub(crate) fn is_settled(&self, lock: usize) -> bool {
        !self.between.contains_key(&lock)
    }

    /// Takes a lock for that owner whose last handoff broke off, whoever of the two holds it.
    pub(crate) async fn take_anew(&mut self, lock: usize, owner: &str) -> anyhow::Result<Token> {
        if let Some(successor) = self.between.get(&lock) {
            self.locks[lock].end(*successor).await?;
        }
        self.locks[lock].release(&self.held[lock]).await?;
        let held = self.locks[lock].acquire(owner).await?;
        self.between.remove(&lock);
        let token = held.token.clone();
        self.held[lock] = held;
        Ok(token)
    }

    /// Hands a lock to the owner that waits for it.
    pub(crate) async fn hand_over(
        &mut self,
        lock: usize,
        successor: Successor<'_>,
    ) -> anyhow::Result<(Token, Handoff)> {
        self.between.insert(lock, successor.lease());
        let (held, handoff) = self.locks[lock].hand_over(&self.held[lock], successor).await?;
        self.between.remove(&lock);
        let token = held.token.clone();
        self.held[lock] = held;
        Ok((token, handoff))
    }

    /// Gives them all up, and leaves nothing of them in etcd.
    pub(crate) async fn release(&self) -> anyhow::Result<()> {
        match self.locks.first() {
            Some(lock) => lock.give_back().await,
            None => Ok(()),
        }
    }
}
