//! Requests that go to the worker without having been admitted: what a gate counts of them, and when they bar.

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

/// The proof that a request may go upstream though no token of it was admitted; made by the gate's named passes only.
#[derive(Debug)]
#[must_use = "a request that was let past has to leave"]
pub struct Pass {
    reason: PassReason,
    /// The configuration under which a gate counts it.
    counted: Option<u64>,
}

impl Pass {
    /// The pass of a request whose lock is not at hand, so that no gate can count it: of a route that is off, or of one that is
    /// forwarded whatever its lock says.
    pub fn uncounted(reason: PassReason) -> Pass {
        Pass { reason, counted: None }
    }

    /// Why it was let past.
    pub fn reason(&self) -> PassReason {
        self.reason
    }

    /// The configuration under which its route only watched, if that is why it was let past and a gate counts it.
    pub fn watched_under(&self) -> Option<u64> {
        self.counted.filter(|_| self.reason == PassReason::Shadow)
    }
}

/// The requests of one lock that were let past.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(super) struct Passes {
    /// The generation of the configuration since which a route enforces that only watched before, and until when those
    /// that were let past before count.
    enforced_since: Option<(u64, Moment)>,
    /// How many there are, by the generation of the configuration under which they were let past.
    by_generation: SmallMap<u64, usize>,
    count: usize,
}

impl Passes {
    /// Lets one past, under the configuration of that number, unless its route enforces by now.
    pub(super) fn pass(&mut self, reason: PassReason, generation: u64) -> Option<Pass> {
        if reason == PassReason::Shadow && self.has_turned(generation) {
            return None;
        }
        self.count += 1;
        *self.by_generation.or_default(generation) += 1;
        Some(Pass { reason, counted: Some(generation) })
    }

    /// One is gone. Says whether it was the last that barred.
    pub(super) fn leave(&mut self, pass: Pass) -> bool {
        let Some(generation) = pass.counted else {
            return false;
        };
        self.count -= 1;
        let barred = self.bar_until().is_some();
        if let Some(there) = self.by_generation.get_mut(&generation) {
            *there -= 1;
            if *there == 0 {
                self.by_generation.remove(&generation);
            }
        }
        barred && self.bar_until().is_none()
    }

    /// A route enforces from that configuration on: what was let past before bars until it has left, or until then.
    pub(super) fn enforce_since(&mut self, generation: u64, until: Moment) {
        // Several routes of the lock may turn, each with a time of its own.
        let (since, before) = self.enforced_since.unwrap_or((generation, until));
        self.enforced_since = Some((generation.max(since), until.max(before)));
    }

    /// Whether a route enforces by now that only watched under that configuration.
    pub(super) fn has_turned(&self, generation: u64) -> bool {
        self.enforced_since.is_some_and(|(since, _)| generation < since)
    }

    /// Until when those bar that were let past before a route enforced, if there are any.
    pub(super) fn bar_until(&self) -> Option<Moment> {
        let (generation, until) = self.enforced_since?;
        self.by_generation.below(&generation).next().map(|_| until)
    }

    /// Whether there are none, barring or not.
    pub(super) fn are_none(&self) -> bool {
        self.by_generation.is_empty()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}
