//! What must be true of the order in which requests reach a worker.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

/// Something that happened at the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) moment: Moment,
    pub(crate) at: Instant,
    pub(crate) owner: String,
    pub(crate) revision: i64,
}

/// Which part of a request's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Its head is here.
    Begins,
    /// It has been worked through, and its answer goes out, or is out.
    Ends,
}

/// What a worker saw of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtWorker {
    /// How many requests began there.
    pub(crate) begun: u64,
    pub(crate) breaches: Breaches,
}

impl AtWorker {
    /// By a log of one lock.
    pub(crate) fn of(log: &[Event]) -> AtWorker {
        let mut order = Order::default();
        for Event { moment, owner, revision, .. } in log {
            match moment {
                Moment::Begins => order.begins(owner, *revision),
                Moment::Ends => order.ends(*revision),
            }
        }
        order.seen
    }

    /// Adds what was seen of another lock.
    pub(crate) fn add(&mut self, other: AtWorker) {
        self.begun += other.begun;
        self.breaches.add(other.breaches);
    }
}

/// How often a log breaks each rule. One event can break several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Breaches {
    /// A request began after one with a higher revision had begun.
    pub(crate) went_down: u64,
    /// A request began after one with a higher revision had been answered: a superseded write.
    pub(crate) after_successor: u64,
    /// A request began while one with a lower revision was still being worked on.
    pub(crate) overlapped: u64,
    /// A request came under a revision that another owner had used.
    pub(crate) shared_revision: u64,
}

impl Breaches {
    /// Whether there are none.
    pub(crate) fn is_none(&self) -> bool {
        *self == Breaches::default()
    }

    fn add(&mut self, other: Breaches) {
        let Breaches { went_down, after_successor, overlapped, shared_revision } = other;
        self.went_down += went_down;
        self.after_successor += after_successor;
        self.overlapped += overlapped;
        self.shared_revision += shared_revision;
    }

    /// The same for a program.
    pub(crate) fn as_json(&self) -> Value {
        let Breaches { went_down, after_successor, overlapped, shared_revision } = self;
        json!({
            "went_down": went_down,
            "after_successor": after_successor,
            "overlapped": overlapped,
            "shared_revision": shared_revision,
        })
    }
}

/// Follows the requests of one lock as they come and go.
#[derive(Debug, Default)]
pub(crate) struct Order {
    seen: AtWorker,
    highest_begun: i64,
    highest_ended: i64,
    /// How many requests of each revision are at the worker.
    open: BTreeMap<i64, u64>,
    owners: BTreeMap<i64, String>,
}

impl Order {
    /// The head of a request with this token is here.
    pub(crate) fn begins(&mut self, owner: &str, revision: i64) {
        let AtWorker { begun, breaches } = &mut self.seen;
        *begun += 1;
        breaches.went_down += u64::from(revision < self.highest_begun);
        breaches.after_successor += u64::from(revision < self.highest_ended);
        breaches.overlapped += u64::from(self.open.range(..revision).next().is_some());
        let first_owner = self.owners.entry(revision).or_insert_with(|| owner.to_owned());
        breaches.shared_revision += u64::from(first_owner != owner);
        self.highest_begun = self.highest_begun.max(revision);
        *self.open.entry(revision).or_default() += 1;
    }

    /// A request of this revision has been worked through.
    pub(crate) fn ends(&mut self, revision: i64) {
        self.highest_ended = self.highest_ended.max(revision);
        if let Some(count) = self.open.get_mut(&revision) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&revision);
            }
        }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> AtWorker {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begins(owner: &str, revision: i64) -> Event {
        Event { moment: Moment::Begins, at: Instant::now(), owner: owner.to_owned(), revision }
    }

    fn ends(owner: &str, revision: i64) -> Event {
        Event { moment: Moment::Ends, at: Instant::now(), owner: owner.to_owned(), revision }
    }

    fn breaches_of(log: &[Event]) -> Breaches {
        AtWorker::of(log).breaches
    }

    #[test]
    fn tenures_one_after_the_other_break_nothing() {
        let log = [
            begins("a", 10),
            begins("a", 10),
            ends("a", 10),
            ends("a", 10),
            begins("b", 20),
            ends("b", 20),
            begins("a", 30),
            ends("a", 30),
        ];
        assert!(breaches_of(&log).is_none());
        assert!(breaches_of(&[]).is_none());
    }

    #[test]
    fn a_request_of_an_ended_tenure_is_counted() {
        let log = [begins("a", 10), ends("a", 10), begins("b", 20), ends("b", 20), begins("a", 10), ends("a", 10)];
        let expected = Breaches { went_down: 1, after_successor: 1, ..Breaches::default() };
        assert_eq!(breaches_of(&log), expected);
    }

    #[test]
    fn each_late_request_counts_for_itself() {
        let log = [begins("b", 20), ends("b", 20), begins("a", 10), ends("a", 10), begins("a", 10), ends("a", 10)];
        let expected = Breaches { went_down: 2, after_successor: 2, ..Breaches::default() };
        assert_eq!(breaches_of(&log), expected);
    }

    #[test]
    fn a_request_that_begins_beside_its_successor_went_down_but_not_after_it() {
        let log = [begins("b", 20), begins("a", 10), ends("a", 10), ends("b", 20)];
        assert_eq!(breaches_of(&log), Breaches { went_down: 1, ..Breaches::default() });
    }

    #[test]
    fn a_request_that_begins_before_its_predecessor_ends_overlaps() {
        let log = [begins("a", 10), begins("b", 20), ends("a", 10), ends("b", 20)];
        assert_eq!(breaches_of(&log), Breaches { overlapped: 1, ..Breaches::default() });
    }

    #[test]
    fn one_of_two_predecessors_still_there_is_an_overlap() {
        let log = [begins("a", 10), begins("a", 10), ends("a", 10), begins("b", 20)];
        assert_eq!(breaches_of(&log), Breaches { overlapped: 1, ..Breaches::default() });
    }

    #[test]
    fn two_owners_of_one_revision_are_counted() {
        let log = [begins("a", 10), ends("a", 10), begins("b", 10), ends("b", 10)];
        assert_eq!(breaches_of(&log), Breaches { shared_revision: 1, ..Breaches::default() });
    }

    #[test]
    fn a_request_without_a_token_is_older_than_all() {
        let log = [begins("a", 10), ends("a", 10), begins("", 0), ends("", 0)];
        let expected = Breaches { went_down: 1, after_successor: 1, ..Breaches::default() };
        assert_eq!(breaches_of(&log), expected);
    }
}
