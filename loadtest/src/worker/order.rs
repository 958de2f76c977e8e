//! The rules for requests of one lock at a worker: revisions never go down there, and no two are
//! there at once. Knows nothing of HTTP.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtWorker {
    pub(crate) begun: u64,
    pub(crate) breaches: Breaches,
}

/// How often requests broke each rule. One request can break several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Breaches {
    /// A request began after one with a higher revision had begun.
    pub(crate) went_down: u64,
    /// A request began after one with a higher revision had ended: a superseded write.
    pub(crate) after_successor: u64,
    /// A request began while one with a lower revision was there.
    pub(crate) overlapped: u64,
    /// A request came under a revision that another owner had used.
    pub(crate) shared_revision: u64,
}

impl AtWorker {
    pub(crate) fn add(&mut self, other: AtWorker) {
        let Breaches { went_down, after_successor, overlapped, shared_revision } = other.breaches;
        self.begun += other.begun;
        self.breaches.went_down += went_down;
        self.breaches.after_successor += after_successor;
        self.breaches.overlapped += overlapped;
        self.breaches.shared_revision += shared_revision;
    }
}

impl fmt::Display for AtWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Breaches { went_down, after_successor, overlapped, shared_revision } = self.breaches;
        let is_in_order = self.breaches == Breaches::default();
        let mark = if is_in_order { "revisions never went down" } else { "OUT OF ORDER" };
        write!(f, "{} requests, {mark}: {went_down} went down, ", self.begun)?;
        write!(f, "{after_successor} after a successor, {overlapped} overlapped, ")?;
        write!(f, "{shared_revision} under another owner's revision")
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    seen: AtWorker,
    highest_begun: i64,
    highest_ended: i64,
    open: BTreeMap<i64, u64>,
    tenures: BTreeMap<i64, Tenure>,
}

#[derive(Clone, Debug)]
struct Tenure {
    owner: String,
    first: Instant,
    begun: u64,
}

impl Order {
    pub(crate) fn begins(&mut self, owner: &str, revision: i64, now: Instant) {
        let AtWorker { begun, breaches } = &mut self.seen;
        *begun += 1;
        breaches.went_down += u64::from(revision < self.highest_begun);
        breaches.after_successor += u64::from(revision < self.highest_ended);
        breaches.overlapped += u64::from(self.open.range(..revision).next().is_some());
        let new = || Tenure { owner: owner.to_owned(), first: now, begun: 0 };
        let tenure = self.tenures.entry(revision).or_insert_with(new);
        tenure.begun += 1;
        breaches.shared_revision += u64::from(tenure.owner != owner);
        self.highest_begun = self.highest_begun.max(revision);
        *self.open.entry(revision).or_default() += 1;
    }

    pub(crate) fn ends(&mut self, revision: i64) {
        self.highest_ended = self.highest_ended.max(revision);
        if let Some(count) = self.open.get_mut(&revision) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&revision);
            }
        }
    }

    pub(crate) fn seen(&self) -> AtWorker {
        self.seen
    }

    pub(crate) fn first_of(&self, revision: i64) -> Option<Instant> {
        self.tenures.get(&revision).map(|tenure| tenure.first)
    }

    pub(crate) fn begun(&self) -> BTreeMap<i64, u64> {
        self.tenures.iter().map(|(revision, tenure)| (*revision, tenure.begun)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Revisions that begin, and, as negative numbers, that end. The owner of 10 changes to "b".
    fn check(events: &[i64], expected: Breaches) {
        let mut order = Order::default();
        for event in events {
            match *event {
                end if end < 0 => order.ends(-end),
                11 => order.begins("b", 10, Instant::now()),
                begin => order.begins("a", begin, Instant::now()),
            }
        }
        assert_eq!(order.seen().breaches, expected, "{events:?}");
        let begun = events.iter().filter(|event| **event >= 0).count() as u64;
        assert_eq!((order.seen().begun, order.begun().values().sum::<u64>()), (begun, begun));
    }

    const NONE: Breaches =
        Breaches { went_down: 0, after_successor: 0, overlapped: 0, shared_revision: 0 };

    #[test]
    fn tenures_in_order_break_no_rule() {
        check(&[], NONE);
        check(&[10, 10, -10, -10, 20, -20, 30, -30], NONE);
    }

    #[test]
    fn request_after_its_successor_counts() {
        let late = |count| Breaches { went_down: count, after_successor: count, ..NONE };
        check(&[10, -10, 20, -20, 10, -10], late(1));
        check(&[20, -20, 10, -10, 10, -10], late(2));
        // A request without a token has revision 0.
        check(&[10, -10, 0], late(1));
    }

    #[test]
    fn request_beside_successor_went_down() {
        check(&[20, 10, -10, -20], Breaches { went_down: 1, ..NONE });
    }

    #[test]
    fn early_successor_overlaps() {
        check(&[10, 20, -10, -20], Breaches { overlapped: 1, ..NONE });
        check(&[10, 10, -10, 20], Breaches { overlapped: 1, ..NONE });
    }

    #[test]
    fn second_owner_of_a_revision_is_counted() {
        check(&[10, -10, 11, -10], Breaches { shared_revision: 1, ..NONE });
    }
}
