//! The watch: for speed, never for truth. What it brings is applied, and dates nothing.

use std::collections::BTreeMap;
use std::future::pending;
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
use crate::store::{Event, KeyRange, LockStore, RangeRead, RangeWatch, StoreError, Wanted, Watch, WatchNews};

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

/// A stream of the store, and what it watches.
struct Stream<W> {
    watch: W,
    watched: Vec<Watched>,
    era: Era,
    has_caught_up: bool,
}

/// What news of a stream comes to.
enum Taken {
    /// Events of what it watches.
    Events,
    CaughtUp,
    /// It has ended.
    Ended,
}

impl<W: Watch> Stream<W> {
    /// Takes the next news. Those of an earlier era are of another history, and are dropped.
    async fn take<S: LockStore<Watch = W>>(&mut self, work: &Work<S>) -> Taken {
        let news = self.watch.next().await;
        let trust = &work.common().trust;
        let counts = trust.era() == self.era && !trust.is_suspended();
        match news {
            Ok(WatchNews::Events { range, events }) => {
                if let Some(watched) = self.watched.get(range).filter(|_| counts) {
                    apply(work, watched, self.era, &events);
                }
                Taken::Events
            }
            Ok(WatchNews::CaughtUp) => {
                self.has_caught_up = counts;
                if counts {
                    let locks: Vec<_> = self.watched.iter().filter_map(Watched::lock).collect();
                    let scopes: Vec<_> = self.watched.iter().filter_map(Watched::scope).collect();
                    work.watch_caught_up(&locks, &scopes);
                }
                Taken::CaughtUp
            }
            Ok(WatchNews::Compacted { range }) => {
                match self.watched.get(range).filter(|_| counts) {
                    Some(Watched::Lock(lock)) => lock.upgrade().iter().for_each(|lock| lock.want_read()),
                    Some(Watched::Scope(scope)) => {
                        scope.upgrade().iter().for_each(|scope| scope.forget());
                        work.common().read_now.notify_one(); // Then it can be watched again.
                    }
                    None => {}
                }
                Taken::Ended
            }
            Err(error) => {
                report(work, error);
                Taken::Ended
            }
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

/// Watches all static locks and all scopes over one stream, for ever.
pub(crate) async fn watch<S: LockStore>(work: Rc<Work<S>>) {
    let common = work.common();
    let mut backoff = work.backoff();
    let mut resuming = false;
    // The stream that is followed. When another one takes its place, this one is followed until the other has caught up: so the store is watched
    // all the time, and each event is applied as it happens.
    let mut present: Option<Stream<S::Watch>> = None;
    loop {
        let (watched, ranges): (Vec<Watched>, Vec<RangeWatch>) = plan(&work).into_iter().unzip();
        if watched.is_empty() || common.trust.is_suspended() {
            if present.take().is_some() {
                common.trust.watch_fell_behind(); // Nothing is watched from here on.
            }
            common.watched_changed.notified().await;
            continue;
        }
        // A watch from a revision that the store has not reached is accepted and stays silent; so is, for a while, a watch on a
        // store that went back. So a quorum read goes first, and tells whether the store still is the one we know.
        if resuming && !is_known_store(&work, &watched[0], &ranges[0].range).await {
            sleep(backoff.delay()).await;
            continue;
        }
        let era = common.trust.era();
        if present.as_ref().is_none_or(|stream| stream.era != era) {
            common.trust.watch_fell_behind(); // Nothing applies the events of the present history.
        }
        let ended = match begin(&work, &ranges, present.as_mut()).await {
            Ok(watch) => {
                let next = Stream { watch, watched, era, has_caught_up: false };
                follow(&work, next, &mut present, || backoff.reset()).await
            }
            Err(()) => Ended::Failed,
        };
        resuming = matches!(ended, Ended::Failed);
        if resuming {
            present = None;
            common.trust.watch_fell_behind();
            count(&common.counts.watch_restarts);
            sleep(backoff.delay()).await;
        }
    }
}

/// Begins a watch in the place of the present stream, unless that ends meanwhile. The new watch brings again what that brings.
async fn begin<S: LockStore>(
    work: &Work<S>,
    ranges: &[RangeWatch],
    present: Option<&mut Stream<S::Watch>>,
) -> Result<S::Watch, ()> {
    let ends = async {
        match present {
            Some(stream) => while !matches!(stream.take(work).await, Taken::Ended) {},
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        () = ends => Err(()),
        begun = work.store.watch(ranges) => begun.map_err(|error| _ = work.failed(error)),
    }
}

async fn is_known_store<S: LockStore>(work: &Work<S>, watched: &Watched, range: &KeyRange) -> bool {
    // What is watched, or one key of it where it is large, whether or not that exists: to read any other may not be permitted.
    let range = match watched {
        Watched::Lock(_) => range.clone(),
        Watched::Scope(_) => KeyRange::Key(range.first_key().into()),
    };
    let one = RangeRead { range, wanted: Wanted::Count };
    match work.read(&work.common().counts.resumes, &[one]).await {
        Ok(_) => true,
        Err(ReadFailure::Store(_) | ReadFailure::Again | ReadFailure::Regressed) => false,
    }
}

/// What can be watched: whatever was read, from there on. What we may not read would keep all else from being watched.
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
        let watch = RangeWatch { range: scope.range().clone(), from: scope.watch_from()? };
        Some((Watched::Scope(Arc::downgrade(&scope)), watch))
    });
    let planned: Vec<_> = locks.chain(scopes).collect();
    let health = work.common().health();
    planned.into_iter().filter(|(watched, watch)| !is_denied(&health, watched, &watch.range)).collect()
}

/// Whether it may not be read.
fn is_denied(health: &Health, watched: &Watched, range: &KeyRange) -> bool {
    match watched {
        Watched::Lock(_) => health.denied.contains(range),
        Watched::Scope(_) => health.denies_scope(range),
    }
}

/// Follows the stream, and the one before until this one has caught up. Leaves as `present` the one that is to be followed from then on.
async fn follow<S: LockStore>(
    work: &Work<S>,
    mut next: Stream<S::Watch>,
    present: &mut Option<Stream<S::Watch>>,
    mut delivers: impl FnMut(),
) -> Ended {
    let trust = &work.common().trust;
    loop {
        let before = async {
            match present {
                Some(stream) => stream.take(work).await,
                None => pending().await,
            }
        };
        // A flood of events must not hide that something else has to be watched, which happens once for a lock and rarely for a scope.
        let taken = tokio::select! {
            biased;
            () = work.common().watched_changed.notified() => break,
            taken = before => {
                if matches!(taken, Taken::Ended) {
                    *present = None;
                    trust.watch_fell_behind(); // Until the other has caught up.
                }
                continue;
            }
            taken = next.take(work) => taken,
        };
        match taken {
            Taken::Events => delivers(),
            Taken::CaughtUp => {}
            Taken::Ended => return Ended::Failed,
        }
        if next.has_caught_up {
            *present = None;
        }
        if trust.era() != next.era || trust.is_suspended() {
            break;
        }
    }
    // One that is behind would delay events, and one of an earlier era brings none.
    if next.has_caught_up || present.as_ref().is_none_or(|stream| stream.era != next.era) {
        *present = Some(next);
    }
    Ended::Changed
}

fn report<S: LockStore>(work: &Work<S>, error: StoreError) {
    tracing::info!(source = %work.common().name, %error, "the watch ended and is begun again");
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
        // A queue must not be seen between two events of one transaction. Each lock once: a lease may end that held 100,000 of them.
        let mut touched: BTreeMap<LockKey, (Arc<TrackedLock>, Vec<Event>)> = BTreeMap::new();
        for event in events {
            for lock in locks_of(common, scope, event.key()) {
                touched.entry(lock.key().clone()).or_insert_with(|| (lock, Vec::new())).1.push(event.clone());
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
/// A lock that comes to be tracked meanwhile may miss an event: its first read is not sent yet, and shows it.
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
