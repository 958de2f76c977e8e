//! The connections of one worker thread to one upstream.
//! It does not carry requests: that is `at_worker`.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::Membership;
use scopeguard::guard;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connect::open;
use super::error::UpstreamError;
use super::http1::Http1;
use super::http2::{Http2, Stream};
use super::in_group::InGroup;
use super::link::Link;
use super::quota::{IDLE_LOOK, QUOTA_LOOK, QuotaPermit};
use super::target::{Speaks, Upstream, Wants};
use crate::logging::WithCauses;
use crate::server::Protocol;
use crate::wire::{Background, Socket};

/// How often the log repeats a complaint about a worker.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// The pause before a connection is tried again. Each further pause is four times as long.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(1250);

/// How long a client may leave a piece of its response lying while others wait for a connection.
pub(super) const STALL_MAX: Duration = Duration::from_secs(1);

/// The connections of one worker thread to one upstream: the one used last is used first. Clones
/// share them.
///
/// Requests that find none wait, in the order in which they come. The first of them takes what gets
/// free. What they need is opened meanwhile: a connection for each over HTTP/1.1, one for all over
/// HTTP/2. Behind TLS nobody knows which it will be before it is there, so the pool expects what the
/// worker picked last.
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
    /// Requests that take what the worker speaks.
    either: Queue,
    /// Requests that need HTTP/1.1 where the worker may speak both.
    http1_only: Queue,
    /// Notified when something has got free, was opened, or could not be.
    changed: Rc<Notify>,
    /// What a worker behind TLS picked last.
    picked: Cell<Protocol>,
    /// Whether the last HTTP/2 connection that was to be opened could not be.
    has_failed: Cell<bool>,
    is_sweeping: Cell<bool>,
    /// When a request last waited for one that others have.
    waited: Cell<Option<Instant>>,
    /// What the log has said, and when.
    told: RefCell<Vec<(String, Instant)>>,
    /// `None` unless its connections depend on the standing of this process in a group.
    in_group: Option<InGroup>,
}

/// The requests that wait for one kind of connection.
#[derive(Default)]
struct Queue {
    /// Held by the first of them. The lock is fair: the others get it in the order of arrival.
    front: Mutex<()>,
    waiting: Cell<usize>,
    /// Connections that are being opened for them.
    opening: Cell<usize>,
    /// Why a connection could not be opened, and how many are to be told that.
    failed: RefCell<Option<(UpstreamError, usize)>>,
}

/// A connection on which a request can be sent at once. Dropped unused, it goes back to its pool.
pub struct ReadyConnection {
    /// `None` once it is used.
    link: Option<Link>,
    pool: Pool,
    wants: Wants,
}

impl ReadyConnection {
    /// The way to the worker, for the one request.
    pub(super) fn take(mut self) -> (Link, Pool, Wants) {
        (self.link.take().expect("a connection is used once"), self.pool.clone(), self.wants)
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
            self.pool.put_back(connection);
        }
    }
}

impl Pool {
    /// A pool that has no connection yet. What outlives its client runs in `background`.
    pub fn new(upstream: Upstream, background: Background) -> Pool {
        Pool::made(upstream, background, None)
    }

    /// A pool for requests that share their gates with those of other processes: it writes only
    /// while this process stands in its group. Within a `LocalSet`.
    pub fn in_group(
        upstream: Upstream,
        background: Background,
        membership: Arc<Membership>,
    ) -> Pool {
        let in_group = InGroup::new(membership, &upstream.address.to_string());
        Pool::made(upstream, background, Some(in_group))
    }

    fn made(upstream: Upstream, background: Background, in_group: Option<InGroup>) -> Pool {
        let picked = match upstream.speaks {
            Speaks::Cleartext(protocol) => protocol,
            Speaks::Tls(_) if upstream.keepalive => Protocol::Http2,
            Speaks::Tls(_) => Protocol::Http1,
        };
        Pool {
            shared: Rc::new(Shared {
                upstream,
                background,
                idle: RefCell::default(),
                http2: RefCell::default(),
                http1_open: Cell::new(0),
                either: Queue::default(),
                http1_only: Queue::default(),
                changed: Rc::default(),
                picked: Cell::new(picked),
                has_failed: Cell::new(false),
                is_sweeping: Cell::new(false),
                waited: Cell::new(None),
                told: RefCell::default(),
                in_group,
            }),
        }
    }

    /// Where its connections go.
    pub fn upstream(&self) -> &Upstream {
        &self.shared.upstream
    }

    /// Whether requests may be sent over it now, as far as a group is concerned.
    pub fn stands(&self) -> bool {
        self.shared.in_group.as_ref().is_none_or(InGroup::stands)
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
        let pool = &self.shared;
        if pool.waiting() >= pool.upstream.waiting_max {
            return Err(UpstreamError::Crowded);
        }
        let queue = pool.queue(wants);
        queue.waiting.set(queue.waiting.get() + 1);
        let _waiting = guard((), |()| queue.leave());
        match timeout_at(deadline, pool.wait(wants, deadline)).await {
            Ok(link) => Ok(self.made_ready(link?, wants)),
            Err(_) if pool.is_opening() || pool.may_open(wants) => Err(UpstreamError::Timeout),
            Err(_) => Err(UpstreamError::Crowded),
        }
    }

    /// A connection that can be had at once, as most requests find one.
    pub fn free(&self, wants: Wants) -> Option<ReadyConnection> {
        if self.shared.queue(wants).waiting.get() > 0 {
            return None; // They come first.
        }
        self.shared.free(wants).map(|link| self.made_ready(link, wants))
    }

    fn made_ready(&self, link: Link, wants: Wants) -> ReadyConnection {
        ReadyConnection { link: Some(link), pool: self.clone(), wants }
    }

    /// Takes back a connection that has no request.
    pub(super) fn put_back(&self, connection: Box<Http1>) {
        if !self.shared.upstream.quota.is_for_others(self.shared.connections()) {
            self.shared.take_in(connection);
        }
    }

    /// Whether a client that lets an HTTP/1.1 connection wait is to lose it, since others wait for
    /// one.
    pub(super) fn is_wanted(&self) -> bool {
        let pool = &self.shared;
        let waited = pool.waited.get().is_some_and(|waited| waited.elapsed() < STALL_MAX);
        let lacks = [Wants::Either, Wants::Http1].into_iter().any(|wants| pool.lacks(wants));
        waited || lacks || pool.upstream.quota.is_wanted()
    }

    /// A connection was lost with a request on it. By TLS 1.3, a worker refuses our certificate
    /// when we take the connection for open already.
    pub(super) fn lost(&self, socket: &Socket) {
        self.shared.complain_of_loss(socket);
    }

    /// A kept connection ended under a request of which the worker has said nothing. Where that
    /// happens again, to one that was opened since and so not by the same restart, the log names the
    /// settings that help.
    pub(super) fn lost_while_kept(&self, opened: Instant) {
        let is_again = self.shared.has_told_before("kept", opened);
        if !self.is_news("kept") && is_again && self.is_news("kept again") {
            let upstream = &self.upstream().address;
            tracing::warn!(%upstream, "the worker closes kept connections without Connection: close, \
                and requests that meet the end are lost: set upstream_keepalive = false on its routes, \
                or limits.upstream_idle_timeout below the worker's own");
        }
    }

    /// Whether the log has not said that of the worker for a while.
    pub fn is_news(&self, what: &str) -> bool {
        self.shared.is_news(what)
    }
}

impl Shared {
    fn queue(&self, wants: Wants) -> &Queue {
        match (wants, &self.upstream.speaks) {
            (Wants::Http1, Speaks::Tls(_)) => &self.http1_only,
            (Wants::Http1, Speaks::Cleartext(_)) | (Wants::Either, _) => &self.either,
        }
    }

    fn waiting(&self) -> usize {
        self.either.waiting.get() + self.http1_only.waiting.get()
    }

    fn is_opening(&self) -> bool {
        self.either.opening.get() + self.http1_only.opening.get() > 0
    }

    /// Waits until a request is the first in its queue and there is a connection for it.
    async fn wait(self: &Rc<Self>, wants: Wants, deadline: Instant) -> Result<Link, UpstreamError> {
        self.open_more(wants, deadline);
        let queue = self.queue(wants);
        let _front = queue.front.lock().await;
        let mut wanted = None;
        loop {
            let changed = self.changed.notified(); // Before the look, so that no change is missed.
            if let Some(link) = self.free(wants) {
                return Ok(link);
            }
            if let Some(error) = queue.take_failure() {
                return Err(error);
            }
            let is_in_quota = self.open_more(wants, deadline);
            if self.lacks(wants) {
                self.waited.set(Some(Instant::now()));
            }
            if is_in_quota {
                changed.await;
            } else {
                wanted.get_or_insert_with(|| self.upstream.quota.want());
                let _ = timeout(QUOTA_LOOK, changed).await; // Other pools give back without a word.
            }
        }
    }

    /// What can be had at once.
    fn free(&self, wants: Wants) -> Option<Link> {
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
            && !self.upstream.is_aged(connection.opened)
    }

    /// A stream of an HTTP/2 connection. Those that would be made otherwise by now get no more of
    /// them.
    fn stream(&self) -> Option<Stream> {
        let upstream = &self.upstream;
        let mut open = self.http2.borrow_mut();
        open.retain(|one| {
            one.is_kept(upstream.idle_timeout)
                && upstream.is_current(one.made_with())
                && !upstream.is_aged(one.opened)
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

    /// What a new connection is expected to speak.
    fn expected(&self, wants: Wants) -> Protocol {
        if wants == Wants::Http1 { Protocol::Http1 } else { self.picked.get() }
    }

    /// Whether the upstream's own limit allows one more connection.
    fn has_room(&self, wants: Wants) -> bool {
        let connections_max = self.upstream.connections_max;
        match self.expected(wants) {
            Protocol::Http1 => self.http1_open.get() < connections_max,
            Protocol::Http2 => {
                let open = self.http2.borrow();
                // A worker that allows no streams on one allows none on the next.
                open.len() < connections_max && open.iter().all(|one| one.has_allowed_any())
            }
        }
    }

    fn may_open(&self, wants: Wants) -> bool {
        self.has_room(wants) && self.upstream.quota.has_room(self.connections())
    }

    /// Whether requests wait for what others have: more of them than there are connections open for
    /// them, or about to be.
    fn lacks(&self, wants: Wants) -> bool {
        let queue = self.queue(wants);
        let (waiting, opening) = (queue.waiting.get(), queue.opening.get());
        match self.expected(wants) {
            Protocol::Http1 => waiting > opening + self.idle.borrow().len(),
            Protocol::Http2 => waiting > 0 && opening == 0,
        }
    }

    /// Opens what those who wait need, if there may be more. False where the quota has no more.
    fn open_more(self: &Rc<Self>, wants: Wants, deadline: Instant) -> bool {
        let queue = self.queue(wants);
        let needed = match self.expected(wants) {
            Protocol::Http1 => queue.waiting.get(),
            Protocol::Http2 => 1,
        };
        while queue.opening.get() < needed && self.has_room(wants) {
            let Some(permit) = self.upstream.quota.take(self.connections()) else { return false };
            self.open(wants, permit, deadline);
        }
        true
    }

    /// Opens a connection in a task of its own. The first request in the queue then gets it.
    fn open(self: &Rc<Self>, wants: Wants, permit: QuotaPermit, deadline: Instant) {
        let is_for_all = self.expected(wants) == Protocol::Http2;
        let place = (!is_for_all).then(|| self.place());
        let opening = &self.queue(wants).opening;
        opening.set(opening.get() + 1);
        let pool = guard(Rc::clone(self), move |pool| {
            let opening = &pool.queue(wants).opening;
            opening.set(opening.get() - 1);
            pool.changed.notify_waiters();
        });
        tokio::task::spawn_local(async move {
            let connecting = pool.connect_patiently(wants, permit, place, deadline);
            let opened = timeout_at(deadline, connecting).await;
            if is_for_all {
                pool.has_failed.set(!matches!(opened, Ok(Ok(()))));
            }
            // After a timeout those who still have time open another.
            let Ok(Err(error)) = opened else { return };
            if matches!(error, UpstreamError::Tls { .. }) {
                pool.complain(&error);
            }
            pool.queue(wants).fail(error, is_for_all && pool.http2.borrow().is_empty());
        });
    }

    /// Opens a connection, and tries again while the worker may be restarting: nothing of a request
    /// has been sent. The last try precedes the deadline, so that requests fail for its reason.
    async fn connect_patiently(
        self: &Rc<Self>,
        wants: Wants,
        permit: QuotaPermit,
        mut place: Option<Box<dyn Any>>,
        deadline: Instant,
    ) -> Result<(), UpstreamError> {
        let permit = Rc::new(permit);
        let (mut retries, mut pause) = (self.upstream.connect_retries, RETRY_PAUSE);
        loop {
            let opened = self.connect(wants, &permit, &mut place).await;
            let is_awaited = retries > 0 && self.queue(wants).waiting.get() > 0;
            match opened {
                Err(error) if is_awaited && error.may_pass() => {
                    let (upstream, error) = (&self.upstream.address, WithCauses(&error));
                    tracing::debug!(%upstream, %error, retries, "a connection is tried again");
                }
                opened => return opened,
            }
            sleep(pause.min((deadline - Instant::now()) * 7 / 8)).await;
            (retries, pause) = (retries - 1, (4 * pause).min(RETRY_PAUSE_MAX));
        }
    }

    /// Opens a connection, and takes it in.
    async fn connect(
        self: &Rc<Self>,
        wants: Wants,
        permit: &Rc<QuotaPermit>,
        place: &mut Option<Box<dyn Any>>,
    ) -> Result<(), UpstreamError> {
        let opened = open(&self.upstream, wants).await?;
        if wants == Wants::Either {
            self.picked.set(opened.protocol);
        }
        let socket = opened.socket.clone();
        match opened.protocol {
            Protocol::Http1 => {
                if place.is_none() && self.http1_open.get() >= self.upstream.connections_max {
                    return Ok(());
                }
                let counted = (Rc::clone(permit), place.take().unwrap_or_else(|| self.place()));
                let headers_max = self.upstream.headers_max;
                let made = Http1::new(socket, opened.made_with, counted, headers_max).await;
                let connection = made.map_err(UpstreamError::handshake)?;
                self.in_group.iter().for_each(|group| group.add(connection.socket()));
                self.take_in(connection);
            }
            Protocol::Http2 => {
                let changed = Rc::clone(&self.changed);
                let permit = Rc::clone(permit);
                let begun = Http2::begin(opened, permit, self.upstream.streams_max, changed).await;
                let connection = begun.inspect_err(|_| self.complain_of_loss(&socket))?;
                self.in_group.iter().for_each(|group| group.add(&socket));
                self.http2.borrow_mut().push(connection);
                self.sweep();
            }
        }
        Ok(())
    }

    fn take_in(self: &Rc<Self>, connection: Box<Http1>) {
        let mut idle = self.idle.borrow_mut();
        let place = idle.partition_point(|other| other.idle_since <= connection.idle_since);
        idle.insert(place, connection);
        drop(idle);
        self.changed.notify_waiters();
        self.sweep();
    }

    /// Counts one more HTTP/1.1 connection, until what this returns is dropped.
    fn place(self: &Rc<Self>) -> Box<dyn Any> {
        self.http1_open.set(self.http1_open.get() + 1);
        Box::new(guard(Rc::downgrade(self), |pool| {
            if let Some(pool) = pool.upgrade() {
                pool.http1_open.set(pool.http1_open.get() - 1);
                pool.changed.notify_waiters();
            }
        }))
    }

    /// Closes idle connections in time, as long as there are any.
    fn sweep(self: &Rc<Self>) {
        if self.is_sweeping.replace(true) {
            return;
        }
        let (pool, idle_timeout) = (Rc::downgrade(self), self.upstream.idle_timeout);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(idle_timeout.min(IDLE_LOOK)).await;
                let Some(pool) = pool.upgrade() else { return };
                if !pool.close_old() {
                    pool.is_sweeping.set(false);
                    return;
                }
            }
        });
    }

    /// Closes what has been idle for too long, or all that is if others may wait for a connection.
    /// False if nothing is left.
    fn close_old(&self) -> bool {
        let is_wanted = self.upstream.quota.is_wanted();
        let idle_max = if is_wanted { Duration::ZERO } else { self.upstream.idle_timeout };
        self.idle.borrow_mut().retain(|one| one.idle_since.elapsed() < idle_max);
        self.http2.borrow_mut().retain(|one| one.is_kept(idle_max));
        !self.idle.borrow().is_empty() || !self.http2.borrow().is_empty()
    }

    fn is_news(&self, what: &str) -> bool {
        let (now, mut told) = (Instant::now(), self.told.borrow_mut());
        told.retain(|(_, at)| now < *at + COMPLAINT_INTERVAL);
        let is_news = told.iter().all(|(said, _)| said != what);
        if is_news {
            told.push((what.to_owned(), now));
        }
        is_news
    }

    /// Whether [`is_news`](Self::is_news) was asked of that before then, and not long before.
    fn has_told_before(&self, what: &str, then: Instant) -> bool {
        self.told.borrow().iter().any(|(said, at)| said == what && *at <= then)
    }

    /// Says in the log that there is no TLS, and why: it will stay so until somebody does something
    /// about it.
    fn complain(&self, error: &UpstreamError) {
        if error.source().is_some_and(|cause| self.is_news(&cause.to_string())) {
            tracing::warn!(upstream = %self.upstream.address, error = %WithCauses(error), "there is no TLS with the worker");
        }
    }

    fn complain_of_loss(&self, socket: &Socket) {
        if let (Speaks::Tls(tls), Some(cause)) = (&self.upstream.speaks, socket.tls_failure()) {
            self.complain(&tls.failed(io::Error::other(cause)));
        }
    }
}

impl Queue {
    /// A connection could not be opened. All who wait are told that, or the first of them.
    fn fail(&self, error: UpstreamError, tells_all: bool) {
        let before = self.failed.take().map_or(0, |(_, untold)| untold);
        let waiting = self.waiting.get();
        let untold = if tells_all { waiting } else { waiting.min(before + 1) };
        *self.failed.borrow_mut() = (untold > 0).then_some((error, untold));
    }

    /// One waits no longer. Nobody else is told in its place that no connection could be opened.
    fn leave(&self) {
        self.waiting.set(self.waiting.get() - 1);
        let failed = self.failed.take();
        let untold = |(error, untold): (_, usize)| (error, untold.min(self.waiting.get()));
        *self.failed.borrow_mut() = failed.map(untold).filter(|(_, untold)| *untold > 0);
    }

    fn take_failure(&self) -> Option<UpstreamError> {
        let (error, untold) = self.failed.take()?;
        *self.failed.borrow_mut() = (untold > 1).then(|| (error.clone(), untold - 1));
        Some(error)
    }
}
