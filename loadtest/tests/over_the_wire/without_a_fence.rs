//! The loadtest against a worker that nothing fences: whatever is wrong must be found.
//!
//! The worker that the loadtest plays stands where the proxy should be: it does whatever it is told.

use fencepost_testsupport::{Etcd, EtcdVersion, FreePort, Scratch};
use serde_json::Value;

use crate::support::{Run, loadtest};

const LOCK: &str = "/shards/2/lock";

#[tokio::test]
async fn the_story_without_a_fence_ends_as_it_should_not() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let worker = FreePort::reserve();
    let run = against_the_worker_itself(&worker, &etcd, &["story"]).await;
    run.ended_with(1).says("WRONG").says("NOT end as it should");
}

#[tokio::test]
async fn takeovers_without_a_fence_show_every_false_admission() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    for layout in ["key", "election", "mutex"] {
        let (worker, scratch) = (FreePort::reserve(), Scratch::new());
        let file = scratch.path().join("report.json");
        let file = file.to_str().expect("a scratch directory's path is text");
        let arguments = ["takeovers", "--layout", layout, "--count", "20", "--json", file];
        let run = against_the_worker_itself(&worker, &etcd, &arguments).await;
        run.ended_with(1).says("OUT OF ORDER");
        let report = std::fs::read_to_string(file).expect("the report has been written");
        let report: Value = serde_json::from_str(&report).expect("the report is JSON");
        // The first tenure has no predecessor, the second has one, the others have two.
        let late = 1 + 2 * 18;
        assert_eq!(report["false_admissions"], late, "{report:#}");
        assert_eq!(report["false_refusals"], 0, "{report:#}");
        assert_eq!(report["worker"]["breaches"]["after_successor"], late, "{report:#}");
        assert_eq!(report["worker"]["requests"], 20 + late, "{report:#}");
    }
}

#[tokio::test]
async fn a_lock_that_somebody_holds_is_left_alone() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    etcd.etcdctl(&["put", LOCK, "somebody"]).await;
    let worker = FreePort::reserve();
    for command in ["story", "takeovers"] {
        let run = against_the_worker_itself(&worker, &etcd, &[command]).await;
        run.ended_with(1).says("the lock /shards/2/lock is not free");
    }
    assert_eq!(etcd.etcdctl(&["get", LOCK, "--print-value-only"]).await, "somebody");
}

#[tokio::test]
async fn the_lock_is_free_when_a_run_is_over() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    for layout in ["key", "election", "mutex"] {
        let worker = FreePort::reserve();
        against_the_worker_itself(&worker, &etcd, &["takeovers", "--count", "3", "--layout", layout]).await;
        assert_eq!(etcd.etcdctl(&["get", "--prefix", LOCK]).await, "");
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_named() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let (proxy, etcd) = (FreePort::reserve(), etcd.endpoint());
    let url = format!("http://{}", proxy.address());
    let locked = ["--proxy", &url, "--etcd", &etcd, "--lock", LOCK];
    for command in ["story", "takeovers"] {
        let run = loadtest(&[&[command], &locked[..]].concat()).await;
        run.ended_with(1).says(&url).says("cannot connect");
    }
    let run = loadtest(&["load", "--proxy", &url, "--owner", "a", "--revision", "1"]).await;
    run.ended_with(1).says(&url).says("cannot connect");
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_named() {
    let (worker, etcd) = (FreePort::reserve(), FreePort::reserve());
    let (worker, etcd) = (worker.address().to_string(), format!("http://{}", etcd.address()));
    let proxy = format!("http://{worker}");
    let arguments = ["--proxy", &proxy, "--worker-listen", &worker, "--etcd", &etcd, "--lock", LOCK];
    for command in ["story", "takeovers"] {
        let run = loadtest(&[&[command], &arguments[..]].concat()).await;
        run.ended_with(1).says(&format!("etcd at {etcd} does not answer"));
    }
}

#[tokio::test]
async fn wrong_usage_ends_with_64_and_help_with_0() {
    loadtest(&["takeovers", "--proxy", "ftp://host"]).await.ended_with(64).says("only http://HOST:PORT");
    loadtest(&["load", "--streams", "2"]).await.ended_with(64);
    loadtest(&["--help"]).await.is_as_expected().says("Exit codes");
}

async fn against_the_worker_itself(worker: &FreePort, etcd: &Etcd, arguments: &[&str]) -> Run {
    let (address, etcd) = (worker.address().to_string(), etcd.endpoint());
    let proxy = format!("http://{address}");
    let common = ["--proxy", &proxy, "--worker-listen", &address, "--etcd", &etcd, "--lock", LOCK];
    loadtest(&[arguments, &common].concat()).await
}
