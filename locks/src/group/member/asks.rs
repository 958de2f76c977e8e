//! Asks for tenures that begin, ours and those of others.

use std::sync::Arc;

use fencepost_policy::Revision;
use fencepost_policy::group::{Answer, Ask, Cleared, MemberId, NamedTenure, SharedLock};
use tokio::time::{Instant, sleep_until};

use super::super::settling::{empty, sealed};
use super::super::view::count;
use super::{Done, Member, UNWANTED_MAX, Waiting};
use crate::cache::TrackedLock;
use crate::store::LockStore;

impl<S: LockStore> Member<S> {
    /// Lets the present tenure of a lock begin if it is known to be clear, else asks.
    pub(super) fn want(&mut self, lock: Arc<TrackedLock>) {
        let shared = self.shared(&lock);
        let Some(tenure) = self.joined.and_then(|joined| lock.unclear(joined)) else {
            self.waiting.remove(&shared);
            return;
        };
        let now = Instant::now();
        if self.group.want(&shared, &tenure) {
            count(&self.membership.counts.asks_told);
            lock.set_clear(*tenure.start());
            self.settled(&shared);
            return;
        }
        let waiting = Waiting { lock, since: now, wanted: now };
        self.waiting.entry(shared).or_insert(waiting).wanted = now;
    }

    /// Looks once more at all that waits: something was learnt.
    pub(super) fn reconsider(&mut self) {
        let locks: Vec<_> =
            self.waiting.values().map(|waiting| Arc::clone(&waiting.lock)).collect();
        for lock in locks {
            let shared = self.shared(&lock);
            let wanted = self.waiting.get(&shared).map(|waiting| waiting.wanted);
            self.want(lock);
            if let (Some(waiting), Some(wanted)) = (self.waiting.get_mut(&shared), wanted) {
                waiting.wanted = wanted;
            }
        }
    }

    /// Opens gates by what was found, and finds what others ask.
    pub(super) fn settle(&mut self) {
        for cleared in self.group.cleared(self.membership.time()) {
            let Cleared { tenure, by } = cleared;
            count(&self.membership.counts.asks_answered);
            self.open(&tenure);
            if by == Answer::Unfenced {
                count(&self.membership.counts.unfenced);
                tracing::warn!(
                    group = self.membership.options().name, lock = %tenure.lock.key,
                    "another member only watches this lock: its requests may meet those of this tenure at the worker"
                );
            } else if let Some(lock) = self.tracked(&tenure.lock) {
                self.tasks.push(Box::pin(async move {
                    if empty(&lock, &tenure).await { Done::Clear(tenure) } else { Done::Ended }
                }));
            }
        }
        let Some(joined) = self.joined else { return };
        let asks: Vec<(MemberId, Ask)> = self
            .group
            .unanswered()
            .filter(|(id, ask)| !self.answering.contains(&(*id, ask.number)))
            .map(|(id, ask)| (id, ask.clone()))
            .collect();
        for (id, ask) in asks {
            self.answer(id, ask, joined);
        }
    }

    /// Answers an ask, as soon as that is true.
    pub(super) fn answer(&mut self, id: MemberId, ask: Ask, joined: Revision) {
        let Ask { number, tenure } = ask;
        let lock = &tenure.lock;
        let tracked = self.work.common().registry.find(lock.key.as_str());
        let reads_otherwise =
            tracked.as_ref().is_some_and(|tracked| tracked.layout() != lock.layout);
        if lock.cluster != self.cluster || reads_otherwise {
            if self.mismatches.insert((id, lock.clone())) {
                count(&self.membership.counts.mismatches);
                tracing::error!(
                    group = self.membership.options().name, member = %id, host = self.host(id),
                    lock = %lock.key, theirs = lock.layout.name(),
                    ours = tracked.as_ref().map(|tracked| tracked.layout().name()),
                    "another member of the group reads this lock in another way: no tenure of it begins there; give both the same layout"
                );
            }
            return;
        }
        if self.membership.is_unfenced(&lock.key) {
            self.group.answer(id, number, Answer::Unfenced);
            return;
        }
        self.answering.insert((id, number));
        let left_behind = self.work.common().left_behind_until(&lock.key);
        self.tasks.push(Box::pin(async move {
            match (tracked, left_behind) {
                (Some(tracked), _) => sealed(&tracked, tenure.revision, joined).await,
                // Who comes to track it later reads it later than the ask was seen.
                (None, Some(until)) => sleep_until(until).await,
                (None, None) => {}
            }
            Done::Sealed(id, number, tenure.lock.key)
        }));
    }

    pub(super) fn drop_unwanted(&mut self) {
        let now = Instant::now();
        for waiting in self.waiting.values_mut() {
            if !waiting.lock.queue().is_clear() {
                waiting.wanted = now;
            }
        }
        let is_over = |waiting: &Waiting| now - waiting.wanted > UNWANTED_MAX;
        let over: Vec<SharedLock> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| is_over(waiting))
            .map(|(shared, _)| shared.clone())
            .collect();
        for shared in over {
            count(&self.membership.counts.asks_ended);
            self.waiting.remove(&shared);
            self.group.unwant(&shared);
        }
    }

    /// Opens a gate to a tenure that is clear, if that lock is tracked here.
    pub(super) fn open(&mut self, tenure: &NamedTenure) {
        if let Some(lock) = self.tracked(&tenure.lock) {
            lock.set_clear(tenure.revision);
            if self.joined.is_some_and(|joined| lock.unclear(joined).is_none()) {
                self.settled(&tenure.lock);
            }
        }
    }

    pub(super) fn settled(&mut self, lock: &SharedLock) {
        if let Some(waiting) = self.waiting.remove(lock) {
            self.membership.counts.took(waiting.since.elapsed());
        }
    }
}
