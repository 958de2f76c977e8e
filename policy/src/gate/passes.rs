//! Requests that go to the worker without having been admitted: what a gate counts of them, and when they bar.

use std::collections::BTreeMap;

use super::Moment;
use crate::small_map::SmallMap;

/// Why a request may pass without having been admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassReason {
    /// Its route only watches.
    Shadow,
    /// Its method is exempt.
    Exempt,
    /// Its route is off.
    Off,
    /// We could not tell, and its route says `dangerous_admit`.
    DangerousAdmit,
}

/// The proof that a request may go upstream though no token of it was admitted; only [`Passes`] make one.
#[derive(Debug)]
#[must_use = "a request that was let past has to leave"]
pub struct Pass {
    reason: PassReason,
    /// The number of the configuration under which it came.
    generation: u64,
}

impl Pass {
    /// Why it was let past.
    pub fn reason(&self) -> PassReason {
        self.reason
    }

    /// The configuration under which its route only watched, if that is why it was let past.
    pub fn watched_under(&self) -> Option<u64> {
        (self.reason == PassReason::Shadow).then_some(self.generation)
    }
}

/// Names a request that was let past and whose end was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LostPassId(u64);

/// Requests that were let past: those of one lock, which its gate counts, or those that named no lock of their template's.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Passes {
    /// The generation of the configuration since which a route enforces that only watched before, and until when those
    /// that were let past before count.
    enforced_since: Option<(u64, Moment)>,
    /// How many there are, by the generation of the configuration under which they were let past.
    by_generation: SmallMap<u64, usize>,
    /// Whether there are others, counted elsewhere, that may be this lock's and were let past before the route enforced.
    nameless: bool,
    count: usize,
    /// `None` until there is one: it is rare, and there may be a million gates.
    lost: Option<Box<Lost>>,
}

/// Those of them whose end was not seen.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct Lost {
    /// Each with its generation.
    passes: BTreeMap<LostPassId, u64>,
    made: u64,
}

impl Passes {
    /// Lets one past, under the configuration of that number. `None` if its route only watched then and enforces by now.
    pub fn pass(&mut self, reason: PassReason, generation: u64) -> Option<Pass> {
        if reason == PassReason::Shadow && self.has_turned(generation) {
            return None;
        }
        self.count += 1;
        *self.by_generation.or_default(generation) += 1;
        Some(Pass { reason, generation })
    }

    /// One is gone. Says whether it was the last that barred.
    pub fn leave(&mut self, pass: Pass) -> bool {
        let Pass { reason: _, generation } = pass;
        self.forget([generation])
    }

    /// The end of one will not be seen. It counts until [`Passes::end_lost`], or until its gate is told that nothing runs
    /// ([`Gate::clear_orphans`](super::Gate::clear_orphans)).
    pub fn lose(&mut self, pass: Pass) -> LostPassId {
        let lost = self.lost.get_or_insert_default();
        let id = LostPassId(lost.made);
        lost.made += 1;
        lost.passes.insert(id, pass.generation);
        id
    }

    /// Whether one of those still counts.
    pub fn counts_lost(&self, id: LostPassId) -> bool {
        self.lost.as_ref().is_some_and(|lost| lost.passes.contains_key(&id))
    }

    /// One of those is gone, because its end was seen after all or its time has come; it may have been before. Says whether it was the last
    /// that barred.
    pub fn end_lost(&mut self, id: LostPassId) -> bool {
        let gone = self.lost.as_mut().and_then(|lost| lost.passes.remove(&id));
        self.forget(gone)
    }

    /// All of those are gone; returns how many that were.
    pub(super) fn clear_lost(&mut self) -> usize {
        let gone = self.lost.as_mut().map(|lost| std::mem::take(&mut lost.passes)).unwrap_or_default();
        let count = gone.len();
        self.forget(gone.into_values());
        count
    }

    /// These are gone. Says whether nothing bars any more that did.
    fn forget(&mut self, generations: impl IntoIterator<Item = u64>) -> bool {
        let barred = self.bar_until().is_some();
        for generation in generations {
            self.count -= 1;
            if let Some(there) = self.by_generation.get_mut(&generation) {
                *there -= 1;
                if *there == 0 {
                    self.by_generation.remove(&generation);
                }
            }
        }
        barred && self.bar_until().is_none()
    }

    /// A route enforces from that configuration on: what was let past before bars until it has left, or until then.
    pub fn enforce_since(&mut self, generation: u64, until: Moment) {
        // Several routes of the lock may turn, each with a time of its own.
        let (since, before) = self.enforced_since.unwrap_or((generation, until));
        self.enforced_since = Some((generation.max(since), until.max(before)));
    }

    /// Whether there are others, counted elsewhere, that bar as well. Says whether nothing bars any more that did.
    pub(super) fn set_nameless(&mut self, nameless: bool) -> bool {
        let barred = self.bar_until().is_some();
        self.nameless = nameless;
        barred && self.bar_until().is_none()
    }

    /// Whether a route enforces by now that only watched under that configuration.
    pub fn has_turned(&self, generation: u64) -> bool {
        self.enforced_since.is_some_and(|(since, _)| generation < since)
    }

    /// Until when those bar that were let past before a route enforced, if there are any.
    pub fn bar_until(&self) -> Option<Moment> {
        let (generation, until) = self.enforced_since?;
        let are_there = self.nameless || self.by_generation.below(&generation).next().is_some();
        are_there.then_some(until)
    }

    /// Whether there are none, barring or not.
    pub fn are_none(&self) -> bool {
        self.by_generation.is_empty() && !self.nameless
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}
