//! What is known of each lock, held against the store.

use fencepost_policy::{Content, Holding, Layout, Revision, Snapshot};

use super::{Keys, World, revision};
use crate::cache::cache_view::CacheView;
use crate::cache::record::contender;
use crate::cache::tracked::TrackedLock;
use crate::cache::window::{Change, Doubt, History};
use crate::store::{RangeAnswer, RangeRead, Wanted};

impl World {
    /// The lock as the store had it, found by looking at the whole history.
    pub(in crate::cache) fn truth(&self, lock: &TrackedLock, at: Revision) -> Snapshot {
        self.truth_of(&self.states, lock, at)
    }

    fn truth_of(&self, states: &[Keys], lock: &TrackedLock, at: Revision) -> Snapshot {
        let at_revision = |at: Revision| &states[at.get() as usize - 1];
        let keys = at_revision(at).values().filter(|stored| lock.range().contains(&stored.key));
        if self.layout != Layout::Key {
            return fencepost_policy::QueueTrack::read(self.layout, at, keys.map(contender)).snapshot();
        }
        let write = |at: u64| Some(lock.spec().write(at_revision(revision(at)).get(lock.key().as_str().as_bytes())?));
        let newest = write(at.get());
        let owner = |at: u64| match write(at)?.content {
            Content::Owner(owner) => Some(owner),
            Content::Free | Content::Unreadable => None,
        };
        let holding = match (owner(at.get()), newest) {
            (Some(held_by), Some(newest)) => {
                let since = (1..=at.get()).rev().take_while(|at| owner(*at).as_ref() == Some(&held_by)).last().unwrap();
                let (first, last) = (revision(since), newest.revision);
                Holding::Held(fencepost_policy::Tenure { owner: held_by, first, last })
            }
            (_, _) => Holding::Free,
        };
        Snapshot { layout: Layout::Key, as_of: at, holding, waiters: [].into() }
    }

    pub(in crate::cache) fn check(&self) {
        let is_forgotten = self.scope.clock().is_some() && self.scope.watch_from().is_none();
        // What is read late of a history that a restore has lost contradicts the watch of the present one.
        let may_be = self.has_given_up || !self.lost.is_empty() || !self.lost_histories.is_empty();
        assert!(!is_forgotten || may_be, "nothing contradicts a watch that has lost nothing");
        for lock in self.locks.iter().flatten() {
            self.check_outlook(lock, &lock.view());
            // A clock may cease to cover a lock at any moment.
            self.check_outlook(lock, &CacheView::new(self.common.trust.glance(), None, None, lock.published()));
        }
    }

    pub(in crate::cache) fn check_outlook(&self, lock: &TrackedLock, outlook: &CacheView) {
        let (Some(snapshot), Some(reach), Some(dated)) = (outlook.snapshot(), outlook.reach(), outlook.dated()) else {
            return;
        };
        let (shown, restored) =
            self.sent.iter().filter(|(at, ..)| *at == dated).map(|(_, at, of)| (*at, *of)).min().unwrap();
        if self.lost.iter().any(|lost| *lost > shown) {
            return; // Only a read that was sent since shows it.
        }
        // What was read before the store was restored was true then, and it may not be known yet that it is no more.
        let of_lost = self.lost_histories[restored..].iter().filter(|lost| reach.get() <= lost.len() as u64);
        let is_true_of = |states: &Vec<Keys>| {
            let truth = self.truth_of(states, lock, reach);
            (&snapshot.holding, &snapshot.waiters) == (&truth.holding, &truth.waiters)
        };
        if !of_lost.clone().any(is_true_of) {
            let truth = self.truth(lock, reach);
            assert_eq!((&snapshot.holding, &snapshot.waiters), (&truth.holding, &truth.waiters), "{lock:?} at {reach}");
        }
        assert!(reach.get() >= shown, "{lock:?} is dated by a read that was sent at {shown}, but known as of {reach}");
    }

    /// Finds out whether the history is the same, as the driver does.
    pub(super) fn look_at_history(&mut self) {
        let (Some(Doubt::Watched), Some(stretch)) = (self.scope.doubt(), self.common.trust.stretch()) else {
            return;
        };
        let Some((newest, RangeRead { wanted: Wanted::ChangedAfter(since), .. }, at)) = self.scope.history_read()
        else {
            self.has_given_up = true;
            return self.scope.forget();
        };
        let state = self.at(at);
        let keys = state.values().filter(|stored| stored.modified > since).cloned().collect();
        let answer = RangeAnswer { keys, count: state.len() as u64 };
        let is_same = match self.scope.history(&newest, &answer) {
            History::Same => true,
            History::SameIfThen => self.was_then(&newest),
            History::Another => false,
        };
        if is_same {
            return self.scope.end_doubt(&self.common.registry, stretch);
        }
        assert!(!self.lost_histories.is_empty(), "{newest:?} is there");
        self.has_given_up = true;
        self.scope.forget();
    }

    fn was_then(&self, newest: &Change) -> bool {
        let then = |at| self.at(at).get(&newest.key);
        let is_as_known = then(newest.revision) == newest.written.as_ref();
        is_as_known && (newest.written.is_some() || newest.revision.before().and_then(then).is_some())
    }
}
