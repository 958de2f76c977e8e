//! A panic ends one request, and nothing else.
//!
//! Nothing in the program panics on demand. So the test's log subscriber panics over a chosen line,
//! and the stack unwinds from the middle of the program's work.

mod mine;
mod proxy;

use fencepost_tests::{Behaviour, Connection, Endpoint, Response, Worker, eventually, request};

use proxy::{Proxy, token};

fn assert_failed(answer: &Response, forwarded: serde_json::Value) {
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.header("fence-reason"), None, "it is no verdict");
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["failure"], "internal-error");
    assert_eq!(body["forwarded"], forwarded);
}

#[tokio::test]
async fn a_panic_ends_its_request_with_502_and_nothing_else() {
    let proxy = Proxy::start(Worker::start().await).await;
    let mut connection = Connection::open(proxy.address).await.unwrap();
    mine::lay("request refused", "/a");
    connection.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    assert_failed(&connection.final_response().await.unwrap(), false.into());
    connection.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    assert_eq!(
        connection.final_response().await.unwrap().status,
        428,
        "the same connection goes on"
    );
    let honest =
        request(proxy.address, "GET", "/a", &token("a", proxy.held_by("a")), b"").await.unwrap();
    assert_eq!(honest.status, 200);
    let metrics = proxy.metrics().await;
    assert!(
        metrics.contains(r#"fencepost_failures_total{failure="internal-error",route="all"} 1"#),
        "{metrics}"
    );
    let panics =
        metrics.lines().find_map(|line| line.strip_prefix("fencepost_panics_total ")).unwrap();
    assert!(panics.parse::<u64>().unwrap() >= 1, "{panics}");
}

#[tokio::test]
async fn a_panic_at_the_gate_gives_its_place_back() {
    let worker = Worker::start().await;
    let latch = worker.holds("/slow");
    let proxy = Proxy::start(worker).await;
    let first = proxy.held_by("a");
    let address = proxy.address;
    let slow =
        tokio::spawn(
            async move { request(address, "GET", "/slow", &token("a", first), b"").await },
        );
    proxy.worker.wait_for(1).await;

    // The next tenure waits for the request of the one before it; when it is let in, somebody
    // panics.
    let second = proxy.held_by("b");
    mine::lay("let in after a wait", "/lock");
    let waits =
        tokio::spawn(async move { request(address, "GET", "/b", &token("b", second), b"").await });
    eventually("a request that waits", async || (proxy.waiting().await == 1).then_some(())).await;
    latch.open();
    assert_eq!(slow.await.unwrap().unwrap().status, 200);
    assert_failed(&waits.await.unwrap().unwrap(), false.into());

    // Nothing of it has gone out, so the next tenure waits for nothing.
    let third = proxy.held_by("c");
    let next = request(address, "GET", "/c", &token("c", third), b"").await.unwrap();
    assert_eq!(next.status, 200, "{next:?}");
    for name in ["fencepost_orphans{", "fencepost_orphans_expired_total{"] {
        assert!(proxy.metric(name).await.ends_with(" 0"), "{name}");
    }
    let paths: Vec<_> = proxy.worker.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths, ["/slow", "/c"], "what panicked before it was sent was not sent");
}

#[tokio::test]
async fn a_panic_after_something_went_out_says_that_nobody_knows() {
    let worker = Worker::start().await;
    worker.on("/broken", Behaviour::Reset);
    let proxy = Proxy::start(worker).await;
    let Endpoint::Tcp(worker) = proxy.worker.endpoint() else {
        unreachable!("it listens on an IP address")
    };
    mine::lay("the worker did not answer", &worker.to_string());
    let revision = proxy.held_by("a");
    let answer =
        request(proxy.address, "POST", "/broken", &token("a", revision), b"x").await.unwrap();
    assert_failed(&answer, "unknown".into());
    let (counts, expired) = (
        proxy.metric("fencepost_orphans{").await,
        proxy.metric("fencepost_orphans_expired_total{").await,
    );
    assert!(
        counts.ends_with(" 1") || expired.ends_with(" 1"),
        "the worker may be at it: {counts}, {expired}"
    );
}

#[tokio::test]
async fn a_panic_of_the_admin_listener_is_answered_too() {
    let proxy = Proxy::start(Worker::start().await).await;
    mine::lay("orphans ended by hand", "/lock");
    proxy.held_by("a");
    let answer =
        request(proxy.admin, "POST", "/locks/%2Flock/clear-orphans", &[], b"").await.unwrap();
    assert_failed(&answer, false.into());
    assert_eq!(request(proxy.admin, "GET", "/livez", &[], b"").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_process_whose_source_has_failed_ends() {
    let mut proxy = Proxy::start(Worker::start().await).await;
    let revision = proxy.held_by("a");
    assert_eq!(
        request(proxy.address, "GET", "/", &token("a", revision), b"").await.unwrap().status,
        200
    );
    mine::lay("store-regressed", "main");
    proxy.store.rewind_to(fencepost_policy::Revision::MIN);
    let ended = proxy.ended().await;
    assert!(ended.contains("SourceEnded"), "{ended}");
}
