//! Whether the store is still the one we know: revisions never go down, unless it was restored from
//! a backup.
//!
//! After a restore cluster and member ids are the same, as a rule; all that shows is that revisions
//! are lower, and terms ([`Identity`]). So each quorum read is held against the highest revision
//! that had been seen when it was *sent*, and against what its member had told by then. One that is
//! below makes nothing fresh: a member may have answered with old data. [`BEHIND_MAX`] such in a
//! row, each sent after the one before was known, are a store that went back: `store-regressed`.
//!
//! An *era* is a time through which the store has one history. What was learnt in one era is not
//! built upon in another, since a revision means another write there. A new era begins when the
//! store has grown beyond all that had been seen, or when the operator accepts that it went back.
//!
//! Growing beyond all that had been seen makes what lies below no better: up to there a revision
//! may have been given out twice. That stays *distrusted* until the operator accepts it, in later
//! processes too: nothing else tells them. So is what lies below all that an earlier process had
//! seen of another cluster: a restore can give etcd another id.
//!
//! It does not notice a store that was restored and has grown beyond all that had been seen, terms
//! included, before it was read again.
//!
//! Cached news also needs a watch that is *up*: caught up, so that events arrive as they happen.
//! Each watch that catches up gets a number. Locks and scopes note the number of the watch that was
//! up when their newest read was sent. [`WatchState`] says from which number on that admits.
//!
//! Trust outlives its source as a [`StorePast`]: gates are forgotten with their source, and what
//! that leans on must not be.

use std::num::NonZeroU32;
use std::sync::Arc;

use fencepost_policy::Revision;
use tokio::time::Instant;

use super::identity::{Identity, StoreIdentity};
use crate::store::Answerer;
use crate::sync::{ArcSwap, Mutex, MutexGuard};

/// How many reads in a row may be behind before the store counts as regressed.
const BEHIND_MAX: u32 = 3;

/// The number of an era. Short, as each lock has it twice; a store that is restored 65,536 times
/// while a process runs begins them anew.
pub(crate) type Era = u16;

/// The number of a watch that has caught up.
pub(crate) type WatchNumber = NonZeroU32;

/// Whether cached news admits, as far as the watch decides that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchState {
    /// A watch has been up all the time since the watch of that number caught up. News admits if
    /// its read was sent since then.
    Up { since: WatchNumber },
    /// No watch is up: only confirming reads admit.
    Down,
    /// The watch was lost, and a confirming read that was sent since then has failed. Cached news
    /// admits up to `max_age`.
    DownReadsFail,
}

/// What every judgement needs to know of a source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Glance {
    pub(crate) distrusted_through: Option<Revision>,
    pub(crate) watch: WatchState,
}

/// What was known of the store when a read was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) era: Era,
    /// The newest watch that had caught up, if one was up.
    watch: Option<WatchNumber>,
    /// How often a watch that was up had been lost.
    losses: u32,
    max_seen: u64,
    behind: u32,
}

impl Sent {
    /// The watch that was up when this was sent.
    pub(crate) fn watch(&self) -> Option<WatchNumber> {
        self.watch
    }

    /// The watch that was up when this was sent, for what is watched since the watch of that
    /// number.
    pub(crate) fn watch_since(&self, watched_since: Option<WatchNumber>) -> Option<WatchNumber> {
        let since = watched_since?;
        self.watch.filter(|watch| *watch >= since)
    }
}

/// What an answer is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may be used.
    Trusted,
    /// It is behind what had been seen when it was sent.
    Behind,
    /// It is behind, and with it the store counts as regressed; or it already does.
    Regressed,
    /// The store has grown beyond all it had shown before it went back: a new era has begun, read
    /// again.
    Recovered,
    /// It is of another cluster than an earlier process saw. Nothing is believed up to where that
    /// was seen; read again.
    AnotherCluster { found: u64, seen: u64 },
    /// It was sent in an earlier era.
    Outdated,
}

#[derive(Debug)]
pub(crate) struct Trust {
    state: Mutex<State>,
    /// Beside the state, so that judging takes no lock.
    glance: ArcSwap<Glance>,
}

#[derive(Debug, Clone)]
struct State {
    era: Era,
    identity: Identity,
    /// How many watches have caught up.
    watches: u32,
    up_since: Option<WatchNumber>,
    /// How often a watch that was up was lost.
    losses: u32,
    /// A confirming read that was sent since the last loss has failed, and none has been answered
    /// since then.
    reads_fail: bool,
    /// When the newest read was sent that was answered.
    answered: Option<Instant>,
    max_seen: u64,
    behind: u32,
    anomalies: u64,
    /// Nothing is read or watched for knowledge until a new era begins.
    suspended: bool,
    /// The revision up to which nothing is believed, if the store went back.
    distrusted_through: Option<Revision>,
    /// The highest revision up to which nothing is believed of a lock, if one went back whose
    /// revisions are its own.
    lock_distrusted_through: Option<Revision>,
}

/// What a source has learnt of its store: how far it had come, and whether it went back. It keeps
/// neither the source going nor anything else of it.
///
/// The next source over the same store goes on with it
/// ([`SourceOptions::past`](super::shared::SourceOptions)). Its gates begin with nothing, and what
/// admits there may be no older than what the gates before them had learnt.
#[derive(Debug, Clone)]
pub struct StorePast(Arc<Trust>);

impl StorePast {
    pub(crate) fn of(trust: &Arc<Trust>) -> StorePast {
        StorePast(Arc::clone(trust))
    }

    /// The highest revision that was seen of it.
    pub fn highest_seen(&self) -> Option<Revision> {
        self.0.max_seen()
    }

    /// The identity that the store has reported.
    pub fn store(&self) -> StoreIdentity {
        self.0.identity()
    }

    /// Whether the store went back, and nobody has accepted that.
    pub fn went_back(&self) -> bool {
        self.0.distrusted_through().is_some()
    }

    /// Accepts that the store went back, where its source has ended: the next one believes it.
    /// `forget` drops what else is kept of before. Says whether there was anything to accept; if
    /// not, nothing changes.
    pub fn accept_regression(&self, forget: impl FnOnce()) -> bool {
        let went_back = self.went_back();
        if went_back {
            self.0.accept(forget);
        }
        went_back
    }
}

impl Trust {
    /// `highest_seen`: what an earlier process had seen.
    pub(crate) fn new(highest_seen: Option<Revision>) -> Trust {
        Trust::from(State::new(highest_seen.map_or(0, Revision::get)))
    }

    /// Sets the store identity that an earlier process has seen.
    pub(crate) fn in_store(self, seen: StoreIdentity) -> Trust {
        self.state().identity = Identity::new(seen);
        self
    }

    /// Distrusts the store up to a revision. An earlier process had seen the store up to there and
    /// found that it went back, and nobody has accepted that.
    pub(crate) fn distrusting(self, through: Option<Revision>) -> Trust {
        if let Some(through) = through {
            self.saw(through);
            self.distrust(&mut self.state(), Some(through));
        }
        self
    }

    /// Goes on where the source has ended that had learnt this. What its thread, in its last
    /// moments, still does changes nothing here: nobody has been admitted by it.
    pub(crate) fn after(past: &StorePast) -> Trust {
        let state = past.0.state();
        // Nothing of this source has been watched, so nothing is lost yet.
        let unwatched = State { up_since: None, losses: 0, reads_fail: false, ..state.clone() };
        Trust::from(State { anomalies: 0, lock_distrusted_through: None, ..unwatched })
    }

    fn from(state: State) -> Trust {
        Trust { glance: ArcSwap::new(Arc::new(state.glance())), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it counts")
    }

    /// To be called right before a read is sent.
    pub(crate) fn sending(&self) -> Sent {
        let state = self.state();
        let State { era, max_seen, behind, losses, .. } = *state;
        Sent { at: Instant::now(), era, watch: state.watch(), losses, max_seen, behind }
    }

    /// No watch is up any more.
    pub(crate) fn watch_fell_behind(&self) {
        let mut state = self.state();
        if state.up_since.take().is_some() {
            state.losses = state.losses.wrapping_add(1);
            self.show(&state);
        }
    }

    /// A watch has caught up. Returns its number, and whether none was up before.
    pub(crate) fn watch_caught_up(&self) -> (WatchNumber, bool) {
        let mut state = self.state();
        state.watches += 1;
        let number = WatchNumber::new(state.watches).expect("it was just raised");
        let is_first = state.up_since.is_none();
        state.up_since.get_or_insert(number);
        state.reads_fail = false;
        self.show(&state);
        (number, is_first)
    }

    /// Takes note that a read failed that would have confirmed what is known, unless a later one
    /// was answered. Whether cached news admits because of that, and did not before.
    pub(crate) fn confirm_failed(&self, sent: &Sent) -> bool {
        let mut state = self.state();
        // Before the first loss, nothing has been admitted by cached news.
        let is_newest = state.answered.is_none_or(|answered| answered < sent.at);
        let is_sent_since = state.up_since.is_none()
            && state.losses > 0
            && sent.losses == state.losses
            && is_newest;
        let begins = is_sent_since && !std::mem::replace(&mut state.reads_fail, true);
        if begins {
            self.show(&state);
        }
        begins
    }

    /// Takes note of an answer: its revision, and who gave it.
    pub(crate) fn received(
        &self,
        sent: &Sent,
        revision: Revision,
        by: Option<Answerer>,
    ) -> Standing {
        let mut state = self.state();
        if sent.era != state.era {
            return Standing::Outdated;
        }
        if state.suspended {
            if revision.get() <= state.max_seen {
                return Standing::Regressed;
            }
            state.begin_era(revision.get());
            by.iter().for_each(|by| state.identity.note(by));
            return Standing::Recovered;
        }
        if let Some(by) = by
            && let Some(seen) = state.identity.other_than(&by)
        {
            state.identity = Identity::default();
            state.identity.note(&by);
            let through = Revision::new(state.max_seen);
            self.distrust(&mut state, through);
            return Standing::AnotherCluster { found: by.cluster, seen };
        }
        let is_behind = revision.get() < sent.max_seen;
        if !is_behind && !by.is_some_and(|by| state.identity.has_another_log(&by, sent.at)) {
            state.behind = 0;
            state.max_seen = state.max_seen.max(revision.get());
            by.iter().for_each(|by| state.identity.note(by));
            state.answered = state.answered.max(Some(sent.at));
            if std::mem::take(&mut state.reads_fail) {
                self.show(&state);
            }
            return Standing::Trusted;
        }
        state.anomalies += 1;
        // Reads that were in flight together tell of one moment: they count once.
        if sent.behind == state.behind {
            state.behind += 1;
        }
        if state.behind < BEHIND_MAX {
            return Standing::Behind;
        }
        state.suspended = true;
        let through = Revision::new(state.max_seen);
        self.distrust(&mut state, through);
        Standing::Regressed
    }

    /// Takes note of the revision of an event.
    pub(crate) fn saw(&self, revision: Revision) {
        let mut state = self.state();
        state.max_seen = state.max_seen.max(revision.get());
    }

    /// Begins an era in which nothing was seen yet. Distrust ends when `forget` has dropped all
    /// that was learnt before.
    pub(crate) fn accept(&self, forget: impl FnOnce()) {
        self.state().begin_era(0);
        forget();
        let mut state = self.state();
        state.lock_distrusted_through = None;
        self.distrust(&mut state, None);
    }

    /// Takes note that the store went back as far as one lock shows, whose revisions are its own.
    pub(crate) fn lock_went_back(&self, through: Revision) {
        let mut state = self.state();
        state.lock_distrusted_through = state.lock_distrusted_through.max(Some(through));
    }

    /// Takes note of an answer that showed less of a lock than was seen.
    pub(crate) fn lock_was_behind(&self) {
        self.state().anomalies += 1;
    }

    /// Believes nothing up to there.
    fn distrust(&self, state: &mut State, through: Option<Revision>) {
        state.distrusted_through = through;
        self.show(state);
    }

    fn show(&self, state: &State) {
        self.glance.swap(Arc::new(state.glance()));
    }

    /// What a judgement needs.
    pub(crate) fn glance(&self) -> Glance {
        **self.glance.load()
    }

    /// The revision up to which nothing is believed, if the store went back, or as far as one of its
    /// locks shows.
    pub(crate) fn distrusted_through(&self) -> Option<Revision> {
        let state = self.state();
        state.distrusted_through.max(state.lock_distrusted_through)
    }

    /// The revision up to which nothing is believed of any lock, if the store went back.
    pub(crate) fn all_distrusted_through(&self) -> Option<Revision> {
        self.state().distrusted_through
    }

    pub(crate) fn era(&self) -> Era {
        self.state().era
    }

    /// Whether the store is below what it had shown, and nothing it shows is used.
    pub(crate) fn is_suspended(&self) -> bool {
        self.state().suspended
    }

    pub(crate) fn max_seen(&self) -> Option<Revision> {
        Revision::new(self.state().max_seen)
    }

    /// What the store has told beside its revisions.
    pub(crate) fn identity(&self) -> StoreIdentity {
        self.state().identity.seen()
    }

    /// How many answers were behind.
    pub(crate) fn anomalies(&self) -> u64 {
        self.state().anomalies
    }
}

impl State {
    fn new(max_seen: u64) -> State {
        State {
            era: 1,
            identity: Identity::default(),
            watches: 0,
            up_since: None,
            losses: 0,
            reads_fail: false,
            answered: None,
            max_seen,
            behind: 0,
            anomalies: 0,
            suspended: false,
            distrusted_through: None,
            lock_distrusted_through: None,
        }
    }

    fn begin_era(&mut self, max_seen: u64) {
        self.identity.forget_terms();
        (self.era, self.max_seen) = (self.era.wrapping_add(1), max_seen);
        (self.behind, self.suspended) = (0, false);
    }

    fn watch(&self) -> Option<WatchNumber> {
        self.up_since.and(WatchNumber::new(self.watches))
    }

    fn glance(&self) -> Glance {
        let watch = match self.up_since {
            Some(since) => WatchState::Up { since },
            None if self.reads_fail => WatchState::DownReadsFail,
            None => WatchState::Down,
        };
        Glance { distrusted_through: self.distrusted_through, watch }
    }
}
