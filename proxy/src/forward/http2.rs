//! HTTP/2 connections to a worker, each with many requests at a time.

mod connection;
mod left;
mod turns;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use http::Request;
use http::uri::Scheme;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

pub(super) use connection::Http2Connection;

use super::addresses::Addresses;
use super::connect::{Opened, open};
use super::error::UpstreamError;
use super::http1::HeadFuture;
use super::pool::Wants;
use super::request_body::RequestBody;
use super::unwritten::Unwritten;
use super::upstream::Upstream;
use crate::wire::{Alarm, Socket};

/// The HTTP/2 connections of one pool: one, and more when its streams are used up.
#[derive(Default)]
pub(super) struct Http2Connections {
    open: RefCell<Vec<Rc<Http2Connection>>>,
    opening: Cell<bool>,
    waiting: Cell<usize>,
    /// A stream or a connection has become free.
    freed: Notify,
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
        addresses: &Addresses,
        deadline: Instant,
    ) -> Result<Stream, UpstreamError> {
        loop {
            if let Some(stream) = self.free_stream(upstream) {
                return Ok(stream);
            }
            match self.begin_opening(upstream) {
                // Boxed, as all that is rare and large: each request would move the room for it, whatever its worker speaks.
                Some(_opening) => Box::pin(self.open_one(upstream, addresses, deadline)).await?,
                None => self.freed(upstream, deadline).await?,
            }
        }
    }

    /// Opens a connection and takes it in.
    async fn open_one(
        self: &Rc<Self>,
        upstream: &Upstream,
        addresses: &Addresses,
        deadline: Instant,
    ) -> Result<(), UpstreamError> {
        let opened = timeout_at(deadline, open(upstream, addresses, Wants::Either)).await;
        self.add(upstream, opened.map_err(|_| UpstreamError::Timeout)??, deadline).await
    }

    /// A stream that can be had at once. Connections that would be made otherwise by now get no more of them.
    pub(super) fn free_stream(self: &Rc<Self>, upstream: &Upstream) -> Option<Stream> {
        let mut open = self.open.borrow_mut();
        let idle_timeout = upstream.idle_timeout;
        open.retain(|connection| connection.is_alive(idle_timeout) && upstream.is_current(connection.made_with()));
        let free = open.iter().find(|connection| connection.has_room(upstream.streams_max))?;
        free.begin_stream();
        Some(Stream { connection: free.clone(), connections: self.clone(), alarm: Alarm::new() })
    }

    /// Whether the caller is to open a connection, which one does at a time. A worker that has allowed no stream on one connection allows
    /// none on the next.
    pub(super) fn begin_opening(&self, upstream: &Upstream) -> Option<Opening<'_>> {
        let open = self.open.borrow();
        let may_open = !self.opening.get()
            && open.len() < upstream.connections_max
            && open.iter().all(|connection| connection.has_ever_allowed_any());
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
        let connections = Rc::downgrade(self);
        let tell_all = move || {
            connections.upgrade().inspect(|connections| connections.freed.notify_waiters());
        };
        let begun = timeout_at(deadline, Http2Connection::begin(opened, upstream.streams_max, tell_all)).await;
        let connection = Rc::new(begun.map_err(|_| UpstreamError::Timeout)??);
        tokio::task::spawn_local(close_when_idle(
            Rc::downgrade(&connection),
            Rc::downgrade(self),
            upstream.idle_timeout,
        ));
        self.open.borrow_mut().push(connection);
        Ok(())
    }
}

/// Closes a connection that has had no stream for so long.
async fn close_when_idle(
    connection: Weak<Http2Connection>,
    connections: Weak<Http2Connections>,
    idle_timeout: Duration,
) {
    while let Some(left) = connection.upgrade().map(|connection| idle_timeout.saturating_sub(connection.idle_for())) {
        if left.is_zero() {
            let Some(connections) = connections.upgrade() else { return };
            connections.open.borrow_mut().retain(|other| Rc::as_ptr(other) != connection.as_ptr());
            return;
        }
        tokio::time::sleep(left).await;
    }
}

impl Stream {
    /// Hands a request to hyper, which opens the stream when its connection is polled next. From here on it is told what of it has
    /// not been written.
    pub(super) fn send(&mut self, mut request: Request<RequestBody>) -> (HeadFuture, Unwritten) {
        let unwritten = Unwritten::count(&mut request, &self.connection);
        (self.connection.send(request), unwritten)
    }

    /// What its URLs begin with.
    pub(super) fn scheme(&self) -> Scheme {
        if self.connection.made_with().is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// The connection that it shares with others.
    pub(super) fn socket(&self) -> &Socket {
        self.connection.socket()
    }

    /// Whether the worker has not closed its connection.
    pub(super) fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.end_stream();
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
