//! etcd, and a place where commands leave their marks.

use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{Client, GetOptions, KeyValue};
use fencepost_tests::{Etcd, EtcdOptions, EtcdVersion, Scratch, eventually};

/// The lock of these tests.
pub(crate) const LOCK: &str = "/shards/2/lock";

/// An etcd with elections so short that it grants leases of one second, and a directory.
pub(crate) struct Stage {
    pub(crate) etcd: Etcd,
    client: Client,
    scratch: Scratch,
}

impl Stage {
    pub(crate) async fn set() -> Stage {
        Stage::set_with(EtcdVersion::V3_5).await
    }

    pub(crate) async fn set_with(version: EtcdVersion) -> Stage {
        let election = Some(Duration::from_millis(200));
        let options = EtcdOptions {
            heartbeat: Some(Duration::from_millis(20)),
            election,
            ..EtcdOptions::default()
        };
        let etcd = Etcd::start_with(version, &options).await;
        let client = Client::connect([etcd.endpoint()], None).await.unwrap();
        Stage { etcd, client, scratch: Scratch::new() }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// A file for commands to write to.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// What the commands have written there so far.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Waits until there are so many lines in a file, and returns them.
    pub(crate) async fn until_lines(&self, name: &str, count: usize) -> Vec<String> {
        eventually(&format!("{count} lines in {name}"), async || {
            let text = self.read(name);
            // The last line may not be whole yet.
            let lines: Vec<String> = text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
                .map(trimmed)
                .collect();
            (lines.len() >= count).then_some(lines)
        })
        .await
    }

    pub(crate) async fn keys(&self) -> Vec<KeyValue> {
        let mut answer =
            self.client().get("/", Some(GetOptions::new().with_prefix())).await.unwrap();
        answer.take_kvs()
    }

    /// Waits until the lock is that owner's; returns its record.
    pub(crate) async fn until_held_by(&self, owner: &str) -> KeyValue {
        eventually(&format!("{owner} holds the lock"), async || {
            let answer = self.client().get(LOCK, None).await.ok()?;
            answer.kvs().first().filter(|record| record.value() == owner.as_bytes()).cloned()
        })
        .await
    }

    pub(crate) async fn leases(&self) -> usize {
        self.client().leases().await.unwrap().leases().len()
    }

    /// Nothing is left: no key, no lease, and none of the processes that carry this stage's mark in
    /// their arguments.
    pub(crate) async fn is_left_clean(&self) {
        assert!(self.keys().await.is_empty(), "keys are left behind");
        assert_eq!(self.leases().await, 0, "leases are left behind");
        assert_eq!(self.processes(), Vec::<String>::new(), "processes are left behind");
    }

    /// Those that run and name this stage's directory in their arguments.
    pub(crate) fn processes(&self) -> Vec<String> {
        let mark = self.scratch.path().to_str().unwrap();
        let arguments =
            |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("cmdline")).ok();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(arguments).filter(|arguments| arguments.contains(mark)).collect()
    }
}

fn trimmed(line: &str) -> String {
    line.trim_end().to_owned()
}
