//! A connection that is ready for a request.

use std::rc::Rc;

use http::Request;

use super::handed_over::{HeadFuture, Outgoing};
use super::http1::Http1;
use super::http2::Stream;
use super::pool::Pool;
use super::target::Wants;
use super::turns::Turns;
use crate::server::Protocol;
use crate::wire::Socket;

/// A request's way to the worker.
pub(super) enum Link {
    /// Boxed, since it is handed from one request to the next.
    Http1(Box<Http1>),
    Http2(Stream),
}

/// A connection on which a request can be sent at once. Dropped unused, it goes back to its pool.
pub struct ReadyConnection {
    /// `None` once it is used.
    link: Option<Link>,
    pool: Pool,
    wants: Wants,
}

impl Link {
    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Link::Http1(_) => Protocol::Http1,
            Link::Http2(_) => Protocol::Http2,
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        match self {
            Link::Http1(connection) => connection.socket(),
            Link::Http2(stream) => stream.socket(),
        }
    }

    pub(super) fn turns(&self) -> &Rc<Turns> {
        match self {
            Link::Http1(connection) => connection.turns(),
            Link::Http2(stream) => stream.turns(),
        }
    }

    pub(super) fn send(&mut self, request: Request<Outgoing>) -> HeadFuture {
        match self {
            Link::Http1(connection) => connection.send(request),
            Link::Http2(stream) => stream.send(request),
        }
    }
}

impl ReadyConnection {
    pub(super) fn new(link: Link, pool: Pool, wants: Wants) -> ReadyConnection {
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
