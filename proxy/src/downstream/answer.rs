//! What a service may answer with.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};

use super::connection::InFlight;
use crate::wire::Socket;

/// Takes a client's connection over after a `101 Switching Protocols`: the socket, and what was read of it already.
///
/// A box of its own, since protocols are switched once per connection.
pub type Tunnel = Box<dyn FnOnce(Socket, Bytes) -> Pin<Box<dyn Future<Output = ()>>>>;

/// The body of an answer.
pub trait AnswerBody: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + 'static {
    /// What takes the connection over once the head of this answer is out. Asked for answers with status 101 only.
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        None
    }
}

/// An answer's body that counts as in flight until hyper has written it, to the kernel or to what goes there with the end of the turn, and
/// drops it.
pub(super) struct Counted<B> {
    body: B,
    in_flight: InFlight,
}

/// Keeps `in_flight` with the answer, and puts its tunnel aside for when the connection is handed over.
pub(super) fn counted<B: AnswerBody>(answer: Response<B>, in_flight: InFlight) -> Response<Counted<B>> {
    let switches = answer.status() == http::StatusCode::SWITCHING_PROTOCOLS;
    answer.map(|mut body| {
        if switches {
            in_flight.connection().tunnel.set(body.take_tunnel());
        }
        Counted { body, in_flight }
    })
}

impl<B: AnswerBody + Unpin> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(unread) = self.in_flight.unread() {
            unread.taken();
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Some(unread), Poll::Ready(Some(Ok(frame)))) = (self.in_flight.unread(), &polled) {
            unread.given(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
