//! Who held which lock when, who waited at a barrier, and when a store was not to be relied on.

mod bars;
mod shown;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use fencepost_locks::TenureChange;
use fencepost_policy::{Layout, LockKey, Revision, Tenure};
use smol_str::SmolStr;

pub use self::bars::Trouble;
use self::bars::{Bar, End, Ending, Outage, WaitBar};
use super::record::{Decision, Outcome};
use super::text::shown_owner;

/// How many locks have a row. One more, and the row goes that has been quiet for longest. The
/// dashboard keeps as many.
const ROWS_MAX: usize = 1_000;

/// How many tenures and waits of one lock are kept. A bar takes some hundred bytes, so all rows
/// have less than 25 MB.
const BARS_MAX: usize = 50;

/// How many outages are kept.
const OUTAGES_MAX: usize = 200;

/// A lock, among all sources.
pub type LockId = (Arc<str>, LockKey);

/// One row a lock.
#[derive(Debug)]
pub struct Timeline {
    since: SystemTime,
    rows: HashMap<LockId, Row>,
    outages: VecDeque<Outage>,
    /// Grows with every change; each row and the outages have the number of their last.
    version: u64,
    outages_version: u64,
    /// Whether a row went for another one.
    truncated: bool,
}

#[derive(Debug)]
struct Row {
    layout: Layout,
    tenures: VecDeque<Bar>,
    waits: VecDeque<WaitBar>,
    version: u64,
}

/// The tenure that is known of a lock has changed.
#[derive(Debug)]
pub struct TenureNews {
    /// When that was learnt, by the clock on the wall.
    pub at: SystemTime,
    /// The source of the lock.
    pub source: Arc<str>,
    /// What has changed.
    pub change: TenureChange,
}

/// What a row does not know by itself.
#[derive(Debug, Default)]
pub struct RowContext {
    /// The routes that the lock guards.
    pub routes: Vec<String>,
    /// The tenure that holds it.
    pub present: Option<Tenure>,
}

/// A request waits at a barrier, or has ceased to.
#[derive(Debug)]
pub struct Wait {
    /// When.
    pub at: SystemTime,
    /// The source of the lock.
    pub source: Arc<str>,
    /// The lock.
    pub lock: LockKey,
    /// How the lock's record is laid out.
    pub layout: Layout,
    /// The owner that was presented, as it is shown.
    pub owner: SmolStr,
    /// The revision that was presented.
    pub revision: Revision,
    /// What happened.
    pub step: WaitStep,
}

/// What a wait has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStep {
    /// It began, while so many requests of earlier tenures might be at the worker.
    Began {
        /// How many.
        drained: usize,
    },
    /// It ended, and the request went in.
    Entered,
    /// It lasted for `handoff_timeout`.
    TimedOut,
    /// It ended in another way: the token was refused, or the client left.
    GivenUp,
}

impl Timeline {
    /// An empty one, that begins now.
    pub fn new() -> Timeline {
        Timeline {
            since: SystemTime::now(),
            rows: HashMap::new(),
            outages: VecDeque::new(),
            version: 0,
            outages_version: 0,
            truncated: false,
        }
    }

    /// The number of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Notes that a tenure ended or began.
    pub fn tenure(&mut self, news: TenureNews) {
        let TenureNews { at, source, change } = news;
        let TenureChange { at: _, lock, layout, ended, began, is_first_news } = change;
        let row = self.row((source, lock), layout);
        if let Some(bar) = row.tenures.back_mut().filter(|bar| !bar.has_ended()) {
            // A lock that was forgotten and is known again: the same tenure, shown farther back or
            // not.
            let same = |began: &Tenure| {
                began.first <= bar.last && shown_owner(began.owner.as_bytes()) == bar.owner
            };
            if let Some(again) = began.as_ref().filter(|began| same(began)) {
                bar.last = bar.last.max(again.last);
                bar.ended = None;
                return;
            }
            if let Some(ended) = ended.filter(|ended| ended.first == bar.first) {
                bar.last = ended.last;
            }
            // If it was not tracked meanwhile, nobody knows when.
            bar.ended.get_or_insert(End { at, how: Ending::Seen });
        }
        if let Some(tenure) = began {
            push(&mut row.tenures, Bar::new(tenure, at, !is_first_news), BARS_MAX);
        }
    }

    /// Notes so many refusals, or what would have been some, on the bar of the tenure whose
    /// revision was presented.
    pub fn refused(&mut self, decision: &Decision, times: u64) {
        let (Some(source), Some(lock), Some(revision)) =
            (&decision.route.source, &decision.lock, decision.revision)
        else {
            return;
        };
        let count: fn(&mut Bar) -> &mut u64 = match decision.outcome {
            Outcome::Refused(_) => |bar| &mut bar.refused,
            Outcome::WouldBeRefused(_) => |bar| &mut bar.would_be_refused,
            Outcome::LetPast(_) | Outcome::Admitted => return,
        };
        let Some(row) = self.rows.get_mut(&(Arc::clone(source), lock.clone())) else { return };
        // Of a tenure that goes on, the revisions that name it may have grown since it began.
        let named = |bar: &&mut Bar| !bar.has_ended() || revision <= bar.last;
        let claimed = row.tenures.iter_mut().rev().find(|bar| bar.first <= revision).filter(named);
        if let Some(bar) = claimed {
            *count(bar) += times;
            bar.last_refused = Some(decision.at);
            self.version += 1;
            row.version = self.version;
        }
    }

    /// Notes that a request waits, or has ceased to. Those of one tenure that wait together are
    /// one.
    pub fn wait(&mut self, wait: Wait) {
        let Wait { at, source, lock, layout, owner, revision, step } = wait;
        let row = self.row((source, lock), layout);
        let open =
            row.waits.iter_mut().rev().find(|bar| bar.revision == revision && bar.ended.is_none());
        match (step, open) {
            (WaitStep::Began { .. }, Some(bar)) => {
                bar.requests += 1;
                bar.waiting += 1;
            }
            (WaitStep::Began { drained }, None) => {
                let (requests, waiting, ended, outcome) = (1, 1, None, None);
                push(
                    &mut row.waits,
                    WaitBar {
                        owner,
                        revision,
                        began: at,
                        ended,
                        requests,
                        waiting,
                        drained,
                        outcome,
                    },
                    BARS_MAX,
                );
            }
            (WaitStep::Entered, Some(bar)) => bar.leave(at, Some("entered")),
            (WaitStep::TimedOut, Some(bar)) => bar.leave(at, Some("timed-out")),
            (WaitStep::GivenUp, Some(bar)) => bar.leave(at, None),
            (WaitStep::Entered | WaitStep::TimedOut | WaitStep::GivenUp, None) => {} // Its beginning was lost.
        }
    }

    /// Notes how a source is now.
    pub fn source(&mut self, source: &Arc<str>, trouble: Option<Trouble>, at: SystemTime) {
        let open = self
            .outages
            .iter_mut()
            .rev()
            .find(|outage| outage.source == *source && outage.ended.is_none());
        match open {
            Some(outage) if Some(outage.trouble) == trouble => return,
            Some(outage) => outage.ended = Some(End { at, how: Ending::Seen }),
            None if trouble.is_none() => return,
            None => {}
        }
        if let Some(trouble) = trouble {
            let outage = Outage { source: Arc::clone(source), trouble, began: at, ended: None };
            push(&mut self.outages, outage, OUTAGES_MAX);
        }
        self.version += 1;
        self.outages_version = self.version;
    }

    /// Ends the bars of sources that nothing is read from any more, and of locks that are tracked
    /// no longer: they would go on for ever.
    pub fn end_untracked(
        &mut self,
        is_read: impl Fn(&str) -> bool,
        is_tracked: impl Fn(&str, &LockKey) -> bool,
        at: SystemTime,
    ) {
        let end = Some(End { at, how: Ending::Untracked });
        for outage in self.outages.iter_mut().filter(|outage| outage.ended.is_none()) {
            if !is_read(&outage.source) {
                outage.ended = end;
                self.version += 1;
                self.outages_version = self.version;
            }
        }
        for ((source, lock), row) in &mut self.rows {
            let open = row.tenures.back_mut().filter(|bar| bar.ended.is_none());
            if let Some(bar) = open.filter(|_| !is_tracked(source, lock)) {
                bar.ended = end;
                self.version += 1;
                row.version = self.version;
            }
        }
    }

    fn row(&mut self, id: LockId, layout: Layout) -> &mut Row {
        if !self.rows.contains_key(&id) && self.rows.len() >= ROWS_MAX {
            let quietest =
                self.rows.iter().min_by_key(|(_, row)| row.version).map(|(id, _)| id.clone());
            quietest.map(|id| self.rows.remove(&id));
            self.truncated = true;
        }
        self.version += 1;
        let new = Row { layout, tenures: VecDeque::new(), waits: VecDeque::new(), version: 0 };
        let row = self.rows.entry(id).or_insert(new);
        row.version = self.version;
        row
    }
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new()
    }
}

fn push<T>(bars: &mut VecDeque<T>, bar: T, max: usize) {
    if bars.len() >= max {
        bars.pop_front();
    }
    bars.push_back(bar);
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
