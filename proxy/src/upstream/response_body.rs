//! The body of an answer on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::error::ResponseBodyError;
use super::relay::Reading;
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
            ResponseBody::Upstream(reading) => reading.poll_piece(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Empty | ResponseBody::Switched(_) => true,
            ResponseBody::Whole(bytes) => bytes.is_empty(),
            ResponseBody::Upstream(reading) => reading.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Empty | ResponseBody::Switched(_) => SizeHint::with_exact(0),
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Upstream(reading) => {
                reading.left().map_or_else(SizeHint::default, SizeHint::with_exact)
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
