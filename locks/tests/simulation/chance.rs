//! What happens by chance, all of it from one seed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A stream of chances (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The stream of that purpose. One for each, so that what happens in one place does not depend
    /// on how often another one asked.
    pub(crate) fn of(seed: u64, purpose: impl Hash) -> Chance {
        let mut hasher = DefaultHasher::new(); // The same in every process, other than `RandomState`.
        (seed, purpose).hash(&mut hasher);
        Chance(hasher.finish())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.next().is_multiple_of(times)
    }

    pub(crate) fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// Mostly up to `usual`, now and then up to `rare`.
    pub(crate) fn delay(&mut self, usual: u64, rare: u64) -> Duration {
        let most = if self.one_in(12) { rare } else { usual };
        self.millis(0..=most)
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        (self.next() % length as u64) as usize
    }
}
