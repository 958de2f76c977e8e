//! Bodies in chunks, and trailers behind them.

use fencepost::upstream::Ending;

use crate::support::{Event, MOMENT, Proxy, Settings, Worker, assert_field};

#[test]
fn chunks_and_trailers_pass_both_ways_but_for_harmful_trailers() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let mut client = proxy.client();
    client.send(
        "POST / HTTP/1.1\r\nHost: test\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\
         Trailer: X-Sum, Fence-Owner, Content-Length, X-HTTP-Method-Override, X_HTTP_Method\r\n\r\n\
         3\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\nFence-Owner: forged\r\nFence_Owner: forged\r\nContent-Length: 9\r\n\
         X-HTTP-Method-Override: DELETE\r\nX_HTTP_Method: DELETE\r\n\r\n",
    );
    let mut peer = worker.next();
    let head = peer.head();
    assert_field(&head, "transfer-encoding", Some("chunked"));
    assert_eq!(peer.chunks(), (b"abcde".to_vec(), "x-sum: 5\n".to_owned()));
    peer.send(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Fence-Reason\r\n\r\n\
         4\r\nwxyz\r\n0\r\nX-Sum: 4\r\nFence-Reason: forged\r\n\r\n",
    );
    assert_field(&client.head(), "transfer-encoding", Some("chunked"));
    assert_eq!(client.chunks(), (b"wxyz".to_vec(), "x-sum: 4\n".to_owned()));
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

/// As RFC 9110 has it: section 6.6.2 for names, section 6.5.1 for who takes them.
#[test]
fn over_http_1_trailers_pass_that_were_named_and_to_a_client_only_if_it_takes_them() {
    for (named, te, to_worker, to_client) in [
        ("Trailer: x-sum\r\n", "TE: trailers\r\n", "x-sum: 5\n", "x-sum: 4\n"),
        ("Trailer: x-sum\r\n", "", "x-sum: 5\n", ""),
        ("", "TE: trailers\r\n", "", ""),
        ("Trailer: x-other\r\n", "TE: deflate, trailers\r\n", "", ""),
    ] {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
        let mut client = proxy.client();
        let framing = format!("{named}Transfer-Encoding: chunked\r\n\r\n");
        client.send(&format!(
            "POST / HTTP/1.1\r\nHost: test\r\n{te}{framing}5\r\nabcde\r\n0\r\nX-Sum: 5\r\n\r\n"
        ));
        let mut peer = worker.next();
        peer.head();
        assert_eq!(peer.chunks(), (b"abcde".to_vec(), to_worker.to_owned()), "{named:?} {te:?}");
        peer.send(&format!("HTTP/1.1 200 OK\r\n{framing}4\r\nwxyz\r\n0\r\nX-Sum: 4\r\n\r\n"));
        client.head();
        assert_eq!(client.chunks(), (b"wxyz".to_vec(), to_client.to_owned()), "{named:?} {te:?}");
    }
}

#[test]
fn chunks_that_are_all_here_with_their_head_become_a_body_of_known_length() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked";
    let many = format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(70));
    let large = format!("6000\r\n{}\r\n0\r\n\r\n", "x".repeat(0x6000));
    for (fields, chunks, body, length) in [
        ("", "5\r\nbegin\r\n4\r\nning\r\n0\r\n\r\n", "beginning", Some("9")),
        ("", "0\r\n\r\n", "", Some("0")),
        // These may be many, long, or slow to come.
        ("", many.as_str(), &"x".repeat(70), None),
        ("", large.as_str(), &"x".repeat(0x6000), None),
        ("Content-Type: text/event-stream\r\n", "5\r\nbegin\r\n0\r\n\r\n", "begin", None),
        // These have no place behind a length.
        ("Trailer: X-Sum\r\n", "5\r\nbegin\r\n0\r\nX-Sum: 5\r\n\r\n", "begin", None),
    ] {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
        let mut client = proxy.client();
        let mut peer = None;
        for _ in 0..2 {
            client.send("GET / HTTP/1.1\r\nHost: test\r\nTE: trailers\r\nConnection: te\r\n\r\n");
            let peer = peer.get_or_insert_with(|| worker.next());
            peer.next_request();
            peer.send(&format!("{HEAD}\r\n{fields}\r\n{chunks}"));
            let head = client.head();
            assert_field(&head, "content-length", length);
            assert_field(
                &head,
                "transfer-encoding",
                if length.is_some() { None } else { Some("chunked") },
            );
            let got = if length.is_some() { client.body_of(&head) } else { client.chunks().0 };
            assert_eq!(got, body.as_bytes(), "{fields}{chunks}");
        }
        assert!(!worker.has_another(), "the connection to the worker is kept");
    }
}

#[test]
fn an_upload_in_chunks_that_is_here_with_its_head_is_one_of_known_length() {
    let [some, many] = [60, 70].map(|pieces| format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(pieces)));
    let large = format!("{:x}\r\n{}\r\n0\r\n\r\n", 0x20000, "x".repeat(0x20000));
    for (fields, chunks, body, length) in [
        ("", "5\r\nbegin\r\n4\r\nning\r\n0\r\n\r\n", "beginning", Some("9")),
        ("", "0\r\n\r\n", "", Some("0")),
        ("", some.as_str(), &"x".repeat(60), Some("60")),
        ("", many.as_str(), &"x".repeat(70), None),
        ("", large.as_str(), &"x".repeat(0x20000), None),
        // These have no place behind a length.
        ("Trailer: X-Sum\r\n", "5\r\nbegin\r\n0\r\nX-Sum: 5\r\n\r\n", "begin", None),
        ("Trailer: X-Sum\r\n", "0\r\nX-Sum: 0\r\n\r\n", "", None),
        (
            "Trailer: Fence-Owner\r\n",
            "5\r\nbegin\r\n0\r\nFence-Owner: forged\r\n\r\n",
            "begin",
            Some("5"),
        ),
    ] {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
        let framing = format!("{fields}Transfer-Encoding: chunked\r\n\r\n");
        let mut client = proxy.client();
        client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\n{framing}{chunks}"));
        let mut peer = worker.next();
        let head = peer.head();
        assert_field(&head, "content-length", length);
        assert_field(
            &head,
            "transfer-encoding",
            if length.is_some() { None } else { Some("chunked") },
        );
        let got = if length.is_some() { peer.body_of(&head) } else { peer.chunks().0 };
        assert_eq!(got, body.as_bytes(), "{fields}{chunks}");
        peer.respond("done");
        assert_eq!(client.answer().1, b"done");
    }
}

#[test]
fn an_upload_in_chunks_that_is_here_but_for_its_end_is_passed_on_in_chunks() {
    for method in ["GET", "POST"] {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
        let framing = "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n";
        let mut client = proxy.client();
        client.send(&format!("{method} / HTTP/1.1\r\nHost: test\r\n{framing}4\r\nning\r\n"));
        let mut peer = worker.next();
        assert_field(&peer.head(), "transfer-encoding", Some("chunked"));
        assert_eq!(peer.exactly(14), b"9\r\nbeginning\r\n");
        client.send("1\r\n!\r\n0\r\n\r\n");
        assert_eq!(peer.chunks().0, b"!");
        peer.respond("done");
        assert_eq!(client.answer().1, b"done");
    }
}

#[test]
fn an_upload_in_chunks_is_passed_on_in_chunks_where_none_is_to_be_read_whole() {
    let worker = Worker::by_hand();
    let proxy =
        Proxy::with(worker.address(), Settings { whole_bytes_max: 0, ..Settings::default() });
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n0\r\n\r\n");
    let mut peer = worker.next();
    assert_field(&peer.head(), "transfer-encoding", Some("chunked"));
    assert_eq!(peer.chunks().0, b"begin");
}

#[test]
fn an_upload_in_chunks_that_is_broken_where_it_is_here_never_reaches_the_worker() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let mut client = proxy.client();
    client.send(
        "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\nx\r\n",
    );
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(!worker.has_another());
}

#[test]
fn a_client_that_waits_for_leave_to_send_chunks_gets_it_when_the_worker_has_the_head() {
    let worker = Worker::by_hand();
    let proxy =
        Proxy::with(worker.address(), Settings { connections_max: 1, ..Settings::default() });
    let (mut first, mut peer) = proxy.at_worker(&worker, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(client.within(MOMENT), b"");
    peer.respond("first");
    first.answer();
    assert_field(&peer.head(), "transfer-encoding", Some("chunked"));
    assert_eq!(client.head(), "HTTP/1.1 100 Continue\r\n\r\n");
}
