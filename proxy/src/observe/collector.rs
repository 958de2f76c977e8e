//! Brings together what threads, locks and sources have seen.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{LockSource, SourceStatus};
use fencepost_policy::LockKey;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::lately::Refusals;
use super::timeline::Trouble;
use super::{COLLECT_PERIOD, Event, Observations, TenureNews};
use crate::decision::both_clocks;

/// How often it is looked at how the sources are, and how much has been refused.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Collects for as long as it is polled, so that nothing is lost while nobody looks. `refused` is
/// what has been counted since the start.
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
    let (now, wall) = both_clocks();
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

/// Notes how the sources are, and which locks are tracked no longer.
fn look_at(observations: &Observations, sources: &[LockSource]) {
    let (now, wall) = both_clocks();
    let states: Vec<_> =
        sources.iter().map(|source| (source, state(&source.status(now)))).collect();
    let is_read = |name: &str| {
        states
            .iter()
            .any(|(source, state)| source.name() == name && !matches!(state, State::NotInUse))
    };
    let is_tracked = |name: &str, lock: &LockKey| {
        sources.iter().any(|source| source.name() == name && source.find(lock.as_str()).is_some())
    };
    let changed = observations.look(|book| {
        let before = book.timeline.version();
        for (source, state) in &states {
            match state {
                State::NotInUse | State::NotTold => {}
                State::Well => book.timeline.source(&source.name().into(), None, wall),
                State::In(trouble) => {
                    book.timeline.source(&source.name().into(), Some(*trouble), wall)
                }
            }
        }
        book.timeline.end_untracked(is_read, is_tracked, wall);
        book.timeline.version() != before
    });
    if changed {
        observations.tell();
    }
}

/// How a source is.
enum State {
    /// Nothing is read from it, so that nobody can tell.
    NotInUse,
    /// Neither an answer nor a failure has come of reading from it yet.
    NotTold,
    Well,
    In(Trouble),
}

fn state(status: &SourceStatus) -> State {
    if status.distrusted_through.is_some() {
        return State::In(Trouble::Regressed);
    }
    match status.up {
        None => State::NotInUse,
        Some(false) if status.age.is_none() && status.last_error.is_none() => State::NotTold,
        Some(false) => State::In(Trouble::Unreachable),
        Some(true) if status.is_stale => State::In(Trouble::Stale),
        Some(true) => State::Well,
    }
}

#[cfg(test)]
mod tests {
    use fencepost_locks::{LockSpec, MemoryStore, RecordFormat, SourceOptions, StoreError};
    use fencepost_policy::Layout;

    use super::*;

    #[test]
    fn a_source_is_not_down_before_anything_has_come_of_reading_from_it() {
        let (source, _driver) =
            LockSource::build("main", SourceOptions::default(), MemoryStore::new());
        let status = || source.status(Instant::now());
        assert!(matches!(state(&status()), State::NotInUse));
        let spec = LockSpec {
            key: LockKey::new("/k").unwrap(),
            format: RecordFormat::plain(Layout::Key).into(),
        };
        let _lock = source.track(spec).unwrap();
        assert!(matches!(state(&status()), State::NotTold));
        let failed = Some(Arc::new(StoreError::Unavailable("nobody is there".into())));
        let status = SourceStatus { last_error: failed, ..status() };
        assert!(matches!(state(&status), State::In(Trouble::Unreachable)));
    }
}
