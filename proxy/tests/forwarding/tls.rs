//! Workers behind TLS: what is spoken, which connections are used, and how cuts look.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fencepost::upstream::{ConnectionQuota, Ending, Pool, Speaks, Upstream, UpstreamTls, Wants};
use fencepost::wire::Background;
use fencepost_config::{HostPort, UpstreamAddress};
use fencepost_tests::{Behaviour, Endpoint, Worker, WorkerTls, replace_file};
use fencepost_tls::{Followed, Look};
use http::Version;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::support::{
    Certificates, Event, MOMENT, PATIENCE, Proxy, Settings, Tenures, TlsPeer, TlsWorker, field,
};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const COMPLETE: Event = Event::Finished(Ending::Complete);

const H1: &[&str] = &["http/1.1"];
const BOTH: &[&str] = &["h2", "http/1.1"];

fn over(tls: UpstreamTls) -> Settings {
    Settings { upstream_tls: Some(tls), idle_timeout: 10 * PATIENCE, ..Settings::default() }
}

fn address_of(worker: &Worker) -> SocketAddr {
    match worker.endpoint() {
        Endpoint::Tcp(address) => *address,
        Endpoint::Unix(path) => panic!("listens on {}", path.display()),
    }
}

fn is_ok(answer: &(String, Vec<u8>)) -> bool {
    answer.0.starts_with("HTTP/1.1 200 ")
}

/// The ways in which a worker can end a connection.
const ENDS: [fn(TlsPeer); 4] = [TlsPeer::close, TlsPeer::break_off, TlsPeer::reset, |mut peer| {
    peer.say_end();
    // It stays open until the other side closes: what it said has to be enough.
    thread::spawn(|| peer.until_end());
}];

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_speaks_what_the_worker_picks_for_it() {
    let certificates = Certificates::new();
    for (protocols, spoken) in [
        (BOTH, Version::HTTP_2),
        (&["http/1.1", "h2"], Version::HTTP_11),
        (&["h2"], Version::HTTP_2),
        (H1, Version::HTTP_11),
        (&[], Version::HTTP_11),
    ] {
        let tls = WorkerTls { identity: &certificates.worker, client_ca: None, protocols };
        let worker = Worker::start_tls(&tls).await;
        let proxy = Proxy::with(address_of(&worker), over(certificates.client()));
        tokio::task::block_in_place(|| {
            let mut client = proxy.client();
            assert!(is_ok(
                &client
                    .ask("POST / HTTP/1.1\r\nHost: shard.example\r\nContent-Length: 2\r\n\r\nhi")
            ));
            client
                .send("POST / HTTP/1.1\r\nHost: shard.example\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send("2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n");
            assert!(is_ok(&client.answer()));
        });
        let seen = worker.wait_for_answered(2).await;
        for (index, request) in seen.iter().enumerate() {
            assert_eq!((request.version, request.connection), (spoken, 0), "{protocols:?}");
            assert_eq!(request.body, b"hi");
            let host = request.authority.as_deref().or_else(|| request.header("host"));
            assert_eq!(host, Some("shard.example"), "{protocols:?}");
            assert_eq!(request.trailers.len(), index);
            assert_eq!(
                request.headers.contains_key("transfer-encoding"),
                spoken == Version::HTTP_11 && index == 1
            );
        }
    }
}

/// News of streams, which a websocket cannot use, does not cost it its place.
#[tokio::test]
async fn a_websocket_gets_what_another_pool_does_not_use() {
    let certificates = Certificates::new();
    let worker = Worker::start_tls(&WorkerTls {
        identity: &certificates.worker,
        client_ca: None,
        protocols: BOTH,
    })
    .await;
    let quota = ConnectionQuota::of(2, NonZeroUsize::MIN);
    let pool = || {
        let (host, port) = (address_of(&worker).ip().to_string(), address_of(&worker).port());
        let address = UpstreamAddress::Tcp(HostPort { host, port });
        let upstream = Upstream::new(address, Speaks::Tls(certificates.client()));
        let upstream = Upstream { quota: quota.clone(), idle_timeout: 10 * PATIENCE, ..upstream };
        Pool::new(upstream, Background::default())
    };
    let work = async {
        let (pool, other) = (pool(), pool());
        drop(other.ready(Wants::Http1, Instant::now() + PATIENCE).await.unwrap());
        let _stream = pool.ready(Wants::Either, Instant::now() + PATIENCE).await.unwrap();
        assert!(pool.ready(Wants::Http1, Instant::now() + PATIENCE).await.is_ok());
    };
    LocalSet::new().run_until(work).await;
}

/// HTTP/2 has no upgrade: such a request gets a connection for which only HTTP/1.1 is offered.
#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_to_an_http2_worker_gets_its_own_connection() {
    let certificates = Certificates::new();
    let tls = WorkerTls { identity: &certificates.worker, client_ca: None, protocols: BOTH };
    let worker = Worker::start_tls(&tls).await;
    worker.on("/", Behaviour::UpgradeAndEcho);
    let proxy = Proxy::with(address_of(&worker), over(certificates.client()));
    tokio::task::block_in_place(|| {
        let mut client = proxy.client();
        assert!(is_ok(&client.get("/before")));
        client.send(UPGRADE);
        assert!(client.head().starts_with("HTTP/1.1 101 "));
        client.send("ping");
        assert_eq!(client.exactly(4), b"ping");
        client.end_writing();
        assert_eq!(client.until_end(), b"");
        assert!(is_ok(&proxy.client().get("/after")));
    });
    let versions: Vec<_> =
        worker.seen().iter().map(|seen| (seen.version, seen.connection)).collect();
    assert_eq!(versions, [(Version::HTTP_2, 0), (Version::HTTP_11, 1), (Version::HTTP_2, 0)]);
    assert_eq!(proxy.wait_for_events(3), [COMPLETE; 3]);
}

#[test]
fn a_connection_that_has_just_ended_is_not_used() {
    let certificates = Certificates::new();
    for end in ENDS {
        let worker = TlsWorker::start(certificates.server(H1));
        let proxy = Proxy::with(worker.address(), over(certificates.client()));
        let mut client = proxy.client();
        client.send(GET);
        let mut peer = worker.next();
        peer.next_request();
        peer.respond("hello");
        client.answer();
        client.send("GET /halt HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.within(MOMENT), b"");
        peer.refresh_keys();
        end(peer);
        proxy.go_on();
        let mut peer = worker.next();
        peer.next_request();
        peer.respond("on another");
        assert_eq!(client.answer().1, b"on another");
    }
}

#[test]
fn records_that_carry_nothing_of_http_leave_a_connection_in_use() {
    let certificates = Certificates::new();
    let worker = TlsWorker::start(certificates.server(H1));
    let proxy = Proxy::with(worker.address(), over(certificates.client()));
    let mut client = proxy.client();
    // One that is given up unused, too: what the worker says behind its handshake has not been read
    // by then.
    assert!(client.get("/give-up").0.starts_with("HTTP/1.1 412 "));
    let mut peer = worker.next();
    for _ in 0..20 {
        // Nobody reads while the only thread stands still.
        client.send("GET /halt HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.within(Duration::from_millis(10)), b"");
        peer.refresh_keys();
        proxy.go_on();
        assert!(peer.next_request().is_some(), "it goes on");
        peer.respond("hello");
        assert_eq!(client.answer().1, b"hello");
    }
    assert!(!worker.has_another());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_changes_its_protocol_gets_each_request_once() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 60;
    let certificates = Certificates::new();
    let tls = |protocols| WorkerTls { identity: &certificates.worker, client_ca: None, protocols };
    let worker = Worker::start_tls(&tls(BOTH)).await;
    let ours = certificates.client();
    let proxy = Proxy::with(address_of(&worker), Settings { threads: 2, ..over(ours.clone()) });
    let answered = AtomicUsize::new(0);
    tokio::task::block_in_place(|| {
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (proxy, answered) = (&proxy, &answered);
                    scope.spawn(move || {
                        let mut connection = proxy.client();
                        for number in 0..REQUESTS {
                            let answer = connection.get(&format!("/{client}/{number}"));
                            assert!(is_ok(&answer), "{answer:?}");
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            let mut turns = [H1, BOTH].into_iter().cycle();
            while clients.iter().any(|client| !client.is_finished()) {
                let before = answered.load(Ordering::Relaxed);
                while answered.load(Ordering::Relaxed) < before + 20
                    && clients.iter().any(|client| !client.is_finished())
                {
                    thread::yield_now();
                }
                worker.change_tls(&tls(turns.next().unwrap()));
                certificates.begin_anew(&ours);
            }
        });
    });
    let seen = worker.wait_for_answered(CLIENTS * REQUESTS).await;
    let mut paths: Vec<_> = seen.iter().map(|request| request.path.clone()).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!((seen.len(), paths.len()), (CLIENTS * REQUESTS, CLIENTS * REQUESTS), "each once");
    for version in [Version::HTTP_11, Version::HTTP_2] {
        assert!(seen.iter().any(|request| request.version == version), "{version:?}");
    }
}

#[test]
fn an_upload_that_its_tenure_outruns_ends_as_a_loss() {
    let certificates = Certificates::new();
    let (worker, tenures) = (TlsWorker::start(certificates.server(H1)), Tenures::new());
    let settings =
        Settings { tenures: vec![("/", tenures.clone())], ..over(certificates.client()) };
    let proxy = Proxy::with(worker.address(), settings);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\nbegin");
    let mut peer = worker.next();
    assert!(peer.next_request().is_some());
    assert_eq!(peer.exactly(5), b"begin");
    tenures.end();
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::BodyCut)]);
    assert!(peer.end().is_err(), "no end, but a loss");
    assert!(client.head().starts_with("HTTP/1.1 502 "));
}

#[test]
fn a_response_without_length_needs_close_notify() {
    let certificates = Certificates::new();
    let worker = TlsWorker::start(certificates.server(H1));
    let proxy = Proxy::with(worker.address(), over(certificates.client()));
    for (end, whole) in [
        (TlsPeer::close as fn(TlsPeer), true),
        (TlsPeer::break_off, false),
        (TlsPeer::reset, false),
    ] {
        let mut client = proxy.client();
        client.send(GET);
        let mut peer = worker.next();
        peer.next_request();
        peer.send("HTTP/1.1 200 OK\r\n\r\n");
        let head = client.head();
        assert_eq!(field(&head, "transfer-encoding"), Some("chunked"), "{head}");
        peer.send("as far as it goes");
        assert_eq!(client.line(), "11");
        assert_eq!(client.exactly(19), b"as far as it goes\r\n");
        end(peer);
        if whole {
            assert_eq!((client.line(), client.line()), ("0".to_owned(), String::new()));
        } else {
            assert_eq!(client.until_end(), b"");
        }
    }
    let reset = Event::Finished(Ending::Reset);
    assert_eq!(proxy.wait_for_events(3), [COMPLETE, reset, reset]);
}

#[test]
fn an_answer_with_a_length_is_whole_however_its_connection_ends() {
    let certificates = Certificates::new();
    let worker = TlsWorker::start(certificates.server(H1));
    let proxy = Proxy::with(worker.address(), over(certificates.client()));
    for end in [TlsPeer::close as fn(TlsPeer), TlsPeer::break_off] {
        let mut client = proxy.client();
        client.send(GET);
        let mut peer = worker.next();
        peer.next_request();
        peer.respond("hello");
        end(peer);
        assert_eq!(client.answer().1, b"hello");
    }
    assert_eq!(proxy.wait_for_events(2), [COMPLETE; 2]);
}

#[test]
fn connections_after_a_change_of_files_use_the_new_files() {
    let certificates = Certificates::new();
    let other = Certificates::new();
    let tls = certificates.client();
    for protocols in [H1, BOTH] {
        replace_file(&certificates.path("ca.pem"), &certificates.authority.certificate());
        tls.identity.look();
        let worker = TlsWorker::start(certificates.server(protocols));
        let proxy = Proxy::with(worker.address(), over(tls.clone()));
        let mut client = proxy.client();
        if protocols == H1 {
            client.send(GET);
            let mut peer = worker.next();
            peer.next_request();
            peer.respond("hello");
            client.answer();
            worker.speak(other.server(protocols));
            replace_file(&certificates.path("ca.pem"), &other.authority.certificate());
            // One that is under way ends where it began.
            client.send(GET);
            peer.next_request();
            assert_eq!(tls.identity.look(), Look::Reloaded);
            peer.respond("under way");
            assert_eq!(client.answer().1, b"under way");
            client.send(GET);
            let mut next = worker.next();
            next.next_request();
            next.respond("anew");
            assert_eq!(client.answer().1, b"anew");
            assert_eq!(peer.until_end(), b"", "it is left as soon as it is idle");
        } else {
            let mut gives_up = || {
                client.send("GET /give-up HTTP/1.1\r\nHost: test\r\n\r\n");
                let mut peer = worker.next();
                assert_eq!(peer.protocol(), Some(&b"h2"[..]));
                peer.send("\0\0\0\x04\0\0\0\0\0"); // SETTINGS: a connection without is not used.
                assert!(client.answer().0.starts_with("HTTP/1.1 412 "));
                peer
            };
            let _first = gives_up();
            worker.speak(other.server(protocols));
            replace_file(&certificates.path("ca.pem"), &other.authority.certificate());
            assert_eq!(tls.identity.look(), Look::Reloaded);
            gives_up();
        }
    }
}
