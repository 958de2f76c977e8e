//! One HTTP/2 connection to a worker.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http::Request;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::turns::{Executor, Turns};
use crate::forward::connect::Opened;
use crate::forward::error::UpstreamError;
use crate::forward::http1::HeadFuture;
use crate::forward::request_body::RequestBody;
use crate::wire::Socket;

/// What a worker may send ahead on one stream. A connection has room for that on each of its streams: a few whose clients do not
/// read hold up no other.
const WINDOW_BYTES: u32 = 256 * 1024;
/// HTTP/2 knows no larger window.
const CONNECTION_WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// How often a worker with requests is asked whether it is still there, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How many streams a worker allows that has not said anything yet: no worker says that.
const NOT_SAID: usize = usize::MAX - 1;
/// A connection that has been blocked for so long gets no more requests.
const BLOCKED_MAX: Duration = Duration::from_millis(100);

type Driver = Connection<TokioIo<Socket>, RequestBody, Executor>;

/// An HTTP/2 connection to a worker.
pub(in crate::forward) struct Http2Connection {
    sender: SendRequest<RequestBody>,
    driver: Rc<RefCell<Driver>>,
    turns: Rc<Turns>,
    socket: Socket,
    flushes: Arc<AtomicU64>,
    /// `None`: without TLS.
    made_with: Option<Arc<ClientConfig>>,
    streams: Cell<usize>,
    /// Whether the worker has ever allowed a stream.
    has_allowed: Cell<bool>,
    /// When the last stream ended.
    idle_since: Cell<Instant>,
}

impl Http2Connection {
    /// Begins to speak HTTP/2. Done when the worker has said how many streams it allows: h2 takes more than that, keeps what is beyond
    /// and writes it later, though it may have been given up by then.
    ///
    /// `changed` is called when it allows more, and when it has ended.
    pub(in crate::forward) async fn begin(
        opened: Opened,
        streams_max: usize,
        changed: impl Fn() + Clone + 'static,
    ) -> Result<Http2Connection, UpstreamError> {
        let Opened { socket, made_with, .. } = opened;
        let flushes = socket.count_flushes();
        let turns = Rc::<Turns>::default();
        let builder = builder(streams_max, Executor::new(Rc::clone(&turns)));
        let handshake = builder.handshake(TokioIo::new(socket.clone())).await;
        let (sender, driver) = handshake.map_err(UpstreamError::Handshake)?;
        let driver = Rc::new(RefCell::new(driver));
        turns.after_each(when_more_is_allowed(Rc::downgrade(&driver), changed.clone()));
        let (tell, failure) = oneshot::channel();
        let driven = Rc::clone(&driver);
        tokio::task::spawn_local(async move {
            let ended = poll_fn(|cx| Pin::new(&mut *driven.borrow_mut()).poll(cx)).await;
            let _ = tell.send(ended.err()); // Once there are requests, each learns of an error itself.
            drop(driven);
            changed();
        });
        let idle_since = Cell::new(Instant::now());
        let (streams, has_allowed) = (Cell::new(0), Cell::new(false));
        let connection =
            Http2Connection { sender, driver, turns, socket, flushes, made_with, streams, has_allowed, idle_since };
        tokio::select! {
            biased;
            () = connection.turns.until(|| connection.allowed() != NOT_SAID) => {
                connection.has_ever_allowed_any();
                Ok(connection)
            }
            failure = failure => Err(match failure {
                Ok(Some(error)) => UpstreamError::Handshake(error),
                Ok(None) | Err(_) => UpstreamError::Unreachable(io::ErrorKind::ConnectionAborted.into()),
            }),
        }
    }

    /// How many streams the worker allows now.
    pub(super) fn allowed(&self) -> usize {
        self.driver.borrow().current_max_send_streams()
    }

    /// Whether the worker has ever allowed a stream, as far as that was asked.
    pub(super) fn has_ever_allowed_any(&self) -> bool {
        self.has_allowed.set(self.has_allowed.get() || self.allowed() > 0);
        self.has_allowed.get()
    }

    /// Whether it has room for a stream, `streams_max` being ours.
    pub(super) fn has_room(&self, streams_max: usize) -> bool {
        self.streams.get() < streams_max && self.streams.get() < self.allowed() && !self.is_stuck()
    }

    /// Whether the worker has not been reading for a while: what is begun now would wait.
    fn is_stuck(&self) -> bool {
        self.socket.write_blocked_since().is_some_and(|since| since.elapsed() >= BLOCKED_MAX)
    }

    pub(super) fn is_alive(&self, idle_timeout: Duration) -> bool {
        // Between requests the worker may have closed without the runtime having heard of it.
        !self.sender.is_closed() && (self.streams.get() > 0 || self.idle_for() < idle_timeout && self.socket.is_open())
    }

    /// For how long it has had no stream.
    pub(super) fn idle_for(&self) -> Duration {
        if self.streams.get() > 0 { Duration::ZERO } else { self.idle_since.get().elapsed() }
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.socket.is_open()
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

    pub(in crate::forward) fn turns(&self) -> &Rc<Turns> {
        &self.turns
    }

    pub(super) fn begin_stream(&self) {
        self.streams.set(self.streams.get() + 1);
    }

    pub(super) fn end_stream(&self) {
        self.streams.set(self.streams.get() - 1);
        if self.streams.get() == 0 {
            self.idle_since.set(Instant::now());
        }
    }

    /// Hands a request to hyper, which opens the stream when its connection is polled next.
    pub(in crate::forward) fn send(&self, request: Request<RequestBody>) -> HeadFuture {
        Box::pin(self.sender.clone().try_send_request(request))
    }
}

/// Calls `changed` when the worker allows more streams than it did.
fn when_more_is_allowed(driver: Weak<RefCell<Driver>>, changed: impl Fn()) -> impl Fn() {
    let allowed = Cell::new(0);
    move || {
        let Some(driver) = driver.upgrade() else { return };
        let now = driver.borrow().current_max_send_streams();
        if now > allowed.replace(now) {
            changed();
        }
    }
}

fn builder(streams_max: usize, executor: Executor) -> Builder<Executor> {
    let streams_max = u32::try_from(streams_max).unwrap_or(u32::MAX);
    let connection_window = streams_max.saturating_mul(WINDOW_BYTES).min(CONNECTION_WINDOW_BYTES_MAX);
    let mut builder = Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .initial_max_send_streams(NOT_SAID)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(connection_window)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}
