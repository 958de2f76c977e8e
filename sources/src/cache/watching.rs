//! The watch: for speed, never for truth. What it brings is applied, and dates nothing.

use std::future::pending;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use fencepost_policy::Revision;
use tokio::time::sleep;

use super::common::count;
use super::driver::{ReadFailure, Work};
use super::knowledge::{Applied, Coverage};
use super::scope::Scope;
use super::tracked::TrackedLock;
use super::trust::Era;
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
    // The stream that is followed. When another one begins in its place it goes on until then, so that it is known whether the store was watched
    // all the time.
    let mut present: Option<S::Watch> = None;
    loop {
        let (watched, ranges): (Vec<Watched>, Vec<RangeWatch>) = plan(&work).into_iter().unzip();
        if watched.is_empty() || common.trust.is_suspended() {
            if present.take().is_some() {
                work.watch_failed(); // Nothing is watched from here on.
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
        let ended = match begin(&work, &ranges, present.take()).await {
            Ok(stream) => {
                work.watch_began(watched.iter().filter_map(Watched::scope));
                follow(&work, present.insert(stream), &watched, era, || backoff.reset()).await
            }
            Err(()) => Ended::Failed,
        };
        resuming = matches!(ended, Ended::Failed);
        if resuming {
            present = None;
            work.watch_failed();
            count(&common.counts.watch_restarts);
            sleep(backoff.delay()).await;
        }
    }
}

/// Begins a watch in the place of the present one, unless that fails meanwhile. What that brings is brought by the new one, too.
async fn begin<S: LockStore>(
    work: &Work<S>,
    ranges: &[RangeWatch],
    mut present: Option<S::Watch>,
) -> Result<S::Watch, ()> {
    let ends = async {
        match &mut present {
            Some(stream) => loop {
                if let Err(error) = stream.next().await {
                    return error;
                }
            },
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        error = ends => {
            report(work, error);
            Err(())
        }
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
    let denied = work.common().health().denied.clone();
    let locks = work.shared.static_locks().together.into_iter().filter_map(|lock| {
        let from = Revision::new(lock.as_of()?.get() + 1)?;
        let range = lock.range().clone();
        Some((Watched::Lock(Arc::downgrade(&lock)), RangeWatch { range, from }))
    });
    let scopes = work.shared.scopes().into_iter().filter_map(|scope| {
        let watch = RangeWatch { range: scope.range().clone(), from: scope.watch_from()? };
        Some((Watched::Scope(Arc::downgrade(&scope)), watch))
    });
    locks.chain(scopes).filter(|(watched, watch)| !is_denied(&denied, watched, &watch.range)).collect()
}

/// Whether it may not be read. A scope may have been asked for by one key of it, which it is asked for by again once there is a window.
fn is_denied(denied: &[KeyRange], watched: &Watched, range: &KeyRange) -> bool {
    let by_one_key = || denied.contains(&KeyRange::Key(range.first_key().into()));
    denied.contains(range) || matches!(watched, Watched::Scope(_)) && by_one_key()
}

async fn follow<S: LockStore>(
    work: &Work<S>,
    stream: &mut S::Watch,
    watched: &[Watched],
    era: Era,
    mut delivers: impl FnMut(),
) -> Ended {
    loop {
        // A flood of events must not hide that something else has to be watched, which happens once for a lock and rarely for a scope.
        let news = tokio::select! {
            biased;
            () = work.common().watched_changed.notified() => return Ended::Changed,
            news = stream.next() => news,
        };
        if work.common().trust.era() != era || work.common().trust.is_suspended() {
            return Ended::Changed;
        }
        match news {
            Ok(WatchNews::Events { range, events }) => {
                delivers();
                if let Some(watched) = watched.get(range) {
                    apply(work, watched, era, &events);
                }
            }
            Ok(WatchNews::Compacted { range }) => {
                match watched.get(range) {
                    Some(Watched::Lock(lock)) => lock.upgrade().iter().for_each(|lock| lock.want_read()),
                    Some(Watched::Scope(scope)) => scope.upgrade().iter().for_each(|scope| scope.forget()),
                    None => {}
                }
                return Ended::Failed;
            }
            Err(error) => {
                report(work, error);
                return Ended::Failed;
            }
        }
    }
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
                && lock.events(era, events, Coverage::Lock) == Applied::Gap
            {
                lock.want_read();
            }
        }
        Watched::Scope(scope) => {
            scope.upgrade().iter().for_each(|scope| scope.events(&common.registry, era, events));
        }
    }
}
