//! Waiting at the barrier, while requests of an earlier tenure may still be at the worker.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use fencepost_config::OnHandoffTimeout;
use fencepost_locks::{Queued, Timing, TrackedLock};
use fencepost_policy::{Admission, EnterError, Rejection, Revision};
use prometheus::IntGauge;
use tokio::time::{Instant, sleep_until, timeout};

use crate::fencing::Claim;
use crate::observe::text::shown_owner;
use crate::observe::timeline::WaitStep;
use crate::observe::{Event, Wait};
use crate::process::Process;
use crate::recording::Subject;
use crate::request_context::{Answer, RequestContext};

/// How many requests wait at the barrier of one lock. One more is refused as if it had waited.
const WAITING_PER_LOCK_MAX: usize = 1_000;

/// How many requests wait at barriers in all.
const WAITING_MAX: usize = 10_000;

/// How many tenures a request has recorded before it gives up.
const RECORDS_MAX: u32 = 8;

/// How long the barrier's queue waits for one that has something to wait for itself, its connection mostly. Many times what that
/// takes in a network that works, so that order is kept; too short for those behind to be held up.
const TURN_MAX: Duration = Duration::from_millis(100);

/// A wait at the barrier: for the requests of earlier tenures, and then for those that came before.
#[derive(Default)]
pub struct Handoff {
    /// `None` unless it has to wait.
    waits: Option<Box<Waits>>,
    /// How often a tenure was recorded on its way.
    records: u32,
    /// There was no room for it to wait.
    crowded: bool,
    /// It has waited for long enough, and its route says `dangerous_proceed`.
    proceeds: bool,
    /// It is no request in flight: it only asks for the barrier to open.
    only_asks: bool,
    turn: Option<Box<Turn>>,
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
    pub fn enter(&self, context: &RequestContext, claim: &Claim, timing: &Timing) -> Result<Admission, EnterError> {
        let Claim { token, lock } = claim;
        if self.proceeds {
            return lock.enter_dangerously(token, timing);
        }
        if self.is_behind(lock) {
            self.may_enter(context, claim)?;
            return Err(EnterError::Wait);
        }
        lock.enter(token, timing)
    }

    /// The same, but nothing is counted in.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn may_enter(&self, context: &RequestContext, claim: &Claim) -> Result<(), EnterError> {
        claim.lock.may_enter(&claim.token, &context.timing())?;
        if self.is_behind(&claim.lock) { Err(EnterError::Wait) } else { Ok(()) }
    }

    /// Whether others came before it.
    fn is_behind(&self, lock: &TrackedLock) -> bool {
        match &self.turn {
            None => !lock.queue().is_clear(),
            Some(turn) => !turn.context.is_first(),
        }
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
        let deadline = self.waits.get_or_insert_with(|| Waits::begin(context)).since + context.route().handoff_timeout;
        let counted = (!self.only_asks).then(|| context.metrics().waiting.clone());
        let turn = self.turn.get_or_insert_with(|| Box::new(Turn::new(claim.lock.queue().join(), counted)));
        let mut ready = Some(ready);
        loop {
            let changed = claim.lock.gate_changed();
            // Looked at now that no change can be missed. What ends by the clock alone is looked for as of the same moment.
            let timing = context.timing();
            let look = claim.lock.may_enter(&claim.token, &timing);
            if matches!(look, Err(EnterError::Wait)) {
                if !turn.hold_up(context, claim) {
                    self.crowded = true;
                    return self.time_out();
                }
                ready = None;
            } else if look.is_err() || ready.is_none() || turn.context.is_first() {
                return Ok(ready);
            }
            if timing.now >= deadline {
                return self.time_out();
            }
            let seen_off = claim.lock.next_unseen(timing.now).unwrap_or(deadline);
            let may_be_otherwise = async {
                tokio::select! {
                    biased;
                    () = changed => {}
                    () = turn.context.turn(), if ready.is_some() => {}
                    () = sleep_until(deadline.min(seen_off)) => {}
                }
            };
            context.share.generation.process.unless_over(may_be_otherwise).await?;
        }
    }

    /// It is in nobody's way any longer.
    fn time_out<R>(&mut self) -> Result<Option<R>, Rejection> {
        self.turn.take().iter_mut().for_each(|turn| turn.note(WaitStep::TimedOut));
        Err(Rejection::HandoffTimeout)
    }

    /// Whether it has a place among those that wait.
    pub fn is_queued(&self) -> bool {
        self.turn.is_some()
    }

    /// Does what has to be done before its turn, which passes to those behind if that takes long.
    pub async fn get_ready<T>(&mut self, work: impl Future<Output = T>) -> T {
        let Some(turn) = &self.turn else { return work.await };
        let mut work = pin!(work);
        match timeout(TURN_MAX, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                let _aside = turn.context.step_aside();
                work.await
            }
        }
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
        self.proceeds = !self.crowded && context.route().on_handoff_timeout == OnHandoffTimeout::DangerousProceed;
        self.proceeds
    }

    /// The request is let in. Whoever comes next waits until what this returns is dropped.
    pub fn passed(self, context: &RequestContext, lock: &TrackedLock) -> Option<Box<Turn>> {
        if let Some(waits) = &self.waits {
            let waited = waits.since.elapsed();
            tracing::debug!(lock = %lock.key(), client = %context.client, ?waited, "let in after a wait");
        }
        let mut turn = self.turn;
        turn.iter_mut().for_each(|turn| turn.note(WaitStep::Entered));
        turn
    }

    /// What a request is told that has waited for too long.
    pub fn timed_out(&self, context: &RequestContext, claim: &Claim) -> Answer {
        let now = Instant::now();
        let left = claim.lock.unseen_until().map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        context.refuse_for(Rejection::HandoffTimeout, Subject::of(claim), seconds.max(1))
    }
}

/// A request that has to wait. It counts when this goes, whatever comes of it: its client may leave, or its tenure end.
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

/// A place in the queue of a lock, and among all that wait at barriers.
pub struct Turn {
    context: Queued,
    /// Where it is counted as waiting, if it is.
    counted: Option<IntGauge>,
    /// `None` unless the barrier holds it up.
    waiting: Option<Waiting>,
    /// What operators are told of the wait.
    noted: Option<NotedWait>,
}

impl Turn {
    fn new(context: Queued, counted: Option<IntGauge>) -> Turn {
        Turn { context, counted, waiting: None, noted: None }
    }

    /// Waits at the closed barrier from now on. False if there is no room for that.
    fn hold_up(&mut self, context: &Rc<RequestContext>, claim: &Claim) -> bool {
        if self.waiting.is_some() {
            return true;
        }
        let waiting = Waiting::join(&context.share.generation.process, self.counted.clone());
        self.waiting = waiting.filter(|_| self.context.hold_up(WAITING_PER_LOCK_MAX));
        if self.waiting.is_some() {
            tracing::debug!(lock = %claim.lock.key(), client = %context.client, "waits for requests of an earlier tenure");
            self.noted = NotedWait::begin(context, claim);
        }
        self.waiting.is_some()
    }

    /// Tells operators how the wait has ended.
    fn note(&mut self, step: WaitStep) {
        self.noted.iter_mut().for_each(|noted| noted.end = step);
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

    use fencepost_locks::{LockSource, LockSpec, MemoryStore, RecordFormat, SourceOptions};
    use fencepost_policy::{Layout, LockKey};

    use super::*;

    #[test]
    fn a_newcomer_does_not_overtake_those_that_the_barrier_has_held_up() {
        let (source, _driver) = LockSource::build("test", SourceOptions::default(), MemoryStore::new());
        let spec = LockSpec { key: LockKey::new("/lock").unwrap(), format: RecordFormat::plain(Layout::Key).into() };
        let lock = source.track(spec).unwrap();
        let newcomer = Handoff::default();
        assert!(!newcomer.is_behind(&lock));
        let mut held_up = lock.queue().join();
        assert!(held_up.hold_up(WAITING_PER_LOCK_MAX));
        assert!(newcomer.is_behind(&lock));
        let queued = Handoff { turn: Some(Box::new(Turn::new(lock.queue().join(), None))), ..Handoff::default() };
        assert!(queued.is_behind(&lock));
        drop(held_up);
        assert!(!newcomer.is_behind(&lock) && !queued.is_behind(&lock));
    }

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
