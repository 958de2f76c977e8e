//! Load on a server whose behaviour is known: what is counted must be what was sent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_testsupport::{Answer, Behaviour, Latch, Worker};
use serde_json::Value;

use crate::support::{ReportFile, Run, Running, loadtest};

#[tokio::test]
async fn a_closed_loop_counts_what_the_server_saw() {
    for protocol in [&[][..], &["--h2c", "--streams", "4"]] {
        let server = Worker::start().await;
        let (run, report) = load(&server, &[&["--connections", "2", "--body", "1000"], protocol].concat()).await;
        run.is_as_expected();
        let seen = server.seen();
        assert_eq!(report["answers"]["200"], seen.len(), "{report:#}");
        assert!(seen.iter().all(|request| request.body_bytes == 1000 && request.method == "POST"));
        assert!(seen.iter().all(|request| request.header("fence-owner") == Some("shard-1")));
        assert!(seen.iter().all(|request| request.header("fence-revision") == Some("7")));
        let connections = seen.iter().map(|request| request.connection).max();
        assert_eq!(connections, Some(1), "two connections were asked for");
    }
}

#[tokio::test]
async fn an_open_loop_sends_at_its_rate() {
    let server = Worker::start().await;
    let (run, report) = load(&server, &["--rate", "200", "--connections", "4"]).await;
    run.is_as_expected();
    assert_eq!(report["answers"]["200"], 200, "{report:#}");
}

/// One connection, and each answer takes 100 ms: of 20 requests due within a second ten are late by up to a second more. A
/// generator that counts from the sending would call them all fast.
#[tokio::test]
async fn an_open_loop_counts_the_wait_behind_a_slow_answer() {
    let server = Worker::start().await;
    let slow = Answer::ok("o").trickling(1, Duration::from_millis(100));
    server.when(move |_| Some(Behaviour::Answer(slow.clone())));
    let (_, report) = load(&server, &["--rate", "20", "--connections", "1"]).await;
    let max = report["latency"]["max_seconds"].as_f64().expect("something was measured");
    assert!(max > 0.5, "{report:#}");
}

#[tokio::test]
async fn a_status_that_was_not_expected_ends_with_1() {
    let server = Worker::start().await;
    let refusal = Answer::status(412, "").header("fence-reason", "stale-tenure");
    server.when(move |_| Some(Behaviour::Answer(refusal.clone())));
    let (run, report) = load(&server, &[]).await;
    run.ended_with(1).says("412 stale-tenure  UNEXPECTED");
    assert_eq!(report["answers"]["412 stale-tenure"], server.seen().len(), "{report:#}");
    load(&server, &["--expect", "412"]).await.0.is_as_expected();
}

#[tokio::test]
async fn requests_without_an_answer_are_counted() {
    let server = Worker::start().await;
    server.when(|_| Some(Behaviour::ResetEarly));
    let (run, report) = load(&server, &["--connections", "1"]).await;
    run.ended_with(1).says("NO ANSWER");
    assert!((3..50).contains(&server.seen().len()), "it tries again, after longer and longer pauses: {report:#}");
}

#[tokio::test]
async fn a_load_that_is_ended_early_prints_what_it_has_measured() {
    // The first answers come, then none.
    for pace in [&["--connections", "4"][..], &["--connections", "4", "--rate", "100"]] {
        let (server, report) = (Worker::start().await, ReportFile::new());
        let never = Latch::new();
        let (hold, seen) = (never.clone(), AtomicUsize::new(0));
        server.when(move |_| {
            let is_first = seen.fetch_add(1, Ordering::Relaxed) < 20;
            Some(if is_first {
                Behaviour::Answer(Answer::ok(""))
            } else {
                Behaviour::Hold(hold.clone(), Answer::ok(""))
            })
        });
        let url = server.endpoint().to_string();
        let what = ["load", "--proxy", &url, "--owner", "shard-1", "--revision", "7", "--seconds", "3600"];
        let running = Running::start(&[&what[..], &["--json", report.path()], pace].concat());
        server.wait_for(24).await;
        running.terminate();
        running.end().await.says("ended early, after").says("latency     of");
        let report = report.read();
        assert_eq!((&report["ended_early"], &report["answers"]["200"]), (&true.into(), &20.into()), "{report:#}");
        assert!(report["seconds"].as_f64() < Some(60.0), "{report:#}");
        never.open();
    }
}

/// They were left out, so that a server that hangs looked as fast as what it had answered, and for the minute that they were waited for, slow.
#[tokio::test]
async fn a_request_without_an_answer_counts_as_long_as_it_was_waited_for() {
    let (server, never, count) = (Worker::start().await, Latch::new(), AtomicUsize::new(0));
    server.when(move |_| {
        let hangs = count.fetch_add(1, Ordering::SeqCst) >= 10;
        hangs.then(|| Behaviour::Hold(never.clone(), Answer::ok("")))
    });
    let (run, report) = load(&server, &["--rate", "40", "--connections", "40"]).await;
    run.ended_with(1).says("NO ANSWER in time");
    let latency = &report["latency"];
    assert_eq!((&report["unanswered"], &latency["count"]), (&30.into(), &40.into()), "{report:#}");
    assert!(latency["p50_seconds"].as_f64() > Some(5.0), "{latency:#}");
    assert_eq!((&report["seconds"], &report["requests_per_second"]), (&1.0.into(), &10.0.into()), "{report:#}");
}

async fn load(server: &Worker, arguments: &[&str]) -> (Run, Value) {
    let (report, url) = (ReportFile::new(), server.endpoint().to_string());
    let common = ["load", "--proxy", &url, "--owner", "shard-1", "--revision", "7", "--seconds", "1"];
    let run = loadtest(&[&common[..], &["--json", report.path()], arguments].concat()).await;
    (run, report.read())
}
