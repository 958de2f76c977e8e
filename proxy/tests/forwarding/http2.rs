//! HTTP/2 on either side and on both.

use std::time::Instant;

use bytes::Bytes;
use fencepost::server::Protocol;
use fencepost::upstream::{Ending, Timeouts};
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};

use crate::support::{
    Client, Event, Frame, Frames, Http2Client, Http2Worker, MOMENT, PATIENCE, Proxy, Settings,
    Worker, field, read, some,
};

fn to_http2() -> Settings {
    Settings { upstream_protocol: Protocol::Http2, ..Settings::default() }
}

/// A worker and a client that both speak HTTP/2, and the proxy between them.
async fn between_http2() -> (Http2Worker, Proxy, Http2Client) {
    let worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let client = Http2Client::connect(proxy.address()).await;
    (worker, proxy, client)
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://shard.example{path}")).body(()).unwrap()
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://shard.example{path}")).header("te", "trailers").body(()).unwrap()
}

fn trailers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    fields
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect()
}

/// Waits for permits off the runtime's thread, which may have to serve the worker meanwhile.
async fn events(proxy: &Proxy, count: usize) -> Vec<Event> {
    tokio::task::block_in_place(|| proxy.wait_for_events(count))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_http_2_reaches_a_worker_of_http_1() {
    let proxy = Proxy::before(Worker::echo());
    let mut client = Http2Client::connect(proxy.address()).await;
    let mut request = get("/path?query");
    for crumb in ["a=1", "b=2"] {
        request.headers_mut().append("cookie", HeaderValue::from_static(crumb));
    }
    let response = client.send(request).await.await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["via"], "1.1 fencepost");
    let (body, _) = read(response.into_body()).await.unwrap();
    let seen = String::from_utf8(body).unwrap();
    assert!(seen.starts_with("GET /path?query HTTP/1.1\r\n"), "{seen}");
    for (name, value) in [
        ("host", "shard.example"),
        ("x-forwarded-host", "shard.example"),
        ("x-forwarded-for", "127.0.0.1"),
        ("cookie", "a=1; b=2"),
        ("via", "2 fencepost"),
    ] {
        assert_eq!(field(&seen, name), Some(value), "{name} in {seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_body_reaches_an_http1_worker_with_trailers() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = Http2Client::connect(proxy.address()).await;
    let mut request = post("/");
    request.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
    let (response, mut body) = client.begin(request).await;
    body.send_data(Bytes::from_static(b"abc"), false).unwrap();
    body.send_trailers(trailers(&[("x-sum", "3"), ("fence-owner", "forged")])).unwrap();
    let mut peer = worker.next();
    let head = peer.head();
    assert_eq!(field(&head, "transfer-encoding"), Some("chunked"), "{head}");
    assert_eq!(peer.chunks(), (b"abc".to_vec(), "x-sum: 3\n".to_owned()));
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n");
    let (body, end) = read(response.await.unwrap().into_body()).await.unwrap();
    assert_eq!(body, b"ok");
    assert_eq!(end.unwrap()["x"], "y");
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Complete)]);
}

/// HTTP/2 has trailers without names before them; HTTP/1.1 has none behind a body whose length was
/// said.
#[tokio::test(flavor = "multi_thread")]
async fn unnamed_trailers_pass_over_http2_only() {
    for length in [None, Some("3")] {
        let (worker, proxy) = Proxy::by_hand();
        let mut client = Http2Client::connect(proxy.address()).await;
        let mut request = post("/");
        if let Some(length) = length {
            request.headers_mut().insert("content-length", HeaderValue::from_static(length));
            request.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
        }
        let (response, mut body) = client.begin(request).await;
        body.send_data(Bytes::from_static(b"abc"), false).unwrap();
        body.send_trailers(trailers(&[("x-sum", "3")])).unwrap();
        let mut peer = worker.next();
        let head = peer.head();
        match length {
            None => assert_eq!(peer.chunks(), (b"abc".to_vec(), String::new())),
            Some(length) => {
                assert_eq!(field(&head, "content-length"), Some(length), "{head}");
                assert_eq!(peer.exactly(3), b"abc");
            }
        }
        peer.send(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
        );
        let (body, end) = read(response.await.unwrap().into_body()).await.unwrap();
        assert_eq!(body, b"ok");
        assert_eq!(end.unwrap()["x"], "y");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_http_1_reaches_a_worker_of_http_2() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = proxy.client();
    client
        .send("POST /path HTTP/1.1\r\nHost: shard.example\r\nContent-Length: 5\r\nConnection: x\r\nX: 1\r\n\r\nhello");
    let (request, mut answer) = worker.next().await;
    assert_eq!(request.uri(), "http://shard.example/path");
    assert!(!request.headers().contains_key("x") && !request.headers().contains_key("host"));
    assert_eq!(read(request.into_body()).await.unwrap().0, b"hello");
    let mut body = answer.send_response(Response::new(()), false).unwrap();
    body.send_data(Bytes::from_static(b"done"), true).unwrap();
    let (head, body) = tokio::task::block_in_place(|| client.answer());
    assert!(head.starts_with("HTTP/1.1 200 ") && body == b"done", "{head}");
    assert_eq!(field(&head, "via"), Some("2 fencepost"));
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Complete)]);
}

/// Where it cannot be read, nobody knows what became of the request.
#[tokio::test(flavor = "multi_thread")]
async fn an_http2_worker_may_answer_with_a_long_head() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: shard.example\r\n\r\n");
    let (_, mut answer) = worker.next().await;
    let long = "x".repeat(15_000);
    let head =
        (0..5).fold(Response::builder(), |head, number| head.header(format!("x-{number}"), &long));
    answer.send_response(head.body(()).unwrap(), true).unwrap();
    let head = tokio::task::block_in_place(|| client.head());
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(field(&head, "x-4"), Some(&*long));
}

/// RFC 9113 has no path that does not begin with a slash. Judged as `/`, it went to the worker as
/// `?query`.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_a_path_gets_one_for_an_http2_worker() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    for (target, path) in [("?query", "/?query"), ("?", "/?"), ("", "/"), ("/?query", "/?query")] {
        let mut client = proxy.client();
        client.send(&format!(
            "GET http://shard.example{target} HTTP/1.1\r\nHost: shard.example\r\n\r\n"
        ));
        let (request, mut answer) = worker.next().await;
        assert_eq!(request.uri().path_and_query().unwrap().as_str(), path, "{target:?}");
        answer.send_response(Response::new(()), true).unwrap();
    }
    let mut client = Http2Client::connect(proxy.address()).await;
    let response = client.send(get("?query")).await.await.unwrap();
    assert_eq!(response.status(), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_streams_both_ways_and_trailers_passes() {
    let (mut worker, proxy, mut client) = between_http2().await;
    let mut call = post("/package.Service/Talk");
    call.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    let (response, mut asking) = client.begin(call).await;
    asking.send_data(Bytes::from_static(b"one"), false).unwrap();
    let (request, mut answer) = worker.next().await;
    assert_eq!(request.headers()["te"], "trailers");
    let mut heard = request.into_body();
    assert_eq!(some(&mut heard, 3).await, b"one");
    let mut telling = answer.send_response(Response::new(()), false).unwrap();
    let mut told = response.await.unwrap().into_body();
    for word in ["two", "three"] {
        telling.send_data(Bytes::from_static(word.as_bytes()), false).unwrap();
        assert_eq!(told.data().await.unwrap().unwrap(), word);
        asking.send_data(Bytes::from_static(word.as_bytes()), false).unwrap();
        assert_eq!(some(&mut heard, word.len()).await, word.as_bytes());
    }
    asking.send_data(Bytes::new(), true).unwrap();
    assert_eq!(read(heard).await.unwrap().0, b"");
    assert!(proxy.events().is_empty());
    telling
        .send_trailers(trailers(&[
            ("grpc-status", "0"),
            ("grpc-message", "fine"),
            ("fence-x", "forged"),
        ]))
        .unwrap();
    assert!(told.data().await.is_none());
    let end = told.trailers().await.unwrap().unwrap();
    assert_eq!(
        (&end["grpc-status"], &end["grpc-message"], end.get("fence-x")),
        (&"0".parse().unwrap(), &"fine".parse().unwrap(), None)
    );
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Complete)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_trailers_only_passes() {
    let (mut worker, _proxy, mut client) = between_http2().await;
    let (response, mut asking) = client.begin(post("/package.Service/Refuse")).await;
    asking.send_data(Bytes::from_static(b"please"), true).unwrap();
    let (_request, mut answer) = worker.next().await;
    let refusal = Response::builder().header("grpc-status", "7").body(()).unwrap();
    answer.send_response(refusal, true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "7");
    assert!(response.body().is_end_stream());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_stream_never_looks_whole_to_an_http2_worker() {
    for reason in [Reason::CANCEL, Reason::NO_ERROR] {
        let (mut worker, proxy, mut client) = between_http2().await;
        let (_response, mut asking) = client.begin(post("/")).await;
        asking.send_data(Bytes::from_static(b"half"), false).unwrap();
        let (request, _answer) = worker.next().await;
        let mut heard = request.into_body();
        assert_eq!(some(&mut heard, 4).await, b"half");
        asking.send_reset(reason);
        let end = heard.data().await;
        assert!(matches!(end, Some(Err(_))), "{reason:?}: {end:?}");
        assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::BodyCut)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_stream_never_looks_whole_to_an_http1_worker() {
    for reason in [Reason::CANCEL, Reason::NO_ERROR] {
        let (worker, proxy) = Proxy::by_hand();
        let mut client = Http2Client::connect(proxy.address()).await;
        let (_response, mut asking) = client.begin(post("/")).await;
        asking.send_data(Bytes::from_static(b"half"), false).unwrap();
        let mut peer = worker.next();
        peer.head();
        assert_eq!((peer.line(), peer.line()), ("4".to_owned(), "half".to_owned()));
        asking.send_reset(reason);
        assert_eq!(peer.until_end(), b"", "no last chunk: {reason:?}");
        assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::BodyCut)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_response_never_looks_whole_to_the_client() {
    let reasons = [Reason::INTERNAL_ERROR, Reason::NO_ERROR, Reason::CANCEL];
    // Passed on, these would tell the client that nothing was processed.
    for reason in reasons.into_iter().chain([Reason::REFUSED_STREAM, Reason::ENHANCE_YOUR_CALM]) {
        let (mut worker, proxy, mut client) = between_http2().await;
        let response = client.send(get("/")).await;
        let (_request, mut answer) = worker.next().await;
        let mut telling = answer.send_response(Response::new(()), false).unwrap();
        telling.send_data(Bytes::from_static(b"half"), false).unwrap();
        let mut told = response.await.unwrap().into_body();
        assert_eq!(told.data().await.unwrap().unwrap(), "half");
        telling.send_reset(reason);
        let end = told.data().await.unwrap().unwrap_err();
        assert_eq!(end.reason(), Some(Reason::INTERNAL_ERROR), "{reason:?}");
        assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Reset)]);
    }
}

/// A reset would be `INTERNAL` to a client of gRPC, which may not call again.
#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_response_that_is_cut_ends_as_unavailable() {
    let mut worker = Http2Worker::start().await;
    let timeouts = Timeouts { stream_idle: Some(3 * MOMENT), ..Timeouts::default() };
    let proxy = Proxy::with(worker.address, Settings { timeouts, ..to_http2() });
    let mut client = Http2Client::connect(proxy.address()).await;
    for (kind, is_reset) in [
        ("application/grpc", false),
        ("application/grpc+proto", true),
        ("application/grpc-web", true),
        ("text/plain", false),
    ] {
        let response = client.send(post("/package.Service/Watch")).await;
        let (_request, mut answer) = worker.next().await;
        let head = Response::builder().header("content-type", kind).body(()).unwrap();
        let mut telling = answer.send_response(head, false).unwrap();
        telling.send_data(Bytes::from_static(b"half"), false).unwrap();
        let mut told = response.await.unwrap().into_body();
        assert_eq!(some(&mut told, 4).await, b"half");
        if is_reset {
            telling.send_reset(Reason::REFUSED_STREAM);
        }
        let end = read(told).await;
        if kind == "text/plain" || kind.ends_with("web") {
            assert_eq!(end.unwrap_err().reason(), Some(Reason::INTERNAL_ERROR), "{kind}");
        } else {
            assert_eq!(end.unwrap().1.unwrap()["grpc-status"], "14", "{kind}");
        }
    }
}

/// Node refuses new streams of a connection on which it keeps much that a client does not read.
#[tokio::test(flavor = "multi_thread")]
async fn an_unread_response_has_its_connection_to_itself() {
    let (mut worker, proxy, mut slow) = between_http2().await;
    let unread = slow.send(get("/")).await;
    let (_request, mut answer) = worker.next().await;
    let mut telling = answer.send_response(Response::new(()), false).unwrap();
    telling.send_data(Bytes::from(vec![0; 20_000_000]), true).unwrap();
    let unread = unread.await.unwrap();
    let mut others = Http2Client::connect(proxy.address()).await;
    let deadline = Instant::now() + PATIENCE;
    while worker.connections() == 1 {
        assert!(Instant::now() < deadline, "they share its connection");
        let response = others.send(get("/")).await;
        let (_request, mut answer) = worker.next().await;
        answer.send_response(Response::new(()), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
    }
    assert_eq!(read(unread.into_body()).await.unwrap().0.len(), 20_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_worker_has_refused_unseen_is_sent_again() {
    let (mut worker, proxy, mut client) = between_http2().await;
    let response = client.send(get("/")).await;
    let (_request, mut answer) = worker.next().await;
    answer.send_reset(Reason::REFUSED_STREAM);
    let (_request, mut answer) = worker.next().await;
    answer.send_response(Response::new(()), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    assert_eq!(
        events(&proxy, 1).await,
        [Event::Finished(Ending::Complete)],
        "the first permit came back unused"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_streamed_body_leaves_nothing_at_the_worker() {
    let (mut worker, proxy, mut client) = between_http2().await;
    let (response, mut asking) = client.begin(post("/")).await;
    asking.send_data(Bytes::from_static(b"half"), false).unwrap();
    let (_request, mut answer) = worker.next().await;
    answer.send_reset(Reason::REFUSED_STREAM);
    assert_eq!(response.await.unwrap().status(), 502);
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Complete)]);
}

/// A connection to a worker whose windows are shut, with a request at the worker whose body they
/// hold back.
fn held_back(timeouts: Timeouts) -> (Proxy, Client, Frames) {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { timeouts, ..to_http2() });
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut frames = Frames::with_shut_windows(worker.next());
    // The windows are known with this answer.
    assert_eq!(frames.next(), Frame::Headers { stream: 1 });
    frames.respond(1);
    client.answer();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(frames.next(), Frame::Headers { stream: 3 });
    (proxy, client, frames)
}

#[test]
fn an_answered_request_ends_when_its_body_is_written() {
    let (proxy, mut client, mut frames) = held_back(Timeouts::default());
    frames.respond(3);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let lost = [Event::Finished(Ending::Complete), Event::Overdue];
    assert_eq!(proxy.wait_for_events(2), lost, "the second is an orphan until it is written");
    frames.open(3, 2);
    assert_eq!(frames.next(), Frame::Data { stream: 3, ends: false, bytes: b"he".to_vec() });
    assert_eq!(frames.peer().within(MOMENT), b"");
    assert_eq!(proxy.events().len(), 2);
    frames.open(3, 3);
    assert_eq!(frames.next(), Frame::Data { stream: 3, ends: false, bytes: b"ll".to_vec() });
    assert_eq!(frames.next(), Frame::Data { stream: 3, ends: true, bytes: b"o".to_vec() });
    assert_eq!(proxy.wait_for_events(3)[2], Event::Finished(Ending::Complete));
}

#[test]
fn nothing_of_an_ended_request_goes_out_later() {
    let (proxy, mut client, mut frames) =
        held_back(Timeouts { late: MOMENT, ..Timeouts::default() });
    frames.respond(3);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let over = [Event::Overdue, Event::Finished(Ending::TimedOut)];
    assert_eq!(proxy.wait_for_events(3)[1..], over, "what the worker has of it it may be at still");
    frames.open(3, 5);
    assert_eq!(frames.peer().until_end(), b"");
}

#[test]
fn nothing_of_an_overdue_request_goes_out_later() {
    let (proxy, mut client, mut frames) =
        held_back(Timeouts { silence: 10 * MOMENT, ..Timeouts::default() });
    assert!(client.head().starts_with("HTTP/1.1 504 "));
    assert_eq!(proxy.wait_for_events(2)[1..], [Event::Finished(Ending::TimedOut)]);
    frames.open(3, 5);
    assert_eq!(frames.next(), Frame::Reset { stream: 3 });
    assert_eq!(frames.peer().within(MOMENT), b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_worker_has_begun_is_not_sent_again() {
    let (mut worker, proxy, mut client) = between_http2().await;
    let response = client.send(get("/")).await;
    let (_request, mut answer) = worker.next().await;
    answer.send_reset(Reason::INTERNAL_ERROR);
    assert_eq!(response.await.unwrap().status(), 502);
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Reset)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_its_stream_ends_nothing_at_the_worker() {
    let (mut worker, proxy, mut client) = between_http2().await;
    let response = client.send(get("/")).await;
    let (_request, mut answer) = worker.next().await;
    drop(response);
    tokio::time::sleep(MOMENT).await; // What ought not to happen has no event.
    assert!(proxy.events().is_empty());
    let mut telling = answer.send_response(Response::new(()), false).unwrap();
    telling.send_data(Bytes::from_static(b"done"), true).unwrap();
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Complete)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_one_connection_to_a_worker_of_http_2() {
    let (mut worker, proxy, mut client) = between_http2().await;
    let mut responses = Vec::new();
    for number in 0..50 {
        responses.push(client.send(get(&format!("/{number}"))).await);
    }
    let mut answers = Vec::new();
    for _ in 0..50 {
        answers.push(worker.next().await);
    }
    for (request, mut answer) in answers {
        let path = request.uri().path().to_owned();
        answer
            .send_response(Response::builder().header("path", path).body(()).unwrap(), true)
            .unwrap();
    }
    for (number, response) in responses.into_iter().enumerate() {
        assert_eq!(response.await.unwrap().headers()["path"], format!("/{number}"));
    }
    assert_eq!(events(&proxy, 50).await, [Event::Finished(Ending::Complete); 50]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_leaves_finishes_the_streams_that_it_has() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = Http2Client::connect(proxy.address()).await;
    let response = client.send(get("/")).await;
    let mut peer = worker.next();
    peer.next_request();
    proxy.server().leave();
    peer.respond("done");
    assert_eq!(read(response.await.unwrap().into_body()).await.unwrap().0, b"done");
}
