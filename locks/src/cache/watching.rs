//! The watch: for speed, never for truth. What it brings is applied, and dates nothing.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use fencepost_policy::{Layout, LockKey, Revision};
use tokio::time::sleep;

use super::common::{Common, count};
use super::health::Health;
use super::knowledge::Applied;
use super::scope::Scope;
use super::tracked::TrackedLock;
use super::trust::Era;
use super::work::{ReadFailure, Work};
use crate::store::{Event, KeyRange, LockStore, RangeRead, RangeWatch, Wanted, Watch, WatchNews};

/// Who is watched. That keeps nobody from being forgotten.
#[derive(Debug)]
enum Watched {
    Lock(Weak<TrackedLock>),
    Scope(Weak<Scope>),
}

impl Watched {
    fn scope(&self) -> Option<Arc<Scope>> {
        match self {
            Watched::Lock(_) => None,
            Watched::Scope(scope) => scope.upgrade(),
        }
    }

    fn lock(&self) -> Option<Arc<TrackedLock>> {
        match self {
            Watched::Lock(lock) => lock.upgrade(),
            Watched::Scope(_) => None,
        }
    }
}

/// Why a watch has ended.
enum Ended {
    /// Something else has to be watched.
    Changed,
    /// It failed.
    Failed,
}

/// Watches all static locks and all scopes over one stream, for ever. While one watch takes the
/// place of another, requests confirm.
pub(crate) async fn watch<S: LockStore>(work: Rc<Work<S>>) {
    let common = work.common();
    let mut backoff = work.backoff();
    let mut resuming = false;
    loop {
        let (watched, ranges): (Vec<Watched>, Vec<RangeWatch>) = plan(&work).into_iter().unzip();
        if watched.is_empty() || common.trust.is_suspended() {
            common.watched_changed.notified().await;
            continue;
        }
        // A watch from a revision that the store has not reached is accepted and stays silent; so
        // is, for a while, a watch on a store that went back. So a quorum read goes first, and
        // tells whether the store still is the one we know.
        if resuming && !is_known_store(&work, &watched[0], &ranges[0].range).await {
            sleep(backoff.delay()).await;
            continue;
        }
        let era = common.trust.era();
        let ended = match work.store.watch(&ranges).await {
            Ok(stream) => follow(&work, stream, &watched, era, || backoff.reset()).await,
            Err(error) => {
                work.watch_failed(error);
                Ended::Failed
            }
        };
        common.trust.watch_fell_behind();
        resuming = matches!(ended, Ended::Failed);
        if resuming {
            count(&common.counts.watch_restarts);
            sleep(backoff.delay()).await;
        }
    }
}

/// Applies what a stream brings, until it ends, or something else has to be watched.
async fn follow<S: LockStore>(
    work: &Work<S>,
    mut stream: S::Watch,
    watched: &[Watched],
    era: Era,
    mut delivers: impl FnMut(),
) -> Ended {
    let common = work.common();
    loop {
        // A flood of events must not hide that something else has to be watched, which happens once
        // for a lock and rarely for a scope.
        let news = tokio::select! {
            biased;
            () = common.watched_changed.notified() => return Ended::Changed,
            news = stream.next() => news,
        };
        if common.trust.era() != era || common.trust.is_suspended() {
            return Ended::Changed; // This is another history.
        }
        match news {
            Ok(WatchNews::Events { range, events }) => {
                delivers();
                watched.get(range).iter().for_each(|watched| apply(work, watched, era, &events));
            }
            Ok(WatchNews::CaughtUp) => {
                let locks: Vec<_> = watched.iter().filter_map(Watched::lock).collect();
                let scopes: Vec<_> = watched.iter().filter_map(Watched::scope).collect();
                work.watch_caught_up(&locks, &scopes);
            }
            Ok(WatchNews::Compacted { range }) => {
                let Some(watched) = watched.get(range) else { return Ended::Failed };
                watched.lock().iter().for_each(|lock| lock.want_read());
                if let Some(scope) = watched.scope() {
                    scope.forget();
                    common.read_now.notify_one(); // Then it can be watched again.
                }
                return Ended::Failed;
            }
            Err(error) => {
                tracing::info!(source = %common.name, %error, "the watch ended and is begun again");
                return Ended::Failed;
            }
        }
    }
}

async fn is_known_store<S: LockStore>(work: &Work<S>, watched: &Watched, range: &KeyRange) -> bool {
    // What is watched, or one key of it where it is large, whether or not that exists: to read any
    // other may not be permitted.
    let range = match watched {
        Watched::Lock(_) => range.clone(),
        Watched::Scope(_) => KeyRange::Key(range.first_key().into()),
    };
    let one = RangeRead { range, wanted: Wanted::Count };
    let read =
        work.read(&work.common().counts.resumes, &[one]).await.map_err(|failure| match failure {
            ReadFailure::Store(error) => ReadFailure::Store(
                watched.scope().into_iter().fold(error, |error, scope| scope.tell_of_prefix(error)),
            ),
            ReadFailure::Again | ReadFailure::Regressed => failure,
        });
    read.inspect_err(|failure| work.tell(failure)).is_ok()
}

/// What can be watched: whatever was read, from there on. What we may not read would keep all else
/// from being watched.
fn plan<S: LockStore>(work: &Work<S>) -> Vec<(Watched, RangeWatch)> {
    let locks = work.shared.static_locks().together.into_iter().filter_map(|lock| {
        if lock.is_templated() {
            return None; // Its scope is watched.
        }
        let from = Revision::new(lock.as_of()?.get() + 1)?;
        let range = lock.range().clone();
        Some((Watched::Lock(Arc::downgrade(&lock)), RangeWatch { range, from }))
    });
    let scopes = work.shared.scopes().into_iter().filter_map(|scope| {
        let watch = RangeWatch { range: scope.range().clone(), from: scope.begin_watch()? };
        Some((Watched::Scope(Arc::downgrade(&scope)), watch))
    });
    let planned: Vec<_> = locks.chain(scopes).collect();
    let health = work.common().health();
    planned
        .into_iter()
        .filter(|(watched, watch)| !is_denied(&health, watched, &watch.range))
        .collect()
}

/// Whether it may not be read.
fn is_denied(health: &Health, watched: &Watched, range: &KeyRange) -> bool {
    match watched {
        Watched::Lock(_) => health.denied.contains(range),
        Watched::Scope(_) => health.denies_scope(range),
    }
}

fn apply<S: LockStore>(work: &Work<S>, watched: &Watched, era: Era, events: &[Event]) {
    let common = work.common();
    events.iter().for_each(|event| common.trust.saw(event.revision()));
    match watched {
        Watched::Lock(lock) => {
            if let Some(lock) = lock.upgrade()
                && lock.events(era, events) == Applied::Gap
            {
                lock.want_read();
            }
        }
        Watched::Scope(scope) => {
            scope.upgrade().iter().for_each(|scope| apply_to_scope(common, scope, era, events));
        }
    }
}

/// Applies events to the locks of a scope, in order; all of one revision are in here together.
pub(crate) fn apply_to_scope(common: &Common, scope: &Arc<Scope>, era: Era, events: &[Event]) {
    for events in events.chunk_by(|event, next| event.revision() == next.revision()) {
        scope.note_event(events[0].revision());
        // A queue must not be seen between two events of one transaction. Each lock once: a lease
        // may end that held 100,000 of them.
        let mut touched: BTreeMap<LockKey, (Arc<TrackedLock>, Vec<Event>)> = BTreeMap::new();
        for event in events {
            for lock in locks_of(common, scope, event.key()) {
                touched
                    .entry(lock.key().clone())
                    .or_insert_with(|| (lock, Vec::new()))
                    .1
                    .push(event.clone());
            }
        }
        for (lock, events) in touched.into_values() {
            if lock.events(era, &events) == Applied::Gap {
                lock.want_read();
            }
        }
    }
}

/// The locks of a scope that a key is part of: itself, or those whose queue it may stand in.
///
/// A lock that comes to be tracked meanwhile may miss an event: its first read is not sent yet, and
/// shows it.
fn locks_of(common: &Common, scope: &Arc<Scope>, key: &[u8]) -> Vec<Arc<TrackedLock>> {
    let find = |name: &[u8]| {
        let lock = common.registry.find(std::str::from_utf8(name).ok()?)?;
        lock.is_in(scope).then_some(lock)
    };
    match scope.layout() {
        Layout::Key => find(key).into_iter().collect(),
        Layout::Election | Layout::Mutex => {
            let slashes = key.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            slashes.filter_map(|(at, _)| find(&key[..at])).collect()
        }
    }
}
