//! `open` and `closed` on a server whose behaviour is known: what is counted must be what was sent,
//! and what is wrong be found.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_tests::{Answer, Behaviour, FreePort, Latch, Seen, Worker};
use serde_json::Value;

use crate::support::{ReportFile, Run, Running, loadtest};

/// A second is measured, after a quarter to warm up, with a token that is given.
const BRIEFLY: &str = "--owner shard-1 --revision 7 --duration 1s --warm-up 250ms";

#[tokio::test]
async fn closed_loop_counts_what_the_server_saw() {
    for protocol in ["", "--chunked", "--h2 --streams 4"] {
        let server = Worker::start().await;
        let more = "--connections 2 --body 1000 --method PUT --path /a?b=c";
        let (run, report) = drive("closed", &server, format!("{more} {protocol}")).await;
        run.is_as_expected();
        let seen = server.seen();
        assert_eq!(report["answered"], seen.len(), "{report:#}");
        assert!(seen.iter().all(|request| request.body_bytes == 1000
            && request.method == "PUT"
            && request.path == "/a"));
        let coding = protocol.contains("--chunked").then_some("chunked");
        assert!(
            seen.iter().all(|request| request.header("transfer-encoding") == coding),
            "{protocol:?}"
        );
        assert!(seen.iter().all(|request| request.header("fence-owner") == Some("shard-1")));
        assert!(seen.iter().all(|request| request.header("fence-revision") == Some("7")));
        assert_eq!(
            seen.iter().map(|request| request.connection).max(),
            Some(1),
            "two connections were asked for"
        );
        assert!(report["requests_per_second"].as_f64() > Some(1.0), "{report:#}");
    }
}

#[tokio::test]
async fn cpu_time_of_the_proxy_is_told_where_asked() {
    let (server, process) = (Worker::start().await, std::process::id().to_string());
    let (run, report) = drive("closed", &server, format!("--proxy-pid {process}")).await;
    run.is_as_expected().says("µs of CPU per answer");
    assert!(report["proxy_cpu"]["micros_per_request"].as_f64() > Some(1.0), "{report:#}");
}

#[tokio::test]
async fn open_loop_sends_at_its_rate() {
    let server = Worker::start().await;
    let (run, report) = drive("open", &server, "--rate 200 --connections 4").await;
    run.is_as_expected();
    assert_eq!(report["answered"], 250, "{report:#}");
    assert_eq!(
        report["latency"]["count"], 200,
        "what was due in the warm-up is not measured: {report:#}"
    );
}

/// The server stalls once, for 300 ms. Of the 200 requests that are due within the second that is
/// measured 60 are due in the stall, each of them late by what was left of it: a tenth of all by at
/// least 200 ms. A generator that counts from the sending would find one slow request.
#[tokio::test]
async fn stall_shows_in_every_request_due_in_it() {
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
    let driving = drive("open", &server, "--rate 200 --connections 1");
    let ((run, report), ()) = tokio::join!(driving, stalling);
    run.says("for a connection, all being taken");
    assert_eq!(report["generator"]["was_the_limit"], false, "{report:#}");
    let latency = |name: &str| report["latency"][name].as_f64().expect("it was measured");
    assert!(
        latency("max_seconds") >= 0.29 && latency("p90_seconds") >= 0.19,
        "{:#}",
        report["latency"]
    );
}

#[tokio::test]
async fn served_superseded_requests_are_false_admissions() {
    let server = Worker::start().await;
    let (run, report) = drive("open", &server, "--rate 200 --stale 10% --connections 4").await;
    run.ended_with(1).says("FALSE ADMISSION");
    let is_stale = |request: &&Seen| request.header("fence-revision") == Some("6");
    let stale = server.seen().iter().filter(is_stale).count();
    // A tenth of 250, but for those before anybody was served.
    assert!((10..=25).contains(&stale), "{stale}");
    assert_eq!(report["false_admissions"], stale, "{report:#}");
    assert_eq!(report["false_refusals"], 0, "{report:#}");
}

#[tokio::test]
async fn refused_holder_is_a_false_refusal() {
    let server = Worker::start().await;
    server.when(|seen| {
        let refusal = Answer::status(412, "").header("fence-reason", "stale-tenure");
        let is_refused = seen.header("fence-revision") == Some("6") || seen.order % 10 == 0;
        is_refused.then_some(Behaviour::Answer(refusal))
    });
    let (run, report) = drive("open", &server, "--rate 200 --stale 10% --connections 1").await;
    run.ended_with(1).says("412 stale-tenure  FALSE REFUSAL");
    let refused = server
        .seen()
        .iter()
        .filter(|seen| seen.header("fence-revision") == Some("7") && seen.order % 10 == 0)
        .count();
    assert_eq!(report["false_refusals"], refused, "{report:#}");
    assert_eq!(report["false_admissions"], 0, "{report:#}");
    assert!(report["latency_of_refusals"]["count"].as_u64() >= Some(15), "{report:#}");
}

#[tokio::test]
async fn lock_unknown_to_the_proxy_is_pointed_out() {
    for (reason, is_pointed_out) in [("no-owner", true), ("not-owner", false)] {
        let server = Worker::start().await;
        let refusal = Answer::status(412, "").header("fence-reason", reason);
        server.when(move |_| Some(Behaviour::Answer(refusal.clone())));
        let (run, report) = drive("closed", &server, "--connections 1").await;
        run.ended_with(1).says("FALSE REFUSAL");
        let warnings = report["warnings"].to_string();
        assert_eq!(
            warnings.contains("does the proxy have this --lock, --layout and --etcd?"),
            is_pointed_out,
            "{warnings}"
        );
    }
}

#[tokio::test]
async fn put_off_holders_are_counted_by_reason() {
    let server = Worker::start().await;
    server.when(|seen| {
        let reason = if seen.order % 20 == 0 { "draining" } else { "unverifiable" };
        let put_off =
            Answer::status(503, "").header("fence-reason", reason).header("retry-after", "1");
        (seen.order % 10 == 0).then_some(Behaviour::Answer(put_off))
    });
    let (run, report) = drive("open", &server, "--rate 200 --connections 1").await;
    run.ended_with(2)
        .says("503 unverifiable  PUT OFF")
        .says("0 false refusals, 0 false admissions");
    assert!(report["latency_until_put_off"]["count"].as_u64() >= Some(15), "{report:#}");
    run.says("requests were put off with 503");
    let seen = server.seen();
    let of = |every: usize| seen.iter().filter(|seen| seen.order % every == 0).count();
    let reasons = serde_json::json!({ "draining": of(20), "unverifiable": of(10) - of(20) });
    assert_eq!(report["put_off"], of(10), "{report:#}");
    assert_eq!(report["put_off_by_reason"], reasons, "{report:#}");
    assert_eq!(report["false_refusals"], 0, "{report:#}");
    assert_eq!(report["as_expected"], false, "{report:#}");
}

#[tokio::test]
async fn proxy_that_starts_is_waited_for() {
    let worker = FreePort::reserve();
    let (address, url) = (worker.address().to_string(), format!("http://{}", worker.address()));
    let running = Running::start(format!("closed --proxy {url} --connections 1 {BRIEFLY}"));
    let beside =
        format!("closed --proxy {url} --worker-listen {address} --connections 1 --duration 5s");
    let _worker = Running::start(format!("{beside} --owner shard-1 --revision 7"));
    running.end().await.is_as_expected();
}

#[tokio::test]
async fn run_ends_though_requests_are_never_answered() {
    let (server, never) = (Worker::start().await, Latch::new());
    server.when(move |_| Some(Behaviour::Hold(never.clone(), Answer::ok(""))));
    let (run, report) = drive("open", &server, "--rate 10 --connections 2").await;
    run.ended_with(1).says("NO ANSWER in time").says("were due and not sent");
    assert_eq!(report["unanswered"], 2, "{report:#}");
    assert_eq!(report["unsent"], 10, "{report:#}");
    run.says("had no answer in time");
    // Those that were sent were due in the warm-up. The other nine had waited until the run was
    // over.
    let latency = &report["latency"];
    assert!(latency["count"] == 9 && latency["p50_seconds"].as_f64() > Some(5.0), "{report:#}");
}

#[tokio::test]
async fn unanswered_request_counts_as_long_as_it_waited() {
    let (server, never, count) = (Worker::start().await, Latch::new(), AtomicUsize::new(0));
    server.when(move |_| {
        let hangs = count.fetch_add(1, Ordering::SeqCst) >= 20;
        hangs.then(|| Behaviour::Hold(never.clone(), Answer::ok("")))
    });
    let (_, report) = drive("open", &server, "--rate 40 --connections 40").await;
    let latency = &report["latency"];
    assert_eq!(
        (&report["answered"], &report["unanswered"], &latency["count"]),
        (&20.into(), &30.into(), &40.into())
    );
    assert!(latency["p50_seconds"].as_f64() > Some(5.0), "{latency:#}");
}

#[tokio::test]
async fn run_ended_early_prints_what_it_measured() {
    for command in ["closed", "open --rate 100"] {
        let (server, report) = (Worker::start().await, ReportFile::new());
        let url = server.endpoint().to_string();
        let settings =
            format!("--proxy {url} --owner a --revision 7 --duration 1h --json {}", report.path());
        let running = Running::start(format!("{command} {settings}"));
        server.wait_for(20).await;
        running.terminate();
        let run = running.end().await;
        run.is_as_expected().says("ended early").says("latency");
        assert!(report.read()["answered"].as_u64() >= Some(20));
    }
}

#[tokio::test]
async fn bad_arguments_are_named() {
    let token = "--owner a --revision 7";
    let lock = "--etcd http://127.0.0.1:1 --lock /a";
    let many = "--etcd http://127.0.0.1:1 --locks 2 --lock";
    for (given, more, words) in [
        ("", "", "<--etcd <ETCD>|--owner <OWNER>>"),
        ("--owner a --revision 0", "", "--revision"),
        ("--owner a --revision 1", "--stale 5%", "there is no revision before 1"),
        ("--owner= --revision 7", "", "is not visible ASCII"),
        (token, "--stale 5", "a share is written like 5%"),
        (token, "--duration 10", "--duration"),
        (token, "--duration 0s", "it must be longer than 0s"),
        (token, "--path a", "a path starts with"),
        (token, "--streams 4", "--h2"),
        (token, "--chunked", "--body"),
        (token, "--connections 99999999999", "1..=1000000"),
        (token, "--h2 --connections 1000 --streams 1001", "more than 1000000 streams"),
        (token, "--body 99999999999999", "--body"),
        (token, "--handoff-every 1s", "--etcd"),
        (token, "--worker-takes 1s", "--worker-listen"),
        ("--etcd http://127.0.0.1:1", "", "--lock"),
        (lock, "--handoff-every 11s", "no lock would move"),
        (many, "/a", "--lock /locks/{n}"),
        (many, "/a/{n}", "--lock-header"),
    ] {
        let common = "closed --proxy http://127.0.0.1:1";
        loadtest(format!("{common} {given} {more}")).await.ended_with(64).says(words);
    }
    for (more, words) in [
        ("", "--rate"),
        ("--rate 0", "it is a whole number from 1 to 10000000"),
        ("--rate 10000001", "it is a whole number from 1 to 10000000"),
        ("--rate 1 --duration 100ms --warm-up 0s", "no request is due within 100ms"),
        ("--rate 1 --duration 100ms --warm-up 0s", "Usage: fencepost-loadtest open "),
    ] {
        let common = "open --proxy http://127.0.0.1:1";
        loadtest(format!("{common} {token} {more}")).await.ended_with(64).says(words);
    }
    for (more, words) in [
        ("--idle-connections 9901", "1..=9900"),
        ("--connections 9901", "1..=9900"),
        ("--series=locks --values=99999999999999", "--values"),
        ("--series=body --values=18446744073709551615", "--values"),
    ] {
        let common = "compare --fencepost /bin/true";
        loadtest(format!("{common} {more}")).await.ended_with(64).says(words);
    }
    loadtest("compare").await.ended_with(64).says("--fencepost");
}

async fn drive(command: &str, server: &Worker, arguments: impl AsRef<str>) -> (Run, Value) {
    let arguments = arguments.as_ref();
    let (report, url) = (ReportFile::new(), server.endpoint().to_string());
    let common = format!("{command} --proxy {url} --json {}", report.path());
    let run = loadtest(format!("{common} {BRIEFLY} {arguments}")).await;
    (run, report.read())
}
