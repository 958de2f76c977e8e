//! Which requests go on which HTTP/2 connection to the worker, and when.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fencepost::server::Protocol;
use fencepost::upstream::{
    Admitted, Ending, Permit, Pool, ReadyConnection, RequestBody, Speaks, Timeouts, Upstream,
    UpstreamError, Wants,
};
use fencepost::wire::Background;
use fencepost_config::{HostPort, UpstreamAddress};
use futures_util::future::join_all;
use h2::Reason;
use http::Request;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use tokio::time::Instant;

use crate::support::{
    Event, Frame, Frames, MOMENT, PATIENCE, Peer, Proxy, Scene, Settings, Tenures, Worker,
    write_until_blocked,
};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
const DELETE: &str = "DELETE / HTTP/1.1\r\nHost: test\r\n\r\n";

fn to_http2() -> Settings {
    Settings { upstream_protocol: Protocol::Http2, ..Settings::default() }
}

#[test]
fn no_more_streams_are_begun_than_the_worker_allows() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), to_http2());
    let (mut first, mut second) = (proxy.client(), proxy.client());
    first.send(GET);
    let mut one = Frames::with_streams(worker.next(), 1).at_stream_1();
    second.send(DELETE);
    let mut other = Frames::with_streams(worker.next(), 1).at_stream_1();
    other.answers(1, &mut second);
    one.answers(1, &mut first);
    assert_eq!(proxy.wait_for_events(2), [Event::Finished(Ending::Complete); 2]);
}

/// What was not handed over is not sent later; what still waits goes as soon as it may.
#[test]
fn a_worker_that_allows_no_streams_gets_none_until_it_does() {
    let worker = Worker::by_hand();
    let (ready_timeout, idle_timeout) = (Duration::from_secs(2), PATIENCE);
    let proxy =
        Proxy::with(worker.address(), Settings { ready_timeout, idle_timeout, ..to_http2() });
    let (mut given_up, mut waiting) = (proxy.client(), proxy.client());
    given_up.send(DELETE);
    let mut frames = Frames::with_streams(worker.next(), 0);
    assert!(given_up.answer().0.starts_with("HTTP/1.1 503 "));
    assert!(!worker.has_another(), "it would allow none there either");
    waiting.send(GET);
    frames.peer().within(MOMENT);
    frames.allow(2);
    assert_eq!(frames.next(), Frame::Headers { stream: 1 });
    frames.answers(1, &mut waiting);
    waiting.send(GET);
    assert_eq!(frames.next(), Frame::Headers { stream: 3 }, "and nothing before it");
}

/// As one does that is about to leave.
#[test]
fn a_connection_without_streams_is_left_for_another() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), to_http2());
    let (mut first, mut second) = (proxy.client(), proxy.client());
    first.send(GET);
    let mut one = Frames::with_streams(worker.next(), 100).at_stream_1();
    one.allow(0);
    one.acknowledged();
    second.send(DELETE);
    let mut other = Frames::with_streams(worker.next(), 100).at_stream_1();
    other.answers(1, &mut second);
    one.answers(1, &mut first);
}

#[test]
fn nothing_is_sent_before_the_workers_settings() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { ready_timeout: 2 * MOMENT, ..to_http2() });
    let mut client = proxy.client();
    client.send(DELETE);
    let silent = worker.next();
    assert!(client.answer().0.starts_with("HTTP/1.1 503 "));
    client.send(DELETE);
    drop(worker.next());
    assert!(client.answer().0.starts_with("HTTP/1.1 503 "), "at once, the connection having ended");
    assert_eq!(proxy.events(), []);
    drop(silent);
}

#[test]
fn a_connection_that_has_been_idle_for_too_long_is_closed() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), Settings { idle_timeout: 2 * MOMENT, ..to_http2() });
    let mut client = proxy.client();
    for _ in 0..2 {
        client.send(GET);
        let mut frames = Frames::with_streams(worker.next(), 100).at_stream_1();
        frames.peer().within(3 * MOMENT); // It is not idle.
        frames.answers(1, &mut client);
        frames.peer().until_end();
    }
}

/// One that the worker lets in nothing of is given up; those beside it go on.
#[test]
fn a_request_that_is_overdue_takes_no_other_with_it() {
    let worker = Worker::by_hand();
    let timeouts = Timeouts { silence: 20 * MOMENT, ..Timeouts::default() };
    let proxy = Proxy::with(worker.address(), Settings { timeouts, ..to_http2() });
    let (mut stuck, mut other) = (proxy.client(), proxy.client());
    stuck.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello");
    let mut frames = Frames::with_shut_windows(worker.next()).at_stream_1();
    frames.peer().within(10 * MOMENT);
    other.send(GET);
    assert_eq!(frames.next(), Frame::Headers { stream: 3 });
    assert!(stuck.head().starts_with("HTTP/1.1 504 "));
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::TimedOut)]);
    frames.open(1, 5);
    assert_eq!(frames.next(), Frame::Reset { stream: 1 });
    frames.answers(3, &mut other);
}

/// A worker that restarts answers what it has begun, and closes then.
#[test]
fn a_connection_after_goaway_gets_no_more_requests() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), to_http2());
    let (mut first, mut second) = (proxy.client(), proxy.client());
    first.send(GET);
    let mut old = Frames::with_streams(worker.next(), 100).at_stream_1();
    old.take_leave(1);
    second.send(DELETE);
    let mut new = Frames::with_streams(worker.next(), 100);
    for stream in [1, 3] {
        assert_eq!(new.next(), Frame::Headers { stream });
        new.answers(stream, &mut second);
        second.send(DELETE);
    }
    old.answers(1, &mut first);
}

#[test]
fn a_connection_on_which_the_worker_complains_is_left() {
    for by_goaway in [false, true] {
        let worker = Worker::by_hand();
        let proxy = Proxy::with(worker.address(), to_http2());
        let (mut first, mut second, mut third) = (proxy.client(), proxy.client(), proxy.client());
        first.send(GET);
        let mut old = Frames::with_streams(worker.next(), 100).at_stream_1();
        second.send(DELETE);
        assert_eq!(old.next(), Frame::Headers { stream: 3 });
        if by_goaway {
            old.take_leave_for(Reason::ENHANCE_YOUR_CALM, 3);
        } else {
            old.reset(3, Reason::ENHANCE_YOUR_CALM);
            assert!(second.answer().0.starts_with("HTTP/1.1 502 "));
            assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::Reset)]);
        }
        third.send(DELETE);
        Frames::with_streams(worker.next(), 100).at_stream_1().answers(1, &mut third);
        old.answers(1, &mut first); // What is under way there goes on.
        if by_goaway {
            old.answers(3, &mut second);
        }
    }
}

#[test]
fn a_request_refused_again_and_again_is_declined() {
    let scene = Scene::speaking("h2c", "", "");
    let mut client = scene.get(&scene.hold("a"));
    let mut frames = Frames::with_streams(scene.worker.next(), 100);
    for stream in [1, 3, 5, 7] {
        assert_eq!(frames.next(), Frame::Headers { stream });
        frames.reset(stream, Reason::REFUSED_STREAM);
    }
    let (head, body) = client.answer();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    let body = String::from_utf8(body).unwrap();
    assert!(body.contains("worker-declined") && body.contains(r#""forwarded":false"#), "{body}");
}

/// Sends uploads beside the one request that there is, and gives them up.
fn give_up_many(proxy: &Proxy, frames: &mut Frames) {
    for given_up in 1..=64 {
        let (mut client, stream) = (proxy.client(), 2 * given_up + 1);
        client.send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(frames.next(), Frame::Headers { stream });
        drop(client);
        assert_eq!(frames.next(), Frame::Reset { stream });
        proxy.wait_for_events(given_up as usize);
    }
}

#[test]
fn a_connection_with_many_resets_is_used_if_there_is_no_other() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(
        worker.address(),
        Settings { ready_timeout: Duration::from_secs(1), ..to_http2() },
    );
    let mut other = proxy.client();
    other.send(GET);
    let mut frames = Frames::with_streams(worker.next(), 100).at_stream_1();
    give_up_many(&proxy, &mut frames);
    let mut first = proxy.client();
    first.send(GET);
    let _silent = worker.next();
    assert!(first.answer().0.starts_with("HTTP/1.1 503 "));
    let mut next = proxy.client();
    next.send(GET);
    assert_eq!(frames.next(), Frame::Headers { stream: 131 });
    frames.answers(131, &mut next);
}

/// Many clients that reset a few requests each are a flood of resets to the worker, which ended the
/// connection with all that was under way there.
#[test]
fn a_connection_with_many_resets_gets_no_more_requests() {
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), to_http2());
    let mut other = proxy.client();
    other.send(GET);
    let mut frames = Frames::with_streams(worker.next(), 100).at_stream_1();
    give_up_many(&proxy, &mut frames);
    let mut next = proxy.client();
    next.send(GET);
    let mut fresh = Frames::with_streams(worker.next(), 100).at_stream_1();
    fresh.answers(1, &mut next);
    frames.answers(1, &mut other); // What was under way goes on.
}

/// One that the worker has not let in.
#[test]
fn an_upload_that_is_cut_takes_no_other_with_it() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::new());
    let proxy = Proxy::with(
        worker.address(),
        Settings { tenures: vec![("/upload", tenures.clone())], ..to_http2() },
    );
    let (mut upload, mut other) = (proxy.client(), proxy.client());
    upload.send(
        "POST /upload HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n",
    );
    let mut frames = Frames::with_shut_windows(worker.next()).at_stream_1();
    other.send(GET);
    assert_eq!(frames.next(), Frame::Headers { stream: 3 });
    tenures.end();
    assert_eq!(frames.next(), Frame::Reset { stream: 1 });
    assert_eq!(proxy.wait_for_events(1), [Event::Finished(Ending::BodyCut)]);
    assert!(upload.head().starts_with("HTTP/1.1 502 "));
    frames.peer().within(MOMENT);
    frames.answers(3, &mut other);
}

/// It was taken for one that the worker had reset itself, being done with it.
#[test]
fn an_upload_reset_after_its_response_leaves_an_orphan() {
    for by_its_client in [true, false] {
        let (worker, tenures) = (Worker::by_hand(), Tenures::new());
        let tenured = vec![("/upload", tenures.clone())];
        let proxy = Proxy::with(worker.address(), Settings { tenures: tenured, ..to_http2() });
        let mut upload = proxy.client();
        upload.send(
            "POST /upload HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        );
        let mut frames = Frames::with_wide_windows(worker.next()).at_stream_1();
        assert_eq!(frames.next(), Frame::Data { stream: 1, ends: false, bytes: b"x".to_vec() });
        frames.respond(1);
        assert!(upload.head().starts_with("HTTP/1.1 200 "));
        if by_its_client {
            drop(upload);
        } else {
            tenures.end();
        }
        assert_eq!(frames.next(), Frame::Reset { stream: 1 });
        // An orphan already, if that took a while.
        let told = proxy.wait_for_events(1);
        let told = if told == [Event::Overdue] { proxy.wait_for_events(2) } else { told };
        assert_eq!(told.last(), Some(&Event::Finished(Ending::BodyCut)), "{by_its_client}");
    }
}

/// hyper cannot reset the stream of a request whose answer has begun, so that its connection ended,
/// with all that others had on it: their holders' successors were kept out.
#[test]
fn an_upload_cut_within_its_response_takes_no_other_along() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::new());
    let timeouts = Timeouts { late: Duration::from_secs(4), ..Timeouts::default() };
    let tenured = vec![("/upload", tenures.clone())];
    let proxy =
        Proxy::with(worker.address(), Settings { tenures: tenured, timeouts, ..to_http2() });
    let (mut upload, mut other, mut third) = (proxy.client(), proxy.client(), proxy.client());
    upload.send(
        "POST /upload HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n",
    );
    let mut frames = Frames::with_shut_windows(worker.next()).at_stream_1();
    frames.begin_response(1);
    assert!(upload.head().starts_with("HTTP/1.1 200 "));
    other.send(GET);
    assert_eq!(frames.next(), Frame::Headers { stream: 3 });
    tenures.end();
    assert_eq!(proxy.wait_for_events(1), [Event::BodyCut]);
    frames.peer().within(2 * MOMENT);
    third.send(GET);
    let mut fresh = Frames::with_streams(worker.next(), 100).at_stream_1();
    fresh.answers(1, &mut third); // What is new goes elsewhere.
    frames.answers(3, &mut other); // It shares the connection.
    assert!(!frames.ends_before_end(1), "and the connection ends before the upload counts no more");
}

/// Only fencepost knows why its connection has ended: the worker goes on reading what it has, and
/// was not waited for.
#[test]
fn an_answered_upload_outlasts_its_lost_connection() {
    for whole_bytes_max in [64 * 1024, 0] {
        let (worker, tenures) = (Worker::by_hand(), Tenures::new());
        let tenured = vec![("/stuck", tenures.clone())];
        let proxy = Proxy::with(
            worker.address(),
            Settings { tenures: tenured, whole_bytes_max, ..to_http2() },
        );
        let (mut upload, mut stuck) = (proxy.client(), proxy.client());
        let framing = if whole_bytes_max == 0 {
            "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n"
        } else {
            "Content-Length: 5\r\n\r\nbegin"
        };
        upload.send(&format!("POST /upload HTTP/1.1\r\nHost: test\r\n{framing}"));
        let mut frames = Frames::with_shut_windows(worker.next()).at_stream_1();
        frames.open(1, 1);
        assert_eq!(frames.next(), Frame::Data { stream: 1, ends: false, bytes: b"b".to_vec() });
        frames.respond(1);
        assert!(upload.head().starts_with("HTTP/1.1 200 "));
        // It ends its connection with itself: it could become whole.
        stuck.send("POST /stuck HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!(frames.next(), Frame::Headers { stream: 3 });
        frames.begin_response(3);
        assert!(stuck.head().starts_with("HTTP/1.1 200 "));
        assert!(proxy.events().is_empty(), "the worker may still be reading");
        tenures.end();
        frames.peer().until_end();
        let events = proxy.wait_for_events(2);
        assert!(events.contains(&Event::Finished(Ending::BodyCut)), "{events:?}");
        assert!(!events.contains(&Event::Finished(Ending::Complete)), "{events:?}");
    }
}

/// All of its bytes are with the worker, which does not read; its end was handed over and has to
/// wait.
#[test]
fn an_upload_never_becomes_whole_once_it_is_over() {
    let check = |end: &str| {
        let worker = Worker::by_hand();
        let timeouts = Timeouts { total: Some(Duration::from_secs(5)), ..Timeouts::default() };
        let proxy = Proxy::with(worker.address(), Settings { timeouts, ..to_http2() });
        let (mut upload, mut other) = (proxy.client(), proxy.client());
        upload
            .send("POST / HTTP/1.1\r\nHost: test\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        let mut frames = Frames::with_wide_windows(worker.next()).at_stream_1();
        assert_eq!(frames.next(), Frame::Data { stream: 1, ends: false, bytes: b"ab".to_vec() });
        assert_eq!(frames.next(), Frame::Data { stream: 1, ends: false, bytes: b"c".to_vec() });
        frames.peer().within(10 * MOMENT); // The other's time is not over before that of the upload.
        other.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000000\r\n\r\n");
        write_until_blocked(&other, 256 * 1024 * 1024);
        upload.send(end);
        let head = upload.head();
        assert!(head.starts_with("HTTP/1.1 504 "), "{head}");
        assert!(
            proxy.wait_for_events(3).contains(&Event::Finished(Ending::TimedOut)),
            "{:?}",
            proxy.events()
        );
        assert!(!frames.ends_before_end(1));
    };
    // Side by side: each takes its whole time.
    thread::scope(|scope| {
        for end in ["0\r\n\r\n", "0\r\nX-Sum: 1\r\n\r\n"] {
            scope.spawn(move || check(end));
        }
    });
}

/// Its head, which the worker allowed no stream for any more, would go out whenever it does.
#[test]
fn an_upload_queued_in_h2_never_becomes_whole_after_its_tenure() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::new());
    let (tenures_of, idle_timeout) = (vec![("/wait", tenures.clone())], Duration::from_secs(1));
    let proxy =
        Proxy::with(worker.address(), Settings { tenures: tenures_of, idle_timeout, ..to_http2() });
    let (mut other, mut upload) = (proxy.client(), proxy.client());
    other.send(GET);
    let mut frames = Frames::with_streams(worker.next(), 2).at_stream_1();
    upload.send(
        "POST /wait HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n",
    );
    assert_eq!(proxy.wait_for_events(1), [Event::Waits]);
    frames.allow(1);
    frames.acknowledged();
    proxy.go_on();
    tenures.end();
    assert_eq!(
        proxy.wait_for_events(2),
        [Event::Waits, Event::BodyCut],
        "it counts until its connection is closed"
    );
    frames.answers(1, &mut other); // It shares the connection.
    assert!(!frames.ends_before_end(3), "the connection ends before the upload counts no more");
    assert!(proxy.wait_for_events(4).contains(&Event::Finished(Ending::BodyCut)));
}

fn pool(worker: SocketAddr) -> Pool {
    let (host, port) = (worker.ip().to_string(), worker.port());
    let mut upstream = Upstream::new(
        UpstreamAddress::Tcp(HostPort { host, port }),
        Speaks::Cleartext(Protocol::Http2),
    );
    upstream.connect_retries = 0;
    Pool::new(upstream, Background::default())
}

/// What so many that come at once are told for want of a connection, each in so much more time than
/// the one before.
async fn told(
    worker: SocketAddr,
    requests: u32,
    time: Duration,
    more: Duration,
) -> Vec<UpstreamError> {
    let (pool, now) = (pool(worker), Instant::now());
    let ready = |number| pool.ready(Wants::Either, now + time + number * more);
    let told = LocalSet::new().run_until(join_all((0..requests).map(ready))).await;
    told.into_iter().map(|ready| ready.err().expect("there is no connection")).collect()
}

#[tokio::test]
async fn all_waiters_for_an_absent_worker_share_one_attempt() {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let attempts = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&attempts);
    let closing = Worker::scripted(move |peer: Peer| {
        counted.fetch_add(1, Ordering::Relaxed);
        drop(peer);
    });
    for worker in [refusing, closing] {
        let errors = told(worker, 2_000, PATIENCE, Duration::ZERO).await;
        let is_told = |error: &_| {
            matches!(error, UpstreamError::Unreachable(_) | UpstreamError::Handshake(_))
        };
        assert!(errors.iter().all(is_told), "{:?}", errors.iter().find(|error| !is_told(error)));
    }
    assert!(attempts.load(Ordering::Relaxed) <= 2, "one, and one for who came during that");
}

#[tokio::test]
async fn each_waiter_for_a_silent_worker_times_out_by_itself() {
    let worker = Worker::by_hand();
    let errors = told(worker.address(), 500, MOMENT, Duration::from_millis(1)).await;
    assert!(errors.iter().all(|error| matches!(error, UpstreamError::Timeout)), "{errors:?}");
}

/// A permit that says how its request ended.
struct Told(oneshot::Sender<Ending>);

impl Permit for Told {
    fn finished(self, how: Ending, _: Instant) {
        self.0.send(how).unwrap();
    }
}

/// What was handed over in the moment in which the worker allows fewer streams waits within h2. It
/// goes out in time, or not at all; and only when that is certain is it over.
#[tokio::test]
async fn a_request_queued_in_h2_never_goes_out_after_its_end() {
    let work = async {
        let worker = Worker::by_hand();
        let pool = pool(worker.address());
        let ready = || pool.ready(Wants::Either, Instant::now() + PATIENCE);
        let fewer = spawn_blocking(move || {
            let mut frames = Frames::with_streams(worker.next(), 2);
            frames.acknowledged();
            frames
        });
        let (first, frames) = tokio::join!(ready(), fewer);
        let (first, beyond, mut frames) = (first.unwrap(), ready().await.unwrap(), frames.unwrap());
        let fewer = spawn_blocking(move || {
            frames.allow(1);
            frames.acknowledged();
            frames
        });
        let mut frames = fewer.await.unwrap();

        let send = |ready: ReadyConnection, silence| {
            let (permit, ended) = oneshot::channel();
            let request = Request::delete("/")
                .header("host", "test")
                .body(RequestBody::from_bytes("".into()))
                .unwrap();
            let timeouts = Timeouts { silence, late: PATIENCE, ..Timeouts::default() };
            let sent = ready.send(
                Admitted::new(Box::new(request), Told(permit)),
                timeouts,
                Instant::now(),
            );
            spawn_local(async { drop(sent.head().await) });
            ended
        };
        let at_the_worker = send(first, PATIENCE);
        assert_eq!(send(beyond, MOMENT).await, Ok(Ending::TimedOut));
        frames.respond(1);
        assert_eq!(spawn_blocking(move || frames.begun_until_end()).await.unwrap(), [1]);
        assert_eq!(at_the_worker.await, Ok(Ending::Reset), "it shared the connection");
    };
    LocalSet::new().run_until(work).await;
}
