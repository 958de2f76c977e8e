//! What a watch tells.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fencepost_locks::{LockStore, StoreError, Watch, WatchNews};
use fencepost_policy::Revision;

use crate::world::{
    World, after, collect, delete, key, next, next_events, numbered, prefix, put, spelled,
};

pub(crate) async fn a_watch_from_the_past_begins_with_what_happened_since(world: &impl World) {
    world.put("lock", "shard-0").await;
    let from = world.put("lock", "shard-1").await;
    world.put("other", "").await;
    let second = world.put("lock", "shard-2").await;
    let deleted = world.delete("lock").await;
    let mut watch = world.watch([(key("lock"), from)]).await;
    let told: Vec<String> =
        collect(&mut watch, 3).await.iter().map(|(_, event)| spelled(event)).collect();
    assert_eq!(
        told,
        [
            format!("lock=shard-1@{from}"),
            format!("lock=shard-2@{second}"),
            format!("lock deleted@{deleted}")
        ]
    );
    let again = world.put("lock", "shard-3").await;
    let told = collect(&mut watch, 1).await;
    assert_eq!(spelled(&told[0].1), format!("lock=shard-3@{again}"));
}

pub(crate) async fn a_watch_from_the_present_tells_what_happens_next(world: &impl World) {
    let known = world.put("lock", "shard-1").await;
    let mut watch = world.watch([(key("lock"), after(known))]).await;
    for number in 0..50 {
        let revision = world.put("lock", number.to_string()).await;
        let told = collect(&mut watch, 1).await;
        assert_eq!(told.len(), 1);
        assert_eq!(spelled(&told[0].1), format!("lock={number}@{revision}"));
    }
}

pub(crate) async fn caught_up_is_told_once_behind_the_past(world: &impl World) {
    let from = world.put("lock", "shard-1").await;
    let second = world.put("lock", "shard-2").await;
    let mut watch = world.watch([(key("lock"), from), (key("never"), from)]).await;
    let mut told = Vec::new();
    loop {
        match watch.next().await.expect("the watch goes on") {
            WatchNews::Events { events, .. } => told.extend(events.iter().map(spelled)),
            WatchNews::CaughtUp => break,
            WatchNews::Compacted { .. } => panic!("nothing was compacted"),
        }
    }
    assert_eq!(told, [format!("lock=shard-1@{from}"), format!("lock=shard-2@{second}")]);
    let third = world.put("lock", "shard-3").await;
    let news = watch.next().await.expect("the watch goes on");
    assert!(
        matches!(&news, WatchNews::Events { events, .. } if events[0].revision() == third),
        "{news:?}"
    );
}

/// etcd tells nothing of a watch from the past before it next looks at those that are behind: each
/// event came 0.1 s late, and until then a superseded holder was let in.
pub(crate) async fn caught_up_watches_tell_events_at_once(world: &impl World) {
    const ROUNDS: usize = 15;
    let mut latencies = Vec::new();
    for _ in 0..ROUNDS {
        let known = world.put("lock", "shard-1").await;
        let mut watch = world.watch([(key("lock"), after(known))]).await;
        while watch.next().await.expect("the watch goes on") != WatchNews::CaughtUp {}
        world.put("lock", "shard-2").await;
        let written = Instant::now();
        next_events(&mut watch).await;
        latencies.push(written.elapsed());
    }
    latencies.sort();
    assert!(latencies[ROUNDS / 2] < Duration::from_millis(50), "{latencies:?}");
}

pub(crate) async fn a_watch_from_the_future_is_silent_until_then(world: &impl World) {
    let known = world.put("lock", "shard-1").await;
    let future = Revision::new(known.get() + 3).unwrap();
    let mut watch = world.watch([(key("lock"), future)]).await;
    for value in ["1", "2", "3", "4"] {
        world.put("lock", value).await;
    }
    let told: Vec<String> =
        collect(&mut watch, 2).await.iter().map(|(_, event)| spelled(event)).collect();
    assert_eq!(told, [format!("lock=3@{future}"), format!("lock=4@{}", after(future))]);
}

pub(crate) async fn each_range_is_told_its_own_events(world: &impl World) {
    let known = world.put("start", "").await;
    let from = after(known);
    let late = Revision::new(known.get() + 3).unwrap();
    let ranges = [
        (key("a"), from),
        (prefix("a"), from),
        (key("b"), late),
        (prefix(""), from),
        (key("never"), from),
    ];
    let mut watch = world.watch(ranges).await;
    let mut expected = BTreeSet::new();
    for (name, told) in
        [("a", &[0, 1, 3][..]), ("b", &[3]), ("ab", &[1, 3]), ("b", &[2, 3]), ("\u{ff}", &[3])]
    {
        let revision = world.put(name, "").await;
        expected.extend(told.iter().map(|range| (*range, revision)));
    }
    let told = collect(&mut watch, expected.len()).await;
    let told: Vec<_> = told.iter().map(|(range, event)| (*range, event.revision())).collect();
    for range in 0..5 {
        let of_range: Vec<_> = told.iter().filter(|(of, _)| *of == range).collect();
        assert!(of_range.is_sorted(), "range {range}: {of_range:?}");
    }
    assert_eq!(told.iter().copied().collect::<BTreeSet<_>>(), expected);
}

pub(crate) async fn a_transaction_is_told_at_once(world: &impl World) {
    let known = world.put("start", "").await;
    let mut watch =
        world.watch([(prefix("queue/"), after(known)), (prefix("lock/"), after(known))]).await;
    let mut late = Vec::new();
    for round in 0..20 {
        let mut writes: Vec<_> =
            (0..100).map(|number| put(numbered("queue/", number), round.to_string())).collect();
        writes.extend((0..20).map(|number| put(numbered("lock/", number), "")));
        late.push(world.transact(writes).await);
    }
    // As they happen, and again as history.
    let mut history =
        world.watch([(prefix("queue/"), after(known)), (prefix("lock/"), after(known))]).await;
    for watch in [&mut watch, &mut history] {
        let mut seen: [Vec<Revision>; 2] = [Vec::new(), Vec::new()];
        while seen.iter().any(|seen| seen.len() < late.len()) {
            let (range, events) = next_events(watch).await;
            for together in events.chunk_by(|one, other| one.revision() == other.revision()) {
                assert_eq!(
                    together.len(),
                    [100, 20][range],
                    "revision {} of range {range}",
                    together[0].revision()
                );
                seen[range].push(together[0].revision());
            }
        }
        assert_eq!(seen, [late.clone(), late.clone()]);
    }
}

pub(crate) async fn a_deletion_is_told_with_its_revision(world: &impl World) {
    let first = world.put("lock", "shard-1").await;
    let mut watch = world.watch([(prefix("lo"), after(first))]).await;
    let deleted = world.transact(vec![put("log", ""), delete("lock")]).await;
    let again = world.put("lock", "").await;
    let told = collect(&mut watch, 3).await;
    let told: BTreeSet<String> = told.iter().map(|(_, event)| spelled(event)).collect();
    let expected =
        [format!("log=@{deleted}"), format!("lock deleted@{deleted}"), format!("lock=@{again}")];
    assert_eq!(told, BTreeSet::from(expected));
}

/// etcd 3.4.23 and 3.5.1 would be silent about a deletion at the very revision up to which they
/// have compacted.
pub(crate) async fn a_deletion_is_told_or_its_history_is_compacted(world: &impl World) {
    for compacts in [false, true] {
        let known = world.put("lock", "shard-1").await;
        let deleted = world.delete("lock").await;
        if compacts {
            world.compact(deleted).await;
        }
        let mut watch = world.watch([(key("lock"), after(known))]).await;
        world.put("lock", "shard-2").await;
        let news = next(&mut watch).await;
        match news {
            WatchNews::Events { events, .. } if !compacts => {
                assert_eq!(spelled(&events[0]), format!("lock deleted@{deleted}"));
            }
            WatchNews::Compacted { range: 0 } if compacts => {}
            WatchNews::Events { .. } | WatchNews::Compacted { .. } | WatchNews::CaughtUp => {
                panic!("{news:?}")
            }
        }
    }
}

pub(crate) async fn compaction_ends_the_watch_of_that_range_only(world: &impl World) {
    let first = world.put("lock", "shard-1").await;
    let second = world.put("lock", "shard-2").await;
    world.compact(second).await;
    let third = world.put("lock", "shard-3").await;
    let ranges = [
        (key("lock"), third),
        (key("lock"), first),
        (prefix("lo"), after(third)),
        (key("l"), second),
    ];
    let mut watch = world.watch(ranges).await;
    let (mut compacted, mut told) = (BTreeSet::new(), Vec::new());
    while compacted.len() < 2 {
        match next(&mut watch).await {
            WatchNews::Compacted { range } => assert!(compacted.insert(range), "told once"),
            WatchNews::Events { range, events } => {
                told.extend(events.iter().map(|event| (range, spelled(event))))
            }
            WatchNews::CaughtUp => panic!("it was left out"),
        }
    }
    assert_eq!(compacted, BTreeSet::from([1, 3]));
    let fourth = world.put("lock", "shard-4").await;
    while told.len() < 3 {
        let (range, events) = next_events(&mut watch).await;
        told.extend(events.iter().map(|event| (range, spelled(event))));
    }
    told.sort();
    let expected = [
        (0, format!("lock=shard-3@{third}")),
        (0, format!("lock=shard-4@{fourth}")),
        (2, format!("lock=shard-4@{fourth}")),
    ];
    assert_eq!(told, expected);
}

pub(crate) async fn a_watch_resumed_after_the_last_event_loses_nothing(world: &impl World) {
    let known = world.put("start", "").await;
    let mut written = Vec::new();
    let mut told = Vec::new();
    let mut next = after(known);
    for round in 0..10 {
        let mut watch = world.watch([(prefix("lock"), next)]).await;
        for number in 0..5 {
            let revision = world.put("lock", format!("{round}.{number}")).await;
            written.push(format!("lock={round}.{number}@{revision}"));
        }
        // Leaves the watch while more is under way.
        for (_, event) in collect(&mut watch, 2).await {
            next = after(event.revision());
            told.push(spelled(&event));
        }
    }
    let mut watch = world.watch([(prefix("lock"), next)]).await;
    let missing = written.len() - told.len();
    told.extend(collect(&mut watch, missing).await.iter().map(|(_, event)| spelled(event)));
    assert_eq!(told, written);
}

pub(crate) async fn a_dropped_wait_loses_no_news(world: &impl World) {
    let known = world.put("start", "").await;
    let mut watch = world.watch([(key("lock"), after(known))]).await;
    let mut written = Vec::new();
    let mut told = Vec::new();
    for number in 0..100 {
        let write = world.put("lock", number.to_string());
        // Whichever comes first: when the write is acknowledged, the wait is dropped.
        tokio::select! {
            news = watch.next() => match news.expect("the watch goes on") {
                WatchNews::Events { events, .. } => told.extend(events.iter().map(spelled)),
                WatchNews::CaughtUp => {}
                WatchNews::Compacted { .. } => panic!("nothing was compacted"),
            },
            revision = write => written.push(format!("lock={number}@{revision}")),
        }
    }
    // Only what was acknowledged is known to have been written.
    let last = world.put("lock", "last").await;
    written.push(format!("lock=last@{last}"));
    while !told.contains(&format!("lock=last@{last}")) {
        told.extend(next_events(&mut watch).await.1.iter().map(spelled));
    }
    let missing: Vec<_> = written.iter().filter(|written| !told.contains(written)).collect();
    assert!(missing.is_empty(), "{missing:?} of {written:?} in {told:?}");
}

pub(crate) async fn thousands_of_ranges_are_watched_over_one_stream(world: &impl World) {
    const KEYS: usize = 3000;
    const RANGES: usize = 4 * KEYS;
    let value = "v".repeat(1000);
    let mut known = Revision::MIN;
    for hundred in 0..KEYS / 100 {
        let numbers = hundred * 100..(hundred + 1) * 100;
        known = world
            .transact(numbers.map(|number| put(numbered("lock/", number), &value)).collect())
            .await;
    }
    let first = Revision::new(2).unwrap();
    let name = |range: usize| numbered("lock/", range % KEYS);
    // Each has an event from the past, so that news comes while the later ranges are still being
    // asked for.
    let mut watch = world.watch((0..RANGES).map(|range| (key(name(range)), first))).await;
    let mut told = collect(&mut watch, RANGES).await;
    told.sort_by_key(|(range, _)| *range);
    for (number, (range, event)) in told.iter().enumerate() {
        assert_eq!((*range, &event.key()[..]), (number, name(number).as_bytes()));
        assert!(event.revision() <= known);
    }
    let revision = world.put(name(RANGES - 1), "again").await;
    let told = collect(&mut watch, RANGES / KEYS).await;
    assert!(
        told.iter().all(|(range, event)| range % KEYS == KEYS - 1 && event.revision() == revision)
    );
}

pub(crate) async fn a_watch_of_nothing_is_refused(world: &impl World) {
    let refused = world.store().watch(&[]).await.err();
    assert!(matches!(refused, Some(StoreError::Refused(_))), "{refused:?}");
}
