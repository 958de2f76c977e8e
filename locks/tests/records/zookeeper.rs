//! A real ZooKeeper, with masters that make the nodes that kazoo and Curator make.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_locks::{RecordFormat, ZookeeperOptions, ZookeeperStore};
use fencepost_policy::{Layout, LockKey, Revision};
use fencepost_tests::{Relay, Zookeeper};
use tokio::sync::OnceCell;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::world::{Presented, World};

/// Longer than a test waits for anything.
const SESSION: Duration = Duration::from_secs(10);

/// One server for all tests that break nothing but their own connection to it.
static SERVER: OnceCell<Zookeeper> = OnceCell::const_new();

/// Tells worlds, and the nodes in them, apart.
static NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Zoo {
    layout: Layout,
    root: String,
    /// Before what fencepost reads, and only that.
    relay: Relay,
    pub(crate) masters: Masters,
}

impl Zoo {
    pub(crate) async fn start(layout: Layout) -> Zoo {
        let server = SERVER.get_or_init(Zookeeper::start).await.address();
        let root = format!("/world-{}", number());
        let relay = Relay::start(server).await;
        Zoo { layout, root, relay, masters: Masters::connect(&server.to_string()).await }
    }

    pub(crate) async fn in_suite(layout: Layout) -> Option<Zoo> {
        Some(Zoo::start(layout).await)
    }

    /// The server, as kazoo is told it.
    pub(crate) fn server() -> String {
        SERVER.get().expect("a world has been started").address().to_string()
    }
}

impl World for Zoo {
    type Store = ZookeeperStore;

    fn store(&self) -> ZookeeperStore {
        store(&[self.relay.address().to_string()])
    }

    fn format(&self) -> RecordFormat {
        RecordFormat::plain(self.layout)
    }

    fn key(&self, name: &str) -> LockKey {
        LockKey::new(&format!("{}/{name}", self.root)).unwrap()
    }

    fn prefix(&self) -> String {
        format!("{}/", self.root)
    }

    async fn take(&self, lock: &LockKey, owner: &str) -> Presented {
        self.masters.take(self.layout, lock, owner).await
    }

    async fn renew(&self, lock: &LockKey, held: &Presented) -> Presented {
        let node = match self.layout {
            Layout::Key => lock.as_str().to_owned(),
            Layout::Election | Layout::Mutex => {
                let (children, _) = self.masters.0.get_children(lock.as_str()).await.unwrap();
                format!("{lock}/{}", children[0])
            }
        };
        self.masters.0.set_data(&node, held.owner.as_bytes(), None).await.unwrap();
        held.clone()
    }

    async fn release(&self, lock: &LockKey, _: &Presented) {
        self.masters.clear(self.layout, lock, None).await;
    }

    async fn spoil(&self, lock: &LockKey) -> bool {
        match self.layout {
            Layout::Key => {
                self.masters.clear(self.layout, lock, None).await;
                self.masters.create(lock.as_str(), "shard-9", CreateMode::Persistent).await;
            }
            Layout::Election | Layout::Mutex => {
                let reader = format!("{lock}/_c_0a1b2c3d-0000-4000-8000-000000000000-__READ__");
                self.masters.create(&reader, "", CreateMode::EphemeralSequential).await;
            }
        }
        true
    }

    async fn stand_still(&self) {
        self.relay.freeze().await;
    }

    async fn go_on(&self) {
        self.relay.restore().await;
    }
}

pub(crate) fn store(servers: &[String]) -> ZookeeperStore {
    let servers = servers.to_vec();
    ZookeeperStore::new(ZookeeperOptions { servers, session_timeout: SESSION, user: None })
}

/// Those who hold locks: all of them in one session.
pub(crate) struct Masters(pub(crate) Client);

impl Masters {
    pub(crate) async fn connect(server: &str) -> Masters {
        let connector = Client::connector().with_session_timeout(SESSION);
        Masters(connector.connect(server).await.unwrap())
    }

    /// Takes a lock, also from another holder, which is ahead of this one in the queue until then.
    pub(crate) async fn take(&self, layout: Layout, lock: &LockKey, owner: &str) -> Presented {
        let key = lock.as_str();
        let parent = match layout {
            Layout::Key => key.rsplit_once('/').unwrap().0,
            Layout::Election | Layout::Mutex => key,
        };
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        self.0.mkdir(parent, &persistent).await.unwrap();
        let prefix = match layout {
            Layout::Key => {
                self.clear(layout, lock, None).await;
                let (node, revision) = self.create(key, owner, CreateMode::Ephemeral).await;
                assert_eq!(node, key);
                return Presented { owner: owner.to_owned(), revision };
            }
            Layout::Election => format!("{key}/{:032x}__lock__", number()),
            Layout::Mutex => format!("{key}/_c_0a1b2c3d-0000-4000-8000-{:012x}-lock-", number()),
        };
        let (node, revision) = self.create(&prefix, owner, CreateMode::EphemeralSequential).await;
        self.clear(layout, lock, Some(&node)).await;
        let owner = if layout == Layout::Mutex { node } else { owner.to_owned() };
        Presented { owner, revision }
    }

    /// Creates a node: its name and its czxid.
    pub(crate) async fn create(
        &self,
        path: &str,
        data: &str,
        mode: CreateMode,
    ) -> (String, Revision) {
        let options = mode.with_acls(Acls::anyone_all());
        let (stat, sequence) = self.0.create(path, data.as_bytes(), &options).await.unwrap();
        let is_sequential = mode == CreateMode::EphemeralSequential;
        let node = if is_sequential { format!("{path}{sequence}") } else { path.to_owned() };
        (node, Revision::new(u64::try_from(stat.czxid).unwrap()).unwrap())
    }

    /// Deletes the nodes of a lock, but for one.
    async fn clear(&self, layout: Layout, lock: &LockKey, but: Option<&str>) {
        let nodes = match layout {
            Layout::Key => vec![lock.as_str().to_owned()],
            Layout::Election | Layout::Mutex => {
                let (children, _) = self.0.get_children(lock.as_str()).await.unwrap();
                children.into_iter().map(|child| format!("{lock}/{child}")).collect()
            }
        };
        for node in nodes.iter().filter(|node| Some(node.as_str()) != but) {
            match self.0.delete(node, None).await {
                Ok(()) | Err(Error::NoNode) => {}
                Err(error) => panic!("{node}: {error}"),
            }
        }
    }
}

fn number() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}
