//! The last decisions, each with a number, so that who follows them can say how far it has come.

use std::collections::VecDeque;

use super::filter::Filter;
use super::record::Decision;

/// As many of the last decisions as are kept.
#[derive(Debug)]
pub struct Ring {
    capacity: usize,
    decisions: VecDeque<Box<Decision>>,
    /// The number of the next decision; counted from 1.
    next: u64,
}

/// Decisions that came after a number.
#[derive(Debug, PartialEq, Eq)]
pub struct Followed<T> {
    /// Those that are kept, with their numbers, in order.
    pub decisions: Vec<(u64, T)>,
    /// The number to go on after.
    pub after: u64,
    /// How many came in between and are kept no more.
    pub missed: u64,
}

impl Ring {
    /// Keeps up to that many.
    pub fn new(capacity: usize) -> Ring {
        Ring { capacity, decisions: VecDeque::new(), next: 1 }
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
        self.next - 1
    }

    /// Adds the newest; the oldest goes if there is no room.
    pub fn push(&mut self, decision: Box<Decision>) {
        self.next += 1;
        if self.capacity == 0 {
            return;
        }
        if self.decisions.len() >= self.capacity {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }

    /// Those that pass the filter, the newest first, up to `limit`.
    pub fn newest(&self, filter: &Filter, limit: usize) -> Vec<&Decision> {
        let passing = self.decisions.iter().rev().take_while(|decision| filter.is_since(decision));
        passing.filter(|decision| filter.passes(decision)).take(limit).map(|decision| &**decision).collect()
    }

    /// Up to `limit` of those that came after that number and pass the filter.
    pub fn after(&self, after: u64, filter: &Filter, limit: usize) -> Followed<Decision> {
        let oldest = self.next - self.decisions.len() as u64;
        // A number of an earlier process may be ahead of all of ours.
        let from = after.saturating_add(1).clamp(oldest, self.next);
        let missed = oldest.saturating_sub(after.saturating_add(1));
        let skipped = usize::try_from(from - oldest).unwrap_or(usize::MAX);
        let mut found = Followed { decisions: Vec::new(), after: self.last(), missed };
        for (number, decision) in (from..).zip(self.decisions.iter().skip(skipped)) {
            if found.decisions.len() == limit {
                found.after = number - 1;
                break;
            }
            if filter.passes(decision) {
                found.decisions.push((number, Decision::clone(decision)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
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
        let ids: Vec<String> =
            ring.newest(&Filter::default(), 2).iter().map(|decision| decision.id.to_string()).collect();
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
    fn a_ring_without_room_keeps_nothing_and_still_counts() {
        let mut ring = ring(0, 2);
        assert_eq!((ring.kept(), ring.last()), (0, 2));
        assert_eq!(followed(&ring, 0, 10), (vec![], 2, 2));
        ring.set_capacity(1);
        ring.push(Box::new(Decision::for_tests("3")));
        assert_eq!(followed(&ring, 2, 10), (numbers(3..=3), 3, 0));
    }
}
