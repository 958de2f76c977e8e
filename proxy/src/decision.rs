//! Each refusal is a decision with an id, so that what a client was told can be found in the log.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;

use fencepost_fence::refusal::decision_value;
use http::HeaderValue;
use smol_str::{SmolStr, format_smolstr};

/// The id of a decision: unique among the processes of a site, but no secret.
///
/// Text from the start: it is shown more often than it is made. Up to 22 bytes, which most never
/// pass, it takes no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionId(SmolStr);

impl DecisionId {
    /// An id of that text.
    #[cfg(test)]
    pub fn for_tests(text: &str) -> DecisionId {
        DecisionId(text.into())
    }

    /// As text: visible ASCII.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As a header's value.
    pub fn header(&self) -> HeaderValue {
        decision_value(self.as_str())
    }
}

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Gives out the decision ids of one worker thread.
#[derive(Debug)]
pub struct DecisionIds {
    process: u32,
    thread: usize,
    next: Cell<u64>,
}

impl DecisionIds {
    /// The ids of the worker thread of that number, in a process known by `process`.
    pub fn new(process: u32, thread: usize) -> DecisionIds {
        DecisionIds { process, thread, next: Cell::new(1) }
    }

    /// A number that tells this process from others; random.
    pub fn process() -> u32 {
        let random = RandomState::new().hash_one(std::process::id());
        (random >> 32) as u32
    }

    /// The next id.
    pub fn next(&self) -> DecisionId {
        let DecisionIds { process, thread, next } = self;
        let number = next.get();
        next.set(number + 1);
        DecisionId(format_smolstr!("{process:08x}-{thread:x}-{number:x}"))
    }
}

/// Takes one of so many, the first included.
#[derive(Debug)]
pub struct Sample {
    one_in: Option<NonZeroU32>,
    skip: Cell<u32>,
}

impl Sample {
    /// Takes one in so many; `None`: none.
    pub fn one_in(one_in: Option<NonZeroU32>) -> Sample {
        Sample { one_in, skip: Cell::new(0) }
    }

    /// Whether to take this one.
    pub fn takes(&self) -> bool {
        let Some(one_in) = self.one_in else { return false };
        let takes = self.skip.get() == 0;
        self.skip.set(if takes { one_in.get() - 1 } else { self.skip.get() - 1 });
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_fit_a_header() {
        let ids = DecisionIds::new(u32::MAX, usize::MAX);
        ids.next.set(u64::MAX - 1);
        assert_eq!(ids.next().to_string(), "ffffffff-ffffffffffffffff-fffffffffffffffe");
        let ids = DecisionIds::new(7, 1);
        assert_eq!(ids.next().header(), "00000007-1-1");
        assert_eq!(ids.next().to_string(), "00000007-1-2");
    }

    #[test]
    fn one_in_so_many_is_taken_and_none_if_none_is_wanted() {
        let taken = |one_in| {
            let sample = Sample::one_in(NonZeroU32::new(one_in));
            (0..7).filter(|_| sample.takes()).count()
        };
        assert_eq!([0, 1, 3, 100].map(taken), [0, 7, 3, 1]);
    }
}
