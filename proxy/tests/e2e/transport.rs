//! What passes through an admitted request, and how a refused one is told.

use fencepost_tests::{
    Answer, Behaviour, BodyEnd, Connection, Etcd, EtcdVersion, FreePort, Scratch, Worker,
};

use crate::fencepost::{Config, Fencepost, Route};
use crate::frames::{Client, END_HEADERS, END_STREAM, HEADERS, frame, head as ask_head, literal};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Ledger, Scene, send};
use crate::store::{Store, Tenure};

const MIB: usize = 1024 * 1024;
const LARGE: usize = 300 * MIB;

async fn held() -> (Scene, Tenure) {
    let scene = Scene::open(EtcdVersion::V3_5, &[Route::k()]).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &tenure).await;
    (scene, tenure)
}

fn head(method: &str, path: &str, tenure: &Tenure, framing: &str) -> String {
    let Tenure { owner, revision } = tenure;
    format!(
        "{method} {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\r\n{framing}\r\n"
    )
}

#[tokio::test]
async fn large_uploads_take_no_memory() {
    let (scene, tenure) = held().await;
    let before = scene.fence.memory_peak();
    let piece = vec![b'x'; MIB];
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    connection
        .send(head("PUT", "/large", &tenure, &format!("Content-Length: {LARGE}\r\n")))
        .await
        .unwrap();
    for _ in 0..LARGE / MIB {
        connection.send(&piece).await.unwrap();
    }
    assert_eq!(connection.response().await.unwrap().status, 200);
    // The same, in chunks.
    connection
        .send(head("PUT", "/large", &tenure, "Transfer-Encoding: chunked\r\n"))
        .await
        .unwrap();
    let chunk = [format!("{MIB:x}\r\n").into_bytes(), piece, b"\r\n".to_vec()].concat();
    for _ in 0..LARGE / MIB {
        connection.send(&chunk).await.unwrap();
    }
    connection.send("0\r\n\r\n").await.unwrap();
    assert_eq!(connection.response().await.unwrap().status, 200);
    let seen = scene.worker.seen();
    let large: Vec<_> = seen
        .iter()
        .filter(|seen| seen.path == "/large")
        .map(|seen| (seen.body_bytes, seen.body_end))
        .collect();
    assert_eq!(large, [(LARGE as u64, Some(BodyEnd::Whole)); 2]);
    let grown = scene.fence.memory_peak() - before;
    println!("two uploads of {} MiB: the peak of memory grew by {} KiB", LARGE / MIB, grown / 1024);
    assert!(grown < 32 * MIB as u64, "{grown} bytes");
    scene.finish().await;
}

#[tokio::test]
async fn large_downloads_take_no_memory_even_if_they_are_read_slowly() {
    let (scene, tenure) = held().await;
    scene.worker.on("/large", Behaviour::Answer(Answer::ok(vec![b'x'; LARGE])));
    let before = scene.fence.memory_peak();
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    connection.send(head("GET", "/large", &tenure, "")).await.unwrap();
    let response = connection.head().await.unwrap();
    assert_eq!(
        (response.status, response.header("content-length")),
        (200, Some(LARGE.to_string().as_str()))
    );
    // Nobody reads while others are served: whatever the proxy were to hoard, it would hoard now.
    for _ in 0..200 {
        scene.admits("/", &tenure).await;
    }
    for _ in 0..LARGE / MIB {
        connection.receive(MIB).await.unwrap();
    }
    let grown = scene.fence.memory_peak() - before;
    println!("a download of {} MiB: the peak of memory grew by {} KiB", LARGE / MIB, grown / 1024);
    assert!(grown < 32 * MIB as u64, "{grown} bytes");
    scene.finish().await;
}

#[tokio::test]
async fn a_refusal_in_the_middle_of_an_upload_is_a_status() {
    let (scene, tenure) = held().await;
    let stale = Tenure::new("shard-0", tenure.revision - 1);
    let body = vec![b'x'; 3_000_000];
    for framing in
        [format!("Content-Length: {}\r\n", body.len()), "Transfer-Encoding: chunked\r\n".to_owned()]
    {
        let chunked = framing.starts_with("Transfer");
        let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
        connection.send(head("POST", "/upload", &stale, &framing)).await.unwrap();
        if chunked {
            connection.send(format!("{:x}\r\n", body.len())).await.unwrap();
        }
        // The answer is there before the body is.
        connection.send(&body[..1_000_000]).await.unwrap();
        let answer = connection.response().await.unwrap();
        assert_refused(&answer, "stale-tenure", "/k", &tenure);
        connection.send(&body[1_000_000..]).await.unwrap();
        if chunked {
            connection.send("\r\n0\r\n\r\n").await.unwrap();
        }
        // The connection goes on.
        if answer.header("connection") != Some("close") {
            connection
                .send(head("POST", "/after", &tenure, "Content-Length: 0\r\n"))
                .await
                .unwrap();
            assert_eq!(connection.response().await.unwrap().status, 200, "{framing}");
        }
    }
    // A client that asks first need not send at all.
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    let framing = format!("Expect: 100-continue\r\nContent-Length: {}\r\n", body.len());
    connection.send(head("POST", "/upload", &stale, &framing)).await.unwrap();
    assert_refused(&connection.response().await.unwrap(), "stale-tenure", "/k", &tenure);
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    connection.send(head("POST", "/admitted", &tenure, &framing)).await.unwrap();
    assert_eq!(connection.response().await.unwrap().status, 100);
    connection.send(&body).await.unwrap();
    assert_eq!(connection.response().await.unwrap().status, 200);
    let paths: Vec<String> = scene.worker.seen().into_iter().map(|seen| seen.path).collect();
    assert!(!paths.iter().any(|path| path == "/upload"), "{paths:?}");
    let admitted = scene.worker.seen().pop().unwrap();
    assert_eq!((admitted.path.as_str(), admitted.body_bytes), ("/admitted", body.len() as u64));
    scene.finish().await;
}

#[tokio::test]
async fn an_unknown_expectation_is_answered_at_once() {
    let (scene, tenure) = held().await;
    for expectations in [
        "Expect: 100-continue, x",
        "Expect: x,100-Continue",
        "Expect: 100-continue\r\nExpect: x",
        "Expect: x",
        "Expect: 200-ok; 100-continue",
    ] {
        for (framing, body) in
            [("Content-Length: 5\r\n", ""), ("Content-Length: 5\r\n", "hello"), ("", "")]
        {
            let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
            let fields = format!("{expectations}\r\n{framing}");
            connection.send(head("POST", "/upload", &tenure, &fields) + body).await.unwrap();
            let answer = connection.response().await.unwrap();
            // What the client sends next may be a request, or the body all the same.
            let closes = (!framing.is_empty()).then_some("close");
            assert_eq!((answer.status, answer.header("connection")), (417, closes), "{fields}");
            if closes.is_some() {
                assert_eq!(connection.rest().await.unwrap(), b"", "{fields}");
            }
        }
    }
    let mut over_http2 = Client::open(&scene.fence.listener, &[]).await;
    let expecting = [ask_head("POST", "/upload", &tenure), literal("expect", "x", 0)].concat();
    over_http2.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &expecting)).await;
    assert!(!over_http2.is_answered(1).await);
    // Nobody waits for leave to send nothing.
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    connection
        .send(head("POST", "/empty", &tenure, "Expect: 100-continue\r\nContent-Length: 0\r\n"))
        .await
        .unwrap();
    assert_eq!(connection.response().await.unwrap().status, 200);
    let paths: Vec<String> = scene.worker.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths, ["/", "/empty"]);
    scene.finish().await;
}

#[tokio::test]
async fn failures_of_the_worker_are_no_refusals() {
    let port = FreePort::reserve();
    let routes = [
        Route::new("gone", "/gone/", r#"key = "/k""#)
            .with(&format!("upstream = \"http://{}\"", port.address())),
        Route::new("silent", "/silent", r#"key = "/k""#).with(r#"upstream_timeout = "300ms""#),
        Route::k(),
    ];
    let scene = Scene::open(EtcdVersion::V3_4, &routes).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    let latch = scene.worker.holds("/silent");
    scene.worker.on("/reset", Behaviour::Reset);
    for (path, status, forwarded) in [
        ("/gone/x", 502, serde_json::json!(false)),
        ("/reset", 502, serde_json::json!("unknown")),
        ("/silent", 504, serde_json::json!("unknown")),
    ] {
        let answer = scene.send(Ask::post(path).under(&tenure)).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert_eq!(answer.header("fence-reason"), None, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((&body["status"], &body["forwarded"]), (&status.into(), &forwarded), "{path}");
    }
    latch.open();
    // What comes early is passed on, the rest of the request's body goes nowhere in particular.
    scene.worker.on("/early", Behaviour::Early(Answer::status(413, "too much")));
    let answer = scene.send(Ask::post("/early").under(&tenure).body(&vec![b'x'; 2_000_000])).await;
    assert_eq!((answer.status, answer.text().as_str()), (413, "too much"));
    // A response that breaks off breaks off.
    scene.worker.on("/broken", Behaviour::Answer(Answer::ok("half of it").then_reset()));
    let mut line = scene.line().await;
    let broken = line.send(Ask::post("/broken").under(&tenure)).await;
    assert!(broken.is_err(), "{broken:?}");
    scene.admits("/", &tenure).await;
    assert!(!scene.fence.log().contains("panicked"));
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let (scene, tenure) = held().await;
    scene.worker.on("/echo", Behaviour::Echo);
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    let framing = "Transfer-Encoding: chunked\r\nTrailer: x-sum\r\nTE: trailers\r\n";
    connection.send(head("POST", "/echo", &tenure, framing)).await.unwrap();
    connection.send("5\r\nhello\r\n").await.unwrap();
    connection.send("0\r\nx-sum: 42\r\n\r\n").await.unwrap();
    let answer = connection.response().await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    assert_eq!(scene.worker.seen().pop().unwrap().trailers.get("x-sum").unwrap(), "42");
    let answer = Answer::ok("body").header("trailer", "x-sum").trailer("x-sum", "7");
    scene.worker.on("/trailers", Behaviour::Answer(answer));
    connection.send(head("GET", "/trailers", &tenure, "TE: trailers\r\n")).await.unwrap();
    let answer = connection.response().await.unwrap();
    assert_eq!(
        answer.trailers.get("x-sum").map(|value| value.as_bytes()),
        Some(&b"7"[..]),
        "{answer:?}"
    );
    scene.finish().await;
}

#[tokio::test]
async fn unix_sockets_work_on_both_sides() {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    let tenure = Store::of(&etcd).await.hold("/k", "shard-1").await;
    let worker = Worker::start_unix().await;
    let scratch = Scratch::new();
    let listener = format!("unix:{}", scratch.path().join("http.sock").display());
    let routes = [Route::k()];
    let config = Config::of(&etcd, &worker, &routes).listening_on(&listener);
    let fence = Fencepost::serve(&config).await;
    let ledger = Ledger::default();
    assert_eq!(send(&fence.listener, &ledger, Ask::post("/").under(&tenure)).await.status, 200);
    let stale = Tenure::new("shard-0", tenure.revision - 1);
    assert_refused(
        &send(&fence.listener, &ledger, Ask::post("/").under(&stale)).await,
        "stale-tenure",
        "/k",
        &tenure,
    );
    ledger.check(&worker);
}
