//! One HTTP/2 connection to a worker, with many requests at a time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use http::uri::Scheme;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use scopeguard::guard;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::connect::Opened;
use super::error::UpstreamError;
use super::handed_over::{HeadFuture, Outgoing};
use super::quota::QuotaPermit;
use super::turns::Turns;
use crate::wire::{HTTP1_BUFFER_BYTES, PatientTimer, Socket};

/// What a worker may send ahead on one stream. A connection has room for that on each of its
/// streams: a few whose clients do not read hold up no other.
const WINDOW_BYTES: u32 = 256 * 1024;
/// HTTP/2 knows no larger window.
const CONNECTION_WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// The head of an answer, with 32 bytes for each field.
const HEAD_BYTES_MAX: u32 = HTTP1_BUFFER_BYTES as u32;
/// How often a worker with requests is asked whether it is still there, and how long it may take to
/// say so.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// A connection on which so many requests were given up gets no more, if there may be another.
/// Servers end connections with many resets, and with them what is under way there: clients who
/// reset their requests are many to us, and one to the worker.
const GIVEN_UP_MAX: u32 = 64;
/// A connection that has been blocked for so long gets no more requests, and so does one with a
/// response that its client has not read for so long, if there may be another.
pub(super) const BLOCKED_MAX: Duration = Duration::from_millis(100);

/// `None` once it has ended, as it does when the worker takes its leave: only when it is gone does
/// hyper hand back what still waited there.
type Driver = RefCell<Option<Connection<TokioIo<Socket>, Outgoing, Executor>>>;

/// An HTTP/2 connection to a worker.
pub(super) struct Http2 {
    sender: SendRequest<Outgoing>,
    driver: Rc<Driver>,
    turns: Rc<Turns>,
    socket: Socket,
    changed: Rc<Notify>,
    /// Whether the worker has ever allowed a stream: one that allows none on one connection allows
    /// none on the next.
    has_allowed_any: Cell<bool>,
    /// `None`: without TLS.
    made_with: Option<Arc<ClientConfig>>,
    /// When it was opened.
    pub(super) opened: Instant,
    streams: Cell<usize>,
    /// How many requests on it were given up before their end.
    given_up: Cell<u32>,
    /// How many responses on it have waited for their clients: the worker keeps what it cannot send,
    /// and some (Node) then refuse new streams of the connection.
    held_up: Cell<usize>,
    /// How many requests are to leave it, or it ends.
    leaving: Cell<usize>,
    /// When the last stream ended.
    idle_since: Cell<Instant>,
    _permit: Rc<QuotaPermit>,
}

/// The right to one stream of a connection.
pub(super) struct Stream {
    connection: Rc<Http2>,
    /// Whether a request went out on it and has not come to its end.
    is_under_way: bool,
    /// Whether its response has waited for its client.
    is_held_up: bool,
    /// Whether the connection gets no more requests as long as this one is there.
    is_leaving: bool,
}

impl Http2 {
    /// Begins to speak HTTP/2. Done when the worker has said how many streams it allows: h2 would
    /// take more, and write them later.
    pub(super) async fn begin(
        opened: Opened,
        permit: Rc<QuotaPermit>,
        streams_max: usize,
        changed: Rc<Notify>,
    ) -> Result<Rc<Http2>, UpstreamError> {
        let Opened { socket, made_with, .. } = opened;
        let turns = Rc::<Turns>::default();
        let driver = Rc::<Driver>::default();
        let executor = Executor {
            turns: Rc::clone(&turns),
            socket: socket.clone(),
            changed: Rc::clone(&changed),
            has_begun: Rc::default(),
        };
        let handshake =
            builder(streams_max, executor).handshake(TokioIo::new(socket.clone())).await;
        let (sender, hyper) = handshake.map_err(UpstreamError::handshake)?;
        *driver.borrow_mut() = Some(hyper);
        let connection = Rc::new(Http2 {
            sender,
            driver,
            turns,
            socket,
            changed,
            has_allowed_any: Cell::new(false),
            made_with,
            opened: Instant::now(),
            streams: Cell::new(0),
            given_up: Cell::new(0),
            held_up: Cell::new(0),
            leaving: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            _permit: permit,
        });
        let (tell, mut failure) = oneshot::channel();
        tokio::task::spawn_local(drive(
            Rc::clone(&connection.driver),
            Rc::clone(&connection.turns),
            tell,
        ));
        let has_spoken = || connection.socket.bytes_read() > 0;
        tokio::select! {
            biased;
            failure = &mut failure => Err(match failure {
                Ok(Some(error)) if has_spoken() || connection.socket.tls_failure().is_some() => {
                    UpstreamError::handshake(error)
                }
                _ => UpstreamError::unreachable(io::ErrorKind::ConnectionAborted.into()),
            }),
            () = connection.turns.until(has_spoken) => Ok(Rc::clone(&connection)),
        }
    }

    /// How many streams the worker allows now.
    fn allowed(&self) -> usize {
        let driver = self.driver.borrow();
        let allowed = driver.as_ref().map_or(0, Connection::current_max_send_streams);
        self.has_allowed_any.set(self.has_allowed_any.get() || allowed > 0);
        allowed
    }

    /// Whether another connection may allow more streams than this one.
    pub(super) fn has_allowed_any(&self) -> bool {
        self.allowed() > 0 || self.has_allowed_any.get()
    }

    /// A stream, if there is room for one, `streams_max` being ours.
    pub(super) fn stream(self: &Rc<Self>, streams_max: usize) -> Option<Stream> {
        let has_room =
            self.streams.get() < self.allowed().min(streams_max) && self.leaving.get() == 0;
        if !has_room || self.is_stuck() {
            return None;
        }
        self.streams.set(self.streams.get() + 1);
        Some(Stream {
            connection: Rc::clone(self),
            is_under_way: false,
            is_held_up: false,
            is_leaving: false,
        })
    }

    /// Whether another is better: many requests on it were given up, the worker has complained, or
    /// a client reads too slowly.
    pub(super) fn is_worn(&self) -> bool {
        self.given_up.get() >= GIVEN_UP_MAX || self.held_up.get() > 0
    }

    /// Whether the worker has not been reading for a while: what is begun now would wait.
    fn is_stuck(&self) -> bool {
        self.socket.write_blocked_since().is_some_and(|since| since.elapsed() >= BLOCKED_MAX)
    }

    /// Whether it goes on: nobody has ended it, and it has requests or has not been idle for so
    /// long.
    pub(super) fn is_kept(&self, idle_max: Duration) -> bool {
        self.is_alive()
            && (self.streams.get() > 0
                || self.idle_since.get().elapsed() < idle_max && self.socket.is_open())
    }

    fn is_alive(&self) -> bool {
        !self.sender.is_closed() && !self.socket.is_broken() && !self.turns.have_ended()
    }

    /// How its TLS was made.
    pub(super) fn made_with(&self) -> Option<&Arc<ClientConfig>> {
        self.made_with.as_ref()
    }
}

impl Drop for Http2 {
    /// hyper ends it by a GOAWAY now, as nobody has a stream of it. Where all requests have come to
    /// their ends, that arrives.
    fn drop(&mut self) {
        if self.given_up.get() == 0 && !self.socket.is_broken() {
            self.socket.deliver_when_closed();
        }
    }
}

impl Stream {
    /// Hands a request to hyper, which opens the stream in the next turn.
    pub(super) fn send(&mut self, request: Request<Outgoing>) -> HeadFuture {
        self.is_under_way = true;
        Box::pin(self.connection.sender.clone().try_send_request(request))
    }

    /// What its URLs begin with.
    pub(super) fn scheme(&self) -> Scheme {
        if self.connection.made_with.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.connection.socket
    }

    pub(super) fn turns(&self) -> &Rc<Turns> {
        &self.connection.turns
    }

    /// Whether the worker has not closed its connection.
    pub(super) fn is_usable(&self) -> bool {
        self.connection.is_alive() && self.connection.socket.is_open()
    }

    /// Whether all requests on its connection are to leave it.
    pub(super) fn is_left_by_all(&self) -> bool {
        self.connection.streams.get() == self.connection.leaving.get()
    }

    /// Its connection gets no more requests as long as this one is there.
    pub(super) fn leaves(&mut self) {
        if !std::mem::replace(&mut self.is_leaving, true) {
            self.connection.leaving.set(self.connection.leaving.get() + 1);
            self.connection.turns.end_one(false); // Others may wait for that.
        }
    }

    /// Its client lets its response wait.
    pub(super) fn is_held_up(&mut self) {
        if !std::mem::replace(&mut self.is_held_up, true) {
            self.connection.held_up.set(self.connection.held_up.get() + 1);
        }
    }

    /// The worker has complained of the connection.
    pub(super) fn wears_out(&self) {
        self.connection.given_up.set(GIVEN_UP_MAX);
    }

    /// Request and response have come to their ends.
    pub(super) fn ends(mut self) {
        self.is_under_way = false;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let connection = &*self.connection;
        connection.leaving.set(connection.leaving.get() - usize::from(self.is_leaving));
        connection.held_up.set(connection.held_up.get() - usize::from(self.is_held_up));
        connection.given_up.set(connection.given_up.get() + u32::from(self.is_under_way));
        connection.streams.set(connection.streams.get() - 1);
        if connection.streams.get() == 0 {
            connection.idle_since.set(Instant::now());
        }
        connection.turns.end_one(false); // Others may wait for that.
        if self.is_under_way && std::thread::panicking() {
            connection.socket.reset(); // Nobody looks any more whether its request leaves.
        }
        connection.changed.notify_waiters();
    }
}

/// Hands requests to h2 until the worker takes its leave or the connection ends.
async fn drive(driver: Rc<Driver>, turns: Rc<Turns>, tell: oneshot::Sender<Option<hyper::Error>>) {
    let _ends = guard((), |()| {
        drop(driver.take());
        turns.end_one(false);
    });
    let ended = poll_fn(|cx| {
        // That the worker has taken its leave is found out by asking, which hyper does not do
        // before there is another request.
        turns.wake_after_next(cx);
        driver.borrow_mut().as_mut().map_or(Poll::Ready(Ok(())), |driver| Pin::new(driver).poll(cx))
    });
    let failure = ended.await.err();
    let _ = tell.send(failure); // Once there are requests, each learns of an error itself.
}

fn builder(streams_max: usize, executor: Executor) -> Builder<Executor> {
    let streams_max = u32::try_from(streams_max).unwrap_or(u32::MAX);
    let connection_window =
        streams_max.saturating_mul(WINDOW_BYTES).min(CONNECTION_WINDOW_BYTES_MAX);
    let mut builder = Builder::new(executor);
    builder
        .timer(PatientTimer)
        .initial_max_send_streams(0)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(connection_window)
        // As much as over HTTP/1.1: a request whose answer cannot be read counts as one that may
        // still run.
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}

/// Spawns what hyper does for one connection, and counts its turns.
#[derive(Clone)]
struct Executor {
    turns: Rc<Turns>,
    socket: Socket,
    /// Notified when there may be room for a stream, and when the connection has ended.
    changed: Rc<Notify>,
    has_begun: Rc<Cell<bool>>,
}

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        // The first is the connection itself; those that follow belong to single requests.
        if self.has_begun.replace(true) {
            tokio::task::spawn_local(future);
            return;
        }
        let Executor { turns, socket, changed, .. } = self.clone();
        tokio::task::spawn_local(async move {
            let _ends = guard((), |()| {
                turns.end();
                changed.notify_waiters();
            });
            let mut connection = Box::pin(future);
            poll_fn(|cx| {
                let polled = connection.as_mut().poll(cx);
                turns.end_one(!socket.is_write_blocked());
                changed.notify_waiters();
                polled
            })
            .await;
        });
    }
}

/// Whether hyper says that the worker has not looked at a request: it refused the stream, or left
/// it out of those that it was going to finish when it closed.
pub(super) fn was_refused(error: &hyper::Error) -> bool {
    let Some(error) = of_h2(error) else { return false };
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let beyond_last = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (refused || beyond_last)
}

/// Whether the worker says that there is too much going on on its connection.
pub(super) fn complains(error: &hyper::Error) -> bool {
    of_h2(error).is_some_and(|error| error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM))
}

/// Whether the worker's response breaks a rule of HTTP/2, or its head is too long.
pub(super) fn is_unreadable(error: &hyper::Error) -> bool {
    of_h2(error).is_some_and(|error| {
        error.is_reset() && error.is_library() && error.reason() == Some(h2::Reason::PROTOCOL_ERROR)
    })
}

fn of_h2(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error)?.downcast_ref()
}
