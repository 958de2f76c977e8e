//! What a service may answer with.

use std::cell::Cell;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, Version};
use http_body::{Body, Frame, SizeHint};

use super::connection::Asked;
use super::unread::{Piece, REST_BYTES_MAX};
use crate::wire::Socket;

/// Takes a client's connection over after a `101 Switching Protocols`: the socket, and what was read of it already.
///
/// A box of its own, since protocols are switched once per connection.
pub type Tunnel = Box<dyn FnOnce(Socket, Bytes) -> Pin<Box<dyn Future<Output = TunnelEnd>>>>;

/// How a tunnel has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEnd {
    /// Both sides have ended theirs.
    Whole,
    /// It was cut, or one side was lost.
    Cut,
}

/// The body of an answer.
pub trait AnswerBody: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + 'static {
    /// What takes the connection over once the head of this answer is out. Asked for answers with status 101 only.
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        None
    }

    /// Hears, where that can be told, that so many bytes of it are all that its client gets, and not its end.
    fn cut_off(&mut self, _sent: u64) {}
}

/// An answer's body that counts as in flight until hyper has written it, to the kernel or to what goes there with the end of the turn, and
/// drops it; over HTTP/2 until h2 has.
pub(super) struct Counted<B: AnswerBody> {
    body: B,
    asked: Asked,
    /// Whether its client will take the connection's end for its own, as with HTTP/1.0 and a length that is not known: one that is cut off
    /// must not look like one that is whole (RFC 9112, section 8).
    ends_with_connection: bool,
    /// Whether hyper has asked for it, and there is more to come. It asks for nothing where nothing may follow the head.
    is_amid: bool,
    /// Its end, while that is kept from hyper.
    kept: Option<End>,
    /// Whether hyper knows that it has ended.
    has_ended: Cell<bool>,
}

/// What comes behind all data.
enum End {
    Nothing,
    /// Boxed: they are rare, and large.
    Trailers(Box<Frame<Piece>>),
}

/// Keeps `asked` with its answer in that version, and puts its tunnel aside for when the connection is handed over.
pub(super) fn counted<B: AnswerBody>(answer: Response<B>, to: Version, asked: Asked) -> Response<Counted<B>> {
    let switches = answer.status() == http::StatusCode::SWITCHING_PROTOCOLS;
    answer.map(|mut body| {
        if switches {
            asked.connection().tunnel.set(body.take_tunnel());
        }
        let ends_with_connection = to == Version::HTTP_10 && body.size_hint().exact().is_none();
        Counted { body, asked, ends_with_connection, is_amid: false, kept: None, has_ended: Cell::new(false) }
    })
}

impl<B: AnswerBody> Counted<B> {
    /// Whether too much is unread for its end to be handed over: h2 can't be told any more then to reset the stream.
    fn keeps_its_end(&self) -> bool {
        self.asked.unread().is_some_and(|unread| unread.left() > REST_BYTES_MAX)
    }
}

impl<B: AnswerBody> Drop for Counted<B> {
    fn drop(&mut self) {
        if self.ends_with_connection && self.is_amid {
            self.asked.connection().socket.end_by_reset();
        }
        if let Asked::Http2(unread) = &self.asked {
            if !self.has_ended.get() || unread.is_cut() {
                self.body.cut_off(unread.put_down());
            }
            unread.leave_behind();
        }
    }
}

impl<B: AnswerBody + Unpin> Body for Counted<B> {
    type Data = Piece;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Self::Error>>> {
        if self.kept.is_none() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            self.is_amid = match &polled {
                Poll::Ready(None) => false,
                // Trailers are the last: hyper asks for nothing behind them.
                Poll::Ready(Some(Ok(frame))) => !frame.is_trailers() && !self.body.is_end_stream(),
                Poll::Ready(Some(Err(_))) | Poll::Pending => true,
            };
            let frame = ready!(polled).transpose()?;
            let is_data = frame.as_ref().is_some_and(Frame::is_data);
            let keeps_it = !is_data && self.keeps_its_end();
            let frame = frame.map(|frame| frame.map_data(|bytes| Piece::new(bytes, self.asked.unread())));
            if !keeps_it {
                self.has_ended.set(!is_data);
                return Poll::Ready(frame.map(Ok));
            }
            self.kept = Some(frame.map_or(End::Nothing, |trailers| End::Trailers(Box::new(trailers))));
        }
        if let Some(unread) = self.asked.unread() {
            ready!(unread.poll_put_down(cx));
        }
        self.has_ended.set(true);
        Poll::Ready(match self.kept.take() {
            Some(End::Trailers(trailers)) => Some(Ok(*trailers)),
            Some(End::Nothing) | None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.kept.is_none() && self.body.is_end_stream() && !self.keeps_its_end();
        if has_ended {
            self.has_ended.set(true);
        }
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
