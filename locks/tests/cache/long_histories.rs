//! Many holders have renewed their locks often before a start.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{
    KeyValue, LockStore, Member, MemoryStore, MemoryWatch, RangeRead, RangeWatch, ReadAnswer, StoreError, Write,
};
use fencepost_policy::{Layout, Revision};
use tokio::sync::Semaphore;

use crate::world::{SECOND, ask, options, pass, play_with, track};

/// It answers so many reads of the past at a time, each in a millisecond.
#[derive(Clone)]
struct Busy {
    store: MemoryStore,
    answering: Arc<Semaphore>,
}

impl LockStore for Busy {
    type Watch = MemoryWatch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        self.store.read(ranges).await
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        let _turn = self.answering.acquire().await.unwrap();
        pass(Duration::from_millis(1)).await;
        self.store.read_at(key, at).await
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<MemoryWatch, StoreError> {
        self.store.watch(ranges).await
    }

    async fn members(&self) -> Vec<Member> {
        self.store.members().await
    }
}

/// A store that answers so many at a time, in which each lock has had one holder, which has renewed it often. What each is told when all locks are
/// known, of its first revision and of its newest, and how many seconds that has taken.
async fn after_a_start(locks: usize, answers_at_a_time: usize) -> ([Vec<&'static str>; 2], u32) {
    let busy = Busy { store: MemoryStore::new(), answering: Arc::new(Semaphore::new(answers_at_a_time)) };
    let key = |number: usize| format!("lock/{number}");
    let renew = || {
        let puts = (0..locks).map(|number| Write::Put { key: key(number).into(), value: "a".into() });
        busy.store.transact(puts)
    };
    let first = renew();
    (0..3_000).for_each(|_| _ = renew());
    let newest = renew();
    let mut told = [Vec::new(), Vec::new()];
    let mut seconds = 0;
    play_with(busy.clone(), options(), async |_, source| {
        let tracked: Vec<_> = (0..locks).map(|number| track(source, &key(number), Layout::Key)).collect();
        while !source.ready() {
            pass(SECOND).await;
            seconds += 1;
        }
        for lock in &tracked {
            told[0].push(ask(lock, "a", first).await);
            told[1].push(ask(lock, "a", newest).await);
        }
    })
    .await;
    (told, seconds)
}

/// All were looked at at once, so that none came to its end in time: each holder was refused its older revisions for good.
#[tokio::test(start_paused = true)]
async fn however_many_holders_have_renewed_their_locks_often_each_may_present_any_of_its_revisions_after_a_start() {
    let ([first, newest], _) = after_a_start(20, 7).await; // 7,000 a second, as etcd on two CPUs.
    assert_eq!((first, newest), (vec!["admit"; 20], vec!["admit"; 20]));
}

/// Else who comes last would wait for as long as all others take.
#[tokio::test(start_paused = true)]
async fn of_a_store_that_is_too_slow_for_that_the_newest_revisions_are_known_in_a_minute_and_little_more() {
    let ([first, newest], seconds) = after_a_start(40, 1).await;
    assert!(first.contains(&"replayed-tenure"), "each has been looked into for 5 s at most: {first:?}");
    assert_eq!(newest, ["admit"; 40]);
    assert!((60..=75).contains(&seconds), "{seconds}");
}
