//! What a read for changes shows: whether anything changed can be told from the answer alone.

use fencepost_locks::{LockStore, RangeRead, StoreError, Wanted};
use fencepost_policy::Revision;

use crate::world::{World, after, collect, delete, news, numbered, prefix, put};

/// The keys of `lock/` changed since, and how many there are.
async fn changes(world: &impl World, since: Revision) -> (Vec<String>, u64) {
    let answer = world.read(prefix("lock/"), Wanted::ChangedAfter(since)).await;
    let keys = answer.ranges[0].keys.iter().map(|found| String::from_utf8(found.key.to_vec()).unwrap());
    (keys.collect(), answer.ranges[0].count)
}

/// Three locks; the revision at which they are known.
async fn three_locks(world: &impl World) -> Revision {
    world.transact(["lock/1", "lock/2", "lock/3"].map(|name| put(name, "shard-1")).to_vec()).await
}

fn keys(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub(crate) async fn unchanged_keys_are_counted_and_not_returned(world: &impl World) {
    let known = three_locks(world).await;
    assert_eq!(changes(world, known).await, (keys(&[]), 3));
    let before = known.before().expect("the store had a revision before");
    assert_eq!(changes(world, before).await, (keys(&["lock/1", "lock/2", "lock/3"]), 3));
}

pub(crate) async fn a_write_elsewhere_changes_nothing(world: &impl World) {
    let known = three_locks(world).await;
    world.put("lock", "").await;
    world.put("lock0", "").await;
    assert_eq!(changes(world, known).await, (keys(&[]), 3));
}

pub(crate) async fn a_deleted_key_lowers_the_count(world: &impl World) {
    let known = three_locks(world).await;
    world.delete("lock/2").await;
    assert_eq!(changes(world, known).await, (keys(&[]), 2));
}

pub(crate) async fn a_deleted_and_an_added_key_leave_the_count_and_show_the_added_one(world: &impl World) {
    let known = three_locks(world).await;
    world.transact(vec![delete("lock/2"), put("lock/4", "shard-2")]).await;
    assert_eq!(changes(world, known).await, (keys(&["lock/4"]), 3));
}

pub(crate) async fn a_key_deleted_and_made_again_is_changed(world: &impl World) {
    let known = three_locks(world).await;
    world.delete("lock/2").await;
    world.put("lock/2", "shard-1").await;
    assert_eq!(changes(world, known).await, (keys(&["lock/2"]), 3));
}

pub(crate) async fn changes_among_thousands_of_keys_are_found(world: &impl World) {
    let known = world.put_numbered("lock/", 2500).await;
    assert_eq!(changes(world, known).await, (keys(&[]), 2500));
    for number in [2400, 7, 1300] {
        world.put(numbered("lock/", number), "again").await;
    }
    assert_eq!(changes(world, known).await, (keys(&["lock/00007", "lock/01300", "lock/02400"]), 2500));
}

pub(crate) async fn many_changes_are_all_returned(world: &impl World) {
    let known = world.put("lock/", "first").await;
    world.put_numbered("lock/", 2500).await;
    let both =
        [prefix("lock/"), prefix("lock/00")].map(|range| RangeRead { range, wanted: Wanted::ChangedAfter(known) });
    let answer = world.store().read(&both).await.expect("the store can be read");
    let sizes: Vec<_> = answer.ranges.iter().map(|range| (range.keys.len(), range.count)).collect();
    assert_eq!(sizes, [(2500, 2501), (1000, 1000)]);
    assert!(answer.ranges[0].keys.is_sorted_by(|one, other| one.key < other.key));
}

/// What etcd could not find in time ended the watch with it, though nothing else was wrong with its member: below 300,000 keys, each second.
pub(crate) async fn changes_that_are_not_found_in_time_end_no_watch(world: &impl World) {
    let known = three_locks(world).await;
    let mut watch = world.watch([(prefix("lock/"), after(known))]).await;
    world.pause().await;
    let read = [RangeRead { range: prefix("lock/"), wanted: Wanted::ChangedAfter(known) }];
    // The first has been given up by its endpoint, too, once the second is.
    for _ in 0..2 {
        let outcome = tokio::select! {
            news = news(&mut watch) => panic!("nothing happens to the watch: {news:?}"),
            outcome = world.store().read(&read) => outcome,
        };
        assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    }
    world.resume();
    let revision = world.put("lock/2", "shard-2").await;
    let told = collect(&mut watch, 1).await;
    assert_eq!(told[0].1.revision(), revision);
}
