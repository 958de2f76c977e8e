//! Many durations, of which percentiles are told.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Digits of what is told in figures, which is also the most that differ between two machines.
const DIGITS: u8 = 3;

/// Durations in nanoseconds, to three digits unless it is said otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Durations(Histogram<u64>);

impl Durations {
    /// None yet, to so many digits.
    pub(super) fn new(digits: u8) -> Durations {
        Durations(Histogram::new(digits).expect("a histogram has 0 to 5 digits"))
    }

    /// Adds one.
    pub(crate) fn add(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.record(nanoseconds.max(1)).expect("a histogram that grows takes any duration");
    }

    /// Adds all of another's.
    pub(crate) fn merge(&mut self, other: &Durations) {
        self.0.add(&other.0).expect("a histogram that grows takes any other");
    }

    /// How many exceed that.
    pub(crate) fn above(&self, duration: Duration) -> u64 {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.count_between(nanoseconds.saturating_add(1), u64::MAX)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The duration that such a part of them, from 0 to 1, does not exceed; `None` if there is none at all.
    pub(crate) fn at(&self, part: f64) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.0.value_at_quantile(part).min(self.0.max())))
    }

    /// Their mean.
    pub(crate) fn mean(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.0.mean() as u64))
    }
}

impl Default for Durations {
    fn default() -> Durations {
        Durations::new(DIGITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_right_to_three_digits() {
        let mut durations = Durations::default();
        for milliseconds in 1..=1000 {
            durations.add(Duration::from_millis(milliseconds));
        }
        let near = |part: f64, milliseconds: f64| {
            let at = durations.at(part).unwrap().as_secs_f64() * 1000.0;
            assert!((at / milliseconds - 1.0).abs() < 0.002, "{part}: {at}");
        };
        near(0.5, 500.0);
        near(0.99, 990.0);
        near(1.0, 1000.0);
        assert_eq!(Durations::default().at(0.5), None);
    }
}
