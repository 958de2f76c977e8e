//! When a request is written, and what was said in a turn that nobody comes back from.

use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use fencepost::downstream::{Limits, Protocol};
use fencepost::forward::{
    Admitted, Ending, Permit, Pool, RequestBody, Speaks, Timeouts, Upstream, UpstreamAddress, Wants,
};
use fencepost::wire::Background;
use http::Request;
use tokio::task::{LocalSet, yield_now};
use tokio::time::Instant;

use crate::support::{Certificates, PATIENCE, Proxy, Settings, Worker};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

struct Untold;

impl Permit for Untold {
    fn finished(self, _: Ending, _: Instant) {}
}

/// A request is sent and the thread goes no further: whether the worker has got it by then.
async fn is_written_in_its_own_turn(at_once: bool) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let address = UpstreamAddress::Tcp { host: address.ip().to_string(), port: address.port() };
    let pool = Pool::new(Upstream::new(address, Speaks::Cleartext(Protocol::Http1)), Background::default());
    let mut ready = pool.ready(Wants::Either, Instant::now() + PATIENCE).await.unwrap();
    let (mut worker, _) = listener.accept().unwrap();
    if at_once {
        ready.write_at_once();
    }
    let request = Request::get("/").header("host", "test").body(RequestBody::from_bytes("".into())).unwrap();
    let timeouts = Timeouts { silence: PATIENCE, total: None, late: PATIENCE };
    let mut exchange = pin!(ready.send(Admitted::new(Box::new(request), Untold), timeouts, Instant::now()));
    let is_pending = poll_fn(|cx| Poll::Ready(exchange.as_mut().poll(cx).is_pending())).await;
    assert!(is_pending, "nothing was answered");
    let mut first = [0];
    // What was sent may still be on its way; what was not never comes while this thread waits for it.
    worker.set_read_timeout(Some(if at_once { PATIENCE } else { Duration::from_millis(20) })).unwrap();
    let is_written = match worker.read(&mut first) {
        Ok(count) => count == 1,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            false
        }
    };
    worker.set_nonblocking(true).unwrap();
    while !is_written && worker.read(&mut first).is_err() {
        yield_now().await;
    }
    is_written
}

#[tokio::test]
async fn a_short_request_is_written_when_others_have_had_their_turn_unless_it_is_to_be_at_once() {
    let local = LocalSet::new();
    assert!(!local.run_until(is_written_in_its_own_turn(false)).await);
    assert!(local.run_until(is_written_in_its_own_turn(true)).await);
}

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
