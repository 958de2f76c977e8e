//! What an operator sees of a running proxy.

use fencepost_tests::{Connection, EtcdVersion, eventually, request, until};
use serde_json::{Value, json};

use crate::fencepost::Route;
use crate::refusal::assert_refused;
use crate::scene::{Ask, Scene, assert_has};
use crate::store::{Layout, Tenure};

fn routes() -> [Route; 2] {
    let lock = r#"key = "/shards/{shard}/lock", layout = "election""#;
    [Route::new("shards", "/shards/{shard}/", lock), Route::k()]
}

#[tokio::test]
async fn probes_metrics_and_locks_tell_the_state() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &routes()).await;
        let stale = scene.store.hold("/k", "shard-2").await;
        let first = scene.store.hold("/k", "shard-1").await;
        let last = scene.store.hold("/k", "shard-1").await;
        scene.admits("/", &last).await;
        scene.refuses("/", &stale, "stale-tenure", "/k", &last).await;

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
            "whatever a client takes"
        );
        assert!(page.header("content-security-policy").is_some());
        let paths =
            request(scene.fence.admin, "GET", "/", &[("accept", "text/plain")], b"").await.unwrap();
        assert!(paths.text().contains("GET  /livez"), "{}", paths.text());
        let accept = "/sources/main/accept-regression";
        for (method, path) in [("POST", "/locks"), ("DELETE", "/locks/%2Fk"), ("GET", accept)] {
            assert_eq!(scene.fence.admin(method, path).await.status, 405, "{method} {path}");
        }

        let mut lock = scene.fence.admin_json("/locks/%2Fk").await;
        let as_it_is = scene.fence.admin_json("/locks//k").await;
        assert!(lock["age_seconds"].as_f64().unwrap() < 5.0, "{lock}");
        for time in ["age_seconds", "as_of"] {
            lock[time] = as_it_is[time].clone();
        }
        assert_eq!(lock, as_it_is, "a key may be written as it is");
        assert_has(
            &lock,
            json!({ "key": "/k", "layout": "key", "owner": "shard-1", "problem": null }),
        );
        assert_has(&lock, json!({ "first": first.revision, "last": last.revision }));
        assert_eq!(lock["gate"]["floor"].as_i64(), Some(first.revision), "{lock}");

        let session = scene.store.session("shard-7").await;
        let held = scene.store.acquire(Layout::Election, "/shards/7/lock", &session).await;
        let path = "/locks/%2Fshards%2F7%2Flock";
        assert_eq!(scene.fence.admin("GET", path).await.status, 404, "nobody has asked for it");
        scene.admits("/shards/7/x", &held.tenure).await;
        let lock = scene.fence.admin_json(path).await;
        assert_has(&lock, json!({ "owner": "shard-7", "first": held.tenure.revision }));
        let locks = scene.fence.admin_json("/locks").await.to_string();
        assert!(locks.contains("/shards/7/lock") && locks.contains(r#""/k""#), "{locks}");
        let told = scene.fence.admin_json("/sources").await;
        let [main] = told["sources"].as_array().unwrap().as_slice() else { panic!("{told}") };
        assert_has(
            main,
            json!({ "source": "main", "up": true, "tracked_locks": 2, "locks": null }),
        );
        let counted = |reason: &str, route: &str, verdict: &str| {
            format!(
                "requests_total{{mode=\"enforce\",reason={reason:?},route={route:?},verdict={verdict:?}}}"
            )
        };
        for (series, value) in [
            (counted("none", "k", "admit"), 1.0),
            (counted("stale-tenure", "k", "reject"), 1.0),
            (counted("replayed-tenure", "k", "reject"), 0.0),
            (counted("none", "shards", "admit"), 1.0),
            (r#"source_up{source="main"}"#.to_owned(), 1.0),
            (r#"tracked_locks{source="main"}"#.to_owned(), 2.0),
            (r#"in_flight{route="k"}"#.to_owned(), 0.0),
        ] {
            assert_eq!(scene.fence.metric(&format!("fencepost_{series}")).await, value, "{series}");
        }
        assert!(scene.fence.metric(r#"fencepost_source_age_seconds{source="main"}"#).await < 5.0);
        let metrics = scene.fence.admin("GET", "/metrics").await.text();
        for secret in ["shard-1", "shard-7", "/k", "/shards"] {
            assert!(!metrics.contains(secret), "{secret} is no label: {metrics}");
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn idle_admin_connections_do_not_block_the_next() {
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

#[tokio::test]
async fn a_record_that_cannot_be_read_is_named_and_admits_nobody() {
    for version in EtcdVersion::ALL {
        let route = Route::new("k", "/", r#"key = "/k", owner_field = "holder""#);
        let scene = Scene::open(version, &[route]).await;
        let good = Tenure::new("shard-1", scene.store.put("/k", r#"{"holder":"shard-1"}"#).await);
        scene.admits("/", &good).await;
        let unread = r#"shard-1||{|{"owner":"shard-1"}|{"holder":7.5}|{"holder":null}|["holder"]|"shard-1"|{"holder":"shard-1"} x|{"holder":"shard-2","holder":"shard-1"}"#;
        for record in unread.split('|') {
            let revision = scene.store.put("/k", record).await;
            for token in
                [&Tenure::new("shard-1", revision), &Tenure::new(record.trim(), revision), &good]
            {
                if token.owner.contains('"') {
                    continue;
                }
                scene.refuses("/", token, "unverifiable", "/k", None).await;
            }
            let lock = scene.fence.admin_json("/locks/%2Fk").await;
            assert!(
                lock["problem"].as_str().is_some_and(|problem| !problem.is_empty()),
                "{record}: {lock}"
            );
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
        scene.refuses("/", &good, "replayed-tenure", "/k", &again).await;
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_terminated_process_finishes_what_it_has_begun() {
    let mut scene =
        Scene::with(EtcdVersion::V3_5, &routes(), |config| config.limit(r#"drain_delay = "0s""#))
            .await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    let latch = scene.worker.holds("/slow");
    let slow = scene.start_at_worker(Ask::post("/slow").under(&tenure)).await;
    scene.fence.process().terminate();
    until("it is not ready any more", async || {
        scene.fence.admin("GET", "/readyz").await.status == 503
    })
    .await;
    let listener = scene.fence.listener.clone();
    until("it stops accepting", async || {
        request(listener.clone(), "GET", "/", &[], b"").await.is_err()
    })
    .await;
    assert!(scene.fence.process().ended().is_none(), "a request is under way");
    latch.open();
    let answer = slow.await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "held"));
    assert!(scene.fence.process().end_of_itself().await.success(), "{}", scene.fence.log());
    scene.finish().await;
}

#[tokio::test]
async fn logs_in_json_are_one_object_a_line() {
    let mut scene =
        Scene::with(EtcdVersion::V3_4, &routes(), |config| config.log_format("json")).await;
    let answer = scene.send(Ask::post("/")).await;
    assert_refused(&answer, "token-missing", "/k", None);
    let decision = answer.header("fence-decision").unwrap();
    scene.fence.terminate().await;
    let log = scene.fence.log();
    let line =
        |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let lines: Vec<Value> = log.lines().map(line).collect();
    let refused: Vec<&Value> =
        lines.iter().filter(|line| line["message"] == "request refused").collect();
    let [line] = refused[..] else { panic!("{log}") };
    assert_has(line, json!({ "reason": "token-missing", "decision": decision }));
    assert!(line["age_ms"].is_u64() && line["waited_ms"].is_u64(), "{line}");
}
