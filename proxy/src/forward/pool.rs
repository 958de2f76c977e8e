//! The connections of one worker thread to one upstream.

mod places;
mod queue;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use http::Request;
use http::header::UPGRADE;
use tokio::time::{Instant, timeout_at};

pub(super) use self::places::{Place, Turn};
use self::queue::Queue;
use super::addresses::Addresses;
use super::admitted::{Admitted, Permit};
use super::awaited_head::AwaitedHead;
use super::by_alpn::{self, COMPLAINT_INTERVAL};
use super::connect::connect;
use super::error::UpstreamError;
use super::http1::Http1;
use super::http2::{Http2Connections, Stream};
use super::quota::IDLE_LOOK;
use super::request_body::RequestBody;
use super::stalled::{Stalled, Stalls};
use super::upstream::{Speaks, Timeouts, Upstream};
use crate::downstream::Protocol;
use crate::wire::{Alarm, Background, Socket};

/// The connections of one worker thread to one upstream: the one used last is used first. Clones share them.
#[derive(Clone)]
pub struct Pool {
    shared: Rc<Shared>,
}

pub(super) struct Shared {
    pub(super) upstream: Upstream,
    pub(super) addresses: Addresses,
    pub(super) background: Background,
    pub(super) http2: Rc<Http2Connections>,
    /// HTTP/1.1 connections without a request, the one used last at the end.
    #[expect(clippy::vec_box, reason = "a request takes one and moves it on")]
    idle: RefCell<Vec<Box<Http1>>>,
    /// HTTP/1.1 connections that are open or being opened.
    places_taken: Cell<usize>,
    /// Requests that wait for one.
    queue: Queue<Turn>,
    sweeping: Cell<bool>,
    /// Whether somebody looks what there is for those requests.
    serving: Cell<bool>,
    /// What waits for clients on HTTP/1.1 connections that others may wait for.
    stalled: Stalled,
    /// Whether somebody looks whether other pools wait for these.
    looking: Cell<bool>,
    /// What a worker behind TLS picked last: how its connections are opened, and no more.
    pub(super) picked: Cell<Protocol>,
    /// When the log last said why there is no TLS with the worker, and what.
    pub(super) complained: RefCell<Option<(Instant, Option<String>)>>,
    /// When the log last said how requests fail, for each way.
    failures_told: RefCell<Vec<(&'static str, Instant)>>,
}

/// What a request needs of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// Whatever the worker speaks.
    Either,
    /// HTTP/1.1, because it is to be switched to another protocol.
    Http1,
}

impl Wants {
    /// What a request needs that was made by [`outgoing_request`](super::outgoing_request).
    pub fn of(request: &Request<RequestBody>) -> Wants {
        if request.headers().contains_key(UPGRADE) { Wants::Http1 } else { Wants::Either }
    }
}

/// A connection on which a request can be sent at once. Dropped unused, it goes back to its pool.
pub struct ReadyConnection {
    /// `None` once it is used.
    link: Option<Link>,
    pool: Pool,
    wants: Wants,
}

/// A request's way to the worker.
pub(super) enum Link {
    /// Boxed, since it is handed from one request to the next.
    Http1(Box<Http1>),
    Http2(Stream),
}

impl Link {
    pub(super) fn alarm(&mut self) -> &mut Alarm {
        match self {
            Link::Http1(connection) => &mut connection.alarm,
            Link::Http2(stream) => &mut stream.alarm,
        }
    }
}

impl Pool {
    /// A pool that has no connection yet. What outlives its request runs in `background`.
    pub fn new(upstream: Upstream, background: Background) -> Pool {
        Pool {
            shared: Rc::new(Shared {
                upstream,
                addresses: Addresses::default(),
                background,
                http2: Rc::default(),
                idle: RefCell::default(),
                places_taken: Cell::new(0),
                queue: Queue::default(),
                sweeping: Cell::new(false),
                serving: Cell::new(false),
                stalled: Stalled::default(),
                looking: Cell::new(false),
                picked: Cell::new(Protocol::Http2),
                complained: RefCell::default(),
                failures_told: RefCell::default(),
            }),
        }
    }

    /// Whether what a request says waits for the end of the thread's turn, where it is short.
    pub fn writes_with_others(&self) -> bool {
        match self.shared.upstream.speaks {
            Speaks::Cleartext(protocol) => protocol == Protocol::Http1,
            Speaks::Tls(_) => self.shared.picked.get() == Protocol::Http1,
        }
    }

    /// Whether requests failing in that way is news for the log, as it is once in a while.
    pub fn is_news(&self, failure: &'static str) -> bool {
        let (now, mut told) = (Instant::now(), self.shared.failures_told.borrow_mut());
        match told.iter_mut().find(|(other, _)| *other == failure) {
            Some((_, last)) if now < *last + COMPLAINT_INTERVAL => return false,
            Some((_, last)) => *last = now,
            None => told.push((failure, now)),
        }
        true
    }

    /// Where its connections go.
    pub fn upstream(&self) -> &Upstream {
        &self.shared.upstream
    }

    /// Waits for a connection: an idle one, a new one, or one that another request is done with.
    ///
    /// # Errors
    ///
    /// If the worker cannot be reached, if there is no connection by `deadline`, or if too many wait already.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue.
    pub async fn ready(&self, wants: Wants, deadline: Instant) -> Result<ReadyConnection, UpstreamError> {
        if let Some(ready) = self.free(wants) {
            return Ok(ready);
        }
        let link = match self.shared.upstream.speaks {
            Speaks::Cleartext(Protocol::Http1) => Link::Http1(self.ready_http1(deadline).await?),
            Speaks::Cleartext(Protocol::Http2) => {
                let Shared { upstream, addresses, http2, .. } = &*self.shared;
                Link::Http2(http2.ready(upstream, addresses, deadline).await?)
            }
            Speaks::Tls(_) => Box::pin(by_alpn::ready(&self.shared, wants, deadline)).await?,
        };
        Ok(ReadyConnection { link: Some(link), pool: self.clone(), wants })
    }

    /// A connection that can be had at once, as most requests find one.
    pub fn free(&self, wants: Wants) -> Option<ReadyConnection> {
        let link = match self.shared.upstream.speaks {
            Speaks::Cleartext(Protocol::Http1) => self.shared.pop_idle().map(Link::Http1),
            Speaks::Cleartext(Protocol::Http2) => self.shared.http2.free_stream(&self.shared.upstream).map(Link::Http2),
            Speaks::Tls(_) => by_alpn::free(&self.shared, wants),
        };
        link.map(|link| ReadyConnection { link: Some(link), pool: self.clone(), wants })
    }

    async fn ready_http1(&self, deadline: Instant) -> Result<Box<Http1>, UpstreamError> {
        let place = loop {
            match self.shared.turn(Wants::Http1, deadline).await? {
                Turn::Connection(connection) => return Ok(connection),
                Turn::Place(place) => break place,
                Turn::LookAgain => {}
            }
        };
        let opened = timeout_at(deadline, connect(&self.shared.upstream, &self.shared.addresses)).await;
        let transport = opened.map_err(|_| UpstreamError::Timeout)?.map_err(UpstreamError::unreachable)?;
        let made = Http1::new(Socket::upstream(transport), None, place, self.shared.background.outbox().clone()).await;
        made.map(Box::new).map_err(UpstreamError::handshake)
    }

    /// Takes back a connection whose response has ended.
    pub(super) fn put_back(&self, mut connection: Box<Http1>) {
        connection.idle_since = Instant::now();
        self.shared.put_back(connection);
    }

    /// A connection was lost with a request on it.
    pub(super) fn lost(&self, connection: &Socket) {
        self.shared.complain_of_loss(connection);
    }

    /// Whether requests that go over HTTP/2 have another connection to go to if one gets no more of them.
    pub(super) fn has_place_for_http2(&self) -> bool {
        self.shared.http2.has_place(&self.shared.upstream)
    }

    /// Looks after what waits for its client on one of its HTTP/1.1 connections, for which others may wait.
    pub(super) fn may_stall(&self, one: Weak<dyn Stalls>) {
        self.shared.stalled.add(one);
        if !self.shared.looking.replace(true) {
            tokio::task::spawn_local(make_room_for_other_pools(Rc::downgrade(&self.shared)));
        }
    }

    pub(super) fn background(&self) -> &Background {
        &self.shared.background
    }
}

impl ReadyConnection {
    /// Has the request written in the first poll of its exchange, not with those of others.
    pub fn write_at_once(&mut self) {
        if let Some(Link::Http1(connection)) = &mut self.link {
            connection.write_at_once();
        }
    }

    /// Sends the request for whose wants the connection was got ready. It is written in the first poll of what this returns, or, if it is
    /// short and goes by HTTP/1.1, when the tasks that are ready by then have had their turn; and at most once.
    /// `timeouts` begin at `at`, which is now.
    ///
    /// Dropping that future does not take the request back: the response is read to its end in the background.
    pub fn send<P: Permit>(
        mut self,
        admitted: Admitted<Box<Request<RequestBody>>, P>,
        timeouts: Timeouts,
        at: Instant,
    ) -> AwaitedHead<P> {
        let link = self.link.take().expect("a connection is used once");
        AwaitedHead::new(link, self.pool.clone(), self.wants, admitted, timeouts, at)
    }

    /// Whether a request can still be sent, asked when something else was waited for meanwhile.
    pub fn is_usable(&self) -> bool {
        match &self.link {
            Some(Link::Http1(connection)) => self.pool.shared.is_usable(connection),
            Some(Link::Http2(stream)) => stream.is_usable(),
            None => false,
        }
    }
}

impl Drop for ReadyConnection {
    fn drop(&mut self) {
        // Not having been used, it has been idle for as long as before.
        if let Some(Link::Http1(connection)) = self.link.take() {
            self.pool.shared.put_back(connection);
        }
    }
}

impl Shared {
    /// An HTTP/1.1 connection that can be had at once.
    pub(super) fn pop_idle(&self) -> Option<Box<Http1>> {
        loop {
            let connection = self.idle.borrow_mut().pop()?;
            if self.is_usable(&connection) {
                return Some(connection);
            }
        }
    }

    fn is_usable(&self, connection: &Http1) -> bool {
        let idle_for = connection.idle_since.elapsed();
        idle_for < self.upstream.idle_timeout
            && connection.is_usable()
            && connection.is_quiet(idle_for)
            && self.upstream.is_current(connection.made_with())
    }

    fn put_back(self: &Rc<Self>, connection: Box<Http1>) {
        if self.upstream.quota.is_for_others(self.connections()) {
            return;
        }
        if let Some(waiter) = self.queue.next() {
            let _ = waiter.send(Turn::Connection(connection));
            return;
        }
        if self.upstream.quota.is_wanted() {
            return; // Others wait for what it would keep.
        }
        let mut idle = self.idle.borrow_mut();
        let place = idle.partition_point(|other| other.idle_since <= connection.idle_since);
        idle.insert(place, connection);
        drop(idle);
        if !self.sweeping.replace(true) {
            tokio::task::spawn_local(sweep(Rc::downgrade(self)));
        }
    }

    /// Closes what has been idle for too long, or all that is if others may wait for a connection. False if nothing is idle any more.
    fn close_old(&self) -> bool {
        let mut idle = self.idle.borrow_mut();
        let idle_max = if self.upstream.quota.is_wanted() { Duration::ZERO } else { self.upstream.idle_timeout };
        let old = idle.partition_point(|connection| connection.idle_since.elapsed() >= idle_max);
        // Dropped after the borrow: each gives its place to a waiting request.
        let closed: Vec<_> = idle.drain(..old).collect();
        let some_left = !idle.is_empty();
        drop(idle);
        drop(closed);
        some_left
    }
}

/// Closes idle connections in time, as long as there are any.
async fn sweep(shared: Weak<Shared>) {
    loop {
        let Some(idle_timeout) = shared.upgrade().map(|shared| shared.upstream.idle_timeout) else { return };
        tokio::time::sleep(idle_timeout.min(IDLE_LOOK)).await;
        let Some(shared) = shared.upgrade() else { return };
        if !shared.close_old() {
            shared.sweeping.set(false);
            return;
        }
    }
}

/// Makes room for those who wait for the quota in other pools, if this one has many connections: those that wait in it do so themselves.
async fn make_room_for_other_pools(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(IDLE_LOOK).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.stalled.is_empty() {
            shared.looking.set(false);
            return;
        }
        let quota = &shared.upstream.quota;
        if quota.is_wanted() && quota.are_many(shared.connections()) {
            shared.stalled.leave_longest();
        }
    }
}
