//! A store that has lost what it had shown.

use fencepost_locks::{SourceOptions, TrackedLock};
use fencepost_tests::{PATIENCE, until};
use tokio::time::Instant;

use crate::memory::MemoryRecords;
use crate::world::{Reader, SECOND, World, ask};

/// As it is read each period.
async fn read(lock: &TrackedLock) {
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_number_that_is_given_out_twice_admits_nobody_until_that_is_accepted() {
    let world = MemoryRecords::default();
    let (key, other) = (world.key("orders"), world.key("others"));
    let beside = world.take(&other, "shard-3").await;
    world.take(&key, "shard-1").await;
    let kept = world.records().clone();
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    let lost = world.take(&key, "shard-2").await;
    assert_eq!(ask(&lock, &lost).await, "admit");

    *world.records() = kept; // As if it had been promoted before that arrived.
    let again = world.take(&key, "shard-1").await;
    assert_eq!(again.revision, lost.revision);
    assert_eq!(ask(&lock, &again).await, "not-owner", "until the record is read");
    read(&lock).await;
    assert_eq!(ask(&lock, &again).await, "store-regressed");
    assert_eq!(ask(&lock, &lost).await, "store-regressed");
    let status = reader.source.status(Instant::now());
    assert_eq!((status.distrusted_through, status.answers_behind), (Some(lost.revision), 2));
    assert_eq!(ask(&reader.lock(&other), &beside).await, "admit", "another lock lost nothing");

    let above = world.take(&key, "shard-2").await;
    read(&lock).await;
    assert_eq!(ask(&lock, &above).await, "admit", "it was never given out before");
    assert_eq!(ask(&lock, &lost).await, "replayed-tenure");
    assert!(reader.source.accept_regression().await.unwrap());
    assert_eq!(reader.source.status(Instant::now()).distrusted_through, None);
    assert_eq!(ask(&lock, &lost).await, "replayed-tenure");
    assert_eq!(ask(&lock, &above).await, "admit");
    assert!(!reader.source.accept_regression().await.unwrap(), "there is nothing left to accept");
}

#[tokio::test]
async fn another_history_is_distrusted_up_to_what_was_seen_of_each_lock() {
    let world = MemoryRecords::default();
    let reader = Reader::of(&world).await;
    let (key, other) = (world.key("orders"), world.key("others"));
    for _ in 0..4 {
        world.take(&key, "shard-1").await;
    }
    let held = world.take(&key, "shard-1").await;
    let (lock, untaken) = (reader.lock(&key), reader.lock(&other));
    assert_eq!(ask(&lock, &held).await, "admit");
    assert_eq!(ask(&untaken, &held).await, "no-owner");
    world.records().lineage += 1;
    read(&lock).await;
    assert_eq!(ask(&lock, &held).await, "store-regressed");
    let first = world.take(&other, "shard-3").await;
    read(&untaken).await;
    assert_eq!(ask(&untaken, &first).await, "admit", "none of its numbers had been seen");
    let next = world.take(&key, "shard-2").await;
    read(&lock).await;
    assert_eq!(ask(&lock, &next).await, "admit");
}

#[tokio::test]
async fn a_store_that_stood_still_is_down_and_comes_up_again() {
    let world = MemoryRecords::default();
    let options = SourceOptions { period: SECOND / 100, ..SourceOptions::default() };
    let reader = Reader::with(&world, options).await;
    let lock = reader.lock(&world.key("orders"));
    let up = || reader.source.status(Instant::now()).up;
    until("it is up", async || up() == Some(true) && lock.is_known()).await;
    world.stand_still().await;
    until("it is down", async || up() == Some(false)).await;
    world.go_on().await;
    until("it is up again", async || up() == Some(true)).await;
}
