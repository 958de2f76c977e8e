//! One look at what is known of a lock.

use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{FenceToken, Holding, Known, News, Revision, Snapshot, Tenure, Verdict};
use tokio::time::Instant;

use super::trust::{Glance, WatchNumber, WatchState};
use crate::sync::Guard;

/// What is wrong with a record, in words that name the key. In one pointer: few locks have any.
pub(crate) type Problem = Arc<Box<str>>;

/// What is known of a lock, as everyone may read it.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) snapshot: Option<Snapshot>,
    /// When the newest quorum read was sent that is part of this.
    pub(crate) dated: Option<Instant>,
    /// Whether the store has a record of the lock; a free lock may have one too.
    pub(crate) exists: bool,
    pub(crate) problem: Option<Problem>,
    /// The newest watch of this lock that was up when a read was sent that is part of this.
    pub(crate) dated_in: Option<WatchNumber>,
    /// The revision up to which nothing is believed of this lock, beside what is not of the whole
    /// store.
    pub(crate) distrusted_through: Option<Revision>,
}

/// When a request is judged, and by what measure.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// When the request arrived. A read that was sent at that very instant counts as sent after it:
    /// on a virtual clock, let time pass between a read and a request that must not use it.
    pub arrived: Instant,
    /// Until when the barrier is closed to the request, whatever the gate counts: what its route
    /// let past unjudged may run.
    pub not_before: Option<Instant>,
    /// The present.
    pub now: Instant,
    /// How old news may be that admit.
    pub max_age: Duration,
    /// Whether only a read that was sent after the request arrived admits.
    pub linearizable: bool,
}

/// One look at what is known of a lock. Hold it only for as long as it takes to judge.
#[derive(Debug)]
pub struct CacheView {
    glance: Glance,
    published: Guard<Arc<Published>>,
}

impl CacheView {
    /// The two have to be loaded in the order of the arguments: what is published when distrust
    /// ends has forgotten what was distrusted.
    pub(crate) fn new(glance: Glance, published: Guard<Arc<Published>>) -> CacheView {
        CacheView { glance, published }
    }

    /// Judges the token: [`fencepost_policy::judge`], and what admits has to be younger than
    /// `max_age` as well.
    ///
    /// A read that was sent after the request arrived is final in what it refuses, however old it
    /// is by now. If it would admit, but the request has waited for longer than `max_age` since,
    /// the verdict is [`Verdict::Confirm`] again, and a read that is sent from now on settles it:
    /// see [`TrackedLock::confirm`](crate::TrackedLock::confirm).
    pub fn judge<O: AsRef<[u8]>>(&self, token: &FenceToken<O>, timing: &Timing) -> Verdict {
        match fencepost_policy::judge(token, self.known(timing)) {
            Verdict::Admit if self.age(timing.now).is_none_or(|age| age > timing.max_age) => {
                Verdict::Confirm
            }
            verdict @ (Verdict::Admit | Verdict::Reject(_) | Verdict::Confirm) => verdict,
        }
    }

    /// How long ago the read was sent that this is dated by; `None` if nothing has been read.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.dated().map(|dated| now.saturating_duration_since(dated))
    }

    /// For how much longer what is under way may go on by this; `None` if this is as old as
    /// `max_age`, or nothing of it is believed because the store went back. A tenure that the
    /// restored store does not know of ends no other: only that nobody is admitted shows it.
    pub fn good_for(&self, max_age: Duration, now: Instant) -> Option<Duration> {
        let age = self.age(now).filter(|_| !self.is_distrusted())?;
        // What will not be good for any time at all is not good.
        max_age.checked_sub(age).filter(|left| !left.is_zero())
    }

    /// What is wrong with the lock's record, if it can't be read.
    pub fn problem(&self) -> Option<&str> {
        self.published.problem.as_ref().map(|problem| &***problem)
    }

    /// What is known of the lock.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.published.snapshot.as_ref()
    }

    /// The tenure that holds it, unless nothing is believed of that because the store went back.
    pub fn believed_tenure(&self) -> Option<&Tenure> {
        self.snapshot().and_then(Snapshot::tenure).filter(|_| !self.is_distrusted())
    }

    /// When the newest quorum read was sent that this is the answer of.
    pub(crate) fn dated(&self) -> Option<Instant> {
        self.published.dated
    }

    pub(crate) fn known(&self, timing: &Timing) -> Known<'_> {
        if self.is_distrusted() {
            // Revisions are given out for a second time: held against what is lost, a holder of the
            // present could look stale.
            return Known::new(None, News::Regressed);
        }
        Known::new(self.snapshot(), self.news(timing))
    }

    /// A pure function of the date of what is known, and of the watch.
    fn news(&self, timing: &Timing) -> News {
        match self.dated() {
            Some(dated) if dated >= timing.arrived => News::Confirmed,
            Some(dated)
                if !timing.linearizable
                    && timing.now.saturating_duration_since(dated) <= timing.max_age
                    && self.is_watched() =>
            {
                News::Fresh
            }
            Some(_) | None => News::Old,
        }
    }

    /// `watched-admission`: cached news admits if it is dated by a read that was sent while a watch
    /// of the lock was up, and one has been up since then. Where reads fail too, waiting for them
    /// would not help, and age alone counts.
    fn is_watched(&self) -> bool {
        match self.glance.watch {
            WatchState::Up { since } => self.published.dated_in >= Some(since),
            WatchState::Down => false,
            WatchState::DownReadsFail => true,
        }
    }

    /// A store that went back counts revisions for a second time. Only a tenure that began above
    /// all that it had shown before has a token that was never given out in the history that is
    /// lost.
    fn is_distrusted(&self) -> bool {
        let own = self.published.distrusted_through;
        let Some(through) = self.glance.distrusted_through.max(own) else {
            return false;
        };
        match self.snapshot().map(|snapshot| &snapshot.holding) {
            Some(Holding::Held(tenure)) => tenure.first <= through,
            Some(Holding::Free | Holding::Unreadable) | None => true,
        }
    }
}
