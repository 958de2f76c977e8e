//! Reading locks that somebody waits for: many in one request, and back through the history of a
//! key.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{KeyTrack, Reading, Revision, Walk, Write};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until};

use super::common::{Command, count};
use super::slots::Unconfirmed;
use super::tracked::TrackedLock;
use super::trust::Sent;
use super::work::{Believed, ReadFailure, Work};
use crate::record_store::READ_TOGETHER_MAX;
use crate::store::{LockStore, RangeRead, StoreError, Wanted};

/// The most locks that one request reads, as many as etcd takes: they cost it little more than one
/// does.
const TOGETHER_MAX: usize = READ_TOGETHER_MAX;

/// How often locks are read in a row when no answer is believed.
pub(super) const READS_MAX: usize = 4;

/// For how long each lock is read by a request of its own after one of several could not be read:
/// the store would have to be asked which it was.
const ALONE_PERIOD: Duration = Duration::from_secs(60);

/// How many histories of keys are gone back through at a time, so that many locks that were renewed
/// often do not share the time of a few.
pub(super) const WALKS_AT_A_TIME: usize = 8;

/// How long fencepost goes back through a long history of a key. Meanwhile nobody holds the lock.
/// The limit is some thousands of writes.
const WALK_TIME_MAX: Duration = Duration::from_secs(10);

/// Locks that wait to be read.
pub(crate) type Waiting = Rc<Mutex<mpsc::Receiver<Arc<TrackedLock>>>>;

/// When the next request follows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    AtOnce,
    /// So long after the last one began, unless that was full.
    UnlessFull(Duration),
    /// So long after the last one began, unless all its locks have a record.
    UnlessAllExist(Duration),
}

/// Reads the locks that wait, for ever: as many in one request as wait by then.
pub(crate) async fn serve<S>(
    work: Rc<Work<S>>,
    waiting: Waiting,
    pace: Pace,
    read: Rc<impl AsyncFn(&[Arc<TrackedLock>])>,
) {
    let mut locks = Vec::new();
    loop {
        let max = if work.reads_alone() { 1 } else { TOGETHER_MAX };
        waiting.lock().await.recv_many(&mut locks, max).await; // It is open as long as the source works.
        let (begun, is_full) = (Instant::now(), locks.len() == max);
        // A request that asks before here is served by this read: it has not been sent yet.
        locks.retain(|lock| lock.slots().begin() && !is_too_large(&work, lock));
        if !locks.is_empty() {
            read(&locks).await;
        }
        let all_exist = locks.iter().all(|lock| lock.exists());
        locks.clear();
        match pace {
            Pace::UnlessFull(apart) if !is_full => sleep_until(begun + apart).await,
            Pace::UnlessAllExist(apart) if !all_exist => sleep_until(begun + apart).await,
            Pace::AtOnce | Pace::UnlessFull(_) | Pace::UnlessAllExist(_) => {}
        }
    }
}

/// Ends the read of a lock at once if the lock was too large a moment ago.
fn is_too_large<S>(work: &Work<S>, lock: &Arc<TrackedLock>) -> bool {
    let refused = work.common().health().too_large(lock.range(), Instant::now());
    refused.map(|error| end(work, lock, Err(Unconfirmed::Store(error)))).is_some()
}

/// Reads locks whose reads have begun, and ends those reads.
pub(super) async fn read<S: LockStore>(work: &Work<S>, locks: &[Arc<TrackedLock>]) {
    let ranges: Vec<RangeRead> = locks
        .iter()
        .map(|lock| RangeRead { range: lock.range().clone(), wanted: Wanted::All })
        .collect();
    let mut why = Unconfirmed::Overtaken;
    for _ in 0..READS_MAX {
        let sent = work.common().trust.sending();
        why = match work.read(&work.common().counts.confirms, &ranges).await {
            Ok(Believed { sent, revision, ranges }) => {
                for (lock, answer) in locks.iter().zip(&ranges) {
                    match lock.read(&sent, revision, &answer.keys) {
                        None => end(work, lock, Ok(())),
                        Some(walk) => work.common().send(Command::Walk(
                            Arc::clone(lock),
                            sent,
                            Box::new(walk),
                        )),
                    }
                }
                return;
            }
            Err(ReadFailure::Again) => continue,
            Err(ReadFailure::Regressed) => Unconfirmed::Regressed,
            // One of them cannot be read. That says nothing of the others.
            Err(ReadFailure::Store(error))
                if locks.len() > 1 && error.refused_range().is_some() =>
            {
                work.read_alone_for(ALONE_PERIOD);
                for lock in locks {
                    Box::pin(read(work, std::slice::from_ref(lock))).await;
                }
                return;
            }
            Err(ReadFailure::Store(error)) => {
                work.confirm_failed(&sent, &error);
                Unconfirmed::Store(work.failed(error))
            }
        };
        break;
    }
    locks.iter().for_each(|lock| end(work, lock, Err(why.clone())));
}

/// Ends a read of the lock. Another one that is wanted has its turn behind those that wait.
pub(super) fn end<S>(work: &Work<S>, lock: &Arc<TrackedLock>, outcome: Result<(), Unconfirmed>) {
    let has_ended_well = outcome.is_ok();
    lock.slots().finish(outcome);
    if lock.slots().goes_on() {
        work.common().queue_read(Arc::clone(lock));
    } else if has_ended_well && !lock.is_settled() {
        // Events have overtaken the read. It is exact for its own revision all the same, and dated.
        lock.want_read();
    }
}

/// Goes back through the history of a lock, as far as a read wants that, and ends that read.
pub(crate) async fn go_back<S: LockStore>(
    work: Rc<Work<S>>,
    lock: Arc<TrackedLock>,
    sent: Sent,
    walk: Walk,
) {
    let outcome = match walked(&work, &lock, walk).await {
        // It may have gone through two histories.
        Ok(_) if work.common().trust.era() != sent.era => Err(Unconfirmed::Overtaken),
        Ok(track) => {
            lock.walked(&sent, track);
            Ok(())
        }
        Err(error) => Err(Unconfirmed::Store(work.failed(error))),
    };
    end(&work, &lock, outcome);
}

/// Looks at the writes between what was read and what was known, the newest first.
async fn walked<S: LockStore>(
    work: &Work<S>,
    lock: &TrackedLock,
    mut walk: Walk,
) -> Result<KeyTrack, StoreError> {
    let _turn = work.walks.acquire().await.expect("nobody closes it");
    let end = Instant::now() + WALK_TIME_MAX;
    while Instant::now() < end {
        let shown = match write_at(work, lock, walk.reads_at()).await {
            Ok(shown) => shown,
            Err(StoreError::Compacted) => return Ok(walk.ends_here()),
            Err(error) => return Err(error),
        };
        walk = match walk.shown(shown) {
            Reading::Known(track) => return Ok(track),
            Reading::Walk(walk) => walk,
        };
    }
    tracing::warn!(
        source = %work.common().name,
        lock = %lock.key(),
        from = walk.reads_at().get() + 1,
        "its holder has rewritten the lock so often that only its revisions from that one on are accepted: it has to present newer ones"
    );
    Ok(walk.ends_here())
}

/// The write to the key that was its newest at that revision.
async fn write_at<S: LockStore>(
    work: &Work<S>,
    lock: &TrackedLock,
    at: Revision,
) -> Result<Option<Write>, StoreError> {
    count(&work.common().counts.walks);
    let stored = work.store.read_at(lock.key().as_str().as_bytes(), at).await?;
    Ok(stored.map(|stored| lock.spec().write(&stored)))
}
