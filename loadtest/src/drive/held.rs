//! The locks that a run holds in etcd.

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
}

impl HeldLocks {
    /// None yet of the locks that the settings name, for a run of that length.
    pub(crate) async fn open(settings: &DriveSettings, length: Duration) -> anyhow::Result<HeldLocks> {
        let template = settings.lock.as_ref().context("--etcd needs --lock")?;
        let first = LockSettings { etcd: settings.etcd.clone(), lock: template.of(0) };
        let first = Lock::open(&first, settings.layout).await?.for_a_run_of(length);
        let locks = (0..settings.locks.get()).map(|number| first.named(template.of(number))).collect();
        Ok(HeldLocks { locks, held: Vec::new() })
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

    /// Hands a lock to the owner that waits for it.
    pub(crate) async fn hand_over(
        &mut self,
        lock: usize,
        successor: Successor<'_>,
    ) -> anyhow::Result<(Token, Handoff)> {
        let (held, handoff) = self.locks[lock].hand_over(&self.held[lock], successor).await?;
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
