//! Keeping news fresh: one read of all static locks, and one windowed read of each scope, every period.

use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::common::Common;
use super::scope::{Scope, Unverified};
use super::shared::ToRead;
use super::trust::WatchState;
use super::window::Probed;
use super::work::{Believed, ReadFailure, Work};
use crate::store::{LockStore, RangeRead, StoreError, Wanted};

/// For how many reads in a row a window may stay unverified, or be too much to read, before another one is begun.
const UNVERIFIED_MAX: u32 = 2;

/// For how long nobody looks for changes in a scope that has too many keys for that: twice as long each time that they are too many, up to
/// the latter.
const REST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Reads all static locks, for ever.
pub(crate) async fn of_static_locks<S: LockStore>(work: Rc<Work<S>>) {
    let common = work.common();
    let mut backoff = work.backoff();
    loop {
        let begun = Instant::now();
        let next = match read_static_locks(&work).await {
            Ok(()) => {
                backoff.reset();
                Next::APeriodAfter(begun)
            }
            Err(failure) => after(&failure, begun, &work, backoff.delay()),
        };
        // The change first, so that it is not left for another read when both are due.
        tokio::select! {
            biased;
            () = common.statics_changed.notified() => {}
            () = next.comes(common) => {}
        }
    }
}

async fn read_static_locks<S: LockStore>(work: &Work<S>) -> Result<(), ReadFailure> {
    let ToRead { together: locks, alone } = work.shared.static_locks();
    alone.iter().for_each(|lock| lock.want_read());
    if locks.is_empty() {
        return Ok(());
    }
    let ranges: Vec<RangeRead> =
        locks.iter().map(|lock| RangeRead { range: lock.range().clone(), wanted: Wanted::All }).collect();
    let sending = work.common().trust.sending();
    let read = work.read(&work.common().counts.freshness, &ranges).await;
    if let Err(ReadFailure::Store(error)) = &read {
        work.confirm_failed(&sending, error);
    }
    let Believed { sent, revision, ranges } = read?;
    for (lock, answer) in locks.iter().zip(&ranges) {
        if lock.read(&sent, revision, &answer.keys).is_some() {
            // Writes have to be looked at that nobody has seen: that may take long, and the other locks don't wait for it.
            lock.want_read();
        }
    }
    work.fresh(sent.at);
    Ok(())
}

/// The part of a period for which the watch may take to deliver what a probe has shown to be there.
const PATIENCE: u32 = 10;

/// Reads the window of a scope, for as long as anybody holds a lock or a template of it.
pub(crate) async fn of_scope<S: LockStore>(work: Rc<Work<S>>, scope: Weak<Scope>) {
    let common = work.common();
    let mut backoff = work.backoff();
    let mut course = Course::default();
    while let Some(scope) = scope.upgrade() {
        let begun = Instant::now();
        let next = match read_scope(&work, &scope, begun, &mut course).await {
            Ok(()) => {
                backoff.reset();
                Next::APeriodAfter(begun)
            }
            Err(failure) => after(&failure, begun, &work, backoff.delay()),
        };
        tokio::select! {
            biased;
            () = scope.look_again() => {} // A window is begun anew at once, or believed again.
            () = next.comes(common) => {}
        }
    }
    common.watched_changed.notify_one();
}

/// How the reads of a scope have gone.
#[derive(Debug, Default)]
struct Course {
    /// For how many reads in a row the window has stayed unverified, or was too much to read.
    unverified: u32,
    /// How often it was given up as too much since the last time that its changes were read.
    given_up: u32,
    /// Until when its changes are not asked for.
    rests_until: Option<Instant>,
}

impl Course {
    /// A window was given up. For how long nothing is to be asked for now: a young one has little change to bring, and so it is the keys that
    /// are too many.
    fn gives_up(&mut self) -> Option<Duration> {
        self.unverified = 0;
        self.given_up += 1;
        let doublings = self.given_up.checked_sub(2)?.min(16);
        let rest = (REST.0 * (1 << doublings)).min(REST.1);
        self.rests_until = Some(Instant::now() + rest);
        Some(rest)
    }

    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| Instant::now() < until)
    }
}

/// Reads as much of a scope as it takes to date it.
async fn read_scope<S: LockStore>(
    work: &Work<S>,
    scope: &Arc<Scope>,
    begun: Instant,
    course: &mut Course,
) -> Result<(), ReadFailure> {
    let Some(probe) = scope.probe() else {
        let believed = work.try_read_window(scope.next_read()).await.inspect_err(|failure| work.tell(failure))?;
        merge(work, scope, believed, begun, course).await;
        return Ok(());
    };
    // Nobody watches what may not be read, and a probe does not tell when it may be again: what begins a window does.
    let is_up = matches!(work.common().trust.glance().watch, WatchState::Up { .. });
    let is_watched = is_up && scope.watched_since().is_some();
    if !is_watched && work.common().health().denied.contains(scope.range()) {
        scope.forget();
        return Ok(());
    }
    let probed = match work.try_read_window(probe).await {
        // Not the probe's key alone may not be read. What begins a window says of the whole range that it may not.
        Err(ReadFailure::Store(error)) if matches!(*error, StoreError::Denied { .. }) => {
            scope.forget();
            return Ok(());
        }
        probed => probed.inspect_err(|failure| work.tell(failure))?,
    };
    if is_known_through(work, scope, &probed).await {
        course.unverified = 0;
        scope.set_rests(false);
        work.fresh(probed.sent.at);
        return Ok(());
    }
    if course.rests() {
        // The clock stands still, and each lock is dated by its own reads, as the log has said. The source is not behind.
        work.fresh(probed.sent.at);
        return Ok(());
    }
    if course.rests_until.take().is_some() {
        scope.forget(); // It has as much to bring as has changed during the rest. A young window tells whether the keys still are too many.
        return Ok(());
    }
    let believed = work.try_read_window(scope.next_read()).await;
    let believed = believed.map_err(|failure| after_a_probe(failure, work, scope, course))?;
    course.given_up = 0;
    scope.set_rests(false);
    merge(work, scope, believed, begun, course).await;
    Ok(())
}

/// Takes note that a read of what has changed failed, though the store has just answered a probe. If it does not any more, the next one will
/// tell.
fn after_a_probe<S: LockStore>(
    failure: ReadFailure,
    work: &Work<S>,
    scope: &Scope,
    course: &mut Course,
) -> ReadFailure {
    match &failure {
        ReadFailure::Store(error) if may_be_too_much(error) => give_up_what_is_too_much(work, scope, error, course),
        ReadFailure::Store(_) | ReadFailure::Again | ReadFailure::Regressed => work.tell(&failure),
    }
    failure
}

/// Forgets a window whose read fails again though the store has just answered a probe. As long as it is not read it only has more to bring;
/// the next one begins by counting keys, as at the start. If its read fails too, nobody reads one for a while.
///
/// Nothing is read for that but what somebody asks for, as many locks at a time as ever.
fn give_up_what_is_too_much<S: LockStore>(work: &Work<S>, scope: &Scope, error: &StoreError, course: &mut Course) {
    course.unverified += 1;
    if course.unverified < UNVERIFIED_MAX {
        return;
    }
    let (source, range, keys) = (&work.common().name, scope.range(), scope.keys());
    match course.gives_up() {
        None => tracing::info!(
            %source, %range, %error,
            "what has changed is too much to be read; its locks are read anew as they are asked for"
        ),
        Some(rest) => tracing::info!(
            %source, %range, %error, keys, ?rest,
            "there are too many keys to look through for what has changed; until that is tried again, its locks are read as they are asked for"
        ),
    }
    scope.set_rests(course.rests());
    scope.forget();
}

/// Whether less might have been answered: it took too long, or was too large.
fn may_be_too_much(error: &StoreError) -> bool {
    match error {
        StoreError::Unavailable(_) | StoreError::Refused(_) | StoreError::Compacted => true,
        StoreError::NoLogin(_)
        | StoreError::Denied { .. }
        | StoreError::AnotherCluster { .. }
        | StoreError::ManyClusters { .. } => false,
    }
}

/// Whether the watch delivers soon all that happened up to what a probe has shown.
async fn is_known_through<S: LockStore>(work: &Work<S>, scope: &Scope, probed: &Believed) -> bool {
    let common = work.common();
    let probed_at = Instant::now();
    loop {
        match scope.verify_probe(&common.registry, &probed.sent, probed.revision) {
            Probed::Whole => return true,
            Probed::Missing => return false,
            Probed::NotYet => {}
        }
        // As for a windowed read: what is here already is looked at before it is too late.
        tokio::select! {
            biased;
            () = scope.progressed() => {}
            () = common.part_of_period_after(probed_at, PATIENCE) => return false,
        }
    }
}

/// Applies a windowed read, and waits for the events that verify it, for a period after `begun`.
async fn merge<S: LockStore>(
    work: &Work<S>,
    scope: &Arc<Scope>,
    believed: Believed,
    begun: Instant,
    course: &mut Course,
) {
    let Believed { sent, revision, ranges } = believed;
    let registry = &work.common().registry;
    let Some(answer) = ranges.into_iter().next() else {
        return;
    };
    let read = scope.merge(registry, &sent, revision, answer);
    if scope.watch_from().is_none() {
        begin(work, scope, &read);
        course.unverified = 0;
        return;
    }
    while !scope.verify(registry, &read) {
        // Events that are here already are looked at before it is too late. They come from a task of this thread, so the next ones
        // are not here before the time has been looked at.
        tokio::select! {
            biased;
            () = scope.progressed() => {}
            () = work.common().part_of_period_after(begun, 1) => {
                course.unverified += 1;
                if course.unverified >= UNVERIFIED_MAX && work.common().trust.era() == sent.era {
                    begin(work, scope, &read);
                    course.unverified = 0;
                }
                return;
            }
        }
        if scope.watch_from().is_none() {
            return; // Forgotten meanwhile.
        }
    }
    course.unverified = 0;
    work.fresh(sent.at);
}

/// Begins a window at that read.
fn begin<S: LockStore>(work: &Work<S>, scope: &Scope, read: &Unverified) {
    scope.begin(read);
    work.fresh(read.sent().at);
    work.common().watched_changed.notify_one();
}

/// When to read again.
enum Next {
    At(Instant),
    /// Whatever the period is by then.
    APeriodAfter(Instant),
}

impl Next {
    async fn comes(self, common: &Common) {
        match self {
            Next::At(instant) => sleep_until(instant).await,
            Next::APeriodAfter(instant) => common.part_of_period_after(instant, 1).await,
        }
    }
}

/// When to read again after a failure.
fn after<S: LockStore>(failure: &ReadFailure, begun: Instant, work: &Work<S>, delay: Duration) -> Next {
    match failure {
        // Three in a row have to be told from one soon: until then, nobody knows whether the store went back.
        ReadFailure::Again => Next::At(begun),
        ReadFailure::Regressed => Next::APeriodAfter(begun),
        ReadFailure::Store(_) => Next::At(Instant::now() + delay.min(work.common().period())),
    }
}
