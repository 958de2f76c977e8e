//! All that surrounds the members: the store, the worker, faults, and what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fencepost_policy::group::{MemberId, MemberRecord, MemberState, Standing};
use fencepost_policy::{Layout, Moment, Revision};
use stateright::{Model, Property};

use crate::member::{Member, Ordinal, Request, mark};

/// One tick: `member_ttl`, and `orphan_timeout`, too.
pub(crate) const MINUTE: Duration = Duration::from_mins(1);
const TICK: u64 = MINUTE.as_nanos() as u64;

pub(crate) const NO_OVERLAP: &str = "no-overlap";
pub(crate) const ORDER: &str = "order";
pub(crate) const GETS_IN: &str = "gets-in";

/// A mistake, or a limit that must be found, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// All as it should be.
    None,
    /// Each has a gate of its own.
    NoGroup,
    /// A member that is cut off goes on.
    NeverLapses,
    /// Standing is looked at when a request is let in, and not when it is written.
    LooksOnlyAtEnter,
    /// A limit: a process is stopped between its look at the clock and its write.
    StopsBetweenLookAndWrite,
    /// A limit: the clock stands still with the process.
    ClockStops,
    /// A marked member counts as gone.
    MarkedIsOver,
    /// Others wait for the orphans of a silent member, and not for its silence before.
    WaitsOnlyForOrphans,
    /// Who is silent is given up by deleting its key.
    GivingUpDeletes,
    /// Who joins takes a marked member for gone.
    JoinerTakesMarkForOver,
    /// The mark counts as if the write that it replaced had been seen.
    MarkTakenForWrite,
    /// A successor knows that its predecessor is dead, and waits for nothing of it.
    SuccessorIgnoresPast,
    /// An ask is answered while earlier requests run.
    AnswersBeforeEmpty,
    /// An ask is answered when nothing runs, and earlier tenures are not sealed.
    AnswersWithoutSeal,
    /// An answer to an earlier ask counts for the next.
    OldAnswersCount,
    /// Who answers says that the tenure is clear.
    AnswerTakenForFact,
    /// A member tells that a tenure is clear while it has earlier requests itself.
    TellsBeforeEmpty,
    /// Who has found one tenure clear lets in all later ones.
    ClearForAnyTenure,
    /// Who joins admits by what was read before.
    JoinsWithOldNews,
    /// Who has to answer is taken from what the watch has told.
    RollFromWatch,
    /// A heartbeat counts from its acknowledgement.
    DatedByAcknowledgement,
    /// A heartbeat overwrites whatever the key has.
    PlainPut,
    /// A restart goes on under the name of the process before.
    SameNameAfterRestart,
    /// A member leaves while its orphans run, and does not say so.
    LeavesWithOrphans,
    /// A cut request counts as ended.
    CutLeavesNoOrphan,
    /// Nobody is ever given up: safe, but stuck.
    NobodyGivesUp,
}

/// How far the model looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    pub(crate) layout: Layout,
    /// Processes that are up at the start.
    pub(crate) start: usize,
    /// Processes that join later.
    pub(crate) joins: usize,
    /// How many of those come after one that is gone, with a memory of it or without.
    pub(crate) restarts: usize,
    pub(crate) tenures: usize,
    pub(crate) crashes: u8,
    pub(crate) losses: u8,
    pub(crate) stops: u8,
    pub(crate) ticks: u8,
    pub(crate) leaves: bool,
    /// A write is sent, committed or lost, and acknowledged in steps of their own.
    pub(crate) slow_writes: bool,
    /// A request is written in the step that lets it in.
    pub(crate) one_step: bool,
}

/// A member's key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    record: MemberRecord,
    /// Revisions are counted for each key.
    revision: Revision,
}

/// What the worker makes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Work {
    Runs,
    /// Its connection is lost: the worker is done with it by then.
    Until(Moment),
}

/// A write under way, where writes are slow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sending {
    Sent(MemberRecord),
    Committed(Revision, BTreeSet<MemberId>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    now: Moment,
    holder: Ordinal,
    keys: BTreeMap<MemberId, Key>,
    /// The newest revision of each key, and of those that were deleted.
    revisions: BTreeMap<MemberId, u64>,
    members: BTreeMap<MemberId, Member>,
    sending: BTreeMap<MemberId, Sending>,
    /// What they wrote, which outlives them.
    work: BTreeMap<(MemberId, Ordinal), Work>,
    /// Who is gone without a successor.
    dead: BTreeSet<MemberId>,
    joins_left: usize,
    restarts_left: usize,
    crashes_left: u8,
    losses_left: u8,
    stops_left: u8,
    ticks_left: u8,
    /// The newest tenure that was written. A fence call is a request that ends at once.
    newest: Ordinal,
    is_out_of_order: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Moves,
    Tick,
    Joins,
    JoinsAfter(MemberId),
    JoinsWithoutMemory,
    Learns(MemberId, Ordinal),
    Writes(MemberId),
    Commits(MemberId),
    WriteIsLost(MemberId),
    HearsOfCommit(MemberId),
    Sees(MemberId, MemberId),
    LetsIn(MemberId),
    SendsOut(MemberId, Ordinal),
    WorkerEnds(MemberId, Ordinal),
    Loses(MemberId, Ordinal),
    Crashes(MemberId),
    Stops(MemberId),
    GoesOn(MemberId),
    Leaves(MemberId),
    /// It finds that its key is another's.
    Ends(MemberId),
    GivesUp(MemberId, MemberId),
    Deletes(MemberId, MemberId),
    SuccessorDeletes(MemberId),
}

impl Action {
    /// What happens seldom beside what members do all the time.
    pub(crate) fn is_rare(self) -> bool {
        use Action::{
            Crashes, Ends, GoesOn, Joins, JoinsAfter, JoinsWithoutMemory, Leaves, Loses, Stops,
            Tick, WorkerEnds, WriteIsLost,
        };
        matches!(
            self,
            Tick | Joins
                | JoinsAfter(_)
                | JoinsWithoutMemory
                | WorkerEnds(..)
                | Loses(..)
                | Crashes(_)
                | Stops(_)
                | GoesOn(_)
                | Leaves(_)
                | Ends(_)
                | WriteIsLost(_)
        )
    }
}

pub(crate) struct World {
    pub(crate) scope: Scope,
    pub(crate) mutant: Mutant,
}

impl State {
    fn member(&mut self, id: MemberId) -> Option<&mut Member> {
        self.members.get_mut(&id)
    }

    /// Writes a key; returns its revision.
    fn put(&mut self, id: MemberId, record: MemberRecord) -> Revision {
        let count = self.revisions.entry(id).or_default();
        *count += 1;
        let revision = Revision::new(*count).unwrap();
        self.keys.insert(id, Key { record, revision });
        revision
    }

    fn delete(&mut self, id: MemberId) {
        self.keys.remove(&id);
        *self.revisions.entry(id).or_default() += 1;
    }

    /// A request of that tenure is written to the worker.
    fn write_out(&mut self, id: MemberId, tenure: Ordinal, is_connected: bool) {
        self.is_out_of_order |= tenure < self.newest;
        self.newest = self.newest.max(tenure);
        let until = Moment(self.now.0 + TICK);
        let work = if is_connected { Work::Runs } else { Work::Until(until) };
        self.work.insert((id, tenure), work);
    }

    fn at_worker(&self) -> BTreeSet<Ordinal> {
        self.work.keys().map(|(_, tenure)| *tenure).collect()
    }

    fn lose_work(&mut self, id: MemberId, tenure: Ordinal) {
        let until = Moment(self.now.0 + TICK);
        if let Some(work @ Work::Runs) = self.work.get_mut(&(id, tenure)) {
            *work = Work::Until(until);
        }
    }

    /// The process is gone; what it wrote may still arrive.
    fn end(&mut self, id: MemberId) {
        self.members.remove(&id);
        self.sending.remove(&id);
        self.dead.insert(id);
        let tenures: Vec<_> =
            self.work.keys().filter(|(owner, _)| *owner == id).map(|(_, tenure)| *tenure).collect();
        tenures.into_iter().for_each(|tenure| self.lose_work(id, tenure));
    }
}

impl World {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    fn joins(&self, state: &mut State, after: Option<MemberId>) {
        let next = MemberId((state.members.len() + state.dead.len()) as u128 + 1);
        let id = after.filter(|_| self.is(Mutant::SameNameAfterRestart)).unwrap_or(next);
        let predecessor = after.filter(|_| !self.is(Mutant::SameNameAfterRestart));
        let mut member = Member::new(id, self.scope.tenures, state.now, predecessor, self.mutant);
        let record = member.group.write(state.now).unwrap();
        let record = self.written_by(&record);
        let revision = state.put(id, record);
        member.group.written(revision, &state.keys.keys().copied().collect());
        member.joined_at = if self.is(Mutant::JoinsWithOldNews) { 0 } else { state.holder };
        if !self.is(Mutant::NoGroup) {
            member.gate.share(Revision::MIN);
        }
        if let Some(old) = predecessor {
            // Its directory is locked by us, so it is dead for sure.
            if let Some(key) = state.keys.get(&old).cloned()
                && key.record.state == MemberState::Live
            {
                state.put(old, mark(&key.record, key.revision));
            }
        }
        state.dead.remove(&id);
        state.members.insert(id, member);
        // The join has read all keys.
        for other in state.keys.keys().copied().collect::<Vec<_>>() {
            if other != id {
                self.sees(state, id, other);
                if self.is(Mutant::JoinerTakesMarkForOver)
                    && matches!(state.keys[&other].record.state, MemberState::GivenUp(_))
                {
                    state.member(id).unwrap().group.forget(other);
                }
            }
        }
    }

    /// What a mistaken member's key says.
    fn written_by(&self, record: &MemberRecord) -> MemberRecord {
        let mut record = record.clone();
        if self.is(Mutant::WaitsOnlyForOrphans) {
            record.member_ttl = Duration::ZERO;
        }
        if self.is(Mutant::OldAnswersCount) {
            record.answers.values_mut().filter(|answers| answers.contain(1)).for_each(|answers| {
                answers.through = u64::MAX;
                answers.open.clear();
            });
        }
        record
    }

    fn sees(&self, state: &mut State, id: MemberId, other: MemberId) -> Option<()> {
        let now = state.now;
        let key = state.keys.get(&other).cloned();
        let deleted_at = state.revisions.get(&other).and_then(|count| Revision::new(*count));
        let member = state.members.get_mut(&id)?;
        match key {
            Some(Key { mut record, revision }) => {
                if self.is(Mutant::MarkTakenForWrite)
                    && matches!(record.state, MemberState::GivenUp(_))
                    && let Some(seen) = member.group.others().find(|peer| peer.id == other)
                {
                    record.state = MemberState::GivenUp(seen.revision);
                }
                let is_marked = matches!(record.state, MemberState::GivenUp(_));
                member.sees(self.scope.layout, other, revision, record, now, self.mutant);
                if is_marked && self.is(Mutant::MarkedIsOver) {
                    member.group.forget(other);
                }
            }
            None => member.group.see_none(other, deleted_at?, member.clock(now)),
        }
        member.settles(self.scope.layout, now, self.mutant);
        Some(())
    }

    /// Sends what its key has to say; commits and acknowledges it at once where writes are not slow.
    fn writes(&self, state: &mut State, id: MemberId) -> Option<()> {
        let now = state.now;
        let layout = self.scope.layout;
        let member = state.members.get_mut(&id)?;
        member.seals(layout, now, self.mutant);
        member.settles(layout, now, self.mutant);
        let clock = member.clock(now);
        let record = self.written_by(&member.group.write(clock)?);
        state.sending.insert(id, Sending::Sent(record));
        if !self.scope.slow_writes {
            self.commits(state, id)?;
            self.hears(state, id)?;
        }
        Some(())
    }

    fn commits(&self, state: &mut State, id: MemberId) -> Option<()> {
        let Some(Sending::Sent(record)) = state.sending.get(&id).cloned() else { return None };
        let key = state.keys.get(&id);
        let is_ours = key.is_some_and(|key| key.record.state == MemberState::Live);
        if !is_ours && !self.is(Mutant::PlainPut) {
            return None;
        }
        let revision = state.put(id, record);
        let roll = if self.is(Mutant::RollFromWatch) {
            state.members.get(&id)?.group.others().map(|other| other.id).collect()
        } else {
            state.keys.keys().copied().collect()
        };
        state.sending.insert(id, Sending::Committed(revision, roll));
        Some(())
    }

    fn hears(&self, state: &mut State, id: MemberId) -> Option<()> {
        let Some(Sending::Committed(revision, roll)) = state.sending.remove(&id) else {
            return None;
        };
        let now = state.now;
        let member = state.members.get_mut(&id)?;
        if self.is(Mutant::DatedByAcknowledgement) {
            member.group.not_written();
            let clock = member.clock(now);
            let _ = member.group.write(clock);
        }
        member.group.written(revision, &roll);
        member.settles(self.scope.layout, now, self.mutant);
        Some(())
    }

    fn tick(&self, state: &mut State) {
        state.ticks_left -= 1;
        state.now = Moment(state.now.0 + TICK);
        let now = state.now;
        let mut lost = vec![];
        for (id, member) in &mut state.members {
            if member.stopped.is_some() {
                if self.is(Mutant::ClockStops) {
                    member.lag += TICK;
                }
                // Whether or not it notices, the worker is done one `orphan_timeout` later.
                lost.extend((1..=self.scope.tenures as u64).map(|tenure| (*id, tenure)));
                continue;
            }
            self.cut(member, *id, now, &mut lost);
            member.tick(now);
        }
        for (id, tenure) in lost {
            state.lose_work(id, tenure);
        }
        state.work.retain(|_, work| !matches!(work, Work::Until(until) if *until <= now));
        for member in state.members.values_mut().filter(|member| member.stopped.is_none()) {
            member.settles(self.scope.layout, now, self.mutant);
        }
    }

    /// Resets what is unfinished, if the member's time is up.
    fn cut(&self, member: &mut Member, id: MemberId, now: Moment, lost: &mut Vec<(MemberId, u64)>) {
        let is_cut = member.group.standing(member.clock(now)) == Standing::Cut;
        if !is_cut || self.is(Mutant::NeverLapses) {
            return;
        }
        for tenure in 1..=self.scope.tenures as u64 {
            match member.request(tenure) {
                Request::Entered if !self.is(Mutant::LooksOnlyAtEnter) => member.leaves(tenure),
                Request::Running => {
                    member.loses(tenure, now, self.mutant);
                    lost.push((id, tenure));
                }
                Request::Entered | Request::None | Request::Orphan(..) => {}
            }
        }
    }

    fn goes_on(&self, state: &mut State, id: MemberId) -> Option<()> {
        let now = state.now;
        let member = state.members.get_mut(&id)?;
        member.stopped.take()?;
        let tenures = 1..=self.scope.tenures as u64;
        let looked: Vec<_> =
            tenures.filter(|tenure| member.request(*tenure) == Request::Entered).collect();
        let is_cut = member.group.standing(member.clock(now)) == Standing::Cut;
        if is_cut && self.is(Mutant::StopsBetweenLookAndWrite) {
            for tenure in looked {
                state.member(id)?.put(tenure, Request::Running);
                state.write_out(id, tenure, false);
            }
        }
        let mut lost = vec![];
        let member = state.members.get_mut(&id)?;
        self.cut(member, id, now, &mut lost);
        member.tick(now);
        member.settles(self.scope.layout, now, self.mutant);
        for (id, tenure) in lost {
            state.lose_work(id, tenure);
        }
        Some(())
    }

    /// Does it; `None` if it cannot happen or changes nothing.
    fn act(&self, state: &mut State, action: Action) -> Option<()> {
        let layout = self.scope.layout;
        let now = state.now;
        match action {
            Action::Moves => state.holder += 1,
            Action::Tick => self.tick(state),
            Action::Joins => {
                state.joins_left -= 1;
                self.joins(state, None);
            }
            Action::JoinsAfter(old) => {
                state.restarts_left -= 1;
                self.joins(state, Some(old));
            }
            Action::JoinsWithoutMemory => {
                state.restarts_left -= 1;
                self.joins(state, None);
            }
            Action::Learns(id, tenure) => state.member(id)?.learn(layout, tenure),
            Action::Writes(id) => self.writes(state, id)?,
            Action::Commits(id) => self.commits(state, id)?,
            Action::WriteIsLost(id) => {
                state.sending.remove(&id)?;
                state.member(id)?.group.not_written();
            }
            Action::HearsOfCommit(id) => self.hears(state, id)?,
            Action::Sees(id, other) => self.sees(state, id, other)?,
            Action::LetsIn(id) => {
                let mutant = self.mutant;
                let tenure = state.member(id)?.lets_in(layout, now, mutant)?;
                if self.scope.one_step {
                    state.member(id)?.put(tenure, Request::Running);
                    state.write_out(id, tenure, true);
                }
            }
            Action::SendsOut(id, tenure) => {
                let mutant = self.mutant;
                let member = state.member(id)?;
                let stands = member.stands(now, mutant);
                if !stands && mutant != Mutant::LooksOnlyAtEnter {
                    return None;
                }
                member.put(tenure, Request::Running);
                state.write_out(id, tenure, stands);
            }
            Action::WorkerEnds(id, tenure) => {
                state.work.remove(&(id, tenure))?;
                if let Some(member) = state.members.get_mut(&id)
                    && member.stopped.is_none()
                    && member.request(tenure) == Request::Running
                {
                    // To see it later only keeps others out for longer.
                    member.leaves(tenure);
                    member.settles(layout, now, self.mutant);
                }
            }
            Action::Loses(id, tenure) => {
                state.losses_left -= 1;
                let mutant = self.mutant;
                state.member(id)?.loses(tenure, now, mutant);
                state.lose_work(id, tenure);
            }
            Action::Crashes(id) => {
                state.crashes_left -= 1;
                state.end(id);
            }
            Action::Stops(id) => {
                state.stops_left -= 1;
                state.member(id)?.stopped = Some(now);
            }
            Action::GoesOn(id) => self.goes_on(state, id)?,
            Action::Leaves(id) => {
                let busy = BTreeSet::new();
                let member = state.member(id)?;
                member.group.leave(busy);
                self.writes(state, id)?;
                state.end(id);
            }
            Action::Ends(id) => state.end(id),
            Action::GivesUp(id, other) => {
                let member = state.members.get(&id)?;
                let clock = member.clock(now);
                let (_, of, record) =
                    member.group.silent(clock).into_iter().find(|(silent, ..)| *silent == other)?;
                (state.keys.get(&other)?.revision == of).then_some(())?;
                if self.is(Mutant::GivingUpDeletes) {
                    state.delete(other);
                    state.member(id)?.group.forget(other);
                } else {
                    state.put(other, record);
                }
                self.sees(state, id, other)?;
            }
            Action::Deletes(id, other) => {
                let clock = state.members.get(&id)?.clock(now);
                let over = state.member(id)?.group.over(clock);
                let (_, of) = over.into_iter().find(|(over, _)| *over == other)?;
                (state.keys.get(&other)?.revision == of).then_some(())?;
                state.delete(other);
                self.sees(state, id, other)?;
            }
            Action::SuccessorDeletes(id) => {
                let (old, until) = state.members.get(&id)?.successor_of?;
                (until <= now).then_some(())?;
                state.keys.get(&old)?;
                state.member(id)?.group.forget(old);
                state.delete(old);
            }
        }
        Some(())
    }

    fn actions_of(&self, state: &State, id: MemberId, member: &Member, actions: &mut Vec<Action>) {
        let now = state.now;
        if state.crashes_left > 0 {
            actions.push(Action::Crashes(id));
        }
        if member.stopped.is_some() {
            actions.push(Action::GoesOn(id));
            return;
        }
        if state.stops_left > 0 {
            actions.push(Action::Stops(id));
        }
        let is_ours = state.keys.get(&id).is_some_and(|key| key.record.state == MemberState::Live);
        if !is_ours && member.group.standing(member.clock(now)) == Standing::Cut {
            actions.push(Action::Ends(id));
        }
        let is_empty = member.is_empty(now)
            || (self.is(Mutant::LeavesWithOrphans)
                && member
                    .requests
                    .iter()
                    .all(|request| matches!(request, Request::None | Request::Orphan(..))));
        if self.scope.leaves && is_ours && is_empty && !state.sending.contains_key(&id) {
            actions.push(Action::Leaves(id));
        }
        let from = member.known.map_or(member.joined_at, |known| known + 1);
        actions.extend((from..=state.holder).map(|tenure| Action::Learns(id, tenure)));
        actions.push(Action::LetsIn(id));
        match state.sending.get(&id) {
            None => actions.push(Action::Writes(id)),
            Some(Sending::Sent(_)) => {
                actions.extend([Action::Commits(id), Action::WriteIsLost(id)]);
            }
            Some(Sending::Committed(..)) => actions.push(Action::HearsOfCommit(id)),
        }
        for tenure in 1..=self.scope.tenures as u64 {
            match member.request(tenure) {
                Request::Entered if !state.work.contains_key(&(id, tenure)) => {
                    actions.push(Action::SendsOut(id, tenure));
                }
                Request::Running if state.losses_left > 0 => {
                    actions.push(Action::Loses(id, tenure));
                }
                Request::None | Request::Entered | Request::Running | Request::Orphan(..) => {}
            }
        }
        for other in state.revisions.keys().copied().filter(|other| *other != id) {
            actions.push(Action::Sees(id, other));
            if !self.is(Mutant::NobodyGivesUp) {
                actions.push(Action::GivesUp(id, other));
            }
            actions.push(Action::Deletes(id, other));
        }
        if member.successor_of.is_some() {
            actions.push(Action::SuccessorDeletes(id));
        }
    }

    /// Without faults, somebody who stands lets the present holder in, whatever has happened before:
    /// a schedule that does all there is to do, until nothing changes any more.
    fn gets_in(&self, state: &State) -> bool {
        let is_up = |state: &State| {
            state.members.iter().any(|(id, _)| {
                state.keys.get(id).is_some_and(|key| key.record.state == MemberState::Live)
            })
        };
        if !is_up(state) || state.holder == 0 {
            return true;
        }
        let mut state = State { crashes_left: 0, losses_left: 0, stops_left: 0, ..state.clone() };
        for _ in 0..4 {
            for _ in 0..6 {
                self.one_round(&mut state);
                if state.newest == state.holder {
                    return true;
                }
            }
            state.ticks_left = 1;
            self.tick(&mut state);
        }
        false
    }

    fn one_round(&self, state: &mut State) {
        let ids: Vec<_> = state.members.keys().copied().collect();
        let keys: Vec<_> = state.revisions.keys().copied().collect();
        let works: Vec<_> = state.work.keys().copied().collect();
        for (id, tenure) in works {
            let _ = self.act(state, Action::WorkerEnds(id, tenure));
        }
        for id in ids {
            let holder = state.holder;
            let _ = self.act(state, Action::GoesOn(id));
            if state.members[&id].known != Some(holder) {
                let _ = self.act(state, Action::Learns(id, holder));
            }
            for other in keys.iter().copied().filter(|other| *other != id) {
                let _ = self.act(state, Action::Sees(id, other));
                if !self.is(Mutant::NobodyGivesUp) {
                    let _ = self.act(state, Action::GivesUp(id, other));
                }
                let _ = self.act(state, Action::Deletes(id, other));
            }
            for action in [
                Action::Writes(id),
                Action::Commits(id),
                Action::HearsOfCommit(id),
                Action::LetsIn(id),
            ] {
                let _ = self.act(state, action);
            }
            for tenure in 1..=holder {
                let member = &state.members[&id];
                if member.request(tenure) == Request::Entered {
                    let _ = self.act(state, Action::SendsOut(id, tenure));
                }
            }
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Scope { joins, restarts, crashes, losses, stops, ticks, .. } = self.scope;
        let mut state = State {
            now: Moment(10 * TICK),
            holder: 1,
            keys: BTreeMap::new(),
            revisions: BTreeMap::new(),
            members: BTreeMap::new(),
            sending: BTreeMap::new(),
            work: BTreeMap::new(),
            dead: BTreeSet::new(),
            joins_left: joins,
            restarts_left: restarts,
            crashes_left: crashes,
            losses_left: losses,
            stops_left: stops,
            ticks_left: ticks,
            newest: 0,
            is_out_of_order: false,
        };
        for _ in 0..self.scope.start {
            self.joins(&mut state, None);
        }
        let ids: Vec<_> = state.keys.keys().copied().collect();
        for id in &ids {
            for other in &ids {
                if id != other {
                    let _ = self.sees(&mut state, *id, *other);
                }
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.holder < self.scope.tenures as u64 {
            actions.push(Action::Moves);
        }
        if state.ticks_left > 0 {
            actions.push(Action::Tick);
        }
        if state.joins_left > 0 {
            actions.push(Action::Joins);
        }
        if state.restarts_left > 0 {
            actions.extend(state.dead.iter().map(|old| Action::JoinsAfter(*old)));
            actions.extend((!state.dead.is_empty()).then_some(Action::JoinsWithoutMemory));
        }
        actions.extend(state.work.keys().map(|(id, tenure)| Action::WorkerEnds(*id, *tenure)));
        for (id, member) in &state.members {
            self.actions_of(state, *id, member, actions);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        self.act(&mut state, action)?;
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        vec![
            Property::always(NO_OVERLAP, |_, state: &State| state.at_worker().len() <= 1),
            Property::always(ORDER, |_, state: &State| !state.is_out_of_order),
            Property::always(GETS_IN, |world: &World, state: &State| world.gets_in(state)),
            Property::sometimes(
                "the last tenure is at the worker",
                |world: &World, state: &State| state.newest == world.scope.tenures as u64,
            ),
        ]
    }
}
