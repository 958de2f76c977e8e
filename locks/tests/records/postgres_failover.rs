//! A PostgreSQL primary that another server replaces.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_locks::{
    LockSpec, PostgresStore, RecordAnswer, RecordFormat, RecordStore, StoreError,
};
use fencepost_policy::{Layout, LockKey};
use fencepost_tests::{PATIENCE, Postgres, until};
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::postgres::{PostgresLocks, connect, take, why_not};
use crate::world::{Presented, Reader, World, ask};

const STANDBY: &str = "standby";

/// A world on a primary, and its standby, which has all of it.
async fn primary_and_standby() -> (PostgresLocks, Postgres) {
    let primary = Arc::new(Postgres::start().await);
    let world = PostgresLocks::on(Arc::clone(&primary)).await;
    let standby = primary.start_standby(STANDBY).await;
    let follows = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    until("the standby follows", async || {
        let row = world.client.query_one(follows, &[]).await.unwrap();
        row.get::<_, i64>(0) == 1
    })
    .await;
    (world, standby)
}

async fn promote(standby: &Postgres) {
    standby.query("SELECT pg_promote()").await;
}

/// The database of a world on another server.
async fn beside(world: &PostgresLocks, server: &Postgres) -> Client {
    connect(server, &world.options.login.database).await
}

#[tokio::test]
async fn a_standby_is_refused_until_it_is_the_primary() {
    let (mut world, standby) = primary_and_standby().await;
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    world.options.login.port = standby.address().port();
    for barrier in [false, true] {
        world.options.barrier = barrier;
        let why = why_not(&world).await;
        assert!(why.contains("the server is not the primary"), "{why}");
    }
    world.options.barrier = false;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &held).await, "unverifiable");
    promote(&standby).await;
    until("the holder is admitted", async || ask(&lock, &held).await == "admit").await;
}

/// Without a barrier, a primary that was replaced vouches for the holder that it knows.
#[tokio::test]
async fn a_replaced_primary_answers_but_for_the_barrier() {
    let (mut world, standby) = primary_and_standby().await;
    world.server.set("synchronous_standby_names", STANDBY).await;
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    let without = Reader::of(&world).await;
    world.options.barrier = true;
    let with = Reader::of(&world).await;
    let (without, with) = (without.lock(&key), with.lock(&key));
    until("the standby confirms", async || ask(&with, &held).await == "admit").await;
    assert_eq!(ask(&without, &held).await, "admit");

    promote(&standby).await;
    let there = beside(&world, &standby).await;
    let next = take(&there, &key, "shard-2").await;
    assert_eq!(ask(&with, &next).await, "unverifiable");
    without.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(ask(&without, &held).await, "admit", "the limit that docs/sql.md names");
    let why = why_not(&world).await;
    assert!(why.contains("no standby has confirmed the barrier within 1s"), "{why}");
    until("the barriers that were missed are called off", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        let row = world.client.query_one(waiting, &[]).await.unwrap();
        row.get::<_, i64>(0) == 0
    })
    .await;
}

/// It is committed then, and confirmed by nobody.
#[tokio::test]
async fn a_barrier_that_somebody_calls_off_confirms_nothing() {
    let (mut world, standby) = primary_and_standby().await;
    world.server.set("synchronous_standby_names", STANDBY).await;
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    promote(&standby).await;
    world.options.barrier = true;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    let client = &world.client;
    let asked = ask(&lock, &held);
    let called_off = until("it waits, and is called off", async || {
        let call_off = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
            WHERE wait_event = 'SyncRep'";
        !client.query(call_off, &[]).await.unwrap().is_empty()
    });
    let (answer, ()) = tokio::join!(asked, called_off);
    assert_eq!(answer, "unverifiable");
}

/// One primary and, once it is told so, the other.
struct FailOver {
    stores: [PostgresStore; 2],
    has_failed_over: Arc<AtomicBool>,
}

impl RecordStore for FailOver {
    async fn read(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, StoreError> {
        self.stores[usize::from(self.has_failed_over.load(Ordering::SeqCst))].read(locks).await
    }
}

/// A world whose address leads to another primary.
struct FailingOver<'w> {
    world: &'w PostgresLocks,
    standby: &'w Postgres,
    has_failed_over: Arc<AtomicBool>,
}

impl World for FailingOver<'_> {
    type Store = FailOver;

    fn store(&self) -> FailOver {
        let mut there = self.world.options.clone();
        there.login.port = self.standby.address().port();
        let stores = [self.world.store(), PostgresStore::new(there)];
        FailOver { stores, has_failed_over: Arc::clone(&self.has_failed_over) }
    }

    fn format(&self) -> RecordFormat {
        RecordFormat::plain(Layout::Key)
    }

    async fn take(&self, lock: &LockKey, owner: &str) -> Presented {
        self.world.take(lock, owner).await
    }

    async fn renew(&self, lock: &LockKey, held: &Presented) -> Presented {
        self.world.renew(lock, held).await
    }

    async fn release(&self, lock: &LockKey, held: &Presented) {
        self.world.release(lock, held).await;
    }

    async fn spoil(&self, lock: &LockKey) {
        self.world.spoil(lock).await;
    }

    async fn stand_still(&self) {
        self.world.stand_still().await;
    }

    async fn go_on(&self) {
        self.world.go_on().await;
    }
}

#[tokio::test]
async fn a_number_that_a_promotion_gives_out_again_is_told() {
    let (world, standby) = primary_and_standby().await;
    let (key, other) = (world.key("orders"), world.key("others"));
    for number in 1..4 {
        world.take(&key, &format!("shard-{number}")).await;
    }
    let beside_it = world.take(&other, "shard-1").await;
    let has_all = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) <= 0 \
        FROM pg_stat_replication";
    until("the standby has all of it", async || {
        let row = world.client.query_one(has_all, &[]).await.unwrap();
        row.get::<_, Option<bool>>(0) == Some(true)
    })
    .await;
    standby.set("primary_conninfo", "").await;
    until("the standby follows no more", async || {
        let row = world.client.query("SELECT FROM pg_stat_replication", &[]).await.unwrap();
        row.is_empty()
    })
    .await;

    let has_failed_over = Arc::new(AtomicBool::new(false));
    let over = FailingOver {
        world: &world,
        standby: &standby,
        has_failed_over: Arc::clone(&has_failed_over),
    };
    let reader = Reader::of(&over).await;
    let (lock, untouched) = (reader.lock(&key), reader.lock(&other));
    let lost = world.take(&key, "shard-4").await;
    assert_eq!(lost.revision.get(), 4);
    assert_eq!(ask(&lock, &lost).await, "admit");
    assert_eq!(ask(&untouched, &beside_it).await, "admit");

    promote(&standby).await;
    let there = beside(&world, &standby).await;
    let again = take(&there, &key, "shard-5").await;
    assert_eq!(again.revision, lost.revision);
    has_failed_over.store(true, Ordering::SeqCst);
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(ask(&lock, &again).await, "store-regressed");
    assert_eq!(ask(&lock, &lost).await, "store-regressed");
    untouched.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(ask(&untouched, &beside_it).await, "admit", "an ordinary fail-over for this lock");
    let above = take(&there, &key, "shard-6").await;
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(ask(&lock, &above).await, "admit");
}
