//! How long things took.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// Durations, all of them: a percentile is one that was measured, not one between two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    nanoseconds: Vec<u64>,
}

/// What is told of many durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percentiles {
    pub(crate) p50: Duration,
    pub(crate) p90: Duration,
    pub(crate) p99: Duration,
    pub(crate) p999: Duration,
    pub(crate) max: Duration,
}

impl Latencies {
    /// Adds one.
    pub(crate) fn add(&mut self, duration: Duration) {
        self.nanoseconds.push(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The percentiles; `None` if nothing was measured.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        let max = Duration::from_nanos(*sorted.last()?);
        let at = |per_mille| Duration::from_nanos(sorted[rank(sorted.len(), per_mille) - 1]);
        Some(Percentiles { p50: at(500), p90: at(900), p99: at(990), p999: at(999), max })
    }
}

/// Which of `count` sorted values, counted from 1, is the first that so many thousandths of them do not exceed.
fn rank(count: usize, per_mille: usize) -> usize {
    (count * per_mille).div_ceil(1000).max(1)
}

impl Percentiles {
    /// The same for a program.
    pub(crate) fn as_json(&self) -> Value {
        let seconds = |duration: Duration| duration.as_secs_f64();
        json!({
            "p50_seconds": seconds(self.p50),
            "p90_seconds": seconds(self.p90),
            "p99_seconds": seconds(self.p99),
            "p999_seconds": seconds(self.p999),
            "max_seconds": seconds(self.max),
        })
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [("p50", self.p50), ("p90", self.p90), ("p99", self.p99), ("p99.9", self.p999), ("max", self.max)];
        for (index, (name, duration)) in named.into_iter().enumerate() {
            let gap = if index == 0 { "" } else { "  " };
            write!(f, "{gap}{name} {:.3} ms", duration.as_secs_f64() * 1000.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(milliseconds: impl IntoIterator<Item = u64>) -> Option<[u64; 5]> {
        let mut latencies = Latencies::default();
        milliseconds.into_iter().for_each(|each| latencies.add(Duration::from_millis(each)));
        let Percentiles { p50, p90, p99, p999, max } = latencies.percentiles()?;
        Some([p50, p90, p99, p999, max].map(|duration| u64::try_from(duration.as_millis()).unwrap()))
    }

    #[test]
    fn a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() {
        assert_eq!(of(1..=1000), Some([500, 900, 990, 999, 1000]));
        assert_eq!(of(1..=10), Some([5, 9, 10, 10, 10]));
        assert_eq!(of([1, 2]), Some([1, 2, 2, 2, 2]));
        assert_eq!(of([7]), Some([7; 5]));
    }

    #[test]
    fn the_order_of_arrival_does_not_matter() {
        assert_eq!(of((1..=1000).rev()), of(1..=1000));
    }

    #[test]
    fn nothing_has_no_percentiles() {
        assert_eq!(of([]), None);
    }

    #[test]
    fn percentiles_are_told_in_milliseconds() {
        let mut latencies = Latencies::default();
        latencies.add(Duration::from_micros(1500));
        let told = latencies.percentiles().unwrap().to_string();
        assert_eq!(told, "p50 1.500 ms  p90 1.500 ms  p99 1.500 ms  p99.9 1.500 ms  max 1.500 ms");
    }
}
