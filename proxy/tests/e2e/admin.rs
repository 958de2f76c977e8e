//! What an operator sees of a running proxy.

use fencepost_tests::{Answer, Behaviour, Connection, EtcdVersion, Latch, eventually, request};
use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;

use crate::fencepost::{Config, Fencepost, Route};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Line, Scene};
use crate::store::{Layout, Tenure};

fn routes() -> [Route; 2] {
    [
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock", layout = "election""#),
        Route::new("k", "/", r#"key = "/k""#),
    ]
}

#[tokio::test]
async fn probes_metrics_and_locks_tell_the_state() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &routes()).await;
        let stale = scene.store.hold("/k", "shard-2").await;
        let first = scene.store.hold("/k", "shard-1").await;
        let last = scene.store.hold("/k", "shard-1").await;
        scene.admits("/", &last).await;
        assert_refused(&scene.send(Ask::post("/").under(&stale)).await, "stale-tenure", "/k", &last);

        for path in ["/livez", "/readyz"] {
            let answer = scene.fence.admin("GET", path).await;
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            assert_eq!(scene.fence.admin("HEAD", path).await.status, 200, "{path}");
        }
        for method in ["GET", "POST"] {
            assert_eq!(scene.fence.admin(method, "/nothing").await.status, 404, "{method}");
        }
        let page = scene.fence.admin("GET", "/").await;
        assert_eq!(
            page.header("content-type"),
            Some("text/html; charset=utf-8"),
            "a client need not say that it takes that"
        );
        assert!(page.header("content-security-policy").is_some());
        let paths = request(scene.fence.admin, "GET", "/", &[("accept", "text/plain")], b"").await.unwrap();
        assert!(paths.text().contains("GET  /livez"), "{}", paths.text());
        for (method, path) in
            [("POST", "/locks"), ("DELETE", "/locks/%2Fk"), ("GET", "/sources/main/accept-regression")]
        {
            assert_eq!(scene.fence.admin(method, path).await.status, 405, "{method} {path}");
        }

        let mut lock = scene.fence.admin_json("/locks/%2Fk").await;
        let as_it_is = scene.fence.admin_json("/locks//k").await;
        assert!(lock["age_seconds"].as_f64().unwrap() < 5.0, "{lock}");
        for time in ["age_seconds", "reach"] {
            lock[time] = as_it_is[time].clone();
        }
        assert_eq!(lock, as_it_is, "a key may be written as it is");
        assert_eq!(lock["key"], "/k");
        assert_eq!(lock["layout"], "key");
        assert_eq!(lock["owner"], "shard-1");
        assert_eq!((&lock["first"], &lock["last"]), (&first.revision.into(), &last.revision.into()));
        assert_eq!(lock["problem"], serde_json::Value::Null);
        assert_eq!(lock["gate"]["floor"].as_i64(), Some(first.revision), "{lock}");

        let session = scene.store.session("shard-7").await;
        let held = scene.store.acquire(Layout::Election, "/shards/7/lock", &session).await;
        assert_eq!(
            scene.fence.admin("GET", "/locks/%2Fshards%2F7%2Flock").await.status,
            404,
            "nobody has asked for it"
        );
        scene.admits("/shards/7/x", &held.tenure).await;
        let lock = scene.fence.admin_json("/locks/%2Fshards%2F7%2Flock").await;
        assert_eq!((&lock["owner"], &lock["first"]), (&"shard-7".into(), &held.tenure.revision.into()), "{lock}");
        let locks = scene.fence.admin_json("/locks").await.to_string();
        assert!(locks.contains("/shards/7/lock") && locks.contains(r#""/k""#), "{locks}");
        let told = scene.fence.admin_json("/sources").await;
        let [main] = told["sources"].as_array().unwrap().as_slice() else { panic!("{told}") };
        assert_eq!((&main["source"], &main["up"], &main["tracked_locks"]), (&"main".into(), &true.into(), &2.into()));
        assert_eq!(main["locks"], serde_json::Value::Null, "how many there are, and not which");

        let counted = |verdict: &str, reason: &str, route: &str| {
            format!(
                r#"fencepost_requests_total{{mode="enforce",reason="{reason}",route="{route}",verdict="{verdict}"}}"#
            )
        };
        assert_eq!(scene.fence.metric(&counted("admit", "none", "k")).await, 1.0);
        assert_eq!(scene.fence.metric(&counted("reject", "stale-tenure", "k")).await, 1.0);
        assert_eq!(scene.fence.metric(&counted("reject", "replayed-tenure", "k")).await, 0.0);
        assert_eq!(scene.fence.metric(&counted("admit", "none", "shards")).await, 1.0);
        assert_eq!(scene.fence.metric(r#"fencepost_source_up{source="main"}"#).await, 1.0);
        assert!(scene.fence.metric(r#"fencepost_source_age_seconds{source="main"}"#).await < 5.0);
        assert_eq!(scene.fence.metric(r#"fencepost_tracked_locks{source="main"}"#).await, 2.0);
        assert_eq!(scene.fence.metric(r#"fencepost_in_flight{route="k"}"#).await, 0.0);
        let metrics = scene.fence.admin("GET", "/metrics").await.text();
        for secret in ["shard-1", "shard-7", "/k", "/shards"] {
            assert!(!metrics.contains(secret), "{secret} is no label: {metrics}");
        }
        scene.finish().await;
    }
}

/// Whoever came next was closed at once, probes too, until one of those had idled for 75 s.
#[tokio::test]
async fn however_many_connections_idle_at_the_admin_listener_the_next_is_answered() {
    const CONNECTIONS_MAX: usize = 256;
    let scene = Scene::open(EtcdVersion::V3_5, &routes()).await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut connection = Connection::open(scene.fence.admin).await.unwrap();
        connection.send("GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert_eq!(connection.response().await.unwrap().status, 200);
        idle.push(connection);
    }
    assert_eq!(scene.fence.admin("GET", "/readyz").await.status, 200);
    assert_eq!(idle[0].rest().await.unwrap(), b"", "who has waited longest makes room");
    drop(idle);
    scene.finish().await;
}

/// The whole of it was made before any of it was sent: with many locks nobody else was answered for a second, and it took several
/// hundred MiB.
#[tokio::test]
async fn a_list_of_many_locks_is_made_as_it_is_read_and_meanwhile_others_are_answered() {
    const LINES: usize = 16;
    const LOCKS: usize = 6_400;
    let by_key = Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#);
    let scene = Scene::open(EtcdVersion::V3_5, &[by_key]).await;
    let name = |number| format!("{number:04}{}", "x".repeat(900));
    let lock = |number| format!("/shards/{}/lock", name(number));
    for first in (0..LOCKS).step_by(LINES) {
        join_all((first..first + LINES).map(async |number| scene.store.put(&lock(number), "shard-1").await)).await;
    }
    let mut asking = tokio::task::JoinSet::new();
    for first in 0..LINES {
        let mut line = scene.line().await;
        asking.spawn(async move {
            for number in (first..LOCKS).step_by(LINES) {
                let ask = Ask::post(&format!("/shards/{}/", name(number))).token("shard-2", "1");
                let answer = line.send(ask).await.unwrap();
                assert_eq!(answer.status, 412, "{}", answer.text());
            }
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    let mut stream = socket.connect(scene.fence.admin).await.unwrap();
    stream.write_all(b"GET /locks HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    stream.peek(&mut [0]).await.unwrap();
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(scene.fence.admin("GET", path).await.status, 200, "{path}");
    }
    let last = lock(LOCKS - 1);
    let revision = scene.store.put(&last, "shard-2").await;
    scene.until_known(&last, Some("shard-2")).await;
    let answer = Connection::over(stream).final_response().await.unwrap();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let told: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let locks = told["sources"][0]["locks"].as_array().unwrap();
    let keys: Vec<_> = locks.iter().map(|lock| lock["key"].as_str().unwrap()).collect();
    assert_eq!((keys.len(), keys.last()), (LOCKS, Some(&&*last)));
    assert_eq!(locks[LOCKS - 1]["first"].as_i64(), Some(revision), "it is as it was when it was read");
    assert_eq!(scene.fence.admin("HEAD", "/locks").await.status, 200);
    scene.finish().await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_named_and_admits_nobody() {
    for version in EtcdVersion::ALL {
        let route = Route::new("k", "/", r#"key = "/k", owner_field = "holder""#);
        let scene = Scene::open(version, &[route]).await;
        let good = Tenure::new("shard-1", scene.store.put("/k", r#"{"holder":"shard-1"}"#).await);
        scene.admits("/", &good).await;
        for record in [
            "shard-1",
            "",
            "{",
            r#"{"owner":"shard-1"}"#,
            r#"{"holder":7}"#,
            r#"{"holder":null}"#,
            r#"["holder"]"#,
            r#""shard-1""#,
            r#"{"holder":"shard-1"} x"#,
        ] {
            let revision = scene.store.put("/k", record).await;
            for token in [&Tenure::new("shard-1", revision), &Tenure::new(record.trim(), revision), &good] {
                if token.owner.contains('"') {
                    continue;
                }
                let answer = scene.send(Ask::post("/").under(token)).await;
                assert_refused(&answer, "unverifiable", "/k", None);
            }
            let lock = scene.fence.admin_json("/locks/%2Fk").await;
            assert!(lock["problem"].as_str().is_some_and(|problem| !problem.is_empty()), "{record}: {lock}");
            assert_eq!(lock["owner"], serde_json::Value::Null, "{record}: {lock}");
        }
        eventually("the record is warned of", async || {
            let log = scene.fence.log();
            log.lines().any(|line| line.contains("WARN") && line.contains("/k")).then_some(())
        })
        .await;
        // The holder before is not the holder after.
        let again = Tenure::new("shard-1", scene.store.put("/k", r#"{"holder":"shard-1"}"#).await);
        scene.admits("/", &again).await;
        assert_refused(&scene.send(Ask::post("/").under(&good)).await, "replayed-tenure", "/k", &again);
        scene.finish().await;
    }
}

/// Those who read JSON do not agree on which of the two counts.
#[tokio::test]
async fn a_record_that_names_its_owner_twice_admits_nobody() {
    let scene = Scene::open(EtcdVersion::V3_5, &[Route::new("k", "/", r#"key = "/k", owner_field = "holder""#)]).await;
    let revision = scene.store.put("/k", r#"{"holder":"shard-2","holder":"shard-1"}"#).await;
    for owner in ["shard-1", "shard-2"] {
        let answer = scene.send(Ask::post("/").under(&Tenure::new(owner, revision))).await;
        assert_refused(&answer, "unverifiable", "/k", None);
    }
    scene.finish().await;
}

#[tokio::test]
async fn a_terminated_process_finishes_what_it_has_begun() {
    let etcd = fencepost_tests::Etcd::start(EtcdVersion::V3_5).await;
    let tenure = crate::store::Store::of(&etcd).await.hold("/k", "shard-1").await;
    let worker = fencepost_tests::Worker::start().await;
    let latch = Latch::new();
    worker.on("/slow", Behaviour::Hold(latch.clone(), Answer::ok("done")));
    let config =
        Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &routes()).limit(r#"drain_delay = "0s""#);
    let mut fence = Fencepost::serve(&config).await;
    let ledger = crate::scene::Ledger::default();
    let slow = tokio::spawn({
        let (mut line, tenure) = (Line::open(&fence.listener, &ledger).await, tenure.clone());
        async move { line.send(Ask::post("/slow").under(&tenure)).await }
    });
    worker.wait_for(1).await;
    fence.process().terminate();
    fencepost_tests::eventually("it is not ready any more", async || {
        (fence.admin("GET", "/readyz").await.status == 503).then_some(())
    })
    .await;
    let listener = fence.listener.clone();
    fencepost_tests::eventually("it stops accepting", async || {
        request(listener.clone(), "GET", "/", &[], b"").await.is_err().then_some(())
    })
    .await;
    assert!(fence.process().ended().is_none(), "a request is under way");
    latch.open();
    let answer = slow.await.unwrap().unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "done"));
    assert!(fence.process().end_of_itself().await.success(), "{}", fence.log());
    ledger.check(&worker);
}

/// It was a line without time and level, in no form that a collector reads, and older warnings stood behind it.
#[tokio::test]
async fn why_a_process_could_not_start_is_the_last_line_of_its_log() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let routes = [Route::new("all", "/", "")];
    let config = Config::new(&[], "http://127.0.0.1:1", &routes).without_source();
    let fails = config.clone().listening_on(&address);
    let wrong = config.more("nonsense = 1\nrubbish = 2\n");
    for (config, code, says) in
        [(fails, 1, &["cannot listen: 127.0.0.1:"][..]), (wrong, 64, &["fencepost.toml:", "fencepost.toml:"])]
    {
        let (ended, log) = Fencepost::end_of(&config).await;
        assert_eq!(ended, Some(code), "{log}");
        let said: Vec<_> = log.lines().rev().take(says.len()).collect();
        assert!(said.iter().zip(says).all(|(line, says)| line.contains(says)), "{log}");

        let (ended, log) = Fencepost::end_of(&config.log_format("json")).await;
        assert_eq!(ended, Some(code), "{log}");
        let lines =
            log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
        let lines: Vec<serde_json::Value> = lines.collect();
        for (line, says) in lines.iter().rev().zip(says) {
            assert!(line["level"] == "ERROR" && line["timestamp"].is_string(), "{line}");
            assert!(line["message"].as_str().unwrap().contains(says), "{line}");
        }
        let errors = lines.iter().filter(|line| line["level"] == "ERROR").count();
        assert_eq!(errors, says.len(), "{log}");
    }
}

#[tokio::test]
async fn logs_in_json_are_one_object_a_line() {
    let etcd = fencepost_tests::Etcd::start(EtcdVersion::V3_4).await;
    let worker = fencepost_tests::Worker::start().await;
    let upstream = worker.endpoint().to_string();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--upstream", &upstream, "--etcd", &etcd.endpoint()];
    let more = ["--lock", "/k", "--admin", "127.0.0.1:0", "--log-format", "json"];
    let mut fence = Fencepost::launch_with(&[&arguments[..], &more].concat()).await;
    fence.wait_until_ready().await;
    let answer = request(fence.listener.clone(), "POST", "/", &[], b"x").await.unwrap();
    assert_refused(&answer, "token-missing", "/k", None);
    let decision = answer.header("fence-decision").unwrap().to_owned();
    fence.terminate().await;
    let mut refused = 0;
    for line in fence.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        if line["message"] == "request refused" {
            assert_eq!(line["reason"], "token-missing");
            assert_eq!(line["decision"], decision);
            assert!(line["age_ms"].is_u64() && line["waited_ms"].is_u64(), "{line}");
            refused += 1;
        }
    }
    assert_eq!(refused, 1, "{}", fence.log());
}
