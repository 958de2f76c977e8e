//! Reading one lock: the confirming reads, first reads, and the walk back through a key's history.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{KeyTrack, Reading, Revision, Walk};
use tokio::time::Instant;

use super::common::count;
use super::driver::{ReadFailure, Work};
use super::slots::Unconfirmed;
use super::tracked::TrackedLock;
use crate::store::{KeyValue, LockStore, RangeRead, StoreError, Wanted};

/// How often a lock is read in a row when each read is overtaken by events, or is not believed.
const READS_MAX: usize = 4;

/// How far back a walk goes. A holder that has rewritten its key more often since it became the owner has to present
/// a newer revision.
const WALK_STEPS_MAX: usize = 4096;
const WALK_TIME_MAX: Duration = Duration::from_secs(5);

/// Serves the slots of a lock until nobody wants a read.
pub(crate) async fn serve<S: LockStore>(work: Rc<Work<S>>, lock: Arc<TrackedLock>) {
    loop {
        let turns = if lock.is_templated() && !lock.exists() { &work.reads_without_record } else { &work.reads };
        let turn = turns.acquire().await;
        // Whoever asks before here is served by this read: it has not been sent yet.
        if !lock.slots().begin() {
            return;
        }
        let outcome = read_paid(&work, &lock).await;
        drop(turn);
        lock.slots().finish(outcome);
    }
}

/// Reads of templated locks that find no record are paid for: keys are easily made up.
async fn read_paid<S: LockStore>(work: &Work<S>, lock: &TrackedLock) -> Result<(), Unconfirmed> {
    let bucket = &work.common().without_record;
    if !lock.is_templated() || lock.exists() {
        return read(work, lock).await;
    }
    if !bucket.take(Instant::now()) {
        return Err(Unconfirmed::Overloaded);
    }
    let outcome = read(work, lock).await;
    if lock.exists() || outcome.is_err() {
        bucket.give_back();
    }
    outcome
}

/// Reads the lock until it is settled: until nothing is known to have happened after what the read has shown.
async fn read<S: LockStore>(work: &Work<S>, lock: &TrackedLock) -> Result<(), Unconfirmed> {
    let range = RangeRead { range: lock.range().clone(), wanted: Wanted::All };
    let mut outcome = Err(Unconfirmed::Overtaken);
    for _ in 0..READS_MAX {
        let believed = match work.read(&work.common().counts.confirms, std::slice::from_ref(&range)).await {
            Ok(believed) => believed,
            Err(ReadFailure::Again) => continue,
            Err(ReadFailure::Regressed) => return Err(Unconfirmed::Regressed),
            Err(ReadFailure::Store(error)) => return Err(Unconfirmed::Store(error)),
        };
        let keys = believed.ranges.first().map_or(&[][..], |answer| &answer.keys);
        if let Some(begun) = lock.read(&believed.sent, believed.revision, keys) {
            let track = walk(work, lock, begun).await.map_err(|error| Unconfirmed::Store(work.failed(error)))?;
            if work.common().trust.era() != believed.sent.era {
                continue; // It may have walked through two histories.
            }
            let sent = work.common().trust.as_of_now(&believed.sent);
            if sent.stretch.is_none() && !has_still(work, lock, believed.revision, keys).await? {
                continue; // So it may here: no watch has ended for that.
            }
            lock.walked(&sent, track);
        }
        outcome = Ok(());
        if lock.is_settled() {
            break;
        }
    }
    // Unsettled still is exact for its own revision and dated by its own read: overtaken by events is not wrong.
    outcome
}

/// Whether the store has what was read still, as of then: its holder may have renewed the lock meanwhile.
async fn has_still<S: LockStore>(
    work: &Work<S>,
    lock: &TrackedLock,
    at: Revision,
    keys: &[KeyValue],
) -> Result<bool, Unconfirmed> {
    count(&work.common().counts.walks);
    match work.store.read_at(lock.key().as_str().as_bytes(), at).await {
        Ok(then) => Ok(then.as_ref() == keys.first()),
        Err(StoreError::Compacted) => Ok(false),
        Err(error) => Err(Unconfirmed::Store(work.failed(error))),
    }
}

/// Looks at the writes between what was read and what was known, the newest first.
async fn walk<S: LockStore>(work: &Work<S>, lock: &TrackedLock, mut walk: Walk) -> Result<KeyTrack, StoreError> {
    let key = lock.key();
    let end = Instant::now() + WALK_TIME_MAX;
    for _ in 0..WALK_STEPS_MAX {
        if Instant::now() > end {
            break;
        }
        count(&work.common().counts.walks);
        let stored = match work.store.read_at(key.as_str().as_bytes(), walk.reads_at()).await {
            Ok(stored) => stored,
            Err(StoreError::Compacted) => return Ok(walk.ends_here()),
            Err(error) => return Err(error),
        };
        walk = match walk.shown(stored.map(|stored| lock.spec().write(&stored))) {
            Reading::Known(track) => return Ok(track),
            Reading::Walk(walk) => walk,
        };
    }
    tracing::warn!(
        source = %work.common().name,
        lock = %key,
        "its holder has rewritten the lock so often that only its newer revisions are accepted"
    );
    Ok(walk.ends_here())
}
