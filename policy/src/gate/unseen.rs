//! Until when requests count whose end will not be seen.

use super::{Gate, Moment};

impl Gate {
    /// When the last of those stops to count whose end will not be seen, or need not: orphans, what an earlier process left
    /// behind, what was let past before the route enforced.
    pub fn unseen_until(&self) -> Option<Moment> {
        let orphans = self.at_worker.values().filter_map(|there| there.orphans.last_end());
        orphans.chain(self.others_unseen()).max()
    }

    /// When the next of those stops to count after `now`: the barrier may open then.
    pub fn next_unseen(&self, now: Moment) -> Option<Moment> {
        let orphans = self.at_worker.values().filter_map(|there| there.orphans.next_end(now));
        orphans.chain(self.others_unseen().filter(|until| *until > now)).min()
    }

    /// When those stop to count that are no orphans.
    fn others_unseen(&self) -> impl Iterator<Item = Moment> {
        let left_behind = self.left_behind.map(|(_, until)| until);
        left_behind.into_iter().chain(self.passes.bar_until())
    }
}
