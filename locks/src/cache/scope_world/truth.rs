//! What is known of each lock, held against the store.

use fencepost_policy::{Content, Holding, Layout, Revision, Snapshot};

use super::{World, revision};
use crate::cache::cache_view::CacheView;
use crate::cache::record::contender;
use crate::cache::tracked::TrackedLock;

impl World {
    /// The lock as the store had it, found by looking at the whole history.
    pub(in crate::cache) fn truth(&self, lock: &TrackedLock, at: Revision) -> Snapshot {
        let keys = self.at(at).values().filter(|stored| lock.range().contains(&stored.key));
        if self.layout != Layout::Key {
            return fencepost_policy::QueueTrack::read(self.layout, at, keys.map(contender)).snapshot();
        }
        let write = |at: u64| Some(lock.spec().write(self.at(revision(at)).get(lock.key().as_str().as_bytes())?));
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
        assert!(!is_forgotten || !self.lost.is_empty(), "nothing contradicts a watch that has lost nothing");
        for lock in self.locks.iter().flatten() {
            self.check_outlook(lock, &lock.view());
            // A clock may cease to cover a lock at any moment.
            self.check_outlook(lock, &CacheView::new(self.common.trust.glance(), None, lock.published()));
        }
    }

    pub(in crate::cache) fn check_outlook(&self, lock: &TrackedLock, outlook: &CacheView) {
        let (Some(snapshot), Some(reach), Some(dated)) = (outlook.snapshot(), outlook.reach(), outlook.dated()) else {
            return;
        };
        let shown = self.sent.iter().filter(|(at, _)| *at == dated).map(|(_, at)| *at).min().unwrap();
        if self.lost.iter().any(|lost| *lost > shown) {
            return; // Only a read that was sent since shows it.
        }
        let truth = self.truth(lock, reach);
        assert_eq!((&snapshot.holding, &snapshot.waiters), (&truth.holding, &truth.waiters), "{lock:?} at {reach}");
        assert!(reach.get() >= shown, "{lock:?} is dated by a read that was sent at {shown}, but known as of {reach}");
    }
}
