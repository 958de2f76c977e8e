//! Records in memory, whose store can be made to go back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fencepost_locks::{LockSpec, RecordAnswer, RecordFormat, RecordStore, StoreError};
use fencepost_policy::{Layout, LockKey, Owner, Revision, Seen, Sighting};
use tokio::sync::watch;

use crate::world::{Presented, World};

/// Counts the tenures of each lock.
#[derive(Clone)]
pub(crate) struct MemoryRecords {
    records: Arc<Mutex<Records>>,
    stands_still: Arc<watch::Sender<bool>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Records {
    pub(crate) lineage: u64,
    pub(crate) by_key: BTreeMap<LockKey, Record>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    /// How often the lock was taken.
    pub(crate) taken: u64,
    pub(crate) owner: Option<String>,
    pub(crate) is_spoilt: bool,
}

impl Default for MemoryRecords {
    fn default() -> MemoryRecords {
        MemoryRecords { records: Arc::default(), stands_still: Arc::new(watch::Sender::new(false)) }
    }
}

/// One that is always there.
pub(crate) async fn start() -> Option<MemoryRecords> {
    Some(MemoryRecords::default())
}

impl MemoryRecords {
    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap()
    }

    fn answer(&self, key: &LockKey) -> RecordAnswer {
        let records = self.records();
        let record = records.by_key.get(key).cloned().unwrap_or_default();
        let revision = Revision::new(record.taken);
        let (seen, problem) = match (revision, record.owner) {
            (Some(_), Some(_)) if record.is_spoilt => {
                (Seen::Unreadable, Some(format!("the record of {key} is spoilt").into()))
            }
            (Some(revision), Some(owner)) => {
                let stamp = format!("{owner} {revision}").into_bytes().into();
                (Seen::Held { owner: Owner::new(owner.into_bytes()), revision, stamp }, None)
            }
            (None, _) | (_, None) => (Seen::Free, None),
        };
        let waiters = Arc::from([]);
        let lineage = records.lineage;
        RecordAnswer { sighting: Sighting { lineage, reach: revision, seen, waiters }, problem }
    }
}

impl RecordStore for MemoryRecords {
    async fn read(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, StoreError> {
        let mut stands_still = self.stands_still.subscribe();
        let goes_on = stands_still.wait_for(|stands_still| !stands_still);
        if tokio::time::timeout(Duration::from_millis(100), goes_on).await.is_err() {
            return Err(StoreError::Unavailable("not within 100 ms".into()));
        }
        Ok(locks.iter().map(|lock| self.answer(&lock.key)).collect())
    }
}

impl World for MemoryRecords {
    type Store = MemoryRecords;

    fn store(&self) -> MemoryRecords {
        self.clone()
    }

    fn format(&self) -> RecordFormat {
        RecordFormat::plain(Layout::Key)
    }

    async fn take(&self, lock: &LockKey, owner: &str) -> Presented {
        let mut records = self.records();
        let record = records.by_key.entry(lock.clone()).or_default();
        record.taken += 1;
        (record.owner, record.is_spoilt) = (Some(owner.to_owned()), false);
        Presented { owner: owner.to_owned(), revision: Revision::new(record.taken).unwrap() }
    }

    async fn renew(&self, _: &LockKey, held: &Presented) -> Presented {
        held.clone()
    }

    async fn release(&self, lock: &LockKey, _: &Presented) {
        self.records().by_key.get_mut(lock).unwrap().owner = None;
    }

    async fn spoil(&self, lock: &LockKey) -> bool {
        self.records().by_key.get_mut(lock).unwrap().is_spoilt = true;
        true
    }

    async fn stand_still(&self) {
        self.stands_still.send_replace(true);
    }

    async fn go_on(&self) {
        self.stands_still.send_replace(false);
    }
}
