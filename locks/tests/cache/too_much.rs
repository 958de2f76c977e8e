//! Windowed reads that have too much to bring for the time that a read has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_locks::{
    KeyValue, LockSource, LockStore, Member, MemoryStore, RangeAnswer, RangeRead, RangeWatch, ReadAnswer, StoreError,
    TemplatedLocks, TrackedLock, Wanted,
};
use fencepost_policy::{Layout, Revision};
use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, ask, glance, load, options, pass, play_with, template};

/// How long a read may take.
const READ_TIMEOUT: Duration = Duration::from_millis(1500);

/// Takes longer than a read may for what returns many changed keys, or looks for changes among many.
#[derive(Clone)]
struct Slow {
    store: MemoryStore,
    changed_max: Arc<AtomicUsize>,
    /// How many keys there may be to look through.
    keys_max: Arc<AtomicU64>,
    given_up: Arc<AtomicU64>,
}

impl Slow {
    fn new(changed_max: usize) -> Slow {
        let store = MemoryStore::new();
        Slow {
            store,
            changed_max: Arc::new(changed_max.into()),
            keys_max: Arc::new(u64::MAX.into()),
            given_up: Arc::default(),
        }
    }

    /// How many reads took too long.
    fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }
}

impl LockStore for Slow {
    type Watch = <MemoryStore as LockStore>::Watch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        let answer = self.store.read(ranges).await?;
        let answers = ranges.iter().zip(&answer.ranges);
        let windows = answers.filter(|(read, _)| matches!(read.wanted, Wanted::ChangedAfter(_)));
        let is_too_much = |(_, answer): (&RangeRead, &RangeAnswer)| {
            answer.keys.len() > self.changed_max.load(Ordering::Relaxed)
                || answer.count > self.keys_max.load(Ordering::Relaxed)
        };
        if windows.into_iter().any(is_too_much) {
            pass(READ_TIMEOUT).await;
            self.given_up.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Unavailable("it takes too long".into()));
        }
        Ok(answer)
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.store.read_at(key, at).await
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<Self::Watch, StoreError> {
        self.store.watch(ranges).await
    }

    async fn members(&self) -> Vec<Member> {
        self.store.members().await
    }
}

async fn play(slow: Slow, test: impl AsyncFnOnce(&Slow, &LockSource)) {
    play_with(slow, options(), test).await;
}

const LOCKS: usize = 20;

async fn load_all(store: &MemoryStore, locks: &TemplatedLocks) -> Vec<(Arc<TrackedLock>, Revision)> {
    let mut loaded = Vec::new();
    for number in 0..LOCKS {
        let key = format!("t/{number}");
        let at = store.put(key.clone(), "a");
        loaded.push((load(locks, &key).await, at));
    }
    loaded
}

/// All locks but the first are renewed. A write elsewhere, of which no watch tells, is among them: the changes have to be read.
fn renew_all_but_the_first(store: &MemoryStore) {
    store.put("elsewhere", "x");
    (1..LOCKS).for_each(|number| _ = store.put(format!("t/{number}"), "a"));
}

/// What had changed while etcd was cut off for a few seconds was too much to be read in 1.5 s. Meanwhile more changed, and it was tried for
/// ever: no lock of the template was ever fresh again without a read of its own.
#[tokio::test(start_paused = true)]
async fn what_is_too_much_to_be_read_is_given_up_and_locks_are_read_anew_as_they_are_asked_for() {
    play(Slow::new(LOCKS / 2), async |slow, source| {
        let store = &slow.store;
        let locks = template(source, "t/", Layout::Key);
        let loaded = load_all(store, &locks).await;
        pass(SECOND * 2).await;
        let before = store.calls();
        renew_all_but_the_first(store);
        let mut oldest = Duration::ZERO;
        for _ in 0..20 {
            store.put("elsewhere", "y");
            pass(SECOND).await;
            oldest = oldest.max(source.status(Instant::now()).age.unwrap());
        }
        assert!(oldest <= MAX_AGE, "it was {oldest:?} old");
        assert_eq!(slow.given_up(), 2);
        assert_eq!(store.calls().ranges_whole, before.ranges_whole, "nobody has asked for any lock");
        let (lock, at) = &loaded[0];
        assert_eq!(ask(lock, "a", *at).await, "admit");
        pass(MAX_AGE * 2).await;
        assert_eq!(glance(lock, "a", *at), "admit", "the clock covers it again");
        assert_eq!(store.calls().ranges_whole, before.ranges_whole + 1, "and nothing else was read for that");
    })
    .await;
}

/// A member that leaves just then makes a read fail as well. To read all locks anew would be much for those that stay.
#[tokio::test(start_paused = true)]
async fn a_windowed_read_that_fails_once_leaves_no_lock_to_be_read_anew() {
    play(Slow::new(LOCKS / 2), async |slow, source| {
        let store = &slow.store;
        let locks = template(source, "t/", Layout::Key);
        pass(SECOND).await; // It is watched.
        let loaded = load_all(store, &locks).await;
        pass(SECOND * 2).await;
        let before = store.calls();
        renew_all_but_the_first(store);
        while slow.given_up() == 0 {
            pass(SECOND / 10).await;
        }
        slow.changed_max.store(usize::MAX, Ordering::Relaxed);
        pass(MAX_AGE * 2).await;
        assert_eq!(slow.given_up(), 1);
        for (lock, at) in &loaded {
            assert_eq!(glance(lock, "a", *at), "admit");
        }
        assert_eq!(store.calls().ranges_whole, before.ranges_whole);
    })
    .await;
}

/// Who is silent to everything is away, and what was known of its locks is good again when it is back.
#[tokio::test(start_paused = true)]
async fn a_store_that_was_away_leaves_no_lock_to_be_read_anew() {
    play(Slow::new(usize::MAX), async |slow, source| {
        let store = &slow.store;
        let locks = template(source, "t/", Layout::Key);
        pass(SECOND).await; // It is watched.
        let loaded = load_all(store, &locks).await;
        pass(SECOND * 2).await;
        let before = store.calls();
        store.pause();
        renew_all_but_the_first(store);
        pass(MAX_AGE * 2).await;
        store.resume();
        pass(SECOND * 3).await;
        for (lock, at) in &loaded {
            assert_eq!(glance(lock, "a", *at), "admit");
        }
        assert_eq!(store.calls().ranges_whole, before.ranges_whole);
    })
    .await;
}

/// etcd looks through all keys for those that have changed. Below 300,000 that was too late each second for as long as anything was written
/// anywhere: the store failed, and answered again, and its window was given up as too much though nothing had changed.
#[tokio::test(start_paused = true)]
async fn keys_that_are_too_many_to_look_through_are_left_alone_for_longer_and_longer() {
    play(Slow::new(usize::MAX), async |slow, source| {
        let store = &slow.store;
        let locks = template(source, "t/", Layout::Key);
        let loaded = load_all(store, &locks).await;
        pass(SECOND * 2).await;
        slow.keys_max.store(LOCKS as u64 - 1, Ordering::Relaxed);
        let (lock, at) = &loaded[0];
        let mut oldest = Duration::ZERO;
        for _ in 0..600 {
            store.put("elsewhere", "y");
            pass(SECOND).await;
            oldest = oldest.max(source.status(Instant::now()).age.unwrap());
            assert_eq!(ask(lock, "a", *at).await, "admit");
        }
        // Twice at once, and again after 5, 10, 20, 40, 80, 160 and 300 seconds.
        assert!((12..=18).contains(&slow.given_up()), "{} reads took too long", slow.given_up());
        assert!(oldest <= MAX_AGE, "it was {oldest:?} old");
        let status = source.status(Instant::now());
        assert!(status.last_error.is_none(), "the store does not fail: {:?}", status.last_error);
        assert_eq!((status.watch_restarts, status.resting_prefixes), (0, 1));
        let next = store.put("t/0", "b");
        pass(SECOND / 100).await;
        assert_eq!(glance(lock, "a", *at), "stale-tenure", "it is watched meanwhile");
        assert_eq!(glance(lock, "b", next), "admit");
        // Nobody looks before the rest is over, and then it is as ever.
        slow.keys_max.store(u64::MAX, Ordering::Relaxed);
        pass(SECOND * 301).await;
        let whole = store.calls().ranges_whole;
        assert_eq!(ask(lock, "b", next).await, "admit");
        for _ in 0..20 {
            store.put("elsewhere", "y");
            pass(SECOND).await;
            assert_eq!(glance(lock, "b", next), "admit", "the clock covers it again");
        }
        assert_eq!(source.status(Instant::now()).resting_prefixes, 0);
        assert!(store.calls().ranges_whole <= whole + 1);
    })
    .await;
}

/// What a second changes can be read, and what a rest changes can't: the window that came after a rest was as old as that.
#[tokio::test(start_paused = true)]
async fn a_scope_that_changes_a_lot_is_fresh_again_after_a_rest() {
    play(Slow::new(12), async |slow, source| {
        let store = &slow.store;
        (0..200).for_each(|number| _ = store.put(format!("t/{number}"), "a"));
        let held = store.put("t/x", "a");
        let locks = template(source, "t/", Layout::Key);
        pass(SECOND).await; // It is watched.
        let lock = load(&locks, "t/x").await;
        pass(SECOND * 2).await;
        let mut next = 0;
        // Four keys a second are renewed, and something is written elsewhere.
        let mut go_on = async |seconds: u32| {
            for _ in 0..seconds {
                for _ in 0..4 {
                    next = (next + 1) % 200;
                    store.put(format!("t/{next}"), "a");
                }
                store.put("elsewhere", "y");
                pass(SECOND).await;
            }
        };
        go_on(20).await;
        assert_eq!(glance(&lock, "a", held), "admit", "four changes a second are kept up with");
        slow.changed_max.store(0, Ordering::Relaxed); // for 8 s
        go_on(8).await;
        slow.changed_max.store(12, Ordering::Relaxed);
        go_on(1800).await; // half an hour
        assert_eq!(ask(&lock, "a", held).await, "admit");
        go_on(20).await;
        assert_eq!(glance(&lock, "a", held), "admit", "half an hour later the clock covers it again");
    })
    .await;
}
