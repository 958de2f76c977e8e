//! A request in the worker's log, and its answer on the way.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use super::Shared;
use super::log::Seen;

/// A request in the log whose end is written down when this value goes, however that comes about.
pub(super) struct Entry {
    pub(super) shared: Arc<Shared>,
    pub(super) order: usize,
    answered: bool,
}

impl Entry {
    pub(super) fn open(
        shared: &Arc<Shared>,
        connection: usize,
        request: &Request<Incoming>,
    ) -> Entry {
        let uri = request.uri();
        let order = shared.log.add(Seen {
            order: 0,
            connection,
            version: request.version(),
            method: request.method().to_string(),
            path: uri.path().to_owned(),
            query: uri.query().map(str::to_owned),
            authority: uri.authority().map(ToString::to_string),
            headers: request.headers().clone(),
            body: Vec::new(),
            body_bytes: 0,
            body_end: None,
            trailers: HeaderMap::new(),
            began: Instant::now(),
            ended: None,
            answered: false,
        });
        Entry { shared: Arc::clone(shared), order, answered: false }
    }

    /// Its whole answer has been handed over.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }

    pub(super) fn seen(&self) -> Seen {
        self.shared.log.change(self.order, |seen| seen.clone())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let answered = self.answered;
        self.shared.log.change(self.order, |seen| {
            seen.ended = Some(Instant::now());
            seen.answered = answered;
        });
    }
}

/// An answer's body on its way, which notes in the log how that ended.
pub(super) struct Delivery {
    pub(super) body: UnsyncBoxBody<Bytes, io::Error>,
    pub(super) entry: Option<Entry>,
}

impl Body for Delivery {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let delivery = self.get_mut();
        let frame = Pin::new(&mut delivery.body).poll_frame(cx);
        let last = match &frame {
            Poll::Pending | Poll::Ready(Some(Err(_))) => false,
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(frame))) => frame.is_trailers(),
        };
        if last && let Some(entry) = &mut delivery.entry {
            entry.answered();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // A body whose length is known is not asked again after its last byte.
        if self.body.is_end_stream()
            && let Some(entry) = &mut self.entry
        {
            entry.answered();
        }
    }
}
