//! The play that each recipe is the master of.

use std::process::Command;

use fencepost_tests::{Endpoint, Etcd, EtcdVersion, Relay, Worker, eventually, until};

use super::master::Master;
use crate::fencepost::{Config, Fencepost, Route};

/// A recipe, as `recipes/README.md` has it.
pub(super) struct Recipe {
    name: String,
    /// The lock, as its masters receive it.
    told: String,
    /// What stands in the route's `lock = { source = "main", … }`.
    lock: String,
    /// Whether its masters end with their jobs, or with the lock.
    masters_end: bool,
    /// Whether a master is one process: what takes the lock also writes.
    one_process: bool,
    /// Whether a master may find, as it wakes up, that it is to end at once.
    goes_by_the_clock: bool,
}

/// Where it is played.
pub(super) struct Place {
    pub(super) etcd: Etcd,
    pub(super) worker: Worker,
    pub(super) fence: Fencepost,
}

impl Recipe {
    pub(super) fn new(name: &str, told: &str) -> Recipe {
        let section = super::section(name);
        let lock =
            section.lines().find_map(|line| line.strip_prefix("lock = { source = \"main\", "));
        let lock = lock.and_then(|line| line.strip_suffix(" }"));
        let lock = lock.unwrap_or_else(|| panic!("{name} says which lock to configure")).to_owned();
        Recipe {
            name: name.to_owned(),
            told: told.to_owned(),
            lock,
            masters_end: true,
            one_process: false,
            goes_by_the_clock: false,
        }
    }

    /// Its masters go on after all that, to contend for the lock again.
    pub(super) fn that_goes_on(mut self) -> Recipe {
        self.masters_end = false;
        self
    }

    /// Its masters take the lock and write in one process.
    pub(super) fn of_one_process(mut self) -> Recipe {
        self.one_process = true;
        self
    }

    /// Its masters end when their time has come, without a word.
    pub(super) fn that_goes_by_the_clock(mut self) -> Recipe {
        self.goes_by_the_clock = true;
        self
    }

    pub(super) fn lock(&self) -> &str {
        &self.lock
    }

    fn key(&self) -> &str {
        self.lock.split('"').nth(1).unwrap()
    }

    /// Plays it with masters that are started by this command, which is told where etcd is.
    pub(super) async fn play(&self, command: impl Fn(&str) -> Command) {
        let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
        let route = Route::new("worker", "/", &self.lock);
        let config = Config::of(&etcd, &worker, &[route]);
        let fence = Fencepost::serve(&config).await;
        self.play_at(Place { etcd, worker, fence }, |etcd, _| command(etcd)).await;
    }

    /// Plays it there; the command is told where etcd and fencepost are.
    pub(super) async fn play_at(&self, place: Place, command: impl Fn(&str, &str) -> Command) {
        let Place { etcd, worker, fence } = place;
        let Endpoint::Tcp(listener) = fence.listener else { panic!("{:?}", fence.listener) };
        let network = Relay::start(listener).await;
        let start = |owner: &str, address: &str| {
            let command = command(&etcd.endpoint(), address);
            Master::start(command, &etcd, &self.told, owner, address)
        };
        let mut first = start("shard-1", &network.address().to_string());
        first.give("one");
        first.until_done("one").await;
        let mut second = start("shard-2", &listener.to_string());
        second.give("two");

        // A write is under way, its master is paused, its lease ends.
        network.freeze().await;
        let before = network.accepted();
        first.give("late");
        until("the late write is under way", async || network.accepted() > before).await;
        first.pause().await;
        etcd.etcdctl(&["lease", "revoke", &self.lease_of_holder(&etcd).await]).await;
        second.until_done("two").await;
        network.restore().await;
        // It may have been paused before it had sent all. Who runs a command, on the other hand,
        // ends it as soon as it wakes up: before that, the command hears what became of its write.
        if self.one_process {
            first.resume();
        }
        let reason = first.until_refused("late").await;
        if !self.one_process {
            first.resume();
        }
        let refused = eventually("the refusal is on record", async || {
            let mut decisions =
                fence.admin_json("/decisions?verdict=reject").await["decisions"].take();
            decisions.as_array_mut()?.pop()
        })
        .await;
        assert_eq!(refused["status"], 412, "{}: {refused}", self.name);
        let told = refused["reason"].as_str().unwrap();
        assert!(matches!(told, "stale-tenure" | "not-owner"), "{}: {told}", self.name);
        assert!(
            reason.map_or(self.goes_by_the_clock, |reason| reason == told),
            "{}: {}",
            self.name,
            first.log()
        );
        if self.masters_end {
            // There may be more jobs: their end alone is a success. Node's blocked in reading the
            // FIFO, and lived on.
            assert!(!first.status().await.success(), "{}: {}", self.name, first.log());
            second.no_more();
            assert!(second.status().await.success(), "{}: {}", self.name, second.log());
            assert_eq!(
                etcd.etcdctl(&["get", "--prefix", self.key()]).await,
                "",
                "{}: it gave the lock back",
                self.name
            );
        }
        let seen = worker.seen();
        assert_eq!(
            seen.iter().map(|seen| seen.text()).collect::<Vec<_>>(),
            ["one", "two"],
            "{}",
            self.name
        );
        let revision =
            |index: usize| seen[index].header("fence-revision").unwrap().parse::<u64>().unwrap();
        assert!(revision(0) < revision(1), "{}", self.name);
        assert_ne!(seen[0].header("fence-owner"), seen[1].header("fence-owner"), "{}", self.name);
    }

    /// The lease under which the lock is held, in hexadecimal.
    async fn lease_of_holder(&self, etcd: &Etcd) -> String {
        let oldest =
            ["get", "--prefix", self.key(), "--sort-by=CREATE", "--limit=1", "--write-out=fields"];
        let record = etcd.etcdctl(&oldest).await;
        let lease = record.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).unwrap();
        format!("{:x}", lease.parse::<i64>().unwrap())
    }
}
