//! The access log, where nobody takes its lines, or not all of them.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use fencepost_tests::{
    Answer, Behaviour, Connection, Endpoint, Etcd, EtcdVersion, FreePort, Latch, Scratch, Worker, eventually, request,
};
use futures_util::future::join_all;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::fencepost::{Config, Fencepost, Route};
use crate::observed::lines_of;
use crate::scene::{Ask, Ledger, Scene, send};
use crate::store::Store;

const LOST: &str = r#"fencepost_log_lines_lost_total{log="access_log"}"#;

const OWNER: (&str, &str) = ("Fence-Owner", "shard-1");
const REVISION: (&str, &str) = ("Fence-Revision", "7");

fn guarded() -> Route {
    Route::new("k", "/", r#"key = "/k""#)
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

/// Sends requests that are refused until lines of the access log are lost: neither its pipe nor its queue has room for more.
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

/// It hung for ever in the middle of its end, and the next process waited for requests that were nowhere.
#[tokio::test]
async fn a_process_ends_cleanly_though_nobody_reads_its_access_log() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let (scratch, state_dir) = (Scratch::new(), Scratch::new());
    let config = Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &[guarded()])
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
    assert!(fence.log().contains("remembered: nothing is left at the worker"), "{}", fence.log());
    let next = Fencepost::serve(&config).await;
    assert!(next.log().contains("no earlier process has left anything at the worker"), "{}", next.log());
    ledger.check(&worker);
}

/// An admitted write that its worker had stood nowhere.
#[tokio::test]
async fn a_request_has_a_line_though_its_client_has_left() {
    let scratch = Scratch::new();
    let file = scratch.path().join("access.log");
    let section = logging_to(file.to_str().unwrap());
    let mut scene = Scene::with(EtcdVersion::V3_5, &[guarded()], |config| config.section(&section)).await;
    let held = scene.store.hold("/k", "shard-1").await;
    let latch = Latch::new();
    scene.worker.on("/held", Behaviour::Hold(latch.clone(), Answer::ok("held")));
    let mut line = scene.line().await;
    line.begin(Ask::post("/held").under(&held)).await.unwrap();
    scene.worker.wait_for(1).await;
    drop(line);
    let left = eventually("the line is written", async || lines_of(&file).pop()).await;
    for (field, value) in [
        ("target", json!("/held")),
        ("status", Value::Null),
        ("sent_bytes", json!(0)),
        ("complete", json!(false)),
        ("route", json!("k")),
        ("lock", json!("/k")),
        ("verdict", json!("admit")),
        ("failure", Value::Null),
        ("owner", json!("shard-1")),
        ("revision", json!(held.revision)),
    ] {
        assert_eq!(left[field], value, "{field} of {left}");
    }
    latch.open();
    scene.admits("/after", &held).await;
    scene.fence.terminate().await;
    let targets: Vec<_> = lines_of(&file).iter().map(|line| line["target"].clone()).collect();
    assert_eq!(targets, ["/held", "/after"], "each has one line");
}

/// Who looked for the requests of one holder did not find those that its worker had not been there for.
#[tokio::test]
async fn a_line_says_why_a_request_failed_and_whose_it_was_and_not_that_it_was_let_in() {
    let (etcd, nobody, scratch) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), Scratch::new());
    let file = scratch.path().join("access.log");
    let routes = [
        Route::new("k", "/k/", r#"key = "/k""#),
        Route::new("named", "/named/{name}/", r#"key = "/{name}""#),
        Route::new("watched", "/watched/", r#"key = "/k""#).with(r#"mode = "shadow""#),
    ];
    let config = Config::new(&[etcd.endpoint()], &format!("http://{}", nobody.address()), &routes);
    let fence = Fencepost::serve(&config.section(&logging_to(file.to_str().unwrap()))).await;
    let held = Store::of(&etcd).await.hold("/k", "shard-1").await;
    eventually("the lock is known", async || (fence.admin_json("/locks//k").await["owner"] == "shard-1").then_some(()))
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
        ("/watched/x", Some(held.revision - 1), 502, ["reject", "replayed-tenure", "worker-unreachable"], &earlier),
        ("/k/x", None, 428, ["reject", "token-missing", "null"], &missing),
        ("/nowhere", Some(held.revision), 404, ["none", "none", "no-route"], &unknown),
    ];
    for (number, (path, revision, status, expected, who)) in asked.into_iter().enumerate() {
        let presented = revision.map(|revision| ("Fence-Revision", revision.to_string()));
        let mut headers = vec![("Fence-Owner", "shard-1")];
        headers.extend(presented.iter().map(|(name, value)| (*name, value.as_str())));
        let answer = request(fence.listener.clone(), "POST", path, &headers, b"").await.unwrap();
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        let line = eventually("the line is written", async || lines_of(&file).get(number).cloned()).await;
        let said = ["verdict", "reason", "failure"].map(|field| line[field].as_str().unwrap_or("null"));
        assert_eq!(said, expected, "{line}");
        assert_eq!(json!([line["lock"], line["owner"], line["revision"]]), *who, "{line}");
    }
}

/// It had a whole one with nothing sent as soon as it was opened, and none when a takeover cut it.
#[tokio::test]
async fn a_tunnel_has_its_line_when_it_ends() {
    let scratch = Scratch::new();
    let file = scratch.path().join("access.log");
    let section = logging_to(file.to_str().unwrap());
    let mut scene = Scene::with(EtcdVersion::V3_5, &[guarded()], |config| config.section(&section)).await;
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
    let line = async |number| eventually("the line is written", async || lines_of(&file).get(number).cloned()).await;
    let said =
        |line: &Value| json!([line["target"], line["status"], line["sent_bytes"], line["complete"], line["verdict"]]);
    let (mut ends, mut is_cut, left) = (open("hello").await, open("good day").await, open("bye").await);
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

/// Who looked for a holder by the words of the log and of its decisions found nothing of it here.
#[tokio::test]
async fn a_line_has_what_was_presented_also_where_that_is_no_token_to_be_judged() {
    let scratch = Scratch::new();
    let file = scratch.path().join("access.log");
    let chosen = Route::new("chosen", "/chosen/", r#"key = "/own/{name}", from_header = true"#);
    let scene = Scene::with(EtcdVersion::V3_5, &[chosen, guarded()], |config| {
        config.section(&logging_to(file.to_str().unwrap()))
    })
    .await;
    let asked = [
        ("/chosen/x", &[OWNER, REVISION][..], "token-missing", json!(["shard-1", 7])),
        ("/chosen/x", &[OWNER, REVISION, ("Fence-Lock", "/k")], "lock-not-allowed", json!(["shard-1", 7])),
        ("/x", &[OWNER, ("Fence-Revision", "07")], "token-malformed", json!(["shard-1", null])),
        ("/x", &[OWNER, ("Fence-Owner", "shard-2"), REVISION], "token-malformed", json!([null, 7])),
        ("/x", &[REVISION], "token-missing", json!([null, 7])),
        ("/.well-known/fence", &[OWNER, ("Fence-Lock", "/k")], "token-missing", json!(["shard-1", null])),
    ];
    for (number, (path, headers, reason, presented)) in asked.into_iter().enumerate() {
        let answer = request(scene.fence.listener.clone(), "POST", path, headers, b"").await.unwrap();
        let decision = answer.header("fence-decision").unwrap();
        let decided = scene.fence.admin_json(&format!("/decisions?id={decision}")).await["decisions"][0].take();
        let line = eventually("the line is written", async || lines_of(&file).get(number).cloned()).await;
        for shown in [&line, &decided] {
            assert_eq!(shown["reason"], reason, "{shown}");
            assert_eq!(json!([shown["owner"], shown["revision"]]), presented, "{path} {headers:?}: {shown}");
        }
    }
    scene.finish().await;
}

/// They said `none`: who looked into the log found fewer admissions than had been counted.
#[tokio::test]
async fn a_line_of_a_request_that_was_only_watched_has_the_verdict_that_was_counted_and_recorded() {
    let (scratch, mode) = (Scratch::new(), r#"mode = "shadow""#);
    let file = scratch.path().join("access.log");
    let scene = Scene::with(EtcdVersion::V3_5, &[guarded().with(mode)], |config| {
        let logging = logging_to(file.to_str().unwrap());
        config.limit(r#"body_bytes_max = "1KiB""#).section("[decisions]\nadmissions_one_in = 1").section(&logging)
    })
    .await;
    let held = scene.store.hold("/k", "shard-1").await;
    scene.until_known("/k", Some("shard-1")).await;
    let token = format!("Host: h\r\nFence-Owner: shard-1\r\nFence-Revision: {}\r\n", held.revision);
    let asked = [
        ("Content-Length: 2000\r\n\r\n", 413, "large-body"),
        ("Transfer-Encoding: chunked\r\n\r\nno length\r\n", 400, "broken-body"),
    ];
    for (number, (framing, status, failure)) in asked.into_iter().enumerate() {
        let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
        connection.send(format!("POST / HTTP/1.1\r\n{token}{framing}")).await.unwrap();
        assert_eq!(connection.response().await.unwrap().status, status);
        let line = eventually("the line is written", async || lines_of(&file).get(number).cloned()).await;
        assert_eq!(["verdict", "failure"].map(|field| line[field].as_str()), [Some("admit"), Some(failure)], "{line}");
    }
    let admitted = r#"fencepost_requests_total{mode="shadow",reason="none",route="k",verdict="admit"}"#;
    assert_eq!(scene.fence.metric(admitted).await, 2.0);
    let admitted = eventually("both are recorded", async || {
        let decisions = scene.fence.admin_json("/decisions?verdict=admit").await["decisions"].take();
        (decisions.as_array()?.len() == 2).then_some(decisions)
    })
    .await;
    assert_eq!(scene.fence.admin_json("/decisions").await["decisions"], admitted, "there is nothing else");
    scene.finish().await;
}

/// They went on into the file that had been renamed.
#[tokio::test]
async fn lines_of_requests_from_before_a_reload_are_in_the_new_file_after_a_rotation() {
    let scratch = Scratch::new();
    let (file, rotated) = (scratch.path().join("access.log"), scratch.path().join("access.log.1"));
    let section = logging_to(file.to_str().unwrap());
    let scene = Scene::with(EtcdVersion::V3_5, &[guarded()], |config| config.section(&section)).await;
    let held = scene.store.hold("/k", "shard-1").await;
    let mut ended_later = Vec::new();
    for path in ["/long", "/longer"] {
        let latch = Latch::new();
        scene.worker.on(path, Behaviour::Hold(latch.clone(), Answer::ok("held")));
        ended_later.push((latch, scene.start_at_worker(Ask::post(path).under(&held)).await));
    }
    scene.fence.reloads(&scene.config.clone().limit("drain_delay = \"0s\"")).await;
    let targets = |file: &Path| lines_of(file).iter().map(|line| line["target"].clone()).collect::<Vec<_>>();
    for ((latch, answer), path) in ended_later.into_iter().zip(["/long", "/longer"]) {
        latch.open();
        assert_eq!(answer.await.unwrap().text(), "held");
        let is_written = async || (file.exists() && targets(&file) == [path]).then_some(());
        eventually(&format!("{path} stands alone in {}", file.display()), is_written).await;
        std::fs::rename(&file, &rotated).unwrap();
        assert_eq!(scene.fence.admin("POST", "/reload").await.status, 200);
    }
    scene.finish().await;
}

#[tokio::test]
async fn lines_that_cannot_be_written_are_lost_and_counted_on_through_reloads() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let config = Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &[guarded()]);
    let config = config.section(&logging_to("/dev/full"));
    let fence = Fencepost::serve(&config).await;
    let until_lost = async |lost: f64| {
        eventually(&format!("{lost} lost"), async || (fence.metric(LOST).await == lost).then_some(())).await;
    };
    refused(fence.listener.clone(), 3).await;
    until_lost(3.0).await;
    let warning = "lines could not be written to the access log";
    fence.until_log(warning).await;
    assert!(fence.log().contains("No space left on device"), "{}", fence.log());
    fence.reloads(&config.clone().limit("drain_delay = \"0s\"")).await;
    refused(fence.listener.clone(), 2).await;
    until_lost(5.0).await;
}

/// It was glued to what there had been room for of the line before, and in no count.
#[tokio::test]
async fn the_first_line_after_a_full_disk_is_whole() {
    let (etcd, worker, scratch) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Scratch::new());
    let (file, rotated) = (scratch.path().join("access.log"), scratch.path().join("access.log.1"));
    let config = Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &[guarded()]);
    let config = config.section(&logging_to(file.to_str().unwrap()));
    let mut fence = Fencepost::launch_with_file_bytes(&config, 20_000).await;
    let is_whole = |line: &&str| serde_json::from_str::<Value>(line).is_ok();
    let whole_lines = |file: &Path| std::fs::read_to_string(file).unwrap().lines().filter(is_whole).count();
    // One by one, so that nothing waits to be written when there is room again.
    let mut lost = 0;
    for sent in 1.. {
        refused(fence.listener.clone(), 1).await;
        lost = eventually("its line is written or lost", async || {
            let lost = fence.metric(LOST).await as usize;
            (whole_lines(&file) + lost == sent).then_some(lost)
        })
        .await;
        if lost > 0 {
            break;
        }
    }
    let id = fence.process().id().to_string();
    let room = std::process::Command::new("prlimit").args(["--pid", &id, "--fsize=unlimited"]).status().unwrap();
    assert!(room.success());
    let before = whole_lines(&file);
    refused(fence.listener.clone(), 1).await;
    eventually("its line stands alone", async || (whole_lines(&file) == before + 1).then_some(())).await;
    assert_eq!(fence.metric(LOST).await as usize, lost);

    // Nor is there anything before the first line of a new file.
    std::fs::rename(&file, &rotated).unwrap();
    assert_eq!(fence.admin("POST", "/reload").await.status, 200);
    refused(fence.listener.clone(), 1).await;
    eventually("a line in the new file", async || (file.exists() && !lines_of(&file).is_empty()).then_some(())).await;
    assert_eq!(lines_of(&file).len(), 1);

    // A process that begins, or is told to open its file anew, finds what another has left of a line.
    for told in [false, true] {
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{text}{{\"client\":\"")).unwrap();
        if told {
            assert_eq!(fence.admin("POST", "/reload").await.status, 200);
        } else {
            assert!(fence.terminate().await.success());
            fence = Fencepost::launch(&config).await;
        }
        let before = whole_lines(&file);
        refused(fence.listener.clone(), 2).await;
        eventually("both stand alone", async || (whole_lines(&file) == before + 2).then_some(())).await;
        assert!(!std::fs::read_to_string(&file).unwrap().contains("\n\n"), "no line is empty");
    }
}

/// It waited for a reader, and nothing else was done until one came.
#[tokio::test]
async fn a_fifo_that_nobody_reads_is_no_access_log() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let scratch = Scratch::new();
    let path = scratch.path().join("fifo");
    make_fifo(&path);
    let config = Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &[guarded()]);
    let logging = config.clone().section(&logging_to(path.to_str().unwrap()));
    let (code, said) = Fencepost::end_of(&logging).await;
    let why = format!("cannot open the access log {}: it is a FIFO that nobody reads", path.display());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&why), "{said}");

    let fence = Fencepost::serve(&config).await;
    let rejected = fence.reload(&logging).await;
    assert_eq!(rejected.status, 422, "{}", rejected.text());
    assert!(rejected.text().contains(&why), "{}", rejected.text());
    let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fence.reloads(&logging).await;
    refused(fence.listener.clone(), 1).await;
    let first = tokio::task::spawn_blocking(move || BufReader::new(reader).lines().next().unwrap().unwrap());
    assert!(first.await.unwrap().contains("token-missing"));
}
