//! Gives hyper's two kinds of connection one interface.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;

use http_body::Body;
use http1_strict::StrictReader;
use hyper::body::Incoming;
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;
use tokio::io::Join;

use super::frames;
use super::strict_trailers::StrictTrailers;
use super::unread::{Piece, Streams};
use crate::wire::Socket;

/// What hyper's HTTP/1 reads and writes.
pub(super) type ClientIo = Join<StrictReader<Socket>, Socket>;

/// What hyper's HTTP/2 reads and writes.
pub(super) type Http2Io = Join<StrictTrailers<frames::Counted>, Socket>;

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
