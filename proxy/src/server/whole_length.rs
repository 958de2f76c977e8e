//! A body whose last byte comes with its end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// A body whose length is known and whose last byte is kept back until it has ended.
///
/// On HTTP/2 a body ends with its stream, not with the last byte that was announced. A client may
/// send all that it announced and then more, or reset the stream: its request was not whole then. A
/// worker of HTTP/1.1, which has the length, would take it for whole.
pub(super) struct WholeLength<B> {
    body: B,
    /// The piece with the last byte that was announced.
    last: Option<Bytes>,
    /// What came behind that piece. Boxed: it is rare, and large.
    trailers: Option<Box<Frame<Bytes>>>,
}

impl<B: Body<Data = Bytes> + Unpin> WholeLength<B> {
    pub(super) fn new(body: B) -> WholeLength<B> {
        WholeLength { body, last: None, trailers: None }
    }

    /// Whether all that was announced is here, but not the word that this is the end.
    fn lacks_only_its_end(&self) -> bool {
        self.body.size_hint().exact() == Some(0) && !self.body.is_end_stream()
    }

    fn last(&mut self) -> Option<Result<Frame<Bytes>, B::Error>> {
        self.last.take().map(|last| Ok(Frame::data(last)))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WholeLength<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(*trailers)));
        }
        loop {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.last = None;
                    return Poll::Ready(Some(Err(error)));
                }
                None if self.body.is_end_stream() => return Poll::Ready(self.last()),
                None => return Poll::Ready(None), // It was cut, and so is what was kept back.
            };
            match frame.into_data() {
                Ok(data) if data.is_empty() && self.last.is_some() => {}
                Ok(data) if self.lacks_only_its_end() => self.last = Some(data),
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(trailers) if self.last.is_some() => {
                    self.trailers = Some(Box::new(trailers));
                    return Poll::Ready(self.last());
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.last.is_none() && self.trailers.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let kept = self.last.as_ref().map_or(0, Bytes::len) as u64;
        self.body
            .size_hint()
            .exact()
            .map_or_else(SizeHint::default, |left| SizeHint::with_exact(left + kept))
    }
}
