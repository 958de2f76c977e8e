//! A request's way into the gate: judge, wait, enter.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::Timing;
use fencepost_policy::{Admission, EnterError, Rejection, Verdict};

use crate::claim::Claim;
use crate::handoff::{AtGate, Handoff, Turn};
use crate::rules::Rules;
use crate::shared::{Shared, Waiting};

/// A request at the gate of its lock.
pub(crate) struct Entry<'c> {
    pub(crate) fence: &'c Arc<Shared>,
    pub(crate) claim: &'c Claim,
    pub(crate) rules: &'c Rules,
}

impl Entry<'_> {
    /// Judges the claim, and counts its request in as soon as no request of an earlier tenure runs. The requests behind it wait
    /// until the turn is dropped.
    ///
    /// # Errors
    /// Why it may not; `handoff-timeout` if that takes too long.
    pub(crate) async fn enter(&self) -> Result<(Admission, Option<Box<Turn<Waiting>>>), Rejection> {
        // Most that are refused need not come to the gate.
        if let Verdict::Reject(reason) = self.claim.judge(self.rules) {
            return Err(reason);
        }
        let Claim { token, lock, .. } = self.claim;
        let mut handoff = Handoff::default();
        loop {
            match handoff.enter(lock, token, &self.timing()) {
                Ok(admission) => return Ok((admission, handoff.take_turn())),
                Err(kept_out) => self.wait_out(&mut handoff, kept_out).await?,
            }
        }
    }

    /// Waits like [`enter`](Self::enter), without counting the request.
    ///
    /// # Errors
    /// Those of [`enter`](Self::enter).
    pub(crate) async fn close_door(&self) -> Result<(), Rejection> {
        let Claim { token, lock, .. } = self.claim;
        let mut handoff = Handoff::default();
        while let Err(kept_out) = handoff.may_enter(lock, token, &self.timing()) {
            self.wait_out(&mut handoff, kept_out).await?;
        }
        Ok(())
    }

    /// Does what the gate asks for before it may be tried again.
    async fn wait_out(&self, handoff: &mut Handoff<Waiting>, kept_out: EnterError) -> Result<(), Rejection> {
        let Claim { token, lock, .. } = self.claim;
        match kept_out {
            EnterError::Refused(reason) => Err(reason),
            EnterError::Wait => handoff.wait(lock, token, self, ()).await.map(drop),
            EnterError::Confirm => handoff.get_ready(self.claim.confirm(self.rules)).await,
            EnterError::Record(_) => Err(Rejection::Unverifiable), // Without a tenure log no gate asks for this.
        }
    }
}

impl AtGate for Entry<'_> {
    type HeldUp = Waiting;

    fn timing(&self) -> Timing {
        self.rules.timing(self.claim.arrived)
    }

    fn handoff_timeout(&self) -> Duration {
        self.rules.handoff_timeout
    }

    fn hold_up(&self) -> Option<Waiting> {
        Waiting::join(self.fence)
    }
}
