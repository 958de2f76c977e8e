//! What the gate costs: instructions per request of a fencepost as it is, and of one whose gate is reduced to its ratchet.
//!
//! `bin/gate-cost` builds both and runs this. Callgrind counts what the one thread does that serves requests; the lock store
//! has a thread of its own. Each case runs twice, with so many requests and with twice as many: their difference is free of
//! what comes before the first request and after the last.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use etcd_client::Client;
use fencepost_testsupport::{
    Connection, Etcd, EtcdVersion, FreePort, PATIENCE, Process, Scratch, Worker, eventually, request,
};

/// How many requests the shorter of two runs has.
const REQUESTS: u64 = 2_000;
const LOCK: &str = "/shards/2/lock";

/// What is sent over and over on one connection.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    body_bytes: usize,
    /// Whether its token is of the present holder.
    is_held: bool,
}

const CASES: [Case; 3] = [
    Case { name: "GET, admitted", body_bytes: 0, is_held: true },
    Case { name: "POST 1 KiB, admitted", body_bytes: 1024, is_held: true },
    Case { name: "POST 1 KiB, refused", body_bytes: 1024, is_held: false },
];

/// The lock store, in which `shard-1` holds the lock, and the worker.
struct Scene {
    etcd: Etcd,
    worker: Worker,
    held: i64,
    ended: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // Cargo adds arguments of its own.
    let binaries: Vec<PathBuf> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).map(Into::into).collect();
    let [whole, ratchet] = &binaries[..] else {
        eprintln!("usage: gate_cost WHOLE RATCHET: two binaries of fencepost; bin/gate-cost makes them");
        return ExitCode::from(64);
    };
    let scene = Scene::open().await;
    println!("{:<22} {:>12} {:>12} {:>8}", "instructions/request", "whole gate", "ratchet", "ratio");
    for case in CASES {
        let (whole, ratchet) = (scene.cost(whole, case).await, scene.cost(ratchet, case).await);
        println!("{:<22} {whole:>12.0} {ratchet:>12.0} {:>8.4}", case.name, whole / ratchet);
    }
    ExitCode::SUCCESS
}

impl Scene {
    async fn open() -> Scene {
        let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
        let mut store = Client::connect([etcd.endpoint()], None).await.expect("etcd takes the connection");
        let mut revisions = Vec::new();
        for owner in ["shard-2", "shard-1"] {
            let written = store.put(LOCK, owner, None).await.expect("etcd takes the record");
            revisions.push(written.header().expect("an answer of etcd has a header").revision());
        }
        let [ended, held] = revisions[..] else { unreachable!("there are two owners") };
        Scene { etcd, worker, held, ended }
    }

    /// Instructions per request.
    async fn cost(&self, binary: &Path, case: Case) -> f64 {
        let once = self.count(binary, case, REQUESTS).await;
        let twice = self.count(binary, case, 2 * REQUESTS).await;
        (twice - once) as f64 / REQUESTS as f64
    }

    /// All instructions of the thread that serves so many requests, of the first as of the last.
    async fn count(&self, binary: &Path, case: Case, requests: u64) -> u64 {
        let (listen, admin, scratch) = (FreePort::reserve(), FreePort::reserve(), Scratch::new());
        let config = scratch.path().join("fencepost.toml");
        std::fs::write(&config, self.config(&listen, &admin)).expect("a file can be written");
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--separate-threads=yes"]);
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
        busiest_thread(scratch.path())
    }

    fn config(&self, listen: &FreePort, admin: &FreePort) -> String {
        let (listen, admin) = (listen.address(), admin.address());
        let (etcd, worker) = (self.etcd.endpoint(), self.worker.endpoint());
        format!(
            "threads = 1\n[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"{listen}\"\n\
             [source.main]\nkind = \"etcd\"\nendpoints = [\"{etcd}\"]\n\
             [[route]]\nname = \"r\"\npath = \"/\"\nupstream = \"{worker}\"\n\
             lock = {{ source = \"main\", key = \"{LOCK}\" }}\n"
        )
    }

    async fn send(&self, proxy: &FreePort, case: Case, requests: u64) {
        let (owner, revision, expected) =
            if case.is_held { ("shard-1", self.held, 200) } else { ("shard-2", self.ended, 412) };
        let fields = format!("Host: worker\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\r\n");
        let message = match case.body_bytes {
            0 => format!("GET / HTTP/1.1\r\n{fields}\r\n"),
            length => format!("POST / HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n{}", "x".repeat(length)),
        };
        let mut connection = Connection::open(proxy.address()).await.expect("fencepost takes the connection");
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

/// What callgrind counted for the thread with the most to do, which is the one that serves.
fn busiest_thread(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).expect("a scratch directory can be listed").flatten();
    let threads = files.filter(|file| file.file_name().to_string_lossy().starts_with("callgrind-"));
    let totals = threads.map(|file| {
        let counts = std::fs::read_to_string(file.path()).expect("callgrind writes text");
        let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
        total.and_then(|total| total.trim().parse::<u64>().ok()).expect("callgrind writes a total")
    });
    totals.max().expect("callgrind has written what it counted")
}
