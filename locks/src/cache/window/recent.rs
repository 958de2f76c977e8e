//! The newest changes of a scope.

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use fencepost_policy::Revision;

use super::Change;
use crate::store::KeyValue;

/// How many are kept, and how many bytes their keys and values may have; the newest one is kept in any case.
const CHANGES_MAX: usize = 128;
const BYTES_MAX: usize = 1 << 20;

/// In the order of their revisions.
#[derive(Debug, Default)]
pub(super) struct Recent {
    changes: VecDeque<Change>,
    bytes: usize,
}

impl Recent {
    /// Takes note of a change that is not older than those before, unless it has been noted.
    pub(super) fn note(&mut self, change: Change) {
        let mut not_older = self.changes.iter().rev().take_while(|noted| noted.revision >= change.revision);
        if not_older.any(|noted| noted.revision > change.revision || noted.key == change.key) {
            return;
        }
        self.bytes += bytes(&change);
        self.changes.push_back(change);
        while self.changes.len() > CHANGES_MAX || self.bytes > BYTES_MAX && self.changes.len() > 1 {
            self.bytes -= self.changes.pop_front().as_ref().map_or(0, bytes);
        }
    }

    /// A read has shown which keys there are that have changed after `since` and up to `through`. Others that were written then are gone, unseen.
    pub(super) fn shown(&mut self, since: Revision, through: Revision, keys: &[KeyValue]) {
        let keys: HashSet<&Bytes> = keys.iter().map(|stored| &stored.key).collect();
        let is_gone = |change: &Change| change.written.is_some() && !keys.contains(&change.key);
        self.changes.retain(|change| change.revision <= since || through < change.revision || !is_gone(change));
        self.bytes = self.changes.iter().map(bytes).sum();
    }

    pub(super) fn newest(&self) -> Option<&Change> {
        self.changes.back()
    }

    /// Since when all changes are kept; at that revision there may have been others.
    pub(super) fn since(&self) -> Option<Revision> {
        self.changes.front().map(|oldest| oldest.revision)
    }

    /// Whether these are the keys that had changed since then and were there at that revision.
    pub(super) fn are_as_known(&self, keys: &[KeyValue], at: Revision) -> bool {
        let known = self.changes.iter().take_while(|change| change.revision <= at);
        let last: HashMap<&Bytes, Option<&KeyValue>> =
            known.map(|change| (&change.key, change.written.as_ref())).collect();
        let shown: HashMap<&Bytes, &KeyValue> = keys.iter().map(|stored| (&stored.key, stored)).collect();
        let is_known = |stored: &KeyValue| Some(stored.modified) == self.since() || last.contains_key(&stored.key);
        last.iter().all(|(key, written)| shown.get(key) == written.as_ref()) && keys.iter().all(is_known)
    }
}

fn bytes(change: &Change) -> usize {
    change.key.len() + change.written.as_ref().map_or(0, |stored| stored.value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static str, modified: u64, bytes: usize) -> KeyValue {
        let [modified, created] = [modified, 1].map(|revision| Revision::new(revision).unwrap());
        KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            value: vec![0; bytes].into(),
            created,
            modified,
            version: 2,
        }
    }

    fn change(stored: KeyValue) -> Change {
        Change { key: stored.key.clone(), revision: stored.modified, written: Some(stored) }
    }

    #[test]
    fn as_many_are_kept_as_there_is_room_for_and_the_newest_always() {
        let mut recent = Recent::default();
        (0..2 * CHANGES_MAX as u64).for_each(|at| recent.note(change(put("k", at + 1, 10))));
        assert_eq!((recent.changes.len(), recent.bytes), (CHANGES_MAX, CHANGES_MAX * 11));
        recent.note(change(put("k", 1000, 2 * BYTES_MAX)));
        assert_eq!((recent.changes.len(), recent.bytes), (1, 2 * BYTES_MAX + 1));
        recent.note(change(put("k", 1001, 10)));
        assert_eq!((recent.changes.len(), recent.bytes), (1, 11));
    }

    #[test]
    fn what_has_changed_lately_is_all_that_is_there_as_it_was_written() {
        let mut recent = Recent::default();
        [put("a", 3, 1), put("a", 3, 1), put("b", 4, 1), put("c", 4, 1), put("a", 6, 1)]
            .into_iter()
            .for_each(|stored| recent.note(change(stored)));
        recent.note(Change { key: "b".into(), revision: Revision::new(7).unwrap(), written: None });
        let check = |keys: &[KeyValue], at, expected| {
            assert_eq!(recent.are_as_known(keys, Revision::new(at).unwrap()), expected, "{keys:?} at {at}");
        };
        check(&[put("a", 6, 1), put("c", 4, 1)], 7, true);
        check(&[put("a", 6, 1), put("b", 4, 1), put("c", 4, 1)], 6, true);
        check(&[put("a", 6, 1), put("c", 4, 1), put("d", 3, 1)], 7, true); // As old as the oldest, of which others may have gone.
        check(&[put("a", 6, 2), put("c", 4, 1)], 7, false);
        check(&[put("a", 6, 1)], 7, false);
        check(&[put("a", 6, 1), put("b", 4, 1), put("c", 4, 1)], 7, false);
        check(&[put("a", 6, 1), put("c", 4, 1), put("d", 5, 1)], 7, false);

        recent.note(change(put("e", 8, 1)));
        let [since, through] = [7, 9].map(|at| Revision::new(at).unwrap());
        recent.shown(since, through, &[]);
        assert!(recent.are_as_known(&[put("a", 6, 1), put("c", 4, 1)], through), "the last came and went");
    }
}
