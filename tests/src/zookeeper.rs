//! ZooKeeper servers, alone or as an ensemble.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::patience::eventually;
use crate::port::FreePort;
use crate::process::Process;
use crate::scratch::Scratch;

/// Where Debian's packages put the server. Its manifest names the jars that it needs.
const JARS: [&str; 2] = ["/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"];

/// How long a server may take to answer a four-letter word, before it is asked again.
const WORD_TIMEOUT: Duration = Duration::from_millis(500);

/// The shortest session that a server grants: two of its ticks.
pub const SESSION_MIN: Duration = Duration::from_secs(1);

/// How fast an ensemble is.
#[derive(Clone, Copy)]
struct Pace {
    tick: Duration,
    /// After how many ticks of silence a follower leaves its leader.
    sync_limit: u8,
}

/// On a busy machine, too, nobody leaves a leader that runs.
const PATIENT: Pace = Pace { tick: Duration::from_millis(500), sync_limit: 8 };

/// Another leader is elected within a second.
const HASTY: Pace = Pace { tick: Duration::from_millis(250), sync_limit: 2 };

/// A running ZooKeeper server on loopback, its data in a [`Scratch`] directory; alone, or part of a
/// [`ZookeeperEnsemble`].
#[derive(Debug)]
pub struct Zookeeper {
    client: FreePort,
    scratch: Scratch,
    process: Option<Process>,
}

/// Several servers that agree, each a process of its own to pause and kill.
#[derive(Debug)]
pub struct ZookeeperEnsemble {
    /// The servers.
    pub servers: Vec<Zookeeper>,
}

/// Someone else was faster on one of a server's ports.
struct AddressInUse;

impl Zookeeper {
    /// Starts one alone, and waits until it answers.
    pub async fn start() -> Zookeeper {
        loop {
            let mut server = Zookeeper::prepare(PATIENT, "");
            server.launch();
            if server.until_ready().await.is_ok() {
                return server;
            }
        }
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.client.address()
    }

    /// Stops it in its tracks (SIGSTOP): connections stay open and take bytes, nothing answers.
    pub async fn pause(&self) {
        self.running().pause().await;
    }

    /// Lets it go on after [`Zookeeper::pause`].
    pub fn resume(&self) {
        self.running().resume();
    }

    /// Ends it (SIGKILL). Its data stay.
    pub fn kill(&mut self) {
        self.process.take().expect("the server runs").kill();
    }

    /// Starts it again on its data and ports, after [`Zookeeper::kill`], and waits until it answers.
    pub async fn restart(&mut self) {
        self.launch();
        let ready = self.until_ready().await;
        assert!(ready.is_ok(), "its port was taken while it was away");
    }

    /// Copies the data of a server that does not run. The copy goes with this server.
    pub fn save_data(&self) -> PathBuf {
        let copy = self.scratch.path().join("saved");
        copy_folder(&self.data(), &copy);
        copy
    }

    /// Replaces the data of a server that does not run by an earlier copy.
    pub fn replace_data(&self, copy: &Path) {
        fs::remove_dir_all(self.data()).expect("the data of a stopped server can be removed");
        copy_folder(copy, &self.data());
    }

    /// What part it plays, as `srvr` tells it: `standalone`, `leader` or `follower`; `None` if it
    /// does not serve clients.
    pub async fn mode(&self) -> Option<String> {
        let asked = async {
            let mut connection = TcpStream::connect(self.address()).await.ok()?;
            connection.write_all(b"srvr").await.ok()?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.ok()?;
            answer.lines().find_map(|line| line.strip_prefix("Mode: ").map(str::to_owned))
        };
        timeout(WORD_TIMEOUT, asked).await.ok().flatten()
    }

    /// A server that does not run yet, with these further lines of configuration.
    fn prepare(pace: Pace, servers: &str) -> Zookeeper {
        let (client, scratch) = (FreePort::reserve(), Scratch::new());
        let data = scratch.path().join("data");
        fs::create_dir(&data).expect("the data has a place");
        let configuration = format!(
            "tickTime={}\ninitLimit=60\nsyncLimit={}\ndataDir={}\nclientPort={}\n\
             clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=srvr\n{servers}",
            pace.tick.as_millis(),
            pace.sync_limit,
            data.display(),
            client.number(),
        );
        fs::write(scratch.path().join("zoo.cfg"), configuration).expect("the scratch is writable");
        Zookeeper { client, scratch, process: None }
    }

    fn launch(&mut self) {
        assert!(self.process.is_none(), "the server runs already");
        assert!(Path::new(JARS[0]).exists(), "ZooKeeper is missing: run bin/install-tools test");
        let mut command = Command::new("java");
        command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        // Nothing waits for the disk, files are small, and empty containers go at once.
        command.args(["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64"]);
        command.arg("-Dznode.container.checkIntervalMs=100");
        command.args(["-cp", &JARS.join(":")]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
        command.arg(self.scratch.path().join("zoo.cfg"));
        self.process = Some(Process::start(&command, &self.scratch.path().join("log")));
    }

    async fn until_ready(&mut self) -> Result<(), AddressInUse> {
        eventually("ZooKeeper answers", async || {
            let process = self.process.as_mut().expect("the server was launched");
            if let Some(status) = process.ended() {
                let log = process.log();
                assert!(log.contains("BindException"), "it ended with {status}: {log}");
                return Some(Err(AddressInUse));
            }
            self.mode().await.map(|_| Ok(()))
        })
        .await
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }

    fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }
}

impl ZookeeperEnsemble {
    /// Starts `size` servers and waits until each answers.
    pub async fn start(size: usize) -> ZookeeperEnsemble {
        ZookeeperEnsemble::start_with(size, PATIENT).await
    }

    /// As [`ZookeeperEnsemble::start`], with servers that elect another leader so soon that clients
    /// keep their connections to the former one.
    pub async fn start_hasty(size: usize) -> ZookeeperEnsemble {
        ZookeeperEnsemble::start_with(size, HASTY).await
    }

    async fn start_with(size: usize, pace: Pace) -> ZookeeperEnsemble {
        loop {
            let mut ensemble = ZookeeperEnsemble::prepare(size, pace);
            ensemble.servers.iter_mut().for_each(Zookeeper::launch);
            let mut ready = Ok(());
            for server in &mut ensemble.servers {
                ready = ready.and(server.until_ready().await);
            }
            if ready.is_ok() {
                return ensemble;
            }
        }
    }

    /// The server that leads now.
    pub async fn leader(&self) -> Option<usize> {
        self.find("leader", None).await
    }

    /// A server that follows now.
    pub async fn follower(&self) -> Option<usize> {
        self.find("follower", None).await
    }

    /// The server that leads the others once `paused` does not answer any more.
    pub async fn leader_beside(&self, paused: usize) -> usize {
        eventually("the others have a leader", async || self.find("leader", Some(paused)).await)
            .await
    }

    async fn find(&self, mode: &str, but: Option<usize>) -> Option<usize> {
        for (index, server) in self.servers.iter().enumerate() {
            if Some(index) != but && server.mode().await.as_deref() == Some(mode) {
                return Some(index);
            }
        }
        None
    }

    fn prepare(size: usize, pace: Pace) -> ZookeeperEnsemble {
        let ports: Vec<[FreePort; 2]> =
            (0..size).map(|_| [FreePort::reserve(), FreePort::reserve()]).collect();
        let servers: String = (1..)
            .zip(&ports)
            .map(|(id, [peer, election])| {
                format!("server.{id}=127.0.0.1:{}:{}\n", peer.number(), election.number())
            })
            .collect();
        let servers = (1..=size).map(|id| {
            let server = Zookeeper::prepare(pace, &servers);
            fs::write(server.data().join("myid"), id.to_string()).expect("the data is writable");
            server
        });
        ZookeeperEnsemble { servers: servers.collect() }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("the data can be listed").flatten() {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &copy);
        } else {
            fs::copy(&path, &copy).expect("the data can be copied");
        }
    }
}
