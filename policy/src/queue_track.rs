//! An `election` or `mutex` lock over time: the contender that queued first holds it.
//!
//! Contenders are keys below `lock + "/"`, each on its holder's lease. The one with the lowest
//! create revision holds the lock, the others wait (etcd `client/v3/concurrency`, 3.4 to 3.6). Of
//! two keys that one transaction has created neither waits for the other, since each waits for
//! those of lower revisions only: as long as both are first, nobody is the holder.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Holding, Layout, Owner, Revision, Snapshot, Tenure, Waiter};

/// A key in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// Its full name.
    pub key: Arc<[u8]>,
    /// The revision at which it queued (etcd: `create_revision`).
    pub created: Revision,
    /// The revision of its newest write (etcd: `mod_revision`); later than `created` after a
    /// `Proclaim`.
    pub revision: Revision,
    /// Its value: in an election the owner's name.
    pub value: Arc<[u8]>,
}

/// News of a watch on the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueEvent {
    /// A key was written.
    Put(Contender),
    /// A key was deleted, or its lease ended.
    Delete {
        /// Its full name.
        key: Arc<[u8]>,
        /// When.
        revision: Revision,
    },
}

impl QueueEvent {
    fn revision(&self) -> Revision {
        match self {
            QueueEvent::Put(contender) => contender.revision,
            QueueEvent::Delete { revision, .. } => *revision,
        }
    }
}

/// What is known of an `election` or `mutex` lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTrack {
    layout: Layout,
    as_of: Revision,
    contenders: BTreeMap<Arc<[u8]>, Contender>,
}

impl QueueTrack {
    /// What a read of the whole queue shows, exact as of `as_of`.
    pub fn read(
        layout: Layout,
        as_of: Revision,
        contenders: impl IntoIterator<Item = Contender>,
    ) -> QueueTrack {
        let contenders = contenders
            .into_iter()
            .map(|contender| (Arc::clone(&contender.key), contender))
            .collect();
        QueueTrack { layout, as_of, contenders }
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.contenders.is_empty()
    }

    /// The store revision up to which this is known.
    pub fn as_of(&self) -> Revision {
        self.as_of
    }

    /// Whether a read shows the queue at that revision otherwise than this has it, if this is what
    /// the queue was as of its own revision, and is again as of any later one that matters: at
    /// others keys may have come and gone.
    pub fn is_contradicted_by(
        &self,
        at: Revision,
        shown: impl IntoIterator<Item = Contender>,
    ) -> bool {
        let shown = QueueTrack::read(self.layout, at, shown).contenders;
        let is_shown = |known: &Contender| {
            shown.get(&known.key).is_some_and(|shown| {
                shown == known || (shown.created == known.created && known.revision > at)
            })
        };
        let lacks =
            |shown: &Contender| at == self.as_of && !self.contenders.contains_key(&shown.key);
        self.contenders.values().any(|known| known.created <= at && !is_shown(known))
            || shown.values().any(lacks)
    }

    /// Whether a later event shows that the key of this lock's holder is gone. It may not show yet
    /// who holds the lock since: others may have come or gone in between.
    pub fn is_ended_by(&self, event: &QueueEvent) -> bool {
        let first = self.contenders.values().min_by_key(|contender| contender.created);
        let holder = first.filter(|_| event.revision() > self.as_of && self.tie().is_none());
        holder.is_some_and(|holder| match event {
            QueueEvent::Put(contender) => {
                contender.key == holder.key && contender.created != holder.created
            }
            QueueEvent::Delete { key, .. } => *key == holder.key,
        })
    }

    /// Applies events of a watch; `None` if all of them are older than what is known.
    ///
    /// The watch must deliver every event after `as_of`, in order, and the events of one
    /// transaction together: between two of them the lock was never anybody's.
    ///
    /// # Errors
    /// [`MissedEvent`] if an event can only follow one that was not seen: read the queue.
    pub fn events(
        &self,
        events: impl IntoIterator<Item = QueueEvent>,
    ) -> Result<Option<QueueTrack>, MissedEvent> {
        let mut next = self.clone();
        for event in events.into_iter().filter(|event| event.revision() > self.as_of) {
            next.as_of = next.as_of.max(event.revision());
            match event {
                QueueEvent::Put(contender) if contender.created == contender.revision => {
                    next.contenders.insert(Arc::clone(&contender.key), contender);
                }
                QueueEvent::Put(contender) => match next.contenders.get_mut(&contender.key) {
                    Some(known) if known.created == contender.created => *known = contender,
                    Some(_) | None => return Err(MissedEvent),
                },
                QueueEvent::Delete { key, .. } => {
                    next.contenders.remove(&key);
                }
            }
        }
        Ok((next.as_of > self.as_of).then_some(next))
    }

    /// The lock as of now.
    pub fn snapshot(&self) -> Snapshot {
        let mut queue: Vec<&Contender> = self.contenders.values().collect();
        queue.sort_by_key(|contender| contender.created); // Stable: keys of one revision stay ordered by name.
        let is_tied = self.tie().is_some();
        let mut waiters = queue
            .into_iter()
            .map(|contender| Waiter { owner: self.owner(contender), created: contender.created })
            .peekable();
        let holding = match waiters.next_if(|_| !is_tied) {
            Some(Waiter { owner, created }) => {
                Holding::Held(Tenure { owner, first: created, last: created })
            }
            None if is_tied => Holding::Unreadable,
            None => Holding::Free,
        };
        Snapshot {
            layout: self.layout,
            as_of: Some(self.as_of),
            holding,
            waiters: waiters.collect(),
        }
    }

    /// The revision at which one transaction has created two keys that are both first, if one has.
    pub fn tie(&self) -> Option<Revision> {
        let first = self.contenders.values().map(|contender| contender.created).min()?;
        let has_first = self.contenders.values().filter(|contender| contender.created == first);
        (has_first.count() > 1).then_some(first)
    }

    fn owner(&self, contender: &Contender) -> Owner {
        match self.layout {
            Layout::Mutex => Owner::new(Arc::clone(&contender.key)),
            Layout::Key | Layout::Election => Owner::new(Arc::clone(&contender.value)),
        }
    }
}

/// An event came whose predecessor was never seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the watch is missing")]
pub struct MissedEvent;

#[cfg(test)]
#[path = "queue_track_tests.rs"]
mod tests;
