//! What requests do at the gate of a lock.

use fencepost_policy::{
    Admission, EnterError, FenceToken, Gate, Known, Moment, OrphanId, Rejection, Revision, Term,
    Verdict,
};
use tokio::time::Instant;

use super::TrackedLock;
use crate::cache::cache_view::Timing;
use crate::cache::queue::Queue;

impl TrackedLock {
    /// Judges once more and, if the token is admitted, counts the request in: one step, after
    /// everything that may be waited for.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn enter<O: AsRef<[u8]>>(
        &self,
        token: &FenceToken<O>,
        timing: &Timing,
    ) -> Result<Admission, EnterError> {
        self.judge_at_gate(token, timing, Gate::enter)
    }

    /// [`TrackedLock::enter`], but past the barrier, because the operator says that overlap is
    /// better than waiting.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn enter_dangerously<O: AsRef<[u8]>>(
        &self,
        token: &FenceToken<O>,
        timing: &Timing,
    ) -> Result<Admission, EnterError> {
        self.judge_at_gate(token, &Timing { not_before: None, ..*timing }, Gate::enter_dangerously)
    }

    /// Whether the token's tenure has the worker to itself: [`TrackedLock::enter`], but nothing is
    /// counted in.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn may_enter<O: AsRef<[u8]>>(
        &self,
        token: &FenceToken<O>,
        timing: &Timing,
    ) -> Result<Revision, EnterError> {
        self.judge_at_gate(token, timing, |gate, token, known, now| {
            gate.may_enter(token, known, now)
        })
    }

    /// Judges by the newest that is known and goes on at the gate with what is admitted: one step,
    /// under its mutex.
    fn judge_at_gate<O: AsRef<[u8]>, T>(
        &self,
        token: &FenceToken<O>,
        timing: &Timing,
        admitted: impl FnOnce(&mut Gate, &FenceToken<O>, Known<'_>, Moment) -> Result<T, EnterError>,
    ) -> Result<T, EnterError> {
        let Ok(mut inner) = self.inner.lock() else {
            return Err(EnterError::Refused(Rejection::Unverifiable)); // Somebody panicked here: nobody knows what the gate counts.
        };
        self.take_stand(&mut inner)?;
        let outlook = self.view();
        match outlook.judge(token, timing) {
            Verdict::Reject(rejection) => Err(EnterError::Refused(rejection)),
            Verdict::Confirm => Err(EnterError::Confirm),
            Verdict::Admit => {
                let (known, now) = (outlook.known(timing), self.common.moment(timing.now));
                if timing.not_before.is_none_or(|not_before| not_before <= timing.now) {
                    let entered = admitted(&mut inner.gate, token, known, now);
                    return entered.map_err(|kept_out| self.learn_of_others(&inner, kept_out));
                }
                match inner.gate.may_enter(token, known, now) {
                    Err(refused @ EnterError::Refused(_)) => Err(refused),
                    Ok(_) | Err(EnterError::Wait | EnterError::Record(_) | EnterError::Confirm) => {
                        Err(EnterError::Wait)
                    }
                }
            }
        }
    }

    /// Completes when the gate may answer otherwise than before: a request has left it, an orphan
    /// has ended, or another tenure began. To miss nothing, take it before the attempt to enter,
    /// and await it after.
    pub fn gate_changed(&self) -> impl Future<Output = ()> + '_ {
        let mut changed = Box::pin(self.gate_changes.notified());
        changed.as_mut().enable();
        changed
    }

    /// Takes back an admission: nothing of its request is at the worker any more.
    pub fn leave(&self, admission: Admission) {
        // Only a tenure's last request that runs opens the barrier: the others need not wake all
        // who wait.
        let last = self.inner().gate.leave(admission);
        if last {
            self.gate_changes.notify_waiters();
        }
    }

    /// The requests that wait at the gate, in the order in which they came. A request that finds
    /// others there joins the end, and does not [`enter`](TrackedLock::enter) before its turn.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Takes back an admission whose request may still be running at the worker; it counts until
    /// then, unless its end is seen before ([`TrackedLock::end_orphan`]).
    pub fn lose(&self, admission: Admission, until: Instant) -> OrphanId {
        let until = self.common.moment(until);
        self.at_gate(|gate| gate.lose(admission, until))
    }

    /// Lets an orphan count until then, if it has not been forgotten yet and would count for less
    /// long: its worker was heard of.
    pub fn postpone(&self, orphan: OrphanId, until: Instant) {
        let until = self.common.moment(until);
        self.inner().gate.postpone(orphan, until);
    }

    /// Whether somebody reads what an orphan's worker says, and ends it in time: see
    /// [`Gate::set_heard`].
    pub fn set_heard(&self, orphan: OrphanId, is_heard: bool) {
        self.inner().gate.set_heard(orphan, is_heard);
        // Its time may have come before: then the barrier opens by this.
        if !is_heard {
            self.gate_changes.notify_waiters();
        }
    }

    /// Whether an orphan has not been forgotten yet.
    pub fn counts_orphan(&self, orphan: OrphanId) -> bool {
        self.inner().gate.counts(orphan)
    }

    /// Forgets an orphan, because its end was seen after all or its time has come. Says whether it
    /// was still counted.
    pub fn end_orphan(&self, orphan: OrphanId) -> bool {
        self.at_gate(|gate| gate.end_orphan(orphan))
    }

    /// Notes that a tenure is durably recorded ([`EnterError::Record`]).
    pub fn recorded(&self, tenure: Revision) {
        self.at_gate(|gate| gate.recorded(tenure));
    }

    /// Has its tenures recorded once more before another request of them enters.
    pub fn record_again(&self) {
        self.at_gate(Gate::record_again);
    }

    /// Whether nothing is at the worker that a later tenure would have to wait for.
    pub fn is_clear(&self, now: Instant) -> bool {
        self.inner().gate.is_clear(self.common.moment(now))
    }

    /// Whether that tenure has ended since it was let in.
    pub fn has_ended(&self, term: Term) -> bool {
        self.inner().gate.has_ended(term)
    }

    /// Forgets all orphans, because the operator knows that none is running; returns how many those
    /// were.
    pub fn clear_orphans(&self) -> usize {
        self.common.clear_left_behind(self.key());
        let cleared = self.at_gate(Gate::clear_orphans);
        self.common.orphans_cleared.notify_waiters();
        cleared
    }

    /// Completes when an operator has ended orphans, be they another lock's of the source. Not when
    /// one more is lost or ends: each has somebody who waits for this, and that would wake them
    /// all. To miss nothing, take it before looking, and await it after.
    pub fn orphans_cleared(&self) -> impl Future<Output = ()> + '_ {
        let mut cleared = Box::pin(self.common.orphans_cleared.notified());
        cleared.as_mut().enable();
        cleared
    }

    /// When the last of those stops to count whose end will not be seen: orphans, and what an
    /// earlier process left behind.
    pub fn unseen_until(&self) -> Option<Instant> {
        self.inner().gate.unseen_until().map(|moment| self.common.instant(moment))
    }

    /// When the next of those stops to count after `now`: the barrier may open then.
    pub fn next_unseen(&self, now: Instant) -> Option<Instant> {
        let next = self.inner().gate.next_unseen(self.common.moment(now));
        next.map(|moment| self.common.instant(moment))
    }

    /// Changes the gate, then tells all who wait at it to look again.
    pub(super) fn at_gate<T>(&self, change: impl FnOnce(&mut Gate) -> T) -> T {
        let result = change(&mut self.inner().gate);
        self.gate_changes.notify_waiters();
        result
    }
}
