//! One lock, as all routes, connections and threads share it.

mod at_gate;
pub(crate) mod description;
mod shared_gate;

use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fencepost_policy::{
    Gate, KeyTrack, Layout, LockKey, Revision, Sighting, Snapshot, Walk, Worth,
};
use tokio::time::{Instant, sleep_until};

use super::cache_view::{CacheView, Problem, Published};
use super::common::Common;
use super::knowledge::{Applied, Knowledge};
use super::queue::Queue;
use super::record::{LockSpec, RecordFormat};
use super::registry::Registered;
use super::scope::Scope;
use super::slots::{Slots, Ticket, Unconfirmed};
use super::tenures::Told;
use super::trust::{Era, Sent, WatchNumber, WatchState};
use crate::store::{Event, KeyRange, KeyValue};
use crate::sync::{ArcSwap, Guard, Mutex, MutexGuard, Notify};

/// A lock: what is known of it, and its gate. One per lock key and source.
///
/// A request at the worker holds this: a lock that is held is never forgotten, nor doubled.
#[derive(Debug)]
pub struct TrackedLock {
    published: ArcSwap<Published>,
    scope: Option<Arc<Scope>>,
    common: Arc<Common>,
    spec: LockSpec,
    queue: Queue,
    gate_changes: Notify,
    inner: Mutex<Inner>,
    slots: Slots,
    range: KeyRange,
    /// Whether the group's driver is about to look at it.
    asks: AtomicBool,
}

/// What changes in one step with the gate: nobody judges by news that the gate has not learnt.
#[derive(Debug, Default)]
struct Inner {
    gate: Gate,
    knowledge: Knowledge,
    told: Told,
}

impl Inner {
    /// Has the gate learn a snapshot, which may be an intermediate one.
    fn teach(&mut self, spec: &LockSpec, common: &Common, snapshot: &Snapshot) {
        self.gate.learn(snapshot);
        self.told.tell(spec, snapshot, &common.tenures);
    }

    /// Closes the gate to the present tenure if it is known to have ended. It may take many reads
    /// to know who holds the lock now, and since when.
    fn end_tenure_if(&mut self, has_ended: bool) {
        if has_ended {
            self.gate.end_present();
        }
    }
}

impl TrackedLock {
    pub(crate) fn new(
        spec: LockSpec,
        scope: Option<Arc<Scope>>,
        common: Arc<Common>,
    ) -> TrackedLock {
        let gate = common.new_gate(&spec.key, spec.format.layout);
        TrackedLock {
            range: spec.range(),
            spec,
            scope,
            common,
            published: ArcSwap::default(),
            slots: Slots::new(),
            inner: Mutex::new(Inner { gate, ..Inner::default() }),
            gate_changes: Notify::new(),
            queue: Queue::default(),
            asks: AtomicBool::new(false),
        }
    }

    /// Its key.
    pub fn key(&self) -> &LockKey {
        &self.spec.key
    }

    /// The name of its source.
    pub fn source(&self) -> &str {
        &self.common.name
    }

    /// How its record is laid out.
    pub fn layout(&self) -> Layout {
        self.spec.format.layout
    }

    /// How its record is read.
    pub fn format(&self) -> &RecordFormat {
        &self.spec.format
    }

    /// One look at what is known of it. Allocates nothing and waits for nobody.
    pub fn view(&self) -> CacheView {
        let glance = self.common.trust.glance();
        CacheView::new(glance, self.published())
    }

    /// Waits for news that was read after `arrived`, and asks the store if need be.
    ///
    /// Reads are shared: one runs and one is next. Each request is served by the first read that is
    /// sent after the request asked. A request that was confirmed and then waited for longer than
    /// `max_age` asks again, with the present as `arrived`.
    ///
    /// # Cancel safety
    /// Dropping the future at any point costs at most a read that nobody waits for.
    ///
    /// # Errors
    /// [`Unconfirmed`] as soon as that read has failed, or at the deadline.
    pub async fn confirm(&self, arrived: Instant, deadline: Instant) -> Result<(), Unconfirmed> {
        self.confirm_unless(arrived, deadline, || false).await
    }

    /// Works like [`TrackedLock::confirm`], and also ends once cached news admits because reads
    /// fail, if `is_decided` says that this settles the request.
    ///
    /// # Cancel safety
    /// That of [`TrackedLock::confirm`].
    ///
    /// # Errors
    /// Those of [`TrackedLock::confirm`].
    pub async fn confirm_unless(
        &self,
        arrived: Instant,
        deadline: Instant,
        is_decided: impl Fn() -> bool,
    ) -> Result<(), Unconfirmed> {
        let dated = || self.view().dated().is_some_and(|dated| dated >= arrived);
        let reads_fail = || self.common.trust.glance().watch == WatchState::DownReadsFail;
        self.wait(|| dated() || reads_fail() && is_decided(), Slots::ask, deadline).await
    }

    /// Waits until it has been read for the first time.
    pub(crate) async fn loaded(&self, deadline: Instant) -> Result<(), Unconfirmed> {
        self.wait(|| self.is_known(), Slots::join, deadline).await
    }

    async fn wait(
        &self,
        done: impl Fn() -> bool,
        ask: impl Fn(&Slots) -> (Ticket, bool),
        deadline: Instant,
    ) -> Result<(), Unconfirmed> {
        let mut asked = None;
        loop {
            let mut changed = pin!(self.slots.changes().notified());
            changed.as_mut().enable();
            let mut reads_fail = pin!(self.common.reads_fail.notified());
            reads_fail.as_mut().enable();
            if done() {
                return Ok(());
            }
            let ticket = *asked.get_or_insert_with(|| self.set_on(ask(&self.slots)));
            if let Some(outcome) = self.slots.outcome(ticket) {
                // The read succeeded, yet this is not known: what it showed was dropped, since the
                // store had gone back.
                return if done() {
                    Ok(())
                } else {
                    Err(outcome.err().unwrap_or(Unconfirmed::Regressed))
                };
            }
            // What came in time counts, though this is late to look at it. Looking again takes less
            // time than a change.
            tokio::select! {
                biased;
                () = changed => {}
                () = reads_fail => {}
                () = self.common.stopped() => return Err(Unconfirmed::Stopped),
                () = sleep_until(deadline) => return Err(Unconfirmed::Deadline),
            }
        }
    }

    pub(crate) fn spec(&self) -> &LockSpec {
        &self.spec
    }

    pub(crate) fn range(&self) -> &KeyRange {
        &self.range
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(crate) fn is_in(&self, scope: &Arc<Scope>) -> bool {
        self.scope.as_ref().is_some_and(|own| Arc::ptr_eq(own, scope))
    }

    pub(crate) fn is_templated(&self) -> bool {
        self.scope.is_some()
    }

    /// Whether a read has shown it, or that it is too large: to wait for more is no use.
    pub fn is_answered(&self) -> bool {
        self.is_known() || self.common.health().has_too_large(&self.range)
    }

    /// Whether it has been read.
    pub fn is_known(&self) -> bool {
        self.published().snapshot.is_some()
    }

    /// Whether it has been read while a watch of it was up.
    pub(crate) fn was_watched(&self) -> bool {
        self.published().dated_in.is_some()
    }

    /// Notes which watch is up of this lock now, if any is. Returns whether none was before.
    pub(crate) fn set_watched(&self, number: Option<WatchNumber>) -> bool {
        let before = self.learn(|inner| inner.knowledge.set_watched(number));
        before.is_none() && number.is_some()
    }

    /// Whether the store has a record of it.
    pub(crate) fn exists(&self) -> bool {
        self.published().exists
    }

    /// Whether it is one of a template's that has no record, as far as we know.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_templated() && !self.exists()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.inner().knowledge.is_settled()
    }

    /// Has it read, soon, without waiting for that, if what is known of it is as old as `max_age`.
    /// One read of a lock is under way at a time, however many ask.
    ///
    /// Young news that nobody believes gets no better by another read.
    pub fn want_news(&self, max_age: Duration) {
        if self.view().age(Instant::now()).is_none_or(|age| age >= max_age) {
            let (_, start) = self.slots.join();
            if start && let Some(lock) = self.common.registry.find(self.key().as_str()) {
                self.common.queue_refresh(lock);
            }
        }
    }

    /// For how long what is under way may go on by what is known, until it looks again; `None` if
    /// that is as old as `max_age`, or is not believed. Has the lock read in time.
    pub fn good_for(&self, max_age: Duration, now: Instant) -> Option<Duration> {
        self.want_news(max_age / 2);
        let left = self.view().good_for(max_age, now)?;
        Some(left.min((left / 2).max(max_age / 10)))
    }

    /// Has it read, soon, without waiting for that.
    pub(crate) fn want_read(&self) {
        self.set_on(self.slots.ask());
    }

    /// Has the driver serve the slots, unless it does already.
    fn set_on(&self, (ticket, start): (Ticket, bool)) -> Ticket {
        if start && let Some(lock) = self.common.registry.find(self.key().as_str()) {
            self.common.queue_read(lock);
        }
        ticket
    }

    /// Applies a quorum read of the whole lock. If it returns a walk, that has to be gone before
    /// the read is of use.
    pub(crate) fn read(&self, sent: &Sent, revision: Revision, keys: &[KeyValue]) -> Option<Walk> {
        self.learn(|inner| {
            inner.end_tenure_if(inner.knowledge.is_ended_by(&self.spec, sent.era, keys));
            inner.knowledge.read(&self.spec, sent, revision, keys)
        })
    }

    /// Applies what a walk has shown.
    pub(crate) fn walked(&self, sent: &Sent, track: KeyTrack) {
        self.learn(|inner| inner.knowledge.walked(sent, track));
    }

    /// Applies what a read shows of a record that names its own tenure. Says whether it was of use.
    pub(crate) fn sighted(
        &self,
        sent: &Sent,
        sighting: Sighting,
        problem: Option<Problem>,
    ) -> bool {
        let let_in = || self.common.let_in_before(self.key(), self.layout());
        let trust = &self.common.trust;
        let worth = self.learn(|inner| {
            let worth = inner.knowledge.sighted(sent, let_in, sighting, problem);
            // Before anybody is refused by it.
            match worth {
                Worth::Known => {}
                Worth::Behind => trust.lock_was_behind(),
                Worth::WentBack { through } => trust.lock_went_back(through),
            }
            worth
        });
        if let Worth::WentBack { through } = worth {
            tracing::error!(
                source = %self.common.name,
                lock = %self.spec.key,
                %through,
                "store-regressed: the record of a lock has gone back, as if the store had lost its newest writes or was restored from a \
                 backup; nothing is admitted under this lock until a tenure begins above the highest revision seen, or an operator \
                 accepts that (the proxy's admin listener: POST /sources/{}/accept-regression)",
                self.common.name,
            );
        }
        worth != Worth::Behind
    }

    /// The revision as of which it is known.
    pub(crate) fn as_of(&self) -> Option<Revision> {
        self.published().snapshot.as_ref().and_then(|snapshot| snapshot.as_of)
    }

    /// Applies events of a watch, in order; all of one revision are in here together.
    pub(crate) fn events(&self, era: Era, events: &[Event]) -> Applied {
        let base = self.scope.as_ref().map(|scope| scope.base().unwrap_or(Revision::MAX));
        self.learn(|inner| {
            let mut applied = Applied::Nothing;
            for events in events.chunk_by(|event, next| event.revision() == next.revision()) {
                inner.end_tenure_if(inner.knowledge.is_ended_by_events(&self.spec, era, events));
                match inner.knowledge.events(&self.spec, era, events, base) {
                    Applied::Nothing => {}
                    Applied::Changed => {
                        applied = Applied::Changed;
                        // Tenures that came and went within one message raise the floor too.
                        inner
                            .knowledge
                            .snapshot()
                            .iter()
                            .for_each(|snapshot| inner.teach(&self.spec, &self.common, snapshot));
                    }
                    // What comes behind it is missing as well: a read that was sent before may show
                    // the one and not the other.
                    Applied::Gap => applied = Applied::Gap,
                }
            }
            applied
        })
    }

    /// Forgets what was learnt in earlier eras; the floor only if the operator said so.
    pub(crate) fn begin_era(&self, era: Era, forget_floor: bool) {
        self.learn(|inner| {
            inner.knowledge.enter_era(era);
            if forget_floor {
                inner.gate.forget_floor();
            }
        });
    }

    /// Changes what is known. The gate learns of it before anyone judges by it.
    fn learn<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner();
        if let Some(scope) = &self.scope {
            inner.knowledge.set_watched(scope.watched_since());
        }
        let result = change(&mut inner);
        let snapshot = inner.knowledge.snapshot();
        if let Some(snapshot) = &snapshot {
            inner.teach(&self.spec, &self.common, snapshot);
        }
        let published = Arc::new(inner.knowledge.published(snapshot));
        let before = self.published.swap(Arc::clone(&published));
        let has_lost = inner.knowledge.take_loss();
        drop(inner);
        if let Some(problem) =
            published.problem.as_ref().filter(|problem| before.problem.as_ref() != Some(problem))
        {
            tracing::warn!(source = %self.common.name, lock = %self.spec.key, "{problem}");
        }
        if has_lost {
            tracing::warn!(
                source = %self.common.name,
                lock = %self.spec.key,
                "a read contradicts what was known: the lock store has lost an event (etcd before 3.4.36 and 3.5.18 is known to), or was \
                 restored from a backup; the read counts"
            );
        }
        if before.snapshot.is_none() && published.snapshot.is_some() && !self.is_templated() {
            self.common.watched_changed.notify_one(); // From now on it can be watched.
        }
        self.gate_changes.notify_waiters();
        self.slots.news();
        result
    }

    /// What is known of it.
    pub(crate) fn published(&self) -> Guard<Arc<Published>> {
        self.published.load()
    }

    /// Ignores the poison of a panic: requests can still leave with what it left behind, but none
    /// enters.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered for TrackedLock {
    fn spec(&self) -> &LockSpec {
        &self.spec
    }
}

impl Drop for TrackedLock {
    fn drop(&mut self) {
        self.common.registry.forget(self);
    }
}
