//! What is decided of a source comes to the writer of the state in the order in which it was
//! decided.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Kept by whoever decides something and hands it over, so that neither a record of a lost history
/// nor how far that was seen comes behind its end.
///
/// The driver of a source waits for it when its operator accepts that the store went back. It holds
/// nothing then that anybody waits for who keeps the order: a gate, the registry, or what the
/// driver's own state is guarded by.
#[derive(Debug, Clone, Default)]
pub(super) struct Order(Arc<Mutex<BTreeMap<String, Decided>>>);

/// What has been decided of a source.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Decided {
    /// The longest that requests of its locks may run on unseen.
    pub(super) orphan_timeout: Duration,
    /// How often its operator has accepted that its store went back.
    pub(super) acceptances: u64,
    /// How many of those somebody was told are durable.
    pub(super) acceptances_told: u64,
}

/// The order, kept for as long as this is there.
pub(super) struct Kept<'a>(MutexGuard<'a, BTreeMap<String, Decided>>);

impl Order {
    pub(super) fn keep(&self) -> Kept<'_> {
        Kept(self.0.lock().expect("nothing panics while it puts things in order"))
    }

    pub(super) fn of(&self, source: &str) -> Decided {
        self.keep().of(source)
    }
}

impl Kept<'_> {
    pub(super) fn of(&self, source: &str) -> Decided {
        self.0.get(source).copied().unwrap_or_default()
    }

    /// Whether that is longer than before.
    pub(super) fn raise_orphan_timeout(&mut self, source: &str, orphan_timeout: Duration) -> bool {
        let decided = self.entry(source);
        let rises = decided.orphan_timeout < orphan_timeout;
        decided.orphan_timeout = decided.orphan_timeout.max(orphan_timeout);
        rises
    }

    pub(super) fn accept(&mut self, source: &str) {
        self.entry(source).acceptances += 1;
    }

    /// Somebody is told that so many acceptances are durable.
    pub(super) fn told_of(&mut self, source: &str, acceptances: u64) {
        let decided = self.entry(source);
        decided.acceptances_told = decided.acceptances_told.max(acceptances);
    }

    fn entry(&mut self, source: &str) -> &mut Decided {
        self.0.entry(source.to_owned()).or_default()
    }
}
