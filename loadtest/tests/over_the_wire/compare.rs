//! fencepost beside HAProxy, as processes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fencepost_tests::{EtcdVersion, Scratch, eventually};
use serde_json::Value;

use crate::support::{ReportFile, Run, Running, fencepost_binary, loadtest};

#[tokio::test]
async fn fencepost_is_measured_beside_installed_peers() {
    let absent = ["--targets", "haproxy,envoy", "--envoy-binary", "/no/such/envoy", "--idle-connections", "20"];
    let workloads = ["get", "get64k", "post1k-chunked", "stale", "stale-post1k", "churn", "idle"];
    let (run, report) = are_measured(&workloads, &absent).await;
    run.says("envoy is not installed");
    for of in ["haproxy", "fencepost"] {
        let [idle] = samples(&report, "idle", of)[..] else { panic!("{report:#}") };
        assert!(idle["memory_bytes_at_start"].as_u64() > Some(1 << 20), "{idle:#}");
    }
}

#[tokio::test]
async fn http2_and_tls_are_measured_beside_haproxy() {
    are_measured(&["h2c", "h2c4k", "h2c-stale", "get-tls", "h2-tls", "new-tls"], &["--targets", "haproxy"]).await;
}

/// Measures these, and finds in the report what both took for each that is about time: what was said, and the report.
async fn are_measured(workloads: &[&str], more: &[&str]) -> (Run, Value) {
    let report = ReportFile::new();
    let arguments = ["--workloads", &workloads.join(","), "--connections", "4", "--json", report.path()];
    let arguments = compare(&[&arguments[..], more].concat());
    let run = loadtest(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
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
    let arguments = compare(&["--workloads", "get", "--connections", "4", "--json", report.path(), "--targets"]);
    let run = loadtest(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    run.is_as_expected().says("Ratios are to fencepost");
    assert_eq!(report.read()["samples"].as_array().map(Vec::len), Some(2), "{}", run.printed);
}

#[tokio::test]
async fn series_measures_each_of_its_values() {
    for (series, values) in
        [("locks", "1,150"), ("tracked", "1,150"), ("connections", "1,8"), ("body", "0,4096"), ("threads", "1,2")]
    {
        let report = ReportFile::new();
        let arguments = ["--series", series, "--values", values, "--connections", "4", "--json", report.path()];
        let run = loadtest(&compare(&arguments).iter().map(String::as_str).collect::<Vec<_>>()).await;
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
    let arguments = compare(&["--targets", "haproxy", "--workloads", "get", "--json", report.path()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // What it starts inherits this, and nothing else has it.
    let mark = ("TMPDIR", scratch.path().to_str().expect("a scratch directory's path is text"));
    let running = Running::start_with(&arguments, mark);
    eventually("all has started", async || running.log().contains("Ratios are to haproxy").then_some(())).await;
    assert!(marked(mark.1) >= 5, "itself, a worker, etcd, HAProxy and fencepost");
    running.terminate();
    running.end().await.ended_with(1).says("ended before it was done");
    assert_eq!(marked(mark.1), 0);
    assert_eq!(report.read()["ended_early"], true);

    // Killed, it can end nothing: the system does.
    let running = Running::start_with(&arguments, mark);
    eventually("all has started", async || running.log().contains("Ratios are to haproxy").then_some(())).await;
    drop(running);
    eventually("all has ended", async || (marked(mark.1) == 0).then_some(())).await;
}

/// Its help says so, and it was in the JSON alone.
#[tokio::test]
async fn comparison_ended_early_prints_its_samples() {
    let arguments = compare(&["--targets", "haproxy", "--workloads", "get", "--connections", "4"]);
    let arguments: Vec<&str> = arguments.iter().map(|word| if word == "2" { "20" } else { word.as_str() }).collect();
    let running = Running::start(&arguments);
    eventually("some is measured", async || running.log().contains("(10 %)").then_some(())).await;
    running.terminate();
    running.end().await.ended_with(1).says("ended before it was done").says("| fencepost ").says("| haproxy ");
}

#[tokio::test]
async fn fencepost_that_does_not_start_ends_the_run() {
    let etcd = EtcdVersion::V3_5.binary();
    let etcd = etcd.to_str().expect("a path of the tests is text");
    let arguments = ["compare", "--fencepost", "/bin/false", "--etcd-binary", etcd, "--targets", "haproxy"];
    loadtest(&arguments).await.ended_with(1).says("fencepost ended with");
}

/// It serves the first workload, and does not start again for the second.
#[tokio::test]
async fn samples_before_a_failure_are_written() {
    let (report, scratch) = (ReportFile::new(), Scratch::new());
    let (envoy, started) = (scratch.path().join("envoy"), scratch.path().join("started"));
    let started = started.display();
    let script = format!(
        r#"#!/bin/sh -e
mkdir '{started}'
address=$(sed -n 's/.*address: \([0-9.]*\), port_value: \([0-9]*\).*/\1:\2/p' "$2" | head -n 1)
exec '{worker}' worker --listen "$address"
"#,
        worker = env!("CARGO_BIN_EXE_fencepost-loadtest"),
    );
    std::fs::write(&envoy, script).expect("a scratch directory can be written");
    std::fs::set_permissions(&envoy, Permissions::from_mode(0o755)).expect("its files are ours");
    let arguments =
        ["--targets", "envoy", "--envoy-binary", envoy.to_str().expect("a scratch directory's path is text")];
    let arguments = compare(&[&arguments[..], &["--workloads", "get,idle", "--json", report.path()]].concat());
    let run = loadtest(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    run.ended_with(1).says("envoy ended with");
    let report = report.read();
    assert!(report["broke_off"].as_str().is_some_and(|why| why.contains("envoy ended with")), "{report:#}");
    assert_eq!(samples(&report, "get", "envoy").len(), 2, "{report:#}");
    assert_eq!(samples(&report, "get", "fencepost").len(), 2, "{report:#}");
    assert!(report["run"]["arguments"].to_string().contains("\"--workloads\",\"get,idle\""), "{report:#}");
}

/// How many processes have this directory for their temporary files.
fn marked(directory: &str) -> usize {
    let mark = format!("TMPDIR={directory}\0");
    let processes = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let environments = processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
    environments.filter(|environment| String::from_utf8_lossy(environment).contains(&mark)).count()
}

fn samples<'a>(report: &'a Value, what: &str, of: &str) -> Vec<&'a Value> {
    let samples = report["samples"].as_array().expect("samples are listed");
    samples.iter().filter(|sample| sample["what"] == what && sample["of"] == of).collect()
}

/// Two rounds. On a busy machine, what does not take as long may be over before the first answer.
fn compare(arguments: &[&str]) -> Vec<String> {
    let text = |path: &Path| path.to_str().expect("a path of the tests is text").to_owned();
    let (fencepost, etcd) = (text(fencepost_binary()), text(&EtcdVersion::V3_5.binary()));
    let common = ["compare", "--fencepost", &fencepost, "--etcd-binary", &etcd, "--rounds", "2", "--seconds", "0.8"];
    let common = [&common[..], &["--warm-up", "100ms"]].concat();
    common.iter().chain(arguments).map(|argument| (*argument).to_owned()).collect()
}
