//! Locks that move under load: fencepost must be found right, and what does not fence be found out.

use std::sync::Arc;
use std::time::Duration;

use fencepost_tests::{
    Answer, Behaviour, Etcd, EtcdOptions, EtcdSecurity, EtcdVersion, FreePort, Latch, Relay,
    Tokens, Worker, until,
};
use serde_json::Value;

use crate::support::{Fencepost, Ratchet, ReportFile, Run, Running, loadtest, nothing_is_left_in};

#[tokio::test]
async fn many_moving_locks_are_fenced() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    let route = "path = \"/shards/{shard}/\"\nlock = { source = \"main\", key = \"/shards/{shard}/lock\", layout = \"key\" }";
    let fencepost = Fencepost::with_route(&worker, &etcd, route).await;
    let locks = "--locks 20 --lock /shards/{n}/lock --path /shards/{n}/job";
    for protocol in ["--connections 8", "--connections 2 --h2 --streams 4"] {
        let (run, report) =
            move_locks("closed", &fencepost.url(), &worker, &etcd, format!("{locks} {protocol}"))
                .await;
        fenced(&run, &report, &fencepost);
    }
    nothing_is_left_in(&etcd).await;
}

#[tokio::test]
async fn lock_named_by_header_is_fenced() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_4).await, FreePort::reserve());
    let route = "path = \"/\"\nlock = { source = \"main\", key = \"/shards/{shard}/lock\", layout = \"key\", from_header = true }";
    let fencepost = Fencepost::with_route(&worker, &etcd, route).await;
    let locks = "--locks 3 --lock /shards/{n}/lock --lock-header --rate 200 --connections 8";
    let (run, report) = move_locks("open", &fencepost.url(), &worker, &etcd, &locks).await;
    fenced(&run, &report, &fencepost);
}

#[tokio::test]
async fn moving_lock_of_each_layout_is_fenced() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    for layout in ["key", "election", "mutex"] {
        let worker = FreePort::reserve();
        let fencepost = Fencepost::start(&worker, &etcd, "/lock", layout).await;
        let lock = format!("--lock /lock --layout {layout} --connections 8");
        let (run, report) = move_locks("closed", &fencepost.url(), &worker, &etcd, &lock).await;
        fenced(&run, &report, &fencepost);
        nothing_is_left_in(&etcd).await;
    }
}

#[tokio::test]
async fn proxy_without_a_fence_is_found_out() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    let relay = Relay::start(worker.address()).await;
    let proxy = format!("http://{}", relay.address());
    let (run, report) =
        move_locks("closed", &proxy, &worker, &etcd, "--lock /lock --connections 4").await;
    run.ended_with(1).says("FALSE ADMISSION").says("OUT OF ORDER");
    assert!(report["false_admissions"].as_u64() > Some(10), "{report:#}");
    assert!(report["worker"]["breaches"]["after_successor"].as_u64() > Some(10), "{report:#}");
    assert_eq!(report["false_refusals"], 0, "{report:#}");
}

#[tokio::test]
async fn proxy_without_a_barrier_is_found_out() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    let proxy = Ratchet::start(worker.address()).await;
    let lock = "--lock /lock --connections 4";
    let (run, report) = move_locks("closed", &proxy.url(), &worker, &etcd, &lock).await;
    run.ended_with(1).says("OUT OF ORDER").says("each of which takes the worker 5ms");
    assert!(report["worker"]["breaches"]["overlapped"].as_u64() > Some(0), "{report:#}");
    nothing_is_false(&report);
}

#[tokio::test]
async fn former_holder_sends_one_late_request() {
    let (etcd, worker, report) =
        (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), ReportFile::new());
    let (address, url, etcd) =
        (worker.address().to_string(), format!("http://{}", worker.address()), etcd.endpoint());
    let wire = format!(
        "open --rate 50 --proxy {url} --worker-listen {address} --etcd {etcd} --lock /lock"
    );
    let moves = "--handoff-every 100ms --duration 3s --warm-up 0s --connections 4";
    let run = loadtest(format!("{wire} {moves} --json {}", report.path())).await;
    run.ended_with(1).says("a lock handed over every 100ms with two requests more each");
    let report = report.read();
    assert!(report["handoffs"]["count"].as_u64() >= Some(3), "{report:#}");
    assert_eq!(report["false_admissions"], report["handoffs"]["count"], "{report:#}");
}

#[tokio::test]
async fn requests_of_a_handoff_are_like_all_others() {
    let (etcd, server, report) =
        (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, ReportFile::new());
    let (url, etcd) = (server.endpoint().to_string(), etcd.endpoint());
    let wire = format!("open --rate 20 --proxy {url} --etcd {etcd} --lock /lock --connections 4");
    let what = "--method PUT --body 10 --handoff-every 100ms --duration 3s --warm-up 0s";
    loadtest(format!("{wire} {what} --json {}", report.path())).await.ended_with(1);
    let (seen, report) = (server.seen(), report.read());
    assert!(report["handoffs"]["count"].as_u64() >= Some(3), "{report:#}");
    assert!(seen.len() > 20, "more than those that were due: {report:#}");
    for request in seen {
        assert_eq!((request.method.as_str(), request.body_bytes), ("PUT", 10), "{request:?}");
    }
}

#[tokio::test]
async fn locks_move_again_when_etcd_is_back() {
    let (etcd, worker, report) =
        (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), ReportFile::new());
    let fencepost = Fencepost::start(&worker, &etcd, "/lock", "key").await;
    let relay = Relay::before(&etcd).await;
    let (address, etcd_url) = (worker.address().to_string(), format!("http://{}", relay.address()));
    let wire = format!(
        "closed --proxy {} --worker-listen {address} --etcd {etcd_url} --lock /lock",
        fencepost.url()
    );
    let moves = "--handoff-every 100ms --duration 1h --warm-up 0s --connections 4";
    let running = Running::start(format!("{wire} {moves} --json {}", report.path()));
    let moved = async |from: i64| {
        until("the lock moves", async || revision_of(&etcd, "/lock").await > from + 4).await;
        revision_of(&etcd, "/lock").await
    };
    moved(0).await;
    relay.cut().await;
    until("that is told", async || running.log().contains("a handoff failed")).await;
    let before = revision_of(&etcd, "/lock").await;
    relay.restore().await;
    moved(before).await;
    running.terminate();
    running.end().await.ended_with(2).says("handoffs did not come about");
    let report = report.read();
    assert!(report["handoffs"]["not_made"].as_u64() > Some(0), "{report:#}");
    nothing_is_false(&report);
    nothing_is_left_in(&etcd).await;
}

/// At which revision the lock's key was written; 0 if it is not there.
async fn revision_of(etcd: &Etcd, key: &str) -> i64 {
    let told: Value = serde_json::from_str(&etcd.etcdctl(&["get", key, "-w", "json"]).await)
        .expect("etcdctl tells JSON");
    told["kvs"][0]["mod_revision"].as_i64().unwrap_or(0)
}

#[tokio::test]
async fn late_successor_is_timed_until_it_is_served() {
    let (etcd, server, report) =
        (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, ReportFile::new());
    let began: std::sync::Mutex<std::collections::HashMap<String, std::time::Instant>> =
        std::sync::Mutex::default();
    server.when(move |seen| {
        let revision = seen.header("fence-revision").unwrap_or_default().to_owned();
        let began = *began.lock().unwrap().entry(revision).or_insert_with(std::time::Instant::now);
        let put_off = Answer::status(503, "")
            .header("fence-reason", "unverifiable")
            .header("retry-after", "1");
        (began.elapsed() < Duration::from_millis(150)).then_some(Behaviour::Answer(put_off))
    });
    let (url, etcd_url) = (server.endpoint().to_string(), etcd.endpoint());
    let wire =
        format!("open --rate 100 --proxy {url} --etcd {etcd_url} --lock /lock --connections 4");
    let moves =
        format!("--handoff-every 500ms --duration 3s --warm-up 0s --json {}", report.path());
    loadtest(format!("{wire} {moves}")).await;
    let report = report.read();
    let handoffs = &report["handoffs"];
    assert!(
        handoffs["count"].as_u64() >= Some(3) && handoffs["unserved"].as_u64() <= Some(1),
        "{report:#}"
    );
    assert!(handoffs["release_to_answer"]["p50_seconds"].as_f64() > Some(0.14), "{report:#}");
}

#[tokio::test]
async fn moving_run_ends_though_nobody_is_answered() {
    let (etcd, server, never) =
        (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Latch::new());
    let (url, etcd_url, report) =
        (server.endpoint().to_string(), etcd.endpoint(), ReportFile::new());
    server.when(move |_| Some(Behaviour::Hold(never.clone(), Answer::ok(""))));
    let wire =
        format!("open --rate 50 --proxy {url} --etcd {etcd_url} --lock /lock --connections 2");
    let moves =
        format!("--handoff-every 100ms --duration 1h --warm-up 0s --json {}", report.path());
    let running = Running::start(format!("{wire} {moves}"));
    server.wait_for(3).await; // One of them is the successor's.
    running.terminate();
    running.end().await.ended_with(1).says("ended early").says("1 successors were not served");
    assert_eq!(report.read()["unanswered"], 3);
    nothing_is_left_in(&etcd).await;
}

#[tokio::test]
async fn held_lock_is_left_alone() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve());
    etcd.etcdctl(&["put", "/shards/3/lock", "somebody"]).await;
    let (url, etcd_url) = (format!("http://{}", worker.address()), etcd.endpoint());
    let locks = "--locks 5 --lock /shards/{n}/lock --path /{n}";
    let run = loadtest(format!("closed --proxy {url} --etcd {etcd_url} {locks}")).await;
    run.ended_with(1).says("is not free");
    assert_eq!(etcd.etcdctl(&["get", "/shards/3/lock", "--print-value-only"]).await, "somebody");
    etcd.etcdctl(&["del", "/shards/3/lock"]).await;
    nothing_is_left_in(&etcd).await;
}

#[track_caller]
fn nothing_is_false(report: &Value) {
    for what in ["false_admissions", "false_refusals"] {
        assert_eq!(report[what], 0, "{report:#}");
    }
}

fn fenced(run: &Run, report: &Value, fencepost: &Fencepost) {
    assert_eq!(run.code, 0, "{}\nfencepost's log:\n{}", run.printed, fencepost.log());
    nothing_is_false(report);
    let (superseded, handoffs) = (from(report, "superseded"), &report["handoffs"]);
    assert!(superseded > 5, "stale requests were sent: {report:#}");
    assert!(handoffs["count"].as_u64() >= Some(3), "{report:#}");
    assert!(handoffs["release_to_answer"]["p50_seconds"].as_f64() > Some(0.0), "{report:#}");
    assert_eq!(report["worker"]["breaches"]["after_successor"], 0, "{report:#}");
    run.says("revisions never went down").says("0 false refusals, 0 false admissions");
}

#[tokio::test]
async fn etcd_with_tls_and_users_gives_locks() {
    let security = EtcdSecurity::new(Tokens::Jwt(Duration::from_secs(300)));
    let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
    let (etcd, server) =
        (Etcd::start_with(EtcdVersion::V3_5, &options).await, Worker::start().await);
    etcd.enable_users().await;
    let password = security.directory().join("root-password");
    std::fs::write(&password, "root\n").expect("the directory can be written");
    let (certificate, key) = security.client();
    let files = [security.ca(), certificate, key, password];
    let [ca, certificate, key, password] =
        files.each_ref().map(|file| file.to_str().expect("a path of the tests is text"));
    let (url, etcd_url) = (server.endpoint().to_string(), etcd.endpoint());
    let wire = format!("closed --proxy {url} --etcd {etcd_url} --lock /lock --connections 2");
    let access =
        format!("--etcd-ca {ca} --etcd-cert {certificate} --etcd-key {key} --etcd-user root");
    let more = format!("--etcd-password-file {password} --duration 500ms --warm-up 0s");
    loadtest(format!("{wire} {access} {more}")).await.is_as_expected();
    etcd.etcdctl(&["put", "/lock", "somebody"]).await;
    let run = loadtest(format!("{wire} {access} {more}")).await;
    run.ended_with(1).says("the lock /lock is not free: end its holder");
}

/// How many answers senders of that standing got.
fn from(report: &Value, standing: &str) -> u64 {
    let answers = report["answers"].as_array().expect("answers are listed");
    answers
        .iter()
        .filter(|answer| answer["from"] == standing)
        .filter_map(|answer| answer["count"].as_u64())
        .sum()
}

async fn move_locks(
    command: &str,
    proxy: &str,
    worker: &FreePort,
    etcd: &Etcd,
    arguments: impl AsRef<str>,
) -> (Run, Value) {
    let arguments = arguments.as_ref();
    let (report, worker, etcd) = (ReportFile::new(), worker.address().to_string(), etcd.endpoint());
    let wire = format!(
        "{command} --proxy {proxy} --worker-listen {worker} --etcd {etcd} --json {}",
        report.path()
    );
    let moves = "--stale 10% --handoff-every 100ms --duration 2s --warm-up 200ms";
    let run = loadtest(format!("{wire} {moves} {arguments}")).await;
    let read = report.try_read().unwrap_or_else(|| panic!("no report: {}", run.printed));
    (run, read)
}
