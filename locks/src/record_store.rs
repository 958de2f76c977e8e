//! A store of locks whose records name their own tenures, as the rest of this crate sees it.
//!
//! etcd needs a [`LockStore`](crate::LockStore): its records do not say where their tenures began,
//! so the cache follows its history. Here one read settles a lock. So there is no history, no watch
//! and no revision of the store to hold on to.

use std::future::{Future, pending};
use std::sync::Arc;

use fencepost_policy::{LockKey, Sighting};

use crate::cache::LockSpec;
use crate::store::StoreError;

/// A store of locks whose records name their own tenures.
///
/// # Contract
/// - Every call has a deadline of its own and ends in [`StoreError`] rather than hang, however the
///   store behaves.
/// - Reads are asked for one after the other, and may be dropped at any point. The answer to one is
///   no older than the answer to any before it, as far as the store itself can promise that.
pub trait RecordStore: 'static {
    /// Reads locks, at most [`READ_TOGETHER_MAX`] of them: one answer for each, in that order.
    ///
    /// Each answer shows every write that was acknowledged before the call, as far as the store can
    /// promise that. Without locks it says only whether the store is there.
    ///
    /// # Errors
    /// If the store can't be read. What is wrong with one lock is part of its answer.
    fn read(
        &self,
        locks: &[&LockSpec],
    ) -> impl Future<Output = Result<Vec<RecordAnswer>, StoreError>>;

    /// Completes when locks had better be read now. It proves nothing, and none may ever come.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint but those of which it is known already.
    fn hint(&self) -> impl Future<Output = Hint> {
        pending()
    }
}

/// The most locks that are read together.
pub const READ_TOGETHER_MAX: usize = 128;

/// What a read shows of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordAnswer {
    /// What it shows.
    pub sighting: Sighting,
    /// What is wrong with the record, in words that name the lock.
    pub problem: Option<Arc<str>>,
}

/// Which locks had better be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// That one.
    Lock(LockKey),
    /// Every one that is known.
    All,
}
