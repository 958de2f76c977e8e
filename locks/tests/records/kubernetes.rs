//! Leases of Kubernetes: as client-go writes them, and what only they can be put through.

use fencepost_locks::{
    HttpStoreOptions, HttpStoreTls, KubernetesStore, OwnerIn, RecordFormat, TrackedLock,
};
use fencepost_policy::{Layout, LockKey, Revision};
use fencepost_tests::{ApiServer, LeaseRead, PATIENCE, Process, eventually, until};
use fencepost_tls::{ClientFiles, ClientTls};
use tokio::time::Instant;

use crate::world::{Presented, Reader, World, ask};

pub(crate) struct KubernetesWorld {
    server: ApiServer,
    user: &'static str,
}

impl KubernetesWorld {
    /// One in which fencepost may read Leases, and nothing else.
    pub(crate) async fn start() -> Option<KubernetesWorld> {
        let server = ApiServer::start().await?;
        server.permit_reader().await;
        Some(KubernetesWorld { server, user: "reader" })
    }
}

fn name(lock: &LockKey) -> &str {
    lock.as_str().strip_prefix("default/").unwrap()
}

fn presented(lease: &LeaseRead) -> Presented {
    let revision = Revision::new(lease.resource_version).unwrap();
    Presented { owner: lease.holder.clone(), revision }
}

impl World for KubernetesWorld {
    type Store = KubernetesStore;

    fn store(&self) -> KubernetesStore {
        let files = ClientFiles { ca: self.server.authority_file(), crl: None, identity: None };
        let client = ClientTls::load(files, &[b"http/1.1"]).unwrap();
        let address = self.server.address();
        KubernetesStore::new(HttpStoreOptions {
            address: (address.ip().to_string(), address.port()),
            tls: Some(HttpStoreTls { client, server_name: None }),
            token_file: Some(self.server.token_file(self.user)),
        })
    }

    fn format(&self) -> RecordFormat {
        RecordFormat { owner_in: OwnerIn::HolderIdentity, ..RecordFormat::plain(Layout::Key) }
    }

    fn key(&self, name: &str) -> LockKey {
        LockKey::new(&format!("default/{name}")).unwrap()
    }

    fn prefix(&self) -> String {
        "default/".to_owned()
    }

    async fn take(&self, lock: &LockKey, owner: &str) -> Presented {
        // A holder that takes its own lock has released it before.
        if self.server.lease(name(lock)).await.is_some_and(|lease| lease.holder == owner) {
            self.server.hold(name(lock), "").await;
        }
        presented(&self.server.hold(name(lock), owner).await)
    }

    async fn renew(&self, lock: &LockKey, held: &Presented) -> Presented {
        presented(&self.server.hold(name(lock), &held.owner).await)
    }

    async fn release(&self, lock: &LockKey, _: &Presented) {
        self.server.hold(name(lock), "").await;
    }

    async fn stand_still(&self) {
        self.server.process().pause().await;
    }

    async fn go_on(&self) {
        self.server.process().resume();
    }
}

async fn leads(elector: &Process) {
    until("it leads", async || elector.log().contains(" leads: ")).await;
}

/// What the holder presents once that is admitted. The first write that is read of a tenure is the
/// lowest that names it: a holder whose number is lower reads its number again, as refusals say.
async fn admitted(world: &KubernetesWorld, lock: &TrackedLock) -> Presented {
    eventually("the holder is admitted", async || {
        let newest = presented(&world.server.lease("orders").await?);
        (ask(lock, &newest).await == "admit").then_some(newest)
    })
    .await
}

/// client-go: a release, a crash, a holder that was stopped for longer than its lease and goes on.
#[tokio::test]
async fn an_elector_of_client_go_is_admitted_while_it_leads() {
    let Some(world) = KubernetesWorld::start().await else { return };
    let Some(first) = world.server.elector("shard-1", "release") else { return };
    leads(&first).await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&world.key("orders"));
    let one = admitted(&world, &lock).await;
    // It has renewed its lease in between, and both numbers name its tenure.
    let renewed = eventually("it renews", async || {
        let lease = world.server.lease("orders").await?;
        (lease.resource_version > one.revision.get()).then_some(lease)
    })
    .await;
    assert_eq!(ask(&lock, &presented(&renewed)).await, "admit");
    assert_eq!(ask(&lock, &one).await, "admit");

    first.pause().await;
    let lapsed = world.server.lease("orders").await.unwrap();
    // No clock of ours ends a tenure: nobody else has taken the Lease.
    assert_eq!(ask(&lock, &presented(&lapsed)).await, "admit");
    let second = world.server.elector("shard-2", "keep").unwrap();
    leads(&second).await;
    let two = admitted(&world, &lock).await;
    assert_eq!(two.owner, "shard-2");
    first.resume();
    assert_eq!(ask(&lock, &presented(&lapsed)).await, "stale-tenure");
    drop(second); // Killed: its lease lapses.
    let third = world.server.elector("shard-3", "release").unwrap();
    leads(&third).await;
    assert_eq!(admitted(&world, &lock).await.owner, "shard-3");
    assert_eq!(ask(&lock, &two).await, "stale-tenure");
}

#[tokio::test]
async fn a_lease_that_was_made_anew_is_another_tenure() {
    let Some(world) = KubernetesWorld::start().await else { return };
    let key = world.key("orders");
    let first = world.take(&key, "shard-1").await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &first).await, "admit");
    world.server.delete_lease("orders").await;
    let again = world.take(&key, "shard-1").await;
    assert_eq!(world.server.lease("orders").await.unwrap().transitions, 0);
    assert_eq!(ask(&lock, &again).await, "admit");
    assert_eq!(ask(&lock, &first).await, "replayed-tenure");
}

/// One identity that was started again is the same tenure to Kubernetes: its number does not tell
/// them apart, and the book says so.
#[tokio::test]
async fn a_holder_that_was_not_followed_goes_on_in_its_tenure() {
    let Some(world) = KubernetesWorld::start().await else { return };
    let key = world.key("orders");
    let first = world.take(&key, "shard-1").await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &first).await, "admit");
    let again = presented(&world.server.hold("orders", "shard-1").await);
    assert!(again.revision > first.revision);
    assert_eq!(ask(&lock, &again).await, "admit");
    assert_eq!(ask(&lock, &first).await, "admit");
}

#[tokio::test]
async fn a_role_that_is_missing_is_named_with_the_lease() {
    let Some(server) = ApiServer::start().await else { return };
    let world = KubernetesWorld { server, user: "reader" };
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &held).await, "unverifiable");
    let problem = lock.describe(Instant::now()).problem.unwrap();
    println!("{problem}");
    assert!(problem.contains("default/orders") && problem.contains("get and list"));
    world.server.permit_reader().await;
    eventually("it may be read", async || {
        lock.confirm(Instant::now(), Instant::now() + PATIENCE).await.unwrap();
        (ask(&lock, &held).await == "admit").then_some(())
    })
    .await;
    let no_lease = reader.lock(&LockKey::new("orders").unwrap());
    assert_eq!(ask(&no_lease, &held).await, "unverifiable");
    let problem = no_lease.describe(Instant::now()).problem.unwrap();
    assert!(problem.contains("write NAMESPACE/NAME"), "{problem}");
}

/// The API server's cache may be old while its etcd stands still: it is never asked.
#[tokio::test]
async fn an_api_server_without_its_etcd_confirms_nothing() {
    let Some(world) = KubernetesWorld::start().await else { return };
    let key = world.key("orders");
    let held = world.take(&key, "shard-1").await;
    let reader = Reader::of(&world).await;
    let lock = reader.lock(&key);
    assert_eq!(ask(&lock, &held).await, "admit");
    world.server.etcd().pause().await;
    let outcome = lock.confirm(Instant::now(), Instant::now() + PATIENCE).await;
    world.server.etcd().resume();
    assert!(outcome.is_err(), "{outcome:?}");
}
