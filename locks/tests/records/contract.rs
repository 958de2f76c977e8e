//! The rules.

use std::sync::Arc;

use fencepost_locks::{READ_TOGETHER_MAX, TrackedLock, Unconfirmed};
use fencepost_tests::{PATIENCE, until};
use tokio::time::Instant;

use crate::world::{Presented, Reader, World, ask};

/// How long a store may take to say that it does not answer.
const ANSWER_MAX: std::time::Duration = std::time::Duration::from_secs(10);

/// A world whose store can be read on another thread.
pub(crate) trait Shared: World<Store: Send> {}

impl<W: World<Store: Send>> Shared for W {}

async fn locked<W: Shared>(world: &W, name: &str) -> (Reader, Arc<TrackedLock>, Presented) {
    let key = world.key(name);
    let held = world.take(&key, "shard-1").await;
    let reader = Reader::of(world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &held).await, "admit");
    (reader, lock, held)
}

pub(crate) async fn the_holder_is_admitted_and_nobody_else<W: Shared>(world: &W) {
    let (_reader, lock, held) = locked(world, "orders").await;
    let other = Presented { owner: "somebody-else".to_owned(), ..held.clone() };
    assert_eq!(ask(&lock, &other).await, "not-owner");
    let next = world.take(lock.key(), "shard-2").await;
    assert_eq!(ask(&lock, &next).await, "admit");
    assert_eq!(ask(&lock, &held).await, "stale-tenure");
}

pub(crate) async fn the_delayed_write_is_refused_though_its_owner_holds_the_lock_again<
    W: Shared,
>(
    world: &W,
) {
    let (_reader, lock, first) = locked(world, "orders").await;
    let second = world.take(lock.key(), "shard-2").await;
    assert_eq!(ask(&lock, &second).await, "admit");
    let third = world.take(lock.key(), "shard-1").await;
    assert_eq!(ask(&lock, &third).await, "admit");
    assert_eq!(ask(&lock, &second).await, "stale-tenure");
    let delayed = if first.owner == third.owner { "replayed-tenure" } else { "stale-tenure" };
    assert_eq!(ask(&lock, &first).await, delayed);
}

pub(crate) async fn a_renewal_ends_no_tenure<W: Shared>(world: &W) {
    let (_reader, lock, held) = locked(world, "orders").await;
    let mut newest = held.clone();
    for _ in 0..3 {
        newest = world.renew(lock.key(), &newest).await;
        assert_eq!(ask(&lock, &newest).await, "admit");
        assert_eq!(ask(&lock, &held).await, "admit");
    }
}

pub(crate) async fn a_released_lock_admits_nobody<W: Shared>(world: &W) {
    let (reader, lock, held) = locked(world, "orders").await;
    world.release(lock.key(), &held).await;
    // A read shows it, and from then on nobody has to ask.
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(ask(&lock, &held).await, "no-owner");
    let never = reader.lock(&world.key("never-taken"));
    assert_eq!(ask(&never, &held).await, "no-owner");
    let again = world.take(lock.key(), "shard-1").await;
    assert_eq!(ask(&lock, &again).await, "admit");
    assert_ne!(ask(&lock, &held).await, "admit");
}

pub(crate) async fn a_record_that_cannot_be_read_admits_nobody_until_it_can<W: Shared>(world: &W) {
    let (reader, lock, held) = locked(world, "orders").await;
    let other = world.key("others");
    let beside = world.take(&other, "shard-3").await;
    if !world.spoil(lock.key()).await {
        return;
    }
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(ask(&lock, &held).await, "unverifiable");
    let problem = lock.describe(Instant::now()).problem.expect("what is wrong is told");
    assert!(problem.contains(lock.key().as_str()), "{problem}");
    println!("{problem}");
    assert_eq!(ask(&reader.lock(&other), &beside).await, "admit", "another lock's is read");
    let next = world.take(lock.key(), "shard-2").await;
    assert_eq!(ask(&lock, &next).await, "admit");
    assert_eq!(lock.describe(Instant::now()).problem, None);
}

pub(crate) async fn locks_of_a_template_are_read_when_they_are_asked_for<W: Shared>(world: &W) {
    let reader = Reader::of(world).await;
    let key = world.key("shard-7");
    let held = world.take(&key, "shard-1").await;
    let lock = reader.load(&world.prefix(), &key).await;
    assert_eq!(ask(&lock, &held).await, "admit");
    until("the source has started", async || reader.source.ready()).await;
    let next = world.take(&key, "shard-2").await;
    assert_eq!(ask(&lock, &next).await, "admit");
    assert_eq!(ask(&lock, &held).await, "stale-tenure");
}

pub(crate) async fn more_locks_than_one_read_takes_are_all_read<W: Shared>(world: &W) {
    let reader = Reader::of(world).await;
    let mut holders = Vec::new();
    for number in 0..READ_TOGETHER_MAX + 3 {
        let key = world.key(&format!("many-{number}"));
        holders.push((reader.lock(&key), world.take(&key, &format!("shard-{number}")).await));
    }
    until("all are read", async || reader.source.ready()).await;
    for (lock, held) in &holders {
        assert_eq!(ask(lock, held).await, "admit", "{}", lock.key());
    }
    let asked = holders.iter().map(|(lock, held)| ask(lock, held));
    let answers = futures_util::future::join_all(asked).await;
    assert!(answers.iter().all(|answer| *answer == "admit"), "{answers:?}");
}

pub(crate) async fn a_thousand_takeovers_refuse_no_holder<W: Shared>(world: &W) {
    let (_reader, lock, mut before) = locked(world, "orders").await;
    for number in 0..1_000 {
        let held = world.take(lock.key(), &format!("shard-{}", number % 3)).await;
        assert_eq!(ask(&lock, &held).await, "admit", "takeover {number}: {held:?}");
        assert_ne!(ask(&lock, &before).await, "admit", "takeover {number}: {before:?}");
        before = held;
    }
}

pub(crate) async fn a_store_that_stands_still_is_an_error_in_time<W: Shared>(world: &W) {
    let (_reader, lock, held) = locked(world, "orders").await;
    world.stand_still().await;
    let begun = Instant::now();
    let outcome = lock.confirm(begun, begun + PATIENCE).await;
    println!("{outcome:?}");
    assert!(matches!(outcome, Err(Unconfirmed::Store(_))), "{outcome:?}");
    assert!(begun.elapsed() < ANSWER_MAX, "{:?}", begun.elapsed());
    world.go_on().await;
    until("it answers again", async || {
        let now = Instant::now();
        lock.confirm(now, now + PATIENCE).await.is_ok()
    })
    .await;
    assert_eq!(ask(&lock, &held).await, "admit");
}
