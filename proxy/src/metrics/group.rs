//! What is counted of the group. Made anew with each look, since another crate counts it.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_locks::{CLEAR_SECONDS, MemberStateView, Membership};
use fencepost_policy::group::Standing;
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Registry};

use super::Registering;

/// The metrics of a group, by their names.
pub(super) fn families(group: &Membership) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let registry = Registry::new();
    let made = Registering(&registry);
    let (view, counts) = (group.view(), group.counts());
    let integer = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let members = made.gauges(
        "fencepost_group_members",
        "Members of the group as this one sees them, itself among the live ones.",
        &["state"],
    )?;
    for state in MemberStateView::ALL {
        let others = view.others.iter().filter(|other| other.state == state).count();
        let me = usize::from(state == MemberStateView::Live && view.me.is_some());
        members.with_label_values(&[state.name()]).set(integer(others + me));
    }
    let stands = group.standing() == Standing::Stands;
    made.gauge("fencepost_group_standing", "Whether this member lets requests in.")?
        .set(stands.into());
    let age = "fencepost_group_write_age_seconds";
    let age = made.add(Gauge::new(age, "Time since the newest acknowledged write was sent."))?;
    age.set(view.write_age.map_or(f64::INFINITY, |age| age.as_secs_f64()));
    made.gauge("fencepost_group_asks_open", "Tenures that wait for other members.")?
        .set(integer(view.asks.len()));
    let ask_age = "fencepost_group_ask_age_seconds";
    let ask_age =
        made.add(Gauge::new(ask_age, "How long the oldest of them has waited; 0 if none does."))?;
    let oldest = view.asks.iter().map(|ask| ask.age).max();
    ask_age.set(oldest.unwrap_or_default().as_secs_f64());
    let asks = made.counters(
        "fencepost_group_asks_total",
        "Tenures that were asked for, by what came of it.",
        &["outcome"],
    )?;
    let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
    for (outcome, count) in [
        ("answered", &counts.asks_answered),
        ("told", &counts.asks_told),
        ("ended", &counts.asks_ended),
    ] {
        asks.with_label_values(&[outcome]).inc_by(value(count));
    }
    let writes = made.counters(
        "fencepost_group_writes_total",
        "Writes of this member's key, by what came of them.",
        &["outcome"],
    )?;
    writes.with_label_values(&["acknowledged"]).inc_by(value(&counts.writes));
    writes.with_label_values(&["failed"]).inc_by(value(&counts.writes_failed));
    for (name, help, count) in [
        ("lapses", "How often this member ceased to let requests in.", &counts.lapses),
        ("given_up", "Silent members that this one gave up.", &counts.given_up),
        (
            "unfenced",
            "Tenures that began though a member only watches their lock.",
            &counts.unfenced,
        ),
        ("mismatch", "Asks of members that read the lock in another way.", &counts.mismatches),
        (
            "late_writes",
            "Writes to a worker that ended after this member lapsed.",
            &counts.late_writes,
        ),
    ] {
        made.counter(&format!("fencepost_group_{name}_total"), help)?.inc_by(value(count));
    }
    Ok(registry.gather())
}

/// How long tenures waited for other members, as text for Prometheus.
pub(super) fn clear_seconds(group: &Membership) -> String {
    let name = "fencepost_group_clear_seconds";
    let mut text = format!(
        "# HELP {name} How long tenures waited for other members.\n# TYPE {name} histogram\n"
    );
    let (counts, sum) = group.counts().clear_times();
    let ends = CLEAR_SECONDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    let mut all = 0;
    for (end, count) in ends.zip(counts) {
        all += count;
        let _ = writeln!(text, "{name}_bucket{{le=\"{end}\"}} {all}"); // Memory takes it.
    }
    let _ = writeln!(text, "{name}_sum {}\n{name}_count {all}", sum.as_secs_f64());
    text
}
