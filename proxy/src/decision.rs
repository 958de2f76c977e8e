//! Each refusal is a decision with an id, so that what a client was told can be found in the log.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use fencepost_fence::refusal::decision_value;
use http::HeaderValue;
use smol_str::SmolStr;
use tokio::time::Instant;

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

/// An id in the making.
#[derive(Debug, Clone)]
struct IdText {
    text: [u8; IdText::BYTES_MAX],
    length: usize,
}

impl IdText {
    /// Three numbers in hex, of 8, 16 and 16 digits at most, and two dashes.
    const BYTES_MAX: usize = 42;

    fn push(&mut self, byte: u8) {
        self.text[self.length] = byte;
        self.length += 1;
    }

    /// Puts the number at the end, in hex. A request is refused at the price of what this costs and
    /// little else, so that the machinery of `format!` would show: ten times as much.
    fn push_hex(&mut self, number: u64, digits_min: u32) {
        let digits = (u64::BITS - number.leading_zeros()).div_ceil(4).max(digits_min);
        for digit in (0..digits).rev() {
            self.push(b"0123456789abcdef"[(number >> (4 * digit) & 15) as usize]);
        }
    }

    fn finish(&self) -> DecisionId {
        DecisionId(
            str::from_utf8(&self.text[..self.length])
                .expect("hex digits and dashes are ASCII")
                .into(),
        )
    }
}

/// Gives out the decision ids of one worker thread.
#[derive(Debug)]
pub struct DecisionIds {
    /// What all of them begin with: process and thread.
    start: IdText,
    next: Cell<u64>,
}

impl DecisionIds {
    /// The ids of the worker thread of that number, in a process known by `process`.
    pub fn new(process: u32, thread: usize) -> DecisionIds {
        let mut start = IdText { text: [0; IdText::BYTES_MAX], length: 0 };
        start.push_hex(u64::from(process), 8);
        start.push(b'-');
        start.push_hex(thread as u64, 1);
        start.push(b'-');
        DecisionIds { start, next: Cell::new(1) }
    }

    /// A number that tells this process from others; random.
    pub fn process() -> u32 {
        let random = RandomState::new().hash_one(std::process::id());
        (random >> 32) as u32
    }

    /// The next id.
    pub fn next(&self) -> DecisionId {
        let number = self.next.get();
        self.next.set(number + 1);
        let mut id = self.start.clone();
        id.push_hex(number, 1);
        id.finish()
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

/// Tells the time of day at moments that are known already: under a flood, one look at the clock on
/// the wall serves many of them.
#[derive(Debug)]
pub struct WallClock {
    /// The last look, and what was seen.
    seen: Cell<(Instant, SystemTime)>,
}

impl WallClock {
    /// How long a look serves. If the clock is set, that is noticed so much later.
    const SERVES: Duration = Duration::from_millis(100);

    /// The time of day at `now`, which was read a moment ago.
    pub fn at(&self, now: Instant) -> SystemTime {
        let (looked, shown) = self.seen.get();
        match now.checked_duration_since(looked) {
            Some(since) if since < WallClock::SERVES => shown + since,
            Some(_) | None => {
                let (looked, shown) = both_clocks();
                self.seen.set((looked, shown));
                match now.checked_duration_since(looked) {
                    Some(since) => shown + since,
                    None => shown - (looked - now),
                }
            }
        }
    }
}

impl Default for WallClock {
    /// One that has just been looked at.
    fn default() -> WallClock {
        WallClock { seen: Cell::new(both_clocks()) }
    }
}

/// The monotonic clock and the one on the wall at the same moment, by which the times of one are
/// told in those of the other.
pub fn both_clocks() -> (Instant, SystemTime) {
    at_one_moment(Instant::now, SystemTime::now)
}

/// A thread that was put aside between two looks looks again: by clocks read that far apart, what
/// happened on one thread would stand before what had led to it on another.
fn at_one_moment(
    monotonic: impl Fn() -> Instant,
    wall: impl Fn() -> SystemTime,
) -> (Instant, SystemTime) {
    const APART: Duration = Duration::from_micros(20);
    const LOOKS: usize = 10;
    let look = || {
        let (before, shown, after) = (monotonic(), wall(), monotonic());
        (after - before, (before, shown))
    };
    let (mut apart, mut seen) = look();
    for _ in 1..LOOKS {
        if apart <= APART {
            break;
        }
        let again = look();
        if again.0 < apart {
            (apart, seen) = again;
        }
    }
    seen
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

    #[test]
    fn the_time_of_day_is_told_by_a_look_at_the_clock_that_is_no_older_than_it_serves() {
        let day = Duration::from_secs(86_400);
        let start = Instant::now();
        let clock = WallClock { seen: Cell::new((start, SystemTime::UNIX_EPOCH + day)) };
        let millis = Duration::from_millis;
        assert_eq!(clock.at(start), SystemTime::UNIX_EPOCH + day);
        assert_eq!(clock.at(start + millis(99)), SystemTime::UNIX_EPOCH + day + millis(99));
        clock.at(start + millis(100));
        let (looked, shown) = clock.seen.get();
        assert!(shown > SystemTime::UNIX_EPOCH + 2 * day, "{shown:?}");
        assert_eq!(clock.at(looked + millis(1)), shown + millis(1));
        // Long before the last look: the clock may have been set since.
        clock.seen.set((looked, SystemTime::UNIX_EPOCH + day));
        let told = clock.at(start);
        let (looked, shown) = clock.seen.get();
        assert_eq!(told, shown - (looked - start));
    }

    #[test]
    fn clocks_that_a_thread_was_put_aside_between_are_looked_at_again() {
        let start = Instant::now();
        let day = |of: u32| SystemTime::UNIX_EPOCH + of * Duration::from_secs(86_400);
        let seen = |moments: &[u64]| {
            let (moments, days) = (Cell::new(moments.iter()), Cell::new(0));
            let monotonic = || {
                let mut left = moments.take();
                let moment = start
                    + Duration::from_micros(*left.next().expect("a look that was not needed"));
                moments.set(left);
                moment
            };
            let wall = || {
                days.set(days.get() + 1);
                day(days.get())
            };
            let (moment, shown) = at_one_moment(monotonic, wall);
            (moment - start, shown)
        };
        assert_eq!(seen(&[7, 8]), (Duration::from_micros(7), day(1)));
        assert_eq!(seen(&[7, 5_000, 9_000, 9_002]), (Duration::from_micros(9_000), day(2)));
        // On a machine that is too busy, the best of some.
        let busy: Vec<u64> = (1..=10)
            .flat_map(|look| [look * 1_000, look * 1_000 + if look == 4 { 100 } else { 500 }])
            .collect();
        assert_eq!(seen(&busy), (Duration::from_micros(4_000), day(4)));
    }
}
