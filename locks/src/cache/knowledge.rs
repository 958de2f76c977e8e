//! What reads and events of one lock add up to.

mod track;

use std::collections::HashMap;

use fencepost_policy::{KeyTrack, Layout, QueueTrack, Reading, Revision, Snapshot, Walk};
use tokio::time::Instant;

use self::track::Track;
use super::cache_view::{Problem, Published, ScopeClock};
use super::record::{LockSpec, contender};
use super::trust::{Era, Sent, WatchNumber};
use crate::store::{Event, KeyValue};

/// What is known of a lock.
///
/// - The track is exact as of its revision, and only rises (`no-step-back`) within an era.
/// - `missed` is the highest revision at which something is known to have happened that could not be applied. While it is
///   above the track, the track is not *settled*: it is still exact for its own revision, and dated by its own reads, but
///   nothing that happens later may be built upon it (`no-bridge`), and no scope's clock speaks for it.
/// - A read is truth, what a watch brings is not: a read that contradicts the track ends it, however new the track seems (`read-is-truth`).
/// - The store had not gone beyond the track when the read was sent that it is dated by. A refusal by what a confirming read
///   did not show leans on that (`final-refusal`), whether or not a clock covers the lock by then.
#[derive(Debug, Default)]
pub(crate) struct Knowledge {
    era: Era,
    track: Option<Track>,
    exists: bool,
    problem: Option<Problem>,
    dated: Option<Instant>,
    missed: Option<Revision>,
    /// The newest read that the track is built on; `None` if a clock does not speak for it.
    read_at: Option<Revision>,
    /// Whether a read has contradicted the track, and nobody was told yet.
    has_lost: bool,
    /// The first of the watches that have been up of this lock without a break; `None` if it is not watched.
    watched_since: Option<WatchNumber>,
    dated_in: Option<WatchNumber>,
}

/// Which events are sure to have been delivered before those at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Coverage {
    /// All since the lock was last read: its own range is watched.
    Lock,
    /// All since the base of its scope.
    Scope,
}

/// What became of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applied {
    /// They were known, or nothing is known yet that they could be applied to.
    Nothing,
    /// They are part of what is known now.
    Changed,
    /// Something before them is missing: read the lock.
    Gap,
}

impl Knowledge {
    /// Drops what was learnt in an earlier era.
    pub(crate) fn enter_era(&mut self, era: Era) {
        if self.era != era {
            *self = Knowledge { era, watched_since: self.watched_since, ..Knowledge::default() };
        }
    }

    pub(crate) fn as_of(&self) -> Option<Revision> {
        self.track.as_ref().map(Track::as_of)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.track.is_some() && self.missed <= self.as_of()
    }

    /// See [`Published::settled_since`].
    fn settled_since(&self) -> Option<Revision> {
        self.read_at.filter(|_| self.is_settled())
    }

    /// Whether a read has contradicted what the watch had brought, since the last call.
    pub(crate) fn take_loss(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.track.as_ref().map(Track::snapshot)
    }

    pub(crate) fn published(&self, snapshot: Option<Snapshot>) -> Published {
        Published {
            snapshot,
            dated: self.dated,
            settled_since: self.settled_since(),
            exists: self.exists,
            problem: self.problem.clone(),
            dated_in: self.dated_in,
            era: self.era,
        }
    }

    /// A watch of that number watches the lock. Whether none did before: then older reads do not count as watched.
    pub(crate) fn begin_watch(&mut self, number: WatchNumber) -> bool {
        let begins = self.watched_since.is_none();
        self.watched_since.get_or_insert(number);
        begins
    }

    /// Copies from the scope of the lock since when it is watched.
    pub(crate) fn set_watched_since(&mut self, since: Option<WatchNumber>) {
        self.watched_since = since;
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched_since.is_some()
    }

    /// Nothing watches the lock.
    pub(crate) fn unwatch(&mut self) {
        (self.watched_since, self.dated_in) = (None, None);
    }

    /// The revision up to which the lock is known, by what is known of its scope too.
    fn reach(&self, clock: Option<&ScopeClock>) -> Option<Revision> {
        let as_of = self.as_of()?;
        let covering = clock.filter(|clock| clock.covers(self.era, self.settled_since()));
        Some(covering.map_or(as_of, |clock| as_of.max(clock.reach)))
    }

    /// Whether the lock is known up to there, be it on the word of a clock. That is kept then: what is dated by it is
    /// looked at when the clock may cover the lock no longer.
    fn knows_through(&mut self, revision: Revision, clock: Option<&ScopeClock>) -> bool {
        let Some(reach) = self.reach(clock).filter(|reach| revision <= *reach) else {
            return false;
        };
        self.track = self.track.take().map(|track| track.reaching(reach));
        true
    }

    /// Whether the tenure that is known has ended, by what a later read or event shows of its key.
    pub(crate) fn is_ended_by<'s>(
        &self,
        lock: &LockSpec,
        era: Era,
        shown: impl IntoIterator<Item = &'s KeyValue>,
    ) -> bool {
        let Some(Track::Key(track)) = self.track.as_ref().filter(|_| self.era == era) else {
            return false;
        };
        shown.into_iter().any(|stored| track.is_ended_by(&lock.write(stored)))
    }

    /// The same, by later events.
    pub(crate) fn is_ended_by_events(&self, lock: &LockSpec, era: Era, events: &[Event]) -> bool {
        let track = self.track.as_ref().filter(|_| self.era == era);
        track.is_some_and(|track| events.iter().any(|event| track.is_ended_by(lock, event)))
    }

    /// Applies a quorum read of the whole lock. If writes have to be looked at first that nobody has seen, what is known
    /// stays until [`Knowledge::walked`].
    pub(crate) fn read(
        &mut self,
        lock: &LockSpec,
        sent: &Sent,
        revision: Revision,
        keys: &[KeyValue],
        clock: Option<&ScopeClock>,
    ) -> Option<Walk> {
        self.enter_era(sent.era);
        self.forget_if_contradicted(lock, revision, keys, clock);
        if self.knows_through(revision, clock) {
            self.read_at = self.read_at.max(Some(revision));
            self.date(sent);
            return None;
        }
        let track = match lock.format.layout {
            Layout::Key => {
                let known = match &self.track {
                    Some(Track::Key(track)) => Some(track),
                    Some(Track::Queue(_)) | None => None,
                };
                match KeyTrack::read(known, revision, keys.first().map(|stored| lock.write(stored))) {
                    Reading::Known(track) => Track::Key(track),
                    Reading::Walk(walk) => {
                        self.miss(sent.era, revision);
                        return Some(walk);
                    }
                }
            }
            layout @ (Layout::Election | Layout::Mutex) => {
                Track::Queue(QueueTrack::read(layout, revision, keys.iter().map(contender)))
            }
        };
        self.know(lock, track, keys.first());
        self.read_at = Some(revision);
        self.date(sent);
        self.miss_what_a_clock_jumped(clock);
        None
    }

    /// Forgets what is known if a read contradicts it that is no newer: an event is missing in it, and what came after the read was built on
    /// that, so it has to be read as well.
    fn forget_if_contradicted(
        &mut self,
        lock: &LockSpec,
        revision: Revision,
        keys: &[KeyValue],
        clock: Option<&ScopeClock>,
    ) {
        let Some(reach) = self.reach(clock).filter(|reach| revision <= *reach) else {
            return;
        };
        if revision == reach {
            self.track = self.track.take().map(|track| track.reaching(reach));
        }
        let is_contradicted = match &self.track {
            Some(Track::Key(track)) => {
                track.is_contradicted_by(revision, keys.first().map(|stored| lock.write(stored)).as_ref())
            }
            Some(Track::Queue(track)) => track.is_contradicted_by(revision, keys.iter().map(contender)),
            None => false,
        };
        if is_contradicted {
            (self.track, self.read_at, self.has_lost) = (None, None, true);
            self.miss(self.era, reach);
        }
    }

    /// Applies what a walk has shown.
    pub(crate) fn walked(&mut self, sent: &Sent, track: KeyTrack, clock: Option<&ScopeClock>) {
        self.enter_era(sent.era);
        if !self.knows_through(track.as_of(), clock) {
            self.read_at = Some(track.as_of());
            self.track = Some(Track::Key(track));
            self.exists = true;
            self.problem = None; // Only a write that names an owner is walked back from.
            self.miss_what_a_clock_jumped(clock);
        }
        self.date(sent);
    }

    /// What is learnt as of a revision that the scope's clock has passed was not part of what the clock was made of.
    fn miss_what_a_clock_jumped(&mut self, clock: Option<&ScopeClock>) {
        if let Some(clock) = clock.filter(|clock| clock.era == self.era) {
            self.missed = self.missed.max(Some(clock.reach));
        }
    }

    /// Whether every key of the lock that was created after `since` and up to `through` is among those that a read of the scope at `through`
    /// has shown. If not, it is gone by then, and this is noted: no clock speaks for the lock before it is read again.
    ///
    /// What is known as of a revision up to `since` has no such keys.
    pub(crate) fn survives<'a>(
        &mut self,
        since: Revision,
        through: Revision,
        shown: impl Iterator<Item = &'a KeyValue>,
    ) -> bool {
        let is_of_then = |created: Revision| since < created && created <= through;
        let shown: HashMap<&[u8], Revision> = shown.map(|stored| (&*stored.key, stored.created)).collect();
        let survives = match &self.track {
            Some(Track::Key(track)) => track
                .created()
                .filter(|created| is_of_then(*created))
                .is_none_or(|created| shown.values().any(|at| *at == created)),
            Some(Track::Queue(track)) => {
                let mut of_then = track.contenders().filter(|contender| is_of_then(contender.created));
                of_then.all(|contender| shown.get(&*contender.key) == Some(&contender.created))
            }
            None => true,
        };
        if !survives {
            self.read_at = None;
            self.miss(self.era, through);
        }
        survives
    }

    /// Applies what a read of the scope has shown of one key of the lock, which exists and was written lately.
    ///
    /// Of a `key` lock that is the whole record. Of a queue it is a part: if the watch has not brought it, the queue is read.
    ///
    /// A lock is never first learnt from it: events that followed it may have come before the lock was there to be told.
    pub(crate) fn read_in_scope(
        &mut self,
        lock: &LockSpec,
        sent: &Sent,
        revision: Revision,
        stored: &KeyValue,
        clock: Option<&ScopeClock>,
    ) -> Applied {
        self.enter_era(sent.era);
        match lock.format.layout {
            Layout::Key if self.track.is_some() => {
                match self.read(lock, sent, revision, std::slice::from_ref(stored), clock) {
                    None => Applied::Changed,
                    Some(_) => self.gap(),
                }
            }
            Layout::Election | Layout::Mutex if self.as_of().is_some_and(|as_of| stored.modified <= as_of) => {
                Applied::Nothing
            }
            Layout::Key | Layout::Election | Layout::Mutex => {
                self.miss(sent.era, revision);
                self.gap()
            }
        }
    }

    /// Applies the events of one revision.
    pub(crate) fn events(
        &mut self,
        lock: &LockSpec,
        era: Era,
        events: &[Event],
        coverage: Coverage,
        clock: Option<&ScopeClock>,
    ) -> Applied {
        self.enter_era(era);
        let Some(revision) = events.iter().map(Event::revision).max() else {
            return Applied::Nothing;
        };
        let Some(track) = &self.track else {
            self.miss(era, revision); // A read that is under way may be older than this.
            return Applied::Nothing;
        };
        // A covered lock was looked at as of the clock's reach. What happened up to there is part of what is known, or
        // has left no trace: a key that came and went. Applied on its own, its first half would be taken for the present.
        if self.reach(clock).is_some_and(|reach| revision <= reach) {
            return Applied::Nothing;
        }
        let follows = match coverage {
            Coverage::Lock => self.is_settled(),
            Coverage::Scope => clock.is_some_and(|clock| clock.covers(self.era, self.settled_since())),
        };
        let next = if follows { track.after(lock, events) } else { None };
        let Some(next) = next else {
            self.miss(era, revision);
            return Applied::Gap;
        };
        self.know(lock, next, events.last().and_then(Event::written));
        Applied::Changed
    }

    /// This is known from now on. `newest` is the record of a `key` lock, if there is one.
    fn know(&mut self, lock: &LockSpec, track: Track, newest: Option<&KeyValue>) {
        (self.exists, self.problem) = match &track {
            Track::Key(_) => (newest.is_some(), newest.and_then(|stored| lock.problem(stored))),
            Track::Queue(queue) => (!queue.is_empty(), lock.queue_problem(queue)),
        };
        self.track = Some(track);
    }

    /// Something happened at that revision that is not part of what is known.
    pub(crate) fn miss(&mut self, era: Era, revision: Revision) {
        self.enter_era(era);
        self.missed = self.missed.max(Some(revision));
    }

    /// A lock that was never read is being read anyway.
    fn gap(&self) -> Applied {
        if self.track.is_some() { Applied::Gap } else { Applied::Nothing }
    }

    /// Dates what is known by a read that it is at least as new as.
    fn date(&mut self, sent: &Sent) {
        self.dated = self.dated.max(Some(sent.at));
        self.dated_in = self.dated_in.max(sent.watch_since(self.watched_since));
    }
}
