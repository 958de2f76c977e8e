//! HTTP/2 connections to a worker, each with many requests at a time.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::uri::Scheme;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::connect::{Opened, open};
use super::error::UpstreamError;
use super::http1::HeadFuture;
use super::pool::Wants;
use super::request_body::RequestBody;
use super::upstream::Upstream;
use crate::wire::{Alarm, LocalExecutor, Socket};

/// What a worker may send ahead on one stream. A connection has room for that on each of its streams: a few whose clients do not
/// read hold up no other.
const WINDOW_BYTES: u32 = 256 * 1024;
/// HTTP/2 knows no larger window.
const CONNECTION_WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// How often a worker with requests is asked whether it is still there, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The HTTP/2 connections of one pool: one, and more when its streams are used up.
#[derive(Default)]
pub(super) struct Http2Connections {
    open: RefCell<Vec<Rc<Http2Connection>>>,
    opening: Cell<bool>,
    waiting: Cell<usize>,
    /// A stream or a connection has become free.
    freed: Notify,
}

struct Http2Connection {
    sender: SendRequest<RequestBody>,
    socket: Socket,
    /// `None`: without TLS.
    made_with: Option<Arc<ClientConfig>>,
    streams: Cell<usize>,
    /// What the worker allows.
    streams_max: Cell<usize>,
}

/// The right to one stream of a connection.
pub(super) struct Stream {
    connection: Rc<Http2Connection>,
    connections: Rc<Http2Connections>,
    pub(super) alarm: Alarm,
}

impl Http2Connections {
    /// Waits for a stream.
    pub(super) async fn ready(
        self: &Rc<Self>,
        upstream: &Upstream,
        deadline: Instant,
    ) -> Result<Stream, UpstreamError> {
        loop {
            if let Some(stream) = self.free_stream(upstream) {
                return Ok(stream);
            }
            match self.begin_opening(upstream) {
                // Boxed, as all that is rare and large: each request would move the room for it, whatever its worker speaks.
                Some(_opening) => Box::pin(self.open_one(upstream, deadline)).await?,
                None => self.freed(upstream, deadline).await?,
            }
        }
    }

    /// Opens a connection and takes it in.
    async fn open_one(self: &Rc<Self>, upstream: &Upstream, deadline: Instant) -> Result<(), UpstreamError> {
        let opened = timeout_at(deadline, open(upstream, Wants::Either)).await;
        self.add(upstream, opened.map_err(|_| UpstreamError::Timeout)??, deadline).await
    }

    /// A stream that can be had at once. Connections that would be made otherwise by now get no more of them.
    pub(super) fn free_stream(self: &Rc<Self>, upstream: &Upstream) -> Option<Stream> {
        let mut open = self.open.borrow_mut();
        open.retain(|connection| connection.is_alive() && upstream.is_current(connection.made_with.as_ref()));
        let free = open
            .iter()
            .find(|connection| connection.streams.get() < connection.streams_max.get().min(upstream.streams_max))?;
        free.streams.set(free.streams.get() + 1);
        Some(Stream { connection: free.clone(), connections: self.clone(), alarm: Alarm::new() })
    }

    /// Whether the caller is to open a connection, which one does at a time.
    pub(super) fn begin_opening(&self, upstream: &Upstream) -> Option<Opening<'_>> {
        let may_open = !self.opening.get() && self.open.borrow().len() < upstream.connections_max;
        may_open.then(|| Opening::new(self))
    }

    /// Waits until there may be a stream to be had, from when this is first polled.
    pub(super) async fn freed(&self, upstream: &Upstream, deadline: Instant) -> Result<(), UpstreamError> {
        if self.waiting.get() >= upstream.waiting_max {
            return Err(UpstreamError::Crowded);
        }
        let _waiting = Raised::new(&self.waiting);
        timeout_at(deadline, self.freed.notified()).await.map_err(|_| UpstreamError::Timeout)
    }

    /// Takes a connection in, on which a worker speaks HTTP/2.
    pub(super) async fn add(
        self: &Rc<Self>,
        upstream: &Upstream,
        opened: Opened,
        deadline: Instant,
    ) -> Result<(), UpstreamError> {
        let Opened { socket, made_with, .. } = opened;
        let handshake =
            timeout_at(deadline, builder(upstream.streams_max).handshake(TokioIo::new(socket.clone()))).await;
        let (sender, mut driver) = handshake.map_err(|_| UpstreamError::Timeout)?.map_err(UpstreamError::Handshake)?;
        let connection = Rc::new(Http2Connection {
            sender,
            socket,
            made_with,
            streams: Cell::new(0),
            streams_max: Cell::new(upstream.streams_max),
        });
        self.open.borrow_mut().push(connection.clone());
        let driven = Rc::downgrade(&connection);
        let connections = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            poll_fn(|cx| {
                let polled = Pin::new(&mut driver).poll(cx);
                if let Some(connection) = driven.upgrade() {
                    connection.streams_max.set(driver.current_max_send_streams());
                }
                polled.map(|_| ()) // Each request learns of an error itself.
            })
            .await;
            if let Some(connections) = connections.upgrade() {
                connections.freed.notify_waiters();
            }
        });
        Ok(())
    }
}

fn builder(streams_max: usize) -> Builder<LocalExecutor> {
    let streams_max = u32::try_from(streams_max).unwrap_or(u32::MAX);
    let connection_window = streams_max.saturating_mul(WINDOW_BYTES).min(CONNECTION_WINDOW_BYTES_MAX);
    let mut builder = Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(connection_window)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}

impl Http2Connection {
    fn is_alive(&self) -> bool {
        // Between requests the worker may have closed without the runtime having heard of it.
        !self.sender.is_closed() && (self.streams.get() > 0 || self.socket.is_open())
    }
}

impl Stream {
    /// Hands a request to hyper, which opens the stream when its connection is polled next.
    pub(super) fn send(&mut self, request: Request<RequestBody>) -> HeadFuture {
        Box::pin(self.connection.sender.clone().try_send_request(request))
    }

    /// What its URLs begin with.
    pub(super) fn scheme(&self) -> Scheme {
        if self.connection.made_with.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// The connection that it shares with others.
    pub(super) fn socket(&self) -> &Socket {
        &self.connection.socket
    }

    /// Whether the worker has not closed its connection.
    pub(super) fn is_usable(&self) -> bool {
        !self.connection.sender.is_closed() && self.connection.socket.is_open()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.connections.freed.notify_one();
    }
}

/// Marks that a connection is being opened, and wakes the others when it is or could not be.
pub(super) struct Opening<'a>(&'a Http2Connections);

impl<'a> Opening<'a> {
    fn new(connections: &'a Http2Connections) -> Opening<'a> {
        connections.opening.set(true);
        Opening(connections)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.opening.set(false);
        self.0.freed.notify_waiters();
    }
}

/// A count that is one higher as long as this lives.
struct Raised<'a>(&'a Cell<usize>);

impl<'a> Raised<'a> {
    fn new(count: &'a Cell<usize>) -> Raised<'a> {
        count.set(count.get() + 1);
        Raised(count)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Whether hyper says that the worker has not looked at a request: it refused the stream, or left it out of those that
/// it was going to finish when it closed.
pub(super) fn was_refused(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let Some(error) = source.and_then(|source| source.downcast_ref::<h2::Error>()) else { return false };
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let beyond_last = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (refused || beyond_last)
}
