//! What never becomes a request: its head cannot be read, or is too large.

use fencepost_tests::{Connection, EtcdVersion, until};

use crate::fencepost::Route;
use crate::scene::Scene;

async fn scene() -> Scene {
    Scene::open(EtcdVersion::V3_5, &[Route::k()]).await
}

async fn connect(scene: &Scene) -> Connection {
    Connection::open(scene.fence.listener.clone()).await.unwrap()
}

async fn failures(scene: &Scene, failure: &str) -> f64 {
    scene
        .fence
        .metric(&format!("fencepost_failures_total{{failure=\"{failure}\",route=\"none\"}}"))
        .await
}

#[tokio::test]
async fn each_head_that_is_not_read_is_counted_and_logged() {
    let scene = scene().await;
    let long = "x".repeat(70_000);
    let many = (0..101).map(|number| format!("X-{number}: 1\r\n")).collect::<String>();
    let unclear = "a request line that is not a method, a target and HTTP/1.0 or 1.1, with one space between them (byte 0x20 in a target has to be percent-encoded)";
    let too_large = "a head that is too long, or has too many fields";
    let cases = [
        (
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "two Content-Length",
        ),
        ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), unclear),
        ("GET /a\tb HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), "byte 0x09 in the target"),
        ("GET / HTTP/1.1\nHost: h\n\n".to_owned(), "a line that does not end with CRLF"),
        (
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            "Content-Length and Transfer-Encoding",
        ),
        ("GET / HTTP/1.1\r\nHost : h\r\n\r\n".to_owned(), "a line that does not begin with a field name and a colon"),
        // As a client that speaks TLS begins.
        ("\x16\x03\x01\x02\0\x01\0\x01".to_owned(), "a TLS hello on a plain port"),
        ("\x16\x01\x01".to_owned(), unclear),
        (
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
            "PROXY protocol v1 on a listener that does not expect it",
        ),
        (
            "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
            "PROXY protocol v2 on a listener that does not expect it",
        ),
        // The grammar has it, hyper does not.
        ("GET http:// HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), "a target or a field that cannot be read"),
        (format!("GET / HTTP/1.1\r\nHost: h\r\nX: {long}\r\n\r\n"), too_large),
        (format!("GET / HTTP/1.1\r\nHost: h\r\n{many}\r\n"), too_large),
        (format!("GET /{long} HTTP/1.1\r\nHost: h\r\n\r\n"), too_large),
    ];
    // hyper answers what it cannot read itself, and what begins no head.
    let is_hypers = |head: &str| head.starts_with(['\r', '\x16']) || head.contains("http://");
    let mut expected = [0.0, 0.0];
    for (head, why) in &cases {
        let is_too_large = *why == too_large;
        let mut connection = connect(&scene).await;
        connection.send(head).await.unwrap();
        let answer = connection.final_response().await;
        let answer = answer.unwrap_or_else(|error| panic!("{why}: {error}"));
        assert_eq!(answer.status, if is_too_large { 431 } else { 400 }, "{why}");
        let body = answer.text();
        if is_too_large || is_hypers(head) {
            assert_eq!(body, "", "{why}");
        } else {
            let told: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                (&told["failure"], &told["forwarded"]),
                (&"unreadable".into(), &false.into())
            );
            assert!(told["detail"].as_str().is_some_and(|told| told.contains(why)), "{body}");
        }
        expected[usize::from(is_too_large)] += 1.0;
        let are_counted = async || {
            [failures(&scene, "unreadable").await, failures(&scene, "large-head").await] == expected
        };
        until(&format!("{why:?} is counted"), async || are_counted().await).await;
        let failure = if is_too_large { "large-head" } else { "unreadable" };
        let line =
            |line: &str| line.contains("INFO") && line.contains(failure) && line.contains(why);
        until(&format!("{why:?} in the log"), async || scene.fence.log().lines().any(line)).await;
    }
    scene.finish().await;
}

/// The answer comes behind those to the requests before it.
#[tokio::test]
async fn unreadable_head_behind_a_request_is_answered_second() {
    let scene = scene().await;
    let mut connection = connect(&scene).await;
    let first = "GET /.well-known/none HTTP/1.1\r\nHost: h\r\n\r\n";
    connection.send(format!("{first}GET /a b HTTP/1.1\r\nHost: h\r\n\r\n")).await.unwrap();
    let statuses = [connection.final_response().await, connection.final_response().await];
    assert_eq!(statuses.map(|answer| answer.unwrap().status), [428, 400]);
    let mut connection = connect(&scene).await;
    let last = "GET /.well-known/none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    connection.send(format!("{last}GET /a b HTTP/1.1\r\nHost: h\r\n\r\n")).await.unwrap();
    assert_eq!(connection.final_response().await.unwrap().status, 428);
    assert!(connection.final_response().await.is_err(), "the first was the last");
    scene.finish().await;
}
