use std::pin::pin;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::*;
use crate::store::KeyRange;

fn lock() -> KeyRange {
    KeyRange::Key((*b"lock").into())
}

async fn value(store: &MemoryStore) -> Result<Option<Bytes>, StoreError> {
    let mut answer = store.read(&[RangeRead { range: lock(), wanted: Wanted::All }]).await?;
    Ok(answer.ranges.swap_remove(0).keys.pop().map(|found| found.value))
}

async fn watch_from(store: &MemoryStore, from: u64) -> MemoryWatch {
    let ranges = [RangeWatch { range: lock(), from: Revision::new(from).unwrap() }];
    store.watch(&ranges).await.expect("the store answers")
}

/// What a watch has to tell now: the revisions of the events.
fn told(watch: &mut MemoryWatch) -> Vec<u64> {
    let mut revisions = Vec::new();
    while let Some(news) = watch.next().now_or_never() {
        match news.expect("the watch goes on") {
            WatchNews::Events { events, .. } => {
                revisions.extend(events.iter().map(|event| event.revision().get()))
            }
            WatchNews::CaughtUp => {}
            WatchNews::Compacted { .. } => panic!("nothing was compacted"),
        }
    }
    revisions
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_paused_store_ends_after_its_deadline() {
    let store = MemoryStore::new();
    store.pause();
    let began = Instant::now();
    assert!(matches!(value(&store).await, Err(StoreError::Unavailable(_))));
    assert_eq!(began.elapsed(), CALL_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_is_answered_when_the_store_resumes() {
    let store = MemoryStore::new();
    store.pause();
    let mut reading = pin!(value(&store));
    assert!(reading.as_mut().now_or_never().is_none());
    store.put("lock", "shard-1");
    store.resume();
    assert_eq!(reading.await.unwrap(), Some("shard-1".into()));
}

#[tokio::test]
async fn watch_of_a_paused_store_is_told_all_afterwards() {
    let store = MemoryStore::new();
    let mut watch = watch_from(&store, 2).await;
    store.pause();
    store.put("lock", "shard-1");
    store.put("lock", "shard-2");
    assert!(told(&mut watch).is_empty());
    store.resume();
    assert_eq!(told(&mut watch), [2, 3]);
}

#[tokio::test]
async fn watches_can_be_held_back_while_reads_go_on() {
    let store = MemoryStore::new();
    let mut watch = watch_from(&store, 2).await;
    store.hold_watches();
    store.put("lock", "shard-1");
    assert_eq!(value(&store).await.unwrap(), Some("shard-1".into()));
    let mut late = watch_from(&store, 2).await;
    assert_eq!((told(&mut watch), told(&mut late)), (vec![], vec![]));
    store.release_watches();
    assert_eq!((told(&mut watch), told(&mut late)), (vec![2], vec![2]));
}

#[tokio::test]
async fn rewound_store_shows_its_past() {
    let store = MemoryStore::new();
    let first = store.put("lock", "shard-1");
    store.put("lock", "shard-2");
    store.delete("lock").expect("the key was there");
    let mut running = watch_from(&store, 5).await;
    assert!(told(&mut running).is_empty());
    store.rewind_to(first);
    let ended = running.next().now_or_never().expect("the watch has ended");
    assert!(ended.is_err(), "a watch does not outlive the process that is restored");
    assert_eq!((store.revision(), value(&store).await.unwrap()), (first, Some("shard-1".into())));
    let mut future = watch_from(&store, 5).await;
    store.put("lock", "shard-3");
    store.put("lock", "shard-4");
    assert!(told(&mut future).is_empty());
    store.put("lock", "shard-5");
    assert_eq!(told(&mut future), [5]);
}

#[tokio::test]
async fn ended_watch_tells_what_it_had_first() {
    let store = MemoryStore::new();
    let mut watch = watch_from(&store, 2).await;
    assert!(told(&mut watch).is_empty());
    store.put("lock", "shard-1");
    store.end_watches();
    assert!(matches!(watch.next().await, Ok(WatchNews::Events { .. })));
    assert!(matches!(watch.next().await, Err(StoreError::Unavailable(_))));
}

#[tokio::test]
async fn only_what_changes_something_raises_the_revision() {
    let store = MemoryStore::new();
    assert_eq!(store.delete("lock"), None);
    assert_eq!(store.put_if_absent("lock", "shard-1").map(Revision::get), Some(2));
    assert_eq!(store.put_if_absent("lock", "shard-2"), None);
    assert_eq!(store.transact([]).get(), 2);
    assert_eq!(store.transact([Write::Delete { key: "other".into() }]).get(), 2);
    assert_eq!(store.delete("lock").map(Revision::get), Some(3));
    assert_eq!(value(&store).await.unwrap(), None);
}

#[tokio::test]
async fn another_thread_may_write() {
    let store = MemoryStore::new();
    let mut watch = watch_from(&store, 2).await;
    assert!(told(&mut watch).is_empty());
    let writer = store.clone();
    let thread = std::thread::spawn(move || writer.put("lock", "shard-1"));
    assert!(matches!(watch.next().await, Ok(WatchNews::Events { .. })));
    assert_eq!(thread.join().unwrap().get(), 2);
}
