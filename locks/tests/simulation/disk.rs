//! What outlives the proxy.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fencepost_locks::{GateMemory, Remembered};
use fencepost_policy::{Layout, LockKey, Revision};
use tokio::time::Instant;

/// What is durable, whichever life of the proxy wrote it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<Written>>);

#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The last tenure of each lock.
    pub(crate) recorded: BTreeMap<String, Option<Revision>>,
    /// The revision up to which nothing is believed.
    pub(crate) distrusted: Option<Revision>,
    /// How often all of that was forgotten.
    pub(crate) acceptances: u64,
}

impl Written {
    /// A tenure is let in.
    ///
    /// # Errors
    /// The one that is remembered, if that is later: then nothing is written.
    pub(crate) fn let_in(&mut self, lock: &LockKey, tenure: Revision) -> Result<(), Revision> {
        let known = self.recorded.entry(lock.as_str().to_owned()).or_default();
        match known.filter(|known| tenure < *known) {
            Some(later) => Err(later),
            None => {
                *known = Some(tenure);
                Ok(())
            }
        }
    }

    /// What may be remembered of a lock is of no tenure in particular from now on.
    fn forget(&mut self) {
        self.recorded.values_mut().for_each(|tenure| *tenure = None);
        self.distrusted = None;
        self.acceptances += 1;
    }
}

impl Disk {
    pub(crate) fn written(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap()
    }

    /// What a new process reads; requests of the last one may run until then.
    pub(crate) fn memory(&self, until: Instant) -> Memory {
        let remembered = |tenure: &Option<Revision>| Remembered {
            tenure: *tenure,
            until: Some(until),
            others: false,
        };
        let locks = self
            .written()
            .recorded
            .iter()
            .map(|(lock, tenure)| (lock.clone(), remembered(tenure)))
            .collect();
        Memory { locks, disk: self.clone(), accepted: AtomicBool::new(false) }
    }
}

/// What a new process reads of the last one's, and has written.
#[derive(Debug)]
pub(crate) struct Memory {
    locks: BTreeMap<String, Remembered>,
    disk: Disk,
    /// The operator accepted that the store went back: its old revisions mean nothing any more.
    accepted: AtomicBool,
}

impl GateMemory for Memory {
    fn of(&self, lock: &LockKey, _layout: Layout) -> Option<Remembered> {
        let Remembered { tenure, until, others } = *self.locks.get(lock.as_str())?;
        Some(Remembered {
            tenure: tenure.filter(|_| !self.accepted.load(Ordering::Relaxed)),
            until,
            others,
        })
    }

    fn clear(&self, _lock: &LockKey) {} // No operator of this world clears orphans.

    fn distrust(&self, through: Revision) {
        let mut written = self.disk.written();
        written.distrusted = written.distrusted.max(Some(through));
    }

    fn forget_tenures(&self) {
        self.accepted.store(true, Ordering::Relaxed);
        self.disk.written().forget();
    }
}
