//! What the tasks of a driver share: the store, what limits their reads, and what they take note
//! of.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fencepost_policy::Revision;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::common::{Common, count};
use super::reading::WALKS_AT_A_TIME;
use super::scope::Scope;
use super::shared::Shared;
use super::tracked::TrackedLock;
use super::trust::{Sent, Standing};
use crate::store::{LockStore, RangeAnswer, RangeRead, StoreError};

/// What the tasks of a driver share.
pub(crate) struct Work<S> {
    pub(crate) store: S,
    pub(crate) shared: Arc<Shared>,
    /// Until when each lock is read by a request of its own.
    alone_until: Cell<Option<Instant>>,
    /// The right to go back through a history.
    pub(crate) walks: Semaphore,
}

/// Why a quorum read is of no use.
#[derive(Debug, Clone)]
pub(crate) enum ReadFailure {
    Store(Arc<StoreError>),
    /// It is behind what was seen, or of an earlier era: read again, at once.
    Again,
    /// The store has gone back.
    Regressed,
}

/// A quorum read that can be believed.
#[derive(Debug)]
pub(crate) struct Believed {
    pub(crate) sent: Sent,
    pub(crate) revision: Revision,
    pub(crate) ranges: Vec<RangeAnswer>,
}

impl<S> Work<S> {
    /// The work of a source over that store.
    pub(crate) fn new(shared: Arc<Shared>, store: S) -> Work<S> {
        Work { store, shared, alone_until: Cell::new(None), walks: Semaphore::new(WALKS_AT_A_TIME) }
    }

    pub(crate) fn common(&self) -> &Arc<Common> {
        &self.shared.common
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.shared.options.jitter_seed)
    }

    /// Has each lock be read by a request of its own, for that long.
    pub(crate) fn read_alone_for(&self, period: Duration) {
        self.alone_until.set(Some(Instant::now() + period));
    }

    /// Whether each lock is read by a request of its own.
    pub(crate) fn reads_alone(&self) -> bool {
        self.alone_until.get().is_some_and(|until| Instant::now() < until)
    }

    /// A watch delivers from now on what happens in these as it happens, and nothing of anything
    /// else.
    ///
    /// Only what is read from now on admits by cached news, so static locks are read at once.
    pub(crate) fn watch_caught_up(&self, locks: &[Arc<TrackedLock>], scopes: &[Arc<Scope>]) {
        let common = self.common();
        if std::mem::take(&mut common.health().is_unwatchable) {
            tracing::info!(source = %common.name, "the lock store is watched again");
        }
        let (number, is_first) = common.trust.watch_caught_up();
        let mut begins = is_first;
        let watched: HashSet<*const Scope> = scopes.iter().map(Arc::as_ptr).collect();
        for scope in self.shared.scopes() {
            let is_watched = watched.contains(&Arc::as_ptr(&scope));
            let before = scope.set_watched(is_watched.then_some(number));
            begins |= is_watched && before.is_none();
            if !is_watched && before.is_some() {
                // What is known of its locks admits nobody unless it is confirmed.
                let all = common.registry.all();
                all.iter()
                    .filter(|lock| lock.is_in(&scope))
                    .for_each(|lock| _ = lock.set_watched(None));
            }
        }
        let watched: HashSet<*const TrackedLock> = locks.iter().map(Arc::as_ptr).collect();
        for lock in self.shared.read_locks().iter().filter(|lock| !lock.is_templated()) {
            begins |= lock.set_watched(watched.contains(&Arc::as_ptr(lock)).then_some(number));
        }
        if begins {
            common.read_now.notify_one();
        }
    }

    /// Takes note that a confirming read has failed. If nothing is watched either, cached news
    /// admits from now on, until a read is answered.
    pub(crate) fn confirm_failed(&self, sent: &Sent, error: &StoreError) {
        // That one lock cannot be read says nothing of the store.
        if error.refused_range().is_none() && self.common().trust.confirm_failed(sent) {
            self.common().reads_fail.notify_waiters();
        }
    }

    /// Takes note of the store's failure, if it is one.
    pub(crate) fn tell(&self, failure: &ReadFailure) {
        match failure {
            ReadFailure::Store(error) => _ = self.failed(Arc::clone(error)),
            ReadFailure::Again | ReadFailure::Regressed => {} // They have been told.
        }
    }

    /// Takes note of a failure; logs the first of its kind in a row.
    pub(crate) fn failed(&self, error: impl Into<Arc<StoreError>>) -> Arc<StoreError> {
        let error = error.into();
        let first = self.common().health().failed(&error);
        if first {
            let source = &self.common().name;
            match error.refused_range() {
                Some(_) => tracing::warn!(%source, %error, "locks cannot be read"),
                None => tracing::warn!(%source, %error, "the lock store fails"),
            }
            self.common().members_due.notify_one();
        }
        error
    }

    /// Takes note that no watch begins. Reads may be answered meanwhile, which ends no row of these.
    pub(crate) fn watch_failed(&self, error: StoreError) {
        // That decides what the next watch leaves out.
        if error.refused_range().is_some() {
            self.failed(error);
            return;
        }
        let error = Arc::new(error);
        let mut health = self.common().health();
        health.last_error = Some(Arc::clone(&error));
        if !std::mem::replace(&mut health.is_unwatchable, true) {
            drop(health);
            tracing::warn!(
                source = %self.common().name,
                %error,
                "the lock store cannot be watched: each request waits for a read until it can"
            );
            self.common().members_due.notify_one();
        }
    }

    /// Takes note of a freshness read.
    pub(crate) fn fresh(&self, sent: Instant) {
        let mut health = self.common().health();
        health.fresh = health.fresh.max(Some(sent));
        drop(health);
        self.shared.has_started(); // It is to be known, though nobody asks before something else comes to be tracked.
    }

    pub(crate) fn answered(&self, sent: Instant, ranges: &[RangeRead]) {
        let (again, may_read_more) = {
            let mut health = self.common().health();
            let denied = health.denied.len();
            (health.answered(sent, ranges), health.denied.len() < denied)
        };
        if may_read_more {
            self.common().watched_changed.notify_one();
        }
        if again {
            tracing::info!(source = %self.common().name, "the lock store answers again");
            self.common().members_due.notify_one();
        }
    }

    /// Logs a regression that this process or an earlier one found before this source was started,
    /// and that nobody has accepted.
    pub(crate) fn tell_inherited_distrust(&self) {
        let Some(through) = self.common().trust.distrusted_through() else { return };
        tracing::warn!(
            source = %self.common().name,
            %through,
            "store-regressed: the lock store went back before this source was started, and nobody has accepted that; nothing is \
             admitted but tenures that begin above the highest revision seen then, until an operator accepts that \
             (the proxy's admin listener: POST /sources/{}/accept-regression)",
            self.common().name,
        );
    }

    /// Another cluster answers than was seen before: it may have been restored as that.
    fn is_another(&self, found: u64, seen: u64) {
        self.common().remember_distrust();
        tracing::error!(
            source = %self.common().name,
            found = %format_args!("{found:x}"),
            seen = %format_args!("{seen:x}"),
            through = self.common().trust.distrusted_through().map(Revision::get),
            "store-regressed: another cluster answers than the one that was seen under this name, as if restored from a backup; nothing \
             is admitted but tenures that begin above the highest revision seen of that, until an operator accepts it \
             (the proxy's admin listener: POST /sources/{}/accept-regression)",
            self.common().name,
        );
    }

    /// Takes note of it and says so once: reads go on, and fail in the same way.
    fn regressed(&self, revision: Revision) {
        let mut health = self.common().health();
        if std::mem::replace(&mut health.regression_told, true) {
            return;
        }
        drop(health);
        // Before anything else is known of the store: by and by it may be seen to have grown
        // beyond, and that is remembered too.
        self.common().remember_distrust();
        tracing::error!(
            source = %self.common().name,
            %revision,
            seen = self.common().trust.max_seen().map(Revision::get),
            "store-regressed: the lock store has gone back, as if restored from a backup; nothing is admitted until a tenure \
             begins above the highest revision seen, or an operator accepts that (the proxy's admin listener: \
             POST /sources/{}/accept-regression)",
            self.common().name,
        );
        self.common().watched_changed.notify_one(); // What is watched now may be another history.
    }

    /// Forgets all that was learnt in earlier eras. Scopes first: no event of the new era follows
    /// what is known.
    fn begin_era(&self, forget_floors: bool) {
        let common = self.common();
        let era = common.trust.era();
        common.health().regression_told = false;
        self.shared.scopes().iter().for_each(|scope| scope.forget());
        common.registry.all().iter().for_each(|lock| lock.begin_era(era, forget_floors));
        common.watched_changed.notify_one();
        common.read_now.notify_one();
    }

    /// Whether there was anything to accept.
    pub(crate) fn accept_regression(&self) -> bool {
        let common = self.common();
        let Some(through) = common.trust.distrusted_through() else {
            return false;
        };
        common.trust.accept(|| {
            common.forget_tenures();
            self.begin_era(true);
        });
        tracing::warn!(source = %common.name, seen = %through, "an operator accepted that the lock store went back; floors start anew");
        true
    }
}

impl<S: LockStore> Work<S> {
    /// The only way to the store's present: every answer is held against what was seen when it was
    /// sent. That the store has failed is for the caller to [tell](Work::tell).
    pub(crate) async fn read(
        &self,
        kind: &AtomicU64,
        ranges: &[RangeRead],
    ) -> Result<Believed, ReadFailure> {
        count(kind);
        let sent = self.common().trust.sending();
        let answer = match self.store.read(ranges).await {
            Ok(answer) if answer.ranges.len() == ranges.len() => answer,
            Ok(_) => {
                let wrong =
                    StoreError::Unavailable("it answered for another number of ranges".into());
                return Err(ReadFailure::Store(wrong.into()));
            }
            Err(error) => return Err(ReadFailure::Store(error.into())),
        };
        match self.common().trust.received(&sent, answer.revision, answer.by) {
            Standing::Trusted => {
                self.answered(sent.at, ranges);
                Ok(Believed { sent, revision: answer.revision, ranges: answer.ranges })
            }
            Standing::Behind => {
                tracing::warn!(
                    source = %self.common().name,
                    revision = %answer.revision,
                    raft_term = answer.by.map(|by| by.term),
                    "a quorum read shows less than was seen before it was sent, or another log; it is not used"
                );
                Err(ReadFailure::Again)
            }
            Standing::Regressed => {
                self.regressed(answer.revision);
                Err(ReadFailure::Regressed)
            }
            Standing::Recovered => {
                tracing::warn!(
                    source = %self.common().name,
                    revision = %answer.revision,
                    "the lock store has grown beyond what it had shown before it went back; tenures that begin from here on are admitted"
                );
                self.begin_era(false);
                Err(ReadFailure::Again)
            }
            Standing::AnotherCluster { found, seen } => {
                self.is_another(found, seen);
                Err(ReadFailure::Again)
            }
            Standing::Outdated => Err(ReadFailure::Again),
        }
    }
}
