//! What the store no longer shows to our user, and what it still shows.

use std::sync::{Arc, Mutex};

use fencepost_locks::{
    KeyRange, LockSource, MemoryStore, RangeRead, RangeWatch, StoreError, TrackedLock,
};
use fencepost_policy::{Layout, Revision};
use tokio::time::Instant;

use crate::world::{
    Faults, Lines, MAX_AGE, SECOND, ask, glance, load, pass, play_faulty, template, track,
};

/// What of the prefix `a/` is denied.
#[derive(Clone, Copy, Default)]
enum Denied {
    #[default]
    Nothing,
    /// To read it as a whole, and none of its keys.
    Whole,
    All,
    /// To read any of it: it is too large.
    TooLarge,
}

/// Does not show what is denied.
#[derive(Clone, Default)]
struct Denying {
    store: MemoryStore,
    denied: Arc<Mutex<Denied>>,
    /// How often it has refused what is too large.
    too_large: Arc<Mutex<u32>>,
}

impl Denying {
    fn deny(&self, denied: Denied) {
        *self.denied.lock().unwrap() = denied;
    }

    fn check<'r>(&self, mut ranges: impl Iterator<Item = &'r KeyRange>) -> Result<(), StoreError> {
        let denied = *self.denied.lock().unwrap();
        let is_denied = |range: &KeyRange| match denied {
            Denied::Nothing => false,
            Denied::Whole => *range == KeyRange::Prefix((*b"a/").into()),
            Denied::All | Denied::TooLarge => range.first_key().starts_with(b"a/"),
        };
        match ranges.find(|range| is_denied(range)) {
            Some(range) if matches!(denied, Denied::TooLarge) => {
                *self.too_large.lock().unwrap() += 1;
                Err(StoreError::TooLarge { range: range.clone() })
            }
            Some(range) => Err(StoreError::Denied { user: None, range: range.clone() }),
            None => Ok(()),
        }
    }
}

impl Faults for Denying {
    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn before_read(&self, ranges: &[RangeRead]) -> Result<(), StoreError> {
        self.check(ranges.iter().map(|read| &read.range))
    }

    async fn before_watch(&self, ranges: &[RangeWatch]) -> Result<(), StoreError> {
        self.check(ranges.iter().map(|watch| &watch.range))
    }
}

async fn play(test: impl AsyncFnOnce(&Denying, &LockSource)) {
    play_faulty(Denying::default(), test).await;
}

#[tokio::test(start_paused = true)]
async fn denied_static_lock_keeps_no_other_from_being_fresh() {
    play(async |denying, source| {
        let of_one = denying.store.put("a/1", "x");
        let of_other = denying.store.put("b/1", "x");
        let one = track(source, "a/1", Layout::Key);
        let other = track(source, "b/1", Layout::Key);
        pass(SECOND * 3).await;
        denying.deny(Denied::All);
        for _ in 0..10 {
            pass(MAX_AGE).await;
            assert!(other.view().good_for(MAX_AGE, Instant::now()).is_some());
            assert_eq!(glance(&other, "x", of_other), "admit");
            assert_eq!(ask(&one, "x", of_one).await, "unverifiable");
        }
        denying.store.delete("b/1");
        pass(SECOND / 100).await;
        assert_eq!(glance(&other, "x", of_other), "no-owner", "it is watched");
        denying.deny(Denied::Nothing);
        pass(SECOND * 3).await;
        assert_eq!(glance(&one, "x", of_one), "admit", "it is asked for again");
        denying.store.delete("a/1");
        pass(SECOND / 100).await;
        assert_eq!(glance(&one, "x", of_one), "no-owner", "and watched");
    })
    .await;
}

/// A lock of several keys is asked for by all of them, and by no key of its own that nothing else
/// would ask for again.
#[tokio::test(start_paused = true)]
async fn static_queue_that_may_be_read_again_is_watched_again() {
    play(async |denying, source| {
        let held = denying.store.put("a/1/x", "x");
        let lock = track(source, "a/1", Layout::Election);
        let other = track(source, "b/1", Layout::Key);
        let of_other = denying.store.put("b/1", "x");
        pass(SECOND * 3).await;
        denying.deny(Denied::All);
        denying.store.end_watches();
        pass(SECOND * 5).await;
        assert_eq!(glance(&other, "x", of_other), "admit");
        denying.deny(Denied::Nothing);
        pass(SECOND * 11 / 2).await; // Between two reads.
        assert_eq!(glance(&lock, "x", held), "admit");
        denying.store.delete("a/1/x");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "x", held), "no-owner", "it is watched");
    })
    .await;
}

/// The read that goes before a watch asks for one key of what is watched first. It was denied for
/// ever, and nothing was watched.
#[tokio::test(start_paused = true)]
async fn denied_template_keeps_no_other_from_being_watched() {
    play(async |denying, source| {
        let (a, b) = (template(source, "a/", Layout::Key), template(source, "b/", Layout::Key));
        let of_one = denying.store.put("a/1", "x");
        let of_other = denying.store.put("b/1", "x");
        let one = load(&a, "a/1").await;
        let other = load(&b, "b/1").await;
        pass(SECOND * 3).await;
        denying.deny(Denied::All);
        pass(SECOND * 3).await;
        denying.store.end_watches(); // As when a member is restarted.
        pass(SECOND * 3).await;
        denying.store.delete("b/1");
        pass(SECOND / 100).await;
        assert_eq!(glance(&other, "x", of_other), "no-owner");
        denying.deny(Denied::Nothing);
        pass(SECOND * 3).await;
        assert_eq!(ask(&one, "x", of_one).await, "admit");
        denying.store.delete("a/1");
        pass(SECOND / 100).await;
        assert_eq!(glance(&one, "x", of_one), "no-owner", "it is watched again");
    })
    .await;
}

/// Its keys could still be read, and so nothing asked for the prefix again, be another lock watched
/// or not.
#[tokio::test(start_paused = true)]
async fn a_prefix_that_may_be_read_again_is_watched_again() {
    for is_beside_another in [false, true] {
        play(async |denying, source| {
            let _another = is_beside_another.then(|| track(source, "b/1", Layout::Key));
            let locks = template(source, "a/", Layout::Key);
            let held = denying.store.put("a/1", "x");
            let lock = load(&locks, "a/1").await;
            pass(SECOND * 3).await;
            denying.deny(Denied::Whole);
            denying.store.end_watches(); // As when a member is restarted.
            pass(SECOND * 5).await;
            denying.deny(Denied::Nothing);
            pass(SECOND * 60).await;
            let status = source.status(Instant::now());
            assert_eq!(ask(&lock, "x", held).await, "admit");
            assert!(!status.is_stale, "it is kept fresh again");
            denying.store.delete("a/1");
            pass(SECOND / 100).await;
            assert_eq!(glance(&lock, "x", held), "no-owner", "it is watched again");
        })
        .await;
    }
}

/// Once the watch has begun anew, as when a member is restarted.
async fn is_kept_fresh(denying: &Denying, other: &TrackedLock, held: Revision) {
    denying.store.end_watches();
    pass(MAX_AGE * 20).await;
    assert_eq!(glance(other, "x", held), "admit");
    denying.store.delete("b/1");
    pass(SECOND / 100).await;
    assert_eq!(glance(other, "x", held), "no-owner", "it is watched");
}

/// More denied locks than the log names do not keep others from being watched.
#[tokio::test(start_paused = true)]
async fn many_denied_static_locks_keep_no_other_from_being_fresh() {
    play(async |denying, source| {
        let held = denying.store.put("b/1", "x");
        let _many: Vec<_> =
            (0..17).map(|n| track(source, &format!("a/{n}"), Layout::Key)).collect();
        let other = track(source, "b/1", Layout::Key);
        pass(SECOND * 3).await;
        denying.deny(Denied::All);
        is_kept_fresh(denying, &other, held).await;
    })
    .await;
}

/// They were noted until there was no room for a named lock.
#[tokio::test(start_paused = true)]
async fn denied_made_up_keys_keep_no_static_lock_from_being_fresh() {
    play(async |denying, source| {
        let held = denying.store.put("b/1", "x");
        let of_a = template(source, "a/", Layout::Key);
        let _denied = track(source, "a/1", Layout::Key);
        let other = track(source, "b/1", Layout::Key);
        pass(SECOND * 3).await;
        denying.deny(Denied::All);
        for made_up in 0..20 {
            let loaded =
                of_a.load(&format!("a/made-up/{made_up}"), Instant::now() + SECOND / 100).await;
            assert!(loaded.is_err(), "it may not be read");
        }
        is_kept_fresh(denying, &other, held).await;
    })
    .await;
}

/// Nobody could tell which of several it was, and none of them was known.
#[tokio::test(start_paused = true)]
async fn denied_key_keeps_no_other_of_its_request_from_being_read() {
    play(async |denying, source| {
        let held: Vec<_> = (0..9).map(|nth| denying.store.put(format!("b/{nth}"), "x")).collect();
        let (of_a, of_b) =
            (template(source, "a/", Layout::Key), template(source, "b/", Layout::Key));
        denying.deny(Denied::All);
        for (nth, held) in held.into_iter().enumerate() {
            let (made_up, name) = (format!("a/made-up/{nth}"), format!("b/{nth}"));
            let (refused, loaded) =
                tokio::join!(of_a.load(&made_up, Instant::now() + SECOND), load(&of_b, &name));
            assert!(refused.is_err(), "it may not be read");
            assert_eq!(glance(&loaded, "x", held), "admit");
        }
    })
    .await;
}

/// The process was not ready, and the log had two lines for each read.
#[tokio::test(start_paused = true)]
async fn too_large_lock_is_read_seldom_and_harms_no_other() {
    let lines = Lines::collect();
    play(async |denying, source| {
        denying.deny(Denied::TooLarge);
        denying.store.put("a/1/x", "x");
        let of_other = denying.store.put("b/1", "x");
        let large = track(source, "a/1", Layout::Election);
        let other = track(source, "b/1", Layout::Key);
        pass(SECOND * 2).await;
        assert!(source.ready());
        let before = *denying.too_large.lock().unwrap();
        for _ in 0..200 {
            assert_eq!(ask(&large, "x", of_other).await, "unverifiable");
            assert_eq!(ask(&other, "x", of_other).await, "admit");
            pass(SECOND / 10).await;
        }
        let refused = *denying.too_large.lock().unwrap() - before;
        assert!((3..=5).contains(&refused), "every 5 s: {refused}");
        let problem = large.describe(Instant::now()).problem.unwrap();
        assert!(problem.contains("--prefix a/1/"), "{problem}");
        denying.deny(Denied::Nothing);
        pass(SECOND * 7).await;
        assert!(large.is_known() && large.describe(Instant::now()).problem.is_none());
    })
    .await;
    let told = lines.with("a/1/");
    assert!(told.len() == 1 && told[0].contains("locks cannot be read"), "{told:?}");
    assert_eq!(lines.with("the lock store fails"), [""; 0]);
}
