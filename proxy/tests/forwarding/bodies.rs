//! Large, slow, cut and unwanted bodies.

use std::io::Read;

use fencepost::upstream::Ending;

use crate::support::{
    Client, Event, MOMENT, Peer, Proxy, Worker, write_until_blocked, write_zeros,
};

const MIB: usize = 1024 * 1024;
/// More than what four sockets keep on their own, far less than what is sent.
const KEPT_MAX: usize = 160 * MIB;
const LARGE: usize = 256 * MIB;

#[test]
fn a_body_up_to_64_kib_is_read_whole_first() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", 64 * 1024));
    client.send_bytes(&vec![b'x'; 64 * 1024 - 1]);
    assert_eq!(client.within(MOMENT), b"");
    assert!(!worker.has_another(), "not even a connection is opened");
    client.send("y");
    let (_, body) = worker.next().next_request().unwrap();
    assert!(body.len() == 64 * 1024 && body.ends_with(b"xy"));
}

#[test]
fn a_larger_body_is_passed_on_as_it_comes() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client.send(&format!(
        "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n",
        64 * 1024 + 1
    ));
    client.send("begin");
    let mut peer = worker.next();
    let head = peer.head();
    assert!(head.contains("content-length: 65537\r\n"), "{head}");
    assert_eq!(peer.exactly(5), b"begin");
    client.send_bytes(&vec![b'x'; 64 * 1024 - 4]);
    peer.skip(64 * 1024 - 4);
    peer.respond("done");
    assert_eq!(client.answer().1, b"done");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_small_body_that_is_cut_never_reaches_the_worker() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhalf");
    client.end_writing();
    client.until_end();
    assert!(!worker.has_another());
    assert!(proxy.events().is_empty());
}

#[test]
fn a_large_upload_goes_no_faster_than_the_worker_reads() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {LARGE}\r\n\r\n"));
    let mut peer = worker.next();
    peer.head();
    let went_ahead = write_until_blocked(&client, KEPT_MAX);
    let rest = std::thread::spawn(move || {
        write_zeros(&client, LARGE - went_ahead);
        client
    });
    peer.skip(LARGE);
    peer.respond("done");
    assert_eq!(rest.join().unwrap().answer().1, b"done");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_large_download_goes_no_faster_than_the_client_reads() {
    let (worker, proxy) = Proxy::by_hand();
    let (mut client, mut peer) = proxy.at_worker(&worker, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"));
    let went_ahead = write_until_blocked(&peer, KEPT_MAX);
    assert!(proxy.events().is_empty());
    let rest = std::thread::spawn(move || {
        write_zeros(&peer, LARGE - went_ahead);
        peer
    });
    client.head();
    client.skip(LARGE);
    rest.join().unwrap();
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn an_early_response_passes_and_the_upload_goes_on() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\nbegin");
    let mut peer = worker.next();
    peer.head();
    peer.respond("early");
    assert_eq!(client.answer().1, b"early");
    assert!(proxy.events().is_empty(), "the worker may still be reading");
    client.send_bytes(&vec![b'x'; 100_000 - 5]);
    peer.skip(100_000);
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
    // Both connections go on.
    client.send("GET /next HTTP/1.1\r\nHost: test\r\n\r\n");
    assert!(peer.head().starts_with("GET /next "));
    peer.respond("next");
    assert_eq!(client.answer().1, b"next");
}

#[test]
fn an_early_response_of_a_closing_worker_is_passed_on() {
    for how in [
        "Content-Length: 8\r\n\r\ntoo much",
        "Connection: close\r\nContent-Length: 8\r\n\r\ntoo much",
    ] {
        let proxy = Proxy::before(Worker::scripted(move |mut peer: Peer| {
            peer.head();
            peer.exactly(10);
            peer.send(&format!("HTTP/1.1 413 Content Too Large\r\n{how}"));
        }));
        let mut client = proxy.client();
        client
            .send(&format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", 8 * MIB));
        client.send_bytes(&vec![b'x'; 8 * MIB]);
        let (head, body) = client.answer();
        assert!(head.starts_with("HTTP/1.1 413 ") && body == b"too much", "{head}");
        proxy.wait_for_events(1);
    }
}

#[test]
fn a_client_that_waited_for_100_continue_gets_its_refusal() {
    // The connection was closed with the answer, so that what came then reset it: the client saw
    // its writing fail, and no answer.
    let proxy = Proxy::before(Worker::echo());
    for expectations in ["Expect: 100-Continue", "Expect: x\r\nExpect: 100-continue"] {
        let mut client = proxy.client();
        let head = format!("Host: test\r\n{expectations}\r\nContent-Length: {}\r\n\r\n", 8 * MIB);
        client.send(&format!("POST /refuse HTTP/1.1\r\n{head}"));
        client.stream().peek(&mut [0]).expect("the answer is on its way before the body is");
        client.send_bytes(&vec![b'x'; 8 * MIB]);
        let (head, body) = client.answer();
        assert!(head.starts_with("HTTP/1.1 412 ") && body == b"own answer", "{head}");
        assert_eq!(client.stream().read(&mut [0]).expect("no reset"), 0);
    }
}

#[test]
fn an_unwanted_body_without_end_closes_the_connection() {
    let proxy = Proxy::before(Worker::echo());
    let mut client = proxy.client();
    client.send(&format!(
        "POST /refuse HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n",
        128 * MIB
    ));
    assert!(client.answer().0.starts_with("HTTP/1.1 412 "));
    let zeros = vec![0; MIB];
    let sent = (0..128).take_while(|_| client.try_send_bytes(&zeros).is_ok()).count();
    assert!((15..100).contains(&sent), "{sent} MiB were taken");
}

#[test]
fn a_cut_upload_never_looks_whole() {
    let (length, chunked) = ("Content-Length: 100000", "Transfer-Encoding: chunked");
    for (framing, worker_leaves) in [(length, false), (length, true), (chunked, false)] {
        let (worker, proxy) = Proxy::by_hand();
        let mut client = proxy.client();
        client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\n{framing}\r\n\r\n5\r\nbegin\r\n"));
        let mut peer = worker.next();
        peer.head();
        peer.exactly(5);
        drop(client);
        let rest = String::from_utf8(peer.until_end()).unwrap();
        assert!(!rest.contains("0\r\n\r\n"), "{rest:?}");
        let _peer = (!worker_leaves).then_some(peer);
        assert_eq!(
            proxy.wait_for_events(1),
            [Event::Finished(Ending::BodyCut)],
            "the worker may use what it has"
        );
    }
}

#[test]
fn an_upload_and_a_download_do_not_wait_for_each_other() {
    // An echo that has no more room than its sockets: whoever does not read while it writes stops
    // both.
    let proxy = Proxy::before(Worker::scripted(|mut peer: Peer| {
        peer.head();
        peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64 * MIB));
        let mut left = 64 * MIB;
        while left > 0 {
            let piece = peer.some();
            peer.send_bytes(&piece);
            left -= piece.len();
        }
    }));
    let mut client = proxy.client();
    client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", 64 * MIB));
    let writing = Client::new(client.stream().try_clone().unwrap());
    let writer = std::thread::spawn(move || write_zeros(&writing, 64 * MIB));
    client.head();
    client.skip(64 * MIB);
    writer.join().unwrap();
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn an_upload_goes_on_while_nobody_reads_the_answer() {
    // The worker answers at length before it has read the request; the client writes all of it
    // before it reads.
    let proxy = Proxy::before(Worker::scripted(|mut peer: Peer| {
        peer.head();
        let writing = Client::new(peer.stream().try_clone().unwrap());
        peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64 * MIB));
        let writer = std::thread::spawn(move || write_zeros(&writing, 64 * MIB));
        peer.skip(64 * MIB);
        writer.join().unwrap();
    }));
    let mut client = proxy.client();
    client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", 64 * MIB));
    write_zeros(&client, 64 * MIB);
    client.head();
    client.skip(64 * MIB);
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}
