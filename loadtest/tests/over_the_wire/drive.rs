//! `open` and `closed` on a server whose behaviour is known: what is counted must be what was sent, and what is wrong be found.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_testsupport::{Answer, Behaviour, Latch, Worker};
use serde_json::Value;

use crate::support::{ReportFile, Run, Running, loadtest};

/// A second is measured, after a quarter to warm up, with a token that is given.
const BRIEFLY: [&str; 8] = ["--owner", "shard-1", "--revision", "7", "--duration", "1s", "--warm-up", "250ms"];

#[tokio::test]
async fn a_closed_loop_sends_what_it_is_told_and_counts_what_the_server_saw() {
    for protocol in [&[][..], &["--h2", "--streams", "4"]] {
        let server = Worker::start().await;
        let more = ["--connections", "2", "--threads", "2", "--body", "1000", "--method", "PUT", "--path", "/a?b=c"];
        let (run, report) = drive("closed", &server, &[&more, protocol].concat()).await;
        run.is_as_expected();
        let seen = server.seen();
        assert_eq!(report["answered"], seen.len(), "{report:#}");
        assert!(
            seen.iter().all(|request| request.body_bytes == 1000 && request.method == "PUT" && request.path == "/a")
        );
        assert!(seen.iter().all(|request| request.header("fence-owner") == Some("shard-1")));
        assert!(seen.iter().all(|request| request.header("fence-revision") == Some("7")));
        assert_eq!(seen.iter().map(|request| request.connection).max(), Some(1), "two connections were asked for");
        assert!(report["requests_per_second"].as_f64() > Some(1.0), "{report:#}");
    }
}

#[tokio::test]
async fn a_connection_is_replaced_after_its_number_of_requests() {
    for protocol in [&[][..], &["--h2", "--streams", "3"]] {
        let server = Worker::start().await;
        let more = ["--connections", "1", "--rate", "100", "--requests-per-connection", "5"];
        let (run, _) = drive("open", &server, &[&more, protocol].concat()).await;
        run.is_as_expected();
        let mut requests = vec![0; 25];
        server.seen().iter().for_each(|request| requests[request.connection] += 1);
        assert_eq!(requests, [5; 25], "{protocol:?}");
    }
}

#[tokio::test]
async fn a_server_that_closes_after_each_answer_is_connected_to_again() {
    let server = Worker::start().await;
    let last = Answer::ok("bye").header("connection", "close").then_close();
    server.when(move |_| Some(Behaviour::Answer(last.clone())));
    drive("open", &server, &["--connections", "2", "--rate", "100"]).await.0.is_as_expected();
}

#[tokio::test]
async fn answers_in_chunks_are_read_to_their_ends() {
    let server = Worker::start().await;
    let chunks = Answer::ok("abcdefgh").trickling(3, Duration::from_millis(1));
    server.when(move |_| Some(Behaviour::Answer(chunks.clone())));
    let (run, report) = drive("closed", &server, &["--connections", "2"]).await;
    run.is_as_expected();
    assert!(report["answered"].as_u64() > Some(20), "{report:#}");
}

#[tokio::test]
async fn an_open_loop_sends_at_its_rate_over_all_threads() {
    let server = Worker::start().await;
    let (run, report) = drive("open", &server, &["--rate", "200", "--connections", "4", "--threads", "3"]).await;
    run.is_as_expected();
    assert_eq!(report["answered"], 250, "{report:#}");
    assert_eq!(report["latency"]["count"], 200, "what was due in the warm-up is not measured: {report:#}");
}

/// The server stalls once, for 300 ms. Of the 200 requests that are due within the second that is measured 60 are due in the
/// stall, each of them late by what was left of it: a tenth of all by at least 200 ms. A generator that counts from the sending
/// would find one slow request.
#[tokio::test]
async fn a_stall_shows_in_every_request_that_was_due_in_it() {
    let (server, stall, count) = (Worker::start().await, Latch::new(), AtomicUsize::new(0));
    let held = stall.clone();
    server.when(move |_| {
        let is_the_one = count.fetch_add(1, Ordering::SeqCst) == 100;
        is_the_one.then(|| Behaviour::Hold(held.clone(), Answer::ok("at last")))
    });
    let stalling = async {
        server.wait_for(101).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        stall.open();
    };
    let driving = drive("open", &server, &["--rate", "200", "--connections", "1"]);
    let ((_, report), ()) = tokio::join!(driving, stalling);
    let latency = |name: &str| report["latency"][name].as_f64().expect("it was measured");
    assert!(latency("max_seconds") >= 0.29 && latency("p90_seconds") >= 0.19, "{:#}", report["latency"]);
    let slots = report["over_time"]["slots"].as_array().expect("there are slots of time");
    let slow = slots.iter().filter(|slot| slot["latency"]["max_seconds"].as_f64() > Some(0.1)).count();
    assert!(slow >= 4, "50 ms each, and 200 ms of requests late by 100: {:#}", report["over_time"]);
}

/// Nothing fences here: each stale request is served.
#[tokio::test]
async fn superseded_requests_that_are_served_are_false_admissions() {
    let server = Worker::start().await;
    let (run, report) = drive("open", &server, &["--rate", "200", "--stale", "10%", "--connections", "4"]).await;
    run.ended_with(1).says("FALSE ADMISSION");
    let stale = server.seen().iter().filter(|request| request.header("fence-revision") == Some("6")).count();
    assert!((20..=25).contains(&stale), "a tenth of 250, but for those before anybody was served: {stale}");
    assert_eq!(report["false_admissions"], stale, "{report:#}");
    assert_eq!(report["false_refusals"], 0, "{report:#}");
}

#[tokio::test]
async fn refusals_of_the_holder_are_false_and_those_of_stale_requests_are_right() {
    let server = Worker::start().await;
    server.when(|seen| {
        let refusal = Answer::status(412, "").header("fence-reason", "stale-tenure");
        let is_refused = seen.header("fence-revision") == Some("6") || seen.order % 10 == 0;
        is_refused.then_some(Behaviour::Answer(refusal))
    });
    let (run, report) = drive("open", &server, &["--rate", "200", "--stale", "10%", "--connections", "1"]).await;
    run.ended_with(1).says("412 stale-tenure  FALSE REFUSAL");
    let refused =
        server.seen().iter().filter(|seen| seen.header("fence-revision") == Some("7") && seen.order % 10 == 0).count();
    assert_eq!(report["false_refusals"], refused, "{report:#}");
    assert_eq!(report["false_admissions"], 0, "{report:#}");
    assert!(report["latency_of_refusals"]["count"].as_u64() >= Some(15), "{report:#}");
}

#[tokio::test]
async fn neither_served_nor_refused_is_unexpected_and_no_answer_is_told() {
    let server = Worker::start().await;
    server.when(|_| Some(Behaviour::Answer(Answer::status(502, ""))));
    let (run, report) = drive("closed", &server, &["--connections", "1"]).await;
    run.ended_with(1).says("502  UNEXPECTED");
    assert_eq!(report["unexpected"], server.seen().len(), "{report:#}");

    let server = Worker::start().await;
    server.when(|_| Some(Behaviour::ResetEarly));
    let (run, _) = drive("closed", &server, &["--connections", "1"]).await;
    run.ended_with(1).says("NO ANSWER");
    // A lane gives up after ten in a row.
    assert_eq!(server.seen().len(), 10);
}

#[tokio::test]
async fn a_request_that_is_never_answered_is_told_and_the_run_ends() {
    let (server, never) = (Worker::start().await, Latch::new());
    server.when(move |_| Some(Behaviour::Hold(never.clone(), Answer::ok(""))));
    let (run, report) = drive("open", &server, &["--rate", "10", "--connections", "2"]).await;
    run.ended_with(1).says("NO ANSWER in time").says("were due and not sent");
    assert_eq!((report["unanswered"].as_u64(), report["unsent"].as_u64()), (Some(2), Some(10)), "{report:#}");
}

#[tokio::test]
async fn a_run_that_is_ended_early_prints_what_it_has_measured() {
    for command in [&["closed"][..], &["open", "--rate", "100"]] {
        let (server, report) = (Worker::start().await, ReportFile::new());
        let url = server.endpoint().to_string();
        let settings =
            ["--proxy", &url, "--owner", "a", "--revision", "7", "--duration", "1h", "--json", report.path()];
        let running = Running::start(&[command, &settings].concat());
        server.wait_for(20).await;
        running.terminate();
        let run = running.end().await;
        run.is_as_expected().says("ended early").says("latency");
        assert!(report.read()["answered"].as_u64() >= Some(20));
    }
}

#[tokio::test]
async fn bad_arguments_are_named() {
    let common = ["closed", "--proxy", "http://127.0.0.1:1"];
    let locks = ["--etcd", "http://127.0.0.1:1"];
    for (arguments, said) in [
        (&[][..], "<--etcd <URL>|--owner <OWNER>>"),
        (&["--owner", "a", "--revision", "0"], "0 is not in 1.."),
        (&["--owner", "a", "--revision", "1", "--stale", "5%"], "there is no revision before 1"),
        (&["--owner", "a", "--revision", "7", "--stale", "5"], "a share is written like 5%"),
        (&["--owner", "a", "--revision", "7", "--duration", "10"], "--duration"),
        (&["--owner", "a", "--revision", "7", "--path", "a"], "a path starts with"),
        (&["--owner", "a", "--revision", "7", "--streams", "4"], "--h2"),
        (&["--owner", "a", "--revision", "7", "--threads", "65"], "needs at least one of --connections"),
        (&["--owner", "a", "--revision", "7", "--handoff-every", "1s"], "--etcd"),
        (&[locks[0], locks[1]], "--lock"),
        (&[locks[0], locks[1], "--lock", "/a", "--locks", "2"], "--lock /locks/{n}"),
        (&[locks[0], locks[1], "--lock", "/a/{n}", "--locks", "2"], "--lock-header"),
    ] {
        loadtest(&[&common, arguments].concat()).await.ended_with(64).says(said);
    }
    loadtest(&["open", "--proxy", "http://127.0.0.1:1", "--owner", "a", "--revision", "7"])
        .await
        .ended_with(64)
        .says("--rate");
    loadtest(&["compare"]).await.ended_with(64).says("--fencepost");
}

async fn drive(command: &str, server: &Worker, arguments: &[&str]) -> (Run, Value) {
    let (report, url) = (ReportFile::new(), server.endpoint().to_string());
    let common = [command, "--proxy", &url, "--json", report.path()];
    let run = loadtest(&[&common[..], &BRIEFLY, arguments].concat()).await;
    (run, report.read())
}
