//! How the admin listener answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use serde_json::Value;

use crate::server::AnswerBody;

/// What programs are told in.
pub(super) const JSON: &str = "application/json";

/// An answer of the admin listener.
pub type AdminAnswer = Response<AdminBody>;

/// Its body.
pub enum AdminBody {
    /// All of it at once.
    Whole(Full<Bytes>),
    /// Piece by piece, as the client takes them.
    Stream(Pin<Box<dyn Stream<Item = Bytes>>>),
}

impl AdminBody {
    /// All of these bytes.
    pub(super) fn whole(bytes: Bytes) -> AdminBody {
        AdminBody::Whole(Full::new(bytes))
    }
}

impl AnswerBody for AdminBody {}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            AdminBody::Whole(body) => Pin::new(body).poll_frame(cx),
            AdminBody::Stream(stream) => {
                stream.as_mut().poll_next(cx).map(|piece| piece.map(Frame::data).map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AdminBody::Whole(body) => body.is_end_stream(),
            AdminBody::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AdminBody::Whole(body) => body.size_hint(),
            AdminBody::Stream(_) => SizeHint::default(),
        }
    }
}

pub(super) fn not_allowed(allowed: &'static str) -> AdminAnswer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("this path takes {allowed}\n"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

pub(super) fn text(status: StatusCode, text: String) -> AdminAnswer {
    answer(status, "text/plain; charset=utf-8", text.into_bytes())
}

pub(super) fn json_answer(value: &Value) -> AdminAnswer {
    let mut body = serde_json::to_vec_pretty(value).unwrap_or_default(); // A value of ours has only text for keys.
    body.push(b'\n');
    answer(StatusCode::OK, JSON, body)
}

pub(super) fn answer(status: StatusCode, kind: &'static str, body: Vec<u8>) -> AdminAnswer {
    answer_of(status, kind, AdminBody::whole(Bytes::from(body)))
}

pub(super) fn streamed(
    kind: &'static str,
    pieces: impl Stream<Item = Bytes> + 'static,
) -> AdminAnswer {
    answer_of(StatusCode::OK, kind, AdminBody::Stream(Box::pin(pieces)))
}

fn answer_of(status: StatusCode, kind: &'static str, body: AdminBody) -> AdminAnswer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
