//! How long to wait before the next attempt.

use std::time::Duration;

/// Doubles from 10 ms to 1 s, and takes a random half to all of that, so that many proxies do not
/// come back as one.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    random: u64,
}

impl Backoff {
    const SHORTEST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn new(seed: u64) -> Backoff {
        Backoff { next: Backoff::SHORTEST, random: seed | 1 }
    }

    /// Something went right.
    pub(crate) fn reset(&mut self) {
        self.next = Backoff::SHORTEST;
    }

    /// How long to wait now.
    pub(crate) fn delay(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(Backoff::LONGEST);
        // Xorshift: what matters is only that two proxies differ, and that one seed gives one run.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = u32::try_from(self.random % 512).unwrap_or(0);
        whole / 2 + whole / 1024 * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_10_ms_to_1_s_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::new(7);
        let mut longest = Duration::from_millis(10);
        for _ in 0..12 {
            let delay = backoff.delay();
            assert!(delay >= longest / 2 && delay <= longest, "{delay:?} of {longest:?}");
            longest = (longest * 2).min(Duration::from_secs(1));
        }
        backoff.reset();
        assert!(backoff.delay() <= Duration::from_millis(10));
    }
}
