//! What ZooKeeper can be put through, beyond what every store must stand.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{
    Hint, LockSpec, RecordFormat, RecordStore, SourceOptions, StoreError, ZookeeperOptions,
    ZookeeperStore, ZookeeperUser,
};
use fencepost_policy::{Layout, LockKey, Revision, Seen};
use fencepost_tests::{
    PATIENCE, Relay, SESSION_MIN, Scratch, Zookeeper, ZookeeperEnsemble, eventually, until,
};
use tokio::time::Instant;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::world::{Presented, Reader, World, ask};
use crate::zookeeper::{Masters, Zoo, store};

/// A read has 3 s of its own.
const READ_MAX: Duration = Duration::from_secs(5);

fn spec(layout: Layout) -> LockSpec {
    let key = LockKey::new("/locks/orders").unwrap();
    LockSpec { key, format: Arc::new(RecordFormat::plain(layout)) }
}

async fn seen(store: &ZookeeperStore, lock: &LockSpec) -> Result<Seen, StoreError> {
    let mut answers = store.read(&[lock]).await?;
    let answer = answers.pop().expect("an answer for the one lock");
    Ok(answer.sighting.seen)
}

fn revision(seen: &Seen) -> Option<Revision> {
    match seen {
        Seen::Held { revision, .. } => Some(*revision),
        Seen::Free | Seen::Unreadable => None,
    }
}

async fn hint(store: &ZookeeperStore) -> Hint {
    tokio::time::timeout(PATIENCE, store.hint()).await.expect("there is a hint")
}

async fn answered(store: &ZookeeperStore, lock: &LockSpec) -> Seen {
    eventually("the store answers", async || seen(store, lock).await.ok()).await
}

fn addresses(ensemble: &ZookeeperEnsemble, but: usize) -> String {
    let servers = ensemble.servers.iter().enumerate().filter(|(index, _)| *index != but);
    servers.map(|(_, server)| server.address().to_string()).collect::<Vec<_>>().join(",")
}

#[tokio::test]
async fn a_former_leader_that_was_paused_shows_no_old_data() {
    let ensemble = ZookeeperEnsemble::start_hasty(3).await;
    let lock = spec(Layout::Key);
    for round in 0..4 {
        let leader = eventually("there is a leader", async || ensemble.leader().await).await;
        let address = ensemble.servers[leader].address().to_string();
        let masters = Masters::connect(&addresses(&ensemble, leader)).await;
        let before = masters.take(Layout::Key, &lock.key, "shard-1").await;
        let store = store(&[address]);
        assert_eq!(revision(&answered(&store, &lock).await), Some(before.revision));

        ensemble.servers[leader].pause().await;
        ensemble.leader_beside(leader).await;
        let masters = Masters::connect(&addresses(&ensemble, leader)).await;
        let after = masters.take(Layout::Key, &lock.key, "shard-2").await;
        // Reads are under way before it wakes, so that one reaches it at once.
        let reads = async {
            loop {
                if let Ok(seen) = seen(&store, &lock).await {
                    return seen;
                }
            }
        };
        // The first of them is sent when it is first polled, before the other half of this.
        let wake = async { ensemble.servers[leader].resume() };
        let (first, ()) = tokio::join!(biased; reads, wake);
        assert_eq!(revision(&first), Some(after.revision), "round {round}");
    }
}

#[tokio::test]
async fn a_paused_follower_is_an_error_and_shows_the_truth_when_it_goes_on() {
    let ensemble = ZookeeperEnsemble::start(3).await;
    let lock = spec(Layout::Election);
    let follower = eventually("there is a follower", async || ensemble.follower().await).await;
    let store = store(&[ensemble.servers[follower].address().to_string()]);
    let masters = Masters::connect(&addresses(&ensemble, follower)).await;
    let before = masters.take(Layout::Election, &lock.key, "shard-1").await;
    assert_eq!(revision(&answered(&store, &lock).await), Some(before.revision));
    assert_eq!(hint(&store).await, Hint::All, "a session was opened");

    ensemble.servers[follower].pause().await;
    let after = masters.take(Layout::Election, &lock.key, "shard-2").await;
    let begun = Instant::now();
    assert!(seen(&store, &lock).await.is_err());
    assert!(begun.elapsed() < READ_MAX, "{:?}", begun.elapsed());
    ensemble.servers[follower].resume();
    assert_eq!(revision(&answered(&store, &lock).await), Some(after.revision));
    hint(&store).await; // What the watch missed is to be read.
}

#[tokio::test]
async fn a_watch_has_a_lock_read_before_that_is_due() {
    for layout in [Layout::Election, Layout::Mutex, Layout::Key] {
        let world = Zoo::start(layout).await;
        let reader = Reader::of(&world).await;
        let lock = reader.lock(&world.key("orders"));
        until("it is known to be free", async || lock.is_known()).await;
        for number in 0..20 {
            let held = world.take(lock.key(), &format!("shard-{number}")).await;
            until("nobody asked, and it is known", async || {
                let holder = lock.describe(Instant::now()).holder;
                holder.is_some_and(|(_, first, _)| first == held.revision)
            })
            .await;
        }
        world
            .release(lock.key(), &Presented { owner: String::new(), revision: Revision::MIN })
            .await;
        until("it is free", async || lock.describe(Instant::now()).holder.is_none()).await;
    }
}

#[tokio::test]
async fn a_session_that_expires_frees_its_locks() {
    let server = Zookeeper::start().await;
    let relay = Relay::start(server.address()).await;
    let connector = Client::connector().with_session_timeout(SESSION_MIN);
    let masters = Masters(connector.connect(&relay.address().to_string()).await.unwrap());
    let store = store(&[server.address().to_string()]);
    for layout in [Layout::Election, Layout::Key] {
        let lock = LockSpec {
            key: LockKey::new(&format!("/locks/{layout:?}")).unwrap(),
            format: Arc::new(RecordFormat::plain(layout)),
        };
        let held = masters.take(layout, &lock.key, "shard-1").await;
        assert_eq!(revision(&answered(&store, &lock).await), Some(held.revision));
    }
    relay.cut().await;
    for layout in [Layout::Election, Layout::Key] {
        let lock = LockSpec {
            key: LockKey::new(&format!("/locks/{layout:?}")).unwrap(),
            format: Arc::new(RecordFormat::plain(layout)),
        };
        until("it is free", async || answered(&store, &lock).await == Seen::Free).await;
    }
}

#[tokio::test]
async fn a_container_that_is_made_anew_begins_no_sequence_of_tenures_anew() {
    let world = Zoo::start(Layout::Election).await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&world.key("orders"));
    let masters = &world.masters;
    let root = world.prefix();
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    masters.0.mkdir(root.trim_end_matches('/'), &persistent).await.unwrap();
    let mut before: Option<Presented> = None;
    for _ in 0..3 {
        masters.create(lock.key().as_str(), "", CreateMode::Container).await;
        let prefix = format!("{}/n_", lock.key());
        let (node, revision) =
            masters.create(&prefix, "shard-1", CreateMode::EphemeralSequential).await;
        assert!(node.ends_with("0000000000"), "{node}");
        let held = Presented { owner: "shard-1".to_owned(), revision };
        assert_eq!(ask(&lock, &held).await, "admit");
        if let Some(before) = before.replace(held.clone()) {
            assert!(before.revision < held.revision);
            assert_eq!(ask(&lock, &before).await, "replayed-tenure");
        }
        masters.0.delete(&node, None).await.unwrap();
        until("the server removes the container", async || {
            masters.0.check_stat(lock.key().as_str()).await.unwrap().is_none()
        })
        .await;
        lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
        assert_eq!(ask(&lock, &held).await, "no-owner");
    }
}

#[tokio::test]
async fn a_restored_backup_admits_nobody_whose_number_was_given_out_before() {
    let mut server = Zookeeper::start().await;
    let address = server.address().to_string();
    let lock = spec(Layout::Mutex);
    let masters = Masters::connect(&address).await;
    masters.take(Layout::Mutex, &lock.key, "shard-1").await;
    server.kill();
    let backup = server.save_data();
    server.restart().await;

    let spawned = store(std::slice::from_ref(&address));
    let options = SourceOptions { period: Duration::from_millis(50), ..SourceOptions::default() };
    let source =
        fencepost_locks::LockSource::spawn_records("test", options, move || spawned).unwrap();
    let tracked = source.track(lock.clone()).unwrap();
    let masters = Masters::connect(&address).await;
    let mut lost = masters.take(Layout::Mutex, &lock.key, "shard-1").await;
    for _ in 0..50 {
        lost = masters.take(Layout::Mutex, &lock.key, "shard-1").await;
    }
    assert_eq!(ask(&tracked, &lost).await, "admit");

    server.kill();
    server.replace_data(&backup);
    server.restart().await;
    let masters = Masters::connect(&address).await;
    let again = masters.take(Layout::Mutex, &lock.key, "shard-2").await;
    assert!(again.revision < lost.revision);
    until("it is noticed", async || source.status(Instant::now()).distrusted_through.is_some())
        .await;
    assert_eq!(ask(&tracked, &again).await, "store-regressed");
    assert_eq!(ask(&tracked, &lost).await, "store-regressed");
    assert!(source.accept_regression().await.unwrap());
    assert_eq!(ask(&tracked, &again).await, "admit");
    source.stop();
}

#[tokio::test]
async fn children_that_two_rules_order_differently_admit_nobody() {
    let world = Zoo::start(Layout::Election).await;
    let store = world.store();
    let masters = &world.masters;
    let format = Arc::new(world.format());
    let lock = LockSpec { key: world.key("orders"), format: Arc::clone(&format) };
    masters.take(Layout::Election, &lock.key, "shard-1").await;
    let early = format!("{}/made-by-hand-0000000000", lock.key);
    let (children, _) = masters.0.get_children(lock.key.as_str()).await.unwrap();
    assert!(children[0].ends_with("0000000000"), "{children:?}");
    masters.create(&early, "shard-2", CreateMode::Ephemeral).await;
    assert_unreadable(&store, &lock, "one sequence number twice").await;

    let wrapped = LockSpec { key: world.key("wrapped"), format };
    let created = masters.take(Layout::Election, &wrapped.key, "shard-1").await;
    let second = masters.take(Layout::Election, &wrapped.key, "shard-1").await;
    assert!(created.revision < second.revision);
    let early = format!("{}/made-by-hand-0000000000", wrapped.key);
    masters.create(&early, "shard-2", CreateMode::Ephemeral).await;
    assert_unreadable(&store, &wrapped, "another order").await;
}

#[tokio::test]
async fn two_contenders_of_one_transaction_hold_nothing() {
    let world = Zoo::start(Layout::Election).await;
    let store = world.store();
    let lock = LockSpec { key: world.key("orders"), format: Arc::new(world.format()) };
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    world.masters.0.mkdir(lock.key.as_str(), &persistent).await.unwrap();
    let mut transaction = world.masters.0.new_multi_writer();
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for owner in ["shard-1", "shard-2"] {
        let prefix = format!("{}/n_", lock.key);
        transaction.add_create(&prefix, owner.as_bytes(), &ephemeral).unwrap();
    }
    transaction.commit().await.unwrap();
    assert_unreadable(&store, &lock, "one transaction").await;
}

#[tokio::test]
async fn a_lock_that_may_not_be_read_admits_nobody_and_others_are_read() {
    let server = Zookeeper::start().await;
    let address = server.address().to_string();
    let connector = Client::connector().with_auth("digest", b"fencepost:a secret");
    let creator = Masters(connector.connect(&address).await.unwrap());
    let lock = spec(Layout::Key);
    let open = LockSpec { key: LockKey::new("/locks/open").unwrap(), ..lock.clone() };
    let held = creator.take(Layout::Key, &open.key, "shard-1").await;
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::creator_all());
    creator.0.create(lock.key.as_str(), b"shard-1", &ephemeral).await.unwrap();
    // Not even the barrier's check is permitted then, and it is a barrier all the same.
    creator.0.set_acl("/", &Acls::creator_all(), None).await.unwrap();

    let stranger = store(std::slice::from_ref(&address));
    assert_unreadable(&stranger, &lock, "may not be read").await;
    assert_eq!(revision(&answered(&stranger, &open).await), Some(held.revision));

    let scratch = Scratch::new();
    let password_file = scratch.path().join("password");
    std::fs::write(&password_file, "a secret\n").unwrap();
    let user = Some(ZookeeperUser { name: "fencepost".to_owned(), password_file });
    let options = ZookeeperOptions { servers: vec![address], session_timeout: SESSION_MIN, user };
    let store = ZookeeperStore::new(options);
    assert!(revision(&answered(&store, &lock).await).is_some());
}

#[tokio::test]
async fn a_key_that_is_no_path_is_told() {
    let world = Zoo::start(Layout::Mutex).await;
    let store = world.store();
    for key in ["locks/orders", "/locks//orders", "/locks/../orders"] {
        let lock = LockSpec {
            key: LockKey::new(key).unwrap(),
            format: Arc::new(RecordFormat::plain(Layout::Mutex)),
        };
        assert_unreadable(&store, &lock, "no path").await;
    }
}

async fn assert_unreadable(store: &ZookeeperStore, lock: &LockSpec, problem: &str) {
    let answers = eventually("the store answers", async || store.read(&[lock]).await.ok()).await;
    assert_eq!(answers[0].sighting.seen, Seen::Unreadable);
    let told = answers[0].problem.as_deref().unwrap_or_default();
    assert!(told.contains(problem) && told.contains(lock.key.as_str()), "{told}");
}

/// Two owners in one node have one number. So nothing tells what the first sent before from what it
/// sends when its name is written there again.
#[tokio::test]
async fn another_owner_in_the_same_node_is_not_believed() {
    let zoo = Zoo::start(Layout::Key).await;
    let key = zoo.key("orders");
    let first = zoo.take(&key, "shard-1").await;
    let reader = Reader::of(&zoo).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &first).await, "admit");
    let second = Presented { owner: "shard-2".to_owned(), ..first.clone() };
    for held in [&second, &first] {
        let data = held.owner.as_bytes();
        zoo.masters.0.set_data(key.as_str(), data, None).await.unwrap();
        lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
        assert_eq!(ask(&lock, held).await, "store-regressed");
    }
}
