//! The loadtest against a worker that nothing fences: whatever is wrong must be found.
//!
//! The worker that the loadtest plays stands where the proxy should be: it does whatever it is
//! told.

use std::time::{Duration, Instant};

use fencepost_tests::{
    Answer, Behaviour, Etcd, EtcdVersion, FreePort, Latch, Relay, Worker, until,
};

use crate::support::{ReportFile, Run, Running, loadtest, nothing_is_left_in};

const LOCK: &str = "/shards/2/lock";

#[tokio::test]
async fn story_without_a_fence_ends_with_1() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let worker = FreePort::reserve();
    let run = against_the_worker_itself(&worker, &etcd, "story").await;
    run.ended_with(1).says("WRONG").says("NOT end as it should");
}

#[tokio::test]
async fn story_ended_early_gives_its_lock_back() {
    let (etcd, server) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    server.on("/", Behaviour::Hold(Latch::new(), Answer::ok("")));
    let (etcd_url, url) = (etcd.endpoint(), server.endpoint().to_string());
    let running = Running::start(format!("story --proxy {url} --etcd {etcd_url} --lock {LOCK}"));
    server.wait_for(1).await;
    let asked = Instant::now();
    running.terminate();
    let run = running.end().await;
    run.ended_with(1).says("the story was at: R2 is sent, and its answer waited for: ended early");
    assert!(asked.elapsed() < Duration::from_secs(30), "answers are waited for for a minute");
    nothing_is_left_in(&etcd).await;

    server.on("/", Behaviour::ResetEarly);
    let run = loadtest(format!("story --proxy {url} --etcd {etcd_url} --lock {LOCK}")).await;
    run.ended_with(1).says("the story was at: R2 is sent").says("the connection broke");
    nothing_is_left_in(&etcd).await;
}

#[tokio::test]
async fn takeovers_count_each_false_admission() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    for layout in ["key", "election", "mutex"] {
        let (worker, report) = (FreePort::reserve(), ReportFile::new());
        let arguments = format!("takeovers --layout {layout} --count 20 --json {}", report.path());
        let run = against_the_worker_itself(&worker, &etcd, &arguments).await;
        run.ended_with(1).says("OUT OF ORDER");
        let report = report.read();
        // The first tenure has no predecessor, the second has one, the others have two.
        let late = 1 + 2 * 18;
        assert_eq!(report["false_admissions"], late, "{report:#}");
        assert_eq!(report["false_refusals"], 0, "{report:#}");
        assert_eq!(report["worker"]["breaches"]["after_successor"], late, "{report:#}");
        assert_eq!(report["worker"]["requests"], 20 + late, "{report:#}");
        assert_eq!(report["handoffs"]["count"], 10, "{report:#}");
    }
}

#[tokio::test]
async fn takeovers_ended_early_are_reported() {
    let (etcd, server, report) =
        (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, ReportFile::new());
    let (etcd_url, url) = (etcd.endpoint(), server.endpoint().to_string());
    let takeovers = format!("takeovers --proxy {url} --etcd {etcd_url} --lock {LOCK} --count 1000");
    let begun = async |count: usize| {
        let running = Running::start(format!("{takeovers} --json {}", report.path()));
        server.wait_for(count).await;
        running.terminate();
        until("it says that it ends", async || running.log().contains("ending early")).await;
        running
    };
    let latch = Latch::new();
    server.on("/", Behaviour::Hold(latch.clone(), Answer::ok("")));
    let running = begun(1).await;
    latch.open();
    let run = running.end().await;
    run.ended_with(1).says("takeovers          1 of 1000").says("BROKEN OFF: ended early");
    assert_eq!(report.read()["takeovers"], 1);
    assert_eq!(report.read()["broke_off"], "ended early");

    nothing_is_left_in(&etcd).await;

    server.on("/", Behaviour::Hold(Latch::new(), Answer::ok("")));
    let run = begun(2).await.end().await;
    run.ended_with(1).says("takeovers          0 of 1000").says("ended early, within a takeover");
    nothing_is_left_in(&etcd).await;

    let running = begun(3).await;
    running.terminate();
    running.end().await.ended_with(130);
}

/// Everything on the way to etcd and to the worker is slow by a known time: whatever part of a
/// handoff is left out shows.
#[tokio::test]
async fn handoff_is_timed_from_release_to_worker() {
    let delay = Duration::from_millis(30);
    for layout in ["key", "election", "mutex"] {
        let (etcd, worker, report) =
            (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), ReportFile::new());
        let etcd_address = etcd
            .endpoint()
            .trim_start_matches("http://")
            .parse()
            .expect("an endpoint has an address");
        let (to_etcd, to_worker) =
            (Relay::start(etcd_address).await, Relay::start(worker.address()).await);
        to_etcd.delay(delay).await;
        to_worker.delay(delay).await;
        let (address, lock) =
            (worker.address().to_string(), format!("--lock {LOCK} --layout {layout}"));
        let (etcd, proxy) =
            (format!("http://{}", to_etcd.address()), format!("http://{}", to_worker.address()));
        let wire = format!("takeovers --proxy {proxy} --worker-listen {address} --etcd {etcd}");
        loadtest(format!("{wire} {lock} --count 8 --json {}", report.path())).await.ended_with(1);
        let handoffs = &report.read()["handoffs"];
        assert_eq!(handoffs["count"], 4, "{handoffs:#}");
        let one_way = delay.as_secs_f64();
        for (span, ways) in [
            ("release_to_told", 2.0),
            ("told_to_held", 2.0),
            ("held_to_worker", 1.0),
            ("release_to_worker", 5.0),
        ] {
            let median = handoffs[span]["p50_seconds"].as_f64().expect("it was measured");
            assert!(median >= ways * one_way, "{layout}: {span} in {median} s: {handoffs:#}");
        }
    }
}

#[tokio::test]
async fn lock_is_free_after_a_run() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    for layout in ["key", "election", "mutex"] {
        let worker = FreePort::reserve();
        against_the_worker_itself(&worker, &etcd, format!("takeovers --count 3 --layout {layout}"))
            .await;
        nothing_is_left_in(&etcd).await;
    }
}

#[tokio::test]
async fn missing_proxy_is_named() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let (proxy, etcd) = (FreePort::reserve(), etcd.endpoint());
    let url = format!("http://{}", proxy.address());
    let locked = format!("--proxy {url} --etcd {etcd} --lock {LOCK}");
    for command in ["story", "takeovers"] {
        let run = loadtest(format!("{command} {locked}")).await;
        run.ended_with(1).says(&url).says("cannot connect");
    }
    let run = loadtest(format!("closed --proxy {url} --owner a --revision 1")).await;
    run.ended_with(1).says(&url).says("cannot connect");
}

#[tokio::test]
async fn missing_etcd_is_named() {
    let [worker, one, two] = [(); 3].map(|()| FreePort::reserve());
    let (worker, one, two) = (worker.address().to_string(), one.address(), two.address());
    let (proxy, both) = (format!("http://{worker}"), format!("http://{one},http://{two}"));
    let arguments = format!("--proxy {proxy} --worker-listen {worker} --etcd {both} --lock {LOCK}");
    for command in ["story", "takeovers", "closed"] {
        let run = loadtest(format!("{command} {arguments}")).await;
        run.ended_with(1).says(&format!("etcd at http://{one}, http://{two} does not answer"));
        // Not as Rust's debug form of whatever went wrong.
        run.says(": no connection: Connection refused (os error 111)\n");
    }
}

#[tokio::test]
async fn wrong_usage_ends_with_64_and_help_with_0() {
    loadtest("takeovers --proxy ftp://host").await.ended_with(64).says("only http://HOST:PORT");
    loadtest("closed --streams 2").await.ended_with(64);
    loadtest("--help").await.is_as_expected().says("Exit codes");
}

async fn against_the_worker_itself(
    worker: &FreePort,
    etcd: &Etcd,
    arguments: impl AsRef<str>,
) -> Run {
    let arguments = arguments.as_ref();
    let (address, etcd) = (worker.address().to_string(), etcd.endpoint());
    let proxy = format!("http://{address}");
    let common = format!("--proxy {proxy} --worker-listen {address} --etcd {etcd} --lock {LOCK}");
    loadtest(format!("{arguments} {common}")).await
}
