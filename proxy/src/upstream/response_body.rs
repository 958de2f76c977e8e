//! The body of an answer on its way to the client.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::error::ResponseBodyError;
use super::relay::Relay;
use super::websocket::{ToWorker, tunnel};
use crate::server::{AnswerBody, Tunnel};

/// The body of an answer: a worker's, or one of our own.
///
/// If a worker's is dropped before its end, because the client has left, its request's task reads
/// it to the end.
pub enum ResponseBody {
    /// None.
    Empty,
    /// All of it.
    Whole(Bytes),
    /// A worker's, passed on as it comes.
    Upstream(Reading),
    /// None: another protocol is spoken from here on.
    Switched(Option<ToWorker>),
}

/// A worker's response that may not have ended yet, for its client.
pub struct Reading {
    relay: Rc<Relay>,
    /// How much is to come, where that is known.
    left: Option<u64>,
    /// How it failed, until that is passed on.
    failed: Option<ResponseBodyError>,
}

impl Reading {
    /// What comes by this relay, of which so much is to come, where that is known.
    pub(super) fn new(relay: Rc<Relay>, left: Option<u64>) -> Reading {
        Reading { relay, left, failed: None }
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match ready!(self.relay.poll_piece(cx)) {
            Some(Ok(piece)) => {
                let bytes = piece.data_ref().map_or(0, Bytes::len) as u64;
                self.left = self.left.map(|left| left.saturating_sub(bytes));
                Poll::Ready(Some(Ok(piece)))
            }
            // hyper drops what it has not written yet when a body fails, the head perhaps. So it
            // fails a little later. It has no end that could be told: what was cut must not look
            // like a whole.
            Some(Err(error)) => {
                (self.failed, self.left) = (Some(error), None);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.relay.client_leaves();
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let body = self.get_mut();
        match body {
            ResponseBody::Empty | ResponseBody::Switched(_) => Poll::Ready(None),
            ResponseBody::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                *body = ResponseBody::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            ResponseBody::Upstream(reading) => reading.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Empty | ResponseBody::Switched(_) => true,
            ResponseBody::Whole(bytes) => bytes.is_empty(),
            ResponseBody::Upstream(reading) => {
                reading.failed.is_none() && reading.relay.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Empty | ResponseBody::Switched(_) => SizeHint::with_exact(0),
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Upstream(reading) => {
                reading.left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

impl AnswerBody for ResponseBody {
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        let ResponseBody::Switched(worker) = self else { return None };
        worker.take().map(tunnel)
    }
}
