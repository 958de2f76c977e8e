//! Who held which lock when, who waited at a barrier, and when a store was not to be relied on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use fencepost_locks::TenureChange;
use fencepost_policy::{Layout, LockKey, Revision, Tenure};
use serde::Serialize;
use serde_json::{Value, json};
use smol_str::SmolStr;

use super::record::{Decision, Outcome, millis};
use super::text::shown_owner;

/// How many locks have a row. A further lock replaces the row that has been quiet for longest. The
/// dashboard keeps as many rows.
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

/// A tenure, as it is shown. A request that is `refused` presented a revision of it.
#[derive(Debug, Clone, Serialize)]
struct Bar {
    owner: SmolStr,
    first: u64,
    last: u64,
    began_ms: u64,
    /// If not, it began some time before.
    began_seen: bool,
    ended_ms: Option<u64>,
    end: Option<Ending>,
    refused: u64,
    /// How many would have been, had their route done more than watch.
    would_be_refused: u64,
    last_refused_ms: Option<u64>,
}

/// Requests of one tenure that wait together, as they are shown.
#[derive(Debug, Serialize)]
struct WaitBar {
    owner: SmolStr,
    revision: u64,
    began_ms: u64,
    ended_ms: Option<u64>,
    /// How many have waited, and how many still do.
    requests: u64,
    waiting: u64,
    drained: usize,
    outcome: Option<&'static str>,
}

/// A time in which a store was not to be relied on, as it is shown.
#[derive(Debug, Serialize)]
struct Outage {
    source: String,
    kind: Trouble,
    began_ms: u64,
    ended_ms: Option<u64>,
    end: Option<Ending>,
}

/// How a bar has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ending {
    /// As what it stands for has.
    Seen,
    /// Its lock, or its source, ceased to be tracked: what it stands for may go on.
    Untracked,
}

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trouble {
    /// It does not answer.
    Unreachable,
    /// It answers, but what is known is older than any route admits on.
    Stale,
    /// It shows less than it did before.
    Regressed,
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
    /// The number of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Notes that a tenure ended or began.
    pub fn tenure(&mut self, TenureNews { at, source, change }: TenureNews) {
        let TenureChange { at: _, lock, layout, ended, began, is_first_news } = change;
        let row = self.row((source, lock), layout);
        if let Some(bar) = row.tenures.back_mut().filter(|bar| !bar.has_ended()) {
            // A lock that was forgotten and is known again: the same tenure, shown farther back or
            // not.
            if let Some(again) = began.as_ref().filter(|began| bar.is_of(began)) {
                bar.last = bar.last.max(again.last.get());
                (bar.ended_ms, bar.end) = (None, None);
                return;
            }
            if let Some(ended) = ended.filter(|ended| ended.first.get() == bar.first) {
                bar.last = ended.last.get();
            }
            // If it was not tracked meanwhile, nobody knows when.
            if bar.end.is_none() {
                (bar.ended_ms, bar.end) = (Some(millis(at)), Some(Ending::Seen));
            }
        }
        if let Some(tenure) = began {
            push(&mut row.tenures, Bar::new(&tenure, at, !is_first_news), BARS_MAX);
        }
    }

    /// Notes a refusal, or what would have been one, on the bar of the tenure whose revision was
    /// presented.
    pub fn refused(&mut self, decision: &Decision) {
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
        let revision = revision.get();
        // Of a tenure that goes on, the revisions that name it may have grown since it began.
        let named = |bar: &&mut Bar| !bar.has_ended() || revision <= bar.last;
        let claimed = row.tenures.iter_mut().rev().find(|bar| bar.first <= revision).filter(named);
        if let Some(bar) = claimed {
            *count(bar) += 1;
            bar.last_refused_ms = Some(millis(decision.at));
            self.version += 1;
            row.version = self.version;
        }
    }

    /// Notes that a request waits, or has ceased to. Those of one tenure that wait together are
    /// one.
    pub fn wait(&mut self, wait: Wait) {
        let Wait { at, source, lock, layout, owner, revision, step } = wait;
        let (at, revision) = (millis(at), revision.get());
        let row = self.row((source, lock), layout);
        let mut waits = row.waits.iter_mut().rev();
        let open = waits.find(|bar| bar.revision == revision && bar.ended_ms.is_none());
        match (step, open) {
            (WaitStep::Began { .. }, Some(bar)) => {
                bar.requests += 1;
                bar.waiting += 1;
            }
            (WaitStep::Began { drained }, None) => {
                let bar = WaitBar {
                    owner,
                    revision,
                    began_ms: at,
                    ended_ms: None,
                    requests: 1,
                    waiting: 1,
                    drained,
                    outcome: None,
                };
                push(&mut row.waits, bar, BARS_MAX);
            }
            (WaitStep::Entered, Some(bar)) => bar.leave(at, Some("entered")),
            (WaitStep::TimedOut, Some(bar)) => bar.leave(at, Some("timed-out")),
            (WaitStep::GivenUp, Some(bar)) => bar.leave(at, None),
            (WaitStep::Entered | WaitStep::TimedOut | WaitStep::GivenUp, None) => {} // Its bar has gone.
        }
    }

    /// Notes how a source is now.
    pub fn source(&mut self, source: &str, trouble: Option<Trouble>, at: SystemTime) {
        let mut outages = self.outages.iter_mut().rev();
        let open = outages.find(|outage| outage.source == source && outage.end.is_none());
        match open {
            Some(outage) if Some(outage.kind) == trouble => return,
            Some(outage) => {
                (outage.ended_ms, outage.end) = (Some(millis(at)), Some(Ending::Seen));
            }
            None if trouble.is_none() => return,
            None => {}
        }
        if let Some(kind) = trouble {
            let (source, began_ms) = (source.to_owned(), millis(at));
            let outage = Outage { source, kind, began_ms, ended_ms: None, end: None };
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
        let ended = (Some(millis(at)), Some(Ending::Untracked));
        for outage in self.outages.iter_mut().filter(|outage| outage.end.is_none()) {
            if !is_read(&outage.source) {
                (outage.ended_ms, outage.end) = ended;
                self.version += 1;
                self.outages_version = self.version;
            }
        }
        for ((source, lock), row) in &mut self.rows {
            let open = row.tenures.back_mut().filter(|bar| bar.end.is_none());
            if let Some(bar) = open.filter(|_| !is_tracked(source, lock)) {
                (bar.ended_ms, bar.end) = ended;
                self.version += 1;
                row.version = self.version;
            }
        }
    }

    /// All but the rows.
    pub fn without_rows(&self, now: SystemTime) -> Value {
        json!({
            "now_ms": millis(now),
            "since_ms": millis(self.since),
            "truncated": self.truncated,
            "outages": self.outages,
        })
    }

    /// The locks whose rows have changed after that number, ordered by source and lock.
    pub fn changed_after(&self, version: u64) -> Vec<LockId> {
        let changed = self.rows.iter().filter(|(_, row)| row.version > version);
        let mut locks: Vec<_> = changed.map(|(id, _)| id.clone()).collect();
        locks.sort_unstable();
        locks
    }

    /// The row of a lock, as long as it has one. A tenure that goes on may have more revisions by
    /// now than when it was noted.
    pub fn row_json(&self, id: &LockId, context: &RowContext) -> Option<Value> {
        let (row, (source, lock)) = (self.rows.get(id)?, id);
        let tenures = row.tenures.iter().map(|bar| {
            let goes_on = |present: &&Tenure| {
                bar.end.is_none() && bar.owner == shown_owner(present.owner.as_bytes())
            };
            let present = context.present.as_ref().filter(goes_on);
            Bar {
                last: present.map_or(bar.last, |present| present.last.get().max(bar.last)),
                ..bar.clone()
            }
        });
        Some(json!({
            "source": &**source,
            "lock": lock.as_str(),
            "layout": row.layout.name(),
            "routes": context.routes,
            "tenures": tenures.collect::<Vec<_>>(),
            "waits": row.waits,
        }))
    }

    /// The outages, if they have changed after that number.
    pub fn outages_after(&self, version: u64) -> Option<Value> {
        (self.outages_version > version).then(|| json!(self.outages))
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
    /// An empty one, that begins now.
    fn default() -> Timeline {
        Timeline {
            since: SystemTime::now(),
            rows: HashMap::new(),
            outages: VecDeque::new(),
            version: 0,
            outages_version: 0,
            truncated: false,
        }
    }
}

impl Bar {
    fn new(tenure: &Tenure, began: SystemTime, began_seen: bool) -> Bar {
        Bar {
            owner: shown_owner(tenure.owner.as_bytes()),
            first: tenure.first.get(),
            last: tenure.last.get(),
            began_ms: millis(began),
            began_seen,
            ended_ms: None,
            end: None,
            refused: 0,
            would_be_refused: 0,
            last_refused_ms: None,
        }
    }

    /// Whether it is known to have ended.
    fn has_ended(&self) -> bool {
        self.end == Some(Ending::Seen)
    }

    fn is_of(&self, tenure: &Tenure) -> bool {
        tenure.first.get() <= self.last && shown_owner(tenure.owner.as_bytes()) == self.owner
    }
}

impl WaitBar {
    fn leave(&mut self, at: u64, outcome: Option<&'static str>) {
        self.waiting -= 1;
        self.outcome = self.outcome.or(outcome);
        if self.waiting == 0 {
            self.ended_ms = Some(at);
        }
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
