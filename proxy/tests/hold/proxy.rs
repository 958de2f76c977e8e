//! The proxy before the worker.

use std::net::SocketAddr;
use std::process::Command;

use fencepost_testsupport::{Process, Scratch, Worker, eventually, request};

use crate::holder::BINARY;
use crate::stage::{LOCK, Stage};

/// A running `fencepost serve`. It is killed with this value.
pub(crate) struct Proxy {
    pub(crate) listener: SocketAddr,
    _process: Process,
    _scratch: Scratch,
}

impl Proxy {
    /// Starts one for the lock of these tests and waits until it is ready.
    pub(crate) async fn serve(stage: &Stage, worker: &Worker) -> Proxy {
        Proxy::serve_lock(stage, worker, LOCK).await
    }

    pub(crate) async fn serve_lock(stage: &Stage, worker: &Worker, lock: &str) -> Proxy {
        let scratch = Scratch::new();
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--lock", lock]);
        command.args(["--upstream", &worker.endpoint().to_string(), "--etcd", &stage.etcd.endpoint()]);
        command.env("NO_COLOR", "1").env_remove("FENCEPOST_LOG");
        let process = Process::start(&command, &scratch.path().join("log"));
        let (listener, admin) = eventually("fencepost listens", async || {
            let log = process.log();
            Some((address(&log, " listening address=")?, address(&log, "admin listening address=")?))
        })
        .await;
        eventually("fencepost is ready", async || {
            let headers = [("host", "localhost")];
            let answer = request(admin, "GET", "/readyz", &headers, b"").await.ok()?;
            (answer.status == 200).then_some(())
        })
        .await;
        Proxy { listener, _process: process, _scratch: scratch }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener)
    }
}

/// The address that stands in a log's line behind this.
fn address(log: &str, before: &str) -> Option<SocketAddr> {
    let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let mut named = lines.filter(|line| line.contains("admin") == before.contains("admin"));
    let line = named.find(|line| line.contains(before.trim_start()))?;
    line.split("address=").nth(1)?.split_whitespace().next()?.trim_matches('"').parse().ok()
}
