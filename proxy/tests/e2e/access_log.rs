//! The access log, where nobody takes its lines, or not all of them.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use fencepost_tests::{
    Behaviour, Connection, Endpoint, Etcd, EtcdVersion, FreePort, Scratch, Worker, eventually,
    request, until,
};
use futures_util::future::join_all;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::fencepost::{Config, Fencepost, Route};
use crate::observed::lines_of;
use crate::scene::{Ask, Ledger, Scene, assert_has, send};
use crate::store::Store;

const LOST: &str = r#"fencepost_log_lines_lost_total{log="access_log"}"#;

fn guarded() -> Route {
    Route::k()
}

fn logging_to(path: &str) -> String {
    format!("[access_log]\npath = {path:?}")
}

/// A FIFO, and its reader, which reads nothing unless it is told to.
fn fifo(scratch: &Scratch) -> (PathBuf, File) {
    let path = scratch.path().join("fifo");
    make_fifo(&path);
    // Whoever may write too waits for no writer.
    let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    (path, reader)
}

pub(crate) fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Sends requests that are refused until lines of the access log are lost: neither its pipe nor its
/// queue has room for more.
async fn until_lines_are_lost(fence: &Fencepost) {
    while fence.metric(LOST).await == 0.0 {
        join_all((0..8).map(|_| refused(fence.listener.clone(), 100))).await;
    }
}

/// Sends that many requests without a token, all at once.
async fn refused(listener: Endpoint, count: usize) {
    let request = format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "x".repeat(1_000));
    let mut connection = Connection::open(listener).await.unwrap();
    connection.send(request.repeat(count)).await.unwrap();
    for _ in 0..count {
        assert_eq!(connection.response().await.unwrap().status, 428);
    }
}

#[tokio::test]
async fn a_process_with_an_unread_access_log_ends_cleanly() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let (scratch, state_dir) = (Scratch::new(), Scratch::new());
    let config = Config::of(&etcd, &worker, &[guarded()])
        .remembering_in(&state_dir.path().join("state"))
        .limit(r#"drain_delay = "0s""#)
        .section(&logging_to("stdout"));
    let (output, _reader) = fifo(&scratch);
    let mut fence = Fencepost::serve_writing_to(&config, &output).await;
    let held = Store::of(&etcd).await.hold("/k", "shard-1").await;
    let ledger = Ledger::default();
    assert_eq!(send(&fence.listener, &ledger, Ask::post("/").under(&held)).await.status, 200);
    until_lines_are_lost(&fence).await;

    let status = fence.terminate().await;
    assert!(status.success(), "{status}: {}", fence.log());
    fence.has_logged("state_dir: nothing is left at the worker");
    let next = Fencepost::serve(&config).await;
    next.has_logged("no earlier process has left anything at the worker");
    ledger.check(&worker);
}

#[tokio::test]
async fn a_request_has_a_line_though_its_client_has_left() {
    let scratch = Scratch::new();
    let file = scratch.path().join("access.log");
    let section = logging_to(file.to_str().unwrap());
    let mut scene =
        Scene::with(EtcdVersion::V3_5, &[guarded()], |config| config.section(&section)).await;
    let held = scene.store.hold("/k", "shard-1").await;
    let latch = scene.worker.holds("/held");
    let mut line = scene.line().await;
    line.begin(Ask::post("/held").under(&held)).await.unwrap();
    scene.worker.wait_for(1).await;
    drop(line);
    let left = eventually("the line is written", async || lines_of(&file).pop()).await;
    let expected = json!({
        "target": "/held", "status": null, "sent_bytes": 0, "complete": false, "route": "k", "lock": "/k",
        "verdict": "admit", "failure": null, "owner": "shard-1", "revision": held.revision
    });
    assert_has(&left, expected);
    latch.open();
    scene.admits("/after", &held).await;
    scene.fence.terminate().await;
    let targets: Vec<_> = lines_of(&file).iter().map(|line| line["target"].clone()).collect();
    assert_eq!(targets, ["/held", "/after"], "each has one line");
}

#[tokio::test]
async fn a_line_says_why_a_request_failed_and_whose_it_was() {
    let (etcd, nobody, scratch) =
        (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), Scratch::new());
    let file = scratch.path().join("access.log");
    let routes = [
        Route::new("k", "/k/", r#"key = "/k""#),
        Route::new("named", "/named/{name}/", r#"key = "/{name}""#),
        Route::new("watched", "/watched/", r#"key = "/k""#).with(r#"mode = "shadow""#),
    ];
    let config = Config::new(&[etcd.endpoint()], &format!("http://{}", nobody.address()), &routes);
    let fence = Fencepost::serve(&config.section(&logging_to(file.to_str().unwrap()))).await;
    let held = Store::of(&etcd).await.hold("/k", "shard-1").await;
    until("the lock is known", async || fence.admin_json("/locks//k").await["owner"] == "shard-1")
        .await;
    let known = json!(["/k", "shard-1", held.revision]);
    let unknown = json!([null, null, null]);
    let earlier = json!(["/k", "shard-1", held.revision - 1]);
    let mut missing = known.clone();
    missing[2] = Value::Null;
    let asked = [
        ("/k/x", Some(held.revision), 502, ["none", "none", "worker-unreachable"], &known),
        ("/named/k/x", Some(held.revision), 502, ["none", "none", "worker-unreachable"], &known),
        ("/watched/x", Some(held.revision), 502, ["admit", "none", "worker-unreachable"], &known),
        (
            "/watched/x",
            Some(held.revision - 1),
            502,
            ["reject", "replayed-tenure", "worker-unreachable"],
            &earlier,
        ),
        ("/k/x", None, 428, ["reject", "token-missing", "null"], &missing),
        ("/nowhere", Some(held.revision), 404, ["none", "none", "no-route"], &unknown),
    ];
    for (number, (path, revision, status, expected, who)) in asked.into_iter().enumerate() {
        let presented = revision.map(|revision| ("Fence-Revision", revision.to_string()));
        let mut headers = vec![("Fence-Owner", "shard-1")];
        headers.extend(presented.iter().map(|(name, value)| (*name, value.as_str())));
        let answer = request(fence.listener.clone(), "POST", path, &headers, b"").await.unwrap();
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        let line =
            eventually("the line is written", async || lines_of(&file).get(number).cloned()).await;
        let said =
            ["verdict", "reason", "failure"].map(|field| line[field].as_str().unwrap_or("null"));
        assert_eq!(said, expected, "{line}");
        assert_eq!(json!([line["lock"], line["owner"], line["revision"]]), *who, "{line}");
    }
}

#[tokio::test]
async fn a_tunnel_has_its_line_when_it_ends() {
    let scratch = Scratch::new();
    let file = scratch.path().join("access.log");
    let section = logging_to(file.to_str().unwrap());
    let mut scene =
        Scene::with(EtcdVersion::V3_5, &[guarded()], |config| config.section(&section)).await;
    scene.worker.on("/tunnel", Behaviour::UpgradeAndEcho);
    let holder = scene.store.hold("/k", "shard-1").await;
    let head = format!(
        "GET /tunnel HTTP/1.1\r\nHost: a\r\nFence-Owner: shard-1\r\nFence-Revision: {}\r\n\
         Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        holder.revision
    );
    let open = async |said: &str| {
        let mut tunnel = Connection::open(scene.fence.listener.clone()).await.unwrap();
        tunnel.send(&head).await.unwrap();
        assert_eq!(tunnel.head().await.unwrap().status, 101);
        tunnel.send(said).await.unwrap();
        assert_eq!(tunnel.receive(said.len()).await.unwrap(), said.as_bytes());
        tunnel
    };
    let line = async |number| {
        eventually("the line is written", async || lines_of(&file).get(number).cloned()).await
    };
    let said = |line: &Value| {
        let fields = ["target", "status", "sent_bytes", "complete", "verdict"];
        Value::from(fields.map(|field| line[field].clone()).to_vec())
    };
    let (mut ends, mut is_cut, left) =
        (open("hello").await, open("good day").await, open("bye").await);
    assert_eq!(lines_of(&file), [] as [Value; 0], "all are open");
    ends.finish_sending().await.unwrap();
    assert_eq!(ends.rest().await.unwrap(), b"");
    assert_eq!(said(&line(0).await), json!(["/tunnel", 101, 5, true, "admit"]));
    scene.store.hold("/k", "shard-2").await;
    let _ = is_cut.rest().await;
    let cut = [said(&line(1).await), said(&line(2).await)];
    for sent in [3, 8] {
        assert!(cut.contains(&json!(["/tunnel", 101, sent, false, "admit"])), "{cut:?}");
    }
    drop(left);
    scene.fence.terminate().await;
    assert_eq!(lines_of(&file).len(), 3, "each has one line");
}

#[tokio::test]
async fn unwritable_lines_are_counted_through_reloads() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let config = Config::of(&etcd, &worker, &[guarded()]);
    let config = config.section(&logging_to("/dev/full"));
    let fence = Fencepost::serve(&config).await;
    refused(fence.listener.clone(), 3).await;
    fence.until_metric(LOST, 3.0).await;
    fence.until_log("lines could not be written to the access log").await;
    fence.has_logged("No space left on device");
    fence.reloads(&config.clone().limit("drain_delay = \"0s\"")).await;
    refused(fence.listener.clone(), 2).await;
    fence.until_metric(LOST, 5.0).await;
}
