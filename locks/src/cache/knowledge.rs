//! What reads and events of one lock add up to.

use fencepost_policy::{
    Holding, KeyTrack, Layout, QueueTrack, Reading, RecordTrack, Revision, Sighting, Snapshot,
    Step, Walk, Worth,
};
use tokio::time::Instant;

use super::cache_view::{Problem, Published};
use super::record::{LockSpec, contender, queue_event};
use super::trust::{Era, Sent, WatchNumber};
use crate::store::{Event, KeyValue};

/// What is known of a lock.
///
/// - The track is exact as of its revision, and only rises (`no-step-back`) within an era.
/// - `missed` is the highest revision at which something is known to have happened that could not
///   be applied. While it is above the track, the track is not *settled*: it is still exact for its
///   own revision, and dated by its own reads, but no later event may be applied to it
///   (`no-bridge`).
/// - A read is truth, what a watch brings is not: a read that contradicts the track ends it,
///   however new the track seems (`read-is-truth`).
/// - The track is dated only by reads that it is at least as new as. A refusal by what a confirming
///   read did not show leans on that (`final-refusal`).
#[derive(Debug, Default)]
pub(crate) struct Knowledge {
    era: Era,
    track: Option<Track>,
    exists: bool,
    problem: Option<Problem>,
    dated: Option<Instant>,
    missed: Option<Revision>,
    /// Whether a read has contradicted the track, and nobody was told yet.
    has_lost: bool,
    /// The first of the watches that have been up of this lock without a break; `None` if it is not
    /// watched.
    watched_since: Option<WatchNumber>,
    dated_in: Option<WatchNumber>,
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

    fn as_of(&self) -> Option<Revision> {
        self.track.as_ref().and_then(Track::as_of)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.snapshot().is_some() && self.missed <= self.as_of()
    }

    /// Whether a read has contradicted what the watch had brought, since the last call.
    pub(crate) fn take_loss(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.track.as_ref().and_then(Track::snapshot)
    }

    pub(crate) fn published(&self, snapshot: Option<Snapshot>) -> Published {
        let Knowledge { dated, exists, dated_in, .. } = *self;
        let problem = self.problem.clone();
        let distrusted_through = match &self.track {
            Some(Track::Record(track)) => track.distrusted_through(),
            Some(Track::Key(_) | Track::Queue(_)) | None => None,
        };
        Published { snapshot, dated, exists, problem, dated_in, distrusted_through }
    }

    /// Notes which watch is up of the lock now, if any is. Returns what held before. Reads from
    /// before do not count as watched.
    pub(crate) fn set_watched(&mut self, number: Option<WatchNumber>) -> Option<WatchNumber> {
        let before = self.watched_since;
        self.watched_since = number.map(|number| before.unwrap_or(number));
        if number.is_none() {
            self.dated_in = None;
        }
        before
    }

    /// Whether the tenure that is known has ended, by what a later read shows of its key.
    pub(crate) fn is_ended_by(&self, lock: &LockSpec, era: Era, shown: &[KeyValue]) -> bool {
        let Some(Track::Key(track)) = self.track.as_ref().filter(|_| self.era == era) else {
            return false;
        };
        shown.iter().any(|stored| track.is_ended_by(&lock.write(stored)))
    }

    /// Whether the tenure that is known has ended, by what later events show.
    pub(crate) fn is_ended_by_events(&self, lock: &LockSpec, era: Era, events: &[Event]) -> bool {
        let track = self.track.as_ref().filter(|_| self.era == era);
        track.is_some_and(|track| events.iter().any(|event| track.is_ended_by(lock, event)))
    }

    /// Applies a quorum read of the whole lock. If writes have to be looked at first that nobody
    /// has seen, what is known stays until [`Knowledge::walked`].
    pub(crate) fn read(
        &mut self,
        lock: &LockSpec,
        sent: &Sent,
        revision: Revision,
        keys: &[KeyValue],
    ) -> Option<Walk> {
        self.enter_era(sent.era);
        self.forget_if_contradicted(lock, revision, keys);
        if self.as_of() >= Some(revision) {
            self.date(sent);
            return None;
        }
        let track = match lock.format.layout {
            Layout::Key => {
                let known = match &self.track {
                    Some(Track::Key(track)) => Some(track),
                    Some(Track::Queue(_) | Track::Record(_)) | None => None,
                };
                match KeyTrack::read(known, revision, keys.first().map(|stored| lock.write(stored)))
                {
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
        self.date(sent);
        None
    }

    /// Forgets what is known if a read contradicts it that is no newer: an event is missing in it,
    /// and what came after the read was built on that, so it has to be read as well.
    fn forget_if_contradicted(&mut self, lock: &LockSpec, revision: Revision, keys: &[KeyValue]) {
        let Some(as_of) = self.as_of().filter(|as_of| revision <= *as_of) else {
            return;
        };
        let is_contradicted = match &self.track {
            Some(Track::Key(track)) => track.is_contradicted_by(
                revision,
                keys.first().map(|stored| lock.write(stored)).as_ref(),
            ),
            Some(Track::Queue(track)) => {
                track.is_contradicted_by(revision, keys.iter().map(contender))
            }
            Some(Track::Record(_)) | None => false,
        };
        if is_contradicted {
            (self.track, self.has_lost) = (None, true);
            self.miss(self.era, as_of);
        }
    }

    /// Applies what a read shows of a record that names its own tenure. `let_in`: what is remembered
    /// of an earlier process, should nothing be known. Nobody watches such a record: its reads alone
    /// date it.
    pub(crate) fn sighted(
        &mut self,
        sent: &Sent,
        let_in: impl FnOnce() -> Option<Revision>,
        sighting: Sighting,
        problem: Option<Problem>,
    ) -> Worth {
        self.enter_era(sent.era);
        let mut track = match self.track.take() {
            Some(Track::Record(track)) => track,
            Some(Track::Key(_) | Track::Queue(_)) | None => RecordTrack::new(let_in()),
        };
        let worth = track.see(sighting);
        if worth != Worth::Behind {
            self.exists = track.snapshot().is_some_and(|known| known.holding != Holding::Free);
            self.problem = problem;
            self.dated = self.dated.max(Some(sent.at));
            self.dated_in = sent.watch();
        }
        self.track = Some(Track::Record(track));
        worth
    }

    /// Applies what a walk has shown.
    pub(crate) fn walked(&mut self, sent: &Sent, track: KeyTrack) {
        self.enter_era(sent.era);
        if self.as_of() < Some(track.as_of()) {
            self.track = Some(Track::Key(track));
            self.exists = true;
            self.problem = None; // Only a write that names an owner is walked back from.
        }
        self.date(sent);
    }

    /// Applies the events of one revision. The watch has brought all that happened after `base`;
    /// `None` if it has brought all since the lock was last read.
    pub(crate) fn events(
        &mut self,
        lock: &LockSpec,
        era: Era,
        events: &[Event],
        base: Option<Revision>,
    ) -> Applied {
        self.enter_era(era);
        let Some(revision) = events.iter().map(Event::revision).max() else {
            return Applied::Nothing;
        };
        let Some(track) = &self.track else {
            self.miss(era, revision); // A read that is under way may be older than this.
            return Applied::Nothing;
        };
        if Some(revision) <= track.as_of() {
            return Applied::Nothing;
        }
        let follows = self.is_settled() && base <= track.as_of();
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
            Track::Record(_) => return, // Only `sighted` makes these.
        };
        self.track = Some(track);
    }

    /// Something happened at that revision that is not part of what is known.
    pub(crate) fn miss(&mut self, era: Era, revision: Revision) {
        self.enter_era(era);
        self.missed = self.missed.max(Some(revision));
    }

    /// Dates what is known by a read that it is at least as new as.
    fn date(&mut self, sent: &Sent) {
        self.dated = self.dated.max(Some(sent.at));
        self.dated_in = self.dated_in.max(sent.watch_since(self.watched_since));
    }
}

/// What reads and events of a lock have come to.
#[derive(Debug)]
enum Track {
    Key(KeyTrack),
    Queue(QueueTrack),
    Record(RecordTrack),
}

impl Track {
    fn as_of(&self) -> Option<Revision> {
        match self {
            Track::Key(track) => Some(track.as_of()),
            Track::Queue(track) => Some(track.as_of()),
            Track::Record(track) => track.snapshot().and_then(|snapshot| snapshot.as_of),
        }
    }

    fn snapshot(&self) -> Option<Snapshot> {
        match self {
            Track::Key(track) => Some(track.snapshot()),
            Track::Queue(track) => Some(track.snapshot()),
            Track::Record(track) => track.snapshot(),
        }
    }

    /// Whether a later event shows that the tenure that is known has ended, whatever has happened
    /// in between.
    fn is_ended_by(&self, lock: &LockSpec, event: &Event) -> bool {
        match (self, event) {
            (Track::Key(track), Event::Put(stored)) => track.is_ended_by(&lock.write(stored)),
            (Track::Key(track), Event::Delete { revision, .. }) => {
                track.is_ended_by_deletion(*revision)
            }
            (Track::Queue(track), event) => track.is_ended_by(&queue_event(event)),
            (Track::Record(_), _) => false,
        }
    }

    /// Applies later events to this track. Returns `None` if an event before them is missing.
    fn after(&self, lock: &LockSpec, events: &[Event]) -> Option<Track> {
        match self {
            Track::Key(track) => key_events(lock, track, events).map(Track::Key),
            Track::Queue(track) => queue_events(track, events).map(Track::Queue),
            Track::Record(_) => None,
        }
    }
}

fn key_events(lock: &LockSpec, known: &KeyTrack, events: &[Event]) -> Option<KeyTrack> {
    let mut known = known.clone();
    for event in events {
        known = match known.event(lock.key_event(event)) {
            Step::Ignored => known,
            Step::Next(next) => next,
            Step::Gap => return None,
        };
    }
    Some(known)
}

fn queue_events(known: &QueueTrack, events: &[Event]) -> Option<QueueTrack> {
    let next = known.events(events.iter().map(queue_event)).ok()?;
    Some(next.unwrap_or_else(|| known.clone()))
}
