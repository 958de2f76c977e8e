//! What is known of the lock sources. Made anew with each look, so that nothing is left of a source
//! that no route uses.

use fencepost_locks::{Member, MemberProblem, SourceStatus};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Registry};

use super::Registering;

/// The metrics of these sources, by their names.
pub(super) fn families(
    sources: &[(&str, SourceStatus)],
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
    let problems = made.gauges(
        "fencepost_source_member_problems",
        "How many endpoints of the lock source have that problem.",
        &["source", "problem"],
    )?;
    let integer = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    for (source, status) in sources {
        let source = &[*source];
        // Nothing is read from a source that is neither up nor down.
        if let Some(answers) = status.up {
            up.with_label_values(source).set(answers.into());
            // Infinite before the first news.
            let seconds = status.age.map_or(f64::INFINITY, |age| age.as_secs_f64());
            age.with_label_values(source).set(seconds);
        }
        restarts.with_label_values(source).inc_by(status.watch_restarts);
        tenures.with_label_values(source).inc_by(status.tenures);
        regressed.with_label_values(source).set(status.distrusted_through.is_some().into());
        let locks = (status.static_locks + status.templated_locks) as u64;
        tracked.with_label_values(source).set(integer(locks));
        for problem in MemberProblem::NAMES {
            let has = |member: &&Member| member.problems.iter().any(|one| one.name() == problem);
            let endpoints = status.members.iter().filter(has).count();
            problems.with_label_values(&[source[0], problem]).set(integer(endpoints as u64));
        }
    }
    Ok(registry.gather())
}
