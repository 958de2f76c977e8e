//! Bodies: how large, and how slowly they are sent and read.

use std::time::Duration;

use fencepost_tests::{
    Answer, Behaviour, BodyEnd, Connection, EtcdVersion, PATIENCE, Scratch, Seen,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{MIB, closed, connect, head, limited};
use crate::fencepost::{Config, Route};
use crate::scene::Scene;
use crate::store::Tenure;

pub(super) const DRIP: Duration = Duration::from_millis(20);

/// Sends `piece` now and then until there is an answer; returns its status, or `None` if the
/// connection ends instead.
pub(super) async fn drip(mut connection: Connection, piece: &str) -> Option<u16> {
    loop {
        tokio::select! {
            answer = connection.response() => return answer.ok().map(|answer| answer.status),
            () = tokio::time::sleep(DRIP) => {}
        }
        if connection.send(piece).await.is_err() {
            return connection.response().await.ok().map(|answer| answer.status);
        }
    }
}

async fn begin(scene: &Scene, path: &str, tenure: &Tenure, framing: &str) -> Connection {
    let mut connection = connect(scene).await;
    connection.send(head("POST", path, tenure, framing)).await.unwrap();
    connection
}

#[tokio::test]
async fn a_client_still_writing_learns_that_its_body_was_too_slow() {
    let (scene, tenure) = limited("body_timeout = \"2s\"\nbody_rate_min = \"1KiB\"").await;
    let mut client = begin(&scene, "/", &tenure, "Content-Length: 60000\r\n").await;
    let mut left = 60_000;
    let dripping = async {
        loop {
            client.send("x").await.unwrap();
            left -= 1;
            tokio::time::sleep(DRIP).await; // The pace is what is tested.
        }
    };
    tokio::select! {
        () = scene.until_metric(r#"fencepost_failures_total{failure="slow-body",route="k"}"#, 1.0) => {}
        () = dripping => {}
    }
    client.send("x".repeat(left)).await.unwrap();
    assert_eq!(client.response().await.unwrap().status, 408);
    client.send(head("POST", "/", &tenure, "Content-Length: 0\r\n")).await.unwrap();
    assert_eq!(client.response().await.unwrap().status, 200);
    scene.finish().await;
}

#[tokio::test]
async fn a_dripping_body_gets_408_before_the_gate_and_is_cut_after() {
    let (scene, tenure) = limited("body_timeout = \"2s\"\nbody_rate_min = \"1KiB\"").await;
    let small = begin(&scene, "/small", &tenure, "Content-Length: 60000\r\n").await;
    let large = begin(&scene, "/large", &tenure, "Content-Length: 100000\r\n").await;
    let dripping = async { tokio::join!(drip(small, "x"), drip(large, "x")) };
    let (small, large) =
        tokio::time::timeout(PATIENCE, dripping).await.expect("both come to an end");
    assert_eq!(small, Some(408));
    assert_eq!(large, Some(408));
    let seen = scene
        .worker
        .wait_until("the upload is cut", |seen| {
            seen.iter().any(|one| one.path == "/large" && one.body_end.is_some())
        })
        .await;
    assert!(seen.iter().all(|one| one.path != "/small"), "nothing of it went out");
    assert!(seen.iter().all(|one| one.path != "/large" || one.body_end != Some(BodyEnd::Whole)));
    scene.admits("/", &tenure).await;
}

/// Its connection was closed without a word.
#[tokio::test]
async fn a_client_silent_in_its_body_gets_408_and_may_go_on() {
    let (scene, tenure) = limited("body_timeout = \"500ms\"").await;
    for (path, length, forwarded) in
        [("/small", 60_000, "false"), ("/large", 100_000, r#""unknown""#)]
    {
        let mut client =
            begin(&scene, path, &tenure, &format!("Content-Length: {length}\r\n")).await;
        client.send("begin").await.unwrap();
        let answer = client.response().await.unwrap();
        assert_eq!(answer.status, 408);
        let told = format!(r#""failure":"slow-body","forwarded":{forwarded}"#);
        assert!(answer.text().contains(&told), "{}", answer.text());
        client.send("x".repeat(length - "begin".len())).await.unwrap();
        client.send(head("POST", "/next", &tenure, "Content-Length: 4\r\n")).await.unwrap();
        client.send("next").await.unwrap();
        assert_eq!(client.response().await.unwrap().status, 200, "behind {path}");
    }
    let ended =
        |seen: &[Seen]| seen.iter().any(|one| one.path == "/large" && one.body_end.is_some());
    let seen = scene.worker.wait_until("the upload is cut", ended).await;
    assert!(seen.iter().all(|one| one.path != "/small"), "nothing of it went out");
    assert!(seen.iter().all(|one| one.path != "/large" || one.body_end == Some(BodyEnd::Cut)));
    scene.finish().await;
}

#[tokio::test]
async fn a_body_without_a_length_may_take_its_time() {
    let (scene, tenure) = limited("body_timeout = \"2s\"\nbody_rate_min = \"1KiB\"").await;
    let mut slow = begin(&scene, "/", &tenure, "Transfer-Encoding: chunked\r\n").await;
    for _ in 0..150 {
        slow.send("1\r\nx\r\n").await.unwrap();
        tokio::time::sleep(DRIP).await; // The pace is what is tested.
    }
    slow.send("0\r\n\r\n").await.unwrap();
    assert_eq!(slow.response().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_by_its_length_or_cut() {
    let (scene, tenure) = limited("body_bytes_max = \"100KiB\"").await;
    for length in [102_401, 1_u64 << 40] {
        let mut large =
            begin(&scene, "/large", &tenure, &format!("Content-Length: {length}\r\n")).await;
        let answer = large.response().await.unwrap();
        assert_eq!(answer.status, 413);
        assert!(answer.text().contains(r#""forwarded":false"#), "{}", answer.text());
    }
    assert!(scene.worker.seen().iter().all(|one| one.path != "/large"));
    let chunk = format!("{:x}\r\n{}\r\n", 51_200, "x".repeat(51_200));
    for (path, chunks, expected) in [("/exact", 2, BodyEnd::Whole), ("/beyond", 3, BodyEnd::Cut)] {
        let mut client = begin(&scene, path, &tenure, "Transfer-Encoding: chunked\r\n").await;
        client.send([chunk.repeat(chunks), "0\r\n\r\n".to_owned()].concat()).await.unwrap();
        let answer = client.response().await;
        assert_eq!(
            answer.is_ok_and(|answer| answer.status == 200),
            expected == BodyEnd::Whole,
            "{path}"
        );
        let ended =
            |seen: &[Seen]| seen.iter().any(|one| one.path == path && one.body_end.is_some());
        let seen = scene.worker.wait_until("its body has ended", ended).await;
        assert_eq!(
            seen.iter().find(|one| one.path == path).unwrap().body_end,
            Some(expected),
            "{path}"
        );
    }
}

/// Its connection, or its stream, was closed with the answer, or before it: it saw a reset.
#[tokio::test]
async fn a_client_still_writing_learns_that_its_body_is_too_large() {
    let (scene, tenure) = limited("body_bytes_max = \"1MiB\"").await;
    let mut client = begin(&scene, "/", &tenure, "Transfer-Encoding: chunked\r\n").await;
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(0x10_0000));
    client.send([chunk.repeat(8), "0\r\n\r\n".to_owned()].concat()).await.unwrap();
    let answer = client.response().await.unwrap();
    assert_eq!(answer.status, 413);
    assert!(
        answer.text().contains(r#""failure":"large-body","forwarded":"unknown""#),
        "{}",
        answer.text()
    );
    client.send(head("POST", "/", &tenure, "Content-Length: 0\r\n")).await.unwrap();
    assert_eq!(client.response().await.unwrap().status, 200);
    scene.finish().await;
}

#[tokio::test]
async fn who_reads_an_answer_too_slowly_is_left() {
    let scratch = Scratch::new();
    // A unix socket keeps little, so that each bit of reading is seen.
    let path = scratch.path().join("http.sock");
    let listener = format!("unix:{}", path.display());
    let routes = [Route::new("k", "/", r#"key = "/k""#)];
    let limits = |config: Config| {
        config.limit("body_timeout = \"2s\"\nbody_rate_min = \"1MiB\"").listening_on(&listener)
    };
    let scene = Scene::with(EtcdVersion::V3_5, &routes, limits).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    scene.worker.on("/large", Behaviour::Answer(Answer::ok(vec![b'x'; 64 * MIB as usize])));
    let mut slow = UnixStream::connect(&path).await.unwrap();
    slow.write_all(head("GET", "/large", &tenure, "").as_bytes()).await.unwrap();
    let mut piece = vec![0; 16 * 1024];
    let reading = async {
        while slow.read(&mut piece).await.is_ok_and(|count| count > 0) {
            tokio::time::sleep(2 * DRIP).await; // The pace is what is tested.
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("it is left");
    assert_eq!(closed(&scene, "body_rate_min").await, 1.0);
    scene.until_at_worker("/k", 0, 0).await;
    scene.finish().await;
}
