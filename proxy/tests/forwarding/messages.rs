//! What becomes of a message on its way.

use std::time::Duration;

use fencepost::upstream::Ending;

use crate::support::{Event, MOMENT, Peer, Proxy, Worker, assert_field};

/// What a worker gets of `request`.
fn seen_by_worker(request: &str) -> String {
    let proxy = Proxy::before(Worker::echo());
    let (head, body) = proxy.client().ask(request);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    String::from_utf8(body).unwrap()
}

/// What a client gets when a worker answers with `answer`.
fn seen_by_client(answer: &'static str) -> String {
    let proxy = Proxy::before(Worker::scripted(move |mut peer: Peer| {
        peer.next_request();
        peer.send(answer);
    }));
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    client.head()
}

#[test]
fn a_request_reaches_the_worker_and_its_answer_the_client() {
    let proxy = Proxy::before(Worker::echo());
    let (head, body) = proxy.client().get("/some/path?and=query");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let seen = String::from_utf8(body).unwrap();
    assert!(seen.starts_with("GET /some/path?and=query HTTP/1.1\r\n"), "{seen}");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn what_concerns_one_connection_stays_on_it() {
    let seen = seen_by_worker(
        "GET / HTTP/1.1\r\nHost: test\r\nConnection: close, X-Secret, Fence-Owner, Host\r\nX-Secret: 1\r\n\
         Keep-Alive: 5\r\nProxy-Connection: keep-alive\r\nTE: trailers, deflate\r\nUpgrade: h2c\r\n\
         HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nFence-Owner: a\r\nX-Kept: 2\r\n\r\n",
    );
    for name in ["connection", "x-secret", "keep-alive", "proxy-connection", "upgrade"] {
        assert_field(&seen, name, None);
    }
    assert_field(&seen, "te", Some("trailers"));
    assert_field(&seen, "host", Some("test"));
    assert_field(&seen, "fence-owner", Some("a"));
    assert_field(&seen, "x-kept", Some("2"));
}

#[test]
fn the_worker_is_told_where_a_request_comes_from() {
    let seen = seen_by_worker(
        "GET / HTTP/1.1\r\nHost: shard.example:8080\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-Host: liar\r\nForwarded: for=192.0.2.1\r\n\
         Via: 1.0 fred\r\n\r\n",
    );
    assert_field(&seen, "host", Some("shard.example:8080"));
    assert_field(&seen, "x-forwarded-for", Some("192.0.2.1, 192.0.2.2, 127.0.0.1"));
    assert_field(&seen, "x-forwarded-proto", Some("http"));
    assert_field(&seen, "x-forwarded-host", Some("shard.example:8080"));
    assert_field(&seen, "forwarded", Some("for=192.0.2.1"));
    let vias: Vec<_> = seen.lines().filter(|line| line.starts_with("via:")).collect();
    assert_eq!(vias, ["via: 1.0 fred", "via: 1.1 fencepost"]);
}

#[test]
fn a_response_loses_hop_by_hop_and_fence_fields() {
    let head = seen_by_client(
        "HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nFence-Reason: forged\r\n\
         Fence_Reason: forged\r\nContent-Length: 0\r\nX-Kept: 2\r\n\r\n",
    );
    for name in ["connection", "x-hop", "keep-alive", "fence-reason", "fence_reason"] {
        assert_field(&head, name, None);
    }
    assert_field(&head, "x-kept", Some("2"));
    assert_field(&head, "via", Some("1.1 fencepost"));
}

#[test]
fn an_absolute_target_becomes_a_path_and_its_host() {
    let seen =
        seen_by_worker("GET http://real.example/path?q HTTP/1.1\r\nHost: Real.example\r\n\r\n");
    assert!(seen.starts_with("GET /path?q HTTP/1.1\r\n"), "{seen}");
    assert_field(&seen, "host", Some("real.example"));
    let seen = seen_by_worker("OPTIONS * HTTP/1.1\r\nHost: test\r\n\r\n");
    assert!(seen.starts_with("OPTIONS * HTTP/1.1\r\n"), "{seen}");
}

#[test]
fn a_client_of_http_1_0_is_served_and_its_connection_closed() {
    let proxy = Proxy::before(Worker::echo());
    let mut client = proxy.client();
    client.send("GET / HTTP/1.0\r\nX-Forwarded-Host: liar\r\n\r\n");
    let answer = String::from_utf8(client.until_end()).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("GET / HTTP/1.1\r\n") && answer.contains("via: 1.0 fencepost"),
        "{answer}"
    );
    assert!(
        answer.contains(&format!("host: {}", "127.0.0.1:")),
        "a worker gets a Host in any case: {answer}"
    );
    assert!(!answer.contains("x-forwarded-host"), "its client has named none: {answer}");
}

#[test]
fn the_answer_to_a_head_keeps_its_length_and_has_no_body() {
    let proxy = Proxy::before(Worker::scripted(|mut peer: Peer| {
        while let Some((head, _)) = peer.next_request() {
            match head.starts_with("HEAD") {
                true => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n"),
                false => peer.respond("next"),
            }
        }
    }));
    let mut client = proxy.client();
    client.send("HEAD / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_field(&client.head(), "content-length", Some("12345"));
    assert_eq!(client.get("/").1, b"next");
    assert_eq!(proxy.wait_for_events(2), [Event::Finished(Ending::Complete); 2]);
}

#[test]
fn the_length_of_a_head_response_is_sent_once_or_never() {
    for (fields, expected) in [
        ("Content-Length: 5", Some("5")),
        ("Content-Length: 5, 5", Some("5")),
        ("Content-Length: 5\r\nContent-Length: 5", Some("5")),
        ("Content-Length: 5, 6", None),
        ("Content-Length: 5\r\nContent-Length: 6", None),
        ("Content-Length: +5", None),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", None),
    ] {
        let proxy = Proxy::before(Worker::scripted(move |mut peer: Peer| {
            peer.head();
            peer.send(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n"));
            peer.until_end();
        }));
        let mut client = proxy.client();
        client.send("HEAD / HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_field(&client.head(), "content-length", expected);
    }
}

#[test]
fn an_answer_that_ends_with_its_connection_is_passed_on_whole() {
    let (worker, proxy) = Proxy::by_hand();
    let (mut client, mut peer) = proxy.at_worker(&worker, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    peer.send("HTTP/1.1 200 OK\r\n\r\nuntil ");
    let head = client.head();
    assert_field(&head, "transfer-encoding", Some("chunked"));
    peer.send("the end");
    drop(peer);
    assert_eq!(client.body_of(&head), b"until the end");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn framing_is_set_anew() {
    assert_field(
        &seen_by_worker("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"),
        "content-length",
        Some("0"),
    );
    assert_field(
        &seen_by_worker("GET / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"),
        "content-length",
        None,
    );
    let seen = seen_by_worker("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc");
    assert_field(&seen, "content-length", Some("3"));
    assert!(seen.ends_with("\r\n\r\nabc"));
    // hyper keeps a length that precedes the encoding in its map.
    let head = seen_by_client(
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    );
    assert_field(&head, "content-length", Some("0"));
}

#[test]
fn expect_100_continue_is_answered_when_the_body_is_read() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client
        .send("POST / HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.head(), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello");
    let mut peer = worker.next();
    let (head, body) = peer.next_request().unwrap();
    assert_field(&head, "expect", None);
    assert_eq!(body, b"hello");
    // The worker's own leave is not the client's concern any more.
    peer.send("HTTP/1.1 100 Continue\r\n\r\n");
    peer.respond("done");
    assert_eq!(client.answer().1, b"done");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let proxy = Proxy::before(Worker::echo());
    let mut client = proxy.client();
    client.send(
        &(0..10)
            .map(|number| format!("GET /{number} HTTP/1.1\r\nHost: test\r\n\r\n"))
            .collect::<String>(),
    );
    for number in 0..10 {
        let (_, body) = client.answer();
        assert!(String::from_utf8(body).unwrap().starts_with(&format!("GET /{number} ")));
    }
}

#[test]
fn a_worker_may_say_something_before_its_answer() {
    let proxy = Proxy::before(Worker::scripted(|mut peer: Peer| {
        peer.next_request();
        peer.send(
            "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n",
        );
        peer.respond("done");
    }));
    assert_eq!(proxy.client().get("/").1, b"done");
}

#[test]
fn a_client_that_half_closes_counts_as_gone() {
    let (worker, proxy) = Proxy::by_hand();
    let (mut client, mut peer) = proxy.at_worker(&worker, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    client.end_writing();
    assert_eq!(client.within(Duration::from_secs(5)), b"");
    assert!(proxy.events().is_empty());
    peer.respond("too late");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
    assert_eq!(client.within(MOMENT), b"");
}

#[test]
fn a_client_that_pipelines_and_half_closes_is_answered() {
    let (worker, proxy) = Proxy::by_hand();
    let (mut client, mut peer) = proxy.at_worker(&worker, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    client.end_writing();
    peer.respond("first");
    assert_eq!(client.answer().1, b"first");
}
