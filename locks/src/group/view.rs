//! What operators see of a group.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_policy::group::{MemberId, NamedTenure};

/// A group, as this member knows it.
#[derive(Debug, Clone, Default)]
pub struct GroupView {
    /// This member; `None` until it has joined.
    pub me: Option<MemberId>,
    /// How long ago its newest acknowledged write was sent.
    pub write_age: Option<Duration>,
    /// What has gone wrong with the last write, if anything.
    pub problem: Option<String>,
    /// The other members, in the order of their names.
    pub others: Vec<MemberView>,
    /// What this member asks, the oldest first.
    pub asks: Vec<AskView>,
}

/// Another member.
#[derive(Debug, Clone)]
pub struct MemberView {
    /// Its name.
    pub id: MemberId,
    /// Its machine.
    pub host: String,
    /// Its version of fencepost.
    pub version: String,
    /// Whether it still lets requests in.
    pub state: MemberStateView,
    /// How long ago its newest write was first seen.
    pub seen_ago: Duration,
    /// In how long nothing of it can be at the worker any more; `None` while it is live.
    pub over_in: Option<Duration>,
    /// How many asks of it this member has not answered.
    pub unanswered: usize,
}

/// Whether a member still lets requests in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStateView {
    /// It does, or may.
    Live,
    /// It has ended in good order.
    Left,
    /// It was silent for too long.
    GivenUp,
}

impl MemberStateView {
    /// Every state there is.
    pub const ALL: [MemberStateView; 3] =
        [MemberStateView::Live, MemberStateView::Left, MemberStateView::GivenUp];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            MemberStateView::Live => "live",
            MemberStateView::Left => "left",
            MemberStateView::GivenUp => "given-up",
        }
    }
}

/// What this member asks.
#[derive(Debug, Clone)]
pub struct AskView {
    /// The tenure that wants to begin.
    pub tenure: NamedTenure,
    /// Who has not answered; `None` until the ask is written.
    pub waits_for: Option<Vec<MemberId>>,
    /// For how long requests have waited for it.
    pub age: Duration,
}

/// The upper ends of the intervals in which the times of asks are counted, in seconds.
pub const CLEAR_SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 5.0, 60.0];

/// What a member has counted since its process started.
#[derive(Debug, Default)]
pub struct GroupCounts {
    /// Asks that all have answered.
    pub asks_answered: AtomicU64,
    /// Asks that were not needed, since another member had found the tenure clear.
    pub asks_told: AtomicU64,
    /// Asks that nobody waited for any more.
    pub asks_ended: AtomicU64,
    /// Writes of the own key that were acknowledged.
    pub writes: AtomicU64,
    /// Writes that were not, or not at once.
    pub writes_failed: AtomicU64,
    /// How often this member ceased to stand.
    pub lapses: AtomicU64,
    /// How many silent members this one has given up.
    pub given_up: AtomicU64,
    /// Tenures that began though another member only watches their locks.
    pub unfenced: AtomicU64,
    /// Asks that another member's configuration does not fit.
    pub mismatches: AtomicU64,
    /// Writes to a worker that ended after this member had ceased to stand.
    pub late_writes: AtomicU64,
    clear: [AtomicU64; CLEAR_SECONDS.len() + 1],
    clear_nanos: AtomicU64,
}

impl GroupCounts {
    pub(super) fn took(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let interval = CLEAR_SECONDS.iter().position(|end| seconds <= *end);
        count(&self.clear[interval.unwrap_or(CLEAR_SECONDS.len())]);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.clear_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn has_lapsed(&self) -> bool {
        self.lapses.load(Ordering::Relaxed) > 0
    }

    /// How many asks took how long, by the intervals of [`CLEAR_SECONDS`] and one for all longer
    /// ones; and the sum of their times.
    pub fn clear_times(&self) -> ([u64; CLEAR_SECONDS.len() + 1], Duration) {
        let counts = self.clear.each_ref().map(|count| count.load(Ordering::Relaxed));
        (counts, Duration::from_nanos(self.clear_nanos.load(Ordering::Relaxed)))
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
