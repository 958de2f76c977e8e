//! The proxy before the worker.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use fencepost_tests::{Authority, Issued, Process, Scratch, Subject, Worker, eventually, request};

use crate::holder::BINARY;
use crate::stage::{LOCK, Stage};

/// What a route has that takes everything, under the lock of these tests.
const ROUTE: &str = "path = \"/\"\nlock = { source = \"main\", key = \"/shards/2/lock\" }\n";

/// A running `fencepost serve`. It is killed with this value.
pub(crate) struct Proxy {
    pub(crate) listener: SocketAddr,
    _process: Process,
    _scratch: Vec<Scratch>,
}

impl Proxy {
    /// Starts one for the lock of these tests and waits until it is ready.
    pub(crate) async fn serve(stage: &Stage, worker: &Worker) -> Proxy {
        Proxy::serve_lock(stage, worker, LOCK).await
    }

    /// Starts one whose only route watches, and enforces nothing.
    pub(crate) async fn serve_watching(stage: &Stage, worker: &Worker) -> Proxy {
        Proxy::serve_file(stage, worker, "", &format!("{ROUTE}mode = \"shadow\"")).await
    }

    /// Starts one whose only route reads the owner from a field of a JSON object.
    pub(crate) async fn serve_json(stage: &Stage, worker: &Worker) -> Proxy {
        let route = "path = \"/\"\nlock = { source = \"main\", key = \"/shards/2/lock\", owner_field = \"holder\" }";
        Proxy::serve_file(stage, worker, "", route).await
    }

    /// Starts one whose only route has header names of its own, and its lock named in one of them.
    pub(crate) async fn serve_renamed(stage: &Stage, worker: &Worker) -> Proxy {
        let route = "path = \"/\"\nlock = { source = \"main\", key = \"/shards/{shard}/lock\", from_header = true }\n\
            owner_header = \"X-Owner\"\nrevision_header = \"X-Revision\"\nlock_header = \"X-Lock\"";
        Proxy::serve_file(stage, worker, "", route).await
    }

    pub(crate) async fn serve_lock(stage: &Stage, worker: &Worker, lock: &str) -> Proxy {
        let scratch = Scratch::new();
        let mut command = Command::new(BINARY);
        command
            .args("serve --listen 127.0.0.1:0 --admin 127.0.0.1:0".split(' '))
            .args(["--lock", lock]);
        command.arg("--upstream").arg(worker.endpoint().to_string());
        command.arg("--etcd").arg(stage.etcd.endpoint());
        command.env("NO_COLOR", "1").env_remove("FENCEPOST_LOG");
        Proxy::start(&command, scratch).await
    }

    /// Starts one with TLS that shows this certificate, knows who its clients are, and lets each
    /// speak for itself alone.
    pub(crate) async fn serve_secure(
        stage: &Stage,
        worker: &Worker,
        files: &ProxyFiles,
        server: &Issued,
    ) -> Proxy {
        let scratch = Scratch::new();
        let (certificate, key) = server.write(scratch.path(), "server");
        let ca = files.ca();
        let tls =
            format!("tls = {{ certificate = {certificate:?}, key = {key:?}, client_ca = {ca:?} }}");
        let route = format!("{ROUTE}identity = {{ common_name = \"{{owner}}\" }}");
        let mut proxy = Proxy::serve_file(stage, worker, &tls, &route).await;
        proxy._scratch.push(scratch);
        proxy
    }

    /// Starts one from a file, with more lines for its listener and its route.
    async fn serve_file(stage: &Stage, worker: &Worker, listener: &str, route: &str) -> Proxy {
        let scratch = Scratch::new();
        let (upstream, etcd) = (worker.endpoint().to_string(), stage.etcd.endpoint());
        let config = format!(
            "admin = {{ listen = \"127.0.0.1:0\" }}\n\
            [[listener]]\naddress = \"127.0.0.1:0\"\n{listener}\n\
            [source.main]\nkind = \"etcd\"\nendpoints = [{etcd:?}]\n\
            [[route]]\nname = \"shards\"\nupstream = {upstream:?}\n{route}\n"
        );
        let file = scratch.path().join("fencepost.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(BINARY);
        command.args(["serve", "-c"]).arg(&file).env("NO_COLOR", "1").env_remove("FENCEPOST_LOG");
        Proxy::start(&command, scratch).await
    }

    async fn start(command: &Command, scratch: Scratch) -> Proxy {
        let process = Process::start(command, &scratch.path().join("log"));
        let (listener, admin) = eventually("fencepost listens", async || {
            let log = process.log();
            Some((
                address(&log, " listening address=")?,
                address(&log, "admin listening address=")?,
            ))
        })
        .await;
        eventually("fencepost is ready", async || {
            let headers = [("host", "localhost")];
            let answer = request(admin, "GET", "/readyz", &headers, b"").await.ok()?;
            (answer.status == 200).then_some(())
        })
        .await;
        Proxy { listener, _process: process, _scratch: vec![scratch] }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener)
    }

    pub(crate) fn secure_url(&self) -> String {
        format!("https://{}", self.listener)
    }
}

/// An authority, and what it has issued, as files.
pub(crate) struct ProxyFiles {
    pub(crate) authority: Authority,
    scratch: Scratch,
}

impl ProxyFiles {
    pub(crate) fn new() -> ProxyFiles {
        let (authority, scratch) = (Authority::new("the proxies'"), Scratch::new());
        std::fs::write(scratch.path().join("ca.pem"), authority.certificate()).unwrap();
        ProxyFiles { authority, scratch }
    }

    pub(crate) fn path(&self) -> &Path {
        self.scratch.path()
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.path().join("ca.pem")
    }

    /// Writes the certificate of a master as `master.pem` and `master.key`.
    pub(crate) fn issue_master(&self, owner: &str) {
        let subject = Subject { common_name: Some(owner), ..Subject::default() };
        self.authority.issue(&subject).write(self.path(), "master");
    }

    /// `--proxy-ca` alone.
    pub(crate) fn trust(&self) -> Vec<String> {
        vec!["--proxy-ca".to_owned(), self.ca().display().to_string()]
    }

    /// All of what `hold` needs to be told.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let file = |name: &str| self.path().join(name).display().to_string();
        let identity = [
            "--proxy-cert".to_owned(),
            file("master.pem"),
            "--proxy-key".to_owned(),
            file("master.key"),
        ];
        self.trust().into_iter().chain(identity).collect()
    }
}

/// The address that stands in a log's line behind this.
fn address(log: &str, before: &str) -> Option<SocketAddr> {
    let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let mut named = lines.filter(|line| line.contains("admin") == before.contains("admin"));
    let line = named.find(|line| line.contains(before.trim_start()))?;
    line.split("address=").nth(1)?.split_whitespace().next()?.trim_matches('"').parse().ok()
}
