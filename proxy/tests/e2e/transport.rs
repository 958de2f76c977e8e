//! What passes through an admitted request, and how a refused one is told.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use fencepost_tests::{
    Answer, Behaviour, BodyEnd, Connection, Etcd, EtcdVersion, FreePort, Latch, Scratch, Worker,
};

use socket2::SockRef;

use crate::fencepost::{Config, Fencepost, Route};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Ledger, Line, Scene, send};
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
    for expectations in
        ["Expect: 100-continue, x", "Expect: x,100-Continue", "Expect: 100-continue\r\nExpect: x"]
    {
        for body in ["", "hello"] {
            let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
            let framing = format!("{expectations}\r\nContent-Length: 5\r\n");
            connection.send(head("POST", "/upload", &tenure, &framing) + body).await.unwrap();
            let answer = connection.response().await.unwrap();
            // What the client sends next may be a request, or the body all the same.
            assert_eq!(
                (answer.status, answer.header("connection")),
                (417, Some("close")),
                "{expectations}"
            );
            assert_eq!(connection.rest().await.unwrap(), b"", "{expectations}");
        }
    }
    // Nobody waits for leave to send nothing.
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    connection
        .send(head("POST", "/empty", &tenure, "Expect: 100-continue, x\r\nContent-Length: 0\r\n"))
        .await
        .unwrap();
    assert_eq!(connection.response().await.unwrap().status, 200);
    let paths: Vec<String> = scene.worker.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths, ["/", "/empty"]);
    scene.finish().await;
}

/// A worker that answers every request and closes its connections at once, or exactly when it is
/// told to.
#[derive(Clone)]
struct ClosingWorker {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

/// What a [`ClosingWorker`]'s connection ends after.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    Answer,
    Order,
}

impl ClosingWorker {
    fn start(last: Last) -> ClosingWorker {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let worker =
            ClosingWorker { address: listener.local_addr().unwrap(), open: Arc::default() };
        let open = Arc::clone(&worker.open);
        thread::spawn(move || {
            for connection in listener.incoming() {
                let connection = connection.unwrap();
                open.lock().unwrap().push(connection.try_clone().unwrap());
                thread::spawn(move || while ClosingWorker::answer(&connection, last).is_some() {});
            }
        });
        worker
    }

    /// Reads a request without a body and answers it; `None` once the connection has ended.
    fn answer(mut connection: &TcpStream, last: Last) -> Option<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte).ok()?;
            head.extend(byte);
        }
        // The end leaves together with the answer, so that no next request can come between.
        SockRef::from(connection).set_tcp_cork(last == Last::Answer).unwrap();
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").ok()?;
        match last {
            Last::Answer => connection.shutdown(Shutdown::Both).err().map(drop),
            Last::Order => Some(()),
        }
    }

    /// Closes all connections; the news has reached the other side's socket when this returns. How
    /// many there were.
    fn close_idle(&self) -> usize {
        let open: Vec<TcpStream> = self.open.lock().unwrap().drain(..).collect();
        // One that the proxy has closed by itself meanwhile is closed all the same.
        open.iter().filter(|connection| connection.shutdown(Shutdown::Both).is_ok()).count()
    }
}

#[tokio::test]
async fn a_worker_that_closes_idle_connections_at_random_makes_no_502() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let tenure = Store::of(&etcd).await.hold("/k", "shard-1").await;
    let worker = ClosingWorker::start(Last::Order);
    let upstream = format!("http://{}", worker.address);
    let mut fence =
        Fencepost::serve(&Config::new(&[etcd.endpoint()], &upstream, &[Route::k()])).await;
    let ledger = Ledger::default();
    let mut lines = Vec::new();
    for _ in 0..4 {
        lines.push(Line::open(&fence.listener, &ledger).await);
    }
    let mut closed = 0;
    for round in 0..1_000_usize {
        let count = lines.len();
        let line = &mut lines[round % count];
        let answer = line.send(Ask::post("/").method("GET").under(&tenure)).await.unwrap();
        assert_eq!(answer.status, 200, "request {round}, {closed} closed: {}", answer.text());
        // Some die between two requests, some at once after their answer, some live.
        if round * 7_919 % 5 < 2 {
            closed += worker.close_idle();
        }
    }
    assert!(closed > 200, "connections were closed under the proxy: {closed}");
    // Nor where the proxy finds the request and the end of its idle connection at once: the request
    // first, and last.
    for round in 0..40 {
        let line = &mut lines[round % 4];
        fence.process().pause().await;
        if round % 2 == 0 {
            worker.close_idle();
        }
        let meanwhile = async {
            // By now the request lies in the proxy's socket.
            worker.close_idle();
            fence.process().resume();
        };
        let (answer, ()) =
            tokio::join!(line.send(Ask::post("/").method("GET").under(&tenure)), meanwhile);
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "after a pause, round {round}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_worker_that_closes_after_each_answer_makes_no_502() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let tenure = Store::of(&etcd).await.hold("/k", "shard-1").await;
    let upstream = format!("http://{}", ClosingWorker::start(Last::Answer).address);
    let routes = [Route::k()];
    let fence = Fencepost::serve(&Config::new(&[etcd.endpoint()], &upstream, &routes)).await;
    let ledger = Ledger::default();
    let mut line = Line::open(&fence.listener, &ledger).await;
    for round in 0..500 {
        let answer = line.send(Ask::post("/").method("GET").under(&tenure)).await.unwrap();
        assert_eq!(answer.status, 200, "round {round}: {}", answer.text());
    }
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
    let latch = Latch::new();
    scene.worker.on("/reset", Behaviour::Reset);
    scene.worker.on("/silent", Behaviour::Hold(latch.clone(), Answer::ok("late")));
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
