//! From admitted to forwarded: the last step before a request's first byte goes upstream.
//!
//! Each lock has one gate. A gate is a state machine whose calls are atomic steps, so its driver
//! can share it between threads. Two rules need no clock and no correct news:
//!
//! - `floor-rises`: the floor is the lowest revision that may still be admitted. It never falls.
//! - `no-overlap`: a request enters only when no request of an earlier tenure can still be at the
//!   worker. A request is there from [`Gate::enter`] until [`Gate::leave`]. A request whose end the
//!   proxy did not see ([`Gate::lose`]) is an orphan. It counts for as long as the operator says
//!   that the worker can go on with it.

mod orphans;
mod shared;
mod state;
mod unseen;

pub use self::orphans::OrphanId;
use self::orphans::Orphans;
pub use self::shared::AskedGate;
use self::shared::Shared;
pub use self::state::{GateState, TenureAtWorker};
use crate::small_map::SmallMap;
use crate::{
    FenceToken, Holding, Known, Layout, Rejection, Revision, Snapshot, Tenure, Verdict, judge,
};

/// The proof that a token was admitted. Only [`Gate::enter`] makes one, and [`Gate::leave`] or
/// [`Gate::lose`] takes it back.
#[derive(Debug)]
#[must_use = "a request that was let in has to leave"]
pub struct Admission {
    term: Term,
}

impl Admission {
    /// The `first` revision of the tenure it was admitted under.
    pub fn tenure(&self) -> Revision {
        self.term.first
    }

    /// That tenure's place in the order of all, to ask whether it has ended ([`Gate::has_ended`])
    /// without holding the proof.
    pub fn term(&self) -> Term {
        self.term
    }
}

/// A tenure's place in the order of all tenures of its lock: a later one's is higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// How often the operator has accepted that the store went back: revisions compare within an
    /// era only.
    era: u64,
    first: Revision,
}

/// A moment on the driver's monotonic clock, in nanoseconds since an origin of its choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

/// What is remembered of the process that kept this lock's gate before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor {
    /// The `first` revision of the last tenure that it let in; `None` if revisions have lost their
    /// meaning since.
    pub tenure: Option<Revision>,
    /// Until when requests that it left at the worker may run; `None` if it left none.
    pub until: Option<Moment>,
    /// Whether requests may be among them that are not of that tenure, nor of one that it did not
    /// have to wait for.
    pub others: bool,
}

/// What keeps a request from the worker, for now or for good.
#[derive(Debug)]
pub enum EnterError {
    /// Requests of an earlier tenure may still be at the worker, through this proxy or another of
    /// its group ([`Gate::unclear`]): try again when the barrier may have opened.
    Wait,
    /// The tenure with this `first` revision has the worker to itself, but a later process must
    /// know that before its first request goes out: record it, say so ([`Gate::recorded`]), then
    /// try again.
    Record(Revision),
    /// It is refused.
    Refused(Rejection),
    /// What we know has aged while the request waited: ask the store, then try again.
    Confirm,
}

/// What one tenure has at the worker.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct AtWorker {
    running: usize,
    orphans: Orphans,
}

impl AtWorker {
    fn is_empty(&self) -> bool {
        self.running == 0 && self.orphans.is_empty()
    }

    /// Whether a later tenure has to wait for it.
    fn bars(&self, now: Moment) -> bool {
        self.running > 0 || self.orphans.bar(now)
    }
}

/// The ratchet and the barrier of one lock. The fields that every entry reads come first, in one
/// run of cache lines.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Gate {
    floor: u64,
    era: u64,
    records: Records,
    /// What the group's members have found; `None` if this proxy is alone before its worker.
    shared: Option<Shared>,
    /// Only tenures that have something there.
    at_worker: SmallMap<Term, AtWorker>,
    /// What may be left of an earlier process: the tenure that may go on at once, and until when
    /// all others wait.
    left_behind: Option<(Option<Revision>, Moment)>,
    orphans_made: u64,
    /// The tenure we last learnt of, to know what ends when the lock is released.
    present: Option<(Layout, Tenure)>,
}

/// Whether tenures are recorded before they enter.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
enum Records {
    /// They are not: nothing is remembered across restarts.
    #[default]
    No,
    /// They are, and this one is the last that was.
    Yes(Option<Revision>),
}

impl Gate {
    /// A gate whose tenures are recorded before they enter, after what is remembered of its
    /// predecessor.
    ///
    /// A process that was killed may have left requests of its last tenure at the worker, or of
    /// earlier ones that this tenure did not have to wait for because they are its own. So until
    /// their time has come only that tenure enters; nobody, where it may have left others' too.
    pub fn recording(predecessor: Option<Predecessor>) -> Gate {
        let Some(Predecessor { tenure, until, others }) = predecessor else {
            return Gate { records: Records::Yes(None), ..Gate::default() };
        };
        Gate {
            floor: tenure.map_or(0, Revision::get),
            left_behind: until.map(|until| (tenure.filter(|_| !others), until)),
            // The same tenure is recorded once more: what was in force then may not be what is in
            // force now.
            records: Records::Yes(None),
            ..Gate::default()
        }
    }

    /// Notes that a tenure is durably recorded.
    pub fn recorded(&mut self, tenure: Revision) {
        if let Records::Yes(recorded) = &mut self.records {
            *recorded = Some(tenure);
        }
    }

    /// Has the tenures recorded once more before another request of them enters: what was recorded
    /// says too little.
    pub fn record_again(&mut self) {
        if let Records::Yes(recorded) = &mut self.records {
            *recorded = None;
        }
    }

    /// Raises the floor to what `snapshot` shows: a tenure to its `first`, an end to one above what
    /// has ended. What was admitted below the floor is sealed by this very step
    /// ([`Gate::has_ended`]).
    ///
    /// The caller passes each snapshot to the gate before any request is judged by it. An old
    /// snapshot changes nothing, because the floor never falls.
    pub fn learn(&mut self, snapshot: &Snapshot) {
        match &snapshot.holding {
            Holding::Held(tenure) => {
                let first = self.first_of(snapshot.layout, tenure).get();
                if first >= self.floor {
                    self.floor = first;
                    self.present = Some((snapshot.layout, tenure.clone()));
                }
            }
            Holding::Free | Holding::Unreadable => self.end_present(),
        }
    }

    /// Raises the floor above the tenure that the gate last learnt of. That tenure has ended, and
    /// its successor need not be known.
    pub fn end_present(&mut self) {
        let floor = match self.present.take() {
            Some((Layout::Key, ended)) => ended.last.get() + 1,
            // A mutex holder may have been told any later revision, so may its successor, which
            // queued earlier.
            Some((Layout::Election | Layout::Mutex, ended)) => ended.first.get() + 1,
            None => 0,
        };
        self.floor = self.floor.max(floor);
    }

    /// Where a tenure begins for this gate. History may have been shown farther back this time than
    /// when the floor was raised to what was then its oldest known write: of one unbroken tenure,
    /// the narrower knowledge stands.
    fn first_of(&self, layout: Layout, tenure: &Tenure) -> Revision {
        match (layout, Revision::new(self.floor)) {
            (Layout::Key, Some(floor)) if (tenure.first..=tenure.last).contains(&floor) => floor,
            (Layout::Key | Layout::Election | Layout::Mutex, _) => tenure.first,
        }
    }

    /// Whether a tenure that was once let in has ended since.
    pub fn has_ended(&self, term: Term) -> bool {
        term.era < self.era || term.first.get() < self.floor
    }

    /// Judges the token once more and, if it is admitted and the barrier is open to it, counts the
    /// request in: one step, before its first byte goes upstream and after everything that may be
    /// waited for.
    ///
    /// What is `known` must not be older than what this gate learnt.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn enter<O: AsRef<[u8]>>(
        &mut self,
        token: &FenceToken<O>,
        known: Known<'_>,
        now: Moment,
    ) -> Result<Admission, EnterError> {
        let term = Term { era: self.era, first: self.may_enter(token, known, now)? };
        self.at_worker.or_default(term).running += 1;
        Ok(Admission { term })
    }

    /// [`Gate::enter`] without counting anything in: whether the token's tenure has the worker to
    /// itself.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn may_enter<O: AsRef<[u8]>>(
        &self,
        token: &FenceToken<O>,
        known: Known<'_>,
        now: Moment,
    ) -> Result<Revision, EnterError> {
        let tenure = match judge(token, known) {
            Verdict::Reject(rejection) => return Err(EnterError::Refused(rejection)),
            Verdict::Confirm => return Err(EnterError::Confirm),
            Verdict::Admit => known.snapshot().and_then(Snapshot::tenure),
        };
        let (Some(tenure), Some(snapshot)) = (tenure, known.snapshot()) else {
            return Err(EnterError::Refused(Rejection::Unverifiable)); // `judge` admits only what a tenure holds.
        };
        let first = self.first_of(snapshot.layout, tenure);
        if first.get() < self.floor || token.revision < first {
            return Err(EnterError::Refused(Rejection::ReplayedTenure));
        }
        if let Some(shared) = &self.shared {
            shared.may_enter(snapshot)?;
        }
        if self.bars(first, now) {
            return Err(EnterError::Wait);
        }
        match self.records {
            Records::Yes(recorded) if recorded != Some(first) => Err(EnterError::Record(first)),
            Records::Yes(_) | Records::No => Ok(first),
        }
    }

    /// Whether something may be at the worker that the tenure has to wait for.
    fn bars(&self, first: Revision, now: Moment) -> bool {
        let left_behind =
            self.left_behind.is_some_and(|(left, until)| left != Some(first) && until > now);
        let term = Term { era: self.era, first };
        left_behind || self.at_worker.below(&term).any(|there| there.bars(now))
    }

    /// Enters past the barrier, because the operator says that overlap is better than waiting. All
    /// else holds.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn enter_dangerously<O: AsRef<[u8]>>(
        &mut self,
        token: &FenceToken<O>,
        known: Known<'_>,
        now: Moment,
    ) -> Result<Admission, EnterError> {
        if let (Some(shared), Some(news)) = (&self.shared, known.snapshot()) {
            shared.may_judge(news)?;
        }
        let barred = std::mem::take(&mut self.at_worker);
        let left_behind = self.left_behind.take();
        let shared = self.shared.take();
        let entry = self.enter(token, known, now);
        self.shared = shared;
        for (term, there) in barred {
            let entered = self.at_worker.or_default(term);
            entered.running += there.running;
            entered.orphans = there.orphans; // Whoever has just entered is none.
        }
        self.left_behind = left_behind;
        entry
    }

    /// Takes back an admission: nothing of its request is at the worker any more. Says whether it
    /// was the last of its tenure that ran, so that the barrier may have opened to a later one: the
    /// time of all its orphans may have come, though nobody has ended them.
    pub fn leave(&mut self, admission: Admission) -> bool {
        let Admission { term } = admission;
        let Some(there) = self.at_worker.get_mut(&term) else {
            return false;
        };
        there.running -= 1;
        let was_last = there.running == 0;
        if there.is_empty() {
            self.at_worker.remove(&term);
        }
        was_last
    }

    /// Takes back an admission whose request may still be running at the worker, though its end
    /// will not be seen. It counts until then, or until [`Gate::end_orphan`].
    pub fn lose(&mut self, admission: Admission, until: Moment) -> OrphanId {
        let orphan = OrphanId(self.orphans_made);
        self.orphans_made += 1;
        let there = self.at_worker.or_default(admission.term);
        there.orphans.add(orphan, until);
        there.running -= 1;
        orphan
    }

    /// Sets whether somebody reads what an orphan's worker sends. As long as somebody does, only
    /// [`Gate::end_orphan`] ends the orphan, and no clock: a process that stood still may wake up
    /// past that time, with unread bytes that put it off.
    pub fn set_heard(&mut self, orphan: OrphanId, is_heard: bool) {
        self.at_worker.values_mut().for_each(|there| there.orphans.set_heard(orphan, is_heard));
    }

    /// Lets an orphan that has not been forgotten count until then: its worker was heard of
    /// meanwhile, so its time starts anew. It never counts for less long than before.
    pub fn postpone(&mut self, orphan: OrphanId, until: Moment) {
        self.at_worker.values_mut().for_each(|there| there.orphans.postpone(orphan, until));
    }

    /// Whether an orphan still counts, or would if its time had not come.
    pub fn counts(&self, orphan: OrphanId) -> bool {
        self.at_worker.values().any(|there| there.orphans.contains(orphan))
    }

    /// Forgets an orphan, because its end was seen after all or its time has come. Says whether it
    /// was still counted.
    pub fn end_orphan(&mut self, orphan: OrphanId) -> bool {
        let was_there = self.at_worker.values_mut().any(|there| there.orphans.remove(orphan));
        if was_there {
            self.at_worker.retain(|_, there| !there.is_empty());
        }
        was_there
    }

    /// Forgets all orphans, and what an earlier process left behind, because the operator knows
    /// that none is running; returns how many orphans those were.
    pub fn clear_orphans(&mut self) -> usize {
        self.left_behind = None;
        let orphans =
            self.at_worker.values_mut().map(|there| std::mem::take(&mut there.orphans).len()).sum();
        self.at_worker.retain(|_, there| !there.is_empty());
        orphans
    }

    /// Whether no request at the worker bars a later tenure, including one of a later process whose
    /// routes all enforce.
    pub fn is_clear(&self, now: Moment) -> bool {
        let has_come = |until: Option<Moment>| until.is_none_or(|until| until <= now);
        !self.at_worker.values().any(|there| there.bars(now))
            && has_come(self.left_behind.map(|(_, until)| until))
    }

    /// Lets the floor start anew, after the operator accepted that the store went back. What is at
    /// the worker stays counted.
    pub fn forget_floor(&mut self) {
        self.floor = 0;
        self.present = None;
        self.era += 1;
        self.shared = self.shared.take().map(|_| Shared::default());
        self.record_again();
        // Its revision may come up again, for another tenure.
        self.left_behind = self.left_behind.map(|(_, until)| (None, until));
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
