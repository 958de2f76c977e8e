//! When a request counts as no longer at the worker, whatever its client does.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use fencepost::upstream::{Ending, Timeouts};

use crate::support::{Event, MOMENT, PATIENCE, Peer, Proxy, Settings, Worker};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

fn impatient(silence: Duration, late: Duration) -> Settings {
    Settings { timeouts: Timeouts { silence, total: None, late }, ..Settings::default() }
}

#[test]
fn a_client_that_leaves_before_the_answer_ends_nothing_at_the_worker() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let (client, mut peer) = proxy.at_worker(&worker, GET);
    drop(client);
    assert_eq!(peer.within(MOMENT), b"", "the worker's connection stays open");
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
    assert_eq!(peer.within(MOMENT), b"");
    assert!(proxy.events().is_empty(), "the worker has not ended");
    peer.send("there");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_client_that_leaves_in_the_middle_of_the_answer_ends_nothing_at_the_worker() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
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
fn a_small_request_is_over_when_the_worker_has_answered_not_when_the_client_has_read() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let (_client, mut peer) = proxy.at_worker(&worker, GET);
    peer.respond("never read");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_request_whose_answer_cannot_be_passed_on_is_over_when_its_worker_has_answered() {
    let worker = Worker::by_hand();
    let proxy = Proxy::before(worker.address());
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nbegin\r\n");
    assert!(client.answer().0.starts_with("HTTP/1.1 502 "));
    assert_eq!(peer.within(MOMENT), b"", "the worker's connection stays open");
    assert!(proxy.events().is_empty(), "the worker has not ended");
    peer.send("0\r\n\r\n");
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
}

#[test]
fn a_worker_that_breaks_off_before_its_answer_gives_502_and_leaves_the_request_uncertain() {
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
fn a_worker_that_breaks_off_in_the_middle_of_its_answer_is_cut_off_for_the_client_too() {
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
fn a_client_that_knows_an_end_by_the_connections_sees_a_reset_where_its_answer_is_cut_off() {
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
        let worker = Worker::by_hand();
        let proxy = Proxy::before(worker.address());
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
fn a_silent_worker_gives_504_and_a_late_answer_ends_the_request_after_all() {
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
fn a_worker_that_falls_silent_in_the_middle_of_its_answer_is_cut_off() {
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
fn a_late_answer_is_read_to_its_end_however_long_it_takes_as_long_as_it_goes_on() {
    let late = Duration::from_secs(2);
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), impatient(MOMENT, late));
    assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 504 "));
    let mut peer = worker.next();
    peer.next_request();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n");
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(peer.within(MOMENT), b"", "its connection is still open");
        peer.send("x");
    }
    assert!(begun.elapsed() > late);
    assert_eq!(proxy.wait_for_events(2), [Event::Overdue, Event::Finished(Ending::Complete)]);
}

/// hyper tells nobody of either: it counted as silent.
#[test]
fn a_worker_that_says_that_it_is_at_a_request_which_has_taken_too_long_is_waited_for() {
    let late = Duration::from_secs(2);
    for is_streamed in [false, true] {
        let worker = Worker::by_hand();
        let proxy = Proxy::with(worker.address(), impatient(MOMENT, late));
        let mut client = proxy.client();
        client.send(if is_streamed {
            "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
        } else {
            GET
        });
        let mut peer = worker.next();
        peer.head();
        if is_streamed {
            client.send("0\r\n\r\n");
            assert_eq!(peer.exactly(5), b"0\r\n\r\n");
        }
        assert!(client.head().starts_with("HTTP/1.1 504 "));
        let begun = Instant::now();
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let words = std::iter::repeat_n("HTTP/1.1 102 Processing\r\n\r\n", 12)
            .chain((0..12).map(|at| &head[at..=at]));
        for word in words {
            assert_eq!(peer.within(2 * MOMENT), b"", "its connection is still open");
            peer.send(word);
        }
        assert!(begun.elapsed() > 2 * late);
        peer.send(&head[12..]);
        assert_eq!(proxy.wait_for_events(2), [Event::Overdue, Event::Finished(Ending::Complete)]);
    }
}

#[test]
fn an_event_stream_that_has_been_silent_for_too_long_is_not_read_for_ever_after() {
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
fn a_client_that_reads_slowly_is_not_taken_for_a_silent_worker() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), impatient(Duration::from_secs(1), MOMENT));
    let (mut client, mut peer) = proxy.at_worker(&worker, GET);
    let writer = std::thread::spawn(move || {
        let length = 128 * 1024 * 1024;
        peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
        peer.send_bytes(&vec![0; length]);
    });
    client.head();
    // Nothing can be waited for here: the point is that nothing happens.
    std::thread::sleep(Duration::from_millis(2500));
    client.skip(128 * 1024 * 1024);
    writer.join().unwrap();
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Complete)]);
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
fn a_worker_that_takes_too_long_altogether_is_cut_off_however_busy() {
    let total = Some(Duration::from_secs(2));
    let timeouts = Timeouts { silence: Duration::from_secs(20), total, late: MOMENT };
    let proxy = Proxy::with(
        Worker::scripted(|mut peer: Peer| {
            peer.next_request();
            peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            while peer.try_send_bytes(b"1\r\nx\r\n").is_ok() {
                std::thread::sleep(MOMENT / 10); // A trickle.
            }
        }),
        Settings { timeouts, ..Settings::default() },
    );
    let mut client = proxy.client();
    client.send(GET);
    client.head();
    client.until_end();
    assert_eq!(proxy.wait_for_events(2), [Event::Overdue, Event::Finished(Ending::TimedOut)]);
}

#[test]
fn a_request_counts_for_as_long_as_its_worker_goes_on_whether_or_not_its_client_is_there() {
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
fn an_event_stream_is_not_read_for_ever_once_its_client_has_left() {
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

/// It held a connection to the worker for ever: whoever needs no token had all of them soon.
#[test]
fn an_answer_that_nobody_waits_for_is_not_read_for_ever_once_its_client_has_left() {
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

#[test]
fn an_answer_without_end_is_read_for_the_time_of_its_request_once_its_client_has_left() {
    let total = Some(Duration::from_secs(2));
    let timeouts = Timeouts { silence: Duration::from_secs(20), total, late: 2 * MOMENT };
    let proxy = Proxy::with(
        Worker::scripted(|mut peer: Peer| {
            peer.next_request();
            peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            while peer.try_send_bytes(b"1\r\nx\r\n").is_ok() {
                std::thread::sleep(MOMENT / 10); // A trickle.
            }
        }),
        Settings { timeouts, ..Settings::default() },
    );
    let mut client = proxy.client();
    client.send(GET);
    client.head();
    drop(client);
    assert_eq!(proxy.wait_for_events(2), [Event::Overdue, Event::Finished(Ending::TimedOut)]);
}
