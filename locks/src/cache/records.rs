//! The driver of a source over a [`RecordStore`]: it reads locks, one request after the other, so
//! that answers are applied in the order of the store.
//!
//! Nothing is watched. What a read shows is good until it is as old as `max_age`, and everything is
//! read five times in that time. A hint has a lock read sooner, and so seals a tenure sooner.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fencepost_policy::Revision;
use tokio::sync::Mutex;

use super::common::{Inbox, count};
use super::driver::{Tasks, run};
use super::freshness::keep_fresh;
use super::reading::{READS_MAX, end};
use super::record::LockSpec;
use super::shared::Shared;
use super::slots::Unconfirmed;
use super::tracked::TrackedLock;
use super::trust::{Sent, WatchNumber};
use super::work::{ReadFailure, Work};
use crate::record_store::{Hint, READ_TOGETHER_MAX, RecordStore};
use crate::store::StoreError;

/// What the tasks share.
struct Records<S> {
    work: Rc<Work<S>>,
    /// Whose turn it is to read.
    turn: Mutex<()>,
    /// No watch is needed here; where one is asked for, this is its number.
    watch: WatchNumber,
}

/// Does the work of a source over a store of records that name their own tenures.
pub(crate) async fn drive_records<S: RecordStore>(shared: Arc<Shared>, store: S, inbox: Inbox) {
    let work = Rc::new(Work::new(shared, store));
    let (watch, _) = work.common().trust.watch_caught_up();
    let records = Rc::new(Records { work: Rc::clone(&work), turn: Mutex::new(()), watch });
    let tasks = Tasks::new();
    let of_all = Rc::clone(&records);
    let read_all = async move || of_all.read_static().await;
    tasks.push(Box::pin(keep_fresh(Rc::clone(&work), read_all)));
    let hinted = Rc::clone(&records);
    tasks.push(Box::pin(async move { hinted.follow_hints().await }));
    let read = async move |locks: &[_]| records.read_waiting(locks).await;
    // One reader: reads are one after the other, and each has all locks that wait by then.
    run(&work, tasks, inbox, 1, read, |_, _, _| Box::pin(async {})).await;
}

impl<S: RecordStore> Records<S> {
    /// Reads locks whose reads have begun, and ends those reads.
    async fn read_waiting(&self, locks: &[Arc<TrackedLock>]) {
        let mut left: Vec<&Arc<TrackedLock>> = locks.iter().collect();
        for _ in 0..READS_MAX {
            let read = self.read(&self.work.common().counts.confirms, &left).await;
            match read {
                Ok((_, behind)) => {
                    let of_use = |lock: &&Arc<TrackedLock>| {
                        !behind.iter().any(|other| Arc::ptr_eq(lock, other))
                    };
                    left.iter()
                        .copied()
                        .filter(of_use)
                        .for_each(|lock| end(&self.work, lock, Ok(())));
                    left = behind;
                }
                Err(error) => {
                    let error = Unconfirmed::Store(self.work.failed(error));
                    left.drain(..).for_each(|lock| end(&self.work, lock, Err(error.clone())));
                }
            }
            if left.is_empty() {
                return;
            }
        }
        left.into_iter().for_each(|lock| end(&self.work, lock, Err(Unconfirmed::Overtaken)));
    }

    /// Reads all static locks; without any, finds out how the store is.
    async fn read_static(&self) -> Result<(), ReadFailure> {
        let (work, counts) = (&self.work, &self.work.common().counts);
        let (locks, scopes) = (work.shared.read_locks(), work.shared.scopes());
        if locks.is_empty() && scopes.is_empty() {
            return Ok(());
        }
        let locks: Vec<&Arc<TrackedLock>> = locks.iter().collect();
        let mut oldest = None;
        let mut is_behind = false;
        let parts = if locks.is_empty() {
            vec![&[][..]]
        } else {
            locks.chunks(READ_TOGETHER_MAX).collect()
        };
        for part in parts {
            let (sent, behind) = self
                .read(&counts.freshness, part)
                .await
                .map_err(|error| ReadFailure::Store(work.failed(error)))?;
            is_behind |= !behind.is_empty();
            oldest.get_or_insert(sent);
        }
        let Some(sent) = oldest else { return Ok(()) };
        for scope in scopes {
            scope.set_watched(Some(self.watch));
            scope.note_read(&sent, Revision::MIN);
        }
        work.fresh(sent.at);
        if is_behind { Err(ReadFailure::Again) } else { Ok(()) }
    }

    /// Reads locks when it is their turn. Returns when that was sent, and those whose answer was of
    /// no use.
    async fn read<'a>(
        &self,
        kind: &AtomicU64,
        locks: &[&'a Arc<TrackedLock>],
    ) -> Result<(Sent, Vec<&'a Arc<TrackedLock>>), StoreError> {
        let _turn = self.turn.lock().await;
        count(kind);
        let sent = self.work.common().trust.sending();
        let specs: Vec<&LockSpec> = locks.iter().map(|lock| lock.spec()).collect();
        let answers = self.work.store.read(&specs).await?;
        if answers.len() != locks.len() {
            return Err(StoreError::Unavailable("it answered for another number of locks".into()));
        }
        self.work.answered(sent.at, &[]);
        let mut behind = Vec::new();
        if sent.era != self.work.common().trust.era() {
            return Ok((sent, locks.to_vec())); // All that was learnt has been forgotten meanwhile.
        }
        for (lock, answer) in locks.iter().zip(answers) {
            let problem = answer.problem.map(|problem| Arc::new(Box::from(&*problem)));
            if !lock.sighted(&sent, answer.sighting, problem) {
                behind.push(*lock);
            }
        }
        Ok((sent, behind))
    }

    async fn follow_hints(&self) {
        let registry = &self.work.common().registry;
        loop {
            match self.work.store.hint().await {
                Hint::Lock(key) => {
                    registry.find(key.as_str()).iter().for_each(|lock| lock.want_read())
                }
                Hint::All => registry.all().iter().for_each(|lock| lock.want_read()),
            }
        }
    }
}
