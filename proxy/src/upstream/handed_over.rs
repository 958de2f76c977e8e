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
use crate::downstream::Protocol;
use crate::wire::Socket;

/// Whether hyper still holds something of a request.
pub(super) struct HandedOver {
    socket: Socket,
    turns: Rc<Turns>,
    /// `None` as long as hyper has the body.
    let_go: Cell<Option<LetGo>>,
}

/// hyper has dropped the body.
#[derive(Clone, Copy)]
struct LetGo {
    /// At its end, and not before.
    is_whole: bool,
    clean_turns: u64,
    at: Instant,
}

/// The body of a request as hyper gets it.
///
/// Over HTTP/2 each piece comes as all but its last byte, and that byte. h2 takes a piece as soon as there is room for one byte of
/// it, and keeps the rest. So hyper takes the last byte, and then drops the body, only when the worker has room for all before it.
pub(super) struct Outgoing {
    /// `None` once it was taken back.
    body: Option<RequestBody>,
    /// Of the piece that was handed over last.
    last_byte: Option<Bytes>,
    protocol: Protocol,
    handed_over: Rc<HandedOver>,
}

/// What hyper gives for a request: a head, or the request back if nothing of it was sent.
pub(super) type HeadFuture = Pin<Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Outgoing>>>>>>;

impl HandedOver {
    /// A request of which nothing was handed over yet, on that connection.
    pub(super) fn new(socket: Socket, turns: Rc<Turns>) -> HandedOver {
        HandedOver { socket, turns, let_go: Cell::new(None) }
    }

    /// Whether all of the request is with the kernel.
    pub(super) fn is_written(&self) -> bool {
        self.let_go.get().is_some_and(|let_go| let_go.is_whole && self.turns.clean() > let_go.clean_turns)
    }

    /// Whether nothing more of the request will be written, be it whole or not.
    pub(super) fn is_settled(&self) -> bool {
        let is_flushed = self.let_go.get().is_some_and(|let_go| self.turns.clean() > let_go.clean_turns);
        is_flushed || self.is_lost()
    }

    /// Whether the connection takes nothing more.
    pub(super) fn is_lost(&self) -> bool {
        self.socket.is_broken() || self.turns.have_ended()
    }

    /// When the kernel at the latest took something of it, if it may deliver that late.
    pub(super) fn last_write(&self) -> Option<Instant> {
        let put_down = self.let_go.get().map_or_else(Instant::now, |let_go| let_go.at);
        self.socket.written_by(put_down)
    }

    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    fn let_go(&self, is_whole: bool) {
        self.let_go.set(Some(LetGo { is_whole, clean_turns: self.turns.clean(), at: Instant::now() }));
    }
}

impl Outgoing {
    /// A body that goes out by that protocol.
    pub(super) fn new(mut body: RequestBody, protocol: Protocol, handed_over: Rc<HandedOver>) -> Outgoing {
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
