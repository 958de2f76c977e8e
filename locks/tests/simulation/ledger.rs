//! What the gates ought to count. The tasks that drive the gates note it beside them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fencepost_policy::GateState;
use tokio::time::Instant;

use crate::worker::Place;

#[derive(Default)]
pub(crate) struct Ledger(RefCell<BTreeMap<usize, Counted>>);

/// What counts at one lock.
#[derive(Default)]
struct Counted {
    admitted: BTreeMap<Place, AtWorker>,
    /// When something last stopped to count.
    left: Option<Instant>,
}

#[derive(Default)]
struct AtWorker {
    running: usize,
    /// Until when.
    orphans: Vec<Instant>,
}

impl Ledger {
    pub(crate) fn entered(&self, lock: usize, place: Place) {
        self.change(lock, |counted| counted.admitted.entry(place).or_default().running += 1);
    }

    pub(crate) fn left(&self, lock: usize, place: Place) {
        self.change(lock, |counted| counted.leaves(place, |there| there.running -= 1));
    }

    pub(crate) fn lost(&self, lock: usize, place: Place, until: Instant) {
        self.change(lock, |counted| {
            let there = counted.admitted.entry(place).or_default();
            there.running -= 1;
            there.orphans.push(until);
        });
    }

    pub(crate) fn orphan_ended(&self, lock: usize, place: Place, until: Instant) {
        self.change(lock, |counted| {
            counted.leaves(place, |there| {
                let orphan = there
                    .orphans
                    .iter()
                    .position(|other| *other == until)
                    .expect("it was lost before");
                there.orphans.remove(orphan);
            });
        });
    }

    /// There is another process now, which knows of nothing.
    pub(crate) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    pub(crate) fn check(&self, lock: usize, gate: &GateState) {
        let ledger = self.0.borrow();
        let nothing = Counted::default();
        let counted = ledger.get(&lock).unwrap_or(&nothing);
        let ought = counted
            .admitted
            .iter()
            .map(|(place, there)| (place.1, there.running, there.orphans.len()));
        let counts =
            gate.at_worker.iter().map(|there| (there.tenure.get(), there.running, there.orphans));
        assert!(
            ought.clone().eq(counts.clone()),
            "a gate counts {gate:?} and not {:?}",
            ought.collect::<Vec<_>>()
        );
    }

    /// Whether something stops to count right now that a request of another tenure may have waited
    /// for.
    pub(crate) fn opens_at(&self, lock: usize, now: Instant) -> bool {
        self.0.borrow().get(&lock).is_some_and(|counted| {
            let mut orphans = counted.admitted.values().flat_map(|there| &there.orphans);
            counted.left == Some(now) || orphans.any(|until| *until == now)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().values().all(|counted| counted.admitted.is_empty())
    }

    fn change(&self, lock: usize, change: impl FnOnce(&mut Counted)) {
        change(self.0.borrow_mut().entry(lock).or_default());
    }
}

impl Counted {
    fn leaves(&mut self, place: Place, leave: impl FnOnce(&mut AtWorker)) {
        let there = self.admitted.entry(place).or_default();
        leave(there);
        if there.running == 0 && there.orphans.is_empty() {
            self.admitted.remove(&place);
        }
        self.left = Some(Instant::now());
    }
}
