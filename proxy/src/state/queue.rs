//! What the thread that writes is handed, and who waits for it.

use std::collections::BTreeMap;

use fencepost_policy::LockKey;
use tokio::sync::oneshot;

use super::entry::Entry;
use super::error::StateError;
use super::remembered::Seen;

/// What came of something that was handed over.
pub(super) type Outcome = Result<(), StateError>;

/// What came in since the thread last looked: the next commit.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In the order in which they came.
    pub(super) entries: Vec<Pending>,
    /// Which of them is the last record of a lock, by source, as far as the source is not forgotten
    /// behind it.
    pub(super) records: BTreeMap<String, BTreeMap<LockKey, usize>>,
    /// How far each source was seen.
    pub(super) notes: BTreeMap<String, Seen>,
    /// The journal is to be begun, and who waits for that.
    pub(super) begin: Option<oneshot::Sender<Outcome>>,
    pub(super) leaving: Option<Leaving>,
    /// Nobody looks any more.
    pub(super) ended: bool,
}

impl Queue {
    /// Puts an entry behind all others. Each request of a tenure asks for the same record until one
    /// of them is reported, which may take as long as a disk hangs: they wait for one entry.
    pub(super) fn add(&mut self, entry: Option<Entry>, report: oneshot::Sender<Outcome>) {
        let mut at = self.entries.len();
        match &entry {
            Some(Entry::Lock { source, lock, .. }) => {
                let records = self.records.entry(source.clone()).or_default();
                match records.get(lock).filter(|last| self.entries[**last].entry == entry) {
                    Some(last) => at = *last,
                    None => {
                        records.insert(lock.clone(), at);
                    }
                }
            }
            Some(Entry::Forget { source }) => drop(self.records.remove(source)),
            Some(
                Entry::HighestSeen { .. }
                | Entry::Distrusted { .. }
                | Entry::Watched { .. }
                | Entry::CleanLeave,
            )
            | None => {}
        }
        if at == self.entries.len() {
            self.entries.push(Pending { entry, reports: Vec::new() });
        }
        self.entries[at].wait(report);
    }
}

/// Something to be written, and who waits for that.
#[derive(Debug)]
pub(super) struct Pending {
    /// `None` where somebody only waits for what came before.
    pub(super) entry: Option<Entry>,
    pub(super) reports: Vec<oneshot::Sender<Outcome>>,
}

impl Pending {
    fn wait(&mut self, report: oneshot::Sender<Outcome>) {
        // Many have given up by then, if the disk hangs: there is room for twice as many as there
        // were when this was last looked at.
        if self.reports.len() == self.reports.capacity() {
            self.reports.retain(|report| !report.is_closed());
            self.reports.reserve_exact((self.reports.len() + 1).next_power_of_two());
        }
        self.reports.push(report);
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Leaving {
    pub(super) clean: bool,
}
