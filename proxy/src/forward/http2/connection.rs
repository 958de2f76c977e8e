//! One HTTP/2 connection to a worker.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::left::Left;
use super::turns::{Executor, Turns};
use crate::forward::connect::Opened;
use crate::forward::error::UpstreamError;
use crate::forward::http1::HeadFuture;
use crate::forward::quota::QuotaPermit;
use crate::forward::request_body::RequestBody;
use crate::forward::unwritten::HandedOver;
use crate::wire::{HTTP1_BUFFER_BYTES, PatientTimer, Socket};

/// What a worker may send ahead on one stream. A connection has room for that on each of its streams: a few whose clients do not
/// read hold up no other.
const WINDOW_BYTES: u32 = 256 * 1024;
/// HTTP/2 knows no larger window.
const CONNECTION_WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// The head of an answer, with 32 bytes for each field.
const HEAD_BYTES_MAX: u32 = HTTP1_BUFFER_BYTES as u32;
/// How often a worker with requests is asked whether it is still there, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How many streams a worker allows that has not said anything yet: no worker says that.
const NOT_SAID: usize = usize::MAX - 1;
/// A connection on which so many requests were given up gets no more, if there may be another. Servers end connections with many resets, against floods of these, and with
/// them what is under way there: clients who reset their requests are many to us, and one to the worker.
const GIVEN_UP_MAX: u32 = 64;
/// A connection that has been blocked for so long gets no more requests.
const BLOCKED_MAX: Duration = Duration::from_millis(100);

/// What hands requests to h2. `None` once it has ended, as it does when the worker takes its leave: only when it is gone does hyper hand back
/// what still waited there.
type Driver = RefCell<Option<Connection<TokioIo<Socket>, RequestBody, Executor>>>;

/// An HTTP/2 connection to a worker.
pub(in crate::forward) struct Http2Connection {
    sender: SendRequest<RequestBody>,
    driver: Rc<Driver>,
    turns: Rc<Turns>,
    left: Rc<Left>,
    socket: Socket,
    flushes: Arc<AtomicU64>,
    /// Counts turns after which nothing was left to be written.
    clean_turns: Arc<AtomicU64>,
    changed: Box<dyn Fn()>,
    /// `None`: without TLS.
    made_with: Option<Arc<ClientConfig>>,
    streams: Cell<usize>,
    /// How many requests on it were given up before their end, and mostly reset.
    given_up: Cell<u32>,
    /// How many requests are to leave it, or it ends.
    leaving: Cell<usize>,
    /// Whether the worker has ever allowed a stream.
    has_allowed: Cell<bool>,
    /// When the last stream ended.
    idle_since: Cell<Instant>,
    /// Told when the last one ends.
    without_streams: Notify,
    _permit: QuotaPermit,
}

impl Http2Connection {
    /// Begins to speak HTTP/2. Done when the worker has said how many streams it allows: h2 takes more than that, keeps what is beyond
    /// and writes it later, though it may have been given up by then.
    ///
    /// `changed` is called when it may have room for more, and when it has ended.
    pub(in crate::forward) async fn begin(
        opened: Opened,
        permit: QuotaPermit,
        streams_max: usize,
        changed: impl Fn() + Clone + 'static,
    ) -> Result<Http2Connection, UpstreamError> {
        let Opened { socket, made_with, .. } = opened;
        let turns = Rc::<Turns>::default();
        let builder = builder(streams_max, Executor::new(Rc::clone(&turns)));
        let handshake = builder.handshake(TokioIo::new(socket.clone())).await;
        let (sender, driver) = handshake.map_err(UpstreamError::handshake)?;
        let connection = Http2Connection {
            sender,
            driver: Rc::new(RefCell::new(Some(driver))),
            turns,
            left: Rc::new(Left::new(socket.clone())),
            flushes: socket.count_flushes(),
            clean_turns: Arc::default(),
            socket,
            changed: Box::new(changed.clone()),
            made_with,
            streams: Cell::new(0),
            given_up: Cell::new(0),
            leaving: Cell::new(0),
            has_allowed: Cell::new(false),
            idle_since: Cell::new(Instant::now()),
            without_streams: Notify::new(),
            _permit: permit,
        };
        connection.turns.after_each(connection.look(changed.clone()));
        let (tell, failure) = oneshot::channel();
        let (driver, turns) = (Rc::clone(&connection.driver), Rc::clone(&connection.turns));
        tokio::task::spawn_local(drive(driver, turns, Rc::clone(&connection.left), tell, changed));
        tokio::select! {
            biased;
            () = connection.turns.until(|| connection.allowed().is_some_and(|allowed| allowed != NOT_SAID)) => {
                connection.note_allowed();
                Ok(connection)
            }
            failure = failure => Err(match failure {
                Ok(Some(error)) => UpstreamError::handshake(error),
                Ok(None) | Err(_) => UpstreamError::unreachable(io::ErrorKind::ConnectionAborted.into()),
            }),
        }
    }

    /// How many streams the worker allows now; `None`: it has taken its leave.
    pub(super) fn allowed(&self) -> Option<usize> {
        allowed(&self.driver)
    }

    /// What is looked at after each turn.
    fn look(&self, changed: impl Fn() + 'static) -> Box<dyn Fn()> {
        let (driver, socket) = (Rc::downgrade(&self.driver), self.socket.clone());
        let clean_turns = Arc::clone(&self.clean_turns);
        let (allowed_before, was_blocked) = (Cell::new(0), Cell::new(false));
        Box::new(move || {
            let is_blocked = socket.is_write_blocked();
            if !is_blocked {
                clean_turns.fetch_add(1, Ordering::Relaxed);
            }
            let now = driver.upgrade().and_then(|driver| allowed(&driver)).unwrap_or(0);
            let allows_more = now > allowed_before.replace(now);
            if allows_more || was_blocked.replace(is_blocked) && !is_blocked {
                changed();
            }
        })
    }

    /// Whether the worker has ever allowed a stream, as far as that was asked.
    pub(super) fn has_ever_allowed_any(&self) -> bool {
        self.note_allowed();
        self.has_allowed.get()
    }

    fn note_allowed(&self) {
        self.has_allowed.set(self.has_allowed.get() || self.allowed().is_some_and(|allowed| allowed > 0));
    }

    /// Whether it has room for a stream, `streams_max` being ours.
    pub(super) fn has_room(&self, streams_max: usize) -> bool {
        let room = self.allowed().unwrap_or(0).min(streams_max);
        self.streams.get() < room && self.leaving.get() == 0 && !self.is_stuck()
    }

    /// Whether so many requests on it were given up that another is better.
    pub(super) fn is_worn(&self) -> bool {
        self.given_up.get() >= GIVEN_UP_MAX
    }

    /// Whether the worker has not been reading for a while: what is begun now would wait.
    fn is_stuck(&self) -> bool {
        self.socket.write_blocked_since().is_some_and(|since| since.elapsed() >= BLOCKED_MAX)
    }

    pub(super) fn is_alive(&self, idle_timeout: Duration) -> bool {
        // Between requests the worker may have closed without the runtime having heard of it.
        self.is_kept() && (self.streams.get() > 0 || self.idle_for() < idle_timeout && self.socket.is_open())
    }

    /// For how long it has had no stream.
    pub(super) fn idle_for(&self) -> Duration {
        if self.streams.get() > 0 { Duration::ZERO } else { self.idle_since.get().elapsed() }
    }

    pub(super) fn is_usable(&self) -> bool {
        self.is_kept() && self.socket.is_open()
    }

    /// Whether neither side has ended it, as far as that was heard.
    fn is_kept(&self) -> bool {
        !self.sender.is_closed() && !self.socket.is_broken()
    }

    pub(super) fn made_with(&self) -> Option<&Arc<ClientConfig>> {
        self.made_with.as_ref()
    }

    pub(in crate::forward) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// How often all that was put down to be written has been with the kernel.
    pub(in crate::forward) fn flushes(&self) -> &Arc<AtomicU64> {
        &self.flushes
    }

    /// How many turns there were after which nothing was left to be written.
    pub(in crate::forward) fn clean_turns(&self) -> &Arc<AtomicU64> {
        &self.clean_turns
    }

    /// Keeps it from getting more requests as long as what this returns lives.
    pub(in crate::forward) fn take_no_more(&self) -> impl Drop + '_ {
        self.leaving.set(self.leaving.get() + 1);
        Leaving(self)
    }

    /// Has the task woken soon if something is left by then of what was handed over. False if nobody would look.
    pub(in crate::forward) fn wake_if_left(&self, handed_over: &Arc<HandedOver>, cx: &Context<'_>) -> bool {
        self.left.ask(handed_over, cx)
    }

    pub(in crate::forward) fn turns(&self) -> &Rc<Turns> {
        &self.turns
    }

    pub(super) fn begin_stream(&self) {
        self.streams.set(self.streams.get() + 1);
    }

    /// One has come to its end, or was given up before.
    pub(super) fn end_stream(&self, is_given_up: bool) {
        self.streams.set(self.streams.get() - 1);
        self.given_up.set(self.given_up.get() + u32::from(is_given_up));
        if self.streams.get() == 0 {
            self.idle_since.set(Instant::now());
            self.without_streams.notify_waiters();
        }
    }

    /// Completes when it has no streams.
    pub(in crate::forward) async fn without_streams(&self) {
        let none_left = self.without_streams.notified();
        if self.streams.get() > 0 {
            none_left.await;
        }
    }

    /// Hands a request to hyper, which opens the stream when its connection is polled next.
    pub(in crate::forward) fn send(&self, request: Request<RequestBody>) -> HeadFuture {
        Box::pin(self.sender.clone().try_send_request(request))
    }
}

impl Drop for Http2Connection {
    /// hyper ends it by a GOAWAY now, as nobody has a stream of it. Where all requests have come to their ends, that arrives.
    fn drop(&mut self) {
        if self.given_up.get() == 0 && !self.socket.is_broken() {
            self.socket.deliver_when_closed();
        }
    }
}

/// A request that is to leave its connection.
struct Leaving<'a>(&'a Http2Connection);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leaving.set(self.0.leaving.get() - 1);
        (self.0.changed)();
    }
}

fn allowed(driver: &Driver) -> Option<usize> {
    driver.borrow().as_ref().map(Connection::current_max_send_streams)
}

/// Hands requests to h2 until the worker takes its leave or the connection ends.
async fn drive(
    driver: Rc<Driver>,
    turns: Rc<Turns>,
    left: Rc<Left>,
    tell: oneshot::Sender<Option<hyper::Error>>,
    changed: impl Fn(),
) {
    let ended = poll_fn(|cx| {
        // That the worker has taken its leave is found out by asking, which hyper does not do before there is another request.
        turns.wake_after_next(cx);
        let polled = driver.borrow_mut().as_mut().map_or(Poll::Ready(Ok(())), |driver| Pin::new(driver).poll(cx));
        left.look(cx);
        polled
    });
    let failure = ended.await.err();
    driver.take();
    left.end();
    let _ = tell.send(failure); // Once there are requests, each learns of an error itself.
    changed();
}

fn builder(streams_max: usize, executor: Executor) -> Builder<Executor> {
    let streams_max = u32::try_from(streams_max).unwrap_or(u32::MAX);
    let connection_window = streams_max.saturating_mul(WINDOW_BYTES).min(CONNECTION_WINDOW_BYTES_MAX);
    let mut builder = Builder::new(executor);
    builder
        .timer(PatientTimer)
        .initial_max_send_streams(NOT_SAID)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(connection_window)
        // As much as over HTTP/1.1: a request whose answer cannot be read counts as one that may still run.
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}
