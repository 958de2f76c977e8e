//! fencepost beside HAProxy, as processes.

use std::path::Path;

use fencepost_tests::{EtcdVersion, Scratch, until};
use serde_json::Value;

use crate::support::{ReportFile, Run, Running, fencepost_binary, loadtest};

#[tokio::test]
async fn fencepost_is_measured_beside_installed_peers() {
    let absent = "--targets haproxy,envoy --envoy-binary /no/such/envoy --idle-connections 20";
    let workloads = ["get", "get64k", "post1k-chunked", "stale", "stale-post1k", "churn", "idle"];
    let (run, report) = are_measured(&workloads, absent).await;
    run.says("envoy is not installed");
    for of in ["haproxy", "fencepost"] {
        let [idle] = samples(&report, "idle", of)[..] else { panic!("{report:#}") };
        assert!(idle["memory_bytes_at_start"].as_u64() > Some(1 << 20), "{idle:#}");
    }
}

#[tokio::test]
async fn http2_and_tls_are_measured_beside_haproxy() {
    are_measured(
        &["h2c", "h2c4k", "h2c-stale", "get-tls", "h2-tls", "new-tls"],
        "--targets haproxy",
    )
    .await;
}

/// Measures these, and finds in the report what both took for each that is about time: what was
/// said, and the report.
async fn are_measured(workloads: &[&str], more: &str) -> (Run, Value) {
    let report = ReportFile::new();
    let arguments =
        format!("--workloads {} --connections 4 --json {}", workloads.join(","), report.path());
    let arguments = compare(&format!("{arguments} {more}"));
    let run = loadtest(arguments).await;
    run.is_as_expected().says("Ratios are to haproxy").says("| fencepost ");
    let report = report.read();
    for of in ["haproxy", "fencepost"] {
        for what in workloads.iter().filter(|what| **what != "idle") {
            let samples = samples(&report, what, of);
            assert_eq!(samples.len(), 2, "one for each round: {report:#}");
            for sample in samples {
                assert!(sample["cpu_micros_per_request"].as_f64() > Some(0.5), "{sample:#}");
                assert!(
                    sample["busy"].as_f64().is_some_and(|busy| busy > 0.0 && busy <= 1.1),
                    "one thread: {sample:#}"
                );
                assert_eq!(sample["wrong"], 0, "{sample:#}");
            }
        }
    }
    (run, report)
}

#[tokio::test]
async fn fencepost_without_peers_is_measured_alone() {
    let report = ReportFile::new();
    let arguments =
        compare(&format!("--workloads get --connections 4 --json {} --targets", report.path()));
    let run = loadtest(arguments).await;
    run.is_as_expected().says("Ratios are to fencepost");
    assert_eq!(report.read()["samples"].as_array().map(Vec::len), Some(2), "{}", run.printed);
}

#[tokio::test]
async fn series_measures_each_of_its_values() {
    for (series, values) in [
        ("locks", "1,150"),
        ("tracked", "1,150"),
        ("connections", "1,8"),
        ("body", "0,4096"),
        ("threads", "1,2"),
    ] {
        let report = ReportFile::new();
        let arguments =
            format!("--series {series} --values {values} --connections 4 --json {}", report.path());
        let run = loadtest(compare(&arguments)).await;
        run.is_as_expected().says(&format!("| {series} "));
        for value in values.split(',') {
            assert_eq!(samples(&report.read(), series, value).len(), 2, "{}", run.printed);
        }
    }
}

#[tokio::test]
async fn comparison_ended_early_leaves_no_process() {
    let scratch = Scratch::new();
    let report = ReportFile::new();
    let arguments = compare(&format!("--targets haproxy --workloads get --json {}", report.path()));
    // What it starts inherits this, and nothing else has it.
    let mark = ("TMPDIR", scratch.path().to_str().expect("a scratch directory's path is text"));
    let running = Running::start_with(&arguments, mark);
    until("all has started", async || running.log().contains("Ratios are to haproxy")).await;
    assert!(marked(mark.1) >= 5, "itself, a worker, etcd, HAProxy and fencepost");
    running.terminate();
    running.end().await.ended_with(1).says("ended before it was done");
    assert_eq!(marked(mark.1), 0);
    assert_eq!(report.read()["ended_early"], true);

    // Killed, it can end nothing: the system does.
    let running = Running::start_with(&arguments, mark);
    until("all has started", async || running.log().contains("Ratios are to haproxy")).await;
    drop(running);
    until("all has ended", async || marked(mark.1) == 0).await;
}

#[tokio::test]
async fn fencepost_that_does_not_start_ends_the_run() {
    let etcd = EtcdVersion::V3_5.binary();
    let etcd = etcd.to_str().expect("a path of the tests is text");
    let arguments =
        format!("compare --fencepost /bin/false --etcd-binary {etcd} --targets haproxy");
    loadtest(&arguments).await.ended_with(1).says("fencepost ended with");
}

/// How many processes have this directory for their temporary files.
fn marked(directory: &str) -> usize {
    let mark = format!("TMPDIR={directory}\0");
    let processes = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let environments =
        processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
    environments.filter(|environment| String::from_utf8_lossy(environment).contains(&mark)).count()
}

fn samples<'a>(report: &'a Value, what: &str, of: &str) -> Vec<&'a Value> {
    let samples = report["samples"].as_array().expect("samples are listed");
    samples.iter().filter(|sample| sample["what"] == what && sample["of"] == of).collect()
}

/// Two rounds. On a busy machine, what does not take as long may be over before the first answer.
fn compare(arguments: &str) -> String {
    let text = |path: &Path| path.to_str().expect("a path of the tests is text").to_owned();
    let (fencepost, etcd) = (text(fencepost_binary()), text(&EtcdVersion::V3_5.binary()));
    let common =
        format!("compare --fencepost {fencepost} --etcd-binary {etcd} --rounds 2 --seconds 0.8");
    format!("{common} --warm-up 100ms {arguments}")
}
