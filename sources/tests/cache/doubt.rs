//! Windows that are in doubt since the watch failed: another history of the store may go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_policy::{Layout, Revision};
use fencepost_sources::{
    KeyRange, KeyValue, LockStore, Member, MemoryStore, RangeAnswer, RangeRead, RangeWatch, ReadAnswer, StoreError,
};
use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, ask, glance, load, options, pass, play, play_with, template};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

/// Restored with the newest change that was known, etcd has lost the lock's key where the window was verified, and got another for it.
async fn restored(unseen: fn(&MemoryStore)) {
    play(options(), async |store, source| {
        store.put("t/2", "x");
        store.put("t/1", "a");
        let locks = template(source, "t/", Layout::Key);
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        let held = store.put("t/1", "b");
        (0..3).for_each(|_| _ = store.put("elsewhere", "x"));
        pass(SECOND * 2).await;
        assert_eq!(glance(&lock, "b", held), "admit");
        store.pause();
        store.rewind_to(revision(store.revision().get() - 2)); // the newest change of the scope is in the backup
        unseen(store);
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        store.resume();
        pass(MAX_AGE * 4).await;
        assert_eq!(store.get("t/1"), None, "it was released");
        assert_ne!(glance(&lock, "b", held), "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_came_and_went_does_not_stand_in_for_one_that_is_gone() {
    restored(|store| {
        store.delete("t/1"); // V - 1
        store.put("t/3", "z"); // V
        store.put("elsewhere", "y");
        store.delete("t/3");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_came_and_was_renewed_does_not_stand_in_for_one_that_is_gone() {
    restored(|store| {
        store.delete("t/1"); // V - 1
        store.put("t/3", "z"); // V
        store.put("elsewhere", "y");
        store.put("t/3", "z");
    })
    .await;
}

/// A window is not begun by a read of the history before.
#[tokio::test(start_paused = true)]
async fn a_read_that_was_sent_before_the_watch_went_on_begins_no_window() {
    play(options(), async |store, source| {
        store.put("t/2", "x");
        store.put("t/3", "x");
        let at = store.put("t/1", "a");
        let locks = template(source, "t/", Layout::Key);
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        store.hold_watches();
        let held = store.put("t/1", "b");
        let _ = at;
        store.delete("t/2"); // what is never brought: two reads stay unverified
        // One window read unverified ...
        let before = store.calls().ranges_changed;
        while store.calls().ranges_changed < before + 2 {
            pass(SECOND / 100).await;
        }
        pass(SECOND / 100).await;
        // ... and the second is on its way to be given up. The lock is read by itself.
        assert_eq!(ask(&lock, "b", held).await, "admit");
        store.rewind_to(revision(held.get() - 1));
        store.delete("t/1");
        store.put("elsewhere", "y");
        store.delete("t/3");
        store.put("t/9", "q");
        store.release_watches();
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        pass(MAX_AGE * 4).await;
        assert_eq!(store.get("t/1"), None);
        assert_eq!(source.status(Instant::now()).distrusted_through, None, "it was not seen to go back");
        assert_ne!(glance(&lock, "b", held), "admit");
    })
    .await;
}

/// What the watch brings of the other history was taken for the witness of the one before.
#[tokio::test(start_paused = true)]
async fn what_the_watch_brings_during_a_doubt_is_no_witness() {
    play(options(), async |store, source| {
        store.put("t/2", "x");
        store.put("t/1", "a");
        let locks = template(source, "t/", Layout::Key);
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        let held = store.put("t/1", "b");
        (0..3).for_each(|_| _ = store.put("elsewhere", "x"));
        pass(SECOND * 2).await;
        assert_eq!(glance(&lock, "b", held), "admit");
        store.pause();
        store.rewind_to(revision(held.get() - 1)); // b never took it
        store.put("t/1", "c"); // c did
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        store.put("t/2", "x"); // and another lock is renewed, or taken
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        store.resume();
        pass(MAX_AGE * 20).await;
        assert_eq!(source.status(Instant::now()).distrusted_through, None, "it was not seen to go back");
        assert_eq!(store.get("t/1").unwrap().value, "c");
        assert_ne!(ask(&lock, "b", held).await, "admit", "c holds it");
    })
    .await;
}

/// Denies the prefix `a/` as a whole (not its keys) while that is so.
#[derive(Clone, Default)]
struct Narrow {
    store: MemoryStore,
    denies: Arc<AtomicBool>,
}

impl Narrow {
    fn check<'r>(&self, mut ranges: impl Iterator<Item = &'r KeyRange>) -> Result<(), StoreError> {
        let whole = KeyRange::Prefix((*b"a/").into());
        match ranges.find(|range| self.denies.load(Ordering::Relaxed) && **range == whole) {
            Some(range) => Err(StoreError::Denied { user: None, range: range.clone() }),
            None => Ok(()),
        }
    }
}

impl LockStore for Narrow {
    type Watch = <MemoryStore as LockStore>::Watch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        self.check(ranges.iter().map(|read| &read.range))?;
        self.store.read(ranges).await
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.store.read_at(key, at).await
    }

    async fn range_at(&self, read: &RangeRead, at: Revision) -> Result<RangeAnswer, StoreError> {
        self.store.range_at(read, at).await
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<Self::Watch, StoreError> {
        self.check(ranges.iter().map(|watch| &watch.range))?;
        self.store.watch(ranges).await
    }

    async fn members(&self) -> Vec<Member> {
        self.store.members().await
    }
}

/// Nothing asked for the prefix again.
#[tokio::test(start_paused = true)]
async fn a_prefix_that_may_be_read_again_is_watched_again() {
    play_with(Narrow::default(), options(), async |narrow, source| {
        let locks = template(source, "a/", Layout::Key);
        let held = narrow.store.put("a/1", "x");
        let lock = load(&locks, "a/1").await;
        pass(SECOND * 3).await;
        narrow.denies.store(true, Ordering::Relaxed);
        narrow.store.end_watches(); // As when a member is restarted.
        pass(SECOND * 5).await;
        narrow.denies.store(false, Ordering::Relaxed);
        pass(SECOND * 60).await;
        let status = source.status(Instant::now());
        assert_eq!(ask(&lock, "x", held).await, "admit");
        assert!(!status.is_stale, "it is kept fresh again");
        narrow.store.delete("a/1");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "x", held), "no-owner", "it is watched again");
    })
    .await;
}
