//! The connections of one worker thread to one upstream.

mod opening;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use self::opening::Opening;
use super::error::UpstreamError;
use super::http1::Http1;
use super::http2::{Http2, Stream};
use super::link::Link;
use super::quota::{IDLE_LOOK, QUOTA_LOOK, QuotaPermit};
use super::target::{Speaks, Upstream, Wants};
use crate::logging::WithCauses;
use crate::server::Protocol;
use crate::wire::{Background, Socket};

/// How often the log says the same of a worker.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// How long a client may leave a piece of its response lying, or the next piece of its upload be
/// waited for, while others wait for a connection.
pub(super) const STALL_MAX: Duration = Duration::from_secs(1);

/// The connections of one worker thread to one upstream: the one used last is used first. Clones
/// share them.
///
/// Who finds none waits, in the order in which requests come. A task of the pool opens what those
/// who wait need: a connection for each over HTTP/1.1, one for all over HTTP/2. Behind TLS nobody
/// knows which it will be before it is there: what the worker picked last is what is expected of
/// it.
#[derive(Clone)]
pub struct Pool {
    shared: Rc<Shared>,
}

struct Shared {
    upstream: Upstream,
    background: Background,
    /// HTTP/1.1 connections without a request, the one used last at the end.
    #[expect(clippy::vec_box, reason = "a request takes one and moves it on")]
    idle: RefCell<Vec<Box<Http1>>>,
    http2: RefCell<Vec<Rc<Http2>>>,
    /// HTTP/1.1 connections that are open or being opened.
    http1_open: Cell<usize>,
    waiting: RefCell<VecDeque<Waiter>>,
    /// How many have ever waited.
    arrivals: Cell<u64>,
    /// Connections that are being opened for one request each.
    opening_for_one: Cell<usize>,
    /// Whether one is being opened for all who wait.
    opening_for_all: Cell<bool>,
    /// What a worker behind TLS picked last.
    picked: Cell<Protocol>,
    /// Whether the last one that was to be opened for all could not be.
    has_failed: Cell<bool>,
    sweeping: Cell<bool>,
    serving: Cell<bool>,
    /// Whether somebody looks whether the quota has room.
    retrying: Cell<bool>,
    /// When who waited made a client lose its connection, within the last moments.
    clients_left: RefCell<VecDeque<Instant>>,
    /// When somebody last waited.
    waited: Cell<Option<Instant>>,
    /// When the log last said why there is no TLS with the worker, and what.
    complained: RefCell<Option<(Instant, Option<String>)>>,
    /// When the log last said how requests fail, for each way.
    failures_told: RefCell<Vec<(&'static str, Instant)>>,
}

/// Who waits for a connection.
struct Waiter {
    wants: Wants,
    arrival: u64,
    deadline: Instant,
    tell: oneshot::Sender<Result<ReadyConnection, UpstreamError>>,
}

/// The right to one HTTP/1.1 connection. When it is dropped, a request that waits gets it.
pub(super) struct Place {
    pool: Weak<Shared>,
    /// `None` once a connection of HTTP/2 has it.
    permit: Option<QuotaPermit>,
}

/// A connection on which a request can be sent at once. Dropped unused, it goes back to its pool.
pub struct ReadyConnection {
    /// `None` once it is used.
    link: Option<Link>,
    pool: Pool,
    wants: Wants,
}

impl ReadyConnection {
    fn new(link: Link, pool: Pool, wants: Wants) -> ReadyConnection {
        ReadyConnection { link: Some(link), pool, wants }
    }

    /// The way to the worker, for the one request.
    pub(super) fn take(mut self) -> (Link, Pool, Wants) {
        (self.link.take().expect("a connection is used once"), self.pool.clone(), self.wants)
    }

    /// Whether a request can still be sent, asked when something else was waited for meanwhile.
    pub fn is_usable(&self) -> bool {
        match &self.link {
            Some(Link::Http1(connection)) => self.pool.is_usable(connection),
            Some(Link::Http2(stream)) => stream.is_usable(),
            None => false,
        }
    }
}

impl Drop for ReadyConnection {
    fn drop(&mut self) {
        // Not having been used, it has been idle for as long as before.
        if let Some(Link::Http1(connection)) = self.link.take() {
            self.pool.put_back(connection);
        }
    }
}

impl Pool {
    /// A pool that has no connection yet. What outlives its client runs in `background`.
    pub fn new(upstream: Upstream, background: Background) -> Pool {
        let picked = match upstream.speaks {
            Speaks::Cleartext(protocol) => protocol,
            Speaks::Tls(_) => Protocol::Http2,
        };
        Pool {
            shared: Rc::new(Shared {
                upstream,
                background,
                idle: RefCell::default(),
                http2: RefCell::default(),
                http1_open: Cell::new(0),
                waiting: RefCell::default(),
                arrivals: Cell::new(0),
                opening_for_one: Cell::new(0),
                opening_for_all: Cell::new(false),
                picked: Cell::new(picked),
                has_failed: Cell::new(false),
                sweeping: Cell::new(false),
                serving: Cell::new(false),
                retrying: Cell::new(false),
                clients_left: RefCell::default(),
                waited: Cell::new(None),
                complained: RefCell::default(),
                failures_told: RefCell::default(),
            }),
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

    pub(super) fn background(&self) -> &Background {
        &self.shared.background
    }

    /// Waits for a connection: an idle one, a new one, or one that another request is done with.
    ///
    /// # Errors
    ///
    /// If the worker cannot be reached, if there is no connection by `deadline`, or if too many
    /// wait already.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue.
    pub async fn ready(
        &self,
        wants: Wants,
        deadline: Instant,
    ) -> Result<ReadyConnection, UpstreamError> {
        if let Some(ready) = self.free(wants) {
            return Ok(ready);
        }
        let shared = &self.shared;
        let told = shared.wait(wants, deadline).ok_or(UpstreamError::Crowded)?;
        shared.serve();
        match timeout_at(deadline, told).await {
            Ok(Ok(ready)) => ready,
            Ok(Err(_)) => Err(UpstreamError::Timeout), // The pool is gone, and the thread with it.
            Err(_) if shared.is_opening() || shared.may_open(wants) => Err(UpstreamError::Timeout),
            Err(_) => Err(UpstreamError::Crowded),
        }
    }

    /// A connection that can be had at once, as most requests find one.
    pub fn free(&self, wants: Wants) -> Option<ReadyConnection> {
        let link = self.shared.free(wants)?;
        Some(ReadyConnection::new(link, self.clone(), wants))
    }

    /// Takes back a connection that has no request.
    pub(super) fn put_back(&self, connection: Box<Http1>) {
        self.shared.put_back(connection);
    }

    pub(super) fn is_usable(&self, connection: &Http1) -> bool {
        self.shared.is_usable(connection)
    }

    /// A connection was lost with a request on it. By TLS 1.3, a worker refuses our certificate
    /// when we take the connection for open already.
    pub(super) fn lost(&self, socket: &Socket) {
        self.shared.complain_of_loss(socket);
    }

    /// Whether a client that lets an HTTP/1.1 connection wait is to lose it, since others wait for
    /// one. One client does for each of them.
    pub(super) fn takes_from_client(&self) -> bool {
        let (shared, now) = (&self.shared, Instant::now());
        let mut left = shared.clients_left.borrow_mut();
        left.retain(|at| now < *at + STALL_MAX);
        let waited = shared.waited.get().is_some_and(|at| now < at + STALL_MAX);
        let own = shared.waiting.borrow().len().max(usize::from(waited));
        let quota = &shared.upstream.quota;
        let others = usize::from(quota.is_wanted() && quota.are_many(shared.connections()));
        let takes = left.len() < own.max(others);
        if takes {
            left.push_back(now);
        }
        takes
    }
}

impl Shared {
    /// What can be had at once.
    fn free(self: &Rc<Self>, wants: Wants) -> Option<Link> {
        let stream = if wants == Wants::Either { self.stream() } else { None };
        stream.map(Link::Http2).or_else(|| self.pop_idle().map(Link::Http1))
    }

    fn pop_idle(&self) -> Option<Box<Http1>> {
        loop {
            let connection = self.idle.borrow_mut().pop()?;
            if self.is_usable(&connection) {
                return Some(connection);
            }
        }
    }

    fn is_usable(&self, connection: &Http1) -> bool {
        connection.idle_since.elapsed() < self.upstream.idle_timeout
            && connection.is_usable()
            && self.upstream.is_current(connection.made_with())
    }

    /// A stream of an HTTP/2 connection. Those that would be made otherwise by now get no more of
    /// them.
    fn stream(&self) -> Option<Stream> {
        let upstream = &self.upstream;
        let mut open = self.http2.borrow_mut();
        open.retain(|one| {
            one.is_kept(upstream.idle_timeout) && upstream.is_current(one.made_with())
        });
        let stream = |worn: bool| {
            let mut fit = open.iter().filter(|connection| connection.is_worn() == worn);
            fit.find_map(|connection| connection.stream(upstream.streams_max))
        };
        // One on which many requests were given up is used where there may be no other.
        let may_open = upstream.has_room_for_http2(open.len()) && !self.has_failed.get();
        stream(false).or_else(|| if may_open { None } else { stream(true) })
    }

    fn connections(&self) -> usize {
        self.http1_open.get() + self.http2.borrow().len()
    }

    fn is_opening(&self) -> bool {
        self.opening_for_all.get() || self.opening_for_one.get() > 0
    }

    /// Whether there may be one more connection.
    fn may_open(&self, wants: Wants) -> bool {
        let has = match (wants, self.picked.get()) {
            (Wants::Either, Protocol::Http2) => self.http2.borrow().len(),
            (Wants::Either, Protocol::Http1) | (Wants::Http1, _) => self.http1_open.get(),
        };
        has < self.upstream.connections_max && self.upstream.quota.has_room(self.connections())
    }

    fn put_back(self: &Rc<Self>, connection: Box<Http1>) {
        if !self.upstream.quota.is_for_others(self.connections()) {
            self.take_in(connection);
        }
    }

    fn take_in(self: &Rc<Self>, connection: Box<Http1>) {
        let mut idle = self.idle.borrow_mut();
        let place = idle.partition_point(|other| other.idle_since <= connection.idle_since);
        idle.insert(place, connection);
        drop(idle);
        self.serve();
        self.sweep();
    }

    /// A place behind all who wait, unless too many do.
    fn wait(
        &self,
        wants: Wants,
        deadline: Instant,
    ) -> Option<oneshot::Receiver<Result<ReadyConnection, UpstreamError>>> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= self.upstream.waiting_max {
            waiting.retain(|waiter| !waiter.tell.is_closed());
        }
        if waiting.len() >= self.upstream.waiting_max {
            return None;
        }
        self.waited.set(Some(Instant::now()));
        let arrival = self.arrivals.get();
        self.arrivals.set(arrival + 1);
        let (tell, told) = oneshot::channel();
        waiting.push_back(Waiter { wants, arrival, deadline, tell });
        Some(told)
    }

    /// Gives those who wait what there is, in their order, and opens what they need.
    fn serve(self: &Rc<Self>) {
        if self.serving.replace(true) {
            return; // What is given back meanwhile is found by who serves.
        }
        while let Some((waiter, link)) = self.next_served() {
            let ready = ReadyConnection::new(link, Pool { shared: Rc::clone(self) }, waiter.wants);
            let _ = waiter.tell.send(Ok(ready)); // It goes back from one that has given up.
        }
        self.open_more();
        self.serving.set(false);
    }

    /// Who has waited longest of those for whom there is something.
    fn next_served(self: &Rc<Self>) -> Option<(Waiter, Link)> {
        let mut waiting = self.waiting.borrow_mut();
        while waiting.front().is_some_and(|waiter| waiter.tell.is_closed()) {
            waiting.pop_front();
        }
        let first = waiting.front()?.wants;
        if let Some(link) = self.free(first) {
            return Some((waiting.pop_front()?, link));
        }
        // Who waits for HTTP/1.1 is in nobody's way who takes a stream.
        if first == Wants::Either {
            return None;
        }
        let other = waiting
            .iter()
            .position(|waiter| waiter.wants == Wants::Either && !waiter.tell.is_closed())?;
        let link = self.free(Wants::Either)?;
        Some((waiting.remove(other)?, link))
    }

    /// Opens what those who wait need that there may be.
    fn open_more(self: &Rc<Self>) {
        // How many do, up to that many: thousands may wait, and each that is served comes by here.
        let waiting = |wants: Option<Wants>, most: usize| {
            let waiting = self.waiting.borrow();
            let fits = |waiter: &&Waiter| {
                wants.is_none_or(|wants| wants == waiter.wants) && !waiter.tell.is_closed()
            };
            waiting.iter().filter(fits).take(most).count()
        };
        if self.picked.get() == Protocol::Http2
            && !self.opening_for_all.get()
            && self.http2.borrow().iter().all(|connection| connection.has_allowed_any())
            && waiting(Some(Wants::Either), 1) > 0
        {
            self.open(Wants::Either, true);
        }
        loop {
            let opening = self.opening_for_one.get();
            let (wants, of_them) = match self.picked.get() {
                Protocol::Http1 => (Wants::Either, None),
                Protocol::Http2 => (Wants::Http1, Some(Wants::Http1)),
            };
            if waiting(of_them, opening + 1) <= opening || !self.open(wants, false) {
                return;
            }
        }
    }

    /// Opens a connection, unless there may be no more. False then.
    fn open(self: &Rc<Self>, wants: Wants, is_for_all: bool) -> bool {
        let has = if is_for_all { self.http2.borrow().len() } else { self.http1_open.get() };
        if has >= self.upstream.connections_max {
            return false;
        }
        let Some(permit) = self.upstream.quota.take(self.connections()) else {
            self.retry();
            return false;
        };
        let Some((wants, deadline)) = self.opens_for(wants, is_for_all) else { return false };
        let place = if is_for_all {
            self.opening_for_all.set(true);
            None
        } else {
            self.opening_for_one.set(self.opening_for_one.get() + 1);
            Some(self.place())
        };
        let (pool, began) = (Rc::clone(self), self.arrivals.get());
        let opening = Opening { pool, began, is_for_all, place, permit: Some(permit), deadline };
        tokio::task::spawn_local(opening.run(wants));
        true
    }

    /// What a connection is opened for, and until when: as long as anybody waits for it.
    fn opens_for(&self, wants: Wants, is_for_all: bool) -> Option<(Wants, Instant)> {
        let waiting = self.waiting.borrow();
        let mut fit =
            waiting.iter().filter(|waiter| wants == Wants::Either || waiter.wants == wants);
        let first = if is_for_all { wants } else { fit.clone().next()?.wants };
        Some((first, fit.by_ref().map(|waiter| waiter.deadline).max()?))
    }

    /// No connection could be opened. Who waited for it is told: all, if it was for all and there
    /// is no other.
    fn fail(&self, error: &UpstreamError, (wants, began): (Wants, u64), is_for_all: bool) {
        if matches!(error, UpstreamError::Timeout) {
            return; // Nobody's time is left.
        }
        let tells_all = is_for_all && self.http2.borrow().is_empty();
        let told: VecDeque<_> = {
            let mut waiting = self.waiting.borrow_mut();
            let fits = |waiter: &Waiter| {
                waiter.arrival < began && (wants == Wants::Either || waiter.wants == wants)
            };
            if tells_all {
                let (failed, others) = waiting.drain(..).partition(fits);
                *waiting = others;
                failed
            } else {
                let first = waiting.iter().position(fits);
                first.and_then(|first| waiting.remove(first)).into_iter().collect()
            }
        };
        for waiter in told {
            let _ = waiter.tell.send(Err(error.clone()));
        }
    }

    /// Counts one more HTTP/1.1 connection.
    fn place(self: &Rc<Self>) -> Place {
        self.http1_open.set(self.http1_open.get() + 1);
        Place { pool: Rc::downgrade(self), permit: None }
    }

    /// Looks again when the quota may have room, as long as somebody waits.
    fn retry(self: &Rc<Self>) {
        if self.retrying.replace(true) {
            return;
        }
        let (pool, wanted) = (Rc::downgrade(self), self.upstream.quota.want());
        tokio::task::spawn_local(async move {
            let _wanted = wanted;
            while let Some(pool) = pool.upgrade() {
                if pool.waiting.borrow().iter().all(|waiter| waiter.tell.is_closed()) {
                    pool.retrying.set(false);
                    return;
                }
                pool.serve();
                drop(pool);
                tokio::time::sleep(QUOTA_LOOK).await;
            }
        });
    }

    /// Closes idle connections in time, as long as there are any.
    fn sweep(self: &Rc<Self>) {
        if self.sweeping.replace(true) {
            return;
        }
        let (pool, idle_timeout) = (Rc::downgrade(self), self.upstream.idle_timeout);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(idle_timeout.min(IDLE_LOOK)).await;
                let Some(pool) = pool.upgrade() else { return };
                if !pool.close_old() {
                    pool.sweeping.set(false);
                    return;
                }
            }
        });
    }

    /// Closes what has been idle for too long, or all that is if others may wait for a connection.
    /// False if nothing is left.
    fn close_old(&self) -> bool {
        let idle_max = if self.upstream.quota.is_wanted() {
            Duration::ZERO
        } else {
            self.upstream.idle_timeout
        };
        let closed: Vec<_> = self
            .idle
            .borrow_mut()
            .extract_if(.., |one| one.idle_since.elapsed() >= idle_max)
            .collect();
        let ended: Vec<_> =
            self.http2.borrow_mut().extract_if(.., |one| !one.is_kept(idle_max)).collect();
        drop((closed, ended)); // Nothing is borrowed: each makes room for a request that waits.
        !self.idle.borrow().is_empty() || !self.http2.borrow().is_empty()
    }

    /// Says in the log that there is no TLS, and why: it will stay so until somebody does something
    /// about it.
    fn complain(&self, error: &UpstreamError) {
        let now = Instant::now();
        let error: &(dyn Error + 'static) = error;
        let what = error.source().map(ToString::to_string);
        let mut complained = self.complained.borrow_mut();
        let said_lately = complained
            .as_ref()
            .is_some_and(|(last, said)| now < *last + COMPLAINT_INTERVAL && *said == what);
        if !said_lately {
            *complained = Some((now, what));
            tracing::warn!(upstream = %self.upstream.address, error = %WithCauses(error), "there is no TLS with the worker");
        }
    }

    fn complain_of_loss(&self, socket: &Socket) {
        if let (Speaks::Tls(tls), Some(cause)) = (&self.upstream.speaks, socket.tls_failure()) {
            self.complain(&tls.failed(io::Error::other(cause)));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.permit = None; // Where others have fewer connections, it may be for them.
        if let Some(pool) = self.pool.upgrade() {
            pool.http1_open.set(pool.http1_open.get() - 1);
            pool.serve();
        }
    }
}
