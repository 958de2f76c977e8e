//! What is spoken after `101 Switching Protocols`.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use fencepost::upstream::{Ending, Timeouts};

use crate::support::{
    Certificates, Client, Event, MOMENT, PATIENCE, Peer, Proxy, Settings, Tenures, Worker,
    assert_is_asked, field, write_until_blocked,
};

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Two ends of a tunnel. The worker's first frame comes with its head.
fn tunnel(proxy: &Proxy, worker: &Worker) -> (Client, Peer) {
    let mut client = proxy.client();
    client.send(UPGRADE);
    let mut peer = worker.next();
    let head = peer.head();
    assert_eq!(field(&head, "connection"), Some("upgrade"));
    assert_eq!(field(&head, "upgrade"), Some("websocket"));
    assert_eq!(field(&head, "sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
    peer.send(&format!("{SWITCH}first"));
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert_eq!(field(&head, "upgrade"), Some("websocket"));
    assert_eq!(field(&head, "sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(client.exactly(5), b"first");
    (client, peer)
}

#[test]
fn a_websocket_ends_when_both_sides_have_ended() {
    let (worker, proxy) = Proxy::by_hand();
    let (mut client, mut peer) = tunnel(&proxy, &worker);
    for size in [1, 125, 65_536, 1_000_000] {
        let frame: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
        client.send_bytes(&frame);
        assert_eq!(peer.exactly(size), frame);
        peer.send_bytes(&frame);
        assert_eq!(client.exactly(size), frame);
    }
    client.end_writing();
    assert_eq!(peer.until_end(), b"");
    assert!(proxy.events().is_empty(), "the worker has not ended its side");
    peer.send("farewell");
    peer.end_writing();
    assert_eq!(client.until_end(), b"farewell");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_websocket_whose_client_is_lost_is_closed_at_the_worker() {
    let (worker, proxy) = Proxy::by_hand();
    let (client, mut peer) = tunnel(&proxy, &worker);
    client.reset();
    peer.until_end();
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Reset)]);
}

/// It has been answered as soon as it is open.
#[test]
fn a_websocket_may_go_on_for_longer_than_a_request() {
    let total = Duration::from_secs(2); // To open it takes less.
    let timeouts = Timeouts { total: Some(total), ..Timeouts::default() };
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { timeouts, ..Settings::default() });
    let (mut client, mut peer) = tunnel(&proxy, &worker);
    // One that began later has taken too long.
    let mut later = proxy.client();
    later.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let _silent = worker.next();
    assert!(later.head().starts_with("HTTP/1.1 504 "));
    client.send("ping");
    assert_eq!(peer.exactly(4), b"ping");
    peer.send("pong");
    assert_eq!(client.exactly(4), b"pong");
    assert_eq!(proxy.events(), [Event::Overdue], "of the later one");
}

/// Else it would keep its place for ever, as would a client that has lost power, once its worker
/// has given up on it.
#[test]
fn a_half_closed_idle_tunnel_ends_in_time() {
    let timeouts = Timeouts { late: MOMENT, ..Timeouts::default() };
    for by_client in [true, false] {
        let worker = Worker::by_hand();
        let proxy = Proxy::with(worker.address(), Settings { timeouts, ..Settings::default() });
        let (mut client, mut peer) = tunnel(&proxy, &worker);
        if by_client {
            client.end_writing();
            assert_eq!(peer.until_end(), b"");
        } else {
            peer.end_writing();
            assert_eq!(client.until_end(), b"");
        }
        assert_eq!(
            proxy.wait_for_events(1),
            [Event::Finished(Ending::Reset)],
            "ended by its client: {by_client}"
        );
        // Both have seen it end by now, and neither has closed.
        assert_eq!((peer.until_end(), client.until_end()), (vec![], vec![]));
    }
}

/// `TCP_USER_TIMEOUT` counts what is not acknowledged, not silence.
#[test]
fn a_silent_tunnel_outlives_the_user_timeout() {
    let worker = Worker::by_hand();
    let unacknowledged_max = Duration::from_millis(500);
    let proxy =
        Proxy::with(worker.address(), Settings { unacknowledged_max, ..Settings::default() });
    let (mut client, mut peer) = tunnel(&proxy, &worker);
    assert_eq!(peer.within(3 * unacknowledged_max), b""); // The time is what is tested.
    client.send("ping");
    assert_eq!(peer.exactly(4), b"ping");
    peer.send("pong");
    assert_eq!(client.exactly(4), b"pong");
}

/// Neither has to say anything in a tunnel: one that has lost power would keep its place, and the
/// gate, for ever.
#[test]
fn both_ends_of_a_tunnel_are_asked_whether_they_are_there() {
    let (worker, proxy) = Proxy::by_hand();
    let (mut client, mut peer) = tunnel(&proxy, &worker);
    client.send("ping");
    assert_eq!(peer.exactly(4), b"ping", "joined by now");
    assert_is_asked(&client);
    assert_is_asked(&peer);
}

#[test]
fn an_upgrade_to_anything_else_is_forwarded_as_a_plain_request() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n");
    let mut peer = worker.next();
    let head = peer.head();
    for name in ["connection", "upgrade", "http2-settings"] {
        assert_eq!(field(&head, name), None, "{head}");
    }
    peer.respond("plain");
    assert_eq!(client.answer().1, b"plain");
}

#[test]
fn a_worker_that_switches_protocols_unasked_gets_no_tunnel() {
    let proxy = Proxy::before(Worker::scripted(|mut peer: Peer| {
        peer.next_request();
        peer.send(SWITCH);
        peer.until_end();
    }));
    assert!(proxy.client().get("/").0.starts_with("HTTP/1.1 502 "));
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Reset)]);
}

/// By TLS an end has to be written, and such a client leaves no room for it.
#[test]
fn an_unread_tls_tunnel_is_closed_with_its_tenure() {
    let (certificates, worker, tenures) = (Certificates::new(), Worker::by_hand(), Tenures::new());
    let (listen_tls, tenures_of) =
        (Some(certificates.listening()), vec![("/chat", tenures.clone())]);
    let settings = Settings { listen_tls, tenures: tenures_of, ..Settings::default() };
    let proxy = Proxy::with(worker.address(), settings);
    let mut client = certificates.connect(proxy.address());
    client.write_all(UPGRADE.as_bytes()).unwrap();
    let mut peer = worker.next();
    peer.head();
    peer.send(SWITCH);
    let mut head = vec![0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head, b"HTTP/1.1 101");
    write_until_blocked(&peer, 256 * 1024 * 1024);
    tenures.end();
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Cut)]);
    let deadline = Instant::now() + PATIENCE;
    while proxy.server().connections_by_thread() != [0] {
        assert!(Instant::now() < deadline, "the connection is still open");
        std::thread::yield_now();
    }
}

#[test]
fn bytes_before_the_tunnel_opens_refuse_it() {
    for early in ["\u{1}\u{5}hello", "GET /hidden HTTP/1.1\r\nHost: t\r\n\r\n", "\r\n", "x"] {
        for at_once in [true, false] {
            let (worker, proxy) = Proxy::by_hand();
            let mut client = proxy.client();
            let (first, second) = if at_once {
                (format!("{UPGRADE}{early}"), "")
            } else {
                (UPGRADE.to_owned(), early)
            };
            client.send(&first);
            let mut peer = worker.next();
            peer.head();
            client.send(second);
            peer.send(SWITCH);
            assert_eq!(peer.until_end(), b"", "{early:?}");
            let answer = String::from_utf8(client.until_end()).unwrap();
            assert!(answer.starts_with("HTTP/1.1 400 "), "{early:?}: {answer}");
            assert!(answer.to_ascii_lowercase().contains("connection: close\r\n"), "{answer}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
            assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Reset)]);
            assert!(!worker.has_another());
        }
    }
}

#[test]
fn bytes_after_a_declined_upgrade_are_the_next_request() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = proxy.client();
    client.send(&format!("{UPGRADE}GET /next HTTP/1.1\r\nHost: t\r\n\r\n"));
    let mut peer = worker.next();
    peer.head();
    peer.respond("no");
    assert_eq!(client.answer().1, b"no");
    let (head, _) = peer.next_request().unwrap();
    assert!(head.starts_with("GET /next HTTP/1.1\r\n"), "{head}");
}

/// Its `101` waits behind answers that its client does not read: nobody watched the tenure then,
/// and the next one waited for the client.
#[test]
fn an_unannounced_tunnel_is_cut_with_its_tenure() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::new());
    let settings = Settings { tenures: vec![("/keep", tenures.clone())], ..Settings::default() };
    let proxy = Proxy::with(worker.address(), settings);
    let mut client = proxy.client();
    client.send(&UPGRADE.replace("/chat", "/keep"));
    let mut peer = worker.next();
    peer.head();
    peer.send(&format!("{SWITCH}first"));
    proxy.wait_for_events(1);
    tenures.end();
    assert_eq!(peer.until_end(), b"");
    assert_eq!(proxy.wait_for_events(2), [Event::Waits, Event::Finished(Ending::Cut)]);
    assert_eq!(tenures.cuts(), 1);
    proxy.go_on();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    assert_eq!(client.until_end(), b"");
}
