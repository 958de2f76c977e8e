//! Locks that move under load: fencepost must be found right, and what does not fence be found out.

use std::sync::Arc;
use std::time::Duration;

use fencepost_tests::{
    Answer, Behaviour, Etcd, EtcdOptions, EtcdSecurity, EtcdVersion, FreePort, Latch, Relay, Tokens, Worker, eventually,
};
use serde_json::Value;

use crate::support::{Fencepost, Ratchet, ReportFile, Run, Running, loadtest, nothing_is_left_in};

#[tokio::test]
async fn many_moving_locks_are_fenced() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    let route =
        "path = \"/shards/{shard}/\"\nlock = { source = \"main\", key = \"/shards/{shard}/lock\", layout = \"key\" }";
    let fencepost = Fencepost::with_route(&worker, &etcd, route).await;
    let locks = ["--locks", "20", "--lock", "/shards/{n}/lock", "--path", "/shards/{n}/job"];
    for protocol in [&["--connections", "8"][..], &["--connections", "2", "--h2", "--streams", "4"]] {
        let (run, report) = move_locks("closed", &fencepost.url(), &worker, &etcd, &[&locks, protocol].concat()).await;
        fenced(&run, &report, &fencepost);
    }
    nothing_is_left_in(&etcd).await;
}

#[tokio::test]
async fn lock_named_by_header_is_fenced() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_4).await, FreePort::reserve());
    let route = "path = \"/\"\nlock = { source = \"main\", key = \"/shards/{shard}/lock\", layout = \"key\", from_header = true }";
    let fencepost = Fencepost::with_route(&worker, &etcd, route).await;
    let locks = ["--locks", "3", "--lock", "/shards/{n}/lock", "--lock-header", "--rate", "200", "--connections", "8"];
    let (run, report) = move_locks("open", &fencepost.url(), &worker, &etcd, &locks).await;
    fenced(&run, &report, &fencepost);
}

#[tokio::test]
async fn moving_lock_of_each_layout_is_fenced() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    for layout in ["key", "election", "mutex"] {
        let worker = FreePort::reserve();
        let fencepost = Fencepost::start(&worker, &etcd, "/lock", layout).await;
        let lock = ["--lock", "/lock", "--layout", layout, "--connections", "8"];
        let (run, report) = move_locks("closed", &fencepost.url(), &worker, &etcd, &lock).await;
        fenced(&run, &report, &fencepost);
        nothing_is_left_in(&etcd).await;
    }
}

/// A proxy that only hands on bytes: what is late arrives, and both the answers and the worker's order show it.
#[tokio::test]
async fn proxy_without_a_fence_is_found_out() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    let relay = Relay::start(worker.address()).await;
    let proxy = format!("http://{}", relay.address());
    let (run, report) = move_locks("closed", &proxy, &worker, &etcd, &["--lock", "/lock", "--connections", "4"]).await;
    run.ended_with(1).says("FALSE ADMISSION").says("OUT OF ORDER");
    assert!(report["false_admissions"].as_u64() > Some(10), "{report:#}");
    assert!(report["worker"]["breaches"]["after_successor"].as_u64() > Some(10), "{report:#}");
    assert_eq!(report["false_refusals"], 0, "{report:#}");
}

/// It lets nobody in who is late, and does not wait until those who were in time are done: no answer shows that.
#[tokio::test]
async fn proxy_without_a_barrier_is_found_out() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    let proxy = Ratchet::start(worker.address()).await;
    let lock = ["--lock", "/lock", "--connections", "4"];
    let (run, report) = move_locks("closed", &proxy.url(), &worker, &etcd, &lock).await;
    run.ended_with(1).says("OUT OF ORDER").says("each of which takes the worker 5ms");
    assert!(report["worker"]["breaches"]["overlapped"].as_u64() > Some(0), "{report:#}");
    assert_eq!((&report["false_admissions"], &report["false_refusals"]), (&0.into(), &0.into()), "{report:#}");
}

#[tokio::test]
async fn former_holder_sends_one_late_request() {
    let (etcd, worker, report) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), ReportFile::new());
    let (address, url, etcd) = (worker.address().to_string(), format!("http://{}", worker.address()), etcd.endpoint());
    let wire =
        ["open", "--rate", "50", "--proxy", &url, "--worker-listen", &address, "--etcd", &etcd, "--lock", "/lock"];
    let moves = ["--handoff-every", "100ms", "--duration", "3s", "--warm-up", "0s", "--connections", "4"];
    let moves = [&moves[..], &["--json", report.path()]].concat();
    let run = loadtest(&[&wire[..], &moves].concat()).await;
    // Nothing said why there were more requests a second than the rate.
    run.ended_with(1).says("a lock handed over every 100ms with two requests more each");
    let report = report.read();
    assert!(report["handoffs"]["count"].as_u64() >= Some(3), "{report:#}");
    assert_eq!(report["false_admissions"], report["handoffs"]["count"], "{report:#}");
}

/// They were sent by GET and without a body, whatever was asked for: a route that exempts GET served what was superseded.
#[tokio::test]
async fn requests_of_a_handoff_are_like_all_others() {
    let (etcd, server, report) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, ReportFile::new());
    let (url, etcd) = (server.endpoint().to_string(), etcd.endpoint());
    let wire = ["open", "--rate", "20", "--proxy", &url, "--etcd", &etcd, "--lock", "/lock", "--connections", "4"];
    let what = ["--method", "PUT", "--body", "10", "--handoff-every", "100ms", "--duration", "3s", "--warm-up", "0s"];
    loadtest(&[&wire[..], &what, &["--json", report.path()]].concat()).await.ended_with(1);
    let (seen, report) = (server.seen(), report.read());
    assert!(report["handoffs"]["count"].as_u64() >= Some(3), "{report:#}");
    assert!(seen.len() > 20, "more than those that were due: {report:#}");
    for request in seen {
        assert_eq!((request.method.as_str(), request.body_bytes), ("PUT", 10), "{request:?}");
    }
}

/// Whoever holds a lock goes on holding it when nobody could be made to wait for it, and what was measured is told.
#[tokio::test]
async fn run_goes_on_while_etcd_is_gone() {
    let (etcd, server, report) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, ReportFile::new());
    let relay = Relay::before(&etcd).await;
    let (url, etcd_url) = (server.endpoint().to_string(), format!("http://{}", relay.address()));
    let wire = ["open", "--rate", "50", "--proxy", &url, "--etcd", &etcd_url, "--lock", "/lock", "--connections", "4"];
    let moves = ["--handoff-every", "2s", "--duration", "4s", "--warm-up", "0s", "--json", report.path()];
    let running = Running::start(&[&wire[..], &moves].concat());
    server.wait_for(5).await; // The lock is taken.
    relay.cut().await;
    running
        .end()
        .await
        .ended_with(1)
        .says("1 handoffs did not come about")
        .says("cannot be revoked")
        .says("throughput");
    let report = report.read();
    assert!(report["answered"].as_u64() > Some(100), "the run goes on: {report:#}");
    assert_eq!(report["handoffs"]["count"], 0, "{report:#}");
    assert_eq!(from(&report, "leaving"), 0, "{report:#}");
}

/// The first handoff that failed was the last one, so that a run over a restart of etcd had no more of them.
#[tokio::test]
async fn locks_move_again_when_etcd_is_back() {
    let (etcd, worker, report) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), ReportFile::new());
    let fencepost = Fencepost::start(&worker, &etcd, "/lock", "key").await;
    let relay = Relay::before(&etcd).await;
    let (address, etcd_url) = (worker.address().to_string(), format!("http://{}", relay.address()));
    let wire =
        ["closed", "--proxy", &fencepost.url(), "--worker-listen", &address, "--etcd", &etcd_url, "--lock", "/lock"];
    let moves = ["--handoff-every", "100ms", "--duration", "1h", "--warm-up", "0s", "--connections", "4"];
    let running = Running::start(&[&wire[..], &moves, &["--json", report.path()]].concat());
    let moved = async |from: i64| {
        eventually("the lock moves", async || (revision_of(&etcd, "/lock").await > from + 4).then_some(())).await;
        revision_of(&etcd, "/lock").await
    };
    moved(0).await;
    relay.cut().await;
    eventually("that is told", async || running.log().contains("a handoff failed").then_some(())).await;
    let before = revision_of(&etcd, "/lock").await;
    relay.restore().await;
    moved(before).await;
    running.terminate();
    running.end().await.ended_with(2).says("handoffs did not come about");
    let report = report.read();
    assert!(report["handoffs"]["not_made"].as_u64() > Some(0), "{report:#}");
    assert_eq!((&report["false_admissions"], &report["false_refusals"]), (&0.into(), &0.into()), "{report:#}");
    nothing_is_left_in(&etcd).await;
}

/// At which revision the lock's key was written; 0 if it is not there.
async fn revision_of(etcd: &Etcd, key: &str) -> i64 {
    let told: Value =
        serde_json::from_str(&etcd.etcdctl(&["get", key, "-w", "json"]).await).expect("etcdctl tells JSON");
    told["kvs"][0]["mod_revision"].as_i64().unwrap_or(0)
}

/// The proxy refuses a new tenure's requests for a while: the mover's own, which is the first, too. Such handoffs, and so just the slow ones, were
/// in no figure.
#[tokio::test]
async fn late_successor_is_timed_until_it_is_served() {
    let (etcd, server, report) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, ReportFile::new());
    let began: std::sync::Mutex<std::collections::HashMap<String, std::time::Instant>> = std::sync::Mutex::default();
    server.when(move |seen| {
        let revision = seen.header("fence-revision").unwrap_or_default().to_owned();
        let began = *began.lock().unwrap().entry(revision).or_insert_with(std::time::Instant::now);
        let put_off = Answer::status(503, "").header("fence-reason", "unverifiable").header("retry-after", "1");
        (began.elapsed() < Duration::from_millis(150)).then_some(Behaviour::Answer(put_off))
    });
    let (url, etcd_url) = (server.endpoint().to_string(), etcd.endpoint());
    let wire = ["open", "--rate", "100", "--proxy", &url, "--etcd", &etcd_url, "--lock", "/lock", "--connections", "4"];
    let moves = ["--handoff-every", "500ms", "--duration", "3s", "--warm-up", "0s", "--json", report.path()];
    loadtest(&[&wire[..], &moves].concat()).await;
    let report = report.read();
    let handoffs = &report["handoffs"];
    assert!(handoffs["count"].as_u64() >= Some(3) && handoffs["unserved"].as_u64() <= Some(1), "{report:#}");
    assert!(handoffs["release_to_answer"]["p50_seconds"].as_f64() > Some(0.14), "{report:#}");
}

/// The mover, too, waits for answers no longer than the others.
#[tokio::test]
async fn moving_run_ends_though_nobody_is_answered() {
    let (etcd, server, never) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Latch::new());
    let (url, etcd_url, report) = (server.endpoint().to_string(), etcd.endpoint(), ReportFile::new());
    server.when(move |_| Some(Behaviour::Hold(never.clone(), Answer::ok(""))));
    let wire = ["open", "--rate", "50", "--proxy", &url, "--etcd", &etcd_url, "--lock", "/lock", "--connections", "2"];
    let moves = ["--handoff-every", "100ms", "--duration", "1h", "--warm-up", "0s", "--json", report.path()];
    let running = Running::start(&[&wire[..], &moves].concat());
    server.wait_for(3).await; // One of them is the successor's.
    running.terminate();
    running.end().await.ended_with(1).says("ended early").says("1 successors were not served");
    assert_eq!(report.read()["unanswered"], 3);
    nothing_is_left_in(&etcd).await;
}

/// It has asked for a lease, and etcd's answer is under way.
#[tokio::test]
async fn run_ended_while_taking_locks_leaves_none() {
    let (etcd, server) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let relay = Relay::before(&etcd).await;
    relay.delay(Duration::from_millis(500)).await;
    let (url, etcd_url) = (server.endpoint().to_string(), format!("http://{}", relay.address()));
    let running = Running::start(&["closed", "--proxy", &url, "--etcd", &etcd_url, "--lock", "/lock"]);
    eventually("it has a lease", async || {
        etcd.etcdctl(&["lease", "list"]).await.starts_with("found 1 leases").then_some(())
    })
    .await;
    running.terminate();
    running.end().await.ended_with(1).says("ended before all locks were taken");
    nothing_is_left_in(&etcd).await;
}

#[tokio::test]
async fn held_lock_is_left_alone() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    etcd.etcdctl(&["put", "/shards/3/lock", "somebody"]).await;
    let (url, etcd_url) = (format!("http://{}", worker.address()), etcd.endpoint());
    let locks = ["--locks", "5", "--lock", "/shards/{n}/lock", "--path", "/{n}"];
    let run = loadtest(&[&["closed", "--proxy", &url, "--etcd", &etcd_url], &locks[..]].concat()).await;
    run.ended_with(1).says("is not free");
    assert_eq!(etcd.etcdctl(&["get", "/shards/3/lock", "--print-value-only"]).await, "somebody");
    etcd.etcdctl(&["del", "/shards/3/lock"]).await;
    nothing_is_left_in(&etcd).await;
}

fn fenced(run: &Run, report: &Value, fencepost: &Fencepost) {
    assert_eq!(run.code, 0, "{}\nfencepost's log:\n{}", run.printed, fencepost.log());
    assert_eq!((&report["false_admissions"], &report["false_refusals"]), (&0.into(), &0.into()), "{report:#}");
    let (superseded, handoffs) = (from(report, "superseded"), &report["handoffs"]);
    assert!(superseded > 5, "stale requests were sent: {report:#}");
    assert!(handoffs["count"].as_u64() >= Some(3), "{report:#}");
    assert!(handoffs["release_to_answer"]["p50_seconds"].as_f64() > Some(0.0), "{report:#}");
    assert_eq!(report["worker"]["breaches"]["after_successor"], 0, "{report:#}");
    run.says("revisions never went down").says("0 false refusals, 0 false admissions");
}

/// It could not be reached: there was no way to say who is let in.
#[tokio::test]
async fn etcd_with_tls_and_users_gives_locks() {
    let security = EtcdSecurity::new(Tokens::Jwt(Duration::from_secs(300)));
    let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
    let (etcd, server) = (Etcd::start_with(EtcdVersion::V3_5, &options).await, Worker::start().await);
    etcd.enable_users().await;
    let password = security.directory().join("root-password");
    std::fs::write(&password, "root\n").expect("the directory can be written");
    let (certificate, key) = security.client();
    let files = [security.ca(), certificate, key, password];
    let [ca, certificate, key, password] =
        files.each_ref().map(|file| file.to_str().expect("a path of the tests is text"));
    let (url, etcd_url) = (server.endpoint().to_string(), etcd.endpoint());
    let wire = ["closed", "--proxy", &url, "--etcd", &etcd_url, "--lock", "/lock", "--connections", "2"];
    let access = ["--etcd-ca", ca, "--etcd-cert", certificate, "--etcd-key", key, "--etcd-user", "root"];
    let more = ["--etcd-password-file", password, "--duration", "500ms", "--warm-up", "0s"];
    loadtest(&[&wire[..], &access, &more].concat()).await.is_as_expected();
    etcd.etcdctl(&["put", "/lock", "somebody"]).await;
    let run = loadtest(&[&wire[..], &access, &more].concat()).await;
    run.ended_with(1).says("the lock /lock is not free: end its holder");
}

/// How many answers senders of that standing got.
fn from(report: &Value, standing: &str) -> u64 {
    let answers = report["answers"].as_array().expect("answers are listed");
    answers.iter().filter(|answer| answer["from"] == standing).filter_map(|answer| answer["count"].as_u64()).sum()
}

async fn move_locks(command: &str, proxy: &str, worker: &FreePort, etcd: &Etcd, arguments: &[&str]) -> (Run, Value) {
    let (report, worker, etcd) = (ReportFile::new(), worker.address().to_string(), etcd.endpoint());
    let wire = [command, "--proxy", proxy, "--worker-listen", &worker, "--etcd", &etcd, "--json", report.path()];
    let moves = ["--stale", "10%", "--handoff-every", "100ms", "--duration", "2s", "--warm-up", "200ms"];
    let run = loadtest(&[&wire[..], &moves, arguments].concat()).await;
    let read = report.try_read().unwrap_or_else(|| panic!("no report: {}", run.printed));
    (run, read)
}
