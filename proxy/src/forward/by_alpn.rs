//! Connections over TLS, for each of which the worker picks a protocol.
//!
//! Nobody knows what it picks before a connection is there, and after a restart it may pick another. So a connection says itself
//! what is spoken on it; what is free is used, whichever kind it is; and what the worker picked last says only how new ones are
//! opened: HTTP/1.1 takes one for each request, HTTP/2 one for all. If that guess is wrong, the connection is used for what it
//! is, and the others look again.

use std::error::Error;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::time::{Instant, timeout_at};

use super::connect::{Opened, open};
use super::error::UpstreamError;
use super::http1::Http1;
use super::pool::{Link, Place, Shared, Turn, Wants};
use super::quota::QuotaPermit;
use super::upstream::Speaks;
use crate::downstream::Protocol;
use crate::logging::WithCauses;
use crate::wire::Socket;

/// What can be had at once.
pub(super) fn free(pool: &Rc<Shared>, wants: Wants) -> Option<Link> {
    let stream = match wants {
        Wants::Either => pool.http2.free_stream(&pool.upstream),
        Wants::Http1 => None,
    };
    stream.map(Link::Http2).or_else(|| pool.pop_idle().map(Link::Http1))
}

/// Waits for a connection that will do.
pub(super) async fn ready(pool: &Rc<Shared>, wants: Wants, deadline: Instant) -> Result<Link, UpstreamError> {
    let came_after = pool.http2.openings();
    loop {
        if let Some(link) = free(pool, wants) {
            // It may have been woken to open a connection, of which others want a stream.
            if matches!(link, Link::Http1(_)) {
                pool.http2.wake_to_open();
            }
            return Ok(link);
        }
        let found = match (wants, pool.picked.get()) {
            (Wants::Either, Protocol::Http2) => one_for_all(pool, came_after, deadline).await?,
            (Wants::Either, Protocol::Http1) | (Wants::Http1, _) => one_more(pool, wants, deadline).await?,
        };
        if let Some(link) = found {
            return Ok(link);
        }
    }
}

/// How often the log says the same of a worker.
pub(super) const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

impl Shared {
    /// Says in the log that there is no TLS, and why: it will stay so until somebody does something about it.
    fn complain(&self, error: &UpstreamError) {
        let now = Instant::now();
        let error: &(dyn Error + 'static) = error;
        let what = error.source().map(ToString::to_string);
        let mut complained = self.complained.borrow_mut();
        let said_lately =
            complained.as_ref().is_some_and(|(last, said)| now < *last + COMPLAINT_INTERVAL && *said == what);
        if !said_lately {
            *complained = Some((now, what));
            tracing::warn!(upstream = %self.upstream.address, error = %WithCauses(error), "there is no TLS with the worker");
        }
    }

    /// The same of a connection that was lost later, if that was TLS: by TLS 1.3, a worker refuses our certificate when we take
    /// the connection for open already.
    pub(super) fn complain_of_loss(&self, connection: &Socket) {
        if let (Speaks::Tls(tls), Some(cause)) = (&self.upstream.speaks, connection.tls_failure()) {
            self.complain(&tls.failed(io::Error::other(cause)));
        }
    }
}

/// Opens a connection for all who wait, or waits for what another request opens. `None`: there may be something to be had now.
async fn one_for_all(pool: &Rc<Shared>, came_after: u64, deadline: Instant) -> Result<Option<Link>, UpstreamError> {
    match pool.http2.begin_opening(&pool.upstream) {
        Some(opening) => opening.tell(open_for_all(pool, deadline).await),
        None => pool.http2.freed(&pool.upstream, came_after, deadline).await.map(|()| None),
    }
}

async fn open_for_all(pool: &Rc<Shared>, deadline: Instant) -> Result<Option<Link>, UpstreamError> {
    let permit_or_link = || {
        let permit = pool.upstream.quota.take(pool.connections()).map(Either::Left);
        permit.or_else(|| free(pool, Wants::Either).map(Either::Right))
    };
    let permit = match pool.http2.until_permitted(&pool.upstream, deadline, permit_or_link).await? {
        Either::Left(permit) => permit,
        Either::Right(link) => return Ok(Some(link)),
    };
    let opened = open_by(pool, Wants::Either, deadline).await?;
    match opened.protocol {
        Protocol::Http2 => add(pool, opened, permit, deadline).await.map(|()| None),
        // If all places are taken by what was opened before, it is closed again.
        Protocol::Http1 => match pool.place(permit) {
            Some(place) => Ok(Some(Link::Http1(http1(pool, opened, place).await?))),
            None => Ok(None),
        },
    }
}

/// Opens a connection for one request, or waits for one that another request is done with. `None`: there may be something to be
/// had now.
async fn one_more(pool: &Rc<Shared>, wants: Wants, deadline: Instant) -> Result<Option<Link>, UpstreamError> {
    let place = match pool.turn(wants, deadline).await? {
        Turn::Connection(connection) => return Ok(Some(Link::Http1(connection))),
        Turn::Place(place) => place,
        Turn::LookAgain => return Ok(None),
    };
    // It may have waited. If it gives its place back, the next in the queue has it.
    if let Some(link) = free(pool, wants) {
        return Ok(Some(link));
    }
    let opened = open_by(pool, wants, deadline).await?;
    match opened.protocol {
        Protocol::Http1 => Ok(Some(Link::Http1(http1(pool, opened, place).await?))),
        Protocol::Http2 => match pool.http2.free_stream(&pool.upstream) {
            Some(stream) => Ok(Some(Link::Http2(stream))), // Others were faster: it is closed again.
            None => add(pool, opened, place.into_permit(), deadline).await.map(|()| None),
        },
    }
}

async fn add(pool: &Shared, opened: Opened, permit: QuotaPermit, deadline: Instant) -> Result<(), UpstreamError> {
    let socket = opened.socket.clone();
    let added = pool.http2.add(&pool.upstream, opened, permit, deadline).await;
    added.inspect_err(|_| pool.complain_of_loss(&socket))
}

async fn http1(pool: &Shared, opened: Opened, place: Place) -> Result<Box<Http1>, UpstreamError> {
    let made = Http1::new(opened.socket, opened.made_with, place, pool.background.outbox().clone()).await;
    made.map(Box::new).map_err(UpstreamError::handshake)
}

async fn open_by(pool: &Shared, wants: Wants, deadline: Instant) -> Result<Opened, UpstreamError> {
    let opened = timeout_at(deadline, open(&pool.upstream, &pool.addresses, wants)).await;
    let opened = opened.map_err(|_| UpstreamError::Timeout)?;
    if let Err(error @ UpstreamError::Tls { .. }) = &opened {
        pool.complain(error);
    }
    let opened = opened?;
    if wants == Wants::Either && pool.picked.replace(opened.protocol) != opened.protocol {
        pool.http2.wake_all(); // They are to wait for something else.
    }
    Ok(opened)
}
