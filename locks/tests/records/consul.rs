//! Consul: locks as its clients take them, and what only it can be put through.

use std::collections::BTreeMap;
use std::sync::Mutex;

use fencepost_locks::{ConsulStore, HttpStoreOptions, OwnerIn, RecordFormat};
use fencepost_policy::{Layout, LockKey, Revision};
use fencepost_tests::{Consul, PATIENCE, Process, eventually};
use tokio::time::Instant;

use crate::world::{Presented, Reader, World, ask};

/// Locks whose value names the owner in JSON.
pub(crate) struct ConsulWorld {
    consul: Consul,
    /// Who holds each lock.
    sessions: Mutex<BTreeMap<LockKey, String>>,
    owner_in: OwnerIn,
}

impl ConsulWorld {
    pub(crate) async fn start() -> Option<ConsulWorld> {
        let consul = Consul::start().await?;
        Some(ConsulWorld { consul, sessions: Mutex::default(), owner_in: OwnerIn::Value })
    }

    fn session(&self, lock: &LockKey) -> Option<String> {
        self.sessions.lock().unwrap().get(lock).cloned()
    }

    /// What the newest write to the key has given its holder.
    async fn newest(&self, lock: &LockKey, owner: &str) -> Presented {
        let (index, session) = self.consul.key(lock.as_str()).await.unwrap();
        let owner = match session {
            Some(session) if self.owner_in == OwnerIn::Session => session,
            _ => owner.to_owned(),
        };
        Presented { owner, revision: Revision::new(index).unwrap() }
    }
}

impl World for ConsulWorld {
    type Store = ConsulStore;

    fn store(&self) -> ConsulStore {
        let address = self.consul.address();
        ConsulStore::new(HttpStoreOptions {
            address: (address.ip().to_string(), address.port()),
            tls: None,
            token_file: None,
        })
    }

    fn format(&self) -> RecordFormat {
        RecordFormat {
            owner_field: (self.owner_in == OwnerIn::Value).then(|| "owner".to_owned()),
            owner_in: self.owner_in,
            ..RecordFormat::plain(Layout::Key)
        }
    }

    async fn take(&self, lock: &LockKey, owner: &str) -> Presented {
        if let Some(before) = self.session(lock) {
            self.consul.ask("PUT", &format!("/v1/session/destroy/{before}"), b"").await.unwrap();
        }
        let session = self.consul.session().await;
        let value = format!(r#"{{"owner":"{owner}"}}"#);
        assert!(self.consul.acquire(lock.as_str(), &session, value.as_bytes()).await);
        self.sessions.lock().unwrap().insert(lock.clone(), session);
        self.newest(lock, owner).await
    }

    async fn renew(&self, lock: &LockKey, held: &Presented) -> Presented {
        let session = self.session(lock).unwrap();
        self.consul.ask("PUT", &format!("/v1/session/renew/{session}"), b"").await.unwrap();
        held.clone()
    }

    async fn release(&self, lock: &LockKey, _: &Presented) {
        let session = self.session(lock).unwrap();
        let path = format!("/v1/kv/{lock}?release={session}");
        self.consul.ask("PUT", &path, b"").await.unwrap();
    }

    async fn spoil(&self, lock: &LockKey) -> bool {
        let session = self.session(lock).unwrap();
        self.consul.acquire(lock.as_str(), &session, b"no json").await
    }

    async fn stand_still(&self) {
        self.consul.process().pause().await;
    }

    async fn go_on(&self) {
        self.consul.process().resume();
    }
}

async fn by_session() -> Option<ConsulWorld> {
    Some(ConsulWorld { owner_in: OwnerIn::Session, ..ConsulWorld::start().await? })
}

#[tokio::test]
async fn a_write_over_a_held_key_ends_no_session_but_needs_a_new_number() {
    let Some(world) = by_session().await else { return };
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &held).await, "admit");
    // Anybody may do that: it sets LockIndex to 0, while the session goes on.
    world.consul.ask("PUT", &format!("/v1/kv/{key}"), b"x").await.unwrap();
    let newer = world.newest(&key, "").await;
    assert_eq!(newer.owner, held.owner);
    assert_eq!(ask(&lock, &newer).await, "admit");
    assert_eq!(ask(&lock, &held).await, "replayed-tenure");
}

#[tokio::test]
async fn one_session_that_takes_the_lock_again_is_another_tenure() {
    let Some(world) = by_session().await else { return };
    let key = world.key("orders");
    let first = world.take(&key, "shard-1").await;
    let session = world.session(&key).unwrap();
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &first).await, "admit");
    world.release(&key, &first).await;
    let other = world.consul.session().await;
    assert!(world.consul.acquire(key.as_str(), &other, b"").await);
    world.consul.ask("PUT", &format!("/v1/kv/{key}?release={other}"), b"").await.unwrap();
    assert!(world.consul.acquire(key.as_str(), &session, b"").await);
    let again = world.newest(&key, "").await;
    assert_eq!(again.owner, first.owner);
    assert_eq!(ask(&lock, &again).await, "admit");
    assert_eq!(ask(&lock, &first).await, "replayed-tenure");
}

#[tokio::test]
async fn a_restored_consul_admits_nobody_below_what_was_seen() {
    let Some(world) = by_session().await else { return };
    let key = world.key("orders");
    world.take(&key, "shard-1").await;
    let run = |arguments: &[&str]| {
        let output = world.consul.command().args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(&["snapshot", "save", "saved"]);
    let lost = world.take(&key, "shard-2").await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &lost).await, "admit");
    run(&["snapshot", "restore", "saved"]);
    eventually("the restored key is there", async || {
        let (index, _) = world.consul.key(key.as_str()).await?;
        (index < lost.revision.get()).then_some(())
    })
    .await;
    lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
    let restored = world.newest(&key, "").await;
    assert_eq!(ask(&lock, &restored).await, "store-regressed");
    assert_eq!(ask(&lock, &lost).await, "store-regressed");
    assert!(reader.source.accept_regression().await.unwrap());
    assert_eq!(ask(&lock, &restored).await, "admit");
}

/// `consul lock` hands its child nothing but that it holds the lock: the child reads its number.
#[tokio::test]
async fn the_child_of_consul_lock_is_admitted_until_it_ends() {
    let Some(world) = by_session().await else { return };
    let mut command = world.consul.command();
    command.args(["lock", "locks/jobs", "sleep", "1000"]);
    let log = fencepost_tests::Scratch::new();
    let child = Process::start(&command, &log.path().join("log"));
    let key = LockKey::new("locks/jobs/.lock").unwrap();
    let held = eventually("it holds the lock", async || {
        let (index, session) = world.consul.key(key.as_str()).await?;
        Some(Presented { owner: session?, revision: Revision::new(index)? })
    })
    .await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &held).await, "admit");
    child.terminate();
    eventually("it is given back", async || {
        lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
        (ask(&lock, &held).await == "no-owner").then_some(())
    })
    .await;
}
