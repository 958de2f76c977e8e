//! Waiting at the barrier, and what operators see of that. The waiting itself is [`fencepost_fence::handoff`].

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use fencepost_config::OnHandoffTimeout;
use fencepost_fence::handoff::{self, AtGate, retry_after};
use fencepost_locks::{Timing, TrackedLock};
use fencepost_policy::{Admission, EnterError, Rejection, Revision};
use prometheus::IntGauge;
use tokio::time::Instant;

use crate::fencing::Claim;
use crate::observe::text::shown_owner;
use crate::observe::timeline::WaitStep;
use crate::observe::{Event, Wait};
use crate::process::Process;
use crate::recording::Subject;
use crate::request_context::{Answer, RequestContext};

/// How many requests wait at barriers in all.
const WAITING_MAX: usize = 10_000;

/// How many tenures a request has recorded before it gives up.
const RECORDS_MAX: u32 = 8;

/// A place in the queue of a lock. The requests behind it wait until it is dropped.
pub(super) type Turn = handoff::Turn<HeldUp>;

/// A wait at the barrier: for the requests of earlier tenures, and then for those that came before.
#[derive(Default)]
pub struct Handoff {
    gate: handoff::Handoff<HeldUp>,
    /// `None` unless it has to wait.
    waits: Option<Box<Waits>>,
    /// How often a tenure was recorded on its way.
    records: u32,
    /// It has waited for long enough, and its route says `dangerous_proceed`.
    proceeds: bool,
    /// It is no request in flight: it only asks for the barrier to open.
    only_asks: bool,
}

impl Handoff {
    /// Of a caller who has nothing to send.
    pub fn asking() -> Handoff {
        Handoff { only_asks: true, ..Handoff::default() }
    }

    /// Judges the claim once more and lets its request in.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn enter(&self, Claim { token, lock }: &Claim, timing: &Timing) -> Result<Admission, EnterError> {
        if self.proceeds { lock.enter_dangerously(token, timing) } else { self.gate.enter(lock, token, timing) }
    }

    /// Checks like [`enter`](Self::enter), without counting the request.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn may_enter(&self, context: &RequestContext, Claim { token, lock }: &Claim) -> Result<(), EnterError> {
        self.gate.may_enter(lock, token, &context.timing())
    }

    /// Waits until the gate may answer otherwise, in the order in which requests came. Gives back what it needs to go, unless the
    /// barrier was closed: that would not stay fresh.
    ///
    /// # Errors
    /// `handoff-timeout` if that takes longer than the route allows, `draining` if the process does not go on for so long.
    pub async fn wait<R>(
        &mut self,
        context: &Rc<RequestContext>,
        claim: &Claim,
        ready: R,
    ) -> Result<Option<R>, Rejection> {
        self.waits.get_or_insert_with(|| Waits::begin(context));
        let at = AtBarrier { context, claim, only_asks: self.only_asks };
        // Asked before the gate is looked at: what ends in between is not missed. What does not bar now never will again.
        let is_barred = context.barred_until(Instant::now()).is_some();
        let wait = async {
            tokio::select! {
                biased;
                waited = self.gate.wait(&claim.lock, &claim.token, &at, ready) => waited,
                () = context.opened(), if is_barred => Ok(None),
            }
        };
        let waited = context.share.generation.process.unless_over(wait).await?;
        if waited.is_err() {
            note(self.gate.take_turn(), WaitStep::TimedOut); // It is in nobody's way any longer.
        }
        waited
    }

    /// Whether it has a place among those that wait.
    pub fn is_queued(&self) -> bool {
        self.gate.is_queued()
    }

    /// Does what has to be done before its turn, which passes to those behind if that takes long.
    pub async fn get_ready<T>(&self, work: impl Future<Output = T>) -> T {
        self.gate.get_ready(work).await
    }

    /// Has a tenure recorded, so that a later process knows of it before its first request goes out.
    ///
    /// # Errors
    /// `unverifiable` if it can't be recorded, or not for long enough: tenures follow each other too fast; `draining` if the process does
    /// not go on for so long.
    pub async fn record(
        &mut self,
        context: &RequestContext,
        lock: &TrackedLock,
        tenure: Revision,
    ) -> Result<(), Rejection> {
        self.records += 1;
        let process = &context.share.generation.process;
        match &process.memory {
            Some(memory) if self.records <= RECORDS_MAX => {
                let record = memory.record(lock, tenure, context.in_force().orphan_timeout_max);
                self.get_ready(process.unless_over(record)).await?
            }
            // Without a memory no gate asks for this.
            Some(_) | None => Err(Rejection::Unverifiable),
        }
    }

    /// Whether it goes on past the barrier after it has waited for too long, because its operator says so.
    pub fn proceeds(&mut self, context: &RequestContext) -> bool {
        let is_allowed = context.route().on_handoff_timeout == OnHandoffTimeout::DangerousProceed;
        self.proceeds = is_allowed && !self.gate.is_crowded();
        self.proceeds
    }

    /// The request is let in. The requests behind it wait until the turn is dropped.
    pub fn passed(mut self, context: &RequestContext, lock: &TrackedLock) -> Option<Box<Turn>> {
        if let Some(waited) = self.gate.waited() {
            tracing::debug!(lock = %lock.key(), client = %context.client, ?waited, "let in after a wait");
        }
        note(self.gate.take_turn(), WaitStep::Entered)
    }

    /// The answer to a request that has waited for too long.
    pub fn timed_out(&self, context: &RequestContext, claim: &Claim) -> Answer {
        let now = Instant::now();
        let barred = context.barred_until(now).map_or(0, |until| (until - now).as_millis().div_ceil(1_000) as u64);
        context.refuse_for(Rejection::HandoffTimeout, Subject::of(claim), retry_after(&claim.lock).max(barred))
    }
}

/// Tells operators how a wait has ended.
fn note(mut turn: Option<Box<Turn>>, step: WaitStep) -> Option<Box<Turn>> {
    let held_up = turn.iter_mut().filter_map(|turn| turn.held_up.as_mut());
    held_up.filter_map(|held_up| held_up.noted.as_mut()).for_each(|noted| noted.end = step);
    turn
}

/// A request, or a fence call, at the barrier of its lock.
struct AtBarrier<'c> {
    context: &'c Rc<RequestContext>,
    claim: &'c Claim,
    only_asks: bool,
}

/// A request that the barrier holds up.
pub struct HeldUp {
    _waiting: Waiting,
    noted: Option<NotedWait>,
}

impl AtGate for AtBarrier<'_> {
    type HeldUp = HeldUp;

    fn timing(&self) -> Timing {
        self.context.timing()
    }

    fn handoff_timeout(&self) -> Duration {
        self.context.route().handoff_timeout
    }

    fn hold_up(&self) -> Option<HeldUp> {
        let AtBarrier { context, claim, only_asks } = self;
        let counted = (!only_asks).then(|| context.metrics().waiting.clone());
        let waiting = Waiting::join(&context.share.generation.process, counted)?;
        tracing::debug!(lock = %claim.lock.key(), client = %context.client, "waits for requests of an earlier tenure");
        Some(HeldUp { _waiting: waiting, noted: NotedWait::begin(context, claim) })
    }
}

/// Counts how long a request had to wait, whatever comes of it: its client may leave, or its tenure end.
struct Waits {
    since: Instant,
    context: Rc<RequestContext>,
}

impl Waits {
    fn begin(context: &Rc<RequestContext>) -> Box<Waits> {
        Box::new(Waits { since: Instant::now(), context: Rc::clone(context) })
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.context.metrics().handoff_waited(self.since.elapsed());
    }
}

/// One of those that wait, for as long as this lives.
struct Waiting {
    process: Arc<Process>,
    on_its_route: Option<IntGauge>,
}

impl Waiting {
    /// One more, unless there are too many already.
    fn join(process: &Arc<Process>, on_its_route: Option<IntGauge>) -> Option<Waiting> {
        on_its_route.iter().for_each(IntGauge::inc);
        let joined = Waiting { process: Arc::clone(process), on_its_route };
        (process.waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX).then_some(joined)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.process.waiting.fetch_sub(1, Ordering::Relaxed);
        self.on_its_route.iter().for_each(IntGauge::dec);
    }
}

/// A wait that operators can look at: they are told when it begins, and how it has ended when this goes.
struct NotedWait {
    context: Rc<RequestContext>,
    claim: Claim,
    end: WaitStep,
}

impl NotedWait {
    /// `None` if nobody looks, or there is no room for another note: then its end is not to be noted either.
    fn begin(context: &Rc<RequestContext>, claim: &Claim) -> Option<NotedWait> {
        let observations = context.share.generation.process.observations.as_ref()?;
        let gate = claim.lock.describe(Instant::now()).gate;
        let earlier = gate.at_worker.iter().filter(|there| there.tenure < claim.token.revision);
        let began = WaitStep::Began { drained: earlier.map(|there| there.running + there.orphans).sum() };
        let is_noted = observations.note(context.share.thread, || wait(claim, began));
        is_noted.then(|| NotedWait { context: Rc::clone(context), claim: claim.clone(), end: WaitStep::GivenUp })
    }
}

impl Drop for NotedWait {
    fn drop(&mut self) {
        let share = &self.context.share;
        let observations = share.generation.process.observations.iter();
        observations.for_each(|observations| observations.note_end(share.thread, wait(&self.claim, self.end)));
    }
}

fn wait(Claim { token, lock }: &Claim, step: WaitStep) -> Event {
    Event::Wait(Box::new(Wait {
        at: SystemTime::now(),
        source: lock.source().into(),
        lock: lock.key().clone(),
        layout: lock.layout(),
        owner: shown_owner(token.owner.as_bytes()),
        revision: token.revision,
        step,
    }))
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_with;

    use super::*;

    #[test]
    fn ten_thousand_wait_at_barriers_and_one_more_only_when_another_has_left() {
        let process = Arc::new(Process::alone().unwrap());
        let on_its_route = IntGauge::new("waiting", "Those that wait.").unwrap();
        let join = || Waiting::join(&process, Some(on_its_route.clone()));
        let mut waiting: Vec<Waiting> = repeat_with(join).map_while(|joined| joined).take(10_001).collect();
        assert_eq!((waiting.len(), on_its_route.get()), (10_000, 10_000));
        assert!(join().is_none());
        waiting.pop();
        assert!(join().is_some());
        drop(waiting);
        assert_eq!((process.waiting.load(Ordering::Relaxed), on_its_route.get()), (0, 0));
    }
}
