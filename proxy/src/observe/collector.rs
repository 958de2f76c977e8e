//! Brings together what threads, locks and sources have seen.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_sources::{LockSource, SourceStatus};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::lately::Refusals;
use super::timeline::Trouble;
use super::{COLLECT_PERIOD, Event, Observations, TenureNews};

/// How often it is looked at how the sources are, and how much has been refused.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Collects for as long as it is polled, so that nothing is lost while nobody looks. `refused` is what has been counted since the start.
pub async fn keep_collecting(
    observations: &Observations,
    sources: impl Fn() -> Vec<LockSource>,
    refused: impl Fn() -> Refusals,
) {
    let mut ticks = interval(COLLECT_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look_due = Instant::now();
    loop {
        let now = ticks.tick().await;
        let sources = sources();
        collect(observations, &sources);
        if now >= look_due {
            look_due = now + LOOK_PERIOD;
            observations.look(|book| book.lately.note(now, refused()));
            look_at(observations, &sources);
        }
    }
}

/// Collects now.
pub fn collect(observations: &Observations, sources: &[LockSource]) {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let mut changes = Vec::new();
    for source in sources {
        let name: Arc<str> = source.name().into();
        let (learnt, lost) = source.take_tenures();
        observations.lose(lost);
        changes.extend(learnt.into_iter().map(|change| {
            let at = wall.checked_sub(now.saturating_duration_since(change.at)).unwrap_or(wall);
            Event::Tenure(Box::new(TenureNews { at, source: Arc::clone(&name), change }))
        }));
    }
    observations.collect(changes);
}

/// Notes how the sources are.
fn look_at(observations: &Observations, sources: &[LockSource]) {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let changed = observations.look(|book| {
        let note = |source: &LockSource| {
            let trouble = trouble(&source.status(now));
            book.timeline.source(&source.name().into(), trouble, wall)
        };
        sources.iter().map(note).fold(false, |changed, new| changed | new)
    });
    if changed {
        observations.tell();
    }
}

/// What is wrong with a source, if anything is.
fn trouble(status: &SourceStatus) -> Option<Trouble> {
    if status.distrusted_through.is_some() {
        return Some(Trouble::Regressed);
    }
    if !status.up {
        return Some(Trouble::Unreachable);
    }
    status.is_stale.then_some(Trouble::Stale)
}
