//! The locks that a run holds in etcd.

use std::time::Duration;

use anyhow::Context;

use super::tenures::Tenures;
use crate::cli::DriveSettings;
use crate::cli::LockSettings;
use crate::lock::{Handoff, Held, Lock, Successor, acquire_all, release_all};
use crate::token::Token;

/// Locks, and their present tenures.
pub(crate) struct HeldLocks {
    locks: Vec<Lock>,
    held: Vec<Held>,
}

impl HeldLocks {
    /// Takes the locks that the settings name, for a run of that length. If there are to be superseded requests from the start, each
    /// lock has had a tenure before.
    pub(crate) async fn take(settings: &DriveSettings, length: Duration) -> anyhow::Result<(HeldLocks, Tenures)> {
        let template = settings.lock.as_ref().context("--etcd needs --lock")?;
        let first = LockSettings { etcd: settings.etcd.clone(), lock: template.of(0) };
        let first = Lock::open(&first, settings.layout).await?.for_a_run_of(length);
        let locks: Vec<Lock> = (0..settings.locks.get()).map(|number| first.named(template.of(number))).collect();
        let mut superseded = vec![None; locks.len()];
        if !settings.stale.is_none() {
            let held = acquire_all(&locks, "loadtest-before").await?;
            superseded = held.iter().map(|held| Some(held.token.clone())).collect();
            release_all(&locks, held).await?;
        }
        let held = acquire_all(&locks, "loadtest").await?;
        let tenures = Tenures::new(held.iter().map(|held| held.token.clone()).zip(superseded));
        Ok((HeldLocks { locks, held }, tenures))
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

    /// Gives them all up.
    pub(crate) async fn release(self) -> anyhow::Result<()> {
        release_all(&self.locks, self.held).await
    }
}
