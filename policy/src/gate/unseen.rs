//! Until when requests count whose end will not be seen.

use super::{Gate, Moment};

impl Gate {
    /// When the last of those stops to count whose end will not be seen: orphans, and what an
    /// earlier process left behind.
    pub fn unseen_until(&self) -> Option<Moment> {
        let orphans = self.at_worker.values().filter_map(|there| there.orphans.last_end());
        orphans.chain(self.left_behind_until()).max()
    }

    /// When the next of those stops to count after `now`: the barrier may open then.
    pub fn next_unseen(&self, now: Moment) -> Option<Moment> {
        let orphans = self.at_worker.values().filter_map(|there| there.orphans.next_end(now));
        orphans.chain(self.left_behind_until().filter(|until| *until > now)).min()
    }

    fn left_behind_until(&self) -> Option<Moment> {
        self.left_behind.map(|(_, until)| until)
    }
}
