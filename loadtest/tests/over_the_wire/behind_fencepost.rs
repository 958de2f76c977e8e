//! The loadtest against fencepost, with a real etcd of each version: all must be as it should be.

use fencepost_testsupport::{Etcd, EtcdVersion, FreePort};

use crate::support::{Fencepost, ReportFile, Run, loadtest};

const LOCK: &str = "/shards/2/lock";

#[tokio::test]
async fn the_delayed_write_never_arrives_with_etcd_3_4() {
    the_story_ends_as_it_should(EtcdVersion::V3_4).await;
}

#[tokio::test]
async fn the_delayed_write_never_arrives_with_etcd_3_5() {
    the_story_ends_as_it_should(EtcdVersion::V3_5).await;
}

#[tokio::test]
async fn takeovers_of_a_key_are_fenced_with_etcd_3_4() {
    takeovers_are_fenced(EtcdVersion::V3_4, "key").await;
}

#[tokio::test]
async fn takeovers_of_a_key_are_fenced_with_etcd_3_5() {
    takeovers_are_fenced(EtcdVersion::V3_5, "key").await;
}

#[tokio::test]
async fn takeovers_by_election_are_fenced_with_etcd_3_4() {
    takeovers_are_fenced(EtcdVersion::V3_4, "election").await;
}

#[tokio::test]
async fn takeovers_by_election_are_fenced_with_etcd_3_5() {
    takeovers_are_fenced(EtcdVersion::V3_5, "election").await;
}

#[tokio::test]
async fn takeovers_of_a_mutex_are_fenced_with_etcd_3_4() {
    takeovers_are_fenced(EtcdVersion::V3_4, "mutex").await;
}

#[tokio::test]
async fn takeovers_of_a_mutex_are_fenced_with_etcd_3_5() {
    takeovers_are_fenced(EtcdVersion::V3_5, "mutex").await;
}

async fn the_story_ends_as_it_should(version: EtcdVersion) {
    let etcd = Etcd::start(version).await;
    let worker = FreePort::reserve();
    let fencepost = Fencepost::start(&worker, &etcd, LOCK, "key").await;
    let run = drive("story", &fencepost, &worker, &etcd, &[]).await;
    assert_eq!(run.code, 0, "{}\nfencepost's log:\n{}", run.printed, fencepost.log());
    run.says("412 replayed-tenure").says("The story ended as it should.");
}

async fn takeovers_are_fenced(version: EtcdVersion, layout: &str) {
    let etcd = Etcd::start(version).await;
    let worker = FreePort::reserve();
    let fencepost = Fencepost::start(&worker, &etcd, LOCK, layout).await;
    let report = ReportFile::new();
    let arguments = ["--count", "300", "--layout", layout, "--json", report.path()];
    let run = drive("takeovers", &fencepost, &worker, &etcd, &arguments).await;
    assert_eq!(run.code, 0, "{}\nfencepost's log:\n{}", run.printed, fencepost.log());
    run.says("300 done, 0 falsely refused, 0 failed").says("597 refused, 0 falsely admitted");
    run.says("300 requests, revisions never went down");
    run.says("handoffs           150, ").says("release to worker  p50 ");
    let handoffs = &report.read()["handoffs"];
    assert_eq!(handoffs["count"], 150, "{handoffs:#}");
    let times =
        ["p50", "p90", "p99", "max"].map(|name| handoffs["release_to_worker"][format!("{name}_seconds")].as_f64());
    assert!(times.is_sorted() && times[0] > Some(0.0), "{handoffs:#}");
}

/// A route that only looks on serves whatever comes, and says beside the worker's answer what it would have refused. That was taken for
/// the refusal.
#[tokio::test]
async fn takeovers_through_a_route_in_shadow_mode_are_not_fenced() {
    let (etcd, worker, report) = (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), ReportFile::new());
    let route = format!(
        "path = \"/\"\nmode = \"shadow\"\nverdict_header = true\n\
         lock = {{ source = \"main\", key = \"{LOCK}\", layout = \"key\" }}"
    );
    let fencepost = Fencepost::with_route(&worker, &etcd, &route).await;
    let run = drive("takeovers", &fencepost, &worker, &etcd, &["--count", "20", "--json", report.path()]).await;
    run.ended_with(1).says("200 stale-tenure");
    let report = report.read();
    assert_eq!(report["false_admissions"], 1 + 2 * 18, "the first has no predecessor, the second one: {report:#}");
}

async fn drive(command: &str, fencepost: &Fencepost, worker: &FreePort, etcd: &Etcd, arguments: &[&str]) -> Run {
    let (proxy, worker, etcd) = (fencepost.url(), worker.address().to_string(), etcd.endpoint());
    let common = [command, "--proxy", &proxy, "--worker-listen", &worker, "--etcd", &etcd, "--lock", LOCK];
    loadtest(&[&common, arguments].concat()).await
}
