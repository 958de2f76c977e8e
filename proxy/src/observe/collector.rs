//! Brings together what threads, locks and sources have seen.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_locks::{LockSource, SourceStatus};
use fencepost_policy::LockKey;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::timeline::Trouble;
use super::{COLLECT_PERIOD, Observations, TenureNews};

/// How often it is looked at how the sources are.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Collects for as long as it is polled, so that nothing is lost while nobody looks.
pub async fn keep_collecting(observations: &Observations, sources: impl Fn() -> Vec<LockSource>) {
    let mut ticks = interval(COLLECT_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look_due = Instant::now();
    loop {
        let now = ticks.tick().await;
        let sources = sources();
        collect(observations, &sources);
        if now >= look_due {
            look_due = now + LOOK_PERIOD;
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
            TenureNews { at, source: Arc::clone(&name), change }
        }));
    }
    observations.collect(changes);
}

/// Notes how the sources are, and which locks are tracked no longer.
fn look_at(observations: &Observations, sources: &[LockSource]) {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let statuses: Vec<_> =
        sources.iter().map(|source| (source.name(), source.status(now))).collect();
    let is_read = |name: &str| {
        let is_in_use =
            |status: &SourceStatus| status.up.is_some() || status.distrusted_through.is_some();
        statuses.iter().any(|(source, status)| *source == name && is_in_use(status))
    };
    let is_tracked = |name: &str, lock: &LockKey| {
        sources.iter().any(|source| source.name() == name && source.find(lock.as_str()).is_some())
    };
    let changed = observations.look(|book| {
        let before = book.timeline.version();
        for (source, status) in &statuses {
            if let Some(trouble) = trouble(status) {
                book.timeline.source(source, trouble, wall);
            }
        }
        book.timeline.end_untracked(is_read, is_tracked, wall);
        book.timeline.version() != before
    });
    if changed {
        observations.tell();
    }
}

/// What is wrong with a source; `None` if nobody can tell: nothing is read from it, or neither an
/// answer nor a failure has come of that yet.
fn trouble(status: &SourceStatus) -> Option<Option<Trouble>> {
    if status.distrusted_through.is_some() {
        return Some(Some(Trouble::Regressed));
    }
    let is_asked = status.age.is_none() && status.last_error.is_none();
    match status.up? {
        false if is_asked => None,
        false => Some(Some(Trouble::Unreachable)),
        true => Some(status.is_stale.then_some(Trouble::Stale)),
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
        assert_eq!((status().up, trouble(&status())), (None, None));
        let spec = LockSpec {
            key: LockKey::new("/k").unwrap(),
            format: RecordFormat::plain(Layout::Key).into(),
        };
        let _lock = source.track(spec).unwrap();
        assert_eq!((status().up, trouble(&status())), (Some(false), None));
        let failed = Some(Arc::new(StoreError::Unavailable("nobody is there".into())));
        let status = SourceStatus { last_error: failed, ..status() };
        assert_eq!(trouble(&status), Some(Some(Trouble::Unreachable)));
    }
}
