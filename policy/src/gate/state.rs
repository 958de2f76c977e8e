//! A gate, for the eyes of an operator.

use super::{Gate, Moment};
use crate::Revision;

/// What an operator sees of a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateState {
    /// The lowest revision that may still be admitted.
    pub floor: u64,
    /// What each tenure has at the worker, under its `first` revision.
    pub at_worker: Vec<TenureAtWorker>,
    /// Until when requests may run that an earlier process left at the worker; it may have passed.
    pub left_behind_until: Option<Moment>,
}

/// What an operator sees of a tenure's requests at the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenureAtWorker {
    /// The tenure's `first` revision.
    pub tenure: Revision,
    /// Requests that run.
    pub running: usize,
    /// Requests that may run, their end not having been seen.
    pub orphans: usize,
}

impl Gate {
    /// What an operator sees of it.
    pub fn state(&self) -> GateState {
        let at_worker = self.at_worker.iter().map(|(term, there)| TenureAtWorker {
            tenure: term.first,
            running: there.running,
            orphans: there.orphans.len(),
        });
        GateState {
            floor: self.floor,
            at_worker: at_worker.collect(),
            left_behind_until: self.left_behind.map(|(_, until)| until),
        }
    }
}
