//! All locks of a template: the keys below one literal prefix, which one range of the watch covers.
//!
//! It does not know its locks, and it dates nothing: each lock is dated by its own reads. It says
//! from which revision on the watch has delivered every event below the prefix. An event is applied
//! to a lock that was known as of that revision or later. Any other lock has missed something, and
//! is read again (`no-bridge`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fencepost_policy::{Layout, Revision};

use super::record::RecordFormat;
use super::trust::{Sent, WatchNumber};
use crate::store::{KeyRange, StoreError};

#[derive(Debug)]
pub(crate) struct Scope {
    range: KeyRange,
    format: Arc<RecordFormat>,
    /// Whether idle locks stay in memory: some route has a template of this scope.
    is_kept: AtomicBool,
    progress: Mutex<Progress>,
}

/// How far the watch of a scope has come. Only the driver changes it.
#[derive(Debug, Default)]
struct Progress {
    /// The watch delivers every event after this revision; `None` before a read has said where it
    /// begins.
    base: Option<Revision>,
    /// The newest event that was delivered.
    delivered: Option<Revision>,
    /// The newest quorum read.
    read: Option<Revision>,
    /// The first of the watches that have been up of this scope without a break.
    watched_since: Option<WatchNumber>,
    /// Whether the store was read while a watch of the scope was up.
    was_watched: bool,
}

impl Scope {
    pub(crate) fn new(prefix: &str, format: Arc<RecordFormat>) -> Scope {
        let range = KeyRange::Prefix(prefix.as_bytes().into());
        Scope { range, format, is_kept: AtomicBool::new(true), progress: Mutex::default() }
    }

    pub(crate) fn is_of(&self, prefix: &str, format: &RecordFormat) -> bool {
        self.range == KeyRange::Prefix(prefix.as_bytes().into()) && *self.format == *format
    }

    pub(crate) fn range(&self) -> &KeyRange {
        &self.range
    }

    /// Tells of the whole prefix that it may not be read, where its first key may not be: only that
    /// can be watched.
    pub(crate) fn tell_of_prefix(&self, error: Arc<StoreError>) -> Arc<StoreError> {
        if let StoreError::Denied { user, range: KeyRange::Key(key) } = &*error
            && **key == *self.range.first_key()
        {
            return StoreError::Denied { user: user.clone(), range: self.range.clone() }.into();
        }
        error
    }

    pub(crate) fn layout(&self) -> Layout {
        self.format.layout
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::SeqCst)
    }

    pub(crate) fn set_kept(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::SeqCst);
    }

    /// The revision as of which a lock has to be known for an event to follow.
    pub(crate) fn base(&self) -> Option<Revision> {
        self.progress().base
    }

    /// Begins a watch, none being up: returns from where. `None` before a read has said so.
    ///
    /// It begins behind the newest read, however long the scope has been silent: etcd would go
    /// through all revisions since, or may have compacted them. An event before that is shown by the
    /// next read of its lock, and nothing admits before a read under the new watch.
    pub(crate) fn begin_watch(&self) -> Option<Revision> {
        let mut progress = self.progress();
        progress.base = progress.base.and(progress.base.max(progress.read));
        let through = progress.base.max(progress.delivered);
        progress
            .base
            .and(through)
            .map(|through| Revision::new(through.get() + 1).unwrap_or(Revision::MAX))
    }

    /// Notes a quorum read at that revision. Returns whether this read lets the watch begin.
    pub(crate) fn note_read(&self, sent: &Sent, revision: Revision) -> bool {
        let mut progress = self.progress();
        progress.was_watched |= sent.watch_since(progress.watched_since).is_some();
        let begins = progress.base.is_none();
        progress.base.get_or_insert(revision);
        progress.read = progress.read.max(Some(revision));
        begins
    }

    /// Notes an event that the watch has delivered.
    pub(crate) fn note_event(&self, revision: Revision) {
        let mut progress = self.progress();
        progress.delivered = progress.delivered.max(Some(revision));
    }

    /// Forgets how far the watch has come: events are missing, or are of an earlier era.
    pub(crate) fn forget(&self) {
        let mut progress = self.progress();
        (progress.base, progress.delivered, progress.read) = (None, None, None);
    }

    pub(crate) fn watched_since(&self) -> Option<WatchNumber> {
        self.progress().watched_since
    }

    /// Whether the store was read while a watch of the scope was up.
    pub(crate) fn was_watched(&self) -> bool {
        self.progress().was_watched
    }

    /// Notes which watch is up of the scope now, if any is. Returns what held before.
    pub(crate) fn set_watched(&self, number: Option<WatchNumber>) -> Option<WatchNumber> {
        let mut progress = self.progress();
        let before = progress.watched_since;
        progress.watched_since = number.map(|number| before.unwrap_or(number));
        before
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("nothing panics while it notes a revision")
    }
}
