//! A request's way to the worker: a connection of HTTP/1.1, or a stream of HTTP/2.

use std::rc::Rc;

use http::Request;

use super::handed_over::{HeadFuture, Outgoing};
use super::http1::Http1;
use super::http2::Stream;
use super::turns::Turns;
use crate::server::Protocol;
use crate::wire::Socket;

/// A request's way to the worker.
pub(super) enum Link {
    /// Boxed, since it is handed from one request to the next.
    Http1(Box<Http1>),
    Http2(Stream),
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
