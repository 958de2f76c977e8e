//! When a request counts as no longer at the worker, whatever its client does.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use fencepost::upstream::{Ending, Timeouts};

use crate::support::{Event, MOMENT, PATIENCE, Peer, Proxy, Settings, Worker};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

fn impatient(silence: Duration, late: Duration) -> Settings {
    let timeouts = Timeouts { silence, stream_idle: Some(silence), total: None, late };
    Settings { timeouts, ..Settings::default() }
}

#[test]
fn a_client_that_leaves_ends_nothing_at_the_worker() {
    let (worker, proxy) = Proxy::by_hand();
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n");
    client.head();
    client.line();
    client.reset();
    for _ in 0..100 {
        peer.send(&format!("2710\r\n{}\r\n", "x".repeat(10_000)));
    }
    assert_eq!(peer.within(MOMENT), b"", "all of it is read, and nothing closed");
    assert!(proxy.events().is_empty());
    peer.send("0\r\n\r\n");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
    // The connection is as good as any other.
    let mut client = proxy.client();
    client.send(GET);
    peer.next_request();
    peer.respond("next");
    assert_eq!(client.answer().1, b"next");
}

#[test]
fn a_request_ends_with_the_workers_answer_read_or_not() {
    let (worker, proxy) = Proxy::by_hand();
    let (_client, mut peer) = proxy.at_worker(&worker, GET);
    peer.respond("never read");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn an_unusable_response_still_ends_its_request() {
    let (worker, proxy) = Proxy::by_hand();
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nbegin\r\n");
    assert!(client.answer().0.starts_with("HTTP/1.1 502 "));
    assert_eq!(peer.within(MOMENT), b"", "the worker's connection stays open");
    assert!(proxy.events().is_empty(), "the worker has not ended");
    peer.send("0\r\n\r\n");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_worker_that_breaks_off_gives_502_and_an_orphan() {
    for reset in [false, true] {
        let proxy = Proxy::before(Worker::scripted(move |mut peer: Peer| {
            peer.next_request();
            if reset {
                peer.reset()
            }
        }));
        assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 502 "));
        assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Reset)]);
    }
}

#[test]
fn a_response_that_breaks_off_is_cut_for_the_client_too() {
    for head in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let proxy = Proxy::before(Worker::scripted(move |mut peer: Peer| {
            peer.next_request();
            peer.send(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nbegin\r\n"));
        }));
        let mut client = proxy.client();
        client.send(GET);
        client.head();
        let body = String::from_utf8(client.until_end()).unwrap();
        assert!(!body.contains("0\r\n\r\n"), "{body:?}");
        assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Reset)]);
    }
}

#[test]
fn a_cut_response_is_a_reset_where_only_the_end_tells() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (method, head, rest, whole) in [
        ("GET", format!("{CHUNKED}5\r\nbegin\r\n"), "0\r\n\r\n", true),
        ("GET", format!("{CHUNKED}5\r\nbegin\r\n"), "", false),
        ("GET", format!("{CHUNKED}5\r\nbegin\r\n"), "0\r\nX-Sum: 7\r\n\r\n", true),
        ("GET", "HTTP/1.1 200 OK\r\n\r\nbegin".to_owned(), "", true),
        ("GET", CHUNKED.to_owned(), "0\r\n\r\n", true),
        ("GET", CHUNKED.to_owned(), "", false),
        ("HEAD", CHUNKED.to_owned(), "", true),
    ] {
        let (worker, proxy) = Proxy::by_hand();
        let (mut client, mut peer) =
            proxy.at_worker(&worker, &format!("{method} / HTTP/1.0\r\n\r\n"));
        peer.send(&head);
        client.head();
        peer.send(rest);
        drop(peer);
        let mut body = Vec::new();
        let end = client.stream().read_to_end(&mut body).map_err(|error| error.kind()).err();
        assert_eq!(
            end,
            (!whole).then_some(ErrorKind::ConnectionReset),
            "{method}, {head:?}, then {rest:?}"
        );
    }
}

#[test]
fn a_silent_worker_gives_504_and_a_late_answer_ends_it() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), impatient(MOMENT, Duration::from_secs(20)));
    let mut client = proxy.client();
    assert!(client.ask(GET).0.starts_with("HTTP/1.1 504 "));
    assert_eq!(proxy.wait_for_events(1), [Event::Overdue]);
    let mut peer = worker.next();
    peer.next_request();
    assert_eq!(peer.within(MOMENT), b"", "its connection is still open");
    peer.respond("late");
    assert_eq!(proxy.wait_for_events(2)[1..], [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_worker_that_never_answers_is_not_waited_for_for_ever() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), impatient(MOMENT, MOMENT));
    assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 504 "));
    assert_eq!(proxy.wait_for_events(2), [Event::Overdue, Event::Finished(Ending::TimedOut)]);
    let mut peer = worker.next();
    peer.next_request();
    assert_eq!(peer.until_end(), b"");
}

#[test]
fn a_worker_silent_within_its_response_is_cut_off() {
    let worker = Worker::by_hand();
    let proxy =
        Proxy::with(worker.address(), impatient(Duration::from_secs(1), Duration::from_secs(20)));
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
    client.head();
    assert_eq!(client.until_end(), b"half ");
    assert_eq!(proxy.wait_for_events(1), [Event::Overdue]);
    peer.send("there");
    assert_eq!(proxy.wait_for_events(2)[1..], [Event::Finished(Ending::Complete)]);
}

#[test]
fn silence_within_a_body_has_a_time_of_its_own() {
    for endless in [false, true] {
        let worker = Worker::by_hand();
        let settings = |stream_idle| {
            let timeouts = Timeouts { silence: MOMENT, stream_idle, ..Timeouts::default() };
            Settings { timeouts, endless, ..Settings::default() }
        };
        let proxy = Proxy::with(worker.address(), settings(None));
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
        client.head();
        assert_eq!(client.exactly(5), b"half ");
        assert_eq!(peer.within(5 * MOMENT), b"");
        peer.send("there");
        assert_eq!(client.exactly(5), b"there");
        assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);

        let proxy = Proxy::with(worker.address(), settings(Some(2 * MOMENT)));
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
        client.head();
        assert_eq!(client.until_end(), b"half ");
        assert_eq!(proxy.wait_for_events(1), [Event::Overdue]);
    }
}

#[test]
fn an_overdue_event_stream_is_not_read_for_ever() {
    for head_comes_late in [false, true] {
        let worker = Worker::by_hand();
        let proxy = Proxy::with(worker.address(), impatient(Duration::from_secs(1), 5 * MOMENT));
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        if !head_comes_late {
            peer.send(head);
        }
        let status = if head_comes_late { "504" } else { "200" };
        assert!(client.head().starts_with(&format!("HTTP/1.1 {status} ")));
        assert_eq!(proxy.wait_for_events(1)[0], Event::Overdue);
        if head_comes_late {
            let _ = peer.try_send_bytes(head.as_bytes());
        }
        let begun = Instant::now();
        while peer.try_send_bytes(b"1\r\nx\r\n").is_ok() {
            assert!(begun.elapsed() < PATIENCE, "it is still read");
            std::thread::sleep(MOMENT / 10); // A trickle.
        }
        assert_eq!(proxy.wait_for_events(2), [Event::Overdue, Event::Finished(Ending::TimedOut)]);
    }
}

#[test]
fn a_client_that_sends_slowly_is_not_taken_for_a_silent_worker() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), impatient(Duration::from_secs(1), MOMENT));
    let mut client = proxy.client();
    client
        .send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n");
    let mut peer = worker.next();
    peer.head();
    peer.line();
    std::thread::sleep(Duration::from_millis(2500)); // As above.
    assert!(proxy.events().is_empty());
    client.send("0\r\n\r\n");
    peer.line();
    peer.line();
    peer.line();
    peer.respond("done");
    assert_eq!(client.answer().1, b"done");
}

#[test]
fn a_busy_worker_is_cut_off_after_request_timeout() {
    let total = Some(Duration::from_secs(2));
    let timeouts = Timeouts { total, late: MOMENT, ..Timeouts::default() };
    let proxy = Proxy::with(
        Worker::scripted(|mut peer: Peer| {
            peer.next_request();
            peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let until = Instant::now() + Duration::from_secs(10);
            while Instant::now() < until && peer.try_send_bytes(b"1\r\nx\r\n").is_ok() {
                std::thread::sleep(MOMENT / 10); // A trickle.
            }
        }),
        Settings { timeouts, ..Settings::default() },
    );
    for leaves in [false, true] {
        let mut client = proxy.client();
        client.send(GET);
        client.head();
        if leaves {
            drop(client);
        } else {
            client.until_end();
        }
        let events = proxy.wait_for_events(if leaves { 4 } else { 2 });
        let cut = [Event::Overdue, Event::Finished(Ending::TimedOut)];
        assert_eq!(events[events.len() - 2..], cut, "its client leaves: {leaves}");
    }
}

#[test]
fn a_request_counts_while_its_worker_answers() {
    // With a bound of its own that is much shorter than the answer takes.
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), impatient(Duration::from_secs(20), MOMENT / 10));
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    client.head();
    drop(client);
    for _ in 0..10 {
        assert_eq!(peer.within(MOMENT / 5), b"", "the worker's connection stays open");
        peer.send("x");
    }
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn an_abandoned_event_stream_is_not_read_for_ever() {
    let proxy = Proxy::with(
        Worker::scripted(|mut peer: Peer| {
            peer.next_request();
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            while peer.try_send_bytes(b"1\r\nx\r\n").is_ok() {
                std::thread::sleep(MOMENT / 10); // A trickle.
            }
        }),
        impatient(Duration::from_secs(20), 2 * MOMENT),
    );
    let mut client = proxy.client();
    client.send(GET);
    client.head();
    drop(client);
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::TimedOut)]);
}

/// Clients that need no token cannot occupy all connections to the worker by leaving their
/// responses.
#[test]
fn an_abandoned_exempt_response_is_not_read_for_ever() {
    for silence in [PATIENCE, MOMENT] {
        let worker = Worker::by_hand();
        let settings = Settings { may_be_left: true, ..impatient(silence, 5 * MOMENT) };
        let proxy = Proxy::with(worker.address(), settings);
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        let mut events = vec![Event::Finished(Ending::TimedOut)];
        if silence == MOMENT {
            assert!(client.answer().0.starts_with("HTTP/1.1 504 "), "its head comes late");
            events.insert(0, Event::Overdue);
        }
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        if silence == PATIENCE {
            client.head();
        }
        drop(client);
        let begun = Instant::now();
        while peer.try_send_bytes(b"1\r\nx\r\n").is_ok() {
            assert!(begun.elapsed() < PATIENCE / 2, "it is still read");
            std::thread::sleep(MOMENT / 10); // A trickle.
        }
        assert_eq!(proxy.wait_for_events(events.len()), events);
    }
}
