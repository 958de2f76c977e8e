//! What a group does at the gate of a lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_policy::group::MemberId;
use fencepost_policy::{AskedGate, EnterError, Holding, Rejection, Revision};
use tokio::time::Instant;

use super::{Inner, TrackedLock};
use crate::group::Membership;

impl TrackedLock {
    /// Whether this process may judge by what it knows: in a group it has to stand, and to know what
    /// was there when it joined.
    pub(super) fn take_stand(&self, inner: &mut Inner) -> Result<(), EnterError> {
        let Some(group) = &self.common.group else { return Ok(()) };
        let out_of_group = EnterError::Refused(Rejection::OutOfGroup);
        inner.gate.share(group.stands_since().ok_or(out_of_group)?);
        Ok(())
    }

    /// What keeps a request out whose token is admitted by what is known. Has the lock read, or the
    /// group asked, if that may end it.
    pub(super) fn learn_of_others(&self, inner: &Inner, kept_out: EnterError) -> EnterError {
        match (kept_out, &self.common.group) {
            // Others know more: a read shows that, and opens the gate to those who are still admitted.
            (EnterError::Confirm, Some(_)) => {
                self.want_read();
                EnterError::Wait
            }
            (EnterError::Wait, Some(group)) => {
                self.ask(group, inner);
                EnterError::Wait
            }
            (kept_out, _) => kept_out,
        }
    }

    fn ask(&self, group: &Membership, inner: &Inner) {
        let published = self.published();
        let news = published.snapshot.as_ref();
        let is_unclear = news.is_some_and(|news| inner.gate.unclear(news).is_some());
        if is_unclear
            && !self.asks.swap(true, Ordering::Relaxed)
            && let Some(lock) = self.common.registry.find(self.key().as_str())
        {
            group.want(lock);
        }
    }

    /// The group's driver looks at it now: who comes later has it look once more.
    pub(crate) fn begin_asking(&self) {
        self.asks.store(false, Ordering::Relaxed);
    }

    /// The revisions of the present tenure, if the group has to be asked before it may enter.
    pub(crate) fn unclear(&self, joined: Revision) -> Option<std::ops::RangeInclusive<Revision>> {
        let mut inner = self.inner();
        inner.gate.share(joined);
        inner.gate.unclear(self.published().snapshot.as_ref()?)
    }

    /// The tenure that has this revision is clear.
    pub(crate) fn set_clear(&self, revision: Revision) {
        self.at_gate(|gate| gate.clear(self.layout(), revision));
    }

    /// What to say to another member that asks for the tenure that has this revision.
    pub(crate) fn answer(&self, asked: Revision, joined: Revision) -> AskedGate {
        let mut inner = self.inner();
        inner.gate.share(joined);
        let published = self.published();
        let now = self.common.moment(Instant::now());
        let floor = inner.gate.state().floor;
        let answer = inner.gate.answer(self.layout(), asked, published.snapshot.as_ref(), now);
        // The ask may have sealed a tenure before the news of its end are here.
        if inner.gate.state().floor > floor {
            self.gate_changes.notify_waiters();
        }
        answer
    }

    /// Whether nothing is at the worker that the tenure with this revision has to wait for; `None`
    /// if that is not the present one.
    pub(crate) fn is_empty_before(&self, revision: Revision) -> Option<bool> {
        let inner = self.inner();
        let published = self.published();
        let news = published.snapshot.as_ref()?;
        let Holding::Held(tenure) = &news.holding else { return None };
        let now = self.common.moment(Instant::now());
        (tenure.first..=tenure.last)
            .contains(&revision)
            .then(|| inner.gate.is_empty_before(news, now))
    }

    /// For how long the present tenure waits at most for members of the group that are gone, as far
    /// as is known.
    pub fn waits_for_gone_members(&self) -> Option<Duration> {
        let view = self.common.group.as_ref()?.view();
        let ask = view.asks.iter().rfind(|ask| ask.tenure.lock.key == *self.key())?;
        let gone = ask.waits_for.iter().flatten();
        let member = |id: &MemberId| view.others.iter().find(|other| other.id == *id);
        gone.filter_map(|id| member(id)?.over_in).max()
    }

    /// Whether the present tenure is known to be clear; `None` outside of a group.
    pub fn is_known_clear(&self) -> Option<bool> {
        let joined = self.common.group.as_ref()?.stands_since()?;
        Some(self.unclear(joined).is_none())
    }
}
