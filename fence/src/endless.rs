//! Cuts responses without an end of their own when their tenure ends, whether or not anybody reads
//! them. Other responses are waited for.

use std::pin::pin;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::permit::WorkerPermit;
use crate::request_body::BodyError;
use crate::tenure::any_ended;

/// A piece of a response; `None` for its end. A response whose pieces stop without that was cut.
pub(crate) type Piece<R> = Option<Result<Frame<<R as Body>::Data>, BodyError<<R as Body>::Error>>>;

/// Whether a response is a stream of server-sent events, which has no end of its own.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// Reads a body in a task of its own, because a server does not poll a body whose client reads
/// nothing. The task drops body and permit when the tenure ends, when the body has ended, or when
/// nobody receives its pieces any more.
pub(crate) fn pieces<R>(body: R, permit: WorkerPermit) -> mpsc::Receiver<Piece<R>>
where
    R: Body<Data: Send, Error: Send> + Send + 'static,
{
    let (pieces, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        // The body is dropped with this, before the permit.
        tokio::select! {
            () = any_ended(permit.tenures()) => {}
            () = pieces.closed() => {}
            () = hand_on(body, &pieces) => {}
        }
        drop(permit);
    });
    receiver
}

async fn hand_on<R: Body>(body: R, pieces: &mpsc::Sender<Piece<R>>) {
    let mut body = pin!(body);
    loop {
        let piece = body.frame().await.map(|frame| frame.map_err(BodyError::Body));
        let is_last = !matches!(piece, Some(Ok(_)));
        if pieces.send(piece).await.is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What only begins like one was cut with its tenure, instead of being waited for.
    #[test]
    fn an_event_stream_is_known_by_its_whole_media_type() {
        for (content_type, is_stream) in [
            ("text/event-stream", true),
            (" Text/Event-Stream ; charset=utf-8", true),
            ("text/event-streams", false),
            ("text/event-stream+json", false),
            ("application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type.parse().unwrap())]);
            assert_eq!(is_event_stream(&headers), is_stream, "{content_type:?}");
        }
        assert!(!is_event_stream(&HeaderMap::new()));
    }
}
