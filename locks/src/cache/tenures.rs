//! Who begins and ceases to hold locks, for the eyes of operators. Nothing is judged by it.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use fencepost_policy::{Layout, LockKey, Snapshot, Tenure};
use tokio::time::Instant;

use super::record::LockSpec;

/// How many changes wait to be taken. Further ones are lost, and counted.
const CHANGES_MAX: usize = 4_096;

/// The tenure that is known of a lock has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenureChange {
    /// When that was learnt.
    pub at: Instant,
    /// The lock.
    pub lock: LockKey,
    /// How its record is laid out.
    pub layout: Layout,
    /// The tenure that ended, with the last revision that was known of it.
    pub ended: Option<Tenure>,
    /// The tenure that began.
    pub began: Option<Tenure>,
    /// Whether nothing was known of the lock before, so that the tenure may have begun long ago.
    pub is_first_news: bool,
}

/// The changes that nobody has taken yet, of all locks of a source.
#[derive(Debug, Default)]
pub(crate) struct Tenures {
    changes: Mutex<Vec<TenureChange>>,
    lost: AtomicU64,
    begun: AtomicU64,
}

impl Tenures {
    fn tell(&self, change: TenureChange) {
        let begins = change.began.is_some() && !change.is_first_news;
        self.begun.fetch_add(begins.into(), Ordering::Relaxed);
        let mut changes = self.changes();
        if changes.len() < CHANGES_MAX {
            changes.push(change);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many tenures were seen to begin.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// The changes since the last call, and how many were lost.
    pub(crate) fn take(&self) -> (Vec<TenureChange>, u64) {
        (mem::take(&mut *self.changes()), self.lost.swap(0, Ordering::Relaxed))
    }

    fn changes(&self) -> MutexGuard<'_, Vec<TenureChange>> {
        self.changes.lock().expect("nothing panics while it notes a change")
    }
}

/// What was told last of a lock; `None` before anything is known.
#[derive(Debug, Default)]
pub(crate) struct Told(Option<Option<Tenure>>);

impl Told {
    /// Tells of the tenure that is known now, if it is another one.
    pub(crate) fn tell(&mut self, lock: &LockSpec, snapshot: &Snapshot, tenures: &Tenures) {
        let present = snapshot.tenure();
        if let (Some(Some(told)), Some(present)) = (&mut self.0, present)
            && told.owner == present.owner
            && told.first <= present.last
            && present.first <= told.last
        {
            // The same one: renewed, or its history is shown farther back.
            told.last = present.last;
            return;
        }
        if self.0.as_ref().is_some_and(|told| told.is_none() && present.is_none()) {
            return;
        }
        let told = self.0.replace(present.cloned());
        tenures.tell(TenureChange {
            at: Instant::now(),
            lock: lock.key.clone(),
            layout: lock.format.layout,
            is_first_news: told.is_none(),
            ended: told.flatten(),
            began: present.cloned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use fencepost_policy::{Holding, Owner, Revision};

    use super::*;
    use crate::cache::record::RecordFormat;

    fn revision(number: u64) -> Revision {
        Revision::new(number).unwrap()
    }

    fn tenure(owner: &str, first: u64, last: u64) -> Option<Tenure> {
        Some(Tenure {
            owner: Owner::new(owner.as_bytes()),
            first: revision(first),
            last: revision(last),
        })
    }

    /// The tenures reported for this sequence, one after the other: which ended and which began.
    fn told(
        known: impl IntoIterator<Item = Option<Tenure>>,
    ) -> Vec<(Option<Tenure>, Option<Tenure>, bool)> {
        let lock = LockSpec {
            key: LockKey::new("/k").unwrap(),
            format: RecordFormat::plain(Layout::Key).into(),
        };
        let (tenures, mut told) = (Tenures::default(), Told::default());
        for tenure in known {
            let holding = tenure.map_or(Holding::Free, Holding::Held);
            let snapshot = Snapshot {
                layout: Layout::Key,
                as_of: Some(revision(99)),
                holding,
                waiters: [].into(),
            };
            told.tell(&lock, &snapshot, &tenures);
        }
        let (changes, lost) = tenures.take();
        assert_eq!(lost, 0);
        changes
            .into_iter()
            .map(|change| (change.ended, change.began, change.is_first_news))
            .collect()
    }

    #[test]
    fn tenure_is_told_at_its_beginning_and_end_only() {
        let known = [
            tenure("a", 1, 1),
            tenure("a", 1, 4),
            None,
            None,
            tenure("b", 6, 6),
            tenure("a", 7, 7),
        ];
        let expected = [
            (None, tenure("a", 1, 1), true),
            (tenure("a", 1, 4), None, false),
            (None, tenure("b", 6, 6), false),
            (tenure("b", 6, 6), tenure("a", 7, 7), false),
        ];
        assert_eq!(told(known), expected);
    }

    #[test]
    fn one_owner_twice_is_two_tenures_and_a_longer_history_is_not() {
        assert_eq!(told([tenure("a", 5, 6), tenure("a", 2, 6)]).len(), 1);
        assert_eq!(told([tenure("a", 2, 3), tenure("a", 5, 5)]).len(), 2);
        assert_eq!(told([None, None]), [(None, None, true)]);
    }

    #[test]
    fn changes_that_nobody_takes_are_bounded_and_counted() {
        let lock = LockSpec {
            key: LockKey::new("/k").unwrap(),
            format: RecordFormat::plain(Layout::Key).into(),
        };
        let (tenures, mut told) = (Tenures::default(), Told::default());
        for number in 1..=CHANGES_MAX as u64 + 3 {
            let holding = tenure("a", number * 2, number * 2).map_or(Holding::Free, Holding::Held);
            let snapshot = Snapshot {
                layout: Layout::Key,
                as_of: Some(revision(1)),
                holding,
                waiters: [].into(),
            };
            told.tell(&lock, &snapshot, &tenures);
        }
        let (changes, lost) = tenures.take();
        assert_eq!((changes.len(), lost), (CHANGES_MAX, 3));
        assert_eq!(tenures.take(), (vec![], 0));
    }
}
