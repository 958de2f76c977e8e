//! All that surrounds the gate, and what must hold of it.

mod properties;

use fencepost_policy::{Moment, OrphanId, Revision};
use stateright::{Model, Property};

use crate::proxy::{Driving, Entered, Mutant, Proxy, StateDir};
use crate::store::{History, Message, Name, News, Token};
pub(crate) use properties::{ADMISSION_MEANS_TENURE, FLOOR_RISES, GETS_IN, NO_OVERLAP, ORDER};

/// How far the model looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    /// Writes to the lock's key.
    pub(crate) writes: u64,
    /// Of those, how many the store may be ahead of what the proxy has heard of, when nothing is
    /// new to it.
    pub(crate) unheard: u64,
    /// Requests at a time. As many as there may be one after the other: every token may be sent
    /// again at any time.
    pub(crate) requests: usize,
    /// Connections to the worker that are lost.
    pub(crate) losses: u8,
    /// Restarts of the proxy, by a crash or in good order.
    pub(crate) restarts: u8,
    /// How often `orphan_timeout` can pass.
    pub(crate) ticks: u64,
    /// Whether the store may have compacted its history away.
    pub(crate) compaction: bool,
}

pub(crate) struct World {
    pub(crate) scope: Scope,
    pub(crate) driving: Driving,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    history: History,
    /// The newest write that a proxy has heard of.
    heard: Option<Revision>,
    proxy: Proxy,
    state_dir: StateDir,
    /// Those that wait and those that are at the worker; sorted, since their order says nothing.
    requests: Vec<Request>,
    /// Counts in units of `orphan_timeout`.
    clock: u64,
    losses_left: u8,
    restarts_left: u8,
    /// The latest tenure of which the worker has begun a request, or that was told that it has the
    /// worker to itself.
    newest: Option<Revision>,
    wrong: Wrong,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    token: Token,
    /// What was known at its arrival.
    arrival: Option<News>,
    /// It had to wait at the barrier.
    waited: bool,
    stage: Stage,
}

impl Request {
    fn counted(&self) -> Option<Counted> {
        match self.stage {
            Stage::Waiting => None,
            Stage::Unsent(counted) | Stage::AtWorker(_, counted) => Some(counted),
        }
    }

    fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::AtWorker(Work::Unwritten | Work::Done, _))
    }

    /// Whether bytes of an answered request may still arrive at the worker. The proxy closes an
    /// orphan's connection before the gate stops to count the orphan, and a start waits for as long
    /// as a kernel may deliver what a crash has left there.
    fn may_send_more(&self, now: Moment, driving: Driving) -> bool {
        let Stage::AtWorker(work, counted) = self.stage else { return false };
        match work {
            Work::Unread | Work::Running => false,
            Work::Unwritten if driving.is(Mutant::ConnectionOutlivesOrphan) => true,
            Work::Unwritten | Work::Done => counted.bound().is_none_or(|bound| bound > now),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// For a connection to the worker, or for the barrier.
    Waiting,
    /// Counted in; no byte has gone out.
    Unsent(Counted),
    AtWorker(Work, Counted),
}

/// What the worker makes of a request that has entered. The request may arrive at any moment while
/// it is `Unread`, and more of it at any later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Work {
    /// The worker has seen nothing of it: the bytes are in the proxy or in a socket buffer.
    Unread,
    Running,
    /// The worker has answered. The proxy may hold bytes of the request that it has not written.
    Unwritten,
    /// The worker has answered, and the proxy will write nothing more. A kernel may hold bytes of
    /// the request.
    Done,
}

/// Who counts a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Counted {
    /// The gate, under that tenure.
    Running(Revision),
    /// The gate, as an orphan. The worker is done with it by then.
    Orphan(OrphanId, Moment),
    /// Not this proxy: a predecessor let it in, or a mutant. The worker is done with it by then.
    Nobody(Option<Moment>),
}

impl Counted {
    /// By when the worker is done with it.
    fn bound(self) -> Option<Moment> {
        match self {
            Counted::Running(_) => None,
            Counted::Orphan(_, until) => Some(until),
            Counted::Nobody(until) => until,
        }
    }
}

/// What no state shows by itself.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Wrong {
    began_out_of_order: bool,
    admitted_without_tenure: bool,
    floor_fell: bool,
}

/// What may happen. Requests are named by their place in `State::requests`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes an owner to the store; `None` releases the lock.
    Write(Option<Name>),
    /// Writes to the store, and the proxy reads the write at once.
    WriteAndRead(Option<Name>),
    /// News reaches the proxy: of any revision, any number of times, in any order.
    Hear(Message),
    Arrive(Token),
    /// `POST /.well-known/fence`.
    Claim(Token),
    ClientLeaves(usize),
    /// Its connection is ready: it enters, waits for the barrier, or is refused.
    Enter(usize),
    /// Its first byte goes out.
    Send(usize),
    /// Its connection provably took nothing of it: it waits for another one.
    HandBack(usize),
    WorkerBegins(usize),
    /// The worker answers; all of the request need not have arrived.
    WorkerEnds(usize),
    /// The last of an answered request is written, or will never be.
    WriteRest(usize),
    /// More of an answered request arrives at the worker.
    MoreArrives(usize),
    /// It was sent, but the worker never reads it.
    WorkerMisses(usize),
    SeeAnswer(usize),
    /// The connection is lost, or cut, or silent for too long.
    Lose(usize),
    /// The answer to a lost request comes after all.
    SeeLateAnswer(usize),
    /// The answer to a lost request will never come.
    NeverSeeAnswer(usize),
    /// `orphan_timeout` passes.
    Tick,
    /// The record of that tenure is durable.
    Recorded(Revision),
    /// So it is, but the proxy is told that it failed.
    RecordedUntold(Revision),
    /// The proxy is killed and started again.
    Crash,
    /// The proxy stops in good order and is started again.
    Restart,
}

impl State {
    fn now(&self) -> Moment {
        Moment(self.clock)
    }

    /// When an orphan made now stops to count.
    fn bound(&self) -> Moment {
        Moment(self.clock + 1)
    }

    fn runs(&self) -> impl Iterator<Item = &Request> {
        self.requests
            .iter()
            .filter(|request| matches!(request.stage, Stage::AtWorker(Work::Running, _)))
    }

    fn tenure_of(&self, request: &Request) -> Option<Revision> {
        self.history.tenure_of(request.token)
    }

    /// Changes a request's stage.
    fn put(&mut self, index: usize, stage: Stage) {
        self.requests[index].stage = stage;
    }
}

impl World {
    /// Does it; `None` if it cannot happen or changes nothing.
    fn act(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Write(owner) => state.history.write(owner),
            Action::WriteAndRead(owner) => {
                state.history.write(owner);
                self.hear(state, Message::Read(state.history.newest()))?;
            }
            Action::Hear(message) => self.hear(state, message)?,
            Action::Arrive(token) => {
                let arrival = state.proxy.news.as_ref().and_then(|news| self.driving.keeps(news));
                state.requests.push(Request {
                    token,
                    arrival,
                    waited: false,
                    stage: Stage::Waiting,
                });
            }
            Action::Claim(token) => {
                if state.proxy.claim(token, state.now(), self.driving) {
                    state.newest = state.newest.max(state.history.tenure_of(token));
                }
            }
            Action::Tick => {
                let still_there = |request: &Request| match &request.stage {
                    Stage::Waiting
                    | Stage::Unsent(_)
                    | Stage::AtWorker(Work::Unwritten | Work::Done, _) => false,
                    Stage::AtWorker(Work::Unread | Work::Running, counted) => {
                        counted.bound().is_some_and(|bound| bound <= state.bound())
                    }
                };
                if state.requests.iter().any(still_there) {
                    return None; // By then the worker is done with it: that is what the operator vouches for.
                }
                state.clock += 1;
                // The connections of these orphans are closed first: no bytes and no answers come
                // any more.
                let now = state.now();
                state.requests.retain(|request| {
                    !request.is_answered() || request.may_send_more(now, self.driving)
                });
            }
            Action::Recorded(tenure) => {
                state.proxy.recorded(&mut state.state_dir, tenure, self.driving)
            }
            Action::RecordedUntold(tenure) => {
                state.proxy.recorded_untold(&mut state.state_dir, tenure, self.driving)
            }
            Action::Crash => self.restart(state),
            Action::Restart => {
                let now = state.now();
                if !state.proxy.stop(&mut state.state_dir, now) {
                    return None;
                }
                self.restart(state);
            }
            Action::Enter(index) => self.enter(state, index)?,
            Action::ClientLeaves(index)
            | Action::Send(index)
            | Action::HandBack(index)
            | Action::WorkerBegins(index)
            | Action::WorkerEnds(index)
            | Action::WriteRest(index)
            | Action::MoreArrives(index)
            | Action::WorkerMisses(index)
            | Action::SeeAnswer(index)
            | Action::Lose(index)
            | Action::SeeLateAnswer(index)
            | Action::NeverSeeAnswer(index) => self.go_on(state, index, action)?,
        }
        state.requests.sort();
        Some(())
    }

    fn hear(&self, state: &mut State, message: Message) -> Option<()> {
        let news = state.history.tell(state.proxy.news.as_ref(), message)?;
        state.heard = state.heard.max(news.snapshot.as_of);
        state.proxy.hear(news, self.driving);
        Some(())
    }

    fn enter(&self, state: &mut State, index: usize) -> Option<()> {
        if self.driving.is(Mutant::ReadPerRequest) {
            self.hear(state, Message::Read(state.history.newest()));
        }
        let now = state.now();
        let State { proxy, requests, .. } = state;
        let Request { token, arrival, .. } = &requests[index];
        match proxy.enter(*token, arrival.as_ref(), now, self.driving) {
            Entered::AwaitsRecord => {}
            Entered::Waits => state.requests[index].waited = true,
            Entered::Refused => drop(state.requests.remove(index)),
            Entered::Uncounted => {
                self.check_admission(state, index, None);
                state.put(index, Stage::Unsent(Counted::Nobody(None)));
            }
            Entered::Counted(tenure) => {
                self.check_admission(state, index, Some(tenure));
                state.put(index, Stage::Unsent(Counted::Running(tenure)));
            }
        }
        Some(())
    }

    /// Checks that the token of an admitted request names a tenure that the store has granted and
    /// that the proxy knows to hold the lock. The revision of the admission lies between the start
    /// of that tenure and the token's revision.
    fn check_admission(&self, state: &mut State, index: usize, under: Option<Revision>) {
        let Request { token, .. } = &state.requests[index];
        let named = state.history.tenure_of(*token);
        let known = state
            .proxy
            .news
            .as_ref()
            .and_then(|news| state.history.tenure_at(news.snapshot.as_of?));
        let within = |first| under.is_none_or(|under| first <= under && under <= token.at);
        if !named.is_some_and(within) || known != named {
            state.wrong.admitted_without_tenure = true;
        }
    }

    /// What befalls a single request.
    fn go_on(&self, state: &mut State, index: usize, action: Action) -> Option<()> {
        let stage = state.requests[index].stage;
        let next = match (action, stage) {
            (Action::ClientLeaves(_), Stage::Waiting) => None,
            (Action::ClientLeaves(_), Stage::AtWorker(work, Counted::Running(tenure)))
                if self.driving.is(Mutant::PermitLeavesWithClient) =>
            {
                state.proxy.leave(tenure);
                Some(Stage::AtWorker(work, Counted::Nobody(None)))
            }
            (Action::Send(_), Stage::Unsent(Counted::Running(tenure)))
                if self.driving.is(Mutant::NoDrain) =>
            {
                state.proxy.leave(tenure);
                Some(Stage::AtWorker(Work::Unread, Counted::Nobody(None)))
            }
            (Action::Send(_), Stage::Unsent(counted)) => {
                Some(Stage::AtWorker(Work::Unread, counted))
            }
            (Action::HandBack(_), Stage::Unsent(Counted::Running(tenure))) => {
                state.proxy.leave(tenure);
                Some(Stage::Waiting)
            }
            (Action::WorkerBegins(_), Stage::AtWorker(Work::Unread, counted)) => {
                let tenure = state.tenure_of(&state.requests[index]);
                state.wrong.began_out_of_order |= tenure < state.newest;
                state.newest = state.newest.max(tenure);
                Some(Stage::AtWorker(Work::Running, counted))
            }
            (Action::WorkerEnds(_), Stage::AtWorker(Work::Running, Counted::Nobody(None))) => None,
            // Only a kernel can hold more of it: the process that sent it is gone.
            (
                Action::WorkerEnds(_),
                Stage::AtWorker(Work::Running, counted @ Counted::Nobody(Some(_))),
            ) => Some(Stage::AtWorker(Work::Done, counted)),
            (Action::WorkerEnds(_), Stage::AtWorker(Work::Running, counted)) => {
                Some(Stage::AtWorker(Work::Unwritten, counted))
            }
            (Action::WriteRest(_), Stage::AtWorker(Work::Unwritten, Counted::Nobody(_))) => None,
            (Action::WriteRest(_), Stage::AtWorker(Work::Unwritten, counted)) => {
                Some(Stage::AtWorker(Work::Done, counted))
            }
            (Action::MoreArrives(_), Stage::AtWorker(Work::Unwritten | Work::Done, _)) => {
                state.wrong.began_out_of_order |=
                    state.tenure_of(&state.requests[index]) < state.newest;
                Some(stage)
            }
            (
                Action::WorkerMisses(_),
                Stage::AtWorker(Work::Unread, Counted::Orphan(..) | Counted::Nobody(_)),
            ) => None,
            (Action::SeeAnswer(_), Stage::AtWorker(Work::Done, Counted::Running(tenure))) => {
                if !self.driving.is(Mutant::PermitKept) {
                    state.proxy.leave(tenure);
                }
                None
            }
            (Action::SeeAnswer(_), Stage::AtWorker(Work::Unwritten, Counted::Running(tenure))) => {
                state.proxy.leave(tenure);
                Some(Stage::AtWorker(Work::Unwritten, Counted::Nobody(None)))
            }
            (Action::Lose(_), Stage::AtWorker(work, Counted::Running(tenure))) => {
                state.losses_left = state.losses_left.checked_sub(1)?;
                let until = state.bound();
                Some(Stage::AtWorker(
                    work,
                    if self.driving.is(Mutant::OrphansNotCounted) {
                        state.proxy.leave(tenure);
                        Counted::Nobody(Some(until))
                    } else {
                        Counted::Orphan(state.proxy.lose(tenure, until), until)
                    },
                ))
            }
            (Action::SeeLateAnswer(_), Stage::AtWorker(Work::Done, Counted::Orphan(orphan, _))) => {
                state.proxy.end_orphan(orphan);
                None
            }
            (
                Action::SeeLateAnswer(_),
                Stage::AtWorker(Work::Unwritten, Counted::Orphan(orphan, _)),
            ) => {
                state.proxy.end_orphan(orphan);
                Some(Stage::AtWorker(Work::Unwritten, Counted::Nobody(None)))
            }
            (
                Action::NeverSeeAnswer(_),
                Stage::AtWorker(
                    Work::Unwritten | Work::Done,
                    Counted::Orphan(..) | Counted::Nobody(_),
                ),
            ) => None,
            (_, Stage::Waiting | Stage::Unsent(_) | Stage::AtWorker(..)) => return None,
        };
        match next {
            Some(stage) => state.put(index, stage),
            None => drop(state.requests.remove(index)),
        }
        Some(())
    }

    /// The worker goes on with what it has, and a kernel with what was written. What the process
    /// had not written is gone.
    fn restart(&self, state: &mut State) {
        let bound = state.bound();
        let now = state.now();
        state.restarts_left -= 1;
        state.requests.retain_mut(|request| {
            let goes_on = !request.is_answered() || request.may_send_more(now, self.driving);
            match &mut request.stage {
                Stage::Waiting | Stage::Unsent(_) => false,
                Stage::AtWorker(work, counted) => {
                    if *work == Work::Unwritten {
                        *work = Work::Done;
                    }
                    *counted = Counted::Nobody(counted.bound().or(Some(bound)));
                    goes_on
                }
            }
        });
        state.proxy = Proxy::start(&mut state.state_dir, bound, self.driving);
    }

    /// The answer by which a mutant ends a request that is not written.
    fn mistaken_end(&self, stage: Stage) -> Option<fn(usize) -> Action> {
        let Stage::AtWorker(Work::Unwritten, counted) = stage else { return None };
        let (mutant, end): (_, fn(usize) -> Action) = match counted {
            Counted::Running(_) => (Mutant::LeavesUnwritten, Action::SeeAnswer),
            Counted::Orphan(..) => (Mutant::LateAnswerEndsUnwritten, Action::SeeLateAnswer),
            Counted::Nobody(_) => return None,
        };
        self.driving.is(mutant).then_some(end)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state_dir = StateDir::empty();
        vec![State {
            history: History::begun(),
            heard: None,
            proxy: Proxy::start(&mut state_dir, Moment(0), self.driving),
            state_dir,
            requests: vec![],
            clock: 0,
            losses_left: self.scope.losses,
            restarts_left: self.scope.restarts,
            newest: None,
            wrong: Wrong::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let newest = state.history.newest();
        if newest.get() < self.scope.writes {
            let release = state.history.owner_at(newest).map(|_| None);
            let writes = Name::ALL.map(Some).into_iter().chain(release);
            let unheard = newest.get() - state.heard.map_or(0, Revision::get);
            if unheard < self.scope.unheard {
                actions.extend(writes.clone().map(Action::Write));
            }
            actions.extend(writes.map(Action::WriteAndRead));
        }
        for at in state.history.revisions() {
            actions.extend([Message::Event(at), Message::Read(at)].map(Action::Hear));
            actions.extend(
                self.scope.compaction.then_some(Action::Hear(Message::ReadAfterCompaction(at))),
            );
        }
        let tokens =
            state.history.revisions().flat_map(|at| Name::ALL.map(|name| Token { name, at }));
        let mut tokens = tokens.filter(|token| state.proxy.admits(*token)).peekable();
        // They all name the tenure that the proxy knows of, so one is enough.
        let claims =
            tokens.peek().copied().filter(|token| state.newest < state.history.tenure_of(*token));
        actions.extend(claims.map(Action::Claim));
        if state.requests.len() < self.scope.requests {
            actions.extend(tokens.map(Action::Arrive));
        }
        for (index, request) in state.requests.iter().enumerate() {
            if index > 0 && state.requests[index - 1] == *request {
                continue; // What befalls one of two equals may befall the other.
            }
            let may: &[fn(usize) -> Action] = match request.stage {
                Stage::Waiting => &[Action::ClientLeaves, Action::Enter],
                Stage::Unsent(_) => &[Action::Send, Action::HandBack],
                Stage::AtWorker(Work::Unread, Counted::Running(_)) => {
                    &[Action::WorkerBegins, Action::Lose]
                }
                Stage::AtWorker(Work::Running, Counted::Running(_)) => {
                    &[Action::WorkerEnds, Action::Lose]
                }
                Stage::AtWorker(Work::Unwritten, Counted::Running(_)) => {
                    &[Action::WriteRest, Action::Lose]
                }
                Stage::AtWorker(Work::Done, Counted::Running(_)) => {
                    &[Action::SeeAnswer, Action::Lose]
                }
                Stage::AtWorker(Work::Unread, _) => &[Action::WorkerBegins, Action::WorkerMisses],
                Stage::AtWorker(Work::Running, _) => &[Action::WorkerEnds],
                Stage::AtWorker(Work::Unwritten, _) => &[Action::WriteRest, Action::NeverSeeAnswer],
                Stage::AtWorker(Work::Done, Counted::Orphan(..)) => {
                    &[Action::SeeLateAnswer, Action::NeverSeeAnswer]
                }
                Stage::AtWorker(Work::Done, Counted::Nobody(_)) => &[Action::NeverSeeAnswer],
            };
            actions.extend(may.iter().map(|action| action(index)));
            actions.extend(self.mistaken_end(request.stage).map(|action| action(index)));
            // While no later tenure is at the worker, this step changes nothing.
            let is_late = state.tenure_of(request) < state.newest;
            if is_late && request.may_send_more(state.now(), self.driving) {
                actions.push(Action::MoreArrives(index));
            }
            // Once a request is sent, that its client leaves changes nothing: forwarding is
            // detached from the client.
            let detached = !self.driving.is(Mutant::PermitLeavesWithClient);
            if !detached && matches!(request.stage, Stage::AtWorker(_, Counted::Running(_))) {
                actions.push(Action::ClientLeaves(index));
            }
        }
        let bounds = state.requests.iter().filter_map(|request| request.counted()?.bound());
        let awaited = bounds.chain(state.proxy.unseen_until()).any(|bound| bound > state.now());
        // The clock tells nothing else, so without that a tick would only multiply states.
        actions.extend((awaited && state.clock < self.scope.ticks).then_some(Action::Tick));
        for tenure in &state.proxy.recording {
            actions.push(Action::Recorded(*tenure));
            actions.extend((state.restarts_left > 0).then_some(Action::RecordedUntold(*tenure)));
        }
        if state.restarts_left > 0 {
            actions.extend([Action::Crash, Action::Restart]);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        if let Action::Hear(message) = action {
            before.history.tell(before.proxy.news.as_ref(), message)?; // Most of it is old, and this is cheaper than a copy.
        }
        let mut state = before.clone();
        self.act(&mut state, action)?;
        let restarted = state.restarts_left < before.restarts_left;
        let floor_min = if restarted {
            state.state_dir.last().map_or(0, Revision::get)
        } else {
            before.proxy.floor()
        };
        state.wrong.floor_fell |= state.proxy.floor() < floor_min;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        let of_restarts = if self.scope.restarts > 0 { properties::of_restarts() } else { vec![] };
        [properties::always(), properties::sometimes(), of_restarts].concat()
    }
}
