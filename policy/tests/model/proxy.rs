//! The proxy, which drives the gate. It makes every call of the state machine under test, the wrong
//! ones too.

use std::collections::BTreeSet;

use fencepost_policy::{
    Admission, EnterError, FenceToken, Gate, Known, Moment, News as Age, OrphanId, Predecessor,
    Revision, Snapshot, Verdict, judge,
};

use crate::store::{News, Token, held_from};

/// How the proxy drives the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driving {
    /// As it should.
    Right,
    /// As it should, but with the news of the request's arrival: the floor alone has to refuse what
    /// has ended since.
    NewsOfArrival,
    /// Wrongly.
    Mutant(Mutant),
}

/// A mistake in driving the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A quorum read right before each request goes out, which shows the very present; no gate.
    ReadPerRequest,
    /// The gate is never taught, and the news of the request's arrival is what counts.
    NoFloor,
    /// The permit is given back when the first byte has gone out.
    NoDrain,
    /// The verdict at arrival counts. When the connection is ready, the gate lets in the present
    /// holder instead, and the request goes out on that permit.
    NoRecheck,
    /// The permit is given back when the client leaves.
    PermitLeavesWithClient,
    /// The permit is given back when the connection to the worker is lost.
    OrphansNotCounted,
    /// The permit is given back with the answer, though the request is not written.
    LeavesUnwritten,
    /// A late answer ends an orphan, though the request is not written.
    LateAnswerEndsUnwritten,
    /// The gate stops to count an orphan whose connection is open.
    ConnectionOutlivesOrphan,
    /// The permit of a request that has ended is not given back.
    PermitKept,
    /// A start does not wait for what its predecessor may have left at the worker.
    NoWaitAfterRestart,
    /// A start waits, but does not remember which tenure was the last.
    FloorForgottenByRestart,
    /// A tenure is recorded only after its first request went out.
    RecordedTooLate,
    /// Of two records under way, the earlier tenure's may be the one that stays.
    RecordsOvertake,
    /// `POST /.well-known/fence` is answered by the verdict alone.
    ClaimWithoutBarrier,
}

impl Driving {
    pub(crate) fn is(self, mutant: Mutant) -> bool {
        self == Driving::Mutant(mutant)
    }

    fn enters_on_news_of_arrival(self) -> bool {
        self == Driving::NewsOfArrival || self.is(Mutant::NoFloor)
    }

    /// What of a request's arrival is needed later; nothing else is kept, since it would only
    /// multiply states.
    pub(crate) fn keeps(self, news: &News) -> Option<News> {
        self.enters_on_news_of_arrival().then(|| news.clone())
    }
}

/// What outlives the process: each change of it is durable before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StateDir {
    /// The last tenure let in, and with it the floor.
    last: Option<Revision>,
    /// Nothing was at the worker, and nothing was sent since.
    clean: bool,
}

impl StateDir {
    /// No predecessor.
    pub(crate) fn empty() -> StateDir {
        StateDir { last: None, clean: true }
    }

    pub(crate) fn last(&self) -> Option<Revision> {
        self.last
    }

    fn write(&mut self, tenure: Revision, driving: Driving) {
        let last = if driving.is(Mutant::RecordsOvertake) {
            Some(tenure)
        } else {
            self.last.max(Some(tenure))
        };
        *self = StateDir { last, clean: false };
    }
}

/// What became of an attempt to enter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The request is counted in, under that tenure.
    Counted(Revision),
    /// It goes out and nobody counts it. Only mutants do that.
    Uncounted,
    /// Its tenure is being recorded: it has to try again.
    AwaitsRecord,
    /// Requests of earlier tenures may be at the worker: it has to try again.
    Waits,
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Proxy {
    gate: Gate,
    /// `None` until the lock was read for the first time.
    pub(crate) news: Option<News>,
    /// The tenures that are being recorded: any of these writes may be the next that is durable.
    pub(crate) recording: BTreeSet<Revision>,
}

impl Proxy {
    /// Starts on what the last process has left, whose requests may be at the worker until then.
    pub(crate) fn start(state_dir: &mut StateDir, until: Moment, driving: Driving) -> Proxy {
        let waits = !state_dir.clean && !driving.is(Mutant::NoWaitAfterRestart);
        let predecessor = state_dir.last.map(|last| Predecessor {
            tenure: (!driving.is(Mutant::FloorForgottenByRestart)).then_some(last),
            until: waits.then_some(until),
            others: false,
        });
        state_dir.clean = false;
        Proxy { gate: Gate::recording(predecessor), news: None, recording: BTreeSet::new() }
    }

    pub(crate) fn floor(&self) -> u64 {
        self.gate.state().floor
    }

    /// Where the tenure that holds the lock begins, as the gate has it.
    pub(crate) fn present(&self) -> u64 {
        let tenure = self.news.as_ref().and_then(|news| news.snapshot.tenure());
        tenure.map_or(0, |tenure| tenure.first.get()).max(self.floor())
    }

    /// How many requests the gate counts.
    pub(crate) fn permits(&self) -> usize {
        self.gate.state().at_worker.iter().map(|there| there.running).sum()
    }

    /// The gate is taught before anyone judges by the news.
    pub(crate) fn hear(&mut self, news: News, driving: Driving) {
        if !driving.is(Mutant::NoFloor) {
            self.gate.learn(&news.snapshot);
        }
        self.news = Some(news);
    }

    /// The verdict at arrival.
    pub(crate) fn admits(&self, token: Token) -> bool {
        self.news.as_ref().is_some_and(|news| {
            judge(&token.presented(), Known::new(Some(&news.snapshot), Age::Fresh))
                == Verdict::Admit
        })
    }

    /// The last step before a request goes out: its connection is ready.
    pub(crate) fn enter(
        &mut self,
        token: Token,
        arrival: Option<&News>,
        now: Moment,
        driving: Driving,
    ) -> Entered {
        let news = if driving.enters_on_news_of_arrival() { arrival } else { self.news.as_ref() };
        let known = Known::new(news.map(|news| &news.snapshot), Age::Fresh);
        if driving.is(Mutant::ReadPerRequest) {
            return match judge(&token.presented(), known) {
                Verdict::Admit => Entered::Uncounted,
                Verdict::Reject(_) | Verdict::Confirm => Entered::Refused,
            };
        }
        let holder =
            known.snapshot().and_then(Snapshot::tenure).filter(|_| driving.is(Mutant::NoRecheck));
        let token = match holder {
            Some(holder) => FenceToken { owner: holder.owner.as_bytes(), revision: holder.first },
            None => token.presented(),
        };
        let mut entry = self.gate.enter(&token, known, now);
        if driving.is(Mutant::RecordedTooLate)
            && let Err(EnterError::Record(tenure)) = entry
        {
            self.recording.insert(tenure);
            self.gate.recorded(tenure);
            entry = self.gate.enter(&token, known, now);
        }
        match entry {
            Ok(admission) => {
                let tenure = admission.tenure();
                assert_eq!(
                    format!("{admission:?}"),
                    format!("{:?}", admission_under(tenure)),
                    "see `admission_under`"
                );
                Entered::Counted(tenure)
            }
            Err(EnterError::Record(tenure)) => {
                self.recording.insert(tenure);
                Entered::AwaitsRecord
            }
            Err(EnterError::Wait) => Entered::Waits,
            Err(EnterError::Refused(_) | EnterError::Confirm) => Entered::Refused,
        }
    }

    /// Whether the barrier keeps the token's tenure out, by the present news.
    pub(crate) fn is_barred(&self, token: Token, now: Moment) -> bool {
        let known = Known::new(self.news.as_ref().map(|news| &news.snapshot), Age::Fresh);
        matches!(self.gate.may_enter(&token.presented(), known, now), Err(EnterError::Wait))
    }

    /// `POST /.well-known/fence`: whether the token's tenure is told that it has the worker to
    /// itself.
    pub(crate) fn claim(&mut self, token: Token, now: Moment, driving: Driving) -> bool {
        if driving.is(Mutant::ClaimWithoutBarrier) {
            return self.admits(token);
        }
        if driving.is(Mutant::ReadPerRequest) {
            return false; // Without a gate it cannot be told.
        }
        let known = Known::new(self.news.as_ref().map(|news| &news.snapshot), Age::Fresh);
        match self.gate.may_enter(&token.presented(), known, now) {
            Ok(_) => true,
            Err(EnterError::Record(tenure)) => {
                self.recording.insert(tenure);
                false
            }
            Err(EnterError::Wait | EnterError::Refused(_) | EnterError::Confirm) => false,
        }
    }

    /// The record of a tenure is durable.
    pub(crate) fn recorded(
        &mut self,
        state_dir: &mut StateDir,
        tenure: Revision,
        driving: Driving,
    ) {
        self.recorded_untold(state_dir, tenure, driving);
        if !driving.is(Mutant::RecordedTooLate) {
            self.gate.recorded(tenure);
        }
    }

    /// Records a tenure without the proxy's knowledge, so that the proxy records it again.
    pub(crate) fn recorded_untold(
        &mut self,
        state_dir: &mut StateDir,
        tenure: Revision,
        driving: Driving,
    ) {
        self.recording.remove(&tenure);
        state_dir.write(tenure, driving);
    }

    pub(crate) fn leave(&mut self, tenure: Revision) {
        self.gate.leave(admission_under(tenure));
    }

    pub(crate) fn lose(&mut self, tenure: Revision, until: Moment) -> OrphanId {
        self.gate.lose(admission_under(tenure), until)
    }

    /// An orphan's end was seen after all.
    pub(crate) fn end_orphan(&mut self, orphan: OrphanId) {
        self.gate.end_orphan(orphan);
    }

    /// When the last of those stops to count whose end will not be seen.
    pub(crate) fn unseen_until(&self) -> Option<Moment> {
        self.gate.unseen_until()
    }

    /// Stops, if it can do so cleanly.
    pub(crate) fn stop(&self, state_dir: &mut StateDir, now: Moment) -> bool {
        let clean = self.gate.is_clear(now);
        if clean {
            state_dir.clean = true;
        }
        clean
    }
}

/// The admission that a request under that tenure holds.
///
/// An `Admission` cannot be copied, but a model's state must be: so a request's is made anew where
/// it is needed, by a gate of its own. `Proxy::enter` checks that this is the one it was given.
fn admission_under(tenure: Revision) -> Admission {
    let (snapshot, token) = held_from(tenure);
    let known = Known::new(Some(&snapshot), Age::Fresh);
    Gate::default().enter(&token.presented(), known, Moment(0)).expect("an empty gate")
}
