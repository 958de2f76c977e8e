//! HTTP/2 on either side and on both.

use std::io::Read;

use bytes::Bytes;
use fencepost::server::{Limits, Protocol};
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
async fn a_body_of_http_2_reaches_a_worker_of_http_1_with_its_trailers() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
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
async fn trailers_that_nobody_named_pass_over_http_2_and_go_no_further_than_to_http_1() {
    for length in [None, Some("3")] {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
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
async fn a_worker_of_http_2_may_answer_with_as_long_a_head_as_one_of_http_1() {
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
async fn a_url_without_a_path_has_one_at_a_worker_of_http_2_and_a_request_of_http_2_has_to_say_it()
{
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
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = Http2Client::connect(proxy.address()).await;
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
async fn the_answer_to_a_head_is_whole_though_a_worker_of_http_2_has_not_said_so() {
    let mut worker = Http2Worker::start().await;
    let limits = Limits { idle_timeout: MOMENT, ..Limits::default() };
    let proxy = Proxy::with(worker.address, Settings { limits, ..to_http2() });
    let mut client = proxy.client();
    // It stays, so that its end is not the answer's.
    client.send("HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let (_request, mut answer) = worker.next().await;
    let mut body = answer.send_response(Response::new(()), false).unwrap();
    let mut whole = String::new();
    tokio::task::block_in_place(|| client.stream().read_to_string(&mut whole))
        .expect("it is not reset");
    assert!(whole.starts_with("HTTP/1.0 200 ") && whole.ends_with("\r\n\r\n"), "{whole}");
    body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Complete)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_trailers_only_passes() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = Http2Client::connect(proxy.address()).await;
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
async fn trailers_behind_a_length_of_nothing_pass() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = Http2Client::connect(proxy.address()).await;
    let (response, mut asking) = client.begin(post("/package.Service/Call")).await;
    asking.send_data(Bytes::from_static(b"please"), true).unwrap();
    let (_request, mut answer) = worker.next().await;
    let empty = Response::builder().header("content-length", "0").body(()).unwrap();
    let mut telling = answer.send_response(empty, false).unwrap();
    // In one write with the head.
    telling.send_trailers(trailers(&[("grpc-status", "7")])).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.headers()["content-length"], "0");
    let mut told = response.into_body();
    assert!(told.data().await.is_none());
    assert_eq!(told.trailers().await.unwrap().expect("they are passed on")["grpc-status"], "7");
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Complete)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_its_client_resets_never_looks_whole_to_the_worker() {
    for reason in [Reason::CANCEL, Reason::NO_ERROR] {
        let mut worker = Http2Worker::start().await;
        let proxy = Proxy::with(worker.address, to_http2());
        let mut client = Http2Client::connect(proxy.address()).await;
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
async fn a_stream_that_its_client_resets_never_looks_whole_to_a_worker_of_http_1() {
    for reason in [Reason::CANCEL, Reason::NO_ERROR] {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
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
async fn an_answer_that_a_worker_resets_never_looks_whole_to_the_client() {
    for reason in [Reason::INTERNAL_ERROR, Reason::NO_ERROR] {
        let mut worker = Http2Worker::start().await;
        let proxy = Proxy::with(worker.address, to_http2());
        let mut client = Http2Client::connect(proxy.address()).await;
        let response = client.send(get("/")).await;
        let (_request, mut answer) = worker.next().await;
        let mut telling = answer.send_response(Response::new(()), false).unwrap();
        telling.send_data(Bytes::from_static(b"half"), false).unwrap();
        let mut told = response.await.unwrap().into_body();
        assert_eq!(told.data().await.unwrap().unwrap(), "half");
        telling.send_reset(reason);
        let end = told.data().await;
        assert!(matches!(end, Some(Err(_))), "{reason:?}: {end:?}");
        assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Reset)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_worker_has_refused_unseen_is_sent_again() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = Http2Client::connect(proxy.address()).await;
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
async fn a_streamed_body_that_the_worker_has_refused_unseen_leaves_nothing_at_the_worker() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = Http2Client::connect(proxy.address()).await;
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
fn a_request_that_was_answered_is_over_when_the_worker_has_let_in_its_body() {
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
fn nothing_of_a_request_that_is_over_goes_out_though_the_worker_lets_it_in_later() {
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
fn nothing_of_a_request_that_is_overdue_goes_out_though_the_worker_lets_it_in_later() {
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
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = Http2Client::connect(proxy.address()).await;
    let response = client.send(get("/")).await;
    let (_request, mut answer) = worker.next().await;
    answer.send_reset(Reason::INTERNAL_ERROR);
    assert_eq!(response.await.unwrap().status(), 502);
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Reset)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_its_stream_ends_nothing_at_the_worker() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = Http2Client::connect(proxy.address()).await;
    let response = client.send(get("/")).await;
    let (_request, mut answer) = worker.next().await;
    drop(response);
    tokio::time::sleep(MOMENT).await; // What ought not to happen has no event.
    assert!(proxy.events().is_empty());
    let mut telling = answer.send_response(Response::new(()), false).unwrap();
    telling.send_data(Bytes::from_static(b"done"), true).unwrap();
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::Complete)]);
}

/// As over HTTP/1.1, where it held a connection; here it held a stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_waits_for_is_not_read_for_ever_once_its_client_has_left() {
    let mut worker = Http2Worker::start().await;
    let timeouts = Timeouts { late: 2 * MOMENT, ..Timeouts::default() };
    let proxy = Proxy::with(worker.address, Settings { may_be_left: true, timeouts, ..to_http2() });
    let mut client = Http2Client::connect(proxy.address()).await;
    let response = client.send(get("/")).await;
    let (_request, mut answer) = worker.next().await;
    let mut telling = answer.send_response(Response::new(()), false).unwrap();
    drop(response.await.unwrap());
    let is_left = async {
        while telling.send_data(Bytes::from_static(b"x"), false).is_ok() {
            tokio::time::sleep(MOMENT / 10).await; // A trickle.
        }
    };
    tokio::time::timeout(PATIENCE, is_left).await.expect("it is still read");
    assert_eq!(events(&proxy, 1).await, [Event::Finished(Ending::TimedOut)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_one_connection_to_a_worker_of_http_2() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let mut client = Http2Client::connect(proxy.address()).await;
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
async fn a_stream_whose_client_falls_silent_is_reset_and_others_go_on() {
    let limits = Limits { body_timeout: 2 * MOMENT, ..Limits::default() };
    let proxy = Proxy::with(Worker::echo(), Settings { limits, ..Settings::default() });
    let mut client = Http2Client::connect(proxy.address()).await;
    let (silent, mut asking) = client.begin(post("/")).await;
    asking.send_data(Bytes::from_static(b"half"), false).unwrap();
    for _ in 0..5 {
        assert_eq!(client.send(get("/")).await.await.unwrap().status(), 200);
        tokio::time::sleep(MOMENT / 2).await; // Others keep the connection busy meanwhile.
    }
    let ended = tokio::time::timeout(crate::support::PATIENCE, silent)
        .await
        .expect("it is not left waiting");
    assert!(ended.is_err() || ended.is_ok_and(|response| response.status() == 400));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_passes_through_http_2_whole() {
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(worker.address, to_http2());
    let size = 32 * 1024 * 1024;
    let folder = tempfile::tempdir().unwrap();
    let upload = folder.path().join("upload");
    std::fs::write(&upload, vec![b'x'; size]).unwrap();
    let curl = tokio::process::Command::new("curl")
        .args(["-sS", "--http2-prior-knowledge", "-T"])
        .arg(&upload)
        .arg(format!("http://{}/", proxy.address()))
        .output();
    let answering = async {
        let (request, mut answer) = worker.next().await;
        let (body, _) = read(request.into_body()).await.unwrap();
        let mut telling = answer.send_response(Response::new(()), false).unwrap();
        telling.send_data(Bytes::from(body.len().to_string()), true).unwrap();
    };
    let (output, ()) = tokio::join!(curl, answering);
    let output = output.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), size.to_string(), "{:?}", output.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_leaves_finishes_the_streams_that_it_has() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let mut client = Http2Client::connect(proxy.address()).await;
    let response = client.send(get("/")).await;
    let mut peer = worker.next();
    peer.next_request();
    proxy.server().leave();
    peer.respond("done");
    assert_eq!(read(response.await.unwrap().into_body()).await.unwrap().0, b"done");
}
