//! Percentiles of many durations, for all reports. Rounds each duration to three digits.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// The percentiles that reports show: their names for people and for programs.
const SHOWN: [(&str, &str, f64); 5] = [
    ("p50", "p50_seconds", 0.5),
    ("p90", "p90_seconds", 0.9),
    ("p99", "p99_seconds", 0.99),
    ("p99.9", "p999_seconds", 0.999),
    ("max", "max_seconds", 1.0),
];
const ENOUGH: u64 = 100;

#[derive(Clone, Debug)]
pub(crate) struct Durations(Histogram<u64>);

impl Default for Durations {
    fn default() -> Durations {
        Durations(Histogram::new(3).expect("a histogram has 0 to 5 digits"))
    }
}

impl Durations {
    pub(crate) fn add(&mut self, duration: Duration) {
        self.0.record(nanoseconds(duration).max(1)).expect("the histogram grows as needed");
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn above(&self, duration: Duration) -> u64 {
        self.0.count_between(nanoseconds(duration).saturating_add(1), u64::MAX)
    }

    /// The duration that this share of them, from 0 to 1, does not exceed; `None` without any.
    pub(crate) fn at(&self, share: f64) -> Option<Duration> {
        let value = self.0.value_at_quantile(share).min(self.0.max());
        (self.count() > 0).then(|| Duration::from_nanos(value))
    }

    pub(crate) fn as_json(&self) -> Value {
        if self.count() == 0 {
            return Value::Null;
        }
        let mut json = json!({ "count": self.count(), "mean_seconds": self.0.mean() / 1e9 });
        for (_, name, share) in SHOWN {
            json[name] = json!(self.at(share).map(|duration| duration.as_secs_f64()));
        }
        json
    }
}

impl FromIterator<Duration> for Durations {
    fn from_iter<I: IntoIterator<Item = Duration>>(all: I) -> Durations {
        let mut durations = Durations::default();
        all.into_iter().for_each(|duration| durations.add(duration));
        durations
    }
}

/// All percentiles in one line; of a few durations the least, the middle and the most.
impl fmt::Display for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if (1..ENOUGH).contains(&self.count()) {
            let [least, middle, most] = [0.0, 0.5, 1.0].map(|share| milliseconds(self.at(share)));
            return write!(f, "of {}: min {least}  p50 {middle}  max {most}", self.count());
        }
        let all = SHOWN.map(|(name, _, share)| format!("{name} {}", milliseconds(self.at(share))));
        f.write_str(&all.join("  "))
    }
}

pub(crate) fn milliseconds(duration: Option<Duration>) -> String {
    let shown = |duration: Duration| format!("{:.3} ms", duration.as_secs_f64() * 1000.0);
    duration.map_or("-".to_owned(), shown)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_has_three_digits() {
        let durations: Durations = (1..=1000).map(Duration::from_millis).collect();
        for (share, milliseconds) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let at = durations.at(share).unwrap().as_secs_f64() * 1000.0;
            assert!((at / milliseconds - 1.0).abs() < 0.002, "{share}: {at}");
        }
        assert!((9..=12).contains(&durations.above(Duration::from_millis(990))));
        assert_eq!(durations.as_json()["count"], 1000);
        assert!(durations.to_string().starts_with("p50 500."), "{durations}");
    }

    #[test]
    fn few_durations_are_shown_by_their_extremes() {
        let few: Durations = [1500, 2500].map(Duration::from_micros).into_iter().collect();
        let text = few.to_string();
        assert!(text.starts_with("of 2: min ") && text.contains("max 2.5"), "{text}");
        let none = Durations::default();
        assert_eq!((none.at(0.5), none.as_json(), none.count()), (None, Value::Null, 0));
    }
}
