//! `open` and `closed` on a server whose behaviour is known: what is counted must be what was sent, and what is wrong be found.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_testsupport::{Answer, Authority, Behaviour, FreePort, Latch, Scratch, Worker};
use serde_json::Value;

use crate::support::{ReportFile, Run, Running, loadtest};

/// A second is measured, after a quarter to warm up, with a token that is given.
const BRIEFLY: [&str; 8] = ["--owner", "shard-1", "--revision", "7", "--duration", "1s", "--warm-up", "250ms"];

#[tokio::test]
async fn a_closed_loop_sends_what_it_is_told_and_counts_what_the_server_saw() {
    for protocol in [&[][..], &["--chunked"], &["--h2", "--streams", "4"]] {
        let server = Worker::start().await;
        let more = ["--connections", "2", "--threads", "2", "--body", "1000", "--method", "PUT", "--path", "/a?b=c"];
        let (run, report) = drive("closed", &server, &[&more, protocol].concat()).await;
        run.is_as_expected();
        let seen = server.seen();
        assert_eq!(report["answered"], seen.len(), "{report:#}");
        assert!(
            seen.iter().all(|request| request.body_bytes == 1000 && request.method == "PUT" && request.path == "/a")
        );
        let coding = protocol.contains(&"--chunked").then_some("chunked");
        assert!(seen.iter().all(|request| request.header("transfer-encoding") == coding), "{protocol:?}");
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
    let ((run, report), ()) = tokio::join!(driving, stalling);
    run.says("for a connection, all being taken");
    assert_eq!(report["generator"]["was_the_limit"], false, "{report:#}");
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
    assert!((10..=25).contains(&stale), "a tenth of 250, but for those before anybody was served: {stale}");
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

/// Each of a hundred thousand was a false refusal, and nothing said what is the matter mostly.
#[tokio::test]
async fn a_lock_that_the_proxy_does_not_know_is_pointed_out() {
    for (reason, is_pointed_out) in [("no-owner", true), ("not-owner", false)] {
        let server = Worker::start().await;
        let refusal = Answer::status(412, "").header("fence-reason", reason);
        server.when(move |_| Some(Behaviour::Answer(refusal.clone())));
        let (run, report) = drive("closed", &server, &["--connections", "1"]).await;
        run.ended_with(1).says("FALSE REFUSAL");
        let warnings = report["warnings"].to_string();
        assert_eq!(
            warnings.contains("does the proxy have this --lock, --layout and --etcd?"),
            is_pointed_out,
            "{warnings}"
        );
    }
}

/// The server loses its store for a while. What it says then is no verdict.
#[tokio::test]
async fn a_holder_who_is_put_off_is_counted_by_reason_and_not_as_a_false_refusal() {
    let (server, scratch) = (Worker::start().await, Scratch::new());
    let page = scratch.path().join("report.html");
    let html = page.to_str().expect("a scratch directory's path is text");
    server.when(|seen| {
        let reason = if seen.order % 20 == 0 { "draining" } else { "unverifiable" };
        let put_off = Answer::status(503, "").header("fence-reason", reason).header("retry-after", "1");
        (seen.order % 10 == 0).then_some(Behaviour::Answer(put_off))
    });
    let more = ["--rate", "200", "--connections", "1", "--html", html];
    let (run, report) = drive("open", &server, &more).await;
    run.ended_with(2).says("503 unverifiable  PUT OFF").says("0 false refusals, false admissions not tried");
    assert!(report["latency_until_put_off"]["count"].as_u64() >= Some(15), "{report:#}");
    run.says("requests were put off with 503 (");
    let seen = server.seen();
    let of = |every: usize| seen.iter().filter(|seen| seen.order % every == 0).count();
    let reasons = serde_json::json!({ "draining": of(20), "unverifiable": of(10) - of(20) });
    assert_eq!((&report["put_off"], &report["put_off_by_reason"]), (&of(10).into(), &reasons), "{report:#}");
    assert_eq!((&report["false_refusals"], &report["as_expected"]), (&0.into(), &false.into()), "{report:#}");
    let slots = report["over_time"]["slots"].as_array().expect("there are slots of time");
    let in_slots = |name: &str| slots.iter().filter_map(|slot| slot[name].as_u64()).sum::<u64>();
    assert!(in_slots("put_off") >= 15 && in_slots("wrong") == 0, "{report:#}");
    let page = std::fs::read_to_string(&page).expect("the page was written");
    assert!(page.contains("not everybody was served") && page.contains("data put-off"), "{page}");
    assert!(!page.contains("class=\"bad\" style") && !page.contains("tile bad"), "{page}");
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
    let scratch = Scratch::new();
    let page = scratch.path().join("report.html");
    let html = page.to_str().expect("a scratch directory's path is text");
    let (run, report) = drive("closed", &server, &["--connections", "1", "--html", html]).await;
    let seen = server.seen().len();
    run.ended_with(1).says("NO ANSWER").says(&format!("{seen} requests failed: what they took is told apart"));
    assert!((3..50).contains(&seen), "it tries again, after longer and longer pauses: {report:#}");
    let page = std::fs::read_to_string(&page).expect("the page was written");
    assert!(page.contains("no answer: the connection") && page.contains("nobody was judged wrongly"), "{page}");
    assert!(page.contains("data missing") && page.contains("tile missing"), "{page}");
    assert!(!page.contains("class=\"bad\" style") && !page.contains("tile bad"), "{page}");
}

/// As a proxy is that is started again.
#[tokio::test]
async fn a_server_that_fails_for_a_while_is_measured_when_it_is_back() {
    for command in [&["closed"][..], &["open", "--rate", "100"]] {
        let (server, report, count) = (Worker::start().await, ReportFile::new(), AtomicUsize::new(0));
        server.when(move |_| (count.fetch_add(1, Ordering::SeqCst) < 12).then_some(Behaviour::ResetEarly));
        let url = server.endpoint().to_string();
        let settings = ["--proxy", &url, "--owner", "a", "--revision", "7", "--duration", "3s", "--connections", "1"];
        loadtest(&[command, &settings, &["--json", report.path()]].concat()).await.ended_with(1);
        let report = report.read();
        let failed: u64 =
            report["errors"].as_object().into_iter().flat_map(|errors| errors.values()).filter_map(Value::as_u64).sum();
        assert_eq!(failed, 12, "{report:#}");
        assert!(report["answered"].as_u64() > Some(20), "{report:#}");
        assert_eq!(report["seconds"], 3.0, "{report:#}");
    }
}

/// The commands of the page on performance start one beside it.
#[tokio::test]
async fn a_proxy_that_was_started_just_now_is_waited_for() {
    let worker = FreePort::reserve();
    let (address, url) = (worker.address().to_string(), format!("http://{}", worker.address()));
    let running = Running::start(&[&["closed", "--proxy", &url, "--connections", "1"], &BRIEFLY[..]].concat());
    let beside = ["closed", "--proxy", &url, "--worker-listen", &address, "--connections", "1", "--duration", "5s"];
    let _worker = Running::start(&[&beside[..], &BRIEFLY[..4]].concat());
    running.end().await.is_as_expected();
}

#[tokio::test]
async fn a_head_is_answered_without_a_body_by_the_worker_that_is_played() {
    let worker = FreePort::reserve();
    let (address, url) = (worker.address().to_string(), format!("http://{}", worker.address()));
    let wire = ["closed", "--proxy", &url, "--worker-listen", &address, "--connections", "1", "--method", "HEAD"];
    loadtest(&[&wire[..], &BRIEFLY].concat()).await.is_as_expected();
}

/// It passed: nothing was out of order at a worker that nothing had reached.
#[tokio::test]
async fn a_worker_that_is_not_the_one_behind_the_proxy_is_told() {
    let (server, worker) = (Worker::start().await, FreePort::reserve());
    let address = worker.address().to_string();
    let (run, report) = drive("closed", &server, &["--worker-listen", &address, "--connections", "1"]).await;
    run.ended_with(1).says("is --worker-listen the proxy's upstream?");
    assert_eq!(report["worker"]["requests"], 0, "{report:#}");
    assert_eq!(report["worker"]["done_elsewhere"], report["answered"], "{report:#}");
}

#[tokio::test]
async fn a_report_that_cannot_be_written_is_named_before_anything_is_sent() {
    let server = Worker::start().await;
    let url = server.endpoint().to_string();
    for option in ["--json", "--html"] {
        let wire = ["closed", "--proxy", &url, option, "/nowhere/report"];
        loadtest(&[&wire[..], &BRIEFLY].concat()).await.ended_with(1).says("/nowhere/report cannot be written");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_request_that_is_never_answered_is_told_and_the_run_ends() {
    let (server, never) = (Worker::start().await, Latch::new());
    server.when(move |_| Some(Behaviour::Hold(never.clone(), Answer::ok(""))));
    let (run, report) = drive("open", &server, &["--rate", "10", "--connections", "2"]).await;
    run.ended_with(1).says("NO ANSWER in time").says("were due and not sent");
    assert_eq!((report["unanswered"].as_u64(), report["unsent"].as_u64()), (Some(2), Some(10)), "{report:#}");
    run.says("had no answer when it was not waited for any more");
    // Those that were sent were due in the warm-up. The nine that were due within the second that is measured had waited until the run was over.
    let latency = &report["latency"];
    assert!(latency["count"] == 9 && latency["p50_seconds"].as_f64() > Some(5.0), "{report:#}");
    let slots = report["over_time"]["slots"].as_array().expect("there are slots of time");
    assert_eq!(slots.iter().filter_map(|slot| slot["unsent"].as_u64()).sum::<u64>(), 9, "{report:#}");
    let busy_within = report["generator"]["cpu_measured_seconds"].as_f64();
    assert!(busy_within < Some(6.0), "not while the last answers were waited for: {report:#}");
}

/// What is never answered would have taken longer than whatever was: it is none of the fast ones.
#[tokio::test]
async fn a_request_without_an_answer_counts_as_long_as_it_was_waited_for() {
    let (server, never, count) = (Worker::start().await, Latch::new(), AtomicUsize::new(0));
    server.when(move |_| {
        let hangs = count.fetch_add(1, Ordering::SeqCst) >= 20;
        hangs.then(|| Behaviour::Hold(never.clone(), Answer::ok("")))
    });
    let (_, report) = drive("open", &server, &["--rate", "40", "--connections", "40"]).await;
    let latency = &report["latency"];
    assert_eq!((&report["answered"], &report["unanswered"], &latency["count"]), (&20.into(), &30.into(), &40.into()));
    assert!(latency["p50_seconds"].as_f64() > Some(5.0), "{latency:#}");
    let slots = report["over_time"]["slots"].as_array().expect("there are slots of time");
    assert_eq!(slots.iter().filter_map(|slot| slot["unanswered"].as_u64()).sum::<u64>(), 30, "{report:#}");
    assert!(slots.iter().all(|slot| slot["wrong"] == 0), "nobody was judged wrongly: {report:#}");
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

/// After the end there were slots without a request, as if the server had been away, and the last 20 ms were drawn as a whole slot.
#[tokio::test]
async fn what_is_drawn_over_time_ends_with_what_was_measured() {
    let scratch = Scratch::new();
    let page = scratch.path().join("report.html");
    let html = page.to_str().expect("a scratch directory's path is text");
    let server = Worker::start().await;
    let more = ["--rate", "400", "--connections", "4", "--duration", "1020ms", "--warm-up", "0s", "--html", html];
    let (url, report) = (server.endpoint().to_string(), ReportFile::new());
    let common = ["open", "--proxy", &url, "--owner", "a", "--revision", "7", "--json", report.path()];
    loadtest(&[&common[..], &more].concat()).await.is_as_expected();
    let (report, page_of_all) = (report.read(), std::fs::read_to_string(&page).expect("the page was written"));
    let slots = report["over_time"]["slots"].as_array().expect("there are slots of time");
    assert!(slots.len() == 21 && (seconds_of(slots) - 1.02).abs() < 1e-6, "{report:#}");
    assert_eq!(points_of_served(&page_of_all), 20);

    let (url, report) = (server.endpoint().to_string(), ReportFile::new());
    let common = ["open", "--proxy", &url, "--owner", "a", "--revision", "7", "--json", report.path()];
    let more = ["--rate", "100", "--duration", "60s", "--warm-up", "0s", "--html", html];
    let (running, before) = (Running::start(&[&common[..], &more].concat()), server.seen().len());
    server.wait_for(before + 150).await;
    running.terminate();
    running.end().await.is_as_expected().says("ended early");
    let (report, page) = (report.read(), std::fs::read_to_string(&page).expect("the page was written"));
    let slots = report["over_time"]["slots"].as_array().expect("there are slots of time");
    let count = |slot: &Value| slot["served"].as_u64().expect("it is counted");
    assert_eq!(slots.iter().map(count).sum::<u64>(), report["answered"], "{report:#}");
    let (last, whole) = slots.split_last().expect("there are slots of time");
    let measured = report["seconds"].as_f64().expect("it is measured");
    assert!(measured < 59.0 && (seconds_of(slots) - measured).abs() < 1e-6, "{report:#}");
    assert!(whole.iter().all(|slot| slot["seconds"] == 0.6) && last["seconds"].as_f64() <= Some(0.6), "{report:#}");
    assert_eq!(points_of_served(&page), whole.len());
}

/// How long they were, all together.
fn seconds_of(slots: &[Value]) -> f64 {
    slots.iter().filter_map(|slot| slot["seconds"].as_f64()).sum()
}

/// Of how many points the line of served requests over time is.
fn points_of_served(page: &str) -> usize {
    let plot = page.split("aria-label=\"Requests a second").nth(1).expect("there is this plot");
    let line = plot.split("data first\" d=\"M").nth(1).and_then(|line| line.split('"').next());
    line.expect("there is this line").split('L').count()
}

/// The server takes connections and says nothing: TLS is never spoken.
#[tokio::test]
async fn a_run_is_ended_while_its_connections_are_opened() {
    let (trust, silent) = (Scratch::new(), tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    let ca = trust.path().join("ca.pem");
    std::fs::write(&ca, Authority::new("nobody").certificate()).unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let wire = ["closed", "--proxy", &url, "--proxy-ca", ca.to_str().unwrap(), "--owner", "a", "--revision", "7"];
    let running = Running::start(&wire);
    let _connection = silent.accept().await.unwrap();
    running.terminate();
    running.end().await.ended_with(1).says("ended before all connections were open");
}

#[tokio::test]
async fn bad_arguments_are_named() {
    let common = ["closed", "--proxy", "http://127.0.0.1:1"];
    let locks = ["--etcd", "http://127.0.0.1:1"];
    for (arguments, said) in [
        (&[][..], "<--etcd <URL>|--owner <OWNER>>"),
        (
            &["--owner", "a", "--revision", "0"],
            "'--revision <REVISION>': it is a whole number from 1 to 9223372036854775807",
        ),
        (&["--owner", "a", "--revision", "1", "--stale", "5%"], "there is no revision before 1"),
        (&["--owner", "a", "--revision", "7", "--stale", "5"], "a share is written like 5%"),
        (&["--owner", "a", "--revision", "7", "--stale", "0.00001%"], "a share is a millionth"),
        (&["--owner", "a", "--revision", "7", "--duration", "10"], "--duration"),
        (&["--owner", "a", "--revision", "7", "--path", "a"], "a path starts with"),
        (&["--owner", "a", "--revision", "7", "--streams", "4"], "--h2"),
        (&["--owner", "a", "--revision", "7", "--chunked"], "--body"),
        (&["--owner", "a", "--revision", "7", "--threads", "65"], "needs at least one of --connections"),
        (&["--owner", "a", "--revision", "7", "--handoff-every", "1s"], "--etcd"),
        (&["--owner", "a", "--revision", "7", "--worker-takes", "1s"], "--worker-listen"),
        (&[locks[0], locks[1]], "--lock"),
        (&[locks[0], locks[1], "--lock", "/a", "--handoff-every", "11s"], "no lock would move"),
        (&[locks[0], locks[1], "--lock", "/a", "--locks", "2"], "--lock /locks/{n}"),
        (&[locks[0], locks[1], "--lock", "/a/{n}", "--locks", "2"], "--lock-header"),
    ] {
        loadtest(&[&common, arguments].concat()).await.ended_with(64).says(said);
    }
    loadtest(&["open", "--proxy", "http://127.0.0.1:1", "--owner", "a", "--revision", "7"])
        .await
        .ended_with(64)
        .says("--rate");
    let streams = ["--connections", "1000", "--streams", "1001"];
    for (arguments, said) in [
        (&["open", "--rate", "0"][..], "'--rate <NUMBER>': it is a whole number from 1 to 10000000"),
        (&["open", "--rate", "10000001"], "'--rate <NUMBER>': it is a whole number from 1 to 10000000"),
        // It ended with 1 and said nothing of why.
        (
            &["open", "--rate", "1", "--duration", "100ms", "--warm-up", "0s"],
            "at --rate 1 no request is due within --warm-up and --duration, 100ms",
        ),
        (&["load", "--rate", "-1"], "'--rate <NUMBER>': it is a whole number from 1 to 10000000"),
        (&["load", "--seconds", "18446744073709551615"], "'--seconds <NUMBER>': it is a whole number from 1 to 86400"),
        (&["load", "--threads", "100000"], "'--threads <NUMBER>': it is a whole number from 1 to 1024"),
        (&["load", "--threads", "65"], "needs at least one of --connections"),
        (&["load", "--expect", "99"], "'--expect <STATUS>': it is a status from 100 to 999"),
        (&["load", "--h2c", streams[0], streams[1], streams[2], streams[3]], "1001000 streams, of 1000000 at most"),
        (&["closed", "--h2", streams[0], streams[1], streams[2], streams[3]], "1001000 streams, of 1000000 at most"),
        (
            &["closed", "--connections", "99999999999"],
            "'--connections <NUMBER>': it is a whole number from 1 to 1000000",
        ),
        (&["closed", "--body", "99999999999999"], "'--body <BYTES>': it is a whole number from 0 to 1073741824"),
        (&["closed", "--duration", "0s"], "'--duration <TIME>': it takes some time, and a day at most"),
    ] {
        let token = ["--proxy", "http://127.0.0.1:1", "--owner", "a", "--revision", "7"];
        loadtest(&[arguments, &token].concat()).await.ended_with(64).says(said);
    }
    let of_open = ["open", "--rate", "1", "--duration", "100ms", "--warm-up", "0s", "--proxy", "http://127.0.0.1:1"];
    let run = loadtest(&[&of_open[..], &["--owner", "a", "--revision", "7"]].concat()).await;
    run.ended_with(64).says("Usage: fencepost-loadtest open ");
    let nobody = ["load", "--proxy", "http://127.0.0.1:1", "--owner", "", "--revision", "7"];
    loadtest(&nobody).await.ended_with(64).says("'--owner <OWNER>': an owner is visible ASCII here");
    let nothing = ["--fencepost", "/bin/true", "--series", "locks", "--values", "0,1"];
    loadtest(&[&["compare"], &nothing[..]].concat())
        .await
        .ended_with(64)
        .says("each of --values is from 1 to 1000000 locks");
    for (arguments, said) in [
        (["--idle-connections", "9901"], "'--idle-connections <NUMBER>': it is a whole number from 1 to 9900"),
        (["--connections", "9901"], "'--connections <NUMBER>': it is a whole number from 1 to 9900"),
        (["--series=connections", "--values=64,9901"], "each of --values is from 1 to 9900 connections"),
        // These panicked when memory was asked for, and left what had been started in /tmp.
        (["--series=locks", "--values=99999999999999"], "each of --values is from 1 to 1000000 locks"),
        (["--series=body", "--values=0,999999999999999"], "each of --values is from 0 to 1073741824 bytes"),
        (["--series=body", "--values=18446744073709551615"], "each of --values is from 0 to 1073741824 bytes"),
        (["--series=threads", "--values=1025"], "each of --values is from 1 to 1024 threads"),
    ] {
        loadtest(&[&["compare", "--fencepost", "/bin/true"], &arguments[..]].concat()).await.ended_with(64).says(said);
    }
    loadtest(&["compare"]).await.ended_with(64).says("--fencepost");
}

async fn drive(command: &str, server: &Worker, arguments: &[&str]) -> (Run, Value) {
    let (report, url) = (ReportFile::new(), server.endpoint().to_string());
    let common = [command, "--proxy", &url, "--json", report.path()];
    let run = loadtest(&[&common[..], &BRIEFLY, arguments].concat()).await;
    (run, report.read())
}
