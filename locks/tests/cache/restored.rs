//! A store that was restored unseen: its revisions are given out a second time, and it has grown as far as had been seen, or beyond.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_locks::{
    KeyValue, LockStore, Member, MemoryStore, RangeAnswer, RangeRead, RangeWatch, ReadAnswer, StoreError, Wanted,
};
use fencepost_policy::{Layout, Revision};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::world::{MAX_AGE, SECOND, ask, enter_now, glance, load, options, pass, play, play_with, template, tracked};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

/// The newest change that is known is a deletion, and the restored store deletes the same key at the same revision.
#[tokio::test(start_paused = true)]
async fn a_deletion_tells_one_history_from_another() {
    play(options(), async |store, source| {
        store.put("t/2", "x"); // 2
        store.put("t/1", "a"); // 3
        let locks = template(source, "t/", Layout::Key);
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        let lost = store.put("t/1", "b"); // 4
        store.delete("t/2"); // 5
        pass(SECOND * 2).await;
        assert_eq!(glance(&lock, "b", lost), "admit");
        store.pause();
        store.rewind_to(revision(3));
        let present = store.put("t/1", "c"); // 4
        store.delete("t/2"); // 5
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        store.resume();
        pass(MAX_AGE * 20).await;
        assert_eq!(source.status(Instant::now()).distrusted_through, None);
        assert_eq!((ask(&lock, "b", lost).await, ask(&lock, "c", present).await), ("not-owner", "admit"));
    })
    .await;
}

/// The same of a mutex: others queue in the restored store, then whoever held it is gone at the same revision.
#[tokio::test(start_paused = true)]
async fn a_release_tells_one_history_from_another() {
    for layout in [Layout::Mutex, Layout::Election] {
        play(options(), async |store, source| {
            store.put("t/1/a", "a"); // 2
            let locks = template(source, "t/", layout);
            let lock = load(&locks, "t/1").await;
            pass(SECOND * 2).await;
            let name =
                |name: &'static str| if layout == Layout::Mutex { format!("t/1/{name}") } else { name.to_owned() };
            let lost = store.put("t/1/b", "b"); // 3
            store.delete("t/1/a"); // 4
            pass(SECOND * 2).await;
            assert_eq!(glance(&lock, &name("b"), lost), "admit");
            store.pause();
            store.rewind_to(revision(2));
            let present = store.put("t/1/c", "c"); // 3
            store.delete("t/1/a"); // 4
            store.resume();
            pass(MAX_AGE * 20).await;
            assert_eq!(source.status(Instant::now()).distrusted_through, None);
            let b = ask(&lock, &name("b"), lost).await;
            let c = ask(&lock, &name("c"), present).await;
            assert_eq!((b, c), ("not-owner", "admit"), "{layout:?}");
        })
        .await;
    }
}

/// The newest change that is known is a renewal of another lock, which the restored store has alike.
#[tokio::test(start_paused = true)]
async fn a_renewal_of_another_lock_tells_one_history_from_another() {
    play(options(), async |store, source| {
        store.put("t/2", "x"); // 2
        store.put("t/1", "a"); // 3
        let locks = template(source, "t/", Layout::Key);
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        let lost = store.put("t/1", "b"); // 4
        store.put("t/2", "x"); // 5
        pass(SECOND * 2).await;
        store.pause();
        store.rewind_to(revision(3));
        let present = store.put("t/1", "c"); // 4
        store.put("t/2", "x"); // 5
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        store.resume();
        pass(MAX_AGE * 20).await;
        assert_eq!((ask(&lock, "b", lost).await, ask(&lock, "c", present).await), ("not-owner", "admit"));
    })
    .await;
}

/// The answer of one read is on its way for long.
#[derive(Clone)]
struct Late {
    store: MemoryStore,
    is_late: fn(&[RangeRead]) -> bool,
    armed: Arc<AtomicBool>,
    arrives: Arc<Semaphore>,
}

impl Late {
    fn new(is_late: fn(&[RangeRead]) -> bool) -> Late {
        Late { store: MemoryStore::new(), is_late, armed: Arc::default(), arrives: Arc::new(Semaphore::new(0)) }
    }
}

impl LockStore for Late {
    type Watch = <MemoryStore as LockStore>::Watch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        let answer = self.store.read(ranges).await;
        if (self.is_late)(ranges) && self.armed.swap(false, Ordering::Relaxed) {
            self.arrives.acquire().await.unwrap().forget();
        }
        answer
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.store.read_at(key, at).await
    }

    async fn range_at(&self, read: &RangeRead, at: Revision) -> Result<RangeAnswer, StoreError> {
        self.store.range_at(read, at).await
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<Self::Watch, StoreError> {
        self.store.watch(ranges).await
    }

    async fn members(&self) -> Vec<Member> {
        self.store.members().await
    }
}

impl Late {
    /// That lock is another's, which the next such read shows; while its answer is on its way the store is restored, and the lock is somebody
    /// else's there. Returns the revisions of both.
    async fn is_restored_meanwhile(&self, key: &'static str) -> (Revision, Revision) {
        let Late { store, armed, .. } = self;
        store.hold_watches();
        store.put("elsewhere", "x"); // 3
        store.delete(key); // 4
        let lost = store.put(key, "b"); // 5
        armed.store(true, Ordering::Relaxed);
        while armed.load(Ordering::Relaxed) {
            pass(SECOND / 1000).await;
        }
        store.rewind_to(revision(2));
        store.delete(key); // 3
        let present = store.put(key, "c"); // 4
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        store.release_watches();
        pass(SECOND / 5).await;
        (lost, present)
    }

    async fn arrive(&self) {
        self.arrives.add_permits(1);
        pass(SECOND / 100).await;
    }
}

/// A read that was answered before the store was restored arrives after one that was sent later. What it shows is dated by that one.
#[tokio::test(start_paused = true)]
async fn a_late_windowed_read_is_not_dated_by_a_later_read_of_another_history() {
    let late = Late::new(|ranges| matches!(ranges[0].wanted, Wanted::ChangedAfter(_)));
    play_with(late, options(), async |late, source| {
        late.store.put("t/1", "a"); // 2
        let locks = template(source, "t/", Layout::Key);
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 5 / 2).await;
        let (lost, present) = late.is_restored_meanwhile("t/1").await;
        assert_eq!(ask(&lock, "c", present).await, "admit");
        assert_ne!(enter_now(&lock, "b", lost), "admitted");
        pass(SECOND / 100).await;
        late.arrive().await;
        assert_eq!(source.status(Instant::now()).distrusted_through, None);
        for tenths in 0..60 {
            assert_ne!(enter_now(&lock, "b", lost), "admitted", "after {tenths} tenths of a second");
            pass(SECOND / 10).await;
        }
        assert_eq!(ask(&lock, "c", present).await, "admit");
    })
    .await;
}

/// The same of a static lock, which is read again at once.
#[tokio::test(start_paused = true)]
async fn a_late_read_of_static_locks_is_not_dated_by_a_later_read_of_another_history() {
    let late = Late::new(|ranges| ranges.len() == 2); // Two are read together; a confirming read reads one.
    play_with(late, options(), async |late, source| {
        late.store.put("lock", "a"); // 2
        let lock = tracked(source, "lock").await;
        let _other = tracked(source, "other").await;
        pass(SECOND * 5 / 2).await;
        let (lost, present) = late.is_restored_meanwhile("lock").await;
        lock.want_news(SECOND / 100);
        pass(SECOND / 100).await;
        assert_eq!(ask(&lock, "c", present).await, "admit");
        late.arrive().await;
        assert_ne!(enter_now(&lock, "b", lost), "admitted");
        pass(MAX_AGE * 2).await;
        assert_eq!(source.status(Instant::now()).distrusted_through, None);
        assert_eq!(ask(&lock, "c", present).await, "admit");
    })
    .await;
}

/// An operator accepts what the store lost while a confirming read is on its way. What is planned to be watched in between is only what is
/// known of the restored store, which is nothing.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_being_read_as_an_operator_accepted_a_restore_is_watched() {
    play_with(Late::new(|_| true), options(), async |late, source| {
        let Late { store, armed, .. } = late;
        let kept = store.put("lock", "a"); // 2
        let lock = tracked(source, "lock").await;
        store.put("lock", "b"); // 3
        pass(SECOND * 2).await;
        store.rewind_to(kept);
        pass(SECOND * 5 / 2).await;
        armed.store(true, Ordering::Relaxed);
        lock.want_news(Duration::ZERO);
        pass(SECOND / 100).await;
        assert!(!armed.swap(true, Ordering::Relaxed)); // And so is the read that the new era begins with.
        assert!(source.accept_regression().await.unwrap());
        pass(SECOND / 100).await;
        assert!(!armed.load(Ordering::Relaxed));
        late.arrive().await;
        assert_eq!(ask(&lock, "a", kept).await, "admit");
        pass(SECOND / 100).await;
        store.put("lock", "c");
        pass(SECOND / 100).await;
        assert_eq!(glance(&lock, "a", kept), "stale-tenure");
    })
    .await;
}

/// The restored store has come exactly as far as had been seen, where the lock was read. The new window's clock takes that read for one of its own.
async fn at_its_very_revision(layout: Layout) {
    play(options(), async |store, source| {
        let key = |owner: &str| if layout == Layout::Key { "t/1".to_owned() } else { format!("t/1/{owner}") };
        let name = |owner: &str| if layout == Layout::Mutex { key(owner) } else { owner.to_owned() };
        let kept = store.put("elsewhere", "x"); // 2
        let locks = template(source, "t/", layout);
        pass(SECOND * 2).await;
        let lost = store.put(key("b"), "b"); // 3
        let lock = load(&locks, "t/1").await;
        pass(SECOND * 2).await;
        assert_eq!(glance(&lock, &name("b"), lost), "admit");
        store.rewind_to(kept);
        let present = store.put(key("c"), "c"); // 3
        pass(MAX_AGE * 20).await;
        (0..20).for_each(|_| _ = store.put("elsewhere", "y"));
        pass(MAX_AGE * 20).await;
        assert_eq!(source.status(Instant::now()).distrusted_through, None);
        let b = (glance(&lock, &name("b"), lost), enter_now(&lock, &name("b"), lost));
        assert_ne!(b, ("admit", "admitted"), "{layout:?}");
        assert_eq!(ask(&lock, &name("c"), present).await, "admit");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_new_window_says_nothing_of_a_key_lock_that_was_read_at_its_very_revision_in_another_history() {
    at_its_very_revision(Layout::Key).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_window_says_nothing_of_a_mutex_that_was_read_at_its_very_revision_in_another_history() {
    at_its_very_revision(Layout::Mutex).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_window_says_nothing_of_an_election_that_was_read_at_its_very_revision_in_another_history() {
    at_its_very_revision(Layout::Election).await;
}

/// What is known of a history that is lost refuses, finally, whoever holds the lock in the restored store; so nothing reads the lock, ever.
async fn only_the_holder_asks(before_c: u64, layout: Layout) {
    play(options(), async |store, source| {
        let key = |owner: &str| if layout == Layout::Key { "t/1".to_owned() } else { format!("t/1/{owner}") };
        let name = |owner: &str| if layout == Layout::Mutex { key(owner) } else { owner.to_owned() };
        let kept = store.put("elsewhere", "x"); // 2
        let locks = template(source, "t/", layout);
        pass(SECOND * 2).await;
        let lost = store.put(key("b"), "b"); // 3
        let lock = load(&locks, "t/1").await;
        (0..3).for_each(|_| _ = store.put("elsewhere", "y")); // 4, 5, 6
        pass(SECOND * 2).await;
        assert_eq!(glance(&lock, &name("b"), lost), "admit");
        store.pause();
        store.rewind_to(kept);
        (0..before_c).for_each(|_| _ = store.put("elsewhere", "z"));
        let present = store.put(key("c"), "c");
        (0..20).for_each(|_| _ = store.put("elsewhere", "z")); // beyond all that was seen
        store.resume();
        for _ in 0..100 {
            pass(MAX_AGE).await;
            if ask(&lock, &name("c"), present).await == "admit" {
                break;
            }
        }
        assert_eq!(source.status(Instant::now()).distrusted_through, None);
        assert_eq!(ask(&lock, &name("c"), present).await, "admit", "{layout:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_holder_in_a_restored_store_gets_in_though_nobody_else_asks_key_at_the_same_revision() {
    only_the_holder_asks(0, Layout::Key).await;
}

#[tokio::test(start_paused = true)]
async fn the_holder_in_a_restored_store_gets_in_though_nobody_else_asks_key_at_a_later_revision() {
    only_the_holder_asks(2, Layout::Key).await;
}

#[tokio::test(start_paused = true)]
async fn the_holder_in_a_restored_store_gets_in_though_nobody_else_asks_mutex() {
    only_the_holder_asks(0, Layout::Mutex).await;
}

#[tokio::test(start_paused = true)]
async fn the_holder_in_a_restored_store_gets_in_though_nobody_else_asks_election() {
    only_the_holder_asks(1, Layout::Election).await;
}
