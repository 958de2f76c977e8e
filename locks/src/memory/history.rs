//! Keys with revisions and history, as etcd keeps them.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use fencepost_policy::Revision;

use crate::store::{Event, KeyRange, KeyValue, RangeAnswer, Wanted};

/// A write to a [`super::MemoryStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Sets a key.
    Put {
        /// Which.
        key: Bytes,
        /// To what.
        value: Bytes,
    },
    /// Deletes a key, if it is there.
    Delete {
        /// Which.
        key: Bytes,
    },
}

impl Write {
    fn key(&self) -> &Bytes {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }
}

/// All that was ever written, but for what was compacted.
#[derive(Debug)]
pub(super) struct History {
    revision: Revision,
    /// The oldest revision that can be read and watched.
    first: Revision,
    /// What happened to each key, in order.
    keys: BTreeMap<Bytes, Vec<Event>>,
}

/// The history asked for is compacted away.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Compacted;

impl History {
    /// No keys. As in etcd, nothing was written at the first revision.
    pub(super) fn new() -> History {
        History { revision: Revision::MIN, first: Revision::MIN, keys: BTreeMap::new() }
    }

    /// The revision of the newest write.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// What a key is now.
    pub(super) fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.keys.get(key)?.last()?.written()
    }

    /// What a key was. Nothing is known of revisions that were not reached.
    pub(super) fn get_at(&self, key: &[u8], at: Revision) -> Result<Option<&KeyValue>, Compacted> {
        if at < self.first {
            return Err(Compacted);
        }
        let changes = self.keys.get(key).map(Vec::as_slice).unwrap_or_default();
        Ok(changes.iter().rfind(|change| change.revision() <= at).and_then(Event::written))
    }

    /// What a range is now.
    pub(super) fn read(&self, range: &KeyRange, wanted: Wanted) -> RangeAnswer {
        let present = self.range(range).filter_map(|changes| changes.last()?.written());
        let mut keys: Vec<KeyValue> = present.cloned().collect();
        let count = keys.len() as u64;
        match wanted {
            Wanted::All => {}
            Wanted::Count => keys.clear(),
        }
        RangeAnswer { count, keys }
    }

    /// Writes all of these at one revision and returns what happened: nothing, if all they do is
    /// delete what is not there.
    ///
    /// # Panics
    /// If a key is written twice.
    pub(super) fn write(&mut self, writes: Vec<Write>) -> Vec<Event> {
        let at =
            Revision::new(self.revision.get() + 1).expect("nobody lives to see the last revision");
        let mut events: Vec<Event> = Vec::with_capacity(writes.len());
        for write in writes {
            assert!(
                events.iter().all(|event| event.key() != write.key()),
                "a transaction writes a key once"
            );
            events.extend(self.apply(write, at));
        }
        if !events.is_empty() {
            self.revision = at;
        }
        events
    }

    fn apply(&mut self, write: Write, at: Revision) -> Option<Event> {
        let before = self.get(write.key());
        let event = match write {
            Write::Put { key, value } => {
                let (created, version) =
                    before.map_or((at, 1), |before| (before.created, before.version + 1));
                Event::Put(KeyValue { key, value, created, modified: at, version })
            }
            Write::Delete { key } => {
                before?;
                Event::Delete { key, revision: at }
            }
        };
        self.keys.entry(event.key().clone()).or_default().push(event.clone());
        Some(event)
    }

    /// What happened in a range from a revision on. That may be compacted as far as the revision
    /// before it, as in the store for etcd.
    pub(super) fn events(&self, range: &KeyRange, from: Revision) -> Result<Vec<Event>, Compacted> {
        if from.before().unwrap_or(Revision::MIN) < self.first {
            return Err(Compacted);
        }
        let since = |changes: &Vec<Event>| changes.partition_point(|event| event.revision() < from);
        let events = self.range(range).flat_map(|changes| &changes[since(changes)..]);
        let mut events: Vec<Event> = events.cloned().collect();
        events.sort_by_key(Event::revision);
        Ok(events)
    }

    /// Forgets what can be seen only at revisions before that one.
    pub(super) fn compact(&mut self, at: Revision) {
        self.first = at.min(self.revision).max(self.first);
        for changes in self.keys.values_mut() {
            let before = changes.iter().rposition(|change| change.revision() <= self.first);
            let seen = before.unwrap_or(0);
            changes.drain(..seen);
        }
        self.keys.retain(|_, changes| match changes.as_slice() {
            [only] => only.written().is_some() || only.revision() > self.first,
            _ => true,
        });
    }

    /// Takes everything back to what it was at a revision.
    pub(super) fn rewind(&mut self, to: Revision) {
        assert!((self.first..=self.revision).contains(&to), "there is no backup of revision {to}");
        self.revision = to;
        for changes in self.keys.values_mut() {
            changes.retain(|change| change.revision() <= to);
        }
        self.keys.retain(|_, changes| !changes.is_empty());
    }

    /// What happened to each key of a range.
    fn range<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = &'a Vec<Event>> {
        let (KeyRange::Key(start) | KeyRange::Prefix(start)) = range;
        self.keys
            .range::<[u8], _>((Bound::Included(&**start), Bound::Unbounded))
            .take_while(|(key, _)| range.contains(key))
            .map(|(_, changes)| changes)
    }
}
