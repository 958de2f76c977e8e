//! What hyper has been given of a request, and whether that is with the kernel.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::Instant;

use super::request_body::{RequestBody, RequestBodyError};
use super::turns::Turns;
use crate::server::Protocol;
use crate::wire::Socket;

/// Whether hyper still holds something of a request.
pub(super) struct HandedOver {
    socket: Socket,
    turns: Rc<Turns>,
    /// Whether hyper has dropped the body at its end, or before it. `None` as long as it has it.
    let_go: Cell<Option<bool>>,
    /// When everything that hyper had been given by then was with the kernel.
    written: Rc<Cell<Option<Instant>>>,
}

/// The body of a request as hyper gets it.
///
/// Over HTTP/2 each piece comes as all but its last byte, and that byte. hyper has the last byte at
/// once, but drops the body only when that byte is handed to h2, for which there has to be room for
/// all before it, or when the stream is reset. (A worker that makes its window smaller in just that
/// turn can take the room back; h2 tells nobody.)
pub(super) struct Outgoing {
    /// `None` once it was taken back.
    body: Option<RequestBody>,
    /// Of the piece that was handed over last.
    last_byte: Option<Bytes>,
    protocol: Protocol,
    handed_over: Rc<HandedOver>,
}

/// What hyper gives for a request: a head, or the request back if nothing of it was sent.
pub(super) type HeadFuture =
    Pin<Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Outgoing>>>>>>;

impl HandedOver {
    /// A request of which nothing was handed over yet, on that connection.
    pub(super) fn new(socket: Socket, turns: Rc<Turns>) -> HandedOver {
        HandedOver { socket, turns, let_go: Cell::new(None), written: Rc::default() }
    }

    /// Whether all of the request is with the kernel.
    pub(super) fn is_written(&self) -> bool {
        self.let_go.get() == Some(true) && self.written.get().is_some()
    }

    /// Whether nothing more of the request will be written. The worker may have only a part of it.
    pub(super) fn is_settled(&self) -> bool {
        self.written.get().is_some() || self.is_lost()
    }

    /// Whether the connection takes nothing more.
    pub(super) fn is_lost(&self) -> bool {
        self.socket.is_broken() || self.turns.have_ended()
    }

    /// When the kernel at the latest took something of it over HTTP/2, if it may deliver that late.
    pub(super) fn last_write(&self) -> Option<Instant> {
        self.socket.last_write().map(|_| self.written.get().unwrap_or_else(Instant::now))
    }

    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    fn let_go(&self, is_whole: bool) {
        self.let_go.set(Some(is_whole));
        self.turns.date_when_written(&self.written);
    }
}

impl Outgoing {
    /// Makes a body that goes out over this protocol.
    pub(super) fn new(
        mut body: RequestBody,
        protocol: Protocol,
        handed_over: Rc<HandedOver>,
    ) -> Outgoing {
        body.goes_by(protocol);
        Outgoing { body: Some(body), last_byte: None, protocol, handed_over }
    }

    /// Takes the body back: nothing of it was sent.
    pub(super) fn into_body(mut self) -> RequestBody {
        self.body.take().expect("a body is taken back once")
    }

    fn body(&mut self) -> Pin<&mut RequestBody> {
        Pin::new(self.body.as_mut().expect("hyper has it"))
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        if let Some(last_byte) = self.last_byte.take() {
            return Poll::Ready(Some(Ok(Frame::data(last_byte))));
        }
        let Some(frame) = ready!(self.body().poll_frame(cx)?) else { return Poll::Ready(None) };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(mut piece) if self.protocol == Protocol::Http2 && piece.len() > 1 => {
                self.last_byte = Some(piece.split_off(piece.len() - 1));
                Frame::data(piece)
            }
            Ok(piece) => Frame::data(piece),
            Err(trailers) => trailers,
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.last_byte.is_none() && self.body.as_ref().is_none_or(RequestBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, RequestBody::size_hint)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if self.body.is_some() {
            self.handed_over.let_go(self.is_end_stream());
        }
    }
}
