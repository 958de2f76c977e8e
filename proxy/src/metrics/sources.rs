//! What is known of the lock sources. Made anew with each look, so that nothing is left of a source
//! that no route uses.

use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Registry};

use super::Registering;

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

/// The metrics of these sources, by their names.
pub(super) fn families(
    readings: &[(&str, SourceReading)],
) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let registry = Registry::new();
    let made = Registering(&registry);
    let label = &["source"];
    let up = made.gauges("fencepost_source_up", "Whether the lock source answers.", label)?;
    let age = Opts::new("fencepost_source_age_seconds", "Age of the newest quorum read.");
    let age = made.add(GaugeVec::new(age, label))?;
    let restarts = made.counters(
        "fencepost_watch_restarts_total",
        "How often the watch was started again.",
        label,
    )?;
    let tracked = made.gauges("fencepost_tracked_locks", "Locks that are kept current.", label)?;
    let tenures =
        made.counters("fencepost_tenures_total", "Tenures that were seen to begin.", label)?;
    let regressed = made.gauges(
        "fencepost_source_regressed",
        "Whether the lock source went back and nobody has accepted that.",
        label,
    )?;
    let integer = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    for (source, reading) in readings {
        let source = &[*source];
        // Nothing is read from a source that is neither up nor down.
        if let Some(answers) = reading.up {
            up.with_label_values(source).set(answers.into());
            age.with_label_values(source).set(reading.age_seconds);
        }
        restarts.with_label_values(source).inc_by(reading.watch_restarts);
        tenures.with_label_values(source).inc_by(reading.tenures);
        regressed.with_label_values(source).set(reading.regressed.into());
        tracked.with_label_values(source).set(integer(reading.tracked_locks));
    }
    Ok(registry.gather())
}
