//! What was said in a turn that nobody comes back from.

use std::io::{Read, Write};
use std::thread;

use fencepost::server::Limits;

use crate::support::{Certificates, Proxy, Settings, Worker};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

/// Whoever waits for its place gets it in the turn in which it is answered.
#[test]
fn an_answer_is_written_though_its_connection_makes_room_in_the_same_turn() {
    let worker = Worker::by_hand();
    let limits = Limits { connections_max: 1, ..Limits::default() };
    let proxy = Proxy::with(worker.address(), Settings { limits, ..Settings::default() });
    let mut client = proxy.client();
    client.send(GET);
    let mut peer = worker.next();
    peer.next_request().unwrap();
    let mut other = proxy.client();
    other.send(GET);
    assert!(!worker.has_another(), "there is no place for it");
    peer.respond("hello");
    assert_eq!(client.answer().1, b"hello");
    assert_eq!(client.until_end(), b"", "it has made room");
    peer.next_request().unwrap();
    peer.respond("hello");
    assert_eq!(other.answer().1, b"hello");
}

/// Its last records wait for the client when hyper has long written what they carry.
#[test]
fn a_long_answer_over_tls_arrives_whole_at_a_client_that_takes_it_slowly() {
    let certificates = Certificates::new();
    let worker = Worker::by_hand();
    let listen_tls = Some(certificates.listening());
    let proxy = Proxy::with(worker.address(), Settings { listen_tls, ..Settings::default() });
    let mut client = certificates.connect(proxy.address());
    client.write_all(GET.as_bytes()).unwrap();
    let answering = thread::spawn(move || {
        let mut peer = worker.next();
        peer.next_request().unwrap();
        peer.respond(&("x".repeat(1_000_000) + "end"));
        (worker, peer)
    });
    let mut read = Vec::new();
    let mut piece = [0; 1000];
    while !read.ends_with(b"end") {
        let count = client.read(&mut piece).unwrap();
        read.extend_from_slice(&piece[..count]);
    }
    drop(answering.join().unwrap());
}
