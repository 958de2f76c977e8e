//! The track of one lock, whatever its layout.

use fencepost_policy::{KeyTrack, QueueTrack, Revision, Snapshot, Step};

use crate::cache::record::{LockSpec, queue_event};
use crate::store::Event;

/// What reads and events of a lock have come to.
#[derive(Debug)]
pub(super) enum Track {
    Key(KeyTrack),
    Queue(QueueTrack),
}

impl Track {
    pub(super) fn as_of(&self) -> Revision {
        match self {
            Track::Key(track) => track.as_of(),
            Track::Queue(track) => track.as_of(),
        }
    }

    pub(super) fn reaching(self, revision: Revision) -> Track {
        match self {
            Track::Key(track) => Track::Key(track.reaching(revision)),
            Track::Queue(track) => Track::Queue(track.reaching(revision)),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        match self {
            Track::Key(track) => track.snapshot(),
            Track::Queue(track) => track.snapshot(),
        }
    }

    /// Whether a later event shows that the tenure that is known has ended, whatever has happened in between.
    pub(super) fn is_ended_by(&self, lock: &LockSpec, event: &Event) -> bool {
        match (self, event) {
            (Track::Key(track), Event::Put(stored)) => track.is_ended_by(&lock.write(stored)),
            (Track::Key(track), Event::Delete { revision, .. }) => track.is_ended_by_deletion(*revision),
            (Track::Queue(track), event) => track.is_ended_by(&queue_event(event)),
        }
    }

    /// The same after events that follow it; `None` if something before them is missing all the same.
    pub(super) fn after(&self, lock: &LockSpec, events: &[Event]) -> Option<Track> {
        match self {
            Track::Key(track) => key_events(lock, track, events).map(Track::Key),
            Track::Queue(track) => queue_events(track, events).map(Track::Queue),
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
