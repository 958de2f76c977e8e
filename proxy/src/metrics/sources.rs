//! What is known of the lock sources.

use prometheus::{IntCounterVec, IntGaugeVec, Opts};

use super::{Registering, raise};

/// The state of a source, for its metrics.
#[derive(Debug, Clone, Copy)]
pub struct SourceReading {
    /// Whether it answers; `None` as long as nothing is read from it.
    pub up: Option<bool>,
    /// The age of the newest news, in seconds; infinite before the first.
    pub age_seconds: f64,
    /// How often its watch was started again.
    pub watch_restarts: u64,
    /// How many locks are tracked.
    pub tracked_locks: u64,
    /// How many tenures were seen to begin.
    pub tenures: u64,
    /// Whether the store went back and nobody has accepted that.
    pub regressed: bool,
}

/// What is known of each lock source; set when the metrics are read.
#[derive(Debug, Clone)]
pub(super) struct SourceMetrics {
    up: IntGaugeVec,
    age_seconds: prometheus::GaugeVec,
    watch_restarts: IntCounterVec,
    tracked_locks: IntGaugeVec,
    tenures: IntCounterVec,
    regressed: IntGaugeVec,
}

impl SourceMetrics {
    pub(super) fn new(made: &Registering<'_>) -> Result<SourceMetrics, prometheus::Error> {
        Ok(SourceMetrics {
            up: made.gauges("fencepost_source_up", "Whether the lock source answers.", &["source"])?,
            age_seconds: made.add(prometheus::GaugeVec::new(
                Opts::new("fencepost_source_age_seconds", "Age of the newest quorum read."),
                &["source"],
            ))?,
            watch_restarts: made.counters(
                "fencepost_watch_restarts_total",
                "How often the watch was started again.",
                &["source"],
            )?,
            tracked_locks: made.gauges("fencepost_tracked_locks", "Locks that are kept current.", &["source"])?,
            tenures: made.counters("fencepost_tenures_total", "Tenures that were seen to begin.", &["source"])?,
            regressed: made.gauges(
                "fencepost_source_regressed",
                "Whether the lock source went back and nobody has accepted that.",
                &["source"],
            )?,
        })
    }

    /// Notes the state of a source.
    pub(super) fn set(&self, source: &str, reading: SourceReading) {
        let integer = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        match reading.up {
            Some(up) => {
                self.up.with_label_values(&[source]).set(up.into());
                self.age_seconds.with_label_values(&[source]).set(reading.age_seconds);
            }
            None => self.forget_news(source),
        }
        raise(&self.watch_restarts.with_label_values(&[source]), reading.watch_restarts);
        raise(&self.tenures.with_label_values(&[source]), reading.tenures);
        self.regressed.with_label_values(&[source]).set(reading.regressed.into());
        self.tracked_locks.with_label_values(&[source]).set(integer(reading.tracked_locks));
    }

    /// Shows nothing any more of a source that no route uses.
    pub(super) fn forget(&self, source: &str) {
        self.forget_news(source);
        // An error means that nobody has read the metrics since it began.
        let _ = self.watch_restarts.remove_label_values(&[source]);
        let _ = self.tracked_locks.remove_label_values(&[source]);
        let _ = self.tenures.remove_label_values(&[source]);
        let _ = self.regressed.remove_label_values(&[source]);
    }

    /// Shows neither whether it answers nor how old its news are: nothing is read from it.
    fn forget_news(&self, source: &str) {
        // An error means that there was nothing to show.
        let _ = self.up.remove_label_values(&[source]);
        let _ = self.age_seconds.remove_label_values(&[source]);
    }
}
