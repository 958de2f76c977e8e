//! The body of a request on its way to the worker.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use super::fields::{self, KeptFields};
use super::here::Here;
use super::permit::TenureState;
use super::tenure::goes_on;
use super::upload::{Broken, Upload};
use crate::server::{BodyError, ClientBody, Protocol};

/// The body of a request on its way to the worker.
pub enum RequestBody {
    /// None.
    Empty,
    /// All of it, read before the request entered the gate.
    Whole(Whole),
    /// Passed on as it comes, at the worker's pace. Boxed, since every request moves the room for
    /// it on its way through hyper: 2 % of the instructions of a GET.
    Streaming(Box<Streaming>),
}

/// A body in memory.
#[derive(Clone)]
pub struct Whole {
    data: Option<Bytes>,
    trailers: Option<Box<HeaderMap>>,
    /// Whether its length was said beforehand: then HTTP/1.1 says it too, and has no place for
    /// trailers.
    was_announced: bool,
}

/// A body that is passed on as it comes.
pub struct Streaming {
    /// What had come of it before, without its end.
    ahead: Option<Bytes>,
    body: ClientBody,
    upload: Rc<Upload>,
    /// Ready when the tenure is known to go on. `None` unless the body pauses.
    pause: Option<Pin<Box<dyn Future<Output = ()>>>>,
    kept: Rc<KeptFields>,
    /// What it goes out by.
    protocol: Protocol,
}

/// Why a body was not passed on to its end.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    /// The client did not send it to its end.
    #[error("the request's body did not come to its end")]
    Client(#[source] BodyError),
    /// We cut it.
    #[error("the request's body was cut")]
    Cut,
}

/// Makes a client's body ready to be forwarded: one whose length is known to be at most
/// `whole_bytes_max` is read whole, so that a slow sender holds nothing up; any other is passed on
/// as it comes. One of unknown length is as good as known where its end has come with its head:
/// short chunks that are passed on one by one cost half as much again as a body of that length.
///
/// `kept` are the fields that carry the fence token; no trailer may have such a name.
///
/// # Errors
///
/// If the client does not send all of a body that is read whole, or contradicts itself. Nothing of
/// it is forwarded then.
pub async fn prepare_body(
    body: ClientBody,
    whole_bytes_max: usize,
    kept: &Rc<KeptFields>,
) -> Result<RequestBody, BodyError> {
    if body.is_malformed() {
        return Err(BodyError::Malformed);
    }
    if body.is_end_stream() {
        return Ok(RequestBody::Empty);
    }
    let kept = Rc::clone(kept);
    // Boxed: a request without a body would move the room for them.
    match body.size_hint().exact().map(usize::try_from) {
        Some(Ok(length)) if length <= whole_bytes_max => Box::pin(read_whole(body, kept)).await,
        // Whoever waits for leave to send it is not to get that before the worker has its head.
        None if !body.is_held_back() => {
            Box::pin(read_what_has_come(body, whole_bytes_max, kept)).await
        }
        Some(_) | None => Ok(Streaming::of(None, body, kept)),
    }
}

async fn read_whole(body: ClientBody, kept: Rc<KeptFields>) -> Result<RequestBody, BodyError> {
    let whole = body.collect().await?;
    let trailers = whole.trailers().cloned();
    Ok(Whole::of(whole.to_bytes(), trailers, &kept, true))
}

/// Reads what is here of a body whose length nobody knows. If that is all of it, it is a whole one.
async fn read_what_has_come(
    mut body: ClientBody,
    bytes_max: usize,
    kept: Rc<KeptFields>,
) -> Result<RequestBody, BodyError> {
    let Here { data, next, is_all } = Here::read(&mut body, bytes_max.saturating_add(1)).await;
    if let Some(trailers) = next.transpose()? {
        return Ok(Whole::of(data, trailers.into_trailers().ok(), &kept, false));
    }
    if is_all && data.len() <= bytes_max {
        return Ok(Whole::of(data, None, &kept, false));
    }
    body.rest();
    Ok(Streaming::of(Some(data).filter(|data| !data.is_empty()), body, kept))
}

impl Whole {
    fn of(
        data: Bytes,
        trailers: Option<HeaderMap>,
        kept: &KeptFields,
        was_announced: bool,
    ) -> RequestBody {
        let trailers = trailers.map(|mut trailers| {
            fields::retain_harmless_trailers(&mut trailers, kept);
            trailers
        });
        let trailers = trailers.filter(|trailers| !trailers.is_empty()).map(Box::new);
        match Some(data).filter(|data| !data.is_empty()) {
            None if trailers.is_none() => RequestBody::Empty,
            data => RequestBody::Whole(Whole { data, trailers, was_announced }),
        }
    }

    /// Whether HTTP/1.1 sends it in chunks: trailers have no place behind a length.
    pub(super) fn is_chunked(&self) -> bool {
        self.trailers.is_some() && !self.was_announced
    }
}

impl RequestBody {
    /// A body of those bytes.
    pub fn from_bytes(data: Bytes) -> RequestBody {
        if data.is_empty() {
            RequestBody::Empty
        } else {
            RequestBody::Whole(Whole { data: Some(data), trailers: None, was_announced: true })
        }
    }

    /// `None` unless it is streamed.
    pub(super) fn upload(&self) -> Option<&Rc<Upload>> {
        match self {
            RequestBody::Streaming(streaming) => Some(&streaming.upload),
            RequestBody::Empty | RequestBody::Whole(_) => None,
        }
    }

    /// Sets the protocol that the body goes out over.
    pub(super) fn goes_by(&mut self, protocol: Protocol) {
        if let RequestBody::Streaming(streaming) = self {
            streaming.protocol = protocol;
        }
    }

    /// A copy of the body; `None` if it is streamed.
    pub(super) fn copy(&self) -> Option<RequestBody> {
        match self {
            RequestBody::Empty => Some(RequestBody::Empty),
            RequestBody::Whole(whole) => Some(RequestBody::Whole(whole.clone())),
            RequestBody::Streaming(_) => None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match self.get_mut() {
            RequestBody::Empty => Poll::Ready(None),
            RequestBody::Whole(whole) => {
                let frame = whole.data.take().map(Frame::data);
                let frame = frame
                    .or_else(|| whole.trailers.take().map(|trailers| Frame::trailers(*trailers)));
                Poll::Ready(frame.map(Ok))
            }
            RequestBody::Streaming(streaming) => streaming.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Whole(whole) => whole.data.is_none() && whole.trailers.is_none(),
            // Not before we have said so ourselves: what hyper is told here it may act upon at
            // once.
            RequestBody::Streaming(streaming) => streaming.upload.is_whole(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Whole(whole) => {
                SizeHint::with_exact(whole.data.as_ref().map_or(0, Bytes::len) as u64)
            }
            RequestBody::Streaming(streaming) => streaming.body.size_hint(),
        }
    }
}

impl Streaming {
    /// A body of which `ahead` was read before.
    fn of(ahead: Option<Bytes>, body: ClientBody, kept: Rc<KeptFields>) -> RequestBody {
        let (upload, protocol) = (Rc::new(Upload::new()), Protocol::Http1);
        let streaming = Streaming { ahead, body, upload, pause: None, kept, protocol };
        RequestBody::Streaming(Box::new(streaming))
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        self.upload.wake_body(cx);
        if self.upload.broken().is_some() {
            return Poll::Ready(Some(Err(RequestBodyError::Cut)));
        }
        if self.poll_pause(cx).is_pending() {
            self.upload.awaits_client(); // The worker is not to be blamed for what it does not get.
            self.body.rest(); // Nor is the client.
            return Poll::Pending;
        }
        let polled = match self.ahead.take() {
            Some(ahead) => Poll::Ready(Some(Ok(Frame::data(ahead)))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        };
        if polled.is_pending() {
            self.upload.awaits_client();
        }
        match ready!(polled) {
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    fields::retain_harmless_trailers(trailers, &self.kept);
                }
                self.upload.piece_went_out();
                // hyper asks for nothing more after trailers, nor over HTTP/1.1 after the last byte
                // that was announced.
                let ends_by_length =
                    self.protocol == Protocol::Http1 && self.body.size_hint().exact() == Some(0);
                if frame.is_trailers() || self.body.is_end_stream() || ends_by_length {
                    self.upload.went_out();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            None => {
                self.upload.went_out();
                Poll::Ready(None)
            }
            // The worker must never take the part for the whole: hyper closes the connection, or
            // resets the stream.
            Some(Err(error)) => {
                self.upload.break_off(Broken::ByClient(error.fault()));
                Poll::Ready(Some(Err(RequestBodyError::Client(error))))
            }
        }
    }

    /// Ready when the next piece may go out, asked right before it does: it may be the last.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(watch) = self.upload.watch() else { return Poll::Ready(()) };
        if self.pause.is_none() && matches!(watch.state(), TenureState::Good { .. }) {
            return Poll::Ready(());
        }
        let pause =
            self.pause.get_or_insert_with(|| Box::pin(async move { goes_on(&*watch).await }));
        ready!(pause.as_mut().poll(cx));
        self.pause = None;
        Poll::Ready(())
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.upload.break_off(Broken::Cut); // hyper is gone that would tell.
        }
        // hyper drops a body early when the worker reads no more of it.
        self.upload.dropped();
    }
}
