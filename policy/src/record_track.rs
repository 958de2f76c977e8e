//! A lock whose record names its own tenure, as those of ZooKeeper, Kubernetes or an SQL table do:
//! one read settles who holds it, and no history is needed.
//!
//! Such a record has a *stamp*: something that stays the same through a tenure, and never comes
//! again after it. By it two reads tell of one tenure or of two, whatever was written in between.

use std::sync::Arc;

use crate::{Holding, Layout, Owner, Revision, Snapshot, Tenure, Waiter};

/// How many sightings in a row may be behind what was seen before the store counts as one that went
/// back.
const BEHIND_MAX: u8 = 3;

/// What tells a tenure from every other one of its lock.
pub type Stamp = Arc<[u8]>;

/// What one read shows of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// Which history of the store this is of. Another one than before has lost something that was
    /// seen, or may have.
    pub lineage: u64,
    /// The highest revision that the store can have given to a holder of this lock by then; `None`
    /// if that cannot be told.
    pub reach: Option<Revision>,
    /// Who holds the lock.
    pub seen: Seen,
    /// Who queues behind the holder, where the store keeps that.
    pub waiters: Arc<[Waiter]>,
}

/// Who holds a lock, as one read shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Nobody.
    Free,
    /// Somebody.
    Held {
        /// Who.
        owner: Owner,
        /// A revision that names the tenure: that of its beginning, or of its newest write.
        revision: Revision,
        /// What tells it from other tenures.
        stamp: Stamp,
    },
    /// There is a record that cannot be read, or that names several.
    Unreadable,
}

/// What a sighting is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// It is what is known from now on.
    Known,
    /// It shows less than was seen, and is not used: read again.
    Behind,
    /// The store went back. What it shows is known from now on, and nothing up to here is believed.
    WentBack {
        /// The highest revision seen of the lock before.
        through: Revision,
    },
}

/// What is known of such a lock. Sightings come in the order of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordTrack {
    lineage: Option<u64>,
    /// The highest revision known to have been given out.
    reach: Option<Revision>,
    /// `None` before the first sighting that is of use.
    holding: Option<Holding>,
    waiters: Arc<[Waiter]>,
    /// The stamp of the newest tenure that is known, and the highest revision that names it. One
    /// that an earlier process let in has no stamp.
    newest: Option<(Option<Stamp>, Revision)>,
    behind: u8,
    distrusted_through: Option<Revision>,
}

impl RecordTrack {
    /// Nothing is known but that a tenure of this revision was let in before, if one was.
    pub fn new(let_in: Option<Revision>) -> RecordTrack {
        RecordTrack {
            lineage: None,
            reach: let_in,
            newest: let_in.map(|let_in| (None, let_in)),
            holding: None,
            waiters: Arc::from([]),
            behind: 0,
            distrusted_through: None,
        }
    }

    /// Takes note of what a read shows.
    pub fn see(&mut self, sighting: Sighting) -> Worth {
        let is_another = self.lineage.is_some_and(|known| known != sighting.lineage);
        let is_behind = is_another || self.is_behind(&sighting);
        self.behind = if is_behind { self.behind + 1 } else { 0 };
        if is_behind && !is_another && self.behind < BEHIND_MAX {
            return Worth::Behind;
        }
        let through = self.highest().filter(|_| is_behind);
        if is_behind {
            let distrusted_through = self.distrusted_through.max(through);
            *self = RecordTrack { distrusted_through, ..RecordTrack::new(None) };
        }
        self.know(sighting);
        through.map_or(Worth::Known, |through| Worth::WentBack { through })
    }

    /// Whether it shows less than was seen: a revision that is lower, or that another tenure had,
    /// or a tenure that had ended.
    fn is_behind(&self, sighting: &Sighting) -> bool {
        if sighting.reach.is_some() && sighting.reach < self.reach {
            return true;
        }
        let Seen::Held { revision, stamp, .. } = &sighting.seen else { return false };
        match &self.newest {
            None => false,
            Some((None, last)) => revision < last,
            Some((Some(newest), last)) if newest == stamp => {
                revision < last || self.holding == Some(Holding::Free)
            }
            Some((Some(_), last)) => revision <= last,
        }
    }

    fn know(&mut self, sighting: Sighting) {
        let Sighting { lineage, reach, seen, waiters } = sighting;
        self.lineage = Some(lineage);
        self.waiters = waiters;
        let holding = match seen {
            Seen::Free => Holding::Free,
            Seen::Unreadable => Holding::Unreadable,
            Seen::Held { owner, revision, stamp } => {
                self.reach = self.reach.max(Some(revision));
                let newest = self.newest.replace((Some(stamp.clone()), revision));
                let goes_on = newest.is_some_and(|(newest, _)| newest == Some(stamp));
                let first = match &self.holding {
                    Some(Holding::Held(tenure)) if goes_on => tenure.first,
                    Some(Holding::Held(_) | Holding::Free | Holding::Unreadable) | None => revision,
                };
                Holding::Held(Tenure { owner, first, last: revision })
            }
        };
        self.holding = Some(holding);
        self.reach = self.reach.max(reach);
    }

    /// The highest revision seen of the lock.
    fn highest(&self) -> Option<Revision> {
        self.reach.max(self.newest.as_ref().map(|(_, last)| *last))
    }

    /// The revision up to which nothing is believed, if the store went back.
    pub fn distrusted_through(&self) -> Option<Revision> {
        self.distrusted_through
    }

    /// The state of the lock, if anything is known of it. It is judged as a [`Layout::Key`]: the
    /// revisions of the holder, and no others, name its tenure.
    pub fn snapshot(&self) -> Option<Snapshot> {
        Some(Snapshot {
            layout: Layout::Key,
            as_of: self.reach,
            holding: self.holding.clone()?,
            waiters: Arc::clone(&self.waiters),
        })
    }
}

#[cfg(test)]
#[path = "record_track_tests.rs"]
mod tests;
