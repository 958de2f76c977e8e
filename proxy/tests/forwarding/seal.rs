//! What becomes of a request at the worker whose tenure ends.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fencepost::server::Protocol;
use fencepost::upstream::Ending;
use http::{Request, Response};

use crate::support::{
    Client, Event, Http2Client, Http2Worker, MOMENT, Peer, Proxy, Settings, Tenures, Worker, field,
    read, some, write_until_blocked, write_zeros,
};

const CHUNKED: &str =
    "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n";
const SIZED: &str = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\nbegin";
const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
const MIB: usize = 1024 * 1024;

const COMPLETE: Event = Event::Finished(Ending::Complete);
const CUT: Event = Event::Finished(Ending::Cut);
const BODY_CUT: Event = Event::Finished(Ending::BodyCut);

fn fenced(tenures: &Tenures) -> Settings {
    Settings { tenures: vec![("/", tenures.clone())], ..Settings::default() }
}

/// Waits for permits off the runtime's thread, which may have to serve the worker meanwhile.
async fn events(proxy: &Proxy, count: usize) -> Vec<Event> {
    tokio::task::block_in_place(|| proxy.wait_for_events(count))
}

/// A request of that length that fencepost has read whole and whose worker has read no more than
/// its head, and what came with that.
fn unread(proxy: &Proxy, worker: &Worker, length: usize) -> (Client, Peer) {
    let mut client = proxy.client();
    client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n"));
    client.send_bytes(&vec![b'x'; length]);
    let mut peer = worker.next();
    peer.head();
    (client, peer)
}

#[test]
fn an_upload_of_an_ended_tenure_never_arrives_whole() {
    for head in [CHUNKED, SIZED] {
        let (worker, tenures, proxy) = Proxy::fenced();
        let mut client = proxy.client();
        client.send(head);
        let mut peer = worker.next();
        let chunked = field(&peer.head(), "transfer-encoding").is_some();
        assert_eq!(peer.exactly(5), if chunked { b"5\r\nbe" } else { b"begin" });
        tenures.end();
        assert_eq!(
            peer.until_end(),
            if chunked { &b"gin\r\n"[..] } else { b"" },
            "neither a last chunk nor the rest"
        );
        assert_eq!(proxy.wait_for_events(1), [BODY_CUT], "at once, though the client says nothing");
        assert!(client.head().starts_with("HTTP/1.1 502 "));
        assert_eq!(tenures.cuts(), 1);
    }
}

#[test]
fn an_upload_is_cut_although_the_worker_does_not_read_it() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let mut client = proxy.client();
    let length = 256 * MIB;
    client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n"));
    write_until_blocked(&client, length);
    tenures.end();
    assert_eq!(proxy.wait_for_events(1), [BODY_CUT]);
    let mut peer = worker.next();
    peer.head();
    assert!(peer.until_end().len() < length);
}

/// It counted as over with the cut, while the worker went on reading what lay in the kernel.
#[test]
fn an_answered_upload_that_is_cut_leaves_an_orphan() {
    for by_its_client in [false, true] {
        let (worker, tenures, proxy) = Proxy::fenced();
        let mut client = proxy.client();
        client.send(CHUNKED);
        let mut peer = worker.next();
        peer.head();
        peer.respond("early");
        assert_eq!(client.answer().1, b"early");
        assert!(proxy.events().is_empty(), "the worker may still be reading");
        if by_its_client {
            drop(client);
        } else {
            tenures.end();
        }
        assert_eq!(proxy.wait_for_events(1), [BODY_CUT]);
        peer.until_end();
    }
}

/// What was read whole was cut with its answer, however good its tenure, and was over then, while
/// the worker went on reading what lay in the kernel.
#[test]
fn an_early_answered_request_ends_when_it_is_written() {
    const LENGTH: usize = 32 * MIB;
    for ends in [false, true] {
        let (worker, tenures) = (Worker::by_hand(), Tenures::new());
        let proxy =
            Proxy::with(worker.address(), Settings { whole_bytes_max: LENGTH, ..fenced(&tenures) });
        let (mut client, mut peer) = unread(&proxy, &worker, LENGTH);
        peer.respond("early");
        assert_eq!(client.answer().1, b"early");
        if ends {
            tenures.end();
        }
        assert!(proxy.events().is_empty(), "the worker may still be reading");
        assert_eq!(peer.exactly(LENGTH).len(), LENGTH);
        assert_eq!(proxy.wait_for_events(1), [COMPLETE]);
    }
}

/// hyper ends its connection with an answer that says that the worker will, whatever is left of the
/// request.
#[test]
fn an_early_response_of_a_closing_worker_leaves_an_orphan() {
    const LENGTH: usize = 32 * MIB;
    for head in ["HTTP/1.1 200 OK\r\nConnection: close", "HTTP/1.0 200 OK"] {
        let (worker, tenures) = (Worker::by_hand(), Tenures::new());
        let proxy =
            Proxy::with(worker.address(), Settings { whole_bytes_max: LENGTH, ..fenced(&tenures) });
        let (mut client, mut peer) = unread(&proxy, &worker, LENGTH);
        peer.send(&format!("{head}\r\nContent-Length: 5\r\n\r\nearly"));
        assert_eq!(client.answer().1, b"early");
        assert_eq!(proxy.wait_for_events(1), [BODY_CUT], "the worker may still be reading");
        assert!(peer.until_end().len() < LENGTH);
        assert_eq!(tenures.cuts(), 0, "its tenure goes on");
    }
}

/// What is cut with its tenure, begun or not, was the one thing that was written without a look.
#[test]
fn a_streaming_request_ends_with_its_tenure() {
    const LENGTH: usize = 32 * MIB;
    for is_answered in [false, true] {
        let (worker, tenures) = (Worker::by_hand(), Tenures::new());
        let settings = Settings { whole_bytes_max: LENGTH, endless: true, ..fenced(&tenures) };
        let proxy = Proxy::with(worker.address(), settings);
        let (mut client, mut peer) = unread(&proxy, &worker, LENGTH);
        if is_answered {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
            client.head();
        }
        tenures.end();
        assert_eq!(proxy.wait_for_events(1), [CUT]);
        assert!(peer.until_end().len() < LENGTH);
        assert_eq!(tenures.cuts(), 1);
    }
}

#[test]
fn a_request_that_is_at_the_worker_whole_is_waited_for() {
    let (worker, tenures, proxy) = Proxy::fenced();
    for request in [
        GET,
        "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    ] {
        let (mut client, mut peer) = proxy.at_worker(&worker, request);
        tenures.end();
        assert_eq!(peer.within(MOMENT), b"");
        peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ndone");
        assert_eq!(client.answer().1, b"done");
    }
    assert_eq!(proxy.wait_for_events(2), [COMPLETE, COMPLETE]);
    assert_eq!(tenures.cuts(), 0);
}

#[test]
fn the_end_of_another_locks_tenure_touches_nothing() {
    let worker = Worker::by_hand();
    let (ours, other) = (Tenures::new(), Tenures::new());
    let tenures = vec![("/", ours.clone()), ("/other", other.clone())];
    let proxy = Proxy::with(worker.address(), Settings { tenures, ..Settings::default() });
    let mut client = proxy.client();
    client.send(CHUNKED);
    let mut peer = worker.next();
    peer.head();
    peer.line();
    peer.line();
    let mut stranger = proxy.client();
    stranger.send(&CHUNKED.replace("POST /", "POST /other"));
    let mut others_peer = worker.next();
    others_peer.head();
    other.end();
    others_peer.until_end();
    assert_eq!(peer.within(MOMENT), b"", "and no end");
    client.send("0\r\n\r\n");
    peer.line();
    peer.line();
    peer.respond("done");
    assert_eq!(client.answer().1, b"done");
    assert_eq!((ours.cuts(), other.cuts()), (0, 1));
}

/// Races between the last piece of an upload and the end of its tenure. The loser gets a longer
/// start in the next round, so that the two come as close as possible.
#[derive(Default)]
struct Races {
    /// By how many microseconds the upload goes first.
    start: i64,
    whole: usize,
    cut: usize,
}

impl Races {
    fn run(&self, upload: impl FnOnce() + Send, end: impl FnOnce() + Send) {
        let ready = Barrier::new(2);
        let after = |wait: i64| {
            ready.wait();
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(wait.max(0).unsigned_abs()) {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                after(-self.start);
                upload();
            });
            after(self.start);
            end();
        });
    }

    fn note(&mut self, whole: bool) {
        *(if whole { &mut self.whole } else { &mut self.cut }) += 1;
        self.start += if whole { -25 } else { 25 };
    }

    fn check(&self, tenures: &Tenures) {
        assert_eq!(tenures.cuts(), self.cut);
        assert!(self.whole > 0 && self.cut > 0, "{} whole, {} cut", self.whole, self.cut);
    }
}

#[test]
fn a_racing_upload_is_either_whole_or_cut() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let mut races = Races::default();
    for round in 0..400 {
        let chunked = round % 2 == 0;
        let mut client = proxy.client();
        client.send(if chunked { CHUNKED } else { SIZED });
        let mut peer = worker.next();
        peer.head();
        peer.exactly(if chunked { 10 } else { 5 });
        let rest = if chunked { b"0\r\n\r\n".to_vec() } else { vec![b'x'; 100_000 - 5] };
        let length = rest.len();
        // A client may find that its connection is closed already.
        races.run(|| drop(client.try_send_bytes(&rest)), || tenures.end());
        let whole = got_all(&mut peer, length);
        let _ = peer
            .try_send_bytes(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        drop(peer);
        let told = if whole { COMPLETE } else { BODY_CUT };
        assert_eq!(proxy.wait_for_events(round + 1)[round], told, "in round {round}");
        races.note(whole);
    }
    races.check(&tenures);
}

/// Whether that many bytes come before the end.
fn got_all(peer: &mut Peer, mut length: usize) -> bool {
    while length > 0 {
        let Some(some) = peer.some_or_end() else { return false };
        length = length.checked_sub(some.len()).expect("no more than was sent");
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_to_an_http2_worker_is_reset_when_its_tenure_ends() {
    let tenures = Tenures::new();
    let mut worker = Http2Worker::start().await;
    let settings = Settings { upstream_protocol: Protocol::Http2, ..fenced(&tenures) };
    let proxy = Proxy::with(worker.address, settings);
    let mut client = proxy.client();
    client.send(CHUNKED);
    let (request, _answer) = worker.next().await;
    let mut heard = request.into_body();
    assert_eq!(some(&mut heard, 5).await, b"begin");
    tenures.end();
    assert!(matches!(heard.data().await, Some(Err(_))));
    assert_eq!(events(&proxy, 1).await, [BODY_CUT]);
    assert!(tokio::task::block_in_place(|| client.head()).starts_with("HTTP/1.1 502 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_racing_http2_stream_is_either_whole_or_cut() {
    let tenures = Tenures::new();
    let mut worker = Http2Worker::start().await;
    let settings = Settings { upstream_protocol: Protocol::Http2, ..fenced(&tenures) };
    let proxy = Proxy::with(worker.address, settings);
    let mut races = Races::default();
    for round in 0..300 {
        let mut client = proxy.client();
        client.send(CHUNKED);
        let (request, mut answer) = worker.next().await;
        let mut heard = request.into_body();
        assert_eq!(some(&mut heard, 5).await, b"begin");
        tokio::task::block_in_place(|| {
            races.run(|| drop(client.try_send_bytes(b"4\r\nlast\r\n0\r\n\r\n")), || tenures.end())
        });
        let whole = read(heard).await.is_ok();
        if whole {
            answer.send_response(Response::new(()), true).unwrap();
        }
        let told = if whole { COMPLETE } else { BODY_CUT };
        assert_eq!(events(&proxy, round + 1).await[round], told, "in round {round}");
        races.note(whole);
    }
    races.check(&tenures);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_was_announced_is_a_part_until_the_stream_has_ended() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let mut client = Http2Client::connect(proxy.address()).await;
    let post = || Request::post("http://t/").header("content-length", 100_000).body(()).unwrap();
    let (_response, mut asking) = client.begin(post()).await;
    asking.send_data(Bytes::from(vec![b'x'; 100_000]), false).unwrap();
    let mut peer = worker.next();
    tokio::task::block_in_place(|| peer.head());
    tenures.end();
    let got = tokio::task::block_in_place(|| peer.until_end());
    assert!(got.len() < 100_000, "{}", got.len());
    assert_eq!(events(&proxy, 1).await, [BODY_CUT]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announced_body_is_whole_once_its_stream_has_ended() {
    let (worker, proxy) = Proxy::by_hand();
    let mut client = Http2Client::connect(proxy.address()).await;
    for trailers in [false, true] {
        let post = Request::post("http://t/").header("content-length", 100_000).body(()).unwrap();
        let (response, mut asking) = client.begin(post).await;
        asking.send_data(Bytes::from(vec![b'x'; 100_000]), false).unwrap();
        if trailers {
            asking
                .send_trailers(
                    [(http::HeaderName::from_static("x-sum"), http::HeaderValue::from(1))]
                        .into_iter()
                        .collect(),
                )
                .unwrap();
        } else {
            asking.send_data(Bytes::new(), true).unwrap();
        }
        let mut peer = worker.next();
        let (_, body) = tokio::task::block_in_place(|| peer.next_request()).unwrap();
        assert_eq!(body.len(), 100_000);
        peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ndone");
        assert_eq!(read(response.await.unwrap().into_body()).await.unwrap().0, b"done");
    }
}

#[test]
fn pieces_after_the_tenure_are_dropped_without_notice() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let mut client = proxy.client();
    client.send(CHUNKED);
    let mut peer = worker.next();
    peer.head();
    assert_eq!((peer.line(), peer.line()), ("5".to_owned(), "begin".to_owned()));
    tenures.end_silently();
    client.send("4\r\nlast\r\n0\r\n\r\n");
    assert_eq!(peer.until_end(), b"");
    assert_eq!(proxy.wait_for_events(1), [BODY_CUT]);

    let (mut client, mut peer) = tunnel(&proxy, &worker);
    tenures.end_silently();
    client.send("ping");
    assert_eq!(peer.until_end(), b"");
    assert_eq!(proxy.wait_for_events(2)[1..], [CUT]);
}

#[test]
fn a_tunnel_is_cut_on_both_sides() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let (mut client, mut peer) = tunnel(&proxy, &worker);
    tenures.end();
    assert_eq!(peer.until_end(), b"");
    assert_eq!(client.until_end(), b"");
    assert_eq!(proxy.wait_for_events(1), [CUT]);
}

#[test]
fn a_tunnel_that_nobody_reads_is_cut_too() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let (client, peer) = tunnel(&proxy, &worker);
    write_until_blocked(&client, 256 * MIB);
    write_until_blocked(&peer, 256 * MIB);
    tenures.end();
    assert_eq!(proxy.wait_for_events(1), [CUT]);
}

fn tunnel(proxy: &Proxy, worker: &Worker) -> (Client, Peer) {
    let mut client = proxy.client();
    client.send(UPGRADE);
    let mut peer = worker.next();
    peer.head();
    peer.send(SWITCH);
    client.head();
    client.send("ping");
    assert_eq!(peer.exactly(4), b"ping");
    peer.send("pong");
    assert_eq!(client.exactly(4), b"pong");
    (client, peer)
}

#[test]
fn a_tunnel_that_opens_after_its_tenure_carries_nothing() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let mut client = proxy.client();
    client.send(UPGRADE);
    let mut peer = worker.next();
    peer.head();
    tenures.end();
    peer.send(SWITCH);
    assert_eq!(peer.until_end(), b"");
    assert_eq!(proxy.wait_for_events(1), [CUT]);
}

#[test]
fn an_event_stream_is_cut_whether_it_has_a_client_or_not() {
    for has_client in [true, false] {
        let (worker, tenures, proxy) = Proxy::fenced();
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        peer.send(&format!("{EVENTS}9\r\ndata: 1\n\n\r\n"));
        client.head();
        client.line();
        let mut client = Some(client).filter(|_| has_client);
        assert_eq!(peer.within(MOMENT), b"", "and open");
        tenures.end();
        assert_eq!(peer.until_end(), b"");
        assert_eq!(proxy.wait_for_events(1), [CUT]);
        if let Some(client) = &mut client {
            let rest = client.until_end();
            assert!(!rest.ends_with(b"0\r\n\r\n"), "it must not look whole");
        }
        assert_eq!(tenures.cuts(), 1);
    }
}

/// Of an upload, too, which was watched before, so that its end was told already.
#[test]
fn an_event_stream_that_begins_when_its_tenure_has_ended_is_cut() {
    for request in [GET, &format!("{CHUNKED}0\r\n\r\n")] {
        let (worker, tenures, proxy) = Proxy::fenced();
        let (mut client, mut peer) = proxy.at_worker(&worker, request);
        tenures.end();
        assert_eq!(peer.within(MOMENT), b"", "it is waited for");
        peer.send(EVENTS);
        peer.until_end();
        assert_eq!(proxy.wait_for_events(1), [CUT], "{request}");
        client.until_end();
    }
}

#[test]
fn on_a_streaming_route_every_response_is_cut_begun_or_not() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ";
    for (sent, leaves) in [("", false), ("", true), (head, false), (head, true)] {
        let (worker, tenures) = (Worker::by_hand(), Tenures::new());
        let proxy = Proxy::with(worker.address(), Settings { endless: true, ..fenced(&tenures) });
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        peer.send(sent);
        if !sent.is_empty() {
            client.head();
        }
        let mut client = Some(client).filter(|_| !leaves);
        assert_eq!(peer.within(MOMENT), b"");
        tenures.end();
        assert_eq!(peer.until_end(), b"");
        assert_eq!(proxy.wait_for_events(1), [CUT]);
        match &mut client {
            Some(client) if sent.is_empty() => assert!(client.head().starts_with("HTTP/1.1 502 ")),
            Some(client) => assert!(client.until_end().len() <= 5),
            None => {}
        }
    }
}

#[test]
fn a_reading_client_gets_the_response_of_an_ended_tenure() {
    let (worker, tenures, proxy) = Proxy::fenced();
    let (mut client, mut peer) = proxy.at_worker(
        &worker,
        "GET / HTTP/1.1\r\nHost: test\r\nConnection: TE\r\nTE: trailers\r\n\r\n",
    );
    peer.send(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nbegin\r\n",
    );
    client.head();
    assert_eq!((client.line(), client.line()), ("5".to_owned(), "begin".to_owned()));
    tenures.end();
    assert_eq!(peer.within(MOMENT), b"", "waited for");
    for size in [1, 1000, 100_000, 200_000, 200_000] {
        peer.send(&format!("{size:x}\r\n{}\r\n", "x".repeat(size)));
        let mut got = 0;
        while got < size {
            got += usize::from_str_radix(&client.line(), 16).unwrap();
            let line = client.line();
            assert!(line.bytes().all(|byte| byte == b'x'));
        }
    }
    assert!(proxy.events().is_empty());
    peer.send("0\r\nX-Sum: 1\r\n\r\n");
    assert_eq!(client.chunks(), (vec![], "x-sum: 1\n".to_owned()));
    assert_eq!(proxy.wait_for_events(1), [COMPLETE]);
    assert_eq!(tenures.cuts(), 0);
    // Both connections are as good as any other.
    client.send(GET);
    peer.next_request();
    peer.respond("next");
    assert_eq!(client.answer().1, b"next");
}

#[test]
fn an_unread_response_of_an_ended_tenure_is_drained() {
    let length = 256 * MIB;
    for head in [
        format!("Content-Length: {length}"),
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x}"),
    ] {
        let (worker, tenures, proxy) = Proxy::fenced();
        let (mut client, mut peer) = proxy.at_worker(&worker, GET);
        let chunked = head.contains("chunked");
        peer.send(&format!("HTTP/1.1 200 OK\r\n{head}\r\n{}", if chunked { "" } else { "\r\n" }));
        let written = write_until_blocked(&peer, length);
        tenures.end();
        write_zeros(&peer, length - written);
        if chunked {
            assert!(proxy.events().is_empty(), "the worker has not ended");
            peer.send("\r\n0\r\n\r\n");
        }
        assert_eq!(proxy.wait_for_events(1), [COMPLETE], "and the client has read nothing yet");
        client.head();
        let got = client.until_end();
        assert!(got.len() < length && !got.ends_with(b"0\r\n\r\n"), "{} bytes", got.len());
        assert_eq!(tenures.cuts(), 1);
    }
}
