//! Reading one lock: the confirming reads, first reads, and the walk back through a key's history.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{KeyTrack, Reading, Revision, Walk, Write};
use futures_util::future::join_all;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout};

use super::common::{Command, count};
use super::slots::Unconfirmed;
use super::tracked::TrackedLock;
use super::unknown::TOGETHER_MAX;
use super::work::{Believed, ReadFailure, Work};
use crate::store::{LockStore, RangeRead, StoreError, Wanted};

/// How often a lock is read in a row when each read is overtaken by events, or is not believed.
const READS_MAX: usize = 4;

/// How far back a walk goes. A holder that has rewritten its key more often since it became the owner has to present
/// a newer revision.
const WALK_STEPS_MAX: u64 = 65_536;
const WALK_TIME_MAX: Duration = Duration::from_secs(5);

/// How many of its steps are looked at one after the other.
const WALK_STEPS_ALONE: u64 = 8;

/// A walk with more steps before it has to wait for its turn: it needs what the store can answer, and of many at once none would come to its end in
/// time. (Many steps in one request would be faster. etcd takes them in a transaction only, and what that does at revisions that are being
/// compacted is not to be relied on: etcd-io/etcd#18667.)
const WALK_STEPS_BESIDE: u64 = 256;

/// How long one waits for its turn at most, and then does without: meanwhile its lock is nobody's.
const WALK_TURN_MAX: Duration = Duration::from_secs(60);

/// How many reads beside the next one are made at once from then on.
const READS_AHEAD: u64 = 32;

/// Serves the slots of a lock until nobody wants a read.
pub(crate) async fn serve<S: LockStore>(work: Rc<Work<S>>, lock: Arc<TrackedLock>) {
    loop {
        if lock.is_unknown() {
            if lock.slots().goes_on() {
                look_for(&work, lock);
            }
            return;
        }
        let turn = work.turn_to_read().await;
        // Whoever asks before here is served by this read: it has not been sent yet.
        if !lock.slots().begin() {
            return;
        }
        let outcome = read(&work, &lock, turn).await;
        lock.slots().finish(outcome);
    }
}

/// Ends a read that has begun, by one of the lock alone, and serves its slots then.
pub(crate) async fn serve_on<S: LockStore>(work: Rc<Work<S>>, lock: Arc<TrackedLock>) {
    let turn = work.turn_to_read().await;
    let outcome = read(&work, &lock, turn).await;
    lock.slots().finish(outcome);
    serve(work, lock).await;
}

/// Looks for locks that have no record, as far as we know, for ever: for as many in one request as wait by then.
///
/// Keys are easily made up, so that these requests are paid for. A true holder whose lock is not known yet waits among made-up ones no longer
/// than that takes for all of them.
pub(crate) async fn look_for_unknown<S: LockStore>(work: Rc<Work<S>>) {
    let unknown = &work.common().unknown;
    loop {
        work.waiting.any().await;
        unknown.pay().await;
        let locks = work.waiting.begin(work.store.ranges_max().min(TOGETHER_MAX), unknown);
        let is_read = !locks.is_empty() && read_together(&work, &locks).await;
        if !is_read || locks.iter().all(|lock| lock.exists()) {
            unknown.give_back();
        }
    }
}

/// Reads locks at once, and settles what that is enough for; the others are read one by one then. Whether the store has answered.
async fn read_together<S: LockStore>(work: &Work<S>, locks: &[Arc<TrackedLock>]) -> bool {
    let ranges: Vec<RangeRead> =
        locks.iter().map(|lock| RangeRead { range: lock.range().clone(), wanted: Wanted::All }).collect();
    let read_on = |lock: &Arc<TrackedLock>| work.common().send(Command::ReadOn(Arc::clone(lock)));
    let mut why = Unconfirmed::Overtaken;
    for _ in 0..READS_MAX {
        let sent = work.common().trust.sending();
        why = match work.try_read(&work.common().counts.confirms, &ranges).await {
            Ok(Believed { sent, revision, ranges }) => {
                for (lock, answer) in locks.iter().zip(&ranges) {
                    let walk = lock.read(&sent, revision, &answer.keys);
                    if walk.is_none() && lock.is_settled() { end(work, lock, Ok(())) } else { read_on(lock) }
                }
                return true;
            }
            Err(ReadFailure::Again) => continue,
            Err(ReadFailure::Regressed) => Unconfirmed::Regressed,
            // That one of them may not be read says nothing of the others.
            Err(ReadFailure::Store(error)) if locks.len() > 1 && matches!(*error, StoreError::Denied { .. }) => {
                work.waiting.keep_apart();
                locks.iter().for_each(read_on);
                return false;
            }
            Err(ReadFailure::Store(error)) => {
                work.confirm_failed(&sent, &error);
                Unconfirmed::Store(work.failed(error))
            }
        };
        break;
    }
    locks.iter().for_each(|lock| end(work, lock, Err(why.clone())));
    false
}

/// Ends a read of the lock. If another one is wanted, it has its turn behind those that wait.
fn end<S: LockStore>(work: &Work<S>, lock: &Arc<TrackedLock>, outcome: Result<(), Unconfirmed>) {
    lock.slots().finish(outcome);
    if lock.slots().goes_on() {
        work.common().send(Command::Read(Arc::clone(lock)));
    }
}

/// Has the lock wait until it is looked for.
pub(crate) fn look_for<S: LockStore>(work: &Work<S>, lock: Arc<TrackedLock>) {
    let common = work.common();
    if !common.unknown.is_full() {
        return work.waiting.push(lock, &common.unknown);
    }
    common.refuse_unknown();
    if lock.slots().begin() {
        end(work, &lock, Err(Unconfirmed::Overloaded));
    }
}

/// Reads the lock until it is settled: until nothing is known to have happened after what the read has shown. While it looks back, its turn is
/// others'.
async fn read<'w, S: LockStore>(
    work: &'w Work<S>,
    lock: &TrackedLock,
    turn: SemaphorePermit<'w>,
) -> Result<(), Unconfirmed> {
    let range = RangeRead { range: lock.range().clone(), wanted: Wanted::All };
    let mut outcome = Err(Unconfirmed::Overtaken);
    let mut turn = Some(turn);
    for _ in 0..READS_MAX {
        let its_turn = match turn.take() {
            Some(turn) => turn,
            None => work.turn_to_read().await,
        };
        let sent = work.common().trust.sending();
        let believed = match work.read(&work.common().counts.confirms, std::slice::from_ref(&range)).await {
            Ok(believed) => believed,
            Err(ReadFailure::Again) => continue,
            Err(ReadFailure::Regressed) => return Err(Unconfirmed::Regressed),
            Err(ReadFailure::Store(error)) => {
                work.confirm_failed(&sent, &error);
                return Err(Unconfirmed::Store(error));
            }
        };
        let keys = believed.ranges.first().map_or(&[][..], |answer| &answer.keys);
        drop(its_turn);
        if let Some(begun) = lock.read(&believed.sent, believed.revision, keys) {
            let track = walk(work, lock, begun).await.map_err(|error| Unconfirmed::Store(work.failed(error)))?;
            if work.common().trust.era() != believed.sent.era {
                continue; // It may have walked through two histories.
            }
            lock.walked(&believed.sent, track);
        }
        outcome = Ok(());
        if lock.is_settled() {
            break;
        }
    }
    // Unsettled still is exact for its own revision and dated by its own read: overtaken by events is not wrong.
    outcome
}

/// Looks at the writes between what was read and what was known, the newest first: a few one after the other, as most walks are short, then many
/// at a time.
async fn walk<S: LockStore>(work: &Work<S>, lock: &TrackedLock, mut walk: Walk) -> Result<KeyTrack, StoreError> {
    let began_at = walk.reads_at().get();
    let (_, left) = walk.ends();
    let turn = async { if left > WALK_STEPS_BESIDE { Some(work.walks.acquire().await) } else { None } };
    let turn = timeout(WALK_TURN_MAX, turn).await; // Kept to the end.
    let steps_max = if turn.is_ok() { WALK_STEPS_MAX } else { WALK_STEPS_BESIDE };
    let end = Instant::now() + WALK_TIME_MAX;
    // Writes that were shown before their turn, by the incarnation of the key that they are of and their number in it.
    let mut ahead: HashMap<(Revision, u64), Write> = HashMap::new();
    for step in 0..steps_max {
        if Instant::now() > end {
            break;
        }
        let shown = match ahead.remove(&walk.expects()) {
            Some(write) => Some(write),
            None => {
                let (next, (oldest, left)) = (walk.reads_at(), walk.ends());
                let apart = (began_at - next.get()) / step.max(1);
                let ahead_of_next = if step < WALK_STEPS_ALONE { 0 } else { READS_AHEAD.min(2 * left) };
                let guesses =
                    guesses(next, apart).take_while(|at| *at >= oldest).zip(0..ahead_of_next).map(|(at, _)| at);
                let revisions = std::iter::once(next).chain(guesses);
                let mut found = join_all(revisions.map(|at| look(work, lock, at))).await.into_iter();
                let shown = match found.next().expect("the next one was looked at") {
                    Ok(shown) => shown,
                    Err(StoreError::Compacted) => return Ok(walk.ends_here()),
                    Err(error) => return Err(error),
                };
                // What a guess does not show is looked at in its turn.
                let writes = found.filter_map(|found| found.ok().flatten());
                ahead.extend(writes.map(|write| ((write.created, write.version), write)));
                shown
            }
        };
        walk = match walk.shown(shown) {
            Reading::Known(track) => return Ok(track),
            Reading::Walk(walk) => walk,
        };
    }
    let from = walk.reads_at().get() + 1;
    tracing::warn!(
        source = %work.common().name,
        lock = %lock.key(),
        from,
        "its holder has rewritten the lock so often that only its revisions from that one on are accepted: it has to present newer ones"
    );
    Ok(walk.ends_here())
}

/// The write to the key that was its newest at that revision.
async fn look<S: LockStore>(work: &Work<S>, lock: &TrackedLock, at: Revision) -> Result<Option<Write>, StoreError> {
    count(&work.common().counts.walks);
    let stored = work.store.read_at(lock.key().as_str().as_bytes(), at).await?;
    Ok(stored.map(|stored| lock.spec().write(&stored)))
}

/// Revisions to look at before the next: they may show each another write where these are so far apart. Twice as close as that, since no two are
/// equally far apart.
fn guesses(next: Revision, apart: u64) -> impl Iterator<Item = Revision> {
    let closer = (apart / 2).max(1);
    (1..).map_while(move |number: u64| Revision::new(next.get().checked_sub(number.checked_mul(closer)?)?))
}
