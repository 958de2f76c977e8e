//! Clients that are slow, idle, many or in the way of a shutdown.

use std::io::Read;
use std::time::{Duration, Instant};

use fencepost::server::Limits;
use fencepost::upstream::Ending;
use fencepost_fence::refusal::DISCARD_TIMEOUT;

use crate::support::{
    Event, MOMENT, PATIENCE, Peer, Proxy, Settings, Worker, assert_is_asked, field,
};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
/// A limit that is waited for. That of a head begins when its connection is accepted: it is long
/// enough for a client about to send.
const SHORT: Duration = Duration::from_secs(1);

/// A proxy whose one short limit is set by `change`; all others are long.
fn limited(change: impl FnOnce(&mut Limits)) -> Proxy {
    let mut limits = Limits {
        header_timeout: 3 * PATIENCE,
        idle_timeout: 3 * PATIENCE,
        body_timeout: 3 * PATIENCE,
        ..Limits::default()
    };
    change(&mut limits);
    Proxy::with(Worker::echo(), Settings { limits, ..Settings::default() })
}

async fn shut_down(proxy: Proxy, grace: Duration) -> usize {
    tokio::time::timeout(PATIENCE, proxy.shutdown(grace)).await.expect("the server ends")
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn a_client_that_says_nothing_at_first_is_closed() {
    let proxy = limited(|limits| limits.header_timeout = MOMENT);
    assert_eq!(proxy.client().until_end(), b"");
}

#[test]
fn a_head_that_trickles_in_is_closed_in_time() {
    let proxy = limited(|limits| limits.header_timeout = SHORT);
    for request_before in [false, true] {
        let mut start = Instant::now();
        let mut client = proxy.client();
        if request_before {
            client.ask(GET);
            start = Instant::now();
        }
        client.send("GET / HTTP/1.1\r\n");
        while client.try_send_bytes(b"X").is_ok() {
            assert!(start.elapsed() < PATIENCE, "the trickle is never cut");
            std::thread::sleep(MOMENT / 10);
        }
        assert!(start.elapsed() >= SHORT, "{:?}", start.elapsed());
    }
}

#[test]
fn a_slow_head_behind_another_request_is_closed_in_time() {
    let proxy = limited(|limits| limits.header_timeout = SHORT);
    for path in ["/", "/refuse"] {
        let mut client = proxy.client();
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\nGET / HT"));
        assert!(client.answer().0.starts_with("HTTP/1.1 "));
        assert_eq!(client.until_end(), b"");
    }
}

/// One that is gone without a word would keep its place for as long as its request has no end.
#[test]
fn clients_are_asked_whether_they_are_there() {
    let proxy = limited(|_| {});
    let mut client = proxy.client();
    assert!(client.get("/").0.starts_with("HTTP/1.1 200 "));
    assert_is_asked(&client);
}

#[test]
fn an_idle_connection_is_closed_in_time_and_not_before() {
    let idle_timeout = 2 * MOMENT;
    let proxy = limited(|limits| limits.idle_timeout = idle_timeout);
    let mut client = proxy.client();
    let begun = Instant::now();
    let mut last_asked = begun;
    // With each request its time begins anew. If this thread is held up for as long, the connection
    // is closed already.
    while begun.elapsed() < 2 * idle_timeout {
        let asked = Instant::now();
        if client.try_send_bytes(GET.as_bytes()).is_err() || client.answer_or_end().is_none() {
            break;
        }
        last_asked = asked;
        std::thread::sleep(MOMENT / 2);
    }
    assert_eq!(client.until_end(), b"");
    assert!(last_asked.elapsed() >= idle_timeout, "{:?}", last_asked.elapsed());
}

#[test]
fn a_connection_is_idle_between_our_own_answers() {
    // A whole request in one poll must not look like the begin of the next head.
    let proxy = limited(|limits| limits.header_timeout = SHORT);
    let mut client = proxy.client();
    let refused = "GET /refuse HTTP/1.1\r\nHost: test\r\n\r\n";
    assert!(client.ask(refused).0.starts_with("HTTP/1.1 412 "));
    assert_eq!(client.within(SHORT + 2 * MOMENT), b"");
    assert!(client.ask(refused).0.starts_with("HTTP/1.1 412 "));
}

/// What it announced is waited for, so that it can read its answer in peace; not for ever, since it
/// keeps its place meanwhile.
#[test]
fn a_refused_client_that_stalls_makes_room() {
    let only_one = || limited(|limits| limits.connections_max = 1);
    let another_comes_after = |proxy: &Proxy, asked: Instant| {
        let mut next = proxy.client();
        assert!(next.ask(GET).0.starts_with("HTTP/1.1 200 "));
        assert!(asked.elapsed() >= DISCARD_TIMEOUT, "{:?}", asked.elapsed());
    };

    let (proxy, asked) = (only_one(), Instant::now());
    let mut client = proxy.client();
    client.send("POST /refuse HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nbegin");
    assert!(client.answer().0.starts_with("HTTP/1.1 412 "));
    another_comes_after(&proxy, asked);
    assert_eq!(client.until_end(), b"");
}

#[test]
fn a_client_that_does_not_read_is_closed_alone() {
    let limits = Limits { body_timeout: 2 * MOMENT, ..Limits::default() };
    let length = 256 * 1024 * 1024; // More than sockets keep on their own.
    let worker = Worker::scripted(move |mut peer: Peer| {
        peer.next_request();
        peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
        peer.send_bytes(&vec![0; length]);
    });
    let proxy = Proxy::with(worker, Settings { limits, ..Settings::default() });
    let mut client = proxy.client();
    client.send(GET);
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
    assert!(client.until_end().len() < length, "it was cut");
}

#[test]
fn a_worker_that_takes_its_time_is_not_held_against_the_client() {
    let limits = Limits {
        header_timeout: SHORT,
        idle_timeout: SHORT,
        body_timeout: SHORT,
        ..Limits::default()
    };
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { limits, ..Settings::default() });
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    assert_eq!(client.within(SHORT + 2 * MOMENT), b"");
    peer.respond("at last");
    assert_eq!(client.answer().1, b"at last");
}

#[test]
fn a_connection_that_we_end_is_closed_without_a_reset() {
    // Closed with requests unread, it was reset: the client could not write the rest of them, nor
    // read its last answer perhaps.
    let request = format!("GET / HTTP/1.1\r\nHost: test\r\nX-Long: {}\r\n\r\n", "x".repeat(20_000));
    for max in [Some(2), None] {
        let limits = Limits { requests_per_connection_max: max, ..Limits::default() };
        let proxy = Proxy::with(Worker::echo(), Settings { limits, ..Settings::default() });
        if max.is_none() {
            proxy.server().leave();
        }
        let answers = max.unwrap_or(1);
        let mut client = proxy.client();
        client.send(&request.repeat(5));
        for number in 1..=answers {
            let (head, body) = client.answer();
            assert_eq!(field(&head, "connection"), (number == answers).then_some("close"));
            assert!(body.len() > 20_000);
        }
        assert_eq!(client.until_end(), b"", "our side has ended");
        (0..20).for_each(|_| client.send(&request.repeat(5)));
        assert_eq!(client.stream().read(&mut [0]).expect("no reset"), 0);
        drop(client);

        let mut client = proxy.client();
        for _ in 0..answers {
            client.ask(GET);
        }
        assert_eq!(client.until_end(), b"");
        let deadline = Instant::now() + DISCARD_TIMEOUT / 2;
        while proxy.server().connections_by_thread() != [0] {
            assert!(Instant::now() < deadline, "the connection is still open");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_client_that_stalls_after_an_early_response_is_closed() {
    // Until it is answered it is silent as well.
    let limits = Limits { body_timeout: SHORT, ..Limits::default() };
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { limits, ..Settings::default() });
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\nbegin");
    let mut peer = worker.next();
    peer.head();
    peer.respond("early");
    assert_eq!(client.answer().1, b"early");
    assert_eq!(client.until_end(), b"");
}

#[test]
fn connections_are_spread_over_the_threads() {
    let proxy = Proxy::with(Worker::echo(), Settings { threads: 3, ..Settings::default() });
    let mut clients: Vec<_> = (0..9).map(|_| proxy.client()).collect();
    for client in &mut clients {
        assert!(client.ask(GET).0.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(proxy.server().connections().count(), 9);
    assert_eq!(proxy.server().connections_by_thread(), [3, 3, 3]);
}

#[test]
fn a_shutdown_waits_for_requests_whose_client_has_left() {
    let (worker, proxy) = Proxy::by_hand();
    let address = proxy.address();
    let (client, mut peer) = proxy.at_worker(&worker, GET);
    drop(client);
    let finishing = std::thread::spawn(move || {
        while std::net::TcpStream::connect(address).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(peer.within(MOMENT), b"");
        peer.respond("done");
    });
    assert_eq!(block_on(shut_down(proxy, PATIENCE)), 0);
    finishing.join().unwrap();
}
