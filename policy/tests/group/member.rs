//! One process: the group and the gate under test, and a driver that does all that a driver has to
//! do, or makes one mistake.

use fencepost_policy::group::{
    Answer, Group, MemberId, MemberRecord, MemberState, NamedTenure, SharedLock, Standing, Timing,
};
use fencepost_policy::{
    Admission, AskedGate, EnterError, FenceToken, Gate, Holding, Known, Layout, LockKey, Moment,
    News, OrphanId, Owner, Predecessor, Revision, Snapshot, Tenure,
};

use crate::world::{MINUTE, Mutant};

/// Tenures are counted from 1.
pub(crate) type Ordinal = u64;

/// The lock that all ask for.
pub(crate) fn lock(layout: Layout) -> SharedLock {
    SharedLock { cluster: 1, key: LockKey::new("/k").unwrap(), layout }
}

/// The first revision of a tenure.
pub(crate) fn first(tenure: Ordinal) -> Revision {
    Revision::new(tenure).unwrap()
}

/// What a read shows while that tenure holds the lock; nobody holds it before the first.
pub(crate) fn news(layout: Layout, tenure: Ordinal) -> Snapshot {
    // All that queue have come long before the first of them holds the lock.
    let as_of = match layout {
        Layout::Key => tenure,
        Layout::Election | Layout::Mutex => 100 + tenure,
    };
    let holder = |at: Revision| Tenure { owner: Owner::new(*b"a"), first: at, last: at };
    Snapshot {
        layout,
        as_of: Revision::new(as_of),
        holding: Revision::new(tenure).map_or(Holding::Free, |at| Holding::Held(holder(at))),
        waiters: [].into(),
    }
}

/// How far a request of a tenure has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// Nothing is there.
    None,
    /// It was let in; nothing of it is written.
    Entered,
    /// It is written, and the gate counts it.
    Running,
    /// Its connection was lost.
    Orphan(OrphanId, Moment),
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(crate) group: Group,
    pub(crate) gate: Gate,
    /// The tenure that its news shows; `None` before its first read.
    pub(crate) known: Option<Ordinal>,
    /// The tenure that held the lock when it joined: its reads show no earlier one.
    pub(crate) joined_at: Ordinal,
    /// One for each tenure.
    pub(crate) requests: Vec<Request>,
    /// What it has found clear, and does not tell before its own earlier requests are gone.
    untold: Option<NamedTenure>,
    /// Whether it is stopped, and since when.
    pub(crate) stopped: Option<Moment>,
    /// By how much its clock is behind.
    pub(crate) lag: u64,
    /// Who was here before, and until when that one's requests may run.
    pub(crate) successor_of: Option<(MemberId, Moment)>,
}

impl Member {
    pub(crate) fn new(
        me: MemberId,
        tenures: usize,
        now: Moment,
        predecessor: Option<MemberId>,
        mutant: Mutant,
    ) -> Member {
        let orphan_timeout = MINUTE;
        let until = Moment(now.0 + MINUTE.as_nanos() as u64);
        let remembers = predecessor.is_some() && mutant != Mutant::SuccessorIgnoresPast;
        let left = Predecessor { tenure: None, until: Some(until), others: true };
        Member {
            group: Group::new(me, Timing { member_ttl: MINUTE, orphan_timeout }),
            gate: if remembers { Gate::recording(Some(left)) } else { Gate::default() },
            known: None,
            joined_at: 0,
            requests: vec![Request::None; tenures],
            untold: None,
            stopped: None,
            lag: 0,
            successor_of: predecessor.map(|id| (id, if remembers { until } else { now })),
        }
    }

    pub(crate) fn stands(&self, now: Moment, mutant: Mutant) -> bool {
        mutant == Mutant::NeverLapses || self.group.standing(self.clock(now)) == Standing::Stands
    }

    /// What its own clock shows.
    pub(crate) fn clock(&self, now: Moment) -> Moment {
        Moment(now.0 - self.lag)
    }

    pub(crate) fn request(&self, tenure: Ordinal) -> Request {
        self.requests[tenure as usize - 1]
    }

    pub(crate) fn put(&mut self, tenure: Ordinal, request: Request) {
        self.requests[tenure as usize - 1] = request;
    }

    /// A read or a watch shows that tenure.
    pub(crate) fn learn(&mut self, layout: Layout, tenure: Ordinal) {
        self.known = Some(tenure);
        self.gate.learn(&news(layout, tenure));
        self.wants(layout);
    }

    /// A request of the tenure that it knows wants to be let in, and is not.
    fn wants(&mut self, layout: Layout) {
        let Some(news) = self.known.map(|known| news(layout, known)) else { return };
        let Some(tenure) = self.gate.unclear(&news) else { return };
        if self.group.want(&lock(layout), &tenure) {
            self.gate.clear(layout, *tenure.start());
        }
    }

    /// Another member's key was seen.
    pub(crate) fn sees(
        &mut self,
        layout: Layout,
        id: MemberId,
        revision: Revision,
        record: MemberRecord,
        now: Moment,
        mutant: Mutant,
    ) {
        let clock = self.clock(now);
        let facts = self.group.see(id, revision, record, clock);
        if self.group.has_let_in() {
            facts.iter().for_each(|fact| self.gate.clear(layout, fact.revision));
        }
        self.seals(layout, now, mutant);
        self.settles(layout, now, mutant);
    }

    /// Seals what others ask about, and answers where nothing earlier is here.
    pub(crate) fn seals(&mut self, layout: Layout, now: Moment, mutant: Mutant) {
        let asks: Vec<_> = self.group.unanswered().map(|(id, ask)| (id, ask.clone())).collect();
        let known = self.known.map(|known| news(layout, known));
        for (id, ask) in asks {
            let asked = ask.tenure.revision;
            let answer = if mutant == Mutant::AnswersWithoutSeal {
                let is_empty =
                    (1..asked.get()).all(|earlier| matches!(self.request(earlier), Request::None));
                if is_empty { AskedGate::Sealed } else { AskedGate::Busy }
            } else {
                self.gate.answer(layout, asked, known.as_ref(), self.clock(now))
            };
            if answer == AskedGate::Sealed
                || (answer == AskedGate::Busy && mutant == Mutant::AnswersBeforeEmpty)
            {
                self.group.answer(id, ask.number, Answer::Sealed);
                if mutant == Mutant::AnswerTakenForFact {
                    self.group.tell(ask.tenure);
                }
            }
        }
    }

    /// Opens the gate for what the others have answered.
    pub(crate) fn settles(&mut self, layout: Layout, now: Moment, mutant: Mutant) {
        for cleared in self.group.cleared(self.clock(now)) {
            self.gate.clear(layout, cleared.tenure.revision);
            self.untold = Some(cleared.tenure);
        }
        self.wants(layout);
        self.tells(layout, now, mutant);
    }

    fn tells(&mut self, layout: Layout, now: Moment, mutant: Mutant) {
        let Some(clear) = self.untold.take() else { return };
        let known = self.known.filter(|known| first(*known) == clear.revision);
        let is_empty = known
            .is_some_and(|known| self.gate.is_empty_before(&news(layout, known), self.clock(now)));
        if is_empty || mutant == Mutant::TellsBeforeEmpty {
            self.group.tell(clear);
        } else if known.is_some() {
            self.untold = Some(clear);
        }
    }

    /// Lets in a request of the tenure that it knows. Says which.
    pub(crate) fn lets_in(
        &mut self,
        layout: Layout,
        now: Moment,
        mutant: Mutant,
    ) -> Option<Ordinal> {
        let known = self.known.filter(|known| *known > 0)?;
        if !self.stands(now, mutant) || self.request(known) != Request::None {
            return None;
        }
        if mutant == Mutant::ClearForAnyTenure && self.gate.unclear(&news(layout, 1)).is_none() {
            self.gate.clear(layout, first(known));
        }
        let admission = self.enter(layout, known, now).ok()?;
        drop(admission);
        self.put(known, Request::Entered);
        Some(known)
    }

    fn enter(
        &mut self,
        layout: Layout,
        tenure: Ordinal,
        now: Moment,
    ) -> Result<Admission, EnterError> {
        let clock = self.clock(now);
        enter(&mut self.gate, layout, tenure, clock)
    }

    /// The end of its request was seen.
    pub(crate) fn leaves(&mut self, tenure: Ordinal) {
        match self.request(tenure) {
            Request::Entered | Request::Running => {
                self.gate.leave(admission_under(tenure));
            }
            Request::Orphan(id, _) => {
                self.gate.end_orphan(id);
            }
            Request::None => {}
        }
        self.put(tenure, Request::None);
    }

    /// The connection of its request is lost, or cut.
    pub(crate) fn loses(&mut self, tenure: Ordinal, now: Moment, mutant: Mutant) {
        if mutant == Mutant::CutLeavesNoOrphan {
            return self.leaves(tenure);
        }
        let until = Moment(self.clock(now).0 + MINUTE.as_nanos() as u64);
        let id = self.gate.lose(admission_under(tenure), until);
        self.put(tenure, Request::Orphan(id, until));
    }

    /// Whether nothing that it let in can be at the worker.
    pub(crate) fn is_empty(&self, now: Moment) -> bool {
        self.gate.is_clear(self.clock(now))
    }

    /// Forgets orphans whose time has come.
    pub(crate) fn tick(&mut self, now: Moment) {
        let clock = self.clock(now);
        for tenure in 1..=self.requests.len() as u64 {
            if let Request::Orphan(_, until) = self.request(tenure)
                && until <= clock
            {
                self.leaves(tenure);
            }
        }
    }
}

/// What is written when a member is given up.
pub(crate) fn mark(record: &MemberRecord, of: Revision) -> MemberRecord {
    MemberRecord { state: MemberState::GivenUp(of), ..record.clone() }
}

fn enter(
    gate: &mut Gate,
    layout: Layout,
    tenure: Ordinal,
    now: Moment,
) -> Result<Admission, EnterError> {
    let news = news(layout, tenure);
    let token = FenceToken { owner: b"a".as_slice(), revision: first(tenure) };
    match gate.enter(&token, Known::new(Some(&news), News::Fresh), now) {
        Err(EnterError::Record(tenure)) => {
            gate.recorded(tenure);
            gate.enter(&token, Known::new(Some(&news), News::Fresh), now)
        }
        entered => entered,
    }
}

/// The admission that a request under that tenure holds. It cannot be copied, as a model's state
/// must be, so it is made anew where it is needed.
fn admission_under(tenure: Ordinal) -> Admission {
    enter(&mut Gate::default(), Layout::Key, tenure, Moment(0)).expect("an empty gate")
}
