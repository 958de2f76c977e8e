//! Locks in ZooKeeper that a real client library takes.

use std::path::Path;
use std::process::Stdio;

use fencepost_locks::{RecordFormat, ZookeeperStore};
use fencepost_policy::{Layout, LockKey};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use crate::world::{Presented, Reader, World, ask};
use crate::zookeeper::Zoo;

/// kazoo's locks, over the store of a [`Zoo`].
pub(crate) struct Kazoo {
    zoo: Zoo,
    layout: Layout,
    python: Mutex<Python>,
}

struct Python {
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// Ends with this value.
    _process: Child,
}

impl Kazoo {
    pub(crate) async fn start(layout: Layout) -> Kazoo {
        let zoo = Zoo::start(layout).await;
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut process = Command::new(workspace.join("target/tools/venv/bin/python"))
            .arg(workspace.join("locks/tests/records/kazoo_masters.py"))
            .arg(Zoo::server())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("bin/install-tools test installs Python");
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        Kazoo { zoo, layout, python: Mutex::new(Python { orders, answers, _process: process }) }
    }

    pub(crate) async fn in_suite(layout: Layout) -> Option<Kazoo> {
        Some(Kazoo::start(layout).await)
    }

    async fn order(&self, order: String) -> String {
        let mut python = self.python.lock().await;
        python.orders.write_all(order.as_bytes()).await.unwrap();
        let answer = python.answers.next_line().await.unwrap();
        answer.expect("kazoo answers each order")
    }
}

impl World for Kazoo {
    type Store = ZookeeperStore;

    fn store(&self) -> ZookeeperStore {
        self.zoo.store()
    }

    fn format(&self) -> RecordFormat {
        self.zoo.format()
    }

    fn key(&self, name: &str) -> LockKey {
        self.zoo.key(name)
    }

    fn prefix(&self) -> String {
        self.zoo.prefix()
    }

    async fn take(&self, lock: &LockKey, owner: &str) -> Presented {
        let answer = self.order(format!("take {lock} {owner}\n")).await;
        let (node, revision) = answer.split_once(' ').expect("a node and its czxid");
        let owner = if self.layout == Layout::Mutex { node } else { owner };
        Presented { owner: owner.to_owned(), revision: revision.parse().unwrap() }
    }

    async fn renew(&self, _: &LockKey, held: &Presented) -> Presented {
        held.clone() // A session renews itself, not its nodes.
    }

    async fn release(&self, lock: &LockKey, _: &Presented) {
        self.order(format!("release {lock}\n")).await;
    }

    async fn spoil(&self, lock: &LockKey) -> bool {
        self.zoo.spoil(lock).await;
        true
    }

    async fn stand_still(&self) {
        self.zoo.stand_still().await;
    }

    async fn go_on(&self) {
        self.zoo.go_on().await;
    }
}

#[tokio::test]
async fn a_hundred_takeovers_of_kazoo_refuse_no_holder() {
    for layout in [Layout::Election, Layout::Mutex] {
        let world = Kazoo::start(layout).await;
        let reader = Reader::of(&world).await;
        let lock = reader.lock(&world.key("orders"));
        let mut before: Option<Presented> = None;
        for number in 0..100 {
            let held = world.take(lock.key(), &format!("shard-{}", number % 3)).await;
            assert_eq!(ask(&lock, &held).await, "admit", "takeover {number}: {held:?}");
            if let Some(before) = before.replace(held) {
                assert_ne!(ask(&lock, &before).await, "admit", "takeover {number}: {before:?}");
            }
        }
    }
}
