//! More keys than are logged that may not be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_policy::{Layout, Revision};
use fencepost_sources::{
    KeyRange, KeyValue, LockStore, Member, MemoryStore, RangeAnswer, RangeRead, RangeWatch, ReadAnswer, StoreError,
};
use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, glance, options, pass, play_with, template, track};

/// Does not show what begins with `a/`, once it does not.
#[derive(Clone, Default)]
struct Denying {
    store: MemoryStore,
    denies: Arc<AtomicBool>,
}

impl Denying {
    fn check<'r>(&self, mut ranges: impl Iterator<Item = &'r KeyRange>) -> Result<(), StoreError> {
        let denies = self.denies.load(Ordering::Relaxed);
        match ranges.find(|range| denies && range.first_key().starts_with(b"a/")) {
            Some(range) => Err(StoreError::Denied { user: None, range: range.clone() }),
            None => Ok(()),
        }
    }
}

impl LockStore for Denying {
    type Watch = <MemoryStore as LockStore>::Watch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        self.check(ranges.iter().map(|read| &read.range))?;
        self.store.read(ranges).await
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.store.read_at(key, at).await
    }

    async fn range_at(&self, read: &RangeRead, at: Revision) -> Result<RangeAnswer, StoreError> {
        self.check([&read.range].into_iter())?;
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

#[tokio::test(start_paused = true)]
async fn many_named_locks_that_may_not_be_read_any_more_keep_no_other_from_being_kept_fresh() {
    for denied in [16, 17] {
        play_with(Denying::default(), options(), async |denying, source| {
            let of_other = denying.store.put("b/1", "x");
            let _many: Vec<_> = (0..denied).map(|n| track(source, &format!("a/{n}"), Layout::Key)).collect();
            let other = track(source, "b/1", Layout::Key);
            pass(SECOND * 3).await;
            assert_eq!(glance(&other, "x", of_other), "admit");
            denying.denies.store(true, Ordering::Relaxed);
            denying.store.end_watches(); // As when a member is restarted.
            pass(MAX_AGE * 20).await;
            assert_eq!(glance(&other, "x", of_other), "admit", "{denied} denied");
            denying.store.delete("b/1");
            pass(SECOND / 100).await;
            assert_eq!(glance(&other, "x", of_other), "no-owner", "{denied} denied: it is watched");
        })
        .await;
    }
}

/// What requests ask for may not be read, which is noted of few: then a named lock is not noted that may not be read.
#[tokio::test(start_paused = true)]
async fn keys_that_requests_make_up_and_that_may_not_be_read_do_not_keep_named_locks_from_being_kept_fresh() {
    for made_up_keys in [0, 20] {
        play_with(Denying::default(), options(), async |denying, source| {
            let of_other = denying.store.put("b/1", "x");
            let of_a = template(source, "a/", Layout::Key);
            let _one = track(source, "a/1", Layout::Key);
            let other = track(source, "b/1", Layout::Key);
            pass(SECOND * 3).await;
            assert_eq!(glance(&other, "x", of_other), "admit");
            denying.denies.store(true, Ordering::Relaxed);
            for made_up in 0..made_up_keys {
                let _ = of_a.load(&format!("a/made-up/{made_up}"), Instant::now() + SECOND / 100).await;
            }
            denying.store.end_watches(); // As when a member is restarted.
            pass(MAX_AGE * 20).await;
            assert_eq!(glance(&other, "x", of_other), "admit", "{made_up_keys} made up");
            denying.store.delete("b/1");
            pass(SECOND / 100).await;
            assert_eq!(glance(&other, "x", of_other), "no-owner", "it is watched");
        })
        .await;
    }
}
