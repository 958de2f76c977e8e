//! The last decisions, each with a number, so that who follows them can say how far it has come.

use std::collections::VecDeque;

use super::filter::Filter;
use super::record::Decision;

/// As many of the last decisions as are kept.
#[derive(Debug)]
pub struct Ring {
    capacity: usize,
    /// Those that are kept, with their numbers.
    decisions: VecDeque<(u64, Box<Decision>)>,
    /// The number of the last one, counted from 1.
    last: u64,
}

/// Decisions that came after a number.
#[derive(Debug, PartialEq, Eq)]
pub struct Followed<T> {
    /// Those that are kept, with their numbers, in order.
    pub decisions: Vec<(u64, T)>,
    /// The number to go on after.
    pub after: u64,
    /// How many came in between and are not kept.
    pub missed: u64,
}

impl Ring {
    /// Keeps up to that many.
    pub fn new(capacity: usize) -> Ring {
        Ring { capacity, decisions: VecDeque::new(), last: 0 }
    }

    /// How many are kept at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Keeps up to that many from now on.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        let excess = self.decisions.len().saturating_sub(capacity);
        self.decisions.drain(..excess);
    }

    /// How many are kept.
    pub fn kept(&self) -> usize {
        self.decisions.len()
    }

    /// The number of the last one; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Adds the newest; the oldest goes if there is no room.
    pub fn push(&mut self, decision: Box<Decision>) {
        self.last += 1;
        self.decisions.push_back((self.last, decision));
        self.set_capacity(self.capacity);
    }

    /// Counts so many more of which nothing is known.
    pub fn pass_over(&mut self, count: u64) {
        self.last += count;
    }

    /// Those that pass the filter, the newest first, up to `limit`.
    pub fn newest(&self, filter: &Filter, limit: usize) -> Vec<&Decision> {
        let newest_first = self.decisions.iter().rev().map(|(_, decision)| &**decision);
        let passing = newest_first.take_while(|decision| filter.is_since(decision));
        passing.filter(|decision| filter.passes(decision)).take(limit).collect()
    }

    /// Up to `limit` of those that came after that number and pass the filter.
    pub fn after(&self, after: u64, filter: &Filter, limit: usize) -> Followed<Decision> {
        // A number of an earlier process may be ahead of all of ours.
        let begin = self.decisions.partition_point(|(number, _)| *number <= after);
        let mut found = Followed { decisions: Vec::new(), after: self.last, missed: 0 };
        let (mut looked_at, mut reached) = (0, after);
        for (number, decision) in self.decisions.range(begin..) {
            if found.decisions.len() == limit {
                found.after = reached;
                break;
            }
            if filter.passes(decision) {
                found.decisions.push((*number, Decision::clone(decision)));
            }
            (looked_at, reached) = (looked_at + 1, *number);
        }
        found.missed = found.after.saturating_sub(after).saturating_sub(looked_at);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::filter::Query;
    use super::*;

    fn ring(capacity: usize, pushed: u64) -> Ring {
        let mut ring = Ring::new(capacity);
        for number in 1..=pushed {
            ring.push(Box::new(Decision::for_tests(&number.to_string())));
        }
        ring
    }

    fn followed(ring: &Ring, after: u64, limit: usize) -> (Vec<String>, u64, u64) {
        let found = ring.after(after, &Filter::default(), limit);
        let ids = found.decisions.iter().map(|(number, decision)| {
            assert_eq!(number.to_string(), decision.id.to_string());
            decision.id.to_string()
        });
        (ids.collect(), found.after, found.missed)
    }

    fn numbers(numbers: std::ops::RangeInclusive<u64>) -> Vec<String> {
        numbers.map(|number| number.to_string()).collect()
    }

    #[test]
    fn the_newest_are_kept_and_come_first() {
        let ring = ring(3, 5);
        let ids: Vec<String> = ring
            .newest(&Filter::default(), 2)
            .iter()
            .map(|decision| decision.id.to_string())
            .collect();
        assert_eq!(ids, ["5", "4"]);
        assert_eq!((ring.kept(), ring.last()), (3, 5));
    }

    #[test]
    fn whoever_follows_gets_each_once_and_is_told_what_it_missed() {
        let ring = ring(3, 5);
        assert_eq!(followed(&ring, 5, 10), (vec![], 5, 0));
        assert_eq!(followed(&ring, 3, 10), (numbers(4..=5), 5, 0));
        assert_eq!(followed(&ring, 2, 2), (numbers(3..=4), 4, 0));
        assert_eq!(followed(&ring, 0, 10), (numbers(3..=5), 5, 2));
        assert_eq!(followed(&ring, 99, 10), (vec![], 5, 0), "a number of another process");
        assert_eq!(followed(&ring, u64::MAX, 10), (vec![], 5, 0));
    }

    #[test]
    fn whoever_follows_is_told_how_many_were_never_kept() {
        let mut ring = ring(3, 2);
        ring.pass_over(4);
        ring.push(Box::new(Decision::for_tests("7")));
        ring.push(Box::new(Decision::for_tests("8")));
        assert_eq!((ring.kept(), ring.last()), (3, 8));
        let numbers = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>();
        assert_eq!(followed(&ring, 1, 10), (numbers(&[2, 7, 8]), 8, 4));
        assert_eq!(
            followed(&ring, 0, 1),
            (numbers(&[2]), 2, 1),
            "those behind it come with the next"
        );
        assert_eq!(followed(&ring, 2, 1), (numbers(&[7]), 7, 4));
        assert_eq!(followed(&ring, 4, 10), (numbers(&[7, 8]), 8, 2));
        assert_eq!(followed(&ring, 7, 10), (numbers(&[8]), 8, 0));
        ring.pass_over(2);
        assert_eq!(followed(&ring, 4, 10), (numbers(&[7, 8]), 10, 4));
    }

    #[test]
    fn whoever_asks_for_others_has_missed_nothing_that_was_kept() {
        let mut ring = ring(3, 2);
        let owner = Some("nobody".into());
        ring.push(Box::new(Decision { owner, ..Decision::for_tests("3") }));
        let filter = Query::parse("owner=nobody", SystemTime::now()).unwrap().filter;
        let found = ring.after(0, &filter, 10);
        assert_eq!((found.decisions.len(), found.after, found.missed), (1, 3, 0));
    }

    #[test]
    fn a_ring_without_room_keeps_nothing_and_still_counts() {
        let mut ring = ring(0, 2);
        assert_eq!((ring.kept(), ring.last()), (0, 2));
        assert_eq!(followed(&ring, 0, 10), (vec![], 2, 2));
        ring.set_capacity(1);
        ring.push(Box::new(Decision::for_tests("3")));
        assert_eq!(followed(&ring, 2, 10), (numbers(3..=3), 3, 0));
    }
}
