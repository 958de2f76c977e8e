//! Cuts responses without an end of their own when their tenure ends, whether or not anybody reads them.
//! Other responses are waited for.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame};
use tokio::task::AbortHandle;

use crate::permit::WorkerPermit;
use crate::request_body::BodyError;
use crate::tenure::{Tenure, any_ended};

/// A response without an end of its own.
///
/// A server polls no body whose client takes nothing. Such a client would hold up the next tenure for as long as its connection
/// lasts, so the body is taken away from it.
pub(crate) struct Endless<R>(Mutex<Shared<R>>);

struct Shared<R> {
    /// `None` once it has been cut. The permit is dropped after the body.
    body: Option<(Pin<Box<R>>, WorkerPermit)>,
    reader: Option<Waker>,
    /// Ends it with its tenure.
    cutter: Option<AbortHandle>,
}

type Polled<R> = Poll<Option<Result<Frame<<R as Body>::Data>, BodyError<<R as Body>::Error>>>>;

/// Whether a response is a stream of server-sent events, which has no end of its own.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

impl<R: Body + Send + 'static> Endless<R> {
    /// A response that is cut when its tenure ends.
    pub(crate) fn begin(body: R, permit: WorkerPermit) -> Arc<Endless<R>> {
        let tenures = permit.tenures().to_vec();
        let body = Some((Box::pin(body), permit));
        let endless = Arc::new(Endless(Mutex::new(Shared { body, reader: None, cutter: None })));
        let cutter = tokio::spawn(cut_when_ended(Arc::downgrade(&endless), tenures));
        endless.shared().cutter = Some(cutter.abort_handle());
        endless
    }
}

impl<R: Body> Endless<R> {
    pub(crate) fn poll_frame(&self, cx: &mut Context<'_>) -> Polled<R> {
        let mut shared = self.shared();
        let Some((body, _)) = &mut shared.body else { return Poll::Ready(Some(Err(BodyError::Cut))) };
        let polled = body.as_mut().poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(BodyError::Body)));
        shared.reader = Some(cx.waker().clone());
        polled
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.shared().body.as_ref().is_some_and(|(body, _)| body.is_end_stream())
    }
}

impl<R> Endless<R> {
    fn shared(&self) -> MutexGuard<'_, Shared<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // Bodies may panic.
    }

    /// Drops the body and wakes its reader.
    fn cut(&self) {
        let (body, reader) = {
            let mut shared = self.shared();
            (shared.body.take(), shared.reader.take())
        };
        drop(body);
        reader.into_iter().for_each(Waker::wake);
    }
}

impl<R> Drop for Endless<R> {
    fn drop(&mut self) {
        self.shared().cutter.iter().for_each(AbortHandle::abort);
    }
}

/// Holds nothing of the response, because that may end before its tenure.
async fn cut_when_ended<R>(endless: Weak<Endless<R>>, tenures: Vec<Tenure>) {
    any_ended(&tenures).await;
    if let Some(endless) = endless.upgrade() {
        endless.cut();
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
