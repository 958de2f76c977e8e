//! What stands in a row of the timeline, and how it ends.

use std::sync::Arc;
use std::time::SystemTime;

use fencepost_policy::{Revision, Tenure};
use smol_str::SmolStr;

use crate::observe::text::shown_owner;

#[derive(Debug)]
pub(super) struct Bar {
    /// As it is shown, which is bounded.
    pub(super) owner: SmolStr,
    pub(super) first: Revision,
    pub(super) last: Revision,
    pub(super) began: SystemTime,
    /// Whether we saw it begin; if not, it began some time before.
    pub(super) began_seen: bool,
    pub(super) ended: Option<End>,
    pub(super) refused: u64,
    /// How many would have been, had their route done more than watch.
    pub(super) would_be_refused: u64,
    /// When a request came last that was one of either.
    pub(super) last_refused: Option<SystemTime>,
}

/// The end of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) at: SystemTime,
    pub(super) how: Ending,
}

/// How a bar has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// As what it stands for has.
    Seen,
    /// Its lock, or its source, ceased to be tracked: what it stands for may go on.
    Untracked,
}

impl Ending {
    pub(super) fn name(self) -> &'static str {
        match self {
            Ending::Seen => "seen",
            Ending::Untracked => "untracked",
        }
    }
}

#[derive(Debug)]
pub(super) struct WaitBar {
    pub(super) owner: SmolStr,
    pub(super) revision: Revision,
    pub(super) began: SystemTime,
    pub(super) ended: Option<SystemTime>,
    /// How many requests have waited, and how many still do.
    pub(super) requests: u64,
    pub(super) waiting: u64,
    pub(super) drained: usize,
    pub(super) outcome: Option<&'static str>,
}

/// A time in which a store was not to be relied on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outage {
    pub(super) source: Arc<str>,
    pub(super) trouble: Trouble,
    pub(super) began: SystemTime,
    pub(super) ended: Option<End>,
}

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It does not answer.
    Unreachable,
    /// It answers, but what is known is older than any route admits on.
    Stale,
    /// It shows less than it did before.
    Regressed,
}

impl Trouble {
    pub(super) fn name(self) -> &'static str {
        match self {
            Trouble::Unreachable => "unreachable",
            Trouble::Stale => "stale",
            Trouble::Regressed => "regressed",
        }
    }
}

impl Bar {
    pub(super) fn new(tenure: Tenure, began: SystemTime, began_seen: bool) -> Bar {
        let Tenure { owner, first, last } = tenure;
        let owner = shown_owner(owner.as_bytes());
        Bar {
            owner,
            first,
            last,
            began,
            began_seen,
            ended: None,
            refused: 0,
            would_be_refused: 0,
            last_refused: None,
        }
    }

    /// Whether it is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some_and(|end| end.how == Ending::Seen)
    }
}

impl WaitBar {
    pub(super) fn leave(&mut self, at: SystemTime, outcome: Option<&'static str>) {
        self.waiting -= 1;
        self.outcome = self.outcome.or(outcome);
        if self.waiting == 0 {
            self.ended = Some(at);
        }
    }
}
