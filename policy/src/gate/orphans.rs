//! Requests of one tenure whose end was not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Moment;

/// Names a request whose end was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrphanId(pub(super) u64);

/// The orphans of one tenure. Queries and changes take few steps, however many orphans there are: a
/// worker that breaks its connections makes thousands.
///
/// `None` for a tenure without orphans: there may be a million gates, most of which never have any.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(super) struct Orphans(Option<Box<Kept>>);

#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct Kept {
    by_id: BTreeMap<OrphanId, Orphan>,
    /// When each stops to count, the next first.
    ends: BTreeSet<(Moment, OrphanId)>,
    /// How many are heard.
    heard: usize,
}

/// A request whose end was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Orphan {
    /// Until when it counts.
    until: Moment,
    /// Whether somebody still reads what its worker says: only they know then that its time has
    /// come.
    is_heard: bool,
}

impl Orphans {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |kept| kept.by_id.len())
    }

    pub(super) fn contains(&self, id: OrphanId) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.by_id.contains_key(&id))
    }

    /// Adds an orphan that is not heard ([`Gate::set_heard`](super::Gate::set_heard)).
    pub(super) fn add(&mut self, id: OrphanId, until: Moment) {
        let kept = self.0.get_or_insert_default();
        kept.by_id.insert(id, Orphan { until, is_heard: false });
        kept.ends.insert((until, id));
    }

    /// Removes an orphan. Returns whether it was there.
    pub(super) fn remove(&mut self, id: OrphanId) -> bool {
        let Some(kept) = &mut self.0 else { return false };
        let Some(Orphan { until, is_heard }) = kept.by_id.remove(&id) else { return false };
        kept.ends.remove(&(until, id));
        kept.heard -= usize::from(is_heard);
        if kept.by_id.is_empty() {
            self.0 = None;
        }
        true
    }

    /// See [`Gate::set_heard`](super::Gate::set_heard).
    pub(super) fn set_heard(&mut self, id: OrphanId, is_heard: bool) {
        let Some(kept) = &mut self.0 else { return };
        let Some(orphan) = kept.by_id.get_mut(&id) else { return };
        let was_heard = std::mem::replace(&mut orphan.is_heard, is_heard);
        kept.heard = kept.heard + usize::from(is_heard) - usize::from(was_heard);
    }

    /// Lets one count until then, unless it counts for longer already.
    pub(super) fn postpone(&mut self, id: OrphanId, until: Moment) {
        let Some(kept) = &mut self.0 else { return };
        if let Some(orphan) = kept.by_id.get_mut(&id).filter(|orphan| orphan.until < until) {
            kept.ends.remove(&(orphan.until, id));
            kept.ends.insert((until, id));
            orphan.until = until;
        }
    }

    /// Whether a later tenure has to wait for one of them.
    pub(super) fn bar(&self, now: Moment) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.heard > 0)
            || self.last_end().is_some_and(|last| last > now)
    }

    /// When the last of them stops to count.
    pub(super) fn last_end(&self) -> Option<Moment> {
        let (until, _) = self.0.as_ref()?.ends.last()?;
        Some(*until)
    }

    /// When the next of them stops to count after `now`.
    pub(super) fn next_end(&self, now: Moment) -> Option<Moment> {
        let after = (Bound::Excluded((now, OrphanId(u64::MAX))), Bound::Unbounded);
        let (until, _) = self.0.as_ref()?.ends.range(after).next()?;
        Some(*until)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Act {
        Add(u64, u64),
        Remove(u64),
        SetHeard(u64, bool),
        Postpone(u64, u64),
    }

    fn any_act() -> impl Strategy<Value = Act> {
        let (id, moment) = (0..4u64, 0..6u64);
        prop_oneof![
            3 => (id.clone(), moment.clone()).prop_map(|(id, until)| Act::Add(id, until)),
            2 => id.clone().prop_map(Act::Remove),
            2 => (id.clone(), any::<bool>()).prop_map(|(id, is_heard)| Act::SetHeard(id, is_heard)),
            2 => (id, moment).prop_map(|(id, until)| Act::Postpone(id, until)),
        ]
    }

    proptest! {
        #[test]
        fn they_are_what_a_look_at_each_of_them_shows(acts in prop::collection::vec(any_act(), 0..30)) {
            let (mut orphans, mut each) = (Orphans::default(), BTreeMap::<u64, (u64, bool)>::new());
            for act in acts {
                match act {
                    Act::Add(id, until) => {
                        if each.insert(id, (until, false)).is_some() {
                            orphans.remove(OrphanId(id)); // No two have the same name.
                        }
                        orphans.add(OrphanId(id), Moment(until));
                    }
                    Act::Remove(id) => prop_assert_eq!(orphans.remove(OrphanId(id)), each.remove(&id).is_some()),
                    Act::SetHeard(id, is_heard) => {
                        orphans.set_heard(OrphanId(id), is_heard);
                        each.entry(id).and_modify(|orphan| orphan.1 = is_heard);
                    }
                    Act::Postpone(id, until) => {
                        orphans.postpone(OrphanId(id), Moment(until));
                        each.entry(id).and_modify(|orphan| orphan.0 = orphan.0.max(until));
                    }
                }
                let ends = || each.values().map(|(until, _)| *until);
                prop_assert_eq!((orphans.len(), orphans.is_empty()), (each.len(), each.is_empty()));
                prop_assert_eq!(orphans.last_end(), ends().max().map(Moment));
                for at in 0..7 {
                    let bar = each.values().any(|(until, is_heard)| *is_heard || *until > at);
                    prop_assert_eq!(orphans.contains(OrphanId(at)), each.contains_key(&at));
                    prop_assert_eq!(orphans.bar(Moment(at)), bar);
                    prop_assert_eq!(orphans.next_end(Moment(at)), ends().filter(|until| *until > at).min().map(Moment));
                }
            }
        }
    }
}
