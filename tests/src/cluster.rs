//! Several etcd members.

use std::path::Path;

use crate::etcd::{Etcd, EtcdOptions, NotReady, Seat};
use crate::etcd_version::EtcdVersion;

/// An etcd cluster on loopback, each member a process of its own to pause, kill and restart.
#[derive(Debug)]
pub struct Cluster {
    /// The members, in the order of [`Cluster::endpoints`].
    pub members: Vec<Etcd>,
}

impl Cluster {
    /// Starts `size` members and waits until each answers.
    pub async fn start(version: EtcdVersion, size: usize) -> Cluster {
        Cluster::start_with(version, size, &EtcdOptions::default()).await
    }

    /// As [`Cluster::start`], with options for each member.
    pub async fn start_with(version: EtcdVersion, size: usize, options: &EtcdOptions) -> Cluster {
        loop {
            let mut cluster = Cluster::prepare(version, size, options);
            cluster.launch();
            // The ports are reserved among tests only: a stranger may have taken one meanwhile.
            match cluster.until_ready().await {
                Ok(()) => return cluster,
                Err(NotReady::AddressInUse) => {}
            }
        }
    }

    /// Where clients find the members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Etcd::endpoint).collect()
    }

    /// The member that leads now; `None` while no leader answers.
    pub async fn leader(&self) -> Option<usize> {
        for (index, member) in self.members.iter().enumerate() {
            let mut status = member.etcdctl_command();
            status.args(["endpoint", "status", "--write-out", "fields", "--command-timeout", "1s"]);
            let output = status.output().await.expect("etcdctl can be started");
            let fields = String::from_utf8_lossy(&output.stdout).into_owned();
            let field = |name: &str| {
                fields.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
            };
            let (own, leader) = (field("\"MemberID\" : "), field("\"Leader\" : "));
            if own.is_some() && own == leader {
                return Some(index);
            }
        }
        None
    }

    /// Takes the whole cluster back to a snapshot, on the same ports and with the same ids.
    pub async fn restore_snapshot(&mut self, snapshot: &Path) {
        for member in &mut self.members {
            member.kill();
        }
        for member in &self.members {
            member.replace_data(snapshot).await;
        }
        self.launch();
        for member in &mut self.members {
            member.wait_until_ready().await;
        }
    }

    fn prepare(version: EtcdVersion, size: usize, options: &EtcdOptions) -> Cluster {
        let seats: Vec<Seat> = (0..size).map(|index| Seat::reserve(&format!("m{index}"))).collect();
        let initial_cluster =
            seats.iter().map(Seat::as_initial_member).collect::<Vec<_>>().join(",");
        let members = seats
            .into_iter()
            .map(|seat| Etcd::prepare(version, options, seat, initial_cluster.clone()));
        Cluster { members: members.collect() }
    }

    /// Starts all before it waits for any: none answers before most of them run.
    fn launch(&mut self) {
        self.members.iter_mut().for_each(Etcd::launch);
    }

    async fn until_ready(&mut self) -> Result<(), NotReady> {
        for member in &mut self.members {
            member.until_ready().await?;
        }
        Ok(())
    }
}
