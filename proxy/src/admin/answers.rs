//! How the admin listener answers.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;

use crate::server::AnswerBody;

/// What programs are told in.
pub(super) const JSON: &str = "application/json";

/// An answer of the admin listener.
pub type AdminAnswer = Response<AdminBody>;

/// Its body.
pub type AdminBody = UnsyncBoxBody<Bytes, Infallible>;

impl AnswerBody for AdminBody {}

/// A body of these bytes.
pub(super) fn whole(bytes: Bytes) -> AdminBody {
    Full::new(bytes).boxed_unsync()
}

pub(super) fn not_allowed(allowed: &'static str) -> AdminAnswer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("this path takes {allowed}\n"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

pub(super) fn text(status: StatusCode, text: String) -> AdminAnswer {
    answer(status, "text/plain; charset=utf-8", whole(text.into()))
}

pub(super) fn json_answer(value: &Value) -> AdminAnswer {
    answer(StatusCode::OK, JSON, whole(format!("{value:#}\n").into()))
}

/// Answers piece by piece, as the client takes them.
pub(super) fn streamed(
    kind: &'static str,
    pieces: impl Stream<Item = Bytes> + Send + 'static,
) -> AdminAnswer {
    let frames = pieces.map(|piece| Ok(Frame::data(piece)));
    answer(StatusCode::OK, kind, StreamBody::new(frames).boxed_unsync())
}

pub(super) fn answer(status: StatusCode, kind: &'static str, body: AdminBody) -> AdminAnswer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
