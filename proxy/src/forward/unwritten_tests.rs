use std::task::Wake;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection};
use http::{Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::*;
use crate::downstream::Protocol;
use crate::forward::connect::Opened;
use crate::forward::http1::HeadFuture;
use crate::forward::quota::ConnectionQuota;
use crate::wire::Socket;

type Peer = Connection<UnixStream, Bytes>;

const PATIENCE: Duration = Duration::from_secs(20);

async fn connected(worker: &Builder) -> (Rc<Http2Connection>, Peer) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (connection, worker) = tokio::join!(begin(ours, || ()), worker.handshake::<_, Bytes>(theirs));
    (Rc::new(connection), worker.unwrap())
}

async fn begin(ours: UnixStream, changed: impl Fn() + Clone + 'static) -> Http2Connection {
    let permit = ConnectionQuota::unlimited().take(0).unwrap();
    let opened = Opened { socket: Socket::upstream(ours.into()), protocol: Protocol::Http2, made_with: None };
    timeout(PATIENCE, Http2Connection::begin(opened, permit, 100, changed)).await.unwrap().unwrap()
}

fn send(connection: &Rc<Http2Connection>, method: Method, body: RequestBody) -> (HeadFuture, Unwritten) {
    let uri = "http://shard.example/";
    let mut request = Request::builder().method(method).uri(uri).body(body).unwrap();
    let unwritten = Unwritten::count(&mut request, connection);
    (connection.send(request), unwritten)
}

/// Lets all tasks that are ready have their turn, and those that they wake: hyper gives h2 what it was given.
async fn turn() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

/// The methods of the requests that reach the worker before the connection ends.
async fn methods(mut worker: Peer) -> Vec<Method> {
    let mut methods = Vec::new();
    let mut exchanges = Vec::new(); // Else the worker would reset them.
    while let Some(Ok((request, answer))) = worker.accept().await {
        methods.push(request.method().clone());
        exchanges.push((request, answer));
    }
    methods
}

#[tokio::test]
async fn a_head_is_written_when_the_kernel_has_it() {
    let work = async {
        let (connection, worker) = connected(&Builder::new()).await;
        let worker = tokio::task::spawn_local(methods(worker));
        let (head, unwritten) = send(&connection, Method::DELETE, RequestBody::Empty);
        assert!(!unwritten.is_nothing());
        timeout(PATIENCE, unwritten.nothing()).await.unwrap();
        unwritten.leave().await;
        assert!(!connection.socket().is_broken());
        drop((head, unwritten, connection));
        assert_eq!(timeout(PATIENCE, worker).await.unwrap().unwrap(), [Method::DELETE]);
    };
    LocalSet::new().run_until(work).await;
}

/// A worker may allow fewer streams in the moment in which a request is handed over.
#[tokio::test]
async fn a_request_that_waits_for_a_stream_never_goes_out_once_it_is_given_up() {
    let work = async {
        let (connection, worker) = connected(Builder::new().max_concurrent_streams(1)).await;
        let worker = tokio::task::spawn_local(methods(worker));
        let (_first, written) = send(&connection, Method::GET, RequestBody::Empty);
        timeout(PATIENCE, written.nothing()).await.unwrap();
        let (beyond, unwritten) = send(&connection, Method::DELETE, RequestBody::Empty);
        turn().await;
        drop(beyond);
        unwritten.leave().await;
        assert_eq!(timeout(PATIENCE, worker).await.unwrap().unwrap(), [Method::GET]);
    };
    LocalSet::new().run_until(work).await;
}

#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Calls>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Most requests are written at once, and their tasks are not to be woken for nothing.
#[tokio::test]
async fn whoever_asks_is_woken_if_something_is_left_when_it_has_had_its_turn_and_else_is_not() {
    let work = async {
        let (connection, worker) = connected(Builder::new().max_concurrent_streams(1)).await;
        let worker = tokio::task::spawn_local(methods(worker));
        let calls = Arc::<Calls>::default();
        let waker = Arc::clone(&calls).into();
        let cx = Context::from_waker(&waker);
        let sent = [Method::GET, Method::PUT, Method::DELETE].map(|method| {
            let sent = send(&connection, method, RequestBody::Empty);
            assert!(!sent.1.is_left(&cx), "that is not known yet");
            sent
        });
        let (written, left) = sent.split_first().unwrap();
        timeout(PATIENCE, written.1.nothing()).await.unwrap();
        turn().await;
        assert_eq!(calls.0.load(Ordering::Relaxed), 2);
        assert!(!written.1.is_left(&cx) && left.iter().all(|(_, left)| left.is_left(&cx)));
        worker.abort();
    };
    LocalSet::new().run_until(work).await;
}

/// A worker whose windows have room for 16 MiB and who does not read, and its connection, of which `changed` is told.
async fn blocked(changed: impl Fn() + Clone + 'static) -> (Rc<Http2Connection>, UnixStream, HeadFuture) {
    let (ours, mut worker) = UnixStream::pair().unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE, and WINDOW_UPDATE for the connection.
    worker.write_all(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0]).await.unwrap();
    worker.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0]).await.unwrap();
    let connection = Rc::new(begin(ours, changed).await);
    let body = RequestBody::from_bytes(Bytes::from(vec![b'x'; 8 << 20]));
    let (upload, _behind) = send(&connection, Method::PUT, body);
    let blocked = connection.turns().until(|| connection.socket().is_write_blocked());
    timeout(PATIENCE, blocked).await.unwrap();
    (connection, worker, upload)
}

#[tokio::test]
async fn what_a_worker_does_not_read_never_goes_out_once_it_is_given_up() {
    let work = async {
        let (connection, mut worker, _upload) = blocked(|| ()).await;
        let put_down = Unwritten::new(&connection);
        drop(put_down.handed_over.count(Bytes::from_static(b"x")));
        assert!(!put_down.is_nothing());

        let (given_up, unwritten) = send(&connection, Method::DELETE, RequestBody::Empty);
        turn().await;
        drop(given_up);
        unwritten.leave().await;
        let mut bytes = Vec::new();
        timeout(PATIENCE, worker.read_to_end(&mut bytes)).await.unwrap().unwrap();
        assert_eq!(streams_with_a_head(&bytes[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()..]), [1]);
    };
    LocalSet::new().run_until(work).await;
}

/// Else a request whose data is with the worker could become whole when it is over.
#[tokio::test]
async fn an_end_is_written_once_nothing_is_left_to_be_after_a_turn() {
    let work = async {
        let (connection, mut worker, _upload) = blocked(|| ()).await;
        let bare = Unwritten::new(&connection);
        assert!(!Unwritten::new(&connection).is_nothing() && bare.connection.socket().is_write_blocked());
        bare.handed_over.ends();
        connection.flushes().fetch_add(1, Ordering::Relaxed);
        assert!(!bare.is_nothing(), "a flush in the middle of a turn proves nothing");
        let read = tokio::task::spawn_local(async move { tokio::io::copy(&mut worker, &mut tokio::io::sink()).await });
        timeout(PATIENCE, bare.nothing()).await.unwrap();
        bare.handed_over.ends();
        assert!(!connection.socket().is_write_blocked() && !bare.is_nothing(), "its turn is yet to come");
        connection.socket().reset();
        assert!(bare.is_nothing(), "nor will it");
        read.abort();
    };
    LocalSet::new().run_until(work).await;
}

/// The worker's window held it back, with what comes before it.
#[tokio::test]
async fn an_end_is_not_written_before_what_comes_before_it() {
    let work = async {
        let (connection, _worker) = connected(&Builder::new()).await;
        let unwritten = Unwritten::new(&connection);
        let piece = unwritten.handed_over.count(Bytes::from_static(b"x"));
        unwritten.handed_over.ends();
        let clean = || connection.clean_turns().fetch_add(1, Ordering::Relaxed);
        clean();
        drop(piece);
        connection.flushes().fetch_add(1, Ordering::Relaxed);
        assert!(!unwritten.is_nothing());
        clean();
        assert!(unwritten.is_nothing());
    };
    LocalSet::new().run_until(work).await;
}

#[tokio::test]
async fn trailers_are_counted_until_they_are_put_down() {
    let work = async {
        let (connection, _worker) = connected(&Builder::new()).await;
        let unwritten = Unwritten::new(&connection);
        let mut trailers = HeaderMap::from_iter([(VIA, HeaderValue::from_static("1.1 other"))]);
        unwritten.handed_over.count_trailers(&mut trailers);
        assert!(!unwritten.is_nothing());
        assert_eq!(trailers[VIA], "1.1 other");
        drop(trailers);
        timeout(PATIENCE, unwritten.nothing()).await.unwrap();
    };
    LocalSet::new().run_until(work).await;
}

#[tokio::test]
async fn whoever_waits_for_room_is_told_when_a_worker_reads_again() {
    let work = async {
        let told = Rc::new(Notify::new());
        let tell = Rc::clone(&told);
        let (connection, mut worker, _upload) = blocked(move || tell.notify_waiters()).await;
        let room = told.notified();
        let read = tokio::task::spawn_local(async move { tokio::io::copy(&mut worker, &mut tokio::io::sink()).await });
        timeout(PATIENCE / 2, room).await.unwrap(); // Before the worker is taken for dead.
        assert!(!connection.socket().is_write_blocked());
        read.abort();
    };
    LocalSet::new().run_until(work).await;
}

/// It takes leave of requests under way; no other is needed to find that out, whose attempt it would cost.
#[tokio::test]
async fn whoever_waits_for_room_is_told_when_a_worker_takes_leave() {
    let work = async {
        let (ours, mut worker) = UnixStream::pair().unwrap();
        worker.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap(); // SETTINGS
        let told = Rc::new(Notify::new());
        let tell = Rc::clone(&told);
        let connection = Rc::new(begin(ours, move || tell.notify_waiters()).await);
        let (_head, written) = send(&connection, Method::GET, RequestBody::Empty);
        timeout(PATIENCE, written.nothing()).await.unwrap();
        let leave = told.notified();
        worker.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]).await.unwrap(); // GOAWAY
        timeout(PATIENCE / 2, leave).await.unwrap();
    };
    LocalSet::new().run_until(work).await;
}

fn streams_with_a_head(mut bytes: &[u8]) -> Vec<u8> {
    let mut streams = Vec::new();
    while let Some(([a, b, c, kind, _, .., stream], rest)) = bytes.split_first_chunk::<9>() {
        streams.extend((*kind == 1).then_some(*stream));
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        bytes = rest.get(length..).unwrap_or_default();
    }
    streams
}

#[tokio::test]
async fn what_was_put_down_is_written_with_the_next_flush() {
    let work = async {
        let (connection, _worker) = connected(&Builder::new()).await;
        let handed_over = HandedOver::new(&connection);
        assert!(!handed_over.are_flushed());
        connection.flushes().fetch_add(1, Ordering::Relaxed);
        assert!(handed_over.are_flushed());
    };
    LocalSet::new().run_until(work).await;
}
