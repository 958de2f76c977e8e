//! hyper's two kinds of connection, as one, and in turns.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http_body::Body;
use http1_strict::StrictReader;
use hyper::body::Incoming;
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;

use super::connection::Connection;
use super::frames;
use super::strict_trailers::StrictTrailers;
use super::unread::{Piece, Streams};
use crate::wire::{Gathered, Socket};

/// What hyper's HTTP/1 reads and writes.
pub(super) type ClientIo = Gathered<StrictReader<Socket>, Socket>;

/// What hyper's HTTP/2 reads and writes.
pub(super) type Http2Io = Gathered<StrictTrailers<frames::Counted>, Socket>;

/// What hyper's two kinds of connection have in common.
pub(super) trait Serving: Future<Output = hyper::Result<()>> + Unpin {
    /// Finishes what is under way and takes nothing more.
    fn leave(&mut self);
}

impl<S, B> Serving for http1::Connection<TokioIo<ClientIo>, S>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Piece> + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    Self: Future<Output = hyper::Result<()>> + Unpin,
{
    fn leave(&mut self) {
        Pin::new(self).graceful_shutdown();
    }
}

impl<S, B> Serving for http2::Connection<TokioIo<Http2Io>, S, Streams>
where
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Piece> + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    Streams: Http2ServerConnExec<S::Future, B>,
    Self: Future<Output = hyper::Result<()>> + Unpin,
{
    fn leave(&mut self) {
        Pin::new(self).graceful_shutdown();
    }
}

/// A connection whose writes are gathered. It has ended well when all that it has said is written.
pub(super) struct InTurns<C> {
    pub(super) serving: C,
    connection: Rc<Connection>,
    has_served: bool,
}

impl<C> InTurns<C> {
    pub(super) fn new(serving: C, connection: &Rc<Connection>) -> InTurns<C> {
        InTurns { serving, connection: Rc::clone(connection), has_served: false }
    }
}

impl<C: Serving> Future for InTurns<C> {
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let InTurns { serving, connection, has_served } = &mut *self;
        let writes = &connection.writes;
        if !*has_served {
            ready!(writes.poll(cx, connection.background.outbox(), |cx| Pin::new(serving).poll(cx)))?;
            *has_served = true;
        }
        // If it can't be written, its client has gone.
        writes.poll_written(cx).map(|_| Ok(()))
    }
}

impl<C: Serving> Serving for InTurns<C> {
    fn leave(&mut self) {
        self.serving.leave();
    }
}
