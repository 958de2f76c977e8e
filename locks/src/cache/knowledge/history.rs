//! Whether what is known of a lock is of the history that the store has.

use fencepost_policy::Revision;

use super::Knowledge;
use crate::cache::cache_view::ScopeClock;
use crate::cache::trust::{FIRST_STRETCH, Sent};

impl Knowledge {
    /// Whether the store is sure, in that stretch, to have the history still that this is known in.
    pub(super) fn goes_on_in(&self, stretch: Option<u32>, clock: Option<&ScopeClock>) -> bool {
        stretch.is_some() && self.stretch == stretch || self.is_covered_in(stretch, clock)
    }

    /// The same, by the word of a clock.
    pub(super) fn is_covered_in(&self, stretch: Option<u32>, clock: Option<&ScopeClock>) -> bool {
        let is_its = |clock: &&ScopeClock| clock.stretch.is_some() && clock.stretch == stretch;
        clock.filter(is_its).is_some_and(|clock| clock.covers(self.era, self.settled_since()))
    }

    /// Whether what is known was read after that was sent, in another stretch. The answer may be of a history that is over by now.
    pub(super) fn is_of_a_later_stretch(&self, sent: &Sent) -> bool {
        self.stretch.is_some() && self.stretch != sent.stretch && self.dated > Some(sent.at)
    }

    /// Whether the store is sure to have the history still that this is known in, if anything is.
    pub(crate) fn is_known_in(&self, stretch: u32, clock: Option<&ScopeClock>) -> bool {
        self.track.is_none() || self.goes_on_in(Some(stretch), clock)
    }

    /// What is not may be of another history, which says nothing of this one, not even who does not hold the lock. What was read before the
    /// first stretch refuses all the same until it is read again, at once.
    pub(crate) fn doubt_unless_known_in(&mut self, stretch: u32, clock: Option<&ScopeClock>) {
        let is_of_the_start = self.stretch.is_none() && stretch == FIRST_STRETCH;
        self.is_doubtful |= !self.is_known_in(stretch, clock) && !is_of_the_start;
    }

    /// Whether it was read while nothing was watched, if it was.
    pub(crate) fn is_of_no_stretch(&self) -> bool {
        self.stretch.is_none()
    }

    /// In that stretch, the store is known to have the history still that it had before, up to that revision. What was read of the lock later,
    /// in another stretch, may be of one that is over: no clock speaks for it before it is read again.
    ///
    /// Whether there was such.
    pub(crate) fn leave_behind(&mut self, through: Revision, stretch: Option<u32>) -> bool {
        let is_later = self.stretch != stretch && self.as_of() > Some(through);
        if is_later {
            self.read_at = None;
        }
        is_later
    }
}
