//! What we last learnt of a lock.

use std::cmp::Ordering;
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
    /// The store revision this is exact for.
    pub as_of: Revision,
    /// Who held the lock then.
    pub holding: Holding,
    /// Who queued behind, the oldest first; whoever is named at once with others is one of them.
    /// Always empty for [`Layout::Key`].
    pub waiters: Arc<[Waiter]>,
}

impl Snapshot {
    /// The later of two snapshots of one lock: `no-step-back`.
    ///
    /// What is known of a lock only rises, so news may arrive in any order and any number of times.
    /// At one revision the store has one state; what can still differ is how far back a tenure
    /// could be shown, and then the narrower tenure stands, so that what was refused stays refused.
    #[must_use]
    pub fn later(self, other: Snapshot) -> Snapshot {
        if self.rank(&other) == Ordering::Less { other } else { self }
    }

    /// Orders by revision first; the rest makes the order total, so that [`Snapshot::later`]
    /// depends on no order of arrival.
    fn rank(&self, other: &Snapshot) -> Ordering {
        let first = |snapshot: &Snapshot| match &snapshot.holding {
            Holding::Held(tenure) => tenure.first.get(),
            Holding::Free | Holding::Unreadable => 0,
        };
        (self.as_of, first(self), &self.holding, &self.waiters, self.layout).cmp(&(
            other.as_of,
            first(other),
            &other.holding,
            &other.waiters,
            other.layout,
        ))
    }

    /// The tenure that holds the lock, if one does.
    pub fn tenure(&self) -> Option<&Tenure> {
        match &self.holding {
            Holding::Held(tenure) => Some(tenure),
            Holding::Free | Holding::Unreadable => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn revision(number: u64) -> Revision {
        Revision::new(number).unwrap()
    }

    fn snapshot(as_of: u64) -> Snapshot {
        let tenure = Tenure { owner: Owner::new(*b"a"), first: revision(1), last: revision(1) };
        let holding = if as_of.is_multiple_of(2) { Holding::Free } else { Holding::Held(tenure) };
        Snapshot { layout: Layout::Key, as_of: revision(as_of), holding, waiters: [].into() }
    }

    #[test]
    fn news_out_of_order_never_moves_a_lock_back() {
        for order in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
            let settled = order.map(snapshot).into_iter().reduce(Snapshot::later);
            assert_eq!(settled, Some(snapshot(3)), "arriving as {order:?}");
        }
    }

    fn any_snapshot() -> impl Strategy<Value = Snapshot> {
        let owner = prop_oneof![Just(Owner::new(*b"a")), Just(Owner::new(*b"b"))];
        let held = (owner.clone(), 1..5u64, 0..3u64).prop_map(|(owner, first, more)| {
            Holding::Held(Tenure { owner, first: revision(first), last: revision(first + more) })
        });
        let holding = prop_oneof![Just(Holding::Free), Just(Holding::Unreadable), held];
        let waiter =
            (owner, 1..9u64).prop_map(|(owner, at)| Waiter { owner, created: revision(at) });
        (1..6u64, holding, prop::collection::vec(waiter, 0..3)).prop_map(
            |(as_of, holding, waiters)| Snapshot {
                layout: Layout::Election,
                as_of: revision(as_of),
                holding,
                waiters: waiters.into(),
            },
        )
    }

    proptest! {
        #[test]
        fn merging_depends_on_no_order_and_no_repetition(a in any_snapshot(), b in any_snapshot(), c in any_snapshot()) {
            let later = |x: &Snapshot, y: &Snapshot| x.clone().later(y.clone());
            prop_assert_eq!(later(&a, &b), later(&b, &a));
            prop_assert_eq!(later(&later(&a, &b), &c), later(&a, &later(&b, &c)));
            prop_assert_eq!(later(&a, &a), a.clone());
            prop_assert!(later(&a, &b).as_of >= a.as_of);
        }
    }
}
