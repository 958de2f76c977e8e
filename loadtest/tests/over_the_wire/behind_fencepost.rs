//! The loadtest against fencepost, with a real etcd of each version: all must be as it should be.

use fencepost_tests::{Etcd, EtcdVersion, FreePort};

use crate::support::{Fencepost, ReportFile, Run, loadtest};

const LOCK: &str = "/shards/2/lock";

#[tokio::test]
async fn delayed_write_never_arrives_with_any_etcd() {
    for version in [EtcdVersion::V3_4, EtcdVersion::V3_5] {
        let (etcd, worker) = (Etcd::start(version).await, FreePort::reserve());
        let fencepost = Fencepost::start(&worker, &etcd, LOCK, "key").await;
        let run = drive("story", &fencepost, &worker, &etcd, "").await;
        assert_eq!(run.code, 0, "{}\nfencepost's log:\n{}", run.printed, fencepost.log());
        run.says("412 replayed-tenure").says("The story ended as it should.");
    }
}

#[tokio::test]
async fn takeovers_of_each_layout_are_fenced() {
    let layouts = ["key", "election", "mutex"];
    for (version, layout) in
        EtcdVersion::ALL.into_iter().flat_map(|version| layouts.map(|layout| (version, layout)))
    {
        let (etcd, worker, file) =
            (Etcd::start(version).await, FreePort::reserve(), ReportFile::new());
        let fencepost = Fencepost::start(&worker, &etcd, LOCK, layout).await;
        let arguments = format!("--count 300 --layout {layout} --json {}", file.path());
        let run = drive("takeovers", &fencepost, &worker, &etcd, &arguments).await;
        assert_eq!(run.code, 0, "{}\nfencepost's log:\n{}", run.printed, fencepost.log());
        run.says("0 false refusals, 0 false admissions, 0 unexpected answers");
        run.says("300 requests, revisions never went down").says("handoffs           150, ");
        let report = file.read();
        let handoffs = &report["handoffs"];
        assert_eq!(
            (&report["answered"], &report["superseded_and_answered"]),
            (&897.into(), &597.into())
        );
        assert_eq!(handoffs["count"], 150, "{handoffs:#}");
        let time = |name| handoffs["release_to_worker"][format!("{name}_seconds")].as_f64();
        let times = ["p50", "p90", "p99", "max"].map(time);
        assert!(times.is_sorted() && times[0] > Some(0.0), "{handoffs:#}");
    }
}

#[tokio::test]
async fn takeovers_in_shadow_mode_are_not_fenced() {
    let (etcd, worker, report) =
        (Etcd::start(EtcdVersion::V3_5).await, FreePort::reserve(), ReportFile::new());
    let route = format!(
        "path = \"/\"\nmode = \"shadow\"\nverdict_header = true\n\
         lock = {{ source = \"main\", key = \"{LOCK}\", layout = \"key\" }}"
    );
    let fencepost = Fencepost::with_route(&worker, &etcd, &route).await;
    let run = drive(
        "takeovers",
        &fencepost,
        &worker,
        &etcd,
        format!("--count 20 --json {}", report.path()),
    )
    .await;
    run.ended_with(1).says("200 stale-tenure");
    let report = report.read();
    assert_eq!(
        report["false_admissions"],
        1 + 2 * 18,
        "the first has no predecessor, the second one: {report:#}"
    );
}

async fn drive(
    command: &str,
    fencepost: &Fencepost,
    worker: &FreePort,
    etcd: &Etcd,
    arguments: impl AsRef<str>,
) -> Run {
    let arguments = arguments.as_ref();
    let (proxy, worker, etcd) = (fencepost.url(), worker.address().to_string(), etcd.endpoint());
    let common =
        format!("{command} --proxy {proxy} --worker-listen {worker} --etcd {etcd} --lock {LOCK}");
    loadtest(format!("{common} {arguments}")).await
}
