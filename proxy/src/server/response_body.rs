//! The body of a response on its way to hyper: keeps its request in flight until hyper has written
//! it, over HTTP/2 until h2 has.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};

use super::answer::AnswerBody;
use super::client::Protocol;
use super::sending::{Piece, Sending};

/// The body of the response to a request.
pub(super) struct ResponseBody<B: AnswerBody> {
    body: B,
    /// Keeps the request in flight.
    sending: Rc<Sending>,
    /// Whether the connection's end is the body's, as with HTTP/1.0 and an unknown length: one that
    /// is cut off must not look whole (RFC 9112, section 8).
    ends_with_connection: bool,
    /// Whether it fails by trailers instead of a reset, which gRPC takes for `INTERNAL`.
    fails_as_grpc: bool,
    /// Whether hyper has begun to read it, and there is more to come.
    is_amid: bool,
    /// Its end, or its trailers, while that is kept from hyper: h2 cannot reset a stream whose end it
    /// has. Boxed: trailers are rare, and large.
    kept_end: Option<Option<Box<Frame<Piece>>>>,
    /// Whether hyper was given its end.
    has_ended: bool,
}

/// The response to a request of that version. Puts its tunnel, if it has one, aside for when the
/// connection leaves HTTP.
pub(super) fn with_body<B: AnswerBody>(
    answer: Response<B>,
    to: Version,
    sending: Rc<Sending>,
) -> Response<ResponseBody<B>> {
    let switches = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let fails_as_grpc = to == Version::HTTP_2 && is_grpc(answer.headers());
    answer.map(|mut body| {
        if switches {
            sending.connection().state.borrow_mut().tunnel = body.take_tunnel();
        }
        let ends_with_connection = to == Version::HTTP_10 && body.size_hint().exact().is_none();
        ResponseBody {
            body,
            sending,
            ends_with_connection,
            fails_as_grpc,
            is_amid: false,
            kept_end: None,
            has_ended: false,
        }
    })
}

/// Whether it is gRPC's own media type. gRPC-Web has its trailers in the body.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase());
    let rest = kind.as_ref().and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| !rest.starts_with(b"-"))
}

/// The status of a gRPC call whose response was cut off.
fn unavailable() -> HeaderMap {
    let fields = [("grpc-status", "14"), ("grpc-message", "the response was cut off")];
    let field = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
    fields.into_iter().map(field).collect()
}

impl<B: AnswerBody> ResponseBody<B> {
    fn is_at_end(&self) -> bool {
        self.kept_end.is_none() && self.body.is_end_stream() && !self.sending.keeps_end()
    }
}

impl<B: AnswerBody + Unpin> Body for ResponseBody<B> {
    type Data = Piece;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Self::Error>>> {
        if self.kept_end.is_none() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            self.is_amid = match &polled {
                Poll::Ready(None) => false,
                // Trailers are the last: hyper asks for nothing behind them.
                Poll::Ready(Some(Ok(frame))) => !frame.is_trailers() && !self.body.is_end_stream(),
                Poll::Ready(Some(Err(_))) | Poll::Pending => true,
            };
            let frame = match ready!(polled).transpose() {
                Err(_) if self.fails_as_grpc => Some(Frame::trailers(unavailable())),
                frame => frame?,
            };
            let is_data = frame.as_ref().is_some_and(Frame::is_data);
            let keeps_end = !is_data && self.sending.keeps_end();
            let frame = frame.map(|frame| frame.map_data(|bytes| Piece::new(bytes, &self.sending)));
            if !keeps_end {
                self.has_ended = !is_data;
                return Poll::Ready(frame.map(Ok));
            }
            self.kept_end = Some(frame.map(Box::new));
        }
        ready!(self.sending.poll_sent(cx));
        self.has_ended = true;
        Poll::Ready(self.kept_end.take().flatten().map(|trailers| Ok(*trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_at_end()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: AnswerBody> Drop for ResponseBody<B> {
    fn drop(&mut self) {
        if self.ends_with_connection && self.is_amid {
            self.sending.connection().socket.end_by_reset();
        }
        // hyper may know from the beginning, or from the last piece, that this is the end.
        let has_ended = self.has_ended || self.is_at_end();
        let is_http2 = self.sending.connection().protocol() == Protocol::Http2;
        if is_http2 && (!has_ended || self.sending.is_cut()) {
            self.body.cut_off(self.sending.sent());
        }
    }
}
