//! What a read shows.

use fencepost_locks::{KeyRange, LockStore, RangeRead, StoreError, Wanted};
use fencepost_policy::Revision;

use crate::world::{World, after, collect, delete, key, numbered, prefix, put};

pub(crate) async fn a_read_shows_every_write_acknowledged_before_it(world: &impl World) {
    for number in 0..50 {
        let revision = world.put("lock", number.to_string()).await;
        let answer = world.read(key("lock"), Wanted::All).await;
        assert_eq!(answer.revision, revision);
        assert_eq!(answer.ranges[0].keys[0].value, number.to_string());
        assert_eq!(answer.ranges[0].count, 1);
    }
    let revision = world.delete("lock").await;
    let answer = world.read(key("lock"), Wanted::All).await;
    assert_eq!(
        (answer.revision, answer.ranges[0].keys.len(), answer.ranges[0].count),
        (revision, 0, 0)
    );
}

pub(crate) async fn a_key_tells_when_it_was_created_and_written(world: &impl World) {
    let first = world.put("lock", "shard-1").await;
    let second = world.put("lock", "shard-1").await;
    let found = world.get("lock").await.expect("the key was put");
    assert_eq!((found.created, found.modified, found.version), (first, second, 2));
    world.delete("lock").await;
    let again = world.put("lock", "shard-2").await;
    let found = world.get("lock").await.expect("the key was put again");
    assert_eq!((found.created, found.modified, found.version), (again, again, 1));
}

pub(crate) async fn a_read_of_nothing_is_refused(world: &impl World) {
    let refused = world.store().read(&[]).await.err();
    assert!(matches!(refused, Some(StoreError::Refused(_))), "{refused:?}");
}

pub(crate) async fn all_ranges_of_a_read_are_from_one_revision(world: &impl World) {
    let pair = [key("a"), prefix("b/")];
    twins_are_never_seen_apart(world, &["a", "b/1"], &pair, 200).await;
}

pub(crate) async fn ranges_beyond_a_request_are_from_the_same_revision(world: &impl World) {
    // 300 ranges take three requests to etcd.
    let names: Vec<String> = (0..300).map(|number| numbered("shard", number)).collect();
    let ranges: Vec<KeyRange> = names.iter().map(key).collect();
    twins_are_never_seen_apart(world, &[&names[0], &names[150], &names[299]], &ranges, 50).await;
}

/// Writes the same to all these keys at once, over and over, while they are read.
async fn twins_are_never_seen_apart(
    world: &impl World,
    names: &[&str],
    ranges: &[KeyRange],
    reads: usize,
) {
    let write = async |number: usize| {
        world.transact(names.iter().map(|name| put(name, number.to_string())).collect()).await
    };
    write(0).await;
    let asked: Vec<RangeRead> = ranges
        .iter()
        .map(|range| RangeRead { range: range.clone(), wanted: Wanted::All })
        .collect();
    let writing = async {
        for number in 1.. {
            write(number).await;
            tokio::task::yield_now().await;
        }
    };
    let reading = async {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..reads {
            let answer = world.store().read(&asked).await.expect("the store can be read");
            assert_eq!(answer.ranges.len(), ranges.len());
            let keys: Vec<_> = answer.ranges.iter().flat_map(|range| &range.keys).collect();
            assert_eq!(keys.len(), names.len());
            for twin in &keys {
                assert_eq!(
                    (&twin.value, twin.modified),
                    (&keys[0].value, keys[0].modified),
                    "{keys:?}"
                );
                assert!(twin.modified <= answer.revision, "{twin:?} at {}", answer.revision);
            }
            seen.insert(answer.revision);
            tokio::task::yield_now().await;
        }
        assert!(seen.len() > 1, "the writer was not at work");
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
}

pub(crate) async fn a_range_of_thousands_of_keys_is_read_whole(world: &impl World) {
    let revision = world.put_numbered("queue/", 3000).await;
    world.put("queue0", "not below queue/").await;
    let ranges = [prefix("queue/"), key("queue0"), prefix("queue/01"), prefix("none/")];
    let asked = ranges.map(|range| RangeRead { range, wanted: Wanted::All });
    for whole in [&asked[..1], &asked[..]] {
        let answer = world.store().read(whole).await.expect("the store can be read");
        assert_eq!(answer.revision, after(revision));
        let queue = &answer.ranges[0];
        assert_eq!((queue.count, queue.keys.len()), (3000, 3000));
        for (number, found) in queue.keys.iter().enumerate() {
            assert_eq!(
                (&found.key[..], &found.value[..]),
                (numbered("queue/", number).as_bytes(), number.to_string().as_bytes())
            );
        }
    }
    let answer = world.store().read(&asked).await.expect("the store can be read");
    let sizes: Vec<_> = answer.ranges.iter().map(|range| (range.keys.len(), range.count)).collect();
    assert_eq!(sizes, [(3000, 3000), (1, 1), (1000, 1000), (0, 0)]);
    assert_eq!(answer.ranges[2].keys[999].key, numbered("queue/", 1999));
    let counted = world.read(prefix("queue/"), Wanted::Count).await;
    assert_eq!((counted.ranges[0].count, counted.ranges[0].keys.len()), (3000, 0));
}

pub(crate) async fn large_values_are_read_and_watched(world: &impl World) {
    // 6 MiB in all; the client library takes 4 MiB in one answer unless told otherwise.
    let value = "v".repeat(1 << 20);
    let first = world.put("large/0", &value).await;
    for number in 1..6 {
        world.put(format!("large/{number}"), &value).await;
    }
    let answer = world.read(prefix("large/"), Wanted::All).await;
    assert_eq!(answer.ranges[0].keys.iter().map(|found| found.value.len()).sum::<usize>(), 6 << 20);
    let mut watch = world.watch([(prefix("large/"), first)]).await;
    assert_eq!(collect(&mut watch, 6).await.len(), 6);
}

pub(crate) async fn a_prefix_has_the_keys_that_begin_with_it_and_no_others(world: &impl World) {
    let names: [&[u8]; 12] = [
        b"\0",
        b"a",
        b"a/",
        b"a/b",
        b"a/\xff",
        b"a/\xff\xff",
        b"a/\xff\xffz",
        b"a0",
        b"b",
        b"\xff",
        b"\xff\xff",
        b"\xff\xff\0",
    ];
    world.transact(names.iter().map(|name| put(name, "")).collect()).await;
    let prefixes: [&[u8]; 10] = [
        b"",
        b"a",
        b"a/",
        b"a/\xff",
        b"a/\xff\xff",
        b"\xff",
        b"\xff\xff",
        b"\xff\xff\xff",
        b"\0",
        b"c",
    ];
    for start in prefixes {
        let expected: Vec<&[u8]> =
            names.into_iter().filter(|name| name.starts_with(start)).collect();
        let answer = world.read(prefix(start), Wanted::All).await;
        let found: Vec<&[u8]> = answer.ranges[0].keys.iter().map(|found| &found.key[..]).collect();
        assert_eq!(found, expected, "{}", start.escape_ascii());
        assert_eq!(answer.ranges[0].count, expected.len() as u64);
    }
    for name in names {
        let answer = world.read(key(name), Wanted::All).await;
        assert_eq!((answer.ranges[0].keys[0].key.as_ref(), answer.ranges[0].count), (name, 1));
    }
}

pub(crate) async fn keys_and_values_may_be_any_bytes(world: &impl World) {
    let all: Vec<u8> = (0..=255).collect();
    world.put(&all, &all).await;
    world.put(b"\xc3\x28", b"").await;
    let found = world.get(&all).await.expect("the key was put");
    assert_eq!((&found.key[..], &found.value[..]), (&all[..], &all[..]));
    let found = world.get(b"\xc3\x28").await.expect("the key was put");
    assert_eq!((&found.key[..], &found.value[..]), (&b"\xc3\x28"[..], &b""[..]));
}

pub(crate) async fn history_tells_what_a_key_was(world: &impl World) {
    let before = world.put("other", "").await;
    let first = world.put("lock", "shard-1").await;
    let second = world.put("lock", "shard-2").await;
    let deleted = world.delete("lock").await;
    let third = world.put("lock", "shard-3").await;
    let was = async |at: Revision| {
        let found = world.store().read_at(b"lock", at).await.expect("history is there");
        found.map(|found| {
            (
                String::from_utf8(found.value.to_vec()).unwrap(),
                found.created,
                found.modified,
                found.version,
            )
        })
    };
    assert_eq!(was(before).await, None);
    assert_eq!(was(first).await, Some(("shard-1".to_owned(), first, first, 1)));
    assert_eq!(was(second).await, Some(("shard-2".to_owned(), first, second, 2)));
    assert_eq!(was(deleted).await, None);
    assert_eq!(was(third).await, Some(("shard-3".to_owned(), third, third, 1)));
    let unreached = world.store().read_at(b"lock", after(third)).await;
    assert!(matches!(unreached, Err(StoreError::Unavailable(_))), "{unreached:?}");
}

pub(crate) async fn compacted_history_is_told_as_such(world: &impl World) {
    let first = world.put("lock", "shard-1").await;
    let second = world.put("lock", "shard-2").await;
    let third = world.transact(vec![put("lock", "shard-3"), put("gone", "")]).await;
    let fourth = world.transact(vec![delete("gone")]).await;
    world.compact(second).await;
    let compacted = world.store().read_at(b"lock", first).await;
    assert!(matches!(compacted, Err(StoreError::Compacted)), "{compacted:?}");
    let oldest = world.store().read_at(b"lock", second).await.expect("that much history is there");
    assert_eq!(oldest.map(|found| found.modified), Some(second));
    world.compact(fourth).await;
    let compacted = world.store().read_at(b"gone", third).await;
    assert!(matches!(compacted, Err(StoreError::Compacted)), "{compacted:?}");
    let now = world.store().read_at(b"lock", fourth).await.expect("that much history is there");
    assert_eq!(now.map(|found| (found.modified, found.version)), Some((third, 3)));
    assert_eq!(world.get("gone").await, None);
}
