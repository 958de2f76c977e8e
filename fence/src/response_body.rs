//! The body of a response: the handler's, with the request's permit, or a refusal's.
//! It does not end the handler.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::sync::mpsc;

use crate::endless::{Piece, is_event_stream, pieces};
use crate::permit::WorkerPermit;
use crate::request_body::BodyError;

pin_project! {
    /// The body of a response. The request counts as running until this has ended or is dropped.
    ///
    /// A response without an end of its own fails with [`BodyError::Cut`] when its tenure ends: one
    /// of type `text/event-stream`, or any with
    /// [`LayerBuilder::streaming`](crate::LayerBuilder::streaming).
    pub struct ResponseBody<R: Body> {
        #[pin]
        inner: Inner<R>,
    }
}

pin_project! {
    #[project = InnerProjection]
    #[project_replace = InnerReplaced]
    enum Inner<R: Body> {
        // Dropped in this order: the permit goes last.
        Handlers { #[pin] body: R, permit: WorkerPermit },
        Endless { pieces: mpsc::Receiver<Piece<R>> },
        Own { bytes: Option<Bytes> },
    }
}

impl<R: Body> ResponseBody<R> {
    pub(crate) fn own(bytes: Bytes) -> ResponseBody<R> {
        ResponseBody { inner: Inner::Own { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }
}

impl<R: Body<Data: Send, Error: Send> + Send + 'static> ResponseBody<R> {
    /// The handler's response, with the request's permit.
    pub(crate) fn of(
        response: Response<R>,
        permit: WorkerPermit,
        streaming: bool,
    ) -> Response<ResponseBody<R>> {
        let is_endless = streaming || is_event_stream(response.headers());
        response.map(|body| ResponseBody {
            inner: if is_endless {
                Inner::Endless { pieces: pieces(body, permit) }
            } else {
                Inner::Handlers { body, permit }
            },
        })
    }
}

impl<R> Body for ResponseBody<R>
where
    R: Body,
    R::Data: From<Bytes>,
{
    type Data = R::Data;
    type Error = BodyError<R::Error>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, BodyError<R::Error>>>> {
        let mut inner = self.project().inner;
        let polled = match inner.as_mut().project() {
            InnerProjection::Own { bytes } => {
                return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))));
            }
            InnerProjection::Endless { pieces } => {
                pieces.poll_recv(cx).map(|piece| piece.unwrap_or(Some(Err(BodyError::Cut))))
            }
            InnerProjection::Handlers { body, .. } => {
                body.poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(BodyError::Body)))
            }
        };
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            inner.project_replace(Inner::Own { bytes: None });
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Handlers { body, .. } => body.is_end_stream(),
            Inner::Endless { .. } => false,
            Inner::Own { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Handlers { body, .. } => body.size_hint(),
            Inner::Endless { .. } => SizeHint::default(),
            Inner::Own { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
        }
    }
}

impl<R: Body> std::fmt::Debug for ResponseBody<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.inner {
            Inner::Handlers { .. } => "of the handler",
            Inner::Endless { .. } => "of the handler, without an end",
            Inner::Own { .. } => "own, or ended",
        };
        f.debug_tuple("ResponseBody").field(&kind).finish()
    }
}
