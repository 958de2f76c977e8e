//! What a service may answer with.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, Version};
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
pub(super) struct Counted<B: Body> {
    body: B,
    in_flight: InFlight,
    /// Whether its client will take the connection's end for its own, as with HTTP/1.0 and a length that is not known: one that is cut off
    /// must not look like one that is whole (RFC 9112, section 8).
    ends_with_connection: bool,
    /// Whether hyper has asked for it, and there is more to come. It asks for nothing where nothing may follow the head.
    is_amid: bool,
}

/// Keeps `in_flight` with the answer to a request of that version, and puts its tunnel aside for when the connection is handed over.
pub(super) fn counted<B: AnswerBody>(answer: Response<B>, to: Version, in_flight: InFlight) -> Response<Counted<B>> {
    let switches = answer.status() == http::StatusCode::SWITCHING_PROTOCOLS;
    answer.map(|mut body| {
        if switches {
            in_flight.connection().tunnel.set(body.take_tunnel());
        }
        let ends_with_connection = to == Version::HTTP_10 && body.size_hint().exact().is_none();
        Counted { body, in_flight, ends_with_connection, is_amid: false }
    })
}

impl<B: Body> Drop for Counted<B> {
    fn drop(&mut self) {
        if self.ends_with_connection && self.is_amid {
            self.in_flight.connection().socket.end_by_reset();
        }
    }
}

impl<B: AnswerBody + Unpin> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(unread) = self.in_flight.unread() {
            unread.taken();
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.is_amid = match &polled {
            Poll::Ready(None) => false,
            // Trailers are the last: hyper asks for nothing behind them.
            Poll::Ready(Some(Ok(frame))) => !frame.is_trailers() && !self.body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => true,
        };
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
