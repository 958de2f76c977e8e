//! A `key` lock over time: how writes to one key become tenures, `no-bridge`.
//!
//! A tenure of this layout runs from the write that made its owner the owner to the newest write of
//! the same owner. So two writes of one owner belong together only if every write between them was
//! that owner's too: shard-1 at 2, shard-2 at 3 and shard-1 at 4, seen in one go, must not become
//! (shard-1, 2..4). Events of a gapless watch say so one by one; a read says so by its `version`,
//! which counts the writes since the key was created, or by a [`Walk`] back through the key's
//! history.

use std::sync::Arc;

use crate::{Holding, Layout, Owner, Revision, Snapshot, Tenure};

/// What a write made of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The named owner holds the lock.
    Owner(Owner),
    /// Free, though the key exists.
    Free,
    /// Something that is not a lock record.
    Unreadable,
}

/// A write to the lock's key, as the store shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The write's own revision (etcd: `mod_revision`).
    pub revision: Revision,
    /// The revision at which the key came to exist (etcd: `create_revision`).
    pub created: Revision,
    /// Which write this is since then, from 1 (etcd: `version`).
    pub version: u64,
    /// What it says.
    pub content: Content,
}

impl Write {
    /// Whether this is the very next write to the key after `earlier`.
    fn follows(&self, earlier: &Write) -> bool {
        self.created == earlier.created
            && self.version == earlier.version + 1
            && self.revision > earlier.revision
    }
}

/// News of a watch on the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyEvent {
    /// It was written.
    Put(Write),
    /// It was deleted, or its lease ended, at that revision.
    Delete(Revision),
}

/// What became of a watch event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It is older than what we know: `no-step-back`.
    Ignored,
    /// It is the next thing that happened.
    Next(KeyTrack),
    /// Writes are missing before it: read the key.
    Gap,
}

/// What became of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// It settles what the lock is.
    Known(KeyTrack),
    /// Writes between it and what we knew have to be looked at first.
    Walk(Walk),
}

/// What is known of a `key` lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTrack {
    as_of: Revision,
    newest: Option<Write>,
    /// The first write of the tenure that `newest` belongs to, where it names an owner.
    first: Option<Revision>,
}

impl KeyTrack {
    /// The store revision up to which this is known.
    pub fn as_of(&self) -> Revision {
        self.as_of
    }

    /// Whether a later write shows that the tenure held here has ended. It may not show yet who
    /// holds the lock since when: that may take a look at the writes in between.
    pub fn is_ended_by(&self, write: &Write) -> bool {
        let newest = self.newest.as_ref().filter(|_| self.first.is_some());
        newest.is_some_and(|newest| {
            write.revision > self.as_of
                && (write.created != newest.created || write.content != newest.content)
        })
    }

    /// Whether a later deletion shows that the tenure held here has ended.
    pub fn is_ended_by_deletion(&self, at: Revision) -> bool {
        self.first.is_some() && at > self.as_of
    }

    /// Whether a read shows the key at that revision otherwise than this has it, if this is what
    /// the key was as of its own revision, and is again as of any later one that matters: at others
    /// it may have come and gone.
    pub fn is_contradicted_by(&self, at: Revision, shown: Option<&Write>) -> bool {
        match &self.newest {
            Some(newest) if newest.revision <= at => shown != Some(newest),
            Some(newest) if newest.created <= at => {
                shown.is_none_or(|shown| shown.created != newest.created)
            }
            Some(_) => false,
            None => at == self.as_of && shown.is_some(),
        }
    }

    /// Applies a watch event. The watch must deliver every event of the key after `as_of`, in
    /// order.
    pub fn event(&self, event: KeyEvent) -> Step {
        match event {
            KeyEvent::Delete(at) if at <= self.as_of => Step::Ignored,
            KeyEvent::Delete(at) => Step::Next(KeyTrack { as_of: at, newest: None, first: None }),
            KeyEvent::Put(write) if write.revision <= self.as_of => Step::Ignored,
            KeyEvent::Put(write) => {
                let as_of = write.revision;
                match self.first_of(&write) {
                    Some(first) => Step::Next(KeyTrack::settled(as_of, write, first)),
                    None => Step::Gap,
                }
            }
        }
    }

    /// Applies a read of the key that is exact as of `as_of`; `known` is what was known before it.
    pub fn read(known: Option<&KeyTrack>, as_of: Revision, newest: Option<Write>) -> Reading {
        if let Some(known) = known
            && as_of <= known.as_of
        {
            return Reading::Known(known.clone());
        }
        let Some(write) = newest else {
            return Reading::Known(KeyTrack { as_of, newest: None, first: None });
        };
        if let Some(known) = known
            && known.newest.as_ref().is_some_and(|newest| *newest == write)
        {
            return Reading::Known(KeyTrack { as_of, ..known.clone() });
        }
        let nothing_known = KeyTrack { as_of, newest: None, first: None };
        match known.unwrap_or(&nothing_known).first_of(&write) {
            Some(first) => Reading::Known(KeyTrack::settled(as_of, write, first)),
            None => Reading::Walk(Walk {
                as_of,
                oldest_shown: write.clone(),
                newest: write,
                known: known.cloned(),
            }),
        }
    }

    /// The first write of the tenure that `next` belongs to, if it follows from what is known
    /// without a gap.
    fn first_of(&self, next: &Write) -> Option<Revision> {
        let Content::Owner(owner) = &next.content else {
            return Some(next.revision); // Nobody's tenure: where it began is of no interest.
        };
        if next.version == 1 {
            return Some(next.revision);
        }
        let newest = self.newest.as_ref().filter(|newest| next.follows(newest))?;
        Some(match (&newest.content, self.first) {
            (Content::Owner(before), Some(first)) if before == owner => first,
            _ => next.revision,
        })
    }

    fn settled(as_of: Revision, newest: Write, first: Revision) -> KeyTrack {
        let first = matches!(newest.content, Content::Owner(_)).then_some(first);
        KeyTrack { as_of, newest: Some(newest), first }
    }

    /// The lock as of now.
    pub fn snapshot(&self) -> Snapshot {
        let holding = match (&self.newest, self.first) {
            (Some(Write { content: Content::Owner(owner), revision, .. }), Some(first)) => {
                Holding::Held(Tenure { owner: owner.clone(), first, last: *revision })
            }
            (Some(Write { content: Content::Unreadable, .. }), _) => Holding::Unreadable,
            (_, _) => Holding::Free,
        };
        Snapshot { layout: Layout::Key, as_of: Some(self.as_of), holding, waiters: Arc::default() }
    }
}

/// A walk back through the key's history, from a read to the first write of its tenure.
///
/// It ends at a write of another owner, at the key's creation, at the write we knew before, or
/// where history ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    as_of: Revision,
    newest: Write,
    oldest_shown: Write,
    known: Option<KeyTrack>,
}

impl Walk {
    /// The store revision at which the key has to be read next.
    pub fn reads_at(&self) -> Revision {
        // A walk begins only at a write with `version` 2 or more, so there is a revision before it.
        self.oldest_shown.revision.before().unwrap_or(Revision::MIN)
    }

    /// Goes on with what the key was then.
    pub fn shown(mut self, write: Option<Write>) -> Reading {
        let Some(write) = write.filter(|write| self.oldest_shown.follows(write)) else {
            return Reading::Known(self.ends_here());
        };
        if write.content != self.newest.content {
            return Reading::Known(self.ends_here());
        }
        if let Some(known) = &self.known
            && let (Some(newest), Some(first)) = (&known.newest, known.first)
            && *newest == write
        {
            return Reading::Known(KeyTrack::settled(self.as_of, self.newest, first));
        }
        let created = write.version == 1;
        self.oldest_shown = write;
        if created { Reading::Known(self.ends_here()) } else { Reading::Walk(self) }
    }

    /// Ends the walk: history is compacted away, or we have seen enough. The tenure begins at the
    /// oldest write that was shown, so its holder has to present a revision from there on.
    #[must_use]
    pub fn ends_here(self) -> KeyTrack {
        KeyTrack::settled(self.as_of, self.newest, self.oldest_shown.revision)
    }
}

#[cfg(test)]
#[path = "key_track_tests.rs"]
mod tests;
