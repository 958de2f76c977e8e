//! Who held which lock when, who waited at a barrier, and when a store was not to be relied on.

mod bars;
mod shown;

use std::cmp::Reverse;
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

/// How many locks have a row. One more, and the row goes that has been quiet for longest. The dashboard keeps as many.
const ROWS_MAX: usize = 1_000;

/// How many tenures and waits of one lock are kept, and how many outages in all.
const BARS_MAX: usize = 200;

/// How many tenures and waits are kept in all: what is kept, and shown of it, stays small however many locks change hands. One takes some
/// hundred bytes.
const BARS_IN_ALL_MAX: usize = 20_000;

/// How many more of them may come until all are counted again, and make room for as many.
const BARS_UNCOUNTED_MAX: usize = 2_000;

/// A lock, among all sources.
pub type LockId = (Arc<str>, LockKey);

/// One row a lock.
#[derive(Debug)]
pub struct Timeline {
    since: SystemTime,
    rows: HashMap<LockId, Row>,
    /// Rows that were quiet for longest when all were last looked at, those for longest last, with their versions then.
    quiet: Vec<(u64, LockId)>,
    /// How many bars may have come since all were counted.
    uncounted: usize,
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
            quiet: Vec::new(),
            uncounted: 0,
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
        self.make_room_for_bar();
        let row = self.row((source, lock), layout);
        if let Some(bar) = row.tenures.back_mut().filter(|bar| !bar.has_ended()) {
            // A lock that was forgotten and is known again: the same tenure, shown farther back or not.
            let same = |began: &Tenure| began.first <= bar.last && shown_owner(began.owner.as_bytes()) == bar.owner;
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
            push(&mut row.tenures, Bar::new(tenure, at, !is_first_news));
        }
    }

    /// Notes so many refusals, or what would have been some, on the bar of the tenure whose revision was presented.
    pub fn refused(&mut self, decision: &Decision, times: u64) {
        let (Some(source), Some(lock), Some(revision)) = (&decision.route.source, &decision.lock, decision.revision)
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

    /// Notes that a request waits, or has ceased to. Those of one tenure that wait together are one.
    pub fn wait(&mut self, wait: Wait) {
        let Wait { at, source, lock, layout, owner, revision, step } = wait;
        self.make_room_for_bar();
        let row = self.row((source, lock), layout);
        let open = row.waits.iter_mut().rev().find(|bar| bar.revision == revision && bar.ended.is_none());
        match (step, open) {
            (WaitStep::Began { .. }, Some(bar)) => {
                bar.requests += 1;
                bar.waiting += 1;
            }
            (WaitStep::Began { drained }, None) => {
                let (requests, waiting, ended, outcome) = (1, 1, None, None);
                push(
                    &mut row.waits,
                    WaitBar { owner, revision, began: at, ended, requests, waiting, drained, outcome },
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
        let open = self.outages.iter_mut().rev().find(|outage| outage.source == *source && outage.ended.is_none());
        match open {
            Some(outage) if Some(outage.trouble) == trouble => return,
            Some(outage) => outage.ended = Some(End { at, how: Ending::Seen }),
            None if trouble.is_none() => return,
            None => {}
        }
        if let Some(trouble) = trouble {
            push(&mut self.outages, Outage { source: Arc::clone(source), trouble, began: at, ended: None });
        }
        self.version += 1;
        self.outages_version = self.version;
    }

    /// Ends the bars of sources that nothing is read from any more, and of locks that are tracked no longer: they would go on for ever.
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

    /// The locks that have the most lose their oldest. That is told to nobody who follows: what was there was so.
    fn make_room_for_bar(&mut self) {
        self.uncounted += 1;
        if self.uncounted <= BARS_UNCOUNTED_MAX {
            return;
        }
        self.uncounted = 1;
        let counts: Vec<_> = self.rows.values().flat_map(|row| [row.tenures.len(), row.waits.len()]).collect();
        let kept = |most: usize| counts.iter().map(|count| most.min(*count)).sum::<usize>();
        let fits = |most: &usize| kept(*most) <= BARS_IN_ALL_MAX - BARS_UNCOUNTED_MAX;
        let most = (1..=BARS_MAX).rev().find(fits).expect("there is room for one of each kind in every row");
        for row in self.rows.values_mut() {
            row.tenures.drain(..row.tenures.len().saturating_sub(most));
            row.waits.drain(..row.waits.len().saturating_sub(most));
        }
    }

    fn row(&mut self, id: LockId, layout: Layout) -> &mut Row {
        if !self.rows.contains_key(&id) && self.rows.len() >= ROWS_MAX {
            self.remove_quietest();
            self.truncated = true;
        }
        self.version += 1;
        let new = Row { layout, tenures: VecDeque::new(), waits: VecDeque::new(), version: 0 };
        let row = self.rows.entry(id).or_insert(new);
        row.version = self.version;
        row
    }

    /// All rows are looked at once for many that go: with more locks than rows, each that is heard of takes the place of another.
    fn remove_quietest(&mut self) {
        loop {
            while let Some((version, id)) = self.quiet.pop() {
                // What has changed since, or is new, has been quiet for less long than all that has not.
                if self.rows.get(&id).is_some_and(|row| row.version == version) {
                    self.rows.remove(&id);
                    return;
                }
            }
            if self.rows.is_empty() {
                return;
            }
            self.quiet = self.rows.iter().map(|(id, row)| (row.version, id.clone())).collect();
            self.quiet.sort_unstable_by_key(|(version, _)| Reverse(*version));
        }
    }
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new()
    }
}

fn push<T>(bars: &mut VecDeque<T>, bar: T) {
    if bars.len() >= BARS_MAX {
        bars.pop_front();
    }
    bars.push_back(bar);
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
