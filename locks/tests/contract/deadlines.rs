//! That no call hangs.

use std::time::Duration;

use fencepost_locks::{
    Event, LockStore, RangeRead, RangeWatch, StoreError, Wanted, Watch, WatchNews,
};
use fencepost_tests::eventually;
use tokio::time::{Instant, timeout};

use crate::world::{CALL_MAX, World, after, key};

pub(crate) async fn stopped_store_is_unavailable_in_time_and_comes_back(world: &impl World) {
    let known = world.put("lock", "shard-1").await;
    let read = [RangeRead { range: key("lock"), wanted: Wanted::All }];
    let watch = [RangeWatch { range: key("lock"), from: after(known) }];
    world.store().read(&read).await.expect("the store answers");
    world.pause().await;
    let store = world.store();
    let calls = async {
        let outcomes = tokio::join!(
            timed(store.read(&read)),
            timed(store.read_at(b"lock", known)),
            timed(store.watch(&watch))
        );
        let watch = (outcomes.2.0.err(), outcomes.2.1);
        [(outcomes.0.0.err(), outcomes.0.1), (outcomes.1.0.err(), outcomes.1.1), watch]
    };
    let (outcomes, members) = tokio::join!(calls, timed(store.members()));
    for (error, took) in outcomes {
        assert!(matches!(error, Some(StoreError::Unavailable(_))), "{error:?}");
        assert!(took < CALL_MAX, "{took:?}");
    }
    assert!(
        members.0.iter().all(|member| matches!(member.version, Err(StoreError::Unavailable(_)))),
        "{members:?}"
    );
    world.resume();
    let resumed = Instant::now();
    eventually("the store answers", async || store.read(&read).await.ok()).await;
    println!("answers {:?} after it was resumed", resumed.elapsed());
    let revision = world.put("lock", "shard-2").await;
    // On a busy machine it may be suspected once more.
    let told = eventually("the store can be watched", async || {
        let mut watch = store.watch(&watch).await.ok()?;
        loop {
            let news = timeout(fencepost_tests::PATIENCE, watch.next())
                .await
                .expect("there is news")
                .ok()?;
            if let WatchNews::Events { events, .. } = news {
                return events.first().map(Event::revision);
            }
        }
    });
    assert_eq!(told.await, revision);
}

pub(crate) async fn members_tell_their_version(world: &impl World) {
    let members = world.store().members().await;
    assert_eq!(members.len(), 1);
    let version = members[0].version.as_ref().expect("the member answers");
    assert!(version.split('.').count() == 3, "{version}");
}

/// An outcome and how long it took.
pub(crate) async fn timed<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    let outcome = timeout(fencepost_tests::PATIENCE, call).await.expect("no call hangs");
    (outcome, began.elapsed())
}
