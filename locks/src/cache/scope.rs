//! All locks below one literal prefix, kept fresh together.
//!
//! The cost of freshness must not grow with the number of locks. So a scope has one watch and one windowed read
//! ([`super::window`]), and a clock that dates all its locks at once. The clock says: *every lock that is settled and was
//! known as of `base` or later, in the clock's history of the store, is, up to `reach`, what is published of it*. It holds by
//! induction. When the clock moves to a verified read at `R`, each such lock was right up to the last verified revision `V`, and then one of these:
//!
//! - Keys of it were returned: they were merged as a read at `R`, or the lock is unsettled until it is read by itself.
//! - A key of it that existed at `V` was deleted: the watch has named it, or the read had not been verified; and what the watch
//!   names is applied to the lock in the same step as it is logged. If it could not be applied, the lock is unsettled.
//! - A key of it was created after `V`, and is known from an event or a read of the lock's own between `V` and `R`, and was not
//!   returned: it is gone again, and no equation tells of it. The lock is unsettled ([`Scope::verify`] looks for those).
//! - None of these: it did not change, or by keys only that came and went unseen. Their events and reads, should they
//!   come later, are below the clock's reach and are not applied; and a lock that is first learnt for a revision
//!   that the clock has passed is unsettled.
//!
//! So it is when it moves to a probe, by whose revision the watch has named everything: then each of the locks was told of every event,
//! or is unsettled. Events before its first read was sent are part of what that read shows.
//!
//! The clock is published after all of that, and whoever looks at a lock loads the clock first: so it never speaks for
//! something older than what it was made of. A lock is in the registry before its first read is sent. Events that pass it by
//! until the answer is here make it unsettled if they are newer than the answer, and it is read again. A windowed read may have
//! been sent before, and so may show what the watch has named the end of when no lock was there to be told: nothing is first
//! learnt from it.
//!
//! A new window (the watch lost something, or is down for too long) moves `base`: what was known before it is
//! dated by its own reads only, and no event is applied to it before it has been read by itself. The same goes
//! for a store that went back, where a new era begins.
//!
//! So a lock may cease to be covered at any time, and keeps the date of its own reads then. A read that the clock has passed shows
//! nothing new, but gives the lock a date; in the same step the lock takes over what the clock says of it, and is known up to
//! there by itself. Otherwise it would be dated later than it is known: a mutex's holder that was told a revision in
//! between would be refused for good as `ahead-of-store`, by a read that should have confirmed it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fencepost_policy::{Layout, LockKey, Revision};
use tokio::sync::Notify;

use super::cache_view::ScopeClock;
use super::grouped::grouped;
use super::knowledge::{Applied, Coverage};
use super::learnt::Learnt;
use super::record::RecordFormat;
use super::registry::Registry;
use super::tracked::TrackedLock;
use super::trust::{Era, Sent, WatchNumber};
use super::window::{Probed, Shown, Window};
use crate::store::{Event, KeyRange, KeyValue, RangeAnswer, RangeRead};
use crate::sync::{ArcSwapOption, Guard};

#[derive(Debug)]
pub(crate) struct Scope {
    range: KeyRange,
    format: Arc<RecordFormat>,
    clock: ArcSwapOption<ScopeClock>,
    /// Only the driver takes it.
    window: Mutex<Window>,
    learnt: Mutex<Learnt>,
    progressed: Notify,
    look_again: Notify,
    rests: AtomicBool,
    /// The first of the watches that have been up of this scope without a break; 0 if it is not watched. Only the driver uses it.
    watched_since: AtomicU32,
}

/// A windowed read that is not verified yet.
#[derive(Debug)]
pub(crate) struct Unverified {
    sent: Sent,
    shown: Shown,
    /// What it returned, in the order of the keys.
    keys: Vec<KeyValue>,
}

impl Scope {
    pub(crate) fn new(prefix: &str, format: Arc<RecordFormat>) -> Scope {
        Scope {
            range: KeyRange::Prefix(prefix.as_bytes().into()),
            format,
            clock: ArcSwapOption::empty(),
            window: Mutex::default(),
            learnt: Mutex::default(),
            progressed: Notify::new(),
            look_again: Notify::new(),
            rests: AtomicBool::new(false),
            watched_since: AtomicU32::new(0),
        }
    }

    pub(crate) fn is_of(&self, prefix: &str, format: &RecordFormat) -> bool {
        self.range == KeyRange::Prefix(prefix.as_bytes().into()) && *self.format == *format
    }

    pub(crate) fn range(&self) -> &KeyRange {
        &self.range
    }

    pub(crate) fn clock(&self) -> Guard<Option<Arc<ScopeClock>>> {
        self.clock.load()
    }

    /// Ends when something has happened since the last call that may verify a read.
    pub(crate) async fn progressed(&self) {
        self.progressed.notified().await;
    }

    /// Ends when there is something to read at once, since the last call: a window that is begun anew, or one that is watched from now on.
    pub(crate) async fn look_again(&self) {
        self.look_again.notified().await;
    }

    pub(crate) fn next_read(&self) -> RangeRead {
        self.window().next_read(&self.range)
    }

    /// What tells at the least cost up to where the scope has to be known; `None` as long as there is no window.
    pub(crate) fn probe(&self) -> Option<RangeRead> {
        self.window().probe(&self.range)
    }

    /// Whether the watch has named all that happened up to the revision that a probe has shown; if so, the clock moves to it.
    ///
    /// The answer is trusted, and of the present era.
    pub(crate) fn verify_probe(&self, locks: &Registry<TrackedLock>, sent: &Sent, revision: Revision) -> Probed {
        let probed = self.window().verify_probe(revision);
        if probed == Probed::Whole {
            let is_later = |lock: Arc<TrackedLock>| lock.as_of() > Some(revision);
            self.learnt().retain(|key| locks.find(key.as_str()).is_some_and(is_later));
            self.move_clock(revision, sent);
        }
        probed
    }

    /// The first of the watches that have been up of this scope without a break.
    pub(crate) fn watched_since(&self) -> Option<WatchNumber> {
        WatchNumber::new(self.watched_since.load(Ordering::Relaxed))
    }

    /// Whether it has been read while a watch of it was up.
    pub(crate) fn was_watched(&self) -> bool {
        self.clock.load().as_deref().is_some_and(|clock| clock.dated_in.is_some())
    }

    /// A watch of that number is up of this scope; `is_first` if none was up of anything before. What is read from now on counts as watched.
    pub(crate) fn watch_caught_up(&self, number: WatchNumber, is_first: bool) {
        let begins = self.watched_since().is_none();
        if begins {
            self.watched_since.store(number.get(), Ordering::Relaxed);
        }
        if begins || is_first {
            self.look_again.notify_one();
        }
    }

    /// Nothing watches it: what is known of its locks admits nobody unless it is confirmed.
    pub(crate) fn unwatch(self: &Arc<Self>, locks: &Registry<TrackedLock>) {
        if self.watched_since.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(clock) = self.clock.load().as_deref() {
            self.clock.store(Some(Arc::new(ScopeClock { dated_in: None, ..*clock })));
        }
        locks.all().iter().filter(|lock| lock.is_in(self)).for_each(|lock| lock.unwatch());
    }

    /// Whether it has too many keys to be looked through for what has changed, so that nothing dates its locks but their own reads.
    pub(crate) fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    pub(crate) fn set_rests(&self, rests: bool) {
        self.rests.store(rests, Ordering::Relaxed);
    }

    /// How many keys it has, as of when it was last known whole; `None` as long as there is no window.
    pub(crate) fn keys(&self) -> Option<u64> {
        self.window().keys()
    }

    /// From where the scope has to be watched; `None` as long as there is no window.
    pub(crate) fn watch_from(&self) -> Option<Revision> {
        self.window().watch_from()
    }

    /// Applies the answer of [`Scope::next_read`] to the locks it shows.
    ///
    /// The answer is that of the range, at `revision`; it is trusted, and of the present era.
    pub(crate) fn merge(
        self: &Arc<Self>,
        locks: &Registry<TrackedLock>,
        sent: &Sent,
        revision: Revision,
        answer: RangeAnswer,
    ) -> Unverified {
        for stored in &answer.keys {
            for lock in self.locks_of(locks, &stored.key) {
                if lock.read_in_scope(sent, revision, stored) == Applied::Gap {
                    lock.want_read();
                }
            }
        }
        Unverified { sent: *sent, shown: self.window().shown(revision, &answer), keys: answer.keys }
    }

    /// Whether all that the watch has named verifies that read; if so, the clock moves to it.
    pub(crate) fn verify(&self, locks: &Registry<TrackedLock>, read: &Unverified) -> bool {
        let Some(since) = self.window().verify(&read.shown) else {
            return false;
        };
        self.find_what_came_and_went(locks, since, read);
        self.move_clock(read.shown.revision, &read.sent);
        true
    }

    fn move_clock(&self, reach: Revision, sent: &Sent) {
        if let Some(clock) = self.clock.load().as_deref() {
            let dated_in = clock.dated_in.max(sent.watch_since(self.watched_since()));
            self.clock.store(Some(Arc::new(ScopeClock { reach, dated: sent.at, dated_in, ..*clock })));
        }
    }

    /// Unsettles the locks that are known by a key that was created after `since` and is gone at the read.
    fn find_what_came_and_went(&self, locks: &Registry<TrackedLock>, since: Revision, read: &Unverified) {
        let learnt = self.learnt().take();
        for key in learnt {
            let Some(lock) = locks.find(key.as_str()) else {
                continue;
            };
            let prefix = match lock.range() {
                KeyRange::Key(prefix) | KeyRange::Prefix(prefix) => prefix,
            };
            let from = read.keys.partition_point(|stored| stored.key[..] < prefix[..]);
            let shown = read.keys[from..].iter().take_while(|stored| lock.range().contains(&stored.key));
            if !lock.survives(since, read.shown.revision, shown) {
                lock.want_read();
            }
            if lock.as_of() <= Some(read.shown.revision) {
                self.learnt().remove(&key); // Looking at it was no news of it.
            }
        }
    }

    /// Notes that something was learnt of a lock by itself.
    pub(crate) fn note(&self, locks: &Registry<TrackedLock>, key: &LockKey) {
        self.learnt().note(key, |key| locks.find(key.as_str()).is_some());
    }

    /// Begins a window at that read, and the clock anew.
    pub(crate) fn begin(&self, read: &Unverified) {
        self.window().begin(&read.shown);
        let (revision, Sent { era, at, .. }) = (read.shown.revision, read.sent);
        let dated_in = read.sent.watch_since(self.watched_since());
        let clock = ScopeClock { era, base: revision, reach: revision, dated: at, dated_in };
        self.clock.store(Some(Arc::new(clock)));
    }

    /// Forgets the window, so that the next read begins another one.
    pub(crate) fn forget(&self) {
        self.window().forget();
        self.progressed.notify_one();
        self.look_again.notify_one();
    }

    /// Stops the clock: what it was made of is of an earlier era.
    pub(crate) fn begin_era(&self) {
        self.clock.store(None);
        self.forget();
    }

    /// Applies what the watch has delivered, in order; all events of one revision are in here together.
    pub(crate) fn events(self: &Arc<Self>, locks: &Registry<TrackedLock>, era: Era, events: &[Event]) {
        self.window().deliver(events);
        match self.format.layout {
            Layout::Key => events.chunks(1).for_each(|event| self.apply(locks, era, event)),
            // A queue must not be seen between two events of one transaction.
            Layout::Election | Layout::Mutex => events
                .chunk_by(|event, next| event.revision() == next.revision())
                .for_each(|events| self.apply(locks, era, events)),
        }
        self.progressed.notify_one();
    }

    /// Applies the events of one revision to the locks they touch.
    fn apply(self: &Arc<Self>, locks: &Registry<TrackedLock>, era: Era, events: &[Event]) {
        for (lock, own) in self.touched(locks, events) {
            if lock.events(era, &own, Coverage::Scope) == Applied::Gap {
                lock.want_read();
            }
        }
    }

    /// The locks that events touch, each with its own.
    fn touched(
        self: &Arc<Self>,
        locks: &Registry<TrackedLock>,
        events: &[Event],
    ) -> Vec<(Arc<TrackedLock>, Vec<Event>)> {
        // A lock that comes to be tracked meanwhile may miss some of its own: its first read is not sent yet, and shows them.
        let touched = events.iter().flat_map(|event| {
            let touched = self.locks_of(locks, event.key()).into_iter();
            touched.map(move |lock| (lock, event.clone()))
        });
        grouped(touched, Arc::as_ptr)
    }

    /// The locks of this scope that a key is part of: itself, or those whose queue it may stand in.
    fn locks_of(self: &Arc<Self>, locks: &Registry<TrackedLock>, key: &[u8]) -> Vec<Arc<TrackedLock>> {
        let find = |name: &[u8]| {
            let lock = locks.find(std::str::from_utf8(name).ok()?)?;
            lock.is_in(self).then_some(lock)
        };
        match self.format.layout {
            Layout::Key => find(key).into_iter().collect(),
            Layout::Election | Layout::Mutex => {
                let slashes = key.iter().enumerate().filter(|(_, byte)| **byte == b'/');
                slashes.filter_map(|(at, _)| find(&key[..at])).collect()
            }
        }
    }

    fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.learnt.lock().expect("nothing panics while it notes a key")
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().expect("nothing panics while it looks at the window")
    }
}

impl Unverified {
    pub(crate) fn sent(&self) -> &Sent {
        &self.sent
    }
}
