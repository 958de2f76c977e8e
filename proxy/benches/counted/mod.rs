//! Instructions per request of a fencepost that is run under callgrind.
//!
//! Callgrind counts what the one thread does that serves requests; the lock store has a thread of
//! its own. Each case runs twice, with so many requests and with twice as many: their difference is
//! free of what comes before the first request and after the last.

use std::path::Path;
use std::process::Command;

use etcd_client::Client;
use fencepost_benches::instructions_of;
use fencepost_tests::{
    Connection, Etcd, EtcdVersion, FreePort, PATIENCE, Process, Scratch, Worker, eventually,
    request,
};

/// How many requests the shorter of two runs has.
const REQUESTS: u64 = 1_000;
/// How often each is run.
const RUNS: usize = 2;
const LOCK: &str = "/shards/2/lock";

/// What is sent over and over on one connection.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    body_bytes: usize,
    /// Whether its token is of the present holder.
    is_held: bool,
}

/// What is counted. Names are those of the workloads of `fencepost-loadtest compare`.
pub(crate) const CASES: [Case; 4] = [
    Case { name: "get", body_bytes: 0, is_held: true },
    Case { name: "post1k", body_bytes: 1024, is_held: true },
    Case { name: "stale", body_bytes: 0, is_held: false },
    Case { name: "stale-post1k", body_bytes: 1024, is_held: false },
];

/// The lock store, in which `shard-1` holds the lock, and the worker.
pub(crate) struct Scene {
    etcd: Etcd,
    worker: Worker,
    held: i64,
    ended: i64,
}

impl Scene {
    pub(crate) async fn open() -> Scene {
        let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
        let mut store =
            Client::connect([etcd.endpoint()], None).await.expect("etcd takes the connection");
        let mut revisions = Vec::new();
        for owner in ["shard-2", "shard-1"] {
            let written = store.put(LOCK, owner, None).await.expect("etcd takes the record");
            revisions.push(written.header().expect("an answer of etcd has a header").revision());
        }
        let [ended, held] = revisions[..] else { unreachable!("there are two owners") };
        Scene { etcd, worker, held, ended }
    }

    /// Instructions per request, without those of the C library.
    pub(crate) async fn cost(&self, binary: &Path, case: Case) -> f64 {
        let once = self.least(binary, case, REQUESTS).await;
        let twice = self.least(binary, case, 2 * REQUESTS).await;
        (twice - once) as f64 / REQUESTS as f64
    }

    /// What so many requests take at least: now and then the thread has something else to do as
    /// well.
    async fn least(&self, binary: &Path, case: Case, requests: u64) -> u64 {
        let mut least = u64::MAX;
        for _ in 0..RUNS {
            least = least.min(self.count(binary, case, requests).await);
        }
        least
    }

    /// The instructions of the thread that serves so many requests, of the first as of the last.
    async fn count(&self, binary: &Path, case: Case, requests: u64) -> u64 {
        let (listen, admin, scratch) = (FreePort::reserve(), FreePort::reserve(), Scratch::new());
        let config = scratch.path().join("fencepost.toml");
        std::fs::write(&config, self.config(&listen, &admin)).expect("a file can be written");
        let mut command = Command::new("valgrind");
        command.args([
            "--tool=callgrind",
            "--separate-threads=yes",
            "--compress-strings=no",
            "--compress-pos=no",
        ]);
        command.arg(format!("--callgrind-out-file={}", scratch.path().join("callgrind").display()));
        command.arg(binary).args(["serve", "-c"]).arg(&config).env("FENCEPOST_LOG", "error");
        let mut process = Process::start(&command, &scratch.path().join("log"));
        eventually("fencepost is ready", async || {
            let ended = process.ended();
            assert!(ended.is_none(), "fencepost ended with {ended:?}: {}", process.log());
            let ready = request(admin.address(), "GET", "/readyz", &[], b"").await.ok()?;
            (ready.status == 200).then_some(())
        })
        .await;
        self.send(&listen, case, requests).await;
        process.terminate();
        let status = process.end_of_itself().await;
        assert!(status.success(), "fencepost ended with {status}: {}", process.log());
        let object = binary.canonicalize().expect("the program is there");
        instructions_of(object.to_str().expect("its path is text"), &busiest_thread(scratch.path()))
    }

    fn config(&self, listen: &FreePort, admin: &FreePort) -> String {
        let (listen, admin) = (listen.address(), admin.address());
        let (etcd, worker) = (self.etcd.endpoint(), self.worker.endpoint());
        format!(
            "threads = 1\n[limits]\ndrain_delay = \"0s\"\n[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"{listen}\"\n\
             [source.main]\nkind = \"etcd\"\nendpoints = [\"{etcd}\"]\n\
             [[route]]\nname = \"r\"\npath = \"/\"\nupstream = \"{worker}\"\n\
             lock = {{ source = \"main\", key = \"{LOCK}\" }}\n"
        )
    }

    async fn send(&self, proxy: &FreePort, case: Case, requests: u64) {
        let (owner, revision, expected) =
            if case.is_held { ("shard-1", self.held, 200) } else { ("shard-2", self.ended, 412) };
        let fields =
            format!("Host: worker\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\r\n");
        let message = match case.body_bytes {
            0 => format!("GET / HTTP/1.1\r\n{fields}\r\n"),
            length => format!(
                "POST / HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n{}",
                "x".repeat(length)
            ),
        };
        let mut connection =
            Connection::open(proxy.address()).await.expect("fencepost takes the connection");
        for _ in 0..requests {
            connection.send(&message).await.expect("fencepost takes the request");
            let answer = connection
                .final_response()
                .await
                .unwrap_or_else(|error| panic!("no answer within {PATIENCE:?}: {error}"));
            assert_eq!(answer.status, expected, "{}", answer.text());
        }
    }
}

/// What callgrind wrote of the thread with the most to do, which is the one that serves.
fn busiest_thread(directory: &Path) -> String {
    let files = std::fs::read_dir(directory).expect("a scratch directory can be listed").flatten();
    let threads = files.filter(|file| file.file_name().to_string_lossy().starts_with("callgrind-"));
    let totals = threads.map(|file| {
        let counts = std::fs::read_to_string(file.path()).expect("callgrind writes text");
        let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
        let total = total
            .and_then(|total| total.trim().parse::<u64>().ok())
            .expect("callgrind writes a total");
        (total, counts)
    });
    totals.max().expect("callgrind has written what it counted").1
}
