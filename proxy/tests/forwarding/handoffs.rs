//! What a successor waits for when its predecessor's tenure ends, before the whole proxy and a
//! store in memory.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::support::{Client, MOMENT, PATIENCE, Peer, Scene};

/// Each has its turn with the connection that it has got: if it had to make another, and all were
/// taken by those behind it, they would wait for each other.
#[test]
fn many_waiters_share_few_connections_one_by_one() {
    const MANY: usize = 60;
    let scene = Scene::limited("upstream_connections_max = 3", "");
    let mut before = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    let token = scene.hold("b");
    let waiting: Vec<Client> = (0..MANY).map(|_| scene.get(&token)).collect();
    let all_wait = format!("\"waiting\": {MANY}");
    let deadline = Instant::now() + PATIENCE;
    while !scene.look("/routes").contains(&all_wait) {
        assert!(Instant::now() < deadline, "{}", scene.look("/routes"));
    }
    peer.respond("before");
    assert_eq!(before.answer().1, b"before");
    let answers = |mut peer: Peer| {
        while peer.next_request().is_some() {
            peer.respond("in");
        }
    };
    let others: Vec<Peer> = (0..2).map(|_| scene.worker.next()).collect();
    let worker: Vec<_> = others
        .into_iter()
        .chain([peer])
        .map(|peer| std::thread::spawn(move || answers(peer)))
        .collect();
    for mut client in waiting {
        assert_eq!(client.answer().1, b"in");
    }
    assert!(!scene.worker.has_another());
    drop(scene);
    worker.into_iter().for_each(|peer| peer.join().unwrap());
}

#[test]
fn a_successor_waits_orphan_timeout_after_a_cut_upload() {
    let scene = Scene::with("orphan_timeout = \"1s\"");
    let (_client, mut peer) = scene.upload(&scene.hold("a"));
    let before = Instant::now();
    let mut successor = scene.get(&scene.hold("b"));
    assert_eq!(peer.until_end(), b"");
    scene.somebody_comes(&mut successor);
    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(1) && waited < PATIENCE / 2, "{waited:?}");
    scene.metric_becomes("fencepost_orphans_expired_total", "1");
    scene.metric_becomes("fencepost_cut_requests_total", "1");
}

#[test]
fn a_successor_does_not_wait_for_a_harmless_cut_upload() {
    let scene = Scene::with("partial_requests = \"harmless\"");
    let (_client, mut peer) = scene.upload(&scene.hold("a"));
    let mut successor = scene.get(&scene.hold("b"));
    assert_eq!(peer.until_end(), b"");
    scene.somebody_comes(&mut successor);
    assert_eq!(scene.metric("fencepost_orphans_expired_total"), "0");
    scene.metric_becomes("fencepost_cut_requests_total", "1");
}

#[test]
fn a_cut_tunnel_counts_for_orphan_timeout_harmless_or_not() {
    let scene = Scene::with("orphan_timeout = \"1s\"\npartial_requests = \"harmless\"");
    let (mut client, mut peer) = scene.tunnel(&scene.hold("a"));
    let before = Instant::now();
    let mut successor = scene.get(&scene.hold("b"));
    assert_eq!((peer.until_end(), client.until_end()), (vec![], vec![]));
    scene.somebody_comes(&mut successor);
    assert!(before.elapsed() >= Duration::from_secs(1));
    scene.metric_becomes("fencepost_orphans_expired_total", "1");
    scene.metric_becomes("fencepost_cut_requests_total", "1");
}

/// A worker that never answers is waited for once, and not once more when it is given up.
#[test]
fn a_silent_worker_is_waited_for_once_for_orphan_timeout() {
    let scene = Scene::with("upstream_timeout = \"100ms\"\norphan_timeout = \"3s\"");
    let mut client = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    assert!(client.head().starts_with("HTTP/1.1 504 "));
    let before = Instant::now();
    assert_eq!(peer.until_end(), b"", "until it is given up");
    scene.metric_becomes("fencepost_orphans_expired_total", "1");
    assert!(before.elapsed() < Duration::from_secs(6), "{:?}", before.elapsed());
}

#[test]
fn a_late_answer_holds_the_successor_up_until_its_end() {
    // The successor is given no longer than that either.
    let scene = Scene::with("upstream_timeout = \"1s\"\norphan_timeout = \"3s\"");
    let mut client = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    assert!(client.head().starts_with("HTTP/1.1 504 "));
    let mut successor = scene.get(&scene.hold("b"));
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n");
    let begun = Instant::now();
    for _ in 0..25 {
        assert_eq!(peer.within(MOMENT), b"");
        assert_eq!(scene.metric("fencepost_orphans"), "1", "after {:?}", begun.elapsed());
        peer.send("x");
    }
    assert!(begun.elapsed() > Duration::from_secs(3));
    // Its connection is free for the next.
    peer.next_request();
    peer.respond("next");
    assert_eq!(successor.answer().1, b"next");
    assert_eq!(scene.metric("fencepost_orphans_expired_total"), "0");
}

/// hyper tells nobody of interim answers: the successor went in while its predecessor's request was
/// at the worker, and said so.
#[test]
fn interim_responses_hold_the_successor_up() {
    let scene = Scene::with("upstream_timeout = \"1s\"\norphan_timeout = \"2s\"");
    let mut client = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    assert!(client.head().starts_with("HTTP/1.1 504 "));
    let mut successor = scene.get(&scene.hold("b"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(MOMENT); // The pace is what is tested.
        peer.send("HTTP/1.1 102 Processing\r\n\r\n");
        assert_eq!(scene.metric("fencepost_orphans"), "1", "after {:?}", begun.elapsed());
    }
    peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    drop(peer);
    scene.somebody_comes(&mut successor);
    assert_eq!(scene.metric("fencepost_orphans_expired_total"), "0");
}

/// A route that turns to enforce has to know of it.
#[test]
fn a_pass_counts_while_its_late_answer_arrives() {
    let scene =
        Scene::with("mode = \"shadow\"\nupstream_timeout = \"100ms\"\norphan_timeout = \"2s\"");
    let mut client = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    assert!(client.head().starts_with("HTTP/1.1 504 "));
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n");
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(peer.within(MOMENT), b"");
        assert!(scene.has_passed(1), "after {:?}: {}", begun.elapsed(), scene.look("/locks//lock"));
        peer.send("x");
    }
    assert!(begun.elapsed() > Duration::from_secs(2));
    let deadline = Instant::now() + PATIENCE;
    while !scene.has_passed(0) {
        assert!(Instant::now() < deadline, "{}", scene.look("/locks//lock"));
    }
}

#[test]
fn a_lost_connection_restarts_the_orphans_time() {
    // The successor is given no longer than that either.
    let scene = Scene::with("upstream_timeout = \"1s\"\norphan_timeout = \"4s\"");
    let mut client = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    assert!(client.head().starts_with("HTTP/1.1 504 "));
    let mut successor = scene.get(&scene.hold("b"));
    assert_eq!(scene.worker.next().within(MOMENT), b"", "it has got a connection, and waits");
    assert_eq!(peer.within(2 * MOMENT), b"");
    let before = Instant::now();
    peer.reset();
    scene.somebody_comes(&mut successor);
    assert!(before.elapsed() >= Duration::from_secs(4), "{:?}", before.elapsed());
    scene.metric_becomes("fencepost_orphans_expired_total", "1");
}

#[test]
fn a_streaming_route_is_cut_before_its_first_word() {
    let scene = Scene::with("orphan_timeout = \"1s\"\nstreaming = true");
    let mut client = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    let mut successor = scene.get(&scene.hold("b"));
    assert_eq!(peer.until_end(), b"");
    assert!(client.head().starts_with("HTTP/1.1 502 "));
    scene.somebody_comes(&mut successor);
}

/// What had been lost was taken for a request with an end, which is waited for: a stream held its
/// successor up for as long as it went on.
#[test]
fn an_orphaned_event_stream_is_cut_with_its_tenure() {
    let scene = Scene::with("upstream_timeout = \"100ms\"\norphan_timeout = \"1h\"");
    let mut client = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    assert!(client.head().starts_with("HTTP/1.1 504 "));
    scene.metric_becomes("fencepost_orphans", "1");
    peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: first\n\n");
    scene.hold("b");
    let deadline = Instant::now() + PATIENCE;
    while peer.stream().write_all(b"data: next\n\n").is_ok() {
        assert!(Instant::now() < deadline, "it is still read");
    }
}

#[test]
fn a_successor_does_not_wait_for_a_client_that_does_not_read() {
    let scene = Scene::with("");
    let mut slow = scene.get(&scene.hold("a"));
    let mut peer = scene.worker.next();
    peer.next_request();
    let length = 128 << 20;
    peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
    let writing = std::thread::spawn(move || {
        peer.send_bytes(&vec![0; length]);
        peer
    });
    slow.head();
    let mut successor = scene.get(&scene.hold("b"));
    let mut peer = writing.join().unwrap(); // At the worker's pace.
    // The connection is free for the next.
    peer.next_request();
    peer.respond("next");
    assert_eq!(successor.answer().1, b"next");
    assert!(slow.until_end().len() < length);
    scene.metric_becomes("fencepost_cut_requests_total", "1");
}

#[test]
fn a_silent_store_pauses_then_cuts_uploads_and_tunnels() {
    let scene = Scene::with("max_age = \"500ms\"\nhandoff_timeout = \"4s\"");
    let token = scene.hold("a");
    let (mut client, mut peer) = scene.upload(&token);
    let (mut tunnel, mut tunnel_peer) = scene.tunnel(&token);
    scene.store.pause();
    std::thread::sleep(Duration::from_millis(510)); // Whatever was read before is older than `max_age` now.
    client.send("4\r\nmore\r\n");
    tunnel.send("more");
    assert_eq!((peer.within(MOMENT), tunnel_peer.within(MOMENT)), (vec![], vec![]));
    scene.store.resume();
    assert_eq!(
        (peer.exactly(9), tunnel_peer.exactly(4)),
        (b"4\r\nmore\r\n".to_vec(), b"more".to_vec())
    );
    scene.store.pause();
    assert_eq!((peer.until_end(), tunnel_peer.until_end()), (vec![], vec![]));
    scene.metric_becomes("fencepost_cut_requests_total", "2");
}
