//! Into the gate: at once, or after those of earlier tenures, in the order of arrival.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{Queued, TrackedLock};
use fencepost_policy::{Admission, EnterError, Rejection, Verdict};
use tokio::time::{Instant, sleep_until, timeout};

use crate::claim::Claim;
use crate::fence::{Shared, Waiting};
use crate::lock::Rules;

/// How many requests wait at the barrier of one lock. One more is refused as if it had waited.
const WAITING_PER_LOCK_MAX: usize = 1_000;

/// How long the barrier's queue waits for one that has to ask the store before it may go.
const TURN_MAX: Duration = Duration::from_millis(100);

/// A way into the gate, with its place among those that wait.
pub(crate) struct Handoff<'c> {
    fence: &'c Arc<Shared>,
    claim: &'c Claim,
    rules: &'c Rules,
    since: Option<Instant>,
    turn: Option<Turn>,
}

/// A place in the queue of a lock, and among all that wait at barriers.
pub(crate) struct Turn {
    place: Queued,
    /// `None` unless the barrier holds it up.
    waiting: Option<Waiting>,
}

impl<'c> Handoff<'c> {
    pub(crate) fn new(fence: &'c Arc<Shared>, claim: &'c Claim, rules: &'c Rules) -> Handoff<'c> {
        Handoff { fence, claim, rules, since: None, turn: None }
    }

    /// Judges the claim, and counts its request in as soon as no request of an earlier tenure runs: one step, nothing in
    /// between. Whoever comes next waits until the turn is dropped.
    ///
    /// # Errors
    /// Why it may not; `handoff-timeout` if that takes too long.
    pub(crate) async fn enter(mut self) -> Result<(Admission, Option<Turn>), Rejection> {
        // Most that are refused need not come to the gate.
        if let Verdict::Reject(reason) = self.claim.judge(self.rules) {
            return Err(reason);
        }
        loop {
            match self.try_enter() {
                Ok(admission) => return Ok((admission, self.turn)),
                Err(kept_out) => self.wait_out(kept_out).await?,
            }
        }
    }

    /// The same, but nothing is counted in.
    pub(crate) async fn close_door(mut self) -> Result<(), Rejection> {
        while let Err(kept_out) = self.may_enter() {
            self.wait_out(kept_out).await?;
        }
        Ok(())
    }

    fn try_enter(&self) -> Result<Admission, EnterError> {
        let Claim { token, lock, arrived } = self.claim;
        if self.is_behind() {
            self.may_enter()?;
            return Err(EnterError::Wait);
        }
        lock.enter(token, &self.rules.timing(*arrived))
    }

    fn may_enter(&self) -> Result<(), EnterError> {
        let Claim { token, lock, arrived } = self.claim;
        lock.may_enter(token, &self.rules.timing(*arrived))?;
        if self.is_behind() { Err(EnterError::Wait) } else { Ok(()) }
    }

    /// Whether others came before it.
    fn is_behind(&self) -> bool {
        match &self.turn {
            None => !self.lock().queue().is_clear(),
            Some(turn) => !turn.place.is_first(),
        }
    }

    fn lock(&self) -> &'c Arc<TrackedLock> {
        &self.claim.lock
    }

    /// Does what the gate asks for before it may be tried again.
    async fn wait_out(&mut self, by: EnterError) -> Result<(), Rejection> {
        match by {
            EnterError::Refused(reason) => Err(reason),
            EnterError::Wait => self.wait().await,
            EnterError::Confirm => self.get_ready(self.claim.confirm(self.rules)).await,
            EnterError::Record(_) => Err(Rejection::Unverifiable), // Without a memory no gate asks for this.
        }
    }

    /// Waits until the gate may answer otherwise, in the order in which requests came.
    async fn wait(&mut self) -> Result<(), Rejection> {
        let Claim { token, lock, arrived } = self.claim;
        let deadline = *self.since.get_or_insert_with(Instant::now) + self.rules.handoff_timeout;
        let turn = self.turn.get_or_insert_with(|| Turn { place: lock.queue().join(), waiting: None });
        loop {
            let changed = lock.gate_changed();
            // Looked at now that no change can be missed. What ends by the clock alone is looked for as of the same moment.
            let timing = self.rules.timing(*arrived);
            let is_open = match lock.may_enter(token, &timing) {
                Ok(_) if turn.place.is_first() => return Ok(()),
                Ok(_) => true,
                Err(EnterError::Wait) if turn.hold_up(self.fence) => false,
                Err(EnterError::Wait) => return self.time_out(), // There is no room for it to wait.
                Err(_) => return Ok(()),
            };
            if timing.now >= deadline {
                return self.time_out();
            }
            let seen_off = lock.next_unseen(timing.now).unwrap_or(deadline);
            tokio::select! {
                biased;
                () = changed => {}
                () = turn.place.turn(), if is_open => {}
                () = sleep_until(deadline.min(seen_off)) => {}
            }
        }
    }

    /// It is in nobody's way any longer.
    fn time_out(&mut self) -> Result<(), Rejection> {
        self.turn = None;
        Err(Rejection::HandoffTimeout)
    }

    /// Does what has to be done before its turn, which passes to those behind if that takes long.
    async fn get_ready<T>(&self, work: impl Future<Output = T>) -> T {
        let Some(turn) = &self.turn else { return work.await };
        let mut work = pin!(work);
        match timeout(TURN_MAX, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                let _aside = turn.place.step_aside();
                work.await
            }
        }
    }
}

impl Turn {
    /// Waits at the closed barrier from now on. False if there is no room for that.
    fn hold_up(&mut self, fence: &Arc<Shared>) -> bool {
        if self.waiting.is_none() {
            self.waiting = Waiting::join(fence).filter(|_| self.place.hold_up(WAITING_PER_LOCK_MAX));
        }
        self.waiting.is_some()
    }
}
