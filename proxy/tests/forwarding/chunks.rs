//! Bodies in chunks, and trailers behind them.

use fencepost::upstream::Ending;

use crate::support::{Event, Proxy, assert_field};

#[test]
fn chunks_and_trailers_pass_both_ways_but_for_harmful_trailers() {
    let (worker, proxy) = Proxy::by_hand();
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
fn http1_trailers_pass_if_named_and_accepted() {
    for (named, te, to_worker, to_client) in [
        ("Trailer: x-sum\r\n", "TE: trailers\r\n", "x-sum: 5\n", "x-sum: 4\n"),
        ("Trailer: x-sum\r\n", "", "x-sum: 5\n", ""),
        ("", "TE: trailers\r\n", "", ""),
        ("Trailer: x-other\r\n", "TE: deflate, trailers\r\n", "", ""),
    ] {
        let (worker, proxy) = Proxy::by_hand();
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
fn a_short_chunked_response_gets_a_length() {
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
        let (worker, proxy) = Proxy::by_hand();
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
fn a_chunked_upload_that_came_with_its_head_gets_a_length() {
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
        let (worker, proxy) = Proxy::by_hand();
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
fn broken_chunks_that_came_with_the_head_are_not_forwarded() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client.send(
        "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\nx\r\n",
    );
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(!worker.has_another());
}
