//! A gate that several proxies share: what [`Group`](crate::group::Group) needs of it.

use std::ops::RangeInclusive;

use super::{EnterError, Gate, Moment};
use crate::{Holding, Layout, Revision, Snapshot, Tenure};

/// What the members of a group have found.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(super) struct Shared {
    /// A revision of the newest tenure that is known to be clear.
    clear: Option<Revision>,
    /// Only news of that revision or later admits: others have been told what we have sealed.
    through: Option<Revision>,
}

impl Shared {
    /// # Errors
    /// `Confirm` if others know more than the news.
    pub(super) fn may_judge(&self, news: &Snapshot) -> Result<(), EnterError> {
        if news.as_of < self.through { Err(EnterError::Confirm) } else { Ok(()) }
    }

    /// # Errors
    /// `Confirm` if others know more than the news; `Wait` if its tenure is not known to be clear.
    pub(super) fn may_enter(&self, news: &Snapshot) -> Result<(), EnterError> {
        self.may_judge(news)?;
        let is_clear = |clear| revisions_of(news).is_some_and(|tenure| tenure.contains(&clear));
        if self.clear.is_some_and(is_clear) { Ok(()) } else { Err(EnterError::Wait) }
    }
}

/// What a gate says to the ask of another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedGate {
    /// Nothing of an earlier tenure is at the worker, or ever will be.
    Sealed,
    /// Requests of an earlier tenure may be at the worker.
    Busy,
    /// The news is older than the tenure that is asked for. From now on it admits nobody
    /// ([`EnterError::Confirm`]): read the lock, then ask again.
    Unknown,
}

impl Gate {
    /// Shares the gate: from now on a tenure enters only once it is known to be clear, and only by
    /// news as of that revision or later, at which this member has joined. What was found before
    /// stays true.
    pub fn share(&mut self, joined: Revision) {
        let shared = self.shared.get_or_insert_default();
        shared.through = shared.through.max(Some(joined));
    }

    /// Notes that the tenure that has this revision is clear: nothing of an earlier one is at the
    /// worker through another member, or ever will be.
    pub fn clear(&mut self, layout: Layout, revision: Revision) {
        self.hear_of(layout, revision);
        if let Some(shared) = &mut self.shared {
            shared.clear = shared.clear.max(Some(revision));
        }
    }

    /// Another member knows of the tenure that has this revision: nothing earlier is let in by what
    /// we know and it does not.
    fn hear_of(&mut self, layout: Layout, revision: Revision) {
        match (layout, &mut self.shared) {
            // It may lie in the middle of the tenure, so it says nothing about the floor.
            (Layout::Key, Some(shared)) => shared.through = shared.through.max(Some(revision)),
            // It is the tenure's first, and may be older than the end of the tenure before.
            (Layout::Election | Layout::Mutex, Some(_)) => {
                self.floor = self.floor.max(revision.get());
            }
            (_, None) => {}
        }
    }

    /// The revisions of the tenure that holds the lock, if the group has to be asked before it may
    /// enter.
    pub fn unclear(&self, news: &Snapshot) -> Option<RangeInclusive<Revision>> {
        let shared = self.shared.as_ref()?;
        matches!(shared.may_enter(news), Err(EnterError::Wait)).then(|| revisions_of(news))?
    }

    /// Whether nothing is at the worker that the tenure that holds the lock has to wait for.
    pub fn is_empty_before(&self, news: &Snapshot, now: Moment) -> bool {
        let tenure = news.tenure().filter(|_| news.as_of >= self.through());
        tenure.is_some_and(|tenure| !self.bars(self.first_of(news.layout, tenure), now))
    }

    /// What to answer to a member that asks for the tenure that has the revision `asked`.
    pub fn answer(
        &mut self,
        layout: Layout,
        asked: Revision,
        news: Option<&Snapshot>,
        now: Moment,
    ) -> AskedGate {
        self.hear_of(layout, asked);
        let news = news.filter(|news| news.as_of >= self.through().max(Some(asked)));
        let Some(news) = news else { return AskedGate::Unknown };
        let first = match (layout, news.tenure()) {
            (Layout::Key, Some(tenure)) if (tenure.first..=tenure.last).contains(&asked) => {
                self.first_of(layout, tenure)
            }
            (Layout::Election | Layout::Mutex, Some(tenure)) if tenure.first < asked => {
                return AskedGate::Unknown;
            }
            // It has ended, unless we know less of its beginning. What is below it cannot enter any
            // more, but may be at the worker.
            (_, Some(_) | None) => asked,
        };
        if self.bars(first, now) { AskedGate::Busy } else { AskedGate::Sealed }
    }

    fn through(&self) -> Option<Revision> {
        self.shared.as_ref().and_then(|shared| shared.through)
    }
}

/// The revisions that name the tenure that holds the lock.
fn revisions_of(news: &Snapshot) -> Option<RangeInclusive<Revision>> {
    let Holding::Held(Tenure { first, last, .. }) = news.holding else { return None };
    Some(match news.layout {
        Layout::Key => first..=last,
        // The first revision is that of the creation: a later one may name a tenure of a key that was
        // created later.
        Layout::Election | Layout::Mutex => first..=first,
    })
}
