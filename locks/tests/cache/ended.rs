//! The watch tells that a tenure has ended, and what is known of its lock can't be built upon; nor
//! is any read answered that would say who holds it now.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_locks::{MemoryStore, RangeRead, StoreError, TrackedLock};
use fencepost_policy::{Layout, Revision};

use crate::world::{Faults, MAX_AGE, SECOND, enter_now, load, pass, play_faulty, template, track};

/// Once it is armed, it answers no read from the next watch on.
#[derive(Clone, Default)]
struct Dumb {
    store: MemoryStore,
    armed: Arc<AtomicBool>,
    is_dumb: Arc<AtomicBool>,
}

impl Dumb {
    fn check(&self) -> Result<(), StoreError> {
        if self.is_dumb.load(Ordering::Relaxed) {
            Err(StoreError::Unavailable("it is slow".into()))
        } else {
            Ok(())
        }
    }

    /// Has the watch begin anew, from when on no read is answered.
    async fn fall_silent(&self) {
        self.armed.store(true, Ordering::Relaxed);
        self.store.end_watches();
        while !self.is_dumb.load(Ordering::Relaxed) {
            pass(SECOND / 1000).await;
        }
    }
}

impl Faults for Dumb {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn before_read(&self, _: &[RangeRead]) -> Result<(), StoreError> {
        self.check()
    }

    async fn before_read_at(&self) -> Result<(), StoreError> {
        self.check()
    }

    fn after_watch(&self) {
        if self.armed.swap(false, Ordering::Relaxed) {
            self.is_dumb.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Taken,
    Released,
}

/// What the holder of a lock of that name puts, and what it presents.
fn holder(layout: Layout, lock: &str) -> (String, String) {
    let key = if layout == Layout::Key { lock.to_owned() } else { format!("{lock}/a") };
    let owner = if layout == Layout::Mutex { key.clone() } else { "a".to_owned() };
    (key, owner)
}

/// How often the holder is let in after the watch has reported the end. The attempts go on for
/// longer than the news is good.
async fn times_let_in(
    dumb: &Dumb,
    lock: &TrackedLock,
    (key, owner): (String, String),
    held: Revision,
    end: End,
) -> usize {
    assert_eq!(enter_now(lock, &owner, held), "admitted");
    dumb.fall_silent().await;
    match end {
        End::Taken => _ = dumb.store.put(key, "b"),
        End::Released => _ = dumb.store.delete(key),
    }
    pass(SECOND / 100).await;
    let mut let_in = 0;
    for _ in 0..60 {
        let_in += usize::from(enter_now(lock, &owner, held) == "admitted");
        pass(MAX_AGE / 50).await;
    }
    let_in
}

/// A release did not end it, nor did what holds a `mutex` or an `election`: the holder was let in
/// for all of `max_age`.
#[tokio::test(start_paused = true)]
async fn tenure_that_a_watch_ends_is_out_without_a_read() {
    for (layout, end) in [
        (Layout::Key, End::Taken),
        (Layout::Key, End::Released),
        (Layout::Mutex, End::Released),
        (Layout::Election, End::Released),
    ] {
        play_faulty(Dumb::default(), async |dumb, source| {
            let held = dumb.store.put(holder(layout, "lock").0, "a");
            let lock = track(source, "lock", layout);
            pass(SECOND * 2).await;
            assert_eq!(
                times_let_in(dumb, &lock, holder(layout, "lock"), held, end).await,
                0,
                "{layout:?} {end:?}"
            );
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn templated_tenure_that_a_watch_ends_is_out_without_a_read() {
    for layout in [Layout::Key, Layout::Mutex] {
        play_faulty(Dumb::default(), async |dumb, source| {
            let held = dumb.store.put(holder(layout, "t/1").0, "a");
            let locks = template(source, "t/", layout);
            pass(SECOND * 2).await; // It is watched.
            let lock = load(&locks, "t/1").await;
            let let_in =
                times_let_in(dumb, &lock, holder(layout, "t/1"), held, End::Released).await;
            assert_eq!(let_in, 0, "{layout:?}");
        })
        .await;
    }
}
