//! What we last learnt of a lock.

use std::sync::Arc;

use crate::{Layout, Owner, Revision};

/// One unbroken period in which one owner holds one lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenure {
    /// Who holds it.
    pub owner: Owner,
    /// The lowest revision that names this tenure.
    pub first: Revision,
    /// The highest revision known to name it; never below `first`.
    pub last: Revision,
}

/// Somebody in the queue behind the holder of an `election` or `mutex` lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter {
    /// The owner it would be.
    pub owner: Owner,
    /// The revision at which it queued, its tenure's `first` if it ever comes to hold the lock.
    pub created: Revision,
}

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holding {
    /// Nobody.
    Free,
    /// This tenure.
    Held(Tenure),
    /// There is a record, but it can't be parsed, or names several at once; nobody is admitted on
    /// it.
    Unreadable,
}

/// The state of a lock at one revision of its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The layout the record was read by.
    pub layout: Layout,
    /// The store revision this is exact for; `None` for a free lock of which it is not known that
    /// any tenure ever had a revision.
    pub as_of: Option<Revision>,
    /// Who held the lock then.
    pub holding: Holding,
    /// The contenders behind the holder, the oldest first. Contenders that are tied for the first
    /// place are among them. Always empty for [`Layout::Key`].
    pub waiters: Arc<[Waiter]>,
}

impl Snapshot {
    /// The tenure that holds the lock, if one does.
    pub fn tenure(&self) -> Option<&Tenure> {
        match &self.holding {
            Holding::Held(tenure) => Some(tenure),
            Holding::Free | Holding::Unreadable => None,
        }
    }
}
