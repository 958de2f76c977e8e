//! What becomes of what a client sends bit by bit while nobody knows whether its tenure goes on.

use std::time::Duration;

use bytes::Bytes;
use fencepost::server::{Limits, Protocol};
use fencepost::upstream::{Ending, Timeouts};

use crate::support::{
    Client, Event, Http2Worker, MOMENT, PATIENCE, Peer, Proxy, Settings, Tenures, Worker, read,
    some,
};

const CHUNKED: &str =
    "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n";
const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const EVENTS: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

fn fenced(tenures: &Tenures) -> Settings {
    Settings { tenures: vec![("/", tenures.clone())], ..Settings::default() }
}

fn upload(proxy: &Proxy, worker: &Worker) -> (Client, Peer) {
    let mut client = proxy.client();
    client.send(CHUNKED);
    let mut peer = worker.next();
    peer.head();
    assert_eq!((peer.line(), peer.line()), ("5".to_owned(), "begin".to_owned()));
    (client, peer)
}

fn tunnel(proxy: &Proxy, worker: &Worker) -> (Client, Peer) {
    let mut client = proxy.client();
    client.send(UPGRADE);
    let mut peer = worker.next();
    peer.head();
    peer.send(SWITCH);
    client.head();
    (client, peer)
}

/// They come with a word or, where they are looked for, without one.
#[test]
fn an_upload_pauses_on_old_news_and_goes_on_with_newer() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let (mut client, mut peer) = upload(&proxy, &worker);
    for renew in [Tenures::renew, Tenures::renew_if_fetched].repeat(2) {
        tenures.age(Duration::ZERO);
        client.send("4\r\nmore\r\n");
        assert_eq!(peer.within(MOMENT), b"");
        renew(&tenures);
        assert_eq!((peer.line(), peer.line()), ("4".to_owned(), "more".to_owned()));
    }
    client.send("0\r\n\r\n");
    assert_eq!((peer.line(), peer.line()), ("0".to_owned(), String::new()));
    peer.respond("done");
    assert_eq!(client.answer().1, b"done");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
    assert_eq!(tenures.cuts(), 0);
}

/// It is not the client that is waited for then.
#[test]
fn a_pause_is_neither_silence_nor_slowness_of_the_client() {
    const SIZED: &str = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\nbegin";
    let (worker, tenures) = (Worker::by_hand(), Tenures::new());
    let body_timeout = Duration::from_secs(1); // All that the client is waited for.
    let limits = Limits { body_timeout, body_rate_min: 1024 * 1024, ..Limits::default() };
    let proxy = Proxy::with(worker.address(), Settings { limits, ..fenced(&tenures) });
    let mut client = proxy.client();
    client.send(SIZED);
    let mut peer = worker.next();
    peer.head();
    assert_eq!(peer.exactly(5), b"begin");
    tenures.age(Duration::ZERO);
    client.send_bytes(&[b'x'; 100_000 - 6]);
    assert_eq!(peer.within(2 * body_timeout), b"");
    assert!(proxy.events().is_empty());
    tenures.renew();
    peer.exactly(100_000 - 6);
    client.send("x");
    peer.exactly(1);
    peer.respond("done");
    assert_eq!(client.answer().1, b"done");
    assert_eq!(tenures.cuts(), 0);
}

#[test]
fn an_upload_is_cut_that_was_paused_for_too_long() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::with_pause_max(MOMENT));
    let proxy = Proxy::with(worker.address(), fenced(&tenures));
    let (mut client, mut peer) = upload(&proxy, &worker);
    tenures.age(MOMENT); // By the mere passing of time.
    assert_eq!(peer.until_end(), b"");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::BodyCut)]);
    assert!(client.head().starts_with("HTTP/1.1 502 "));
    assert_eq!(tenures.cuts(), 1);
}

#[test]
fn the_end_of_a_tenure_ends_a_pause() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let (mut client, mut peer) = upload(&proxy, &worker);
    tenures.age(Duration::ZERO);
    client.send("4\r\nlast\r\n0\r\n\r\n");
    assert_eq!(peer.within(MOMENT), b"");
    tenures.end();
    assert_eq!(peer.until_end(), b"");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::BodyCut)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_to_a_worker_of_http_2_pauses_and_goes_on() {
    let tenures = Tenures::new();
    let mut worker = Http2Worker::start().await;
    let settings = Settings { upstream_protocol: Protocol::Http2, ..fenced(&tenures) };
    let proxy = Proxy::with(worker.address, settings);
    let mut client = proxy.client();
    client.send(CHUNKED);
    let (request, mut answer) = worker.next().await;
    let mut heard = request.into_body();
    assert_eq!(some(&mut heard, 5).await, b"begin");
    tenures.age(Duration::ZERO);
    client.send("4\r\nmore\r\n0\r\n\r\n");
    assert!(tokio::time::timeout(MOMENT, heard.data()).await.is_err());
    tenures.renew();
    assert_eq!(some(&mut heard, 4).await, b"more");
    assert_eq!(read(heard).await.unwrap().0, b"", "and ends");
    let mut telling = answer.send_response(http::Response::new(()), false).unwrap();
    telling.send_data(Bytes::from_static(b"done"), true).unwrap();
    assert_eq!(tokio::task::block_in_place(|| client.answer()).1, b"done");
}

#[test]
fn a_tunnel_pauses_towards_the_worker_only() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let (mut client, mut peer) = tunnel(&proxy, &worker);
    tenures.age(Duration::ZERO);
    client.send("ping");
    peer.send("to the client");
    assert_eq!(client.exactly(13), b"to the client");
    assert_eq!(peer.within(MOMENT), b"");
    tenures.renew();
    assert_eq!(peer.exactly(4), b"ping");
    client.end_writing();
    peer.end_writing();
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_tunnel_is_cut_that_was_paused_for_too_long() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::with_pause_max(MOMENT));
    let proxy = Proxy::with(worker.address(), fenced(&tenures));
    let (mut client, mut peer) = tunnel(&proxy, &worker);
    tenures.age(MOMENT);
    assert_eq!(peer.until_end(), b"");
    assert_eq!(client.until_end(), b"");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Cut)]);
}

#[test]
fn what_the_worker_sends_goes_on_however_old_the_news() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::with_pause_max(MOMENT));
    let proxy = Proxy::with(worker.address(), fenced(&tenures));
    let (mut client, mut peer) = proxy.at_worker(&worker, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    peer.send(EVENTS);
    client.head();
    tenures.age(Duration::ZERO);
    assert_eq!(peer.within(3 * MOMENT), b"");
    peer.send("5\r\nevent\r\n");
    assert_eq!(client.exactly(10), b"5\r\nevent\r\n");
    assert!(proxy.events().is_empty());
}

/// Where nobody else asked for the lock, the stream of a tenure that had ended in an outage went on
/// for ever.
#[test]
fn an_endless_response_fetches_news_and_is_cut_with_its_tenure() {
    for (endless, sent) in
        [(false, EVENTS), (true, ""), (true, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ")]
    {
        let (worker, tenures) = (Worker::by_hand(), Tenures::new());
        let proxy = Proxy::with(worker.address(), Settings { endless, ..fenced(&tenures) });
        let (_client, mut peer) = proxy.at_worker(&worker, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        peer.send(sent);
        tenures.end_if_fetched(2);
        tenures.age(MOMENT); // By the mere passing of time.
        assert_eq!(peer.until_end(), b"");
        assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Cut)]);
    }
}

#[test]
fn a_worker_is_not_silent_while_its_body_is_paused() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::new());
    let timeouts = Timeouts { silence: 2 * MOMENT, late: PATIENCE, ..Timeouts::default() };
    let proxy = Proxy::with(worker.address(), Settings { timeouts, ..fenced(&tenures) });
    tenures.age(Duration::ZERO);
    let mut client = proxy.client();
    client.send(CHUNKED);
    let mut peer = worker.next();
    peer.head();
    assert_eq!(peer.within(4 * MOMENT), b"");
    assert!(proxy.events().is_empty());
    tenures.renew();
    assert_eq!(peer.exactly(10), b"5\r\nbegin\r\n");
}
