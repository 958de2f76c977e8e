//! Keeps static locks fresh, and sees how the store is: one read of all static locks, every period.

use std::rc::Rc;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::scope::Scope;
use super::shared::StaticToRead;
use super::work::{Believed, ReadFailure, Work};
use crate::store::{KeyRange, LockStore, RangeRead, Wanted};

/// Reads everything each period, for ever.
pub(crate) async fn keep_fresh<S>(
    work: Rc<Work<S>>,
    read_all: impl AsyncFn() -> Result<(), ReadFailure>,
) {
    let common = work.common();
    let mut backoff = work.backoff();
    loop {
        let begun = Instant::now();
        // When to read again; `None`: a period later, whatever that is by then.
        let next = match read_all().await {
            Ok(()) => {
                backoff.reset();
                None
            }
            // Three in a row have to be told from one soon: until then, nobody knows whether the
            // store went back.
            Err(ReadFailure::Again) => Some(begun),
            Err(ReadFailure::Regressed) => None,
            Err(ReadFailure::Store(_)) => {
                Some(Instant::now() + backoff.delay().min(common.period()))
            }
        };
        let is_due = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => common.period_after(begun).await,
            }
        };
        // The change first, so that it is not left for another read when both are due.
        tokio::select! {
            biased;
            () = common.read_now.notified() => {}
            () = is_due => {}
        }
    }
}

/// Reads all static locks and one key of each scope.
pub(super) async fn read<S: LockStore>(work: &Work<S>) -> Result<(), ReadFailure> {
    let StaticToRead { together: locks, alone } = work.shared.static_locks();
    alone.iter().for_each(|lock| lock.want_read());
    let (denied, scopes): (Vec<_>, Vec<_>) = work
        .shared
        .scopes()
        .into_iter()
        .partition(|scope| work.common().health().denies_scope(scope.range()));
    for scope in &denied {
        read_denied(work, scope).await;
    }
    if locks.is_empty() && scopes.is_empty() {
        return Ok(());
    }
    let of_locks =
        locks.iter().map(|lock| RangeRead { range: lock.range().clone(), wanted: Wanted::All });
    let ranges: Vec<RangeRead> = of_locks.chain(scopes.iter().map(|scope| probe(scope))).collect();
    let sending = work.common().trust.sending();
    let read =
        work.read(&work.common().counts.freshness, &ranges).await.map_err(
            |failure| match failure {
                ReadFailure::Store(error) => {
                    work.confirm_failed(&sending, &error);
                    ReadFailure::Store(
                        scopes.iter().fold(error, |error, scope| scope.tell_of_prefix(error)),
                    )
                }
                ReadFailure::Again | ReadFailure::Regressed => failure,
            },
        );
    let Believed { sent, revision, ranges } = read.inspect_err(|failure| work.tell(failure))?;
    for (lock, answer) in locks.iter().zip(&ranges) {
        if lock.read(&sent, revision, &answer.keys).is_some() {
            // Writes have to be looked at that nobody has seen. That may take long, and the other
            // locks do not wait for it.
            lock.want_read();
        }
    }
    for scope in scopes {
        if scope.note_read(&sent, revision) {
            work.common().watched_changed.notify_one(); // From now on it can be watched.
        }
    }
    work.fresh(sent.at);
    Ok(())
}

/// Tells the store's revision at the least cost: one key of the scope, whether or not it exists.
/// Another one may not be permitted.
fn probe(scope: &Scope) -> RangeRead {
    RangeRead { range: KeyRange::Key(scope.range().first_key().into()), wanted: Wanted::Count }
}

/// Finds out whether a scope may be read again. A read that is answered ends that it is denied.
async fn read_denied<S: LockStore>(work: &Work<S>, scope: &Arc<Scope>) {
    let whole = RangeRead { range: scope.range().clone(), wanted: Wanted::Count };
    let _ = work.read(&work.common().counts.freshness, &[whole, probe(scope)]).await;
}
