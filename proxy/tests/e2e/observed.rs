//! What operators see of the past: decisions, the timeline, what a route in shadow mode would have
//! refused.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use fencepost_tests::{
    Answer, Behaviour, Connection, EtcdVersion, Latch, Scratch, eventually, request, until,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpSocket;

use crate::fence_call::call;
use crate::fencepost::{BINARY, Route, addresses};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Scene, assert_has};
use crate::store::Tenure;

const VERSION: EtcdVersion = EtcdVersion::V3_5;

fn enforced() -> Route {
    Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#)
}

fn watched() -> Route {
    Route::new("watched", "/", r#"key = "/k""#)
        .with("mode = \"shadow\"")
        .with("verdict_header = true")
}

/// A stream of events of the admin listener.
struct Events {
    connection: Connection,
    /// What it says before any event.
    welcome: String,
}

impl Events {
    async fn of(admin: SocketAddr, path: &str, more: &str) -> Events {
        Events::over(Connection::open(admin).await.unwrap(), path, more).await
    }

    async fn over(mut connection: Connection, path: &str, more: &str) -> Events {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{more}\r\n"
        );
        connection.send(head).await.unwrap();
        let head = connection.head().await.unwrap();
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        let mut events = Events { connection, welcome: String::new() };
        events.welcome = events.until("retry: 1000\n\n").await;
        events
    }

    /// Reads on until there is this text; returns what there was up to its end.
    async fn until(&mut self, text: &str) -> String {
        let mut read = String::new();
        while !read.ends_with(text) {
            let byte = self.connection.receive(1).await.unwrap();
            read.push_str(&String::from_utf8_lossy(&byte));
        }
        read
    }

    /// The next event of that name: its id and what it says.
    async fn next(&mut self, name: &str) -> (String, Value) {
        let before = self.until(&format!("event: {name}\ndata: ")).await;
        let data = self.until("\n\n").await;
        let id = before
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("id: "))
            .unwrap_or_default()
            .to_owned();
        (id, serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {data}")))
    }
}

#[tokio::test]
async fn a_refusal_is_found_by_its_id_everywhere() {
    let scene = Scene::open(VERSION, &[enforced()]).await;
    scene.store.hold("/shards/2/lock", "shard-1").await;
    let ask = Ask::post("/shards/2/jobs?secret=1").token("a b<script>\u{202e}", "1");
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let refused = scene.send(ask.header("traceparent", trace)).await;
    assert_refused(&refused, "stale-tenure", "/shards/2/lock", None);
    let id = refused.header("fence-decision").unwrap();
    let decision = scene.decision(&refused).await;
    let body: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(body["decision"], id);
    let expected = json!({
        "id": id, "route": "shards", "mode": "enforce", "source": "main", "lock": "/shards/2/lock",
        "owner": "a%20b<script>%E2%80%AE", "revision": 1, "verdict": "reject", "reason": "stale-tenure",
        "forwarded": false, "method": "POST", "path": "/shards/2/jobs", "status": 412, "traceparent": trace
    });
    assert_has(&decision, expected);
    assert!(decision["age_ms"].as_u64().unwrap() < 5_000, "{decision}");
    // A request without a token is found as well.
    scene.send(Ask::post("/shards/2/jobs").token("shard-9", "abc")).await;
    let found = scene.fence.admin_json("/decisions?owner=shard-9").await;
    assert_eq!(found["decisions"][0]["reason"], "token-malformed", "{found}");
    let logged = eventually("the refusal is in the log", async || {
        scene.fence.log().lines().find(|line| line.contains(id)).map(str::to_owned)
    })
    .await;
    for text in
        ["request refused", "reason=\"stale-tenure\"", "owner=\"a%20b<script>%E2%80%AE\"", trace]
    {
        assert!(logged.contains(text), "{text} is not in {logged}");
    }
    scene.finish().await;
}

#[tokio::test]
async fn decisions_are_filtered_and_followed_from_the_last_id() {
    let scene = Scene::open(VERSION, &[enforced()]).await;
    let first = scene.store.hold("/shards/2/lock", "shard-2").await;
    scene.store.hold("/shards/2/lock", "shard-1").await;
    let mut events = Events::of(scene.fence.admin, "/decisions?owner=shard-2", "").await;
    for owner in ["shard-3", "shard-2", "shard-2"] {
        scene.send(Ask::post("/shards/2/x").under(&Tenure::new(owner, first.revision))).await;
    }
    let (id, decision) = events.next("decision").await;
    assert_eq!(
        (&decision["owner"], &decision["reason"]),
        (&json!("shard-2"), &json!("stale-tenure"))
    );
    let (_, second) = events.next("decision").await;
    drop(events);

    let last_event = format!("last-event-id: {id}\r\n");
    let mut again = Events::of(scene.fence.admin, "/decisions?owner=shard-2", &last_event).await;
    assert_eq!(again.next("decision").await.1, second, "what came after the last one that was got");
    let mut other =
        Events::of(scene.fence.admin, "/decisions?since=1h", "last-event-id: ffffffff-7\r\n").await;
    assert_eq!(other.next("decision").await.1["owner"], "shard-3", "an id of another process");

    let found = async |query: &str| {
        let found = scene.fence.admin_json(&format!("/decisions?{query}")).await;
        found["decisions"].as_array().unwrap().len()
    };
    assert_eq!(found("owner=shard-2").await, 2);
    assert_eq!(found("owner=shard-2&reason=not-owner").await, 0);
    assert_eq!(
        found("route=shards&lock=%2Fshards%2F2%2Flock&verdict=reject&since=5m&limit=2").await,
        2
    );
    let wrong = scene.fence.admin("GET", "/decisions?rout=shards").await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("unknown filter \"rout\""), "{}", wrong.text());
    for wrong in ["reason=stale", "mode=enforced", "verdict=refused"] {
        let answer = scene.fence.admin("GET", &format!("/decisions?{wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}");
        assert!(answer.text().contains("; there are "), "{}", answer.text());
    }
    scene.finish().await;
}

#[tokio::test]
async fn one_admission_in_so_many_is_among_the_decisions() {
    let scene = Scene::with(VERSION, &[enforced()], |config| {
        config.threads(1).section("[decisions]\nkept = 3\nadmissions_one_in = 2")
    })
    .await;
    let held = scene.store.hold("/shards/2/lock", "shard-1").await;
    for _ in 0..5 {
        scene.admits("/shards/2/x", &held).await;
    }
    let found = scene.fence.admin_json("/decisions?verdict=admit").await;
    assert_has(&found, json!({ "kept": 3, "capacity": 3, "lost": 0, "not_all_until_ms": null }));
    let admitted = json!({ "reason": "none", "forwarded": true, "owner": "shard-1", "revision": held.revision });
    assert_has(&found["decisions"][0], admitted);
    scene.finish().await;
}

#[tokio::test]
async fn the_timeline_shows_r1_on_the_bar_of_its_ended_tenure() {
    let scene = Scene::open(VERSION, &[Route::k()]).await;
    let mut events = Events::of(scene.fence.admin, "/timeline", "").await;
    let (_, whole) = events.next("timeline").await;
    assert!(whole["locks"][0]["tenures"].as_array().is_none_or(Vec::is_empty), "{whole}");
    let r1 = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &r1).await;
    let r2 = scene.store.hold("/k", "shard-2").await;
    scene.admits("/", &r2).await;
    let r3 = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &r3).await;
    scene.refuses("/", &r1, "replayed-tenure", "/k", &r3).await;

    let row = loop {
        let (_, row) = events.next("lock").await;
        if row["tenures"][0]["refused"] == 1 {
            break row;
        }
    };
    assert_has(&row, json!({ "source": "main", "lock": "/k", "layout": "key", "routes": ["k"] }));
    let bars = row["tenures"].as_array().unwrap();
    let named =
        |bar: &Value| (bar["owner"].as_str().unwrap().to_owned(), bar["first"].as_i64().unwrap());
    let expected = [&r1, &r2, &r3].map(|tenure| (tenure.owner.clone(), tenure.revision));
    assert_eq!(bars.iter().map(named).collect::<Vec<_>>(), expected);
    assert!(bars.iter().all(|bar| bar["began_seen"] == true), "{row}");
    assert!(bars[0]["last_refused_ms"].as_u64() > bars[0]["ended_ms"].as_u64(), "{row}");
    assert_eq!(bars[2]["ended_ms"], Value::Null);
    let mut whole = scene.fence.admin_json("/timeline").await;
    assert_eq!(whole["locks"][0].take(), row);
    scene.finish().await;
}

#[tokio::test]
async fn an_outage_of_the_store_is_on_the_timeline() {
    let scene = Scene::open(VERSION, &[Route::k().with("max_age = \"500ms\"")]).await;
    let outages =
        async || scene.fence.admin_json("/timeline").await["outages"].as_array().unwrap().clone();
    // A machine that stood still may have had one.
    let is_over = |outage: &Value| !outage["ended_ms"].is_null();
    let before = eventually("none goes on", async || {
        Some(outages().await).filter(|all| all.iter().all(is_over))
    })
    .await
    .len();
    scene.etcd.pause().await;
    let outage =
        eventually("the outage is noted", async || outages().await.get(before).cloned()).await;
    assert_has(&outage, json!({ "source": "main", "kind": "unreachable", "ended_ms": null }));
    scene.etcd.resume();
    eventually("its end is noted", async || outages().await[before]["ended_ms"].as_u64()).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_wait_at_the_barrier_is_on_the_timeline() {
    let scene = Scene::open(VERSION, &[Route::k()]).await;
    let predecessor = scene.store.hold("/k", "shard-1").await;
    let hold = Latch::new();
    scene.worker.on("/held", Behaviour::Hold(hold.clone(), Answer::ok("held")));
    let held = scene.start_at_worker(Ask::post("/held").under(&predecessor)).await;
    let successor = scene.store.hold("/k", "shard-2").await;
    let waiting = scene.start(Ask::post("/next").under(&successor));
    let waits = async || {
        scene.fence.admin_json("/timeline").await["locks"][0]["waits"].as_array().unwrap().clone()
    };
    let wait = eventually("the wait is noted", async || waits().await.first().cloned()).await;
    assert_has(
        &wait,
        json!({ "owner": "shard-2", "revision": successor.revision, "ended_ms": null, "outcome": null }),
    );
    assert_has(&wait, json!({ "requests": 1, "waiting": 1, "drained": 1 }));
    let asking = tokio::spawn(call(&scene, &successor, None));
    until("the call waits too", async || waits().await[0]["waiting"] == 2).await;
    let on_route = async || {
        let route = scene.fence.admin_json("/routes").await["routes"][0].take();
        (route["in_flight"].as_u64(), route["waiting"].as_u64())
    };
    assert_eq!(
        on_route().await,
        (Some(2), Some(1)),
        "one at the worker, one at the barrier, without the call"
    );
    hold.open();
    assert_eq!((held.await.unwrap().status, waiting.await.unwrap().status), (200, 200));
    assert_eq!(asking.await.unwrap().status, 204);
    let wait = waits().await[0].take();
    assert_has(&wait, json!({ "outcome": "entered", "waiting": 0 }));
    assert_eq!(on_route().await.1, Some(0));
    assert!(wait["ended_ms"].as_u64() >= wait["began_ms"].as_u64(), "{wait}");
    scene.finish().await;
}

#[tokio::test]
async fn shadow_mode_reports_what_enforce_would_have_refused() {
    let scene = Scene::open(VERSION, &[watched()]).await;
    let stale = scene.store.hold("/k", "shard-2").await;
    let held = scene.store.hold("/k", "shard-1").await;
    let admitted = scene.send(Ask::post("/").under(&held)).await;
    let verdict = admitted.header("fence-verdict");
    // Where the store has to be asked first, the request does not wait for it.
    assert!(matches!(verdict, Some("admit" | "pending")), "{admitted:?}");
    eventually("the new tenure is known", async || {
        let answer = scene.send(Ask::post("/").under(&held)).await;
        (answer.header("fence-verdict") == Some("admit")).then_some(())
    })
    .await;
    let mut last = String::new();
    for _ in 0..3 {
        let answer = scene.send(Ask::post("/").under(&stale)).await;
        assert_eq!(
            (answer.status, answer.header("fence-verdict")),
            (200, Some("reject")),
            "{answer:?}"
        );
        assert_eq!(answer.header("fence-reason"), Some("stale-tenure"));
        last = answer.header("fence-decision").unwrap().to_owned();
    }
    let report = scene.fence.admin_json("/shadow").await;
    let route = &report["routes"][0];
    assert_has(route, json!({ "route": "watched", "mode": "shadow", "refused": 3 }));
    assert!(route["admitted"].as_u64().unwrap() >= 2, "{route}");
    let refusals = &route["refusals"][0];
    assert_has(
        refusals,
        json!({ "owner": "shard-2", "reason": "stale-tenure", "count": 3, "decision": last }),
    );
    assert!(refusals["first_ms"].as_u64() <= refusals["last_ms"].as_u64(), "{refusals}");
    assert_eq!(scene.fence.admin("GET", "/shadow?format=yaml").await.status, 400);
    let text = scene.fence.admin("GET", "/shadow?format=text").await.text();
    assert!(
        text.contains("stale-tenure") && text.contains("owner shard-2") && text.contains(&last),
        "{text}"
    );
    let found = scene.fence.admin_json(&format!("/decisions?id={last}")).await;
    assert_has(&found["decisions"][0], json!({ "forwarded": true, "status": null }));
    scene.finish().await;
}

#[tokio::test]
async fn routes_and_settings_in_force_are_told() {
    let scene = Scene::open(VERSION, &[enforced(), watched()]).await;
    let held = scene.store.hold("/shards/2/lock", "shard-1").await;
    scene.admits("/shards/2/x", &held).await;
    scene.send(Ask::post("/shards/2/x")).await;
    let told = scene.fence.admin_json("/routes").await;
    let [shards, watched] = told["routes"].as_array().unwrap().as_slice() else { panic!("{told}") };
    assert_has(
        shards,
        json!({ "name": "shards", "mode": "enforce", "key": "/shards/{shard}/lock" }),
    );
    assert_eq!(
        shards["requests"],
        json!({ "admit": 1, "reject": { "token-missing": 1 }, "pass": 0 })
    );
    let timed = |route: &Value, what: &str| -> u64 {
        route[what].as_object().unwrap().values().filter_map(Value::as_u64).sum()
    };
    let of = |route: &Value| ["verdict_seconds", "upstream_seconds"].map(|what| timed(route, what));
    assert_eq!((of(shards), of(watched)), ([2, 1], [0, 0]), "{told}");
    assert_has(watched, json!({ "mode": "shadow", "source": "main", "layout": "key" }));
    assert!(watched["since_ms"].as_u64().unwrap() > 0);
    let told = scene.fence.admin_json("/config").await;
    assert_eq!(told["generation"], 1);
    assert_eq!(told["settings"]["limits"]["connections_max"], "10000", "{told}");
    assert_eq!(told["settings"]["route.watched"]["mode"], "shadow", "{told}");
    scene.finish().await;
}

#[tokio::test]
async fn what_a_dangerous_setting_lets_past_is_a_decision() {
    let route = Route::k().with("on_unavailable = \"dangerous_admit\"\nverdict_header = true");
    let scene =
        Scene::with(VERSION, &[route], |config| config.limit("confirm_timeout = \"50ms\"")).await;
    scene.store.put("/k", "").await;
    scene.etcd.pause().await;
    let ahead = Tenure::new("shard-1", 1 << 40);
    let answer = scene.send(Ask::post("/").under(&ahead)).await;
    assert_eq!((answer.status, answer.header("fence-verdict")), (200, Some("pass")), "{answer:?}");
    let found = scene.fence.admin_json("/decisions?verdict=pass").await;
    assert_has(&found["decisions"][0], json!({ "reason": "unverifiable", "forwarded": true }));
    let counted = |reason: &str, verdict: &str| {
        format!(
            "requests_total{{mode=\"enforce\",reason={reason:?},route=\"k\",verdict={verdict:?}}}"
        )
    };
    for (series, count) in [
        (counted("unverifiable", "pass"), 1.0),
        (counted("unverifiable", "reject"), 0.0),
        (counted("none", "admit"), 0.0),
        (r#"dangerous_total{route="k",setting="on_unavailable"}"#.to_owned(), 1.0),
    ] {
        assert_eq!(scene.fence.metric(&format!("fencepost_{series}")).await, count, "{series}");
    }
    scene.etcd.resume();
}

#[tokio::test]
async fn a_page_of_strangers_can_neither_read_nor_change_anything() {
    let scene = Scene::open(VERSION, &[Route::k()]).await;
    for (method, path, headers) in [
        ("GET", "/decisions", &[("host", "evil.example:9901")][..]),
        ("GET", "/metrics", &[("host", "evil.example")]),
        ("POST", "/locks/%2Fk/clear-orphans", &[("origin", "http://evil.example")]),
        ("POST", "/locks/%2Fk/clear-orphans", &[("sec-fetch-site", "cross-site")]),
    ] {
        let answer = request(scene.fence.admin, method, path, headers, b"").await.unwrap();
        assert_eq!(answer.status, 403, "{method} {path} {headers:?}: {answer:?}");
    }
    assert_eq!(scene.fence.admin("POST", "/locks/%2Fk/clear-orphans").await.status, 200);
    scene.finish().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_events_loses_some() {
    let scene =
        Scene::with(VERSION, &[enforced()], |config| config.section("[decisions]\nkept = 50"))
            .await;
    scene.store.hold("/shards/2/lock", "shard-1").await;
    let client = TcpSocket::new_v4().unwrap();
    client.set_recv_buffer_size(4096).unwrap();
    let client = Connection::over(client.connect(scene.fence.admin).await.unwrap());
    let mut events = Events::over(client, "/decisions", "").await;
    // More than fits the buffers between there and here, while nothing is read. That is not to take
    // 90 s, after which such a client is left.
    let owner = "x".repeat(256);
    let mut line = scene.line().await;
    for _ in 0..4000 {
        line.send(Ask::post("/shards/2/x").token(&owner, "1")).await.unwrap();
    }
    let lost = events.next("lost").await.1;
    assert!(lost["lost"].as_u64().unwrap() > 0, "{lost}");
    scene.finish().await;
}

/// What stands in an access log. The last line may not be whole yet.
pub(crate) fn lines_of(file: &Path) -> Vec<Value> {
    let log = std::fs::read_to_string(file).unwrap();
    let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[tokio::test]
async fn the_access_log_has_every_refusal_and_one_in_n_others() {
    let scratch = Scratch::new();
    let file = scratch.path().join("access.log");
    let section =
        format!("[access_log]\npath = {:?}\none_in = 3\nqueries = true", file.to_str().unwrap());
    let mut scene = Scene::with(VERSION, &[enforced()], |config| config.section(&section)).await;
    let held = scene.store.hold("/shards/2/lock", "shard-1").await;
    for _ in 0..4 {
        scene.admits("/shards/2/x?q=1", &held).await;
    }
    // Rotated by renaming: a reload of the same file begins another one, and loses no line.
    let rotated = scratch.path().join("access.log.1");
    until("two lines are written", async || lines_of(&file).len() == 2).await;
    std::fs::rename(&file, &rotated).unwrap();
    assert!(scene.fence.admin("POST", "/reload").await.text().contains("unchanged"));
    let refused = scene.send(Ask::post("/shards/2/x").header("User-Agent", "a\"b")).await;
    let id = refused.header("fence-decision").unwrap().to_owned();
    scene.fence.terminate().await;
    let (before, after) = (lines_of(&rotated), lines_of(&file));
    let ([first, fourth], [last]) = (before.as_slice(), after.as_slice()) else {
        panic!("{before:?} {after:?}")
    };
    assert_eq!(first["target"], fourth["target"]);
    let expected = json!({
        "method": "POST", "target": "/shards/2/x?q=1", "status": 200, "sent_bytes": 2, "complete": true,
        "route": "shards", "verdict": "admit", "owner": "shard-1", "revision": held.revision
    });
    assert_has(first, expected);
    assert_has(last, json!({ "verdict": "reject", "reason": "token-missing", "decision": id }));
    assert_has(last, json!({ "status": 428, "user_agent": "a\"b" }));
}

#[tokio::test]
async fn what_is_logged_can_be_changed_while_it_runs() {
    let scene = Scene::open(VERSION, &[enforced()]).await;
    assert_eq!(scene.fence.admin("GET", "/log").await.text(), "info\n");
    let refused = async || {
        scene.send(Ask::post("/shards/2/x")).await.header("fence-decision").unwrap().to_owned()
    };
    assert_eq!(scene.fence.admin("POST", "/log?filter=error").await.text(), "error\n");
    let silent = refused().await;
    for wrong in ["no%3Dsuch%3Dfilter", "warm", "info%20fencepost=debug", ""] {
        let path = format!("/log?filter={wrong}");
        assert_eq!(scene.fence.admin("POST", &path).await.status, 400, "{wrong}");
    }
    let changed = scene.fence.admin("POST", "/log?filter=%20info,%20fencepost=debug").await.text();
    assert_eq!(changed, "fencepost=debug,info\n");
    let logged = refused().await;
    scene.fence.until_log(&logged).await;
    scene.fence.has_not_logged(&silent);
    scene.finish().await;
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_up_no_request() {
    let scene = Scene::open(VERSION, &[enforced()]).await;
    scene.store.hold("/shards/2/lock", "shard-1").await;
    let scratch = Scratch::new();
    let file = scratch.path().join("fencepost.toml");
    // A line for each request, among those of the log.
    std::fs::write(&file, scene.config.clone().section("[access_log]\npath = \"stderr\"").toml())
        .unwrap();
    let mut command = tokio::process::Command::new(BINARY);
    command.arg("serve").arg("-c").arg(file).env("NO_COLOR", "1").env("FENCEPOST_LOG", "trace");
    let mut process = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let mut log = String::new();
    let listener = loop {
        log.push_str(&lines.next_line().await.unwrap().expect("it goes on"));
        log.push('\n');
        if let Some((listener, _)) = addresses(&log) {
            break listener;
        }
    };
    // From here on nobody reads: the pipe takes 64 KiB, and every request leaves more than one.
    let path = format!("/shards/2/{}", "x".repeat(1_000));
    for _ in 0..300 {
        let headers = [("Fence-Owner", "shard-1"), ("Fence-Revision", "1")];
        assert_eq!(
            request(listener.clone(), "POST", &path, &headers, b"").await.unwrap().status,
            412
        );
    }
    scene.finish().await;
}
