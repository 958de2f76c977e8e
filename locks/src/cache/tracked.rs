//! One lock, as all routes, connections and threads share it.

mod at_gate;
pub(crate) mod description;

use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fencepost_policy::{Gate, KeyTrack, Layout, LockKey, Revision, Snapshot, Walk};
use tokio::time::{Instant, sleep_until};

use super::cache_view::{CacheView, Published, ScopeClock};
use super::common::{Command, Common};
use super::knowledge::{Applied, Coverage, Knowledge};
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
/// Whoever has a request at the worker holds this: a lock that somebody holds is never forgotten, nor doubled.
///
/// What every request looks at comes first, in a run of four cache lines, the gate's in the last two: among 100,000 locks each of them has
/// to be fetched from memory. That saves 0.14 µs of the 0.9 that it takes then.
#[derive(Debug)]
#[repr(C)]
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
}

/// What changes in one step with the gate: nobody judges by news that the gate has not learnt.
#[derive(Debug, Default)]
#[repr(C)]
struct Inner {
    gate: Gate,
    knowledge: Knowledge,
    told: Told,
}

impl Inner {
    /// Has the gate learn what is known, be it on the way to what is known in the end.
    fn teach(&mut self, spec: &LockSpec, common: &Common, snapshot: &Snapshot) {
        self.gate.learn(snapshot);
        self.told.tell(spec, snapshot, &common.tenures);
    }

    /// Once it is known that a tenure has ended, nothing of it goes out, though it may take a look at many writes to know who
    /// holds the lock now, and since when.
    fn end_tenure_if_shown<'s>(&mut self, spec: &LockSpec, era: Era, shown: impl IntoIterator<Item = &'s KeyValue>) {
        if self.knowledge.is_ended_by(spec, era, shown) {
            self.gate.end_present();
        }
    }

    /// The same, by what a watch tells.
    fn end_tenure_if_told(&mut self, spec: &LockSpec, era: Era, events: &[Event]) {
        if self.knowledge.is_ended_by_events(spec, era, events) {
            self.gate.end_present();
        }
    }
}

impl TrackedLock {
    /// How many bytes come before its gate and the mutex around it.
    #[cfg(test)]
    pub(crate) const BEFORE_GATE: usize = std::mem::offset_of!(TrackedLock, inner);

    pub(crate) fn new(spec: LockSpec, scope: Option<Arc<Scope>>, common: Arc<Common>) -> TrackedLock {
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
        let clock = self.scope.as_ref().map(|scope| scope.clock());
        CacheView::new(glance, clock, self.published())
    }

    /// Waits until something is known that was read after `arrived`, by asking the store if need be.
    ///
    /// Reads are shared: one runs, one is next, whoever asks is served by the first that is sent after it asked. A request
    /// that was confirmed and then waited for longer than `max_age` asks again, with the present as `arrived`.
    ///
    /// # Cancel safety
    /// Dropping the future at any point costs at most a read that nobody waits for.
    ///
    /// # Errors
    /// [`Unconfirmed`] as soon as that read has failed, or at the deadline.
    pub async fn confirm(&self, arrived: Instant, deadline: Instant) -> Result<(), Unconfirmed> {
        self.confirm_unless(arrived, deadline, || false).await
    }

    /// Works like [`TrackedLock::confirm`], and also ends once cached news admits because reads fail, if `is_decided` says that this settles
    /// the request.
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
                // The read succeeded, yet this is not known: what it showed was dropped, since the store had gone back.
                return if done() { Ok(()) } else { Err(outcome.err().unwrap_or(Unconfirmed::Regressed)) };
            }
            // What came in time counts, though this is late to look at it. Looking again takes less time than a change.
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

    /// Whether it has been read.
    pub fn is_known(&self) -> bool {
        self.published().snapshot.is_some()
    }

    /// Whether it has been read while a watch of it was up.
    pub(crate) fn was_watched(&self) -> bool {
        self.published().dated_in.is_some()
    }

    /// Takes note whether a watch of that number watches this lock, which no scope does. Whether none did before.
    pub(crate) fn set_watched(&self, number: Option<WatchNumber>) -> bool {
        let mut inner = self.inner();
        match number {
            Some(number) => inner.knowledge.begin_watch(number),
            None => {
                let is_watched = inner.knowledge.is_watched();
                drop(inner);
                if is_watched {
                    self.unwatch();
                }
                false
            }
        }
    }

    /// Nothing watches it: what is known admits nobody unless it is confirmed.
    pub(crate) fn unwatch(&self) {
        self.learn(|inner, _| inner.knowledge.unwatch());
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

    /// Has it read, soon, without waiting for that, if what is known of it is as old as `max_age`. However many want that, one read of a lock
    /// is under way at a time.
    ///
    /// Whoever goes on by news of it asks for this while they are too old: what dates all locks of a template does not speak for one that
    /// was read before it began to. Young news that nobody believes get no better by being asked for again.
    pub fn want_news(&self, max_age: Duration) {
        if self.view().age(Instant::now()).is_none_or(|age| age >= max_age) {
            self.want_read();
        }
    }

    /// Has it read, soon, without waiting for that.
    pub(crate) fn want_read(&self) {
        self.set_on(self.slots.ask());
    }

    /// Sets a task on the slots, if there is none.
    fn set_on(&self, (ticket, start): (Ticket, bool)) -> Ticket {
        if start && let Some(lock) = self.common.registry.find(self.key().as_str()) {
            self.common.send(Command::Read(lock));
        }
        ticket
    }

    /// Applies a quorum read of the whole lock. If it returns a walk, that has to be gone before the read is of use.
    pub(crate) fn read(&self, sent: &Sent, revision: Revision, keys: &[KeyValue]) -> Option<Walk> {
        self.learn(|inner, clock| {
            inner.end_tenure_if_shown(&self.spec, sent.era, keys);
            inner.knowledge.read(&self.spec, sent, revision, keys, clock)
        })
    }

    /// Applies what a walk has shown.
    pub(crate) fn walked(&self, sent: &Sent, track: KeyTrack) {
        self.learn(|inner, clock| inner.knowledge.walked(sent, track, clock));
    }

    pub(crate) fn read_in_scope(&self, sent: &Sent, revision: Revision, stored: &KeyValue) -> Applied {
        self.learn(|inner, clock| {
            inner.end_tenure_if_shown(&self.spec, sent.era, [stored]);
            inner.knowledge.read_in_scope(&self.spec, sent, revision, stored, clock)
        })
    }

    /// See [`Knowledge::survives`].
    pub(crate) fn survives<'a>(
        &self,
        since: Revision,
        through: Revision,
        shown: impl Iterator<Item = &'a KeyValue>,
    ) -> bool {
        self.learn(|inner, _| inner.knowledge.survives(since, through, shown))
    }

    /// The revision it was last learnt for by itself.
    pub(crate) fn as_of(&self) -> Option<Revision> {
        self.published().snapshot.as_ref().map(|snapshot| snapshot.as_of)
    }

    /// Applies events of a watch, in order; all of one revision are in here together.
    pub(crate) fn events(&self, era: Era, events: &[Event], coverage: Coverage) -> Applied {
        self.learn(|inner, clock| {
            let mut applied = Applied::Nothing;
            for events in events.chunk_by(|event, next| event.revision() == next.revision()) {
                inner.end_tenure_if_told(&self.spec, era, events);
                match inner.knowledge.events(&self.spec, era, events, coverage, clock) {
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
                    // What comes behind it is missing as well: a read that was sent before may show the one and not the other.
                    Applied::Gap => applied = Applied::Gap,
                }
            }
            applied
        })
    }

    /// Forgets what was learnt in earlier eras; the floor only if the operator said so.
    pub(crate) fn begin_era(&self, era: Era, forget_floor: bool) {
        self.learn(|inner, _| {
            inner.knowledge.enter_era(era);
            if forget_floor {
                inner.gate.forget_floor();
            }
        });
    }

    /// Changes what is known. The gate learns of it before anyone judges by it.
    fn learn<T>(&self, change: impl FnOnce(&mut Inner, Option<&ScopeClock>) -> T) -> T {
        let clock = self.scope.as_ref().map(|scope| scope.clock());
        let mut inner = self.inner();
        if let Some(scope) = &self.scope {
            inner.knowledge.set_watched_since(scope.watched_since());
        }
        let result = change(&mut inner, clock.as_ref().and_then(|clock| clock.as_deref()));
        let snapshot = inner.knowledge.snapshot();
        if let Some(snapshot) = &snapshot {
            inner.teach(&self.spec, &self.common, snapshot);
        }
        let published = inner.knowledge.published(snapshot);
        let before = self.published.swap(Arc::new(published));
        let problem = self.published().problem.clone();
        let has_lost = inner.knowledge.take_loss();
        drop(inner);
        if let Some(problem) = problem.filter(|problem| before.problem.as_ref() != Some(problem)) {
            tracing::warn!(source = %self.common.name, lock = %self.spec.key, "{problem}");
        }
        if has_lost {
            let clock = clock.as_ref().and_then(|clock| clock.as_deref());
            self.tell_of_loss(clock.is_some_and(|clock| clock.covers(before.era, before.settled_since)));
        }
        if let Some(scope) = &self.scope {
            scope.note(&self.common.registry, &self.spec.key);
        }
        if before.snapshot.is_none() && self.is_known() && !self.is_templated() {
            self.common.watched_changed.notify_one(); // From now on it can be watched.
        }
        self.gate_changes.notify_waiters();
        self.slots.news();
        result
    }

    /// The watch has lost something of this lock. If that was covered by the scope's clock, others may be that lost something, too; a window
    /// that was begun since says nothing of those, and is not forgotten once for each.
    fn tell_of_loss(&self, was_covered: bool) {
        tracing::warn!(
            source = %self.common.name,
            lock = %self.spec.key,
            "a read contradicts what was known: the lock store has lost an event (etcd before 3.4.36 and 3.5.18 is known to), or was restored \
             from a backup; the read counts"
        );
        self.scope.iter().filter(|_| was_covered).for_each(|scope| scope.forget());
    }

    /// What is known of it by itself, whatever is known of its scope.
    pub(crate) fn published(&self) -> Guard<Arc<Published>> {
        self.published.load()
    }

    /// What a panic left behind will do for whoever leaves; nobody enters by it.
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
