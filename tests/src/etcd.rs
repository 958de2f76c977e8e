//! One etcd member.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::etcd_security::EtcdSecurity;
use crate::etcd_version::EtcdVersion;
use crate::http::request;
use crate::patience::{PATIENCE, eventually};
use crate::port::FreePort;
use crate::process::Process;
use crate::scratch::Scratch;

/// How a member is started. The default is etcd's own.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// Time between a leader's heartbeats (etcd: 100 ms).
    pub heartbeat: Option<Duration>,
    /// Silence of the leader after which another member stands for election (etcd: 1 s; at least
    /// five heartbeats).
    pub election: Option<Duration>,
    /// TLS and users; `None`: cleartext, for everybody.
    pub security: Option<Arc<EtcdSecurity>>,
    /// Further arguments, as on the command line.
    pub arguments: Vec<String>,
}

/// A running etcd member on loopback, its data in a [`Scratch`] directory; alone, or part of a
/// [`crate::Cluster`].
#[derive(Debug)]
pub struct Etcd {
    version: EtcdVersion,
    options: EtcdOptions,
    seat: Seat,
    /// Where it tells strangers how it is, if only clients with a certificate get in elsewhere.
    open: Option<FreePort>,
    /// All members, as `name=peer url,…`.
    initial_cluster: String,
    scratch: Scratch,
    process: Option<Process>,
}

/// What a member is called and where it listens, for all its restarts.
#[derive(Debug)]
pub(crate) struct Seat {
    name: String,
    client: FreePort,
    peer: FreePort,
}

/// Why a member is not up.
#[derive(Debug)]
pub(crate) enum NotReady {
    /// Someone else was faster on one of its ports.
    AddressInUse,
}

impl Etcd {
    /// Starts a cluster of one and waits until it answers.
    pub async fn start(version: EtcdVersion) -> Etcd {
        Etcd::start_with(version, &EtcdOptions::default()).await
    }

    /// As [`Etcd::start`], with options.
    pub async fn start_with(version: EtcdVersion, options: &EtcdOptions) -> Etcd {
        loop {
            let seat = Seat::reserve("m0");
            let initial_cluster = seat.as_initial_member();
            let mut member = Etcd::prepare(version, options, seat, initial_cluster);
            member.launch();
            // The ports are reserved among tests only: a stranger may have taken one meanwhile.
            match member.until_ready().await {
                Ok(()) => return member,
                Err(NotReady::AddressInUse) => {}
            }
        }
    }

    /// Adds a member to its cluster that does not vote: a learner, which refuses most of what it is
    /// asked. Returns once that tells how it is.
    pub async fn add_learner(&self) -> Etcd {
        let seat = Seat::reserve("learner");
        let initial_cluster = format!("{},{}", self.initial_cluster, seat.as_initial_member());
        self.etcdctl(&["member", "add", "learner", "--learner", "--peer-urls", &seat.peer_url()])
            .await;
        let mut options = self.options.clone();
        options.arguments.extend(["--initial-cluster-state", "existing"].map(str::to_owned));
        let mut learner = Etcd::prepare(self.version, &options, seat, initial_cluster);
        learner.launch();
        eventually("the learner tells how it is", async || {
            let mut status = learner.etcdctl_command();
            status.args(["endpoint", "status", "--write-out", "fields", "--command-timeout", "1s"]);
            let output = status.output().await.expect("etcdctl can be started");
            String::from_utf8_lossy(&output.stdout).contains("\"IsLearner\" : true").then_some(())
        })
        .await;
        learner
    }

    /// A member that does not run yet.
    pub(crate) fn prepare(
        version: EtcdVersion,
        options: &EtcdOptions,
        seat: Seat,
        initial_cluster: String,
    ) -> Etcd {
        let open = options.security.as_ref().map(|_| FreePort::reserve());
        Etcd {
            version,
            options: options.clone(),
            seat,
            open,
            initial_cluster,
            scratch: Scratch::new(),
            process: None,
        }
    }

    /// Its version.
    pub fn version(&self) -> EtcdVersion {
        self.version
    }

    /// Where clients find it: `http://127.0.0.1:…`, or `https://127.0.0.1:…` with
    /// [`EtcdOptions::security`].
    pub fn endpoint(&self) -> String {
        let scheme = if self.options.security.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.seat.client.address())
    }

    /// Has it, and all other members, ask for logins from now on. There is one user, `root`, with
    /// the password `root`.
    pub async fn enable_users(&self) {
        for command in
            ["user add root:root", "role add root", "user grant-role root root", "auth enable"]
        {
            self.etcdctl(&command.split(' ').collect::<Vec<_>>()).await;
        }
        self.options.security.as_ref().expect("users come with TLS").users_enabled();
    }

    /// What it has printed since its first start.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Stops it in its tracks (SIGSTOP): connections stay open and take bytes, nothing answers.
    pub async fn pause(&self) {
        self.running().pause().await;
    }

    /// Lets it go on after [`Etcd::pause`].
    pub fn resume(&self) {
        self.running().resume();
    }

    /// Ends it (SIGKILL). Its data stay.
    pub fn kill(&mut self) {
        self.process.take().expect("the member runs").kill();
    }

    /// Starts it again on its data and ports, after [`Etcd::kill`], and waits until it answers:
    /// with most members of its cluster away it can't.
    pub async fn restart(&mut self) {
        self.launch();
        self.wait_until_ready().await;
    }

    /// As [`Etcd::restart`], without waiting.
    pub fn launch(&mut self) {
        assert!(self.process.is_none(), "the member runs already");
        self.process = Some(Process::start(&self.command(), &self.log_path()));
    }

    /// Returns once it answers a quorum read.
    pub async fn wait_until_ready(&mut self) {
        let ready = self.until_ready().await;
        assert!(
            ready.is_ok(),
            "the ports of {} were taken while it was away: {}",
            self.seat.name,
            self.log()
        );
    }

    /// Runs `etcdctl` against this member and returns what it prints, without the last line's end.
    /// These calls count in [`Etcd::requests_total`].
    pub async fn etcdctl(&self, arguments: &[&str]) -> String {
        let mut command = self.etcdctl_command();
        command.args(arguments);
        run(command).await
    }

    /// `etcdctl` for this member, to be given its arguments and started: for `lock`, `elect` and
    /// others that stay. It is killed with the handle of the running program.
    pub fn etcdctl_command(&self) -> tokio::process::Command {
        let mut command = self.bare_etcdctl();
        command.arg("--endpoints").arg(self.endpoint());
        command
    }

    /// Saves a snapshot of the store and returns its file, which goes with this member.
    pub async fn save_snapshot(&self) -> PathBuf {
        let number = self.files().filter(|name| name.starts_with("snapshot-")).count();
        let file = self.scratch.path().join(format!("snapshot-{number}.db"));
        let mut command = self.etcdctl_command();
        command.args(["snapshot", "save"]).arg(&file);
        run(command).await;
        file
    }

    /// Takes the store back to a snapshot, on the same ports and with the same ids: what an
    /// operator's restore from a backup looks like from outside. For a member of a larger cluster
    /// use [`crate::Cluster::restore_snapshot`].
    pub async fn restore_snapshot(&mut self, snapshot: &Path) {
        self.kill();
        self.replace_data(snapshot).await;
        self.restart().await;
    }

    /// Replaces the data by a snapshot and starts again, as one that its operator has given another
    /// cluster token: the id of the cluster is made of that.
    pub async fn restore_snapshot_as_another_cluster(&mut self, snapshot: &Path) {
        self.kill();
        self.restore_data(snapshot, &["--initial-cluster-token", "another"]).await;
        self.restart().await;
    }

    /// Puts a snapshot in place of the data of a member that does not run.
    pub(crate) async fn replace_data(&self, snapshot: &Path) {
        self.restore_data(snapshot, &[]).await;
    }

    async fn restore_data(&self, snapshot: &Path, more: &[&str]) {
        std::fs::remove_dir_all(self.data()).expect("the data of a stopped member can be removed");
        let mut command = self.bare_etcdctl();
        command.args(["snapshot", "restore"]).arg(snapshot).arg("--data-dir").arg(self.data());
        command.args(["--name", &self.seat.name, "--initial-cluster", &self.initial_cluster]);
        command.args(["--initial-advertise-peer-urls", &self.seat.peer_url()]).args(more);
        run(command).await;
    }

    /// How many calls of each method clients have begun, by etcd's own count, since this member's
    /// last start.
    pub async fn requests_total(&self) -> Requests {
        let metrics = request(self.status_address(), "GET", "/metrics", &[], b"").await;
        let metrics = metrics.expect("etcd answers with its metrics");
        Requests::parse(&metrics.text())
    }

    pub(crate) async fn until_ready(&mut self) -> Result<(), NotReady> {
        let status_address = self.status_address();
        let process = self.process.as_mut().expect("the member was launched");
        eventually("etcd answers", async || {
            if let Some(status) = process.ended() {
                let log = process.log();
                assert!(log.contains("address already in use"), "etcd ended with {status}: {log}");
                return Some(Err(NotReady::AddressInUse));
            }
            // A refused connection, like an answer of another kind, is an answer to try again.
            let health = request(status_address, "GET", "/health", &[], b"").await.ok()?;
            health.text().contains(r#""health":"true""#).then_some(Ok(()))
        })
        .await
    }

    /// Where it tells how it is.
    fn status_address(&self) -> SocketAddr {
        self.open.as_ref().unwrap_or(&self.seat.client).address()
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("the member runs")
    }

    fn command(&self) -> Command {
        let Seat { name, .. } = &self.seat;
        let (client, peer) = (self.endpoint(), self.seat.peer_url());
        let mut command = Command::new(self.version.binary());
        command.arg("--data-dir").arg(self.data());
        command.args(["--name", name, "--initial-cluster", &self.initial_cluster]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--logger", "zap", "--log-outputs", "stderr"]);
        if self.version == EtcdVersion::V3_5 {
            // 3.4 has no such flag.
            command.arg("--unsafe-no-fsync");
        }
        if let Some(heartbeat) = self.options.heartbeat {
            command.arg("--heartbeat-interval").arg(heartbeat.as_millis().to_string());
        }
        if let Some(election) = self.options.election {
            command.arg("--election-timeout").arg(election.as_millis().to_string());
        }
        if let (Some(security), Some(open)) = (&self.options.security, &self.open) {
            command.args(security.server_arguments());
            command.arg("--listen-metrics-urls").arg(format!("http://{}", open.address()));
        }
        command.args(&self.options.arguments);
        command
    }

    fn bare_etcdctl(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.version.etcdctl());
        command.env("ETCDCTL_API", "3").kill_on_drop(true);
        // Its own limits, 5 s and 2 s, are for machines that have time for it.
        let patience = format!("{}s", PATIENCE.as_secs());
        command.args(["--command-timeout", &patience, "--dial-timeout", &patience]);
        command.args(self.options.security.iter().flat_map(|security| security.client_arguments()));
        command
    }

    fn files(&self) -> impl Iterator<Item = String> {
        let entries =
            std::fs::read_dir(self.scratch.path()).expect("a scratch directory can be listed");
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned())
    }

    fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("log")
    }
}

impl Seat {
    pub(crate) fn reserve(name: &str) -> Seat {
        Seat { name: name.to_owned(), client: FreePort::reserve(), peer: FreePort::reserve() }
    }

    pub(crate) fn as_initial_member(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }

    fn peer_url(&self) -> String {
        format!("http://{}", self.peer.address())
    }
}

/// How many calls of each gRPC method a member has seen begin. A watch stream counts once, as
/// `Watch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests(BTreeMap<String, u64>);

impl Requests {
    /// Calls of one method: `Range`, `Txn`, `Put`, `Watch`, `LeaseKeepAlive`…
    pub fn of(&self, method: &str) -> u64 {
        self.0.get(method).copied().unwrap_or(0)
    }

    /// Calls of all methods.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// What has been added since an earlier count of the same run.
    pub fn since(&self, earlier: &Requests) -> Requests {
        Requests(
            self.0
                .iter()
                .map(|(method, count)| (method.clone(), count - earlier.of(method)))
                .collect(),
        )
    }

    fn parse(metrics: &str) -> Requests {
        let mut counts = BTreeMap::new();
        let series =
            metrics.lines().filter_map(|line| line.strip_prefix("grpc_server_started_total{"));
        for (labels, value) in series.filter_map(|line| line.rsplit_once("} ")) {
            let method = labels.split(',').find_map(|label| label.strip_prefix("grpc_method=\""));
            let method = method.expect("each series names its method").trim_end_matches('"');
            // Prometheus writes large counts as `1e+06`.
            let value: f64 = value.parse().expect("a metric's value is a number");
            *counts.entry(method.to_owned()).or_default() += value as u64;
        }
        Requests(counts)
    }
}

/// Runs a command to its end and returns what it printed.
async fn run(mut command: tokio::process::Command) -> String {
    let output = command
        .output()
        .await
        .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}: {printed}{errors}", output.status);
    printed.trim_end_matches('\n').to_owned()
}
