//! Connections to the worker: kept, checked, shared and limited.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fencepost::server::Protocol;
use fencepost::upstream::{Ending, Speaks, Upstream};
use fencepost_config::{HostPort, UpstreamAddress};
use http::{Request, StatusCode};

use crate::support::{Event, Http2Client, MOMENT, PATIENCE, Peer, Proxy, Settings, Worker};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

/// No connection is closed because it has been idle for too long.
fn keeping() -> Settings {
    Settings { idle_timeout: 10 * PATIENCE, ..Settings::default() }
}

#[test]
fn requests_one_after_the_other_use_one_connection() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), keeping());
    let mut client = proxy.client();
    client.send(GET);
    let mut peer = worker.next();
    for number in 0..100 {
        let (head, _) = peer.next_request().unwrap();
        peer.respond("hello");
        assert_eq!(client.answer().1, b"hello", "{head}");
        match number % 2 {
            0 => client.send(GET),
            _ => client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        }
    }
    assert!(!worker.has_another());
}

#[test]
fn a_connection_that_the_worker_has_closed_is_not_used() {
    let (closed, told) = mpsc::channel();
    // Each connection answers a few requests and closes some time after the last, without saying
    // so.
    let number = Arc::new(AtomicUsize::new(0));
    let worker = Worker::scripted(move |mut peer: Peer| {
        let number = number.fetch_add(1, Ordering::Relaxed);
        for _ in 0..=(number % 3) {
            peer.next_request().unwrap();
            peer.respond("hello");
        }
        if number.is_multiple_of(2) {
            drop(peer)
        } else {
            peer.reset()
        }
        closed.send(()).unwrap();
    });
    let proxy = Proxy::with(worker, keeping());
    let mut client = proxy.client();
    for number in 0..3000 {
        assert!(client.ask(GET).0.starts_with("HTTP/1.1 200 "), "request {number}");
        // A request that is sent while the worker closes has an unknown fate, so this one is sent
        // after it.
        if [0, 2, 5].contains(&(number % 6)) {
            told.recv_timeout(PATIENCE).unwrap();
        }
    }
    assert!(
        proxy.wait_for_events(3000).iter().all(|event| *event == Event::Finished(Ending::Complete))
    );
}

#[test]
fn a_connection_whose_end_the_runtime_has_not_heard_of_yet_is_not_used() {
    for reset in [false, true] {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        peer.respond("hello");
        client.answer();
        client.send("GET /halt HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.within(MOMENT), b"");
        if reset {
            peer.reset()
        } else {
            drop(peer)
        }
        proxy.go_on();
        let mut peer = worker.next();
        peer.next_request();
        peer.respond("on another");
        assert_eq!(client.answer().1, b"on another");
    }
}

#[test]
fn a_connection_on_which_the_worker_said_more_than_it_was_asked_is_not_used() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.respond("hello");
    client.answer();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged");
    client.send(GET);
    let mut next = worker.next();
    next.next_request();
    next.respond("honest");
    assert_eq!(client.answer().1, b"honest");
}

#[test]
fn a_connection_whose_last_answer_could_be_read_in_two_ways_is_not_used_again() {
    const CHUNKS: &str = "5\r\nhello\r\n0\r\n\r\n";
    for (fields, body, odd) in [
        ("Content-Length: 5", "hello", false),
        ("Content-Length: 05", "hello", false),
        ("Transfer-Encoding: Chunked", CHUNKS, false),
        ("Content-Length: 5\r\nContent-Length: 5", "hello", true),
        ("Content-Length: 5, 5", "hello", true),
        ("Content-Length: 20\r\nTransfer-Encoding: chunked", CHUNKS, true),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", CHUNKS, true),
        ("Transfer-Encoding: identity, chunked", CHUNKS, true),
        ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", CHUNKS, true),
    ] {
        let worker = Worker::by_hand();
        let proxy = Proxy::with(worker.address(), keeping());
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        peer.send(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{body}"));
        assert_eq!(client.answer().1, b"hello", "{fields}");
        client.send(GET);
        if odd {
            assert_eq!(peer.until_end(), b"", "{fields}");
            peer = worker.next();
        }
        peer.next_request();
        peer.respond("honest");
        assert_eq!(client.answer().1, b"honest", "{fields}");
        assert!(!worker.has_another());
    }
}

#[test]
fn what_a_worker_hides_behind_an_answer_is_no_answer_to_anyone() {
    const FORGED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 44\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 44\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        peer.send(&format!("{answer}{FORGED}"));
        assert!(!client.head().contains("forged"));
        client.send(GET);
        assert_eq!(peer.until_end(), b"", "{answer}");
        let mut next = worker.next();
        next.next_request();
        next.respond("honest");
        assert_eq!(client.answer().1, b"honest", "{answer}");
    }
}

/// Workers that treat HEAD like GET are well known, and their bodies need not come with the head.
#[test]
fn a_connection_on_which_a_body_was_announced_where_none_can_be_is_not_used_again_though_the_body_is_late()
 {
    const HEAD: &str = "HEAD / HTTP/1.1\r\nHost: test\r\n\r\n";
    for (request, status) in [
        (GET, "204 No Content"),
        (GET, "304 Not Modified"),
        (HEAD, "200 OK"),
        (HEAD, "404 Not Found"),
    ] {
        for field in ["Content-Length: 6", "Transfer-Encoding: chunked"] {
            let worker = Worker::by_hand();
            // Idle, it would be closed as well.
            let proxy = Proxy::with(worker.address(), keeping());
            let (mut client, mut peer) = proxy.at_worker(&worker, request);
            peer.send(&format!("HTTP/1.1 {status}\r\n{field}\r\n\r\n"));
            client.head();
            assert_eq!(peer.until_end(), b"", "{status} with {field}");
        }
    }
}

#[test]
fn a_connection_on_which_no_body_was_announced_is_used_again() {
    for (request, head) in [
        ("GET", "204 No Content\r\nContent-Length: 0"),
        ("GET", "304 Not Modified\r\nETag: \"x\""),
        ("HEAD", "200 OK\r\nContent-Length: 0"),
        ("HEAD", "200 OK\r\nETag: \"x\""),
    ] {
        let worker = Worker::by_hand();
        let proxy = Proxy::with(worker.address(), keeping());
        let (mut client, mut peer) =
            proxy.at_worker(&worker, &format!("{request} / HTTP/1.1\r\nHost: test\r\n\r\n"));
        peer.send(&format!("HTTP/1.1 {head}\r\n\r\n"));
        client.head();
        client.send(GET);
        assert!(peer.next_request().is_some(), "{request} answered with {head}");
        peer.respond("next");
        assert_eq!(client.answer().1, b"next");
    }
}

#[test]
fn an_idle_connection_is_closed_in_time() {
    let worker = Worker::by_hand();
    let proxy =
        Proxy::with(worker.address(), Settings { idle_timeout: MOMENT, ..Settings::default() });
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.respond("hello");
    client.answer();
    assert_eq!(peer.until_end(), b"", "closed without another word");
}

#[test]
fn requests_wait_for_a_connection_in_the_order_in_which_they_came() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { connections_max: 1, ..keeping() });
    let mut first = proxy.client();
    first.send(GET);
    let mut peer = worker.next();
    peer.next_request();
    let mut waiting = Vec::new();
    for number in 0..5 {
        let mut client = proxy.client();
        client.send(&format!("GET /{number} HTTP/1.1\r\nHost: test\r\n\r\n"));
        assert_eq!(client.within(MOMENT), b"");
        waiting.push(client);
    }
    waiting.remove(2); // This one does not wait any longer.
    peer.respond("first");
    for number in [0, 1, 3, 4] {
        let (head, _) = peer.next_request().unwrap();
        assert!(head.starts_with(&format!("GET /{number} ")), "{head}");
        peer.respond("next");
        assert_eq!(waiting.remove(0).answer().1, b"next");
    }
    assert!(!worker.has_another());
}

#[test]
fn a_connection_that_is_given_up_unused_is_used_by_the_next_request() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { connections_max: 1, ..keeping() });
    let mut client = proxy.client();
    let mut peer = None;
    for _ in 0..3 {
        // The first time it is a connection that has carried nothing yet.
        let (head, _) = client.ask("GET /give-up HTTP/1.1\r\nHost: test\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 412 "), "{head}");
        client.send(GET);
        let peer = peer.get_or_insert_with(|| worker.next());
        peer.next_request().expect("over that connection");
        peer.respond("hello");
        assert_eq!(client.answer().1, b"hello");
    }
    assert!(!worker.has_another());
}

/// hyper would speak HTTP/1.0 to it, which has no chunks: the upload would be sent without its
/// body.
#[test]
fn an_upload_in_chunks_is_whole_before_a_worker_that_has_answered_in_http_1_0() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.send("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.answer().1, b"hello");
    client.send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n");
    let mut peer = worker.next();
    let (head, body) = peer.next_request().unwrap();
    assert!(head.starts_with("POST / HTTP/1.1\r\n"), "{head}");
    assert_eq!(body, b"whole");
    peer.respond("taken");
    assert_eq!(client.answer().1, b"taken");
}

/// Else it would be used though its worker, which counts from its last answer, is about to close
/// it.
#[test]
fn a_connection_that_is_given_up_unused_is_not_kept_longer_for_that() {
    let worker = Worker::by_hand();
    let idle_timeout = 4 * MOMENT;
    let proxy = Proxy::with(worker.address(), Settings { idle_timeout, ..Settings::default() });
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.respond("hello");
    client.answer();
    let answered = Instant::now();
    while answered.elapsed() < idle_timeout {
        client.get("/give-up");
    }
    client.get("/give-up");
    worker.next();
    assert_eq!(peer.until_end(), b"");
}

#[test]
fn a_request_that_waits_gets_the_place_of_a_connection_that_breaks() {
    let worker = Worker::by_hand();
    let proxy =
        Proxy::with(worker.address(), Settings { connections_max: 1, ..Settings::default() });
    let mut first = proxy.client();
    first.send(GET);
    let mut peer = worker.next();
    peer.next_request();
    let mut second = proxy.client();
    second.send(GET);
    assert_eq!(second.within(MOMENT), b"");
    peer.reset();
    assert!(first.answer().0.starts_with("HTTP/1.1 502 "));
    let mut peer = worker.next();
    peer.next_request();
    peer.respond("second");
    assert_eq!(second.answer().1, b"second");
}

#[test]
fn too_many_waiting_requests_and_those_that_wait_too_long_are_answered() {
    let worker = Worker::by_hand();
    let settings = Settings {
        connections_max: 1,
        waiting_max: 1,
        ready_timeout: 10 * MOMENT,
        ..Settings::default()
    };
    let proxy = Proxy::with(worker.address(), settings);
    let mut first = proxy.client();
    first.send(GET);
    let mut peer = worker.next();
    peer.next_request();
    let mut second = proxy.client();
    second.send(GET);
    assert_eq!(second.within(MOMENT), b"");
    assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 503 "), "the queue is full");
    assert!(second.answer().0.starts_with("HTTP/1.1 503 "), "it has waited for too long");
    peer.respond("first");
    assert_eq!(first.answer().1, b"first");
}

/// Of how many connections to a worker, by their ports at our end, the kernel knows our end.
fn ends_left(ours: &[u16], worker: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |address: &str| {
        address.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok())
    };
    let is_one = |line: &&str| match line.split_whitespace().map(port).collect::<Vec<_>>()[..] {
        [_, Some(local), Some(remote), ..] => ours.contains(&local) && remote == worker,
        _ => false,
    };
    table.lines().filter(is_one).count()
}

/// Each HEAD left a port in TIME_WAIT: at some hundreds a second there were none left to connect to
/// the worker from.
#[test]
fn a_connection_that_cannot_be_used_again_leaves_no_port_behind_once_the_worker_has_the_whole_request()
 {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let mut client = proxy.client();
    let mut ask = |request: &str| {
        client.send(request);
        let mut peer = worker.next();
        peer.head();
        let ours = peer.stream().peer_addr().unwrap().port();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        (peer, ours)
    };
    let heads = (0..200).map(|_| ask("HEAD / HTTP/1.1\r\nHost: test\r\n\r\n"));
    let (mut peers, ours): (Vec<Peer>, Vec<u16>) = heads.unzip();
    for peer in &mut peers {
        assert_eq!(peer.until_end(), b"", "it is closed");
    }
    assert_eq!(ends_left(&ours, worker.address().port()), 0);

    // It has answered before it has read this, and is not to lose it.
    let (mut peer, ours) = ask("HEAD / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(
        ends_left(&[ours], worker.address().port()),
        1,
        "an orderly end waits for the worker's"
    );
    assert_eq!(peer.until_end(), b"body");
}

/// All but the first thousand that had to wait were refused.
#[tokio::test(flavor = "multi_thread")]
async fn four_thousand_requests_that_come_at_once_are_answered_over_four_connections() {
    let worker = Worker::by_hand();
    let address = UpstreamAddress::Tcp(HostPort {
        host: worker.address().ip().to_string(),
        port: worker.address().port(),
    });
    let usual = Upstream::new(address.clone(), Speaks::Cleartext(Protocol::Http1));
    let (waiting_max, ready_timeout) = (usual.waiting_max, 10 * PATIENCE);
    let settings =
        Settings { connections_max: 4, waiting_max, ready_timeout, ..Settings::default() };
    let proxy = Proxy::before_address(address, settings);
    let request = |path| Request::get(format!("http://shard.example{path}")).body(()).unwrap();
    let mut clients = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..40 {
        let mut client = Http2Client::connect(proxy.address()).await;
        for _ in 0..100 {
            answers.push(client.send(request("/")).await);
        }
        // Streams are begun in their order: by then those before it wait, or have a connection.
        assert_eq!(
            client.send(request("/refuse")).await.await.unwrap().status(),
            StatusCode::PRECONDITION_FAILED
        );
        clients.push(client);
    }
    for _ in 0..4 {
        let mut peer = worker.next();
        std::thread::spawn(move || {
            while peer.next_request().is_some() {
                peer.respond("hello");
            }
        });
    }
    for answer in answers {
        assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
    }
    assert!(!worker.has_another());
}

#[test]
fn a_worker_that_is_not_there_is_reported() {
    let nowhere = UpstreamAddress::Unix("/nonexistent/worker.sock".into());
    let proxy = Proxy::before_address(nowhere, Settings::default());
    assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 503 "));
    assert!(proxy.events().is_empty());
}

#[test]
fn unix_sockets_work_on_both_sides() {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    let folder = tempfile::tempdir().unwrap();
    let (front, back) = (folder.path().join("front.sock"), folder.path().join("back.sock"));
    let worker = UnixListener::bind(&back).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = worker.accept().unwrap();
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).unwrap();
        let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len()).unwrap();
    });
    let settings = Settings { listen_unix: Some(front.clone()), ..Settings::default() };
    let proxy = Proxy::before_address(UpstreamAddress::Unix(back), settings);
    let mut client = UnixStream::connect(&front).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(b"GET /unix HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("GET /unix HTTP/1.1\r\n"),
        "{answer}"
    );
    assert!(!answer.contains("x-forwarded-for"), "{answer}");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}
