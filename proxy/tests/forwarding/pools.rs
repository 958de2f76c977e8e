//! Connections to the worker: kept, checked, shared and limited.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use fencepost::server::Protocol;
use fencepost::upstream::{Ending, Speaks, Upstream};
use fencepost_config::{HostPort, UpstreamAddress};
use http::{Request, StatusCode};

use crate::support::{
    Certificates, Client, Event, Frames, Http2Client, MOMENT, PATIENCE, Peer, Proxy, Settings,
    TlsWorker, Worker,
};

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
fn what_a_worker_hides_behind_an_answer_answers_nobody() {
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
        let (worker, proxy) = Proxy::by_hand();
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

#[test]
fn a_connection_that_has_just_ended_is_not_used() {
    for reset in [false, true] {
        let (worker, proxy) = Proxy::by_hand();
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
fn a_connection_with_unasked_bytes_is_not_used() {
    let (worker, proxy) = Proxy::by_hand();
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

/// Workers that treat HEAD like GET are well known, and their bodies need not come with the head.
#[test]
fn a_connection_with_an_impossible_body_is_not_used_again() {
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
fn an_idle_connection_is_closed_in_time() {
    let worker = Worker::by_hand();
    let proxy =
        Proxy::with(worker.address(), Settings { idle_timeout: MOMENT, ..Settings::default() });
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.respond("hello");
    client.answer();
    assert_eq!(peer.until_end(), b"", "closed without another word");
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

/// A port in TIME_WAIT for each HEAD would use up all ports at some hundreds a second.
#[test]
fn a_connection_that_is_done_leaves_no_port_behind() {
    let (worker, proxy) = Proxy::by_hand();
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

#[tokio::test(flavor = "multi_thread")]
async fn four_thousand_requests_at_once_share_four_connections() {
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
fn requests_get_connections_in_order_of_arrival() {
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
fn an_unused_connection_serves_the_next_request() {
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
fn a_chunked_upload_is_whole_before_an_http10_worker() {
    let (worker, proxy) = Proxy::by_hand();
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

#[test]
fn a_waiting_request_replaces_a_broken_connection() {
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
fn a_full_queue_and_a_long_wait_are_answered() {
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

#[test]
fn a_worker_that_is_not_there_is_reported() {
    let nowhere = UpstreamAddress::Unix("/nonexistent/worker.sock".into());
    let settings = Settings { connect_retries: 1, ..Settings::default() };
    let proxy = Proxy::before_address(nowhere, settings);
    assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 503 "));
    assert!(proxy.events().is_empty());
}

/// Answers one request.
fn answer(mut stream: impl Read + Write) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
}

#[test]
fn requests_wait_for_a_worker_that_restarts() {
    let check = |address: UpstreamAddress, comes_back: &dyn Fn()| {
        let proxy = Proxy::before_address(address, Settings::default());
        let mut clients: Vec<Client> = (0..4).map(|_| proxy.client()).collect();
        clients.iter_mut().for_each(|client| client.send(GET));
        for client in &mut clients {
            assert_eq!(client.within(MOMENT), b"", "there is nobody yet");
        }
        comes_back();
        for client in &mut clients {
            assert!(client.head().starts_with("HTTP/1.1 200 "));
        }
        assert_eq!(proxy.wait_for_events(4), [Event::Finished(Ending::Complete); 4]);
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("worker.sock");
    check(UpstreamAddress::Unix(path.clone()), &|| {
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap())));
    });
    // An address of its own, whose ports no client of another test gets.
    let restarting = TcpListener::bind("127.53.8.1:0").unwrap().local_addr().unwrap();
    let host = restarting.ip().to_string();
    check(UpstreamAddress::Tcp(HostPort { host, port: restarting.port() }), &|| {
        let listener = TcpListener::bind(restarting).unwrap();
        thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap())));
    });
}

/// Before a worker whose first connections are closed without a word, as by a balancer or a worker
/// that is about to leave. Counts all that were opened.
fn closing_first(closed: usize, worker: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, opened) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&opened);
    thread::spawn(move || {
        for stream in listener.incoming() {
            if count.fetch_add(1, Ordering::Relaxed) < closed {
                continue;
            }
            let (client, worker) = (stream.unwrap(), TcpStream::connect(worker).unwrap());
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), worker.try_clone().unwrap()), (worker, client)]
            {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    (address, opened)
}

#[test]
fn a_connection_lost_before_any_request_is_opened_again() {
    let worker = Worker::by_hand();
    let (address, _) = closing_first(2, worker.address());
    let h2c = Settings { upstream_protocol: Protocol::Http2, ..Settings::default() };
    let proxy = Proxy::with(address, h2c.clone());
    let mut client = proxy.client();
    client.send(GET);
    Frames::with_streams(worker.next(), 100).at_stream_1().answers(1, &mut client);

    let certificates = Certificates::new();
    let worker = TlsWorker::start(certificates.server(&["http/1.1"]));
    let (address, _) = closing_first(2, worker.address());
    let upstream_tls = Some(certificates.client());
    let proxy = Proxy::with(address, Settings { upstream_tls, ..Settings::default() });
    let mut client = proxy.client();
    client.send(GET);
    let mut peer = worker.next();
    peer.next_request().unwrap();
    peer.respond("hello");
    assert_eq!(client.answer().1, b"hello");

    for connect_retries in [0, 2] {
        let (address, opened) = closing_first(usize::MAX, worker.address());
        let proxy = Proxy::with(address, Settings { connect_retries, ..h2c.clone() });
        assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 503 "));
        assert_eq!(opened.load(Ordering::Relaxed), 1 + connect_retries as usize);
    }
}

#[test]
fn without_keepalive_each_request_has_its_own_connection() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { keepalive: false, ..keeping() });
    let mut client = proxy.client();
    for (request, answer) in [
        (GET, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        (GET, "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"),
        (GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
        ("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi", "HTTP/1.1 204 OK\r\n\r\n"),
    ] {
        client.send(request);
        let mut peer = worker.next();
        let (head, _) = peer.next_request().unwrap();
        assert_eq!(crate::support::field(&head, "connection"), Some("close"), "{head}");
        peer.send(answer);
        client.answer();
        assert_eq!(peer.until_end(), b"", "{answer}");
    }
    assert_eq!(proxy.wait_for_events(4), [Event::Finished(Ending::Complete); 4]);
}

#[test]
fn without_keepalive_tls_offers_http1_only() {
    let certificates = Certificates::new();
    let worker = TlsWorker::start(certificates.server(&["h2", "http/1.1"]));
    let upstream_tls = Some(certificates.client());
    let settings = Settings { keepalive: false, upstream_tls, ..Settings::default() };
    let proxy = Proxy::with(worker.address(), settings);
    let mut client = proxy.client();
    client.send(GET);
    let mut peer = worker.next();
    assert_eq!(peer.protocol(), Some(&b"http/1.1"[..]));
    peer.next_request().unwrap();
    peer.respond("hello");
    assert_eq!(client.answer().1, b"hello");
}

#[test]
fn a_connection_beyond_its_age_gets_no_more_requests() {
    let aged = Settings { connection_age_max: Some(MOMENT), ..keeping() };
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), aged.clone());
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    assert_eq!(client.within(2 * MOMENT), b"");
    peer.respond("old");
    assert_eq!(client.answer().1, b"old");
    client.send(GET);
    let mut fresh = worker.next();
    fresh.next_request().unwrap();
    fresh.respond("fresh");
    assert_eq!(client.answer().1, b"fresh");
    assert_eq!(peer.until_end(), b"");

    let proxy =
        Proxy::with(worker.address(), Settings { upstream_protocol: Protocol::Http2, ..aged });
    let (mut first, mut second) = (proxy.client(), proxy.client());
    first.send(GET);
    let mut old = Frames::with_streams(worker.next(), 100).at_stream_1();
    assert_eq!(first.within(2 * MOMENT), b"");
    second.send(GET);
    Frames::with_streams(worker.next(), 100).at_stream_1().answers(1, &mut second);
    old.answers(1, &mut first); // What was under way goes on.
}
