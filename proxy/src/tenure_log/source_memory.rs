//! What is remembered of the gates of one source.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fencepost_locks::GateMemory;
use fencepost_policy::{Layout, LockKey, Revision};
use tokio::time::Instant;

use super::{Order, kept};
use crate::state::{Inbox, Remembered};

#[derive(Debug)]
pub(super) struct SourceMemory {
    pub(super) name: String,
    pub(super) remembered: Arc<Remembered>,
    pub(super) inbox: Inbox,
    pub(super) order: Order,
    /// When this process began, if the one before it may have left requests at the worker.
    pub(super) unclean_since: Option<Instant>,
    /// The operator accepted that the store went back: its old revisions mean nothing any more.
    pub(super) accepted: AtomicBool,
    /// Of which locks nothing is left at the worker, by an operator's word.
    pub(super) cleared: Mutex<BTreeSet<LockKey>>,
}

impl SourceMemory {
    fn cleared(&self) -> MutexGuard<'_, BTreeSet<LockKey>> {
        self.cleared.lock().expect("nothing panics while it looks at them")
    }
}

impl GateMemory for SourceMemory {
    /// Does not wait for the order, because its holder may wait for the registry, which is locked
    /// while a gate is made.
    fn of(&self, lock: &LockKey, layout: Layout) -> Option<fencepost_locks::Remembered> {
        let unclean_since = self.unclean_since.filter(|_| !self.cleared().contains(lock));
        let known = self.remembered.lock(&self.name, lock);
        // Somebody may have been let in of whom this source knows nothing, and later than whom it
        // knows: sources are renamed, routes are given others, and their former ones again.
        let of_others = unclean_since.and_then(|_| {
            let of_sources = self.remembered.of_sources(lock, |source| source != self.name);
            of_sources.max(self.remembered.watched(lock))
        });
        if known.is_none() && of_others.is_none() {
            return None;
        }
        let for_long = known.map(|known| known.orphan_timeout).max(of_others);
        Some(fencepost_locks::Remembered {
            tenure: known
                .filter(|known| known.layout == layout)
                .and_then(|known| known.tenure)
                .filter(|_| !self.accepted.load(Ordering::Acquire)),
            until: unclean_since.zip(for_long).map(|(since, for_long)| since + for_long),
            others: of_others.is_some(),
        })
    }

    fn clear(&self, lock: &LockKey) {
        self.cleared().insert(lock.clone());
    }

    fn distrust(&self, through: Revision) {
        self.inbox.distrust(&self.name, through);
    }

    fn forget_tenures(&self) {
        let mut order = kept(&self.order);
        self.accepted.store(true, Ordering::Release);
        order.entry(self.name.clone()).or_default().acceptances += 1;
        self.inbox.forget(&self.name);
    }
}
