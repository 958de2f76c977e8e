//! HTTP/2 connections to a worker, each with many requests at a time.

mod connection;
mod left;
mod turns;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures_util::future::Either;
use http::Request;
use http::uri::Scheme;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

pub(super) use connection::Http2Connection;

use super::addresses::Addresses;
use super::connect::{Opened, open};
use super::error::UpstreamError;
use super::http1::HeadFuture;
use super::pool::Wants;
use super::quota::{ConnectionQuota, IDLE_LOOK, QUOTA_LOOK, QuotaPermit};
use super::request_body::RequestBody;
use super::unwritten::Unwritten;
use super::upstream::Upstream;
use crate::wire::{Alarm, Socket};

/// The HTTP/2 connections of one pool: one, and more when its streams are used up.
#[derive(Default)]
pub(super) struct Http2Connections {
    open: RefCell<Vec<Rc<Http2Connection>>>,
    opening: Cell<bool>,
    /// How many have been, or were to be, opened by now.
    openings: Cell<u64>,
    /// Which of them has failed last, and how, as long as there is no connection.
    failure: RefCell<Option<(u64, UpstreamError)>>,
    /// Whether the last one that was to be opened could not be.
    has_failed: Cell<bool>,
    waiting: Cell<usize>,
    /// A stream or a connection has become free.
    freed: Notify,
}

/// The right to one stream of a connection.
pub(super) struct Stream {
    connection: Rc<Http2Connection>,
    connections: Rc<Http2Connections>,
    pub(super) alarm: Alarm,
    /// Whether a request went out on it and has not come to its end.
    is_under_way: bool,
}

impl Http2Connections {
    /// Waits for a stream.
    pub(super) async fn ready(
        self: &Rc<Self>,
        upstream: &Upstream,
        addresses: &Addresses,
        deadline: Instant,
    ) -> Result<Stream, UpstreamError> {
        let came_after = self.openings();
        loop {
            if let Some(stream) = self.free_stream(upstream) {
                return Ok(stream);
            }
            match self.begin_opening(upstream) {
                // Boxed, as all that is rare and large: each request would move the room for it, whatever its worker speaks.
                Some(opening) => {
                    let opened = opening.tell(Box::pin(self.open_one(upstream, addresses, deadline)).await)?;
                    if let Some(stream) = opened {
                        return Ok(stream);
                    }
                }
                None => self.freed(upstream, came_after, deadline).await?,
            }
        }
    }

    /// Opens a connection and takes it in, unless a stream gets free before there may be one.
    async fn open_one(
        self: &Rc<Self>,
        upstream: &Upstream,
        addresses: &Addresses,
        deadline: Instant,
    ) -> Result<Option<Stream>, UpstreamError> {
        let permit_or_stream = || {
            let permit = upstream.quota.take(self.connections()).map(Either::Left);
            permit.or_else(|| self.free_stream(upstream).map(Either::Right))
        };
        let permit = match self.until_permitted(upstream, deadline, permit_or_stream).await? {
            Either::Left(permit) => permit,
            Either::Right(stream) => return Ok(Some(stream)),
        };
        let opened = timeout_at(deadline, open(upstream, addresses, Wants::Either)).await;
        self.add(upstream, opened.map_err(|_| UpstreamError::Timeout)??, permit, deadline).await?;
        Ok(None)
    }

    /// Waits until whoever opens a connection is permitted to, or finds something better.
    pub(super) async fn until_permitted<T>(
        &self,
        upstream: &Upstream,
        deadline: Instant,
        look: impl Fn() -> Option<T>,
    ) -> Result<T, UpstreamError> {
        if let Some(found) = look() {
            return Ok(found);
        }
        let _wanted = upstream.quota.want();
        let found = async {
            loop {
                tokio::select! {
                    () = self.freed.notified() => {}
                    () = sleep(QUOTA_LOOK) => {}
                }
                if let Some(found) = look() {
                    return found;
                }
            }
        };
        timeout_at(deadline, found).await.map_err(|_| UpstreamError::Crowded)
    }

    /// How many connections there are.
    pub(super) fn connections(&self) -> usize {
        self.open.borrow().len()
    }

    /// Whether there is a stream to be had at once.
    pub(super) fn has_free_stream(&self, upstream: &Upstream) -> bool {
        self.find_free(upstream).is_some()
    }

    /// Whether there may be another connection beside those that there are.
    pub(super) fn has_place(&self, upstream: &Upstream) -> bool {
        upstream.has_room_for_http2(self.open.borrow().len())
    }

    /// A stream that can be had at once.
    pub(super) fn free_stream(self: &Rc<Self>, upstream: &Upstream) -> Option<Stream> {
        let connection = self.find_free(upstream)?;
        connection.begin_stream();
        Some(Stream { connection, connections: self.clone(), alarm: Alarm::new(), is_under_way: false })
    }

    /// A connection with room for a stream. Those that would be made otherwise by now get no more of them.
    fn find_free(&self, upstream: &Upstream) -> Option<Rc<Http2Connection>> {
        let mut open = self.open.borrow_mut();
        let idle_timeout = upstream.idle_timeout;
        open.retain(|connection| connection.is_alive(idle_timeout) && upstream.is_current(connection.made_with()));
        let may_be_another = upstream.has_room_for_http2(open.len()) && !self.has_failed.get();
        let is_free = |connection: &&Rc<Http2Connection>| {
            connection.has_room(upstream.streams_max) && !(connection.is_worn() && may_be_another)
        };
        open.iter().find(is_free).cloned()
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

    /// How many connections have been, or were to be, opened by now.
    pub(super) fn openings(&self) -> u64 {
        self.openings.get()
    }

    /// Waits until there may be a stream to be had, from when this is first polled.
    ///
    /// # Errors
    ///
    /// Also if a connection could not be opened that was begun when the request, having come after so many, was there already: it would
    /// have fared no better itself. However many wait at a worker that is not there, all are told at once.
    pub(super) async fn freed(
        &self,
        upstream: &Upstream,
        came_after: u64,
        deadline: Instant,
    ) -> Result<(), UpstreamError> {
        if self.waiting.get() >= upstream.waiting_max {
            return Err(UpstreamError::Crowded);
        }
        let _waiting = Raised::new(&self.waiting);
        let in_vain = || if self.has_place(upstream) { UpstreamError::Timeout } else { UpstreamError::Crowded };
        timeout_at(deadline, self.freed.notified()).await.map_err(|_| in_vain())?;
        match &*self.failure.borrow() {
            Some((opening, error)) if came_after < *opening => Err(error.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Has all who wait look again.
    pub(super) fn wake_all(&self) {
        self.freed.notify_waiters();
    }

    /// Has the one look again that has waited longest: there is a stream.
    fn wake_next(&self) {
        self.freed.notify_one();
    }

    /// Has the one look again that came last: there is a connection to be opened, for all, and it has the most time left. Whoever has
    /// waited longest has next to none: where requests come faster than connections open, each would give up, and leave that to the next.
    pub(super) fn wake_to_open(&self) {
        self.freed.notify_last();
    }

    /// Takes a connection in, on which a worker speaks HTTP/2.
    pub(super) async fn add(
        self: &Rc<Self>,
        upstream: &Upstream,
        opened: Opened,
        permit: QuotaPermit,
        deadline: Instant,
    ) -> Result<(), UpstreamError> {
        // Before it is open nobody has anything of it: a worker that says nothing would have all look at each attempt.
        let (connections, is_open) = (Rc::downgrade(self), Rc::<Cell<bool>>::default());
        let tell_all = {
            let is_open = Rc::clone(&is_open);
            move || {
                connections.upgrade().filter(|_| is_open.get()).inspect(|connections| connections.wake_all());
            }
        };
        let begun = timeout_at(deadline, Http2Connection::begin(opened, permit, upstream.streams_max, tell_all)).await;
        let connection = Rc::new(begun.map_err(|_| UpstreamError::Timeout)??);
        tokio::task::spawn_local(close_when_idle(
            Rc::downgrade(&connection),
            Rc::downgrade(self),
            upstream.idle_timeout,
            upstream.quota.clone(),
        ));
        self.open.borrow_mut().push(connection);
        is_open.set(true);
        self.failure.take();
        self.has_failed.set(false);
        self.wake_all();
        Ok(())
    }
}

/// Closes a connection that has had no stream for so long, or has none while others may wait for a connection.
async fn close_when_idle(
    connection: Weak<Http2Connection>,
    connections: Weak<Http2Connections>,
    idle_timeout: Duration,
    quota: ConnectionQuota,
) {
    while let Some(idle_for) = connection.upgrade().map(|connection| connection.idle_for()) {
        let left = idle_timeout.saturating_sub(idle_for);
        if left.is_zero() || !idle_for.is_zero() && quota.is_wanted() {
            let Some(connections) = connections.upgrade() else { return };
            connections.open.borrow_mut().retain(|other| Rc::as_ptr(other) != connection.as_ptr());
            return;
        }
        tokio::time::sleep(left.min(IDLE_LOOK)).await;
    }
}

impl Stream {
    /// Hands a request to hyper, which opens the stream when its connection is polled next. From here on it is told what of it has
    /// not been written.
    pub(super) fn send(&mut self, mut request: Request<RequestBody>) -> (HeadFuture, Unwritten) {
        let unwritten = Unwritten::count(&mut request, &self.connection);
        self.is_under_way = true;
        (self.connection.send(request), unwritten)
    }

    /// Request and response have come to their ends.
    pub(super) fn ends(mut self) {
        self.is_under_way = false;
    }

    /// What its URLs begin with.
    pub(super) fn scheme(&self) -> Scheme {
        if self.connection.made_with().is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// The connection that it shares with others.
    pub(super) fn socket(&self) -> &Socket {
        self.connection.socket()
    }

    /// Whether its connection has ended, whoever ended it.
    pub(super) fn has_lost_connection(&self) -> bool {
        self.connection.socket().is_broken() || self.connection.turns().have_ended()
    }

    /// Whether the worker has not closed its connection.
    pub(super) fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.end_stream(self.is_under_way);
        self.connections.wake_next();
    }
}

/// Marks that a connection is being opened. Whatever comes of it, another who waits looks then: it may have to open one.
pub(super) struct Opening<'a>(&'a Http2Connections);

impl<'a> Opening<'a> {
    fn new(connections: &'a Http2Connections) -> Opening<'a> {
        connections.opening.set(true);
        connections.openings.set(connections.openings.get() + 1);
        Opening(connections)
    }

    /// Tells those who wait for a connection if none could be opened. Where there is one, they may still get a stream of it, also if it was to
    /// get no more; and where this request's time was over, others have more.
    pub(super) fn tell<T>(self, opened: Result<T, UpstreamError>) -> Result<T, UpstreamError> {
        let Http2Connections { open, openings, failure, has_failed, .. } = self.0;
        let Err(error) = &opened else { return opened };
        has_failed.set(true);
        let is_alone = open.borrow().is_empty();
        let is_for_all = is_alone && !matches!(error, UpstreamError::Timeout | UpstreamError::Crowded);
        if is_for_all {
            *failure.borrow_mut() = Some((openings.get(), error.clone()));
        }
        if is_for_all || !is_alone {
            self.0.wake_all();
        }
        opened
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.opening.set(false);
        self.0.wake_to_open();
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
