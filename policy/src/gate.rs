//! From admitted to forwarded: the last step before a request's first byte goes upstream.
//!
//! One gate per lock, a state machine: each call is one atomic step, and whoever drives it shares it between threads so.
//! Two rules need no clock and no correct news:
//!
//! - `floor-rises`: the floor is the lowest revision that may still be admitted. It never falls.
//! - `no-overlap`: a request of a tenure enters only when no request of an earlier tenure can still be at the worker. A
//!   request is there from [`Gate::enter`] until [`Gate::leave`]; one whose end was not seen ([`Gate::lose`]) is an
//!   orphan and counts for as long as the operator says that the worker can go on with it.

use std::collections::BTreeMap;

use crate::small_map::SmallMap;
use crate::{FenceToken, Holding, Known, Layout, Rejection, Revision, Snapshot, Tenure, Verdict, judge};

/// The proof that a token was admitted. Only [`Gate::enter`] makes one, and [`Gate::leave`] or [`Gate::lose`] takes it
/// back.
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

    /// That tenure's place in the order of all, to ask whether it has ended ([`Gate::has_ended`]) without holding the proof.
    pub fn term(&self) -> Term {
        self.term
    }
}

/// A tenure's place in the order of all tenures of its lock: a later one's is higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// How often the operator has accepted that the store went back: revisions compare within an era only.
    era: u64,
    first: Revision,
}

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
}

/// A moment on the driver's monotonic clock, in nanoseconds since an origin of its choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

/// Names a request whose end was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrphanId(u64);

/// What is remembered of the process that kept this lock's gate before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor {
    /// The `first` revision of the last tenure that it let in; `None` if revisions have lost their meaning since.
    pub tenure: Option<Revision>,
    /// Until when requests that it left at the worker may run; `None` if it left none.
    pub until: Option<Moment>,
}

/// What became of an attempt to enter.
#[derive(Debug)]
pub enum Entry {
    /// The request may go upstream, now.
    Admitted(Admission),
    /// Requests of an earlier tenure may still be at the worker: try again when the barrier may have opened.
    Wait,
    /// The tenure with this `first` revision has the worker to itself, but a later process must know that before its first
    /// request goes out: record it, say so ([`Gate::recorded`]), then try again.
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
    /// Until when each orphan counts.
    orphans: BTreeMap<OrphanId, Moment>,
}

impl AtWorker {
    fn is_empty(&self) -> bool {
        self.running == 0 && self.orphans.is_empty()
    }

    /// Whether a later tenure has to wait for it.
    fn bars(&self, now: Moment) -> bool {
        self.running > 0 || self.orphans.values().any(|until| *until > now)
    }
}

/// The ratchet and the barrier of one lock. What whoever enters looks at comes first, in one piece.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Gate {
    floor: u64,
    era: u64,
    records: Records,
    /// Only tenures that have something there.
    at_worker: SmallMap<Term, AtWorker>,
    /// What may be left of an earlier process: the tenure that may go on at once, and until when all others wait.
    left_behind: Option<(Option<Revision>, Moment)>,
    /// The generation of the configuration since which a route enforces that only watched before, and until when those
    /// that were let past before count.
    enforced_since: Option<(u64, Moment)>,
    /// How many requests were let past, by the generation of the configuration under which they were.
    watched: SmallMap<u64, usize>,
    /// All of those.
    passed: usize,
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

/// What an operator sees of a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateState {
    /// The lowest revision that may still be admitted.
    pub floor: u64,
    /// What each tenure has at the worker, under its `first` revision.
    pub at_worker: Vec<TenureAtWorker>,
    /// Requests at the worker that only passed: shadow, exempt, `dangerous_admit`.
    pub passed: usize,
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
    /// A gate whose tenures are recorded before they enter, after what is remembered of its predecessor.
    ///
    /// A process that was killed may have left requests of its last tenure at the worker, or of earlier ones that this tenure
    /// did not have to wait for because they are its own. So until their time has come only that tenure enters.
    pub fn recording(predecessor: Option<Predecessor>) -> Gate {
        let Some(Predecessor { tenure, until }) = predecessor else {
            return Gate { records: Records::Yes(None), ..Gate::default() };
        };
        Gate {
            floor: tenure.map_or(0, Revision::get),
            left_behind: until.map(|until| (tenure, until)),
            // The same tenure is recorded once more: what was in force then may not be what is in force now.
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

    /// Has the tenures recorded once more before another request of them enters: what was recorded says too little.
    pub fn record_again(&mut self) {
        if let Records::Yes(recorded) = &mut self.records {
            *recorded = None;
        }
    }

    /// Raises the floor to what `snapshot` shows: a tenure to its `first`, an end to one above what has ended. What was
    /// admitted below the floor is sealed by this very step ([`Gate::seals`]).
    ///
    /// Called before anyone judges by that snapshot. Old news does nothing: the floor never falls.
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

    /// Raises the floor above the tenure that we last learnt of: it has ended, whoever came after it.
    pub fn end_present(&mut self) {
        let floor = match self.present.take() {
            Some((Layout::Key, ended)) => ended.last.get() + 1,
            // A mutex holder may have been told any later revision, so may its successor, which queued earlier.
            Some((Layout::Election | Layout::Mutex, ended)) => ended.first.get() + 1,
            None => 0,
        };
        self.floor = self.floor.max(floor);
    }

    /// Where a tenure begins for this gate. History may have been shown farther back this time than when the floor was raised to
    /// what was then its oldest known write: of one unbroken tenure, the narrower knowledge stands.
    fn first_of(&self, layout: Layout, tenure: &Tenure) -> Revision {
        match (layout, Revision::new(self.floor)) {
            (Layout::Key, Some(floor)) if (tenure.first..=tenure.last).contains(&floor) => floor,
            (Layout::Key | Layout::Election | Layout::Mutex, _) => tenure.first,
        }
    }

    /// Whether the tenure that an admission was made under has ended since.
    pub fn seals(&self, admission: &Admission) -> bool {
        self.has_ended(admission.term)
    }

    /// Whether a tenure that was once let in has ended since.
    pub fn has_ended(&self, term: Term) -> bool {
        term.era < self.era || term.first.get() < self.floor
    }

    /// Judges the token once more and, if it is admitted and the barrier is open to it, counts the request in: one step,
    /// before its first byte goes upstream and after everything that may be waited for.
    ///
    /// What is `known` must not be older than what this gate learnt.
    pub fn enter<O: AsRef<[u8]>>(&mut self, token: &FenceToken<O>, known: Known<'_>, now: Moment) -> Entry {
        match self.may_enter(token, known, now) {
            Err(otherwise) => otherwise,
            Ok(first) => {
                let term = Term { era: self.era, first };
                self.at_worker.or_default(term).running += 1;
                Entry::Admitted(Admission { term })
            }
        }
    }

    /// Enters past the barrier, because the operator says that overlap is better than waiting. All else holds.
    pub fn enter_dangerously<O: AsRef<[u8]>>(&mut self, token: &FenceToken<O>, known: Known<'_>, now: Moment) -> Entry {
        let barred = std::mem::take(&mut self.at_worker);
        let left_behind = self.left_behind.take();
        let enforced_since = self.enforced_since.take();
        let entry = self.enter(token, known, now);
        for (term, there) in barred {
            let entered = self.at_worker.or_default(term);
            entered.running += there.running;
            entered.orphans.extend(there.orphans);
        }
        self.left_behind = left_behind;
        self.enforced_since = enforced_since;
        entry
    }

    /// The same without counting anything in: whether the token's tenure has the worker to itself.
    ///
    /// # Errors
    /// What [`Gate::enter`] would have answered instead of an admission.
    pub fn may_enter<O: AsRef<[u8]>>(
        &self,
        token: &FenceToken<O>,
        known: Known<'_>,
        now: Moment,
    ) -> Result<Revision, Entry> {
        let tenure = match judge(token, known) {
            Verdict::Reject(rejection) => return Err(Entry::Refused(rejection)),
            Verdict::Confirm => return Err(Entry::Confirm),
            Verdict::Admit => known.snapshot().and_then(Snapshot::tenure),
        };
        let (Some(tenure), Some(snapshot)) = (tenure, known.snapshot()) else {
            return Err(Entry::Refused(Rejection::Unverifiable)); // `judge` admits only what a tenure holds.
        };
        let first = self.first_of(snapshot.layout, tenure);
        if first.get() < self.floor || token.revision < first {
            return Err(Entry::Refused(Rejection::ReplayedTenure));
        }
        let term = Term { era: self.era, first };
        let left_behind = self.left_behind.is_some_and(|(left, until)| left != Some(first) && until > now);
        let passed_before = self.barred_by_passes().is_some_and(|until| until > now);
        if left_behind || passed_before || self.at_worker.below(&term).any(|there| there.bars(now)) {
            return Err(Entry::Wait);
        }
        match self.records {
            Records::Yes(recorded) if recorded != Some(first) => Err(Entry::Record(first)),
            Records::Yes(_) | Records::No => Ok(first),
        }
    }

    /// Lets a request past without judging it, counted. Configurations are numbered in the order in which they come in force;
    /// the request is under that one. `None` if its route only watched then and enforces by now: it has to be judged.
    pub fn pass(&mut self, reason: PassReason, generation: u64) -> Option<Pass> {
        let enforced = self.enforced_since.is_some_and(|(since, _)| generation < since);
        if reason == PassReason::Shadow && enforced {
            return None;
        }
        self.passed += 1;
        *self.watched.or_default(generation) += 1;
        Some(Pass { reason, counted: Some(generation) })
    }

    /// A route that only watched enforces from that configuration on. What it let past before may be anybody's: it counts as an
    /// earlier tenure's until it has left, or until then.
    pub fn enforce_since(&mut self, generation: u64, until: Moment) {
        // Several routes of the lock may turn, each with a time of its own.
        let (since, before) = self.enforced_since.unwrap_or((generation, until));
        self.enforced_since = Some((generation.max(since), until.max(before)));
    }

    /// Until when requests bar that were let past before the route enforced, if there are any.
    fn barred_by_passes(&self) -> Option<Moment> {
        let (generation, until) = self.enforced_since?;
        self.watched.below(&generation).next().map(|_| until)
    }

    /// Takes back an admission: nothing of its request is at the worker any more. Says whether it was the last of its tenure, so
    /// that the barrier may have opened to a later one.
    pub fn leave(&mut self, admission: Admission) -> bool {
        let Admission { term } = admission;
        let Some(there) = self.at_worker.get_mut(&term) else {
            return false;
        };
        there.running -= 1;
        let last = there.is_empty();
        if last {
            self.at_worker.remove(&term);
        }
        last
    }

    /// Takes back an admission whose request may still be running at the worker, though its end will not be seen. It counts
    /// until then, or until [`Gate::end_orphan`].
    pub fn lose(&mut self, admission: Admission, until: Moment) -> OrphanId {
        let orphan = OrphanId(self.orphans_made);
        self.orphans_made += 1;
        let there = self.at_worker.or_default(admission.term);
        there.orphans.insert(orphan, until);
        there.running -= 1;
        orphan
    }

    /// Lets an orphan that has not been forgotten count until then: its worker was heard of meanwhile, so its time starts anew.
    /// It never counts for less long than before.
    pub fn postpone(&mut self, orphan: OrphanId, until: Moment) {
        for counted in self.at_worker.values_mut().filter_map(|there| there.orphans.get_mut(&orphan)) {
            *counted = until.max(*counted);
        }
    }

    /// Whether an orphan still counts, or would if its time had not come.
    pub fn counts(&self, orphan: OrphanId) -> bool {
        self.at_worker.values().any(|there| there.orphans.contains_key(&orphan))
    }

    /// Forgets an orphan, because its end was seen after all or its time has come. Says whether it was still counted.
    pub fn end_orphan(&mut self, orphan: OrphanId) -> bool {
        self.retain_orphans(|id| id != orphan) > 0
    }

    /// Forgets all orphans and what an earlier process left behind, because the operator knows that none is running; returns
    /// how many orphans those were.
    pub fn clear_orphans(&mut self) -> usize {
        self.left_behind = None;
        self.retain_orphans(|_| false)
    }

    /// When the last of those stops to count whose end will not be seen, or need not: orphans, what an earlier process left
    /// behind, what was let past before the route enforced.
    pub fn unseen_until(&self) -> Option<Moment> {
        self.unseen().max()
    }

    /// When the next of those stops to count after `now`: the barrier may open then.
    pub fn next_unseen(&self, now: Moment) -> Option<Moment> {
        self.unseen().filter(|until| *until > now).min()
    }

    fn unseen(&self) -> impl Iterator<Item = Moment> {
        let orphans = self.at_worker.values().flat_map(|there| there.orphans.values());
        let left_behind = self.left_behind.map(|(_, until)| until);
        orphans.copied().chain(left_behind).chain(self.barred_by_passes())
    }

    /// Whether nothing is at the worker that a later tenure would have to wait for, be it in a later process whose routes all
    /// enforce.
    pub fn is_clear(&self, now: Moment) -> bool {
        let has_come = |until: Option<Moment>| until.is_none_or(|until| until <= now);
        !self.at_worker.values().any(|there| there.bars(now))
            && self.watched.is_empty()
            && has_come(self.left_behind.map(|(_, until)| until))
    }

    /// Takes back a pass. Says whether the barrier may have opened by that.
    pub fn leave_pass(&mut self, pass: Pass) -> bool {
        let Some(generation) = pass.counted else {
            return false;
        };
        self.passed -= 1;
        let barred = self.barred_by_passes().is_some();
        if let Some(watched) = self.watched.get_mut(&generation) {
            *watched -= 1;
            if *watched == 0 {
                self.watched.remove(&generation);
            }
        }
        barred && self.barred_by_passes().is_none()
    }

    /// Lets the floor start anew, after the operator accepted that the store went back. What is at the worker stays counted.
    pub fn forget_floor(&mut self) {
        self.floor = 0;
        self.present = None;
        self.era += 1;
        self.record_again();
        // Its revision may come up again, for another tenure.
        self.left_behind = self.left_behind.map(|(_, until)| (None, until));
    }

    /// What an operator sees of it.
    pub fn state(&self) -> GateState {
        let at_worker = self.at_worker.iter().map(|(term, there)| TenureAtWorker {
            tenure: term.first,
            running: there.running,
            orphans: there.orphans.len(),
        });
        GateState { floor: self.floor, at_worker: at_worker.collect(), passed: self.passed }
    }

    fn retain_orphans(&mut self, keep: impl Fn(OrphanId) -> bool) -> usize {
        let mut forgotten = 0;
        self.at_worker.retain(|_, there| {
            let before = there.orphans.len();
            there.orphans.retain(|id, _| keep(*id));
            forgotten += before - there.orphans.len();
            !there.is_empty()
        });
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{News, Owner};

    fn revision(number: u64) -> Revision {
        Revision::new(number).unwrap()
    }

    fn held(layout: Layout, owner: &str, first: u64, last: u64) -> Snapshot {
        let tenure = Tenure { owner: Owner::new(owner.as_bytes()), first: revision(first), last: revision(last) };
        Snapshot { layout, as_of: revision(last), holding: Holding::Held(tenure), waiters: [].into() }
    }

    fn free(layout: Layout, as_of: u64) -> Snapshot {
        Snapshot { layout, as_of: revision(as_of), holding: Holding::Free, waiters: [].into() }
    }

    fn enter(gate: &mut Gate, snapshot: &Snapshot, owner: &str, at: u64) -> Result<Admission, &'static str> {
        let token = FenceToken { owner, revision: revision(at) };
        match gate.enter(&token, Known::new(Some(snapshot), News::Fresh), Moment(0)) {
            Entry::Admitted(admission) => Ok(admission),
            Entry::Wait => Err("wait"),
            Entry::Record(_) => Err("record"),
            Entry::Refused(rejection) => Err(rejection.code()),
            Entry::Confirm => Err("confirm"),
        }
    }

    #[test]
    fn the_floor_rises_with_each_tenure_and_each_release_and_never_falls() {
        for (layout, after_release) in [(Layout::Key, 13), (Layout::Election, 11), (Layout::Mutex, 11)] {
            let mut gate = Gate::default();
            let mut floors = vec![];
            for snapshot in
                [held(layout, "a", 10, 12), free(layout, 15), held(layout, "a", 9, 9), held(layout, "b", 20, 20)]
            {
                gate.learn(&snapshot);
                floors.push(gate.state().floor);
            }
            assert_eq!(floors, [10, after_release, after_release, 20], "{layout:?}");
        }
    }

    #[test]
    fn what_an_older_snapshot_would_admit_stays_below_the_floor() {
        let mut gate = Gate::default();
        let old = held(Layout::Key, "a", 10, 10);
        gate.learn(&old);
        gate.learn(&held(Layout::Key, "b", 20, 20));
        assert_eq!(enter(&mut gate, &old, "a", 10).unwrap_err(), "replayed-tenure");
    }

    #[test]
    fn a_request_counts_as_at_the_worker_from_enter_to_leave() {
        let mut gate = Gate::default();
        let now = held(Layout::Key, "a", 10, 12);
        gate.learn(&now);
        let first = enter(&mut gate, &now, "a", 10).unwrap();
        let second = enter(&mut gate, &now, "a", 12).unwrap();
        assert_eq!(gate.state().at_worker, [TenureAtWorker { tenure: revision(10), running: 2, orphans: 0 }]);
        gate.leave(first);
        gate.leave(second);
        assert_eq!(gate.state().at_worker, []);
    }

    #[test]
    fn a_tenure_waits_until_its_predecessors_requests_have_left_the_worker() {
        let mut gate = Gate::default();
        let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
        gate.learn(&before);
        let first = enter(&mut gate, &before, "a", 10).unwrap();
        let second = enter(&mut gate, &before, "a", 10).unwrap();
        assert!(!gate.seals(&first));
        gate.learn(&after);
        assert!(gate.seals(&first));
        assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "wait");
        gate.leave(first);
        assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "wait");
        gate.leave(second);
        let third = enter(&mut gate, &after, "b", 20).unwrap();
        gate.leave(third);
    }

    #[test]
    fn a_request_whose_end_was_not_seen_counts_until_its_time_has_come_or_its_end_is_seen() {
        let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
        let token = FenceToken { owner: "b", revision: revision(20) };
        let known = Known::new(Some(&after), News::Fresh);
        let orphaned = || {
            let mut gate = Gate::default();
            gate.learn(&before);
            let admission = enter(&mut gate, &before, "a", 10).unwrap();
            gate.learn(&after);
            let orphan = gate.lose(admission, Moment(30));
            (gate, orphan)
        };
        let (mut gate, _) = orphaned();
        assert_eq!(gate.state().at_worker, [TenureAtWorker { tenure: revision(10), running: 0, orphans: 1 }]);
        assert!(matches!(gate.enter(&token, known, Moment(29)), Entry::Wait));
        assert_eq!(gate.unseen_until(), Some(Moment(30)));
        assert!(matches!(gate.enter(&token, known, Moment(30)), Entry::Admitted(_)));

        let (mut gate, orphan) = orphaned();
        assert!(gate.end_orphan(orphan));
        assert!(!gate.end_orphan(orphan));
        assert!(matches!(gate.enter(&token, known, Moment(0)), Entry::Admitted(_)));

        let (mut gate, _) = orphaned();
        assert_eq!(gate.clear_orphans(), 1);
        assert!(matches!(gate.may_enter(&token, known, Moment(0)), Ok(tenure) if tenure == revision(20)));
        assert_eq!(gate.state().at_worker, []);
    }

    #[test]
    fn an_orphan_that_is_heard_of_counts_for_longer_and_never_for_less_long() {
        let mut gate = Gate::default();
        let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
        let token = FenceToken { owner: "b", revision: revision(20) };
        let known = Known::new(Some(&after), News::Fresh);
        gate.learn(&before);
        let [heard, silent] = [30, 20].map(|until| {
            let admission = enter(&mut gate, &before, "a", 10).unwrap();
            gate.lose(admission, Moment(until))
        });
        gate.learn(&after);
        for until in [50, 40] {
            gate.postpone(heard, Moment(until));
            assert_eq!(gate.unseen_until(), Some(Moment(50)));
        }
        assert!(gate.end_orphan(silent));
        assert!(matches!(gate.enter(&token, known, Moment(49)), Entry::Wait));
        assert!(gate.may_enter(&token, known, Moment(50)).is_ok());
        gate.end_orphan(heard);
        gate.postpone(heard, Moment(90));
        assert_eq!((gate.unseen_until(), gate.counts(heard)), (None, false), "it was forgotten for good");
    }

    #[test]
    fn only_who_says_dangerous_passes_the_barrier_and_is_counted_all_the_same() {
        let mut gate = Gate::default();
        let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
        gate.learn(&before);
        let first = enter(&mut gate, &before, "a", 10).unwrap();
        gate.learn(&after);
        let mut enter_dangerously = |owner, at| {
            let token = FenceToken { owner, revision: revision(at) };
            gate.enter_dangerously(&token, Known::new(Some(&after), News::Fresh), Moment(0))
        };
        assert!(matches!(enter_dangerously("a", 10), Entry::Refused(Rejection::StaleTenure)));
        let Entry::Admitted(second) = enter_dangerously("b", 20) else { panic!("it is the holder") };
        assert_eq!(gate.state().at_worker.len(), 2);
        gate.leave(first);
        gate.leave(second);
        assert_eq!(gate.state().at_worker, []);
    }

    #[test]
    fn a_tenure_is_recorded_before_its_first_request_enters() {
        let mut gate = Gate::recording(None);
        let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
        gate.learn(&before);
        assert_eq!(enter(&mut gate, &before, "a", 10).unwrap_err(), "record");
        gate.recorded(revision(10));
        let first = enter(&mut gate, &before, "a", 10).unwrap();
        gate.learn(&after);
        assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "wait"); // Recorded only once the barrier has opened.
        gate.leave(first);
        assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "record");
    }

    #[test]
    fn after_a_crash_only_the_last_tenure_let_in_goes_on_at_once() {
        let (same, next) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
        let restarted = |until| Gate::recording(Some(Predecessor { tenure: Some(revision(10)), until }));
        let mut gate = restarted(Some(Moment(30)));
        gate.learn(&same);
        assert_eq!(enter(&mut gate, &same, "a", 10).unwrap_err(), "record");
        gate.recorded(revision(10));
        let admission = enter(&mut gate, &same, "a", 10).unwrap();
        gate.leave(admission);
        gate.learn(&next);
        assert_eq!(enter(&mut gate, &next, "b", 20).unwrap_err(), "wait");
        assert_eq!((gate.unseen_until(), gate.is_clear(Moment(29))), (Some(Moment(30)), false));
        let token = FenceToken { owner: "b", revision: revision(20) };
        let entry = gate.enter(&token, Known::new(Some(&next), News::Fresh), Moment(30));
        assert!(matches!(entry, Entry::Record(tenure) if tenure == revision(20)));

        let mut gate = restarted(None);
        gate.learn(&next);
        assert_eq!(enter(&mut gate, &next, "b", 20).unwrap_err(), "record");
        let mut gate = restarted(None);
        assert_eq!(enter(&mut gate, &held(Layout::Key, "z", 9, 9), "z", 9).unwrap_err(), "replayed-tenure");
    }

    #[test]
    fn history_that_is_shown_farther_back_than_before_locks_nobody_out() {
        // An earlier process saw the tenure begin at 50; now it is shown to have begun at 40. Its holder presents 60.
        let mut gate = Gate::recording(Some(Predecessor { tenure: Some(revision(50)), until: None }));
        let now = held(Layout::Key, "a", 40, 60);
        gate.learn(&now);
        assert_eq!(enter(&mut gate, &now, "a", 49).unwrap_err(), "replayed-tenure");
        assert_eq!(enter(&mut gate, &now, "a", 60).unwrap_err(), "record");
        gate.recorded(revision(50));
        let admission = enter(&mut gate, &now, "a", 50).unwrap();
        assert!(!gate.seals(&admission));
        assert_eq!(admission.tenure(), revision(50));
        gate.leave(admission);
        assert_eq!(gate.state().floor, 50);
    }

    #[test]
    fn a_tenure_that_is_known_to_have_ended_admits_nobody_though_its_successor_is_not_known_yet() {
        let mut gate = Gate::default();
        let before = held(Layout::Key, "a", 10, 12);
        gate.learn(&before);
        gate.end_present();
        assert_eq!(gate.state().floor, 13);
        assert_eq!(enter(&mut gate, &before, "a", 12).unwrap_err(), "replayed-tenure");
    }

    #[test]
    fn what_a_crash_left_behind_lets_no_tenure_of_a_restored_store_pass_by_its_number() {
        let mut gate = Gate::recording(Some(Predecessor { tenure: Some(revision(30)), until: Some(Moment(9)) }));
        gate.forget_floor();
        let reused = held(Layout::Key, "b", 30, 30);
        gate.learn(&reused);
        assert_eq!(enter(&mut gate, &reused, "b", 30).unwrap_err(), "wait");
    }

    #[test]
    fn an_accepted_regression_lets_the_floor_start_anew_and_keeps_the_barrier() {
        let mut gate = Gate::default();
        let (before, restored) = (held(Layout::Key, "a", 40, 40), held(Layout::Key, "b", 7, 7));
        gate.learn(&before);
        let admission = enter(&mut gate, &before, "a", 40).unwrap();
        gate.learn(&restored);
        assert_eq!(enter(&mut gate, &restored, "b", 7).unwrap_err(), "replayed-tenure");
        gate.forget_floor();
        gate.learn(&restored);
        assert!(gate.seals(&admission));
        assert_eq!(enter(&mut gate, &restored, "b", 7).unwrap_err(), "wait");
        gate.leave(admission);
        let after = enter(&mut gate, &restored, "b", 7).unwrap();
        gate.leave(after);
    }

    #[test]
    fn what_a_route_let_past_before_it_enforced_bars_until_it_has_left_or_its_time_has_come() {
        let mut gate = Gate::default();
        let now = held(Layout::Key, "a", 10, 10);
        gate.learn(&now);
        let may_enter = |gate: &Gate, at| {
            let token = FenceToken { owner: "a", revision: revision(10) };
            gate.may_enter(&token, Known::new(Some(&now), News::Fresh), Moment(at)).is_ok()
        };
        let pass =
            |gate: &mut Gate, reason, generation| gate.pass(reason, generation).expect("its route does not enforce");
        let before = pass(&mut gate, PassReason::Shadow, 1);
        let exempt = pass(&mut gate, PassReason::Exempt, 1);
        assert!(may_enter(&gate, 0), "another route of the lock enforces already");
        gate.enforce_since(2, Moment(5));
        gate.enforce_since(2, Moment(3)); // A second route of the lock, with a shorter time.
        let beside = pass(&mut gate, PassReason::Shadow, 2);
        assert_eq!([0, 4, 5].map(|at| may_enter(&gate, at)), [false, false, true]);
        assert_eq!((gate.unseen_until(), gate.next_unseen(Moment(4))), (Some(Moment(5)), Some(Moment(5))));
        assert!(!gate.leave_pass(before));
        assert!(!may_enter(&gate, 0), "what was exempt may be anybody's too");
        assert!(matches!(
            gate.enter_dangerously(
                &FenceToken { owner: "a", revision: revision(10) },
                Known::new(Some(&now), News::Fresh),
                Moment(0)
            ),
            Entry::Admitted(_)
        ));
        assert!(!may_enter(&gate, 0));
        assert!(gate.leave_pass(exempt), "the last opens the barrier");
        assert!(may_enter(&gate, 0));
        assert!(!gate.is_clear(Moment(9)), "a later process may enforce");
        assert!(!gate.leave_pass(beside));
        assert_eq!(gate.state().passed, 0);
    }

    #[test]
    fn what_has_not_gone_out_when_its_route_turns_to_enforce_is_judged_after_all() {
        let mut gate = Gate::default();
        gate.enforce_since(2, Moment(5));
        assert!(gate.pass(PassReason::Shadow, 1).is_none());
        for (reason, generation) in [(PassReason::Shadow, 2), (PassReason::Exempt, 1), (PassReason::DangerousAdmit, 1)]
        {
            let pass = gate.pass(reason, generation).expect("it need not be judged");
            gate.leave_pass(pass);
        }
        assert_eq!((gate.state().passed, gate.is_clear(Moment(0))), (0, true));
    }

    #[test]
    fn the_next_that_stops_to_count_is_not_the_last() {
        let mut gate = Gate::default();
        let now = held(Layout::Key, "a", 10, 10);
        gate.learn(&now);
        for until in [60, 5] {
            let token = FenceToken { owner: "a", revision: revision(10) };
            let Entry::Admitted(admission) = gate.enter(&token, Known::new(Some(&now), News::Fresh), Moment(0)) else {
                panic!("it is the holder's");
            };
            gate.lose(admission, Moment(until));
        }
        assert_eq!(gate.next_unseen(Moment(0)), Some(Moment(5)));
        assert_eq!(gate.next_unseen(Moment(5)), Some(Moment(60)));
        assert_eq!(gate.next_unseen(Moment(60)), None);
    }

    #[test]
    fn passes_are_counted_apart() {
        let mut gate = Gate::default();
        let passes = [PassReason::Shadow, PassReason::Exempt, PassReason::DangerousAdmit]
            .map(|reason| gate.pass(reason, 1).unwrap());
        assert_eq!(gate.state().passed, 3);
        gate.leave_pass(Pass::uncounted(PassReason::Off));
        passes.into_iter().for_each(|pass| assert!(!gate.leave_pass(pass)));
        assert_eq!((gate.state().passed, gate.state().at_worker), (0, vec![]));
    }
}
