//! The body of a worker's response on its way to the client.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::admitted::Permit;
use super::fields;
use super::in_flight::InFlight;
use super::tunnel::WorkerEnd;
use crate::downstream::{AnswerBody, Protocol, Tunnel};

/// The body of an answer: a worker's, or one of our own.
///
/// If a worker's is dropped before its end, because the client has left, it is read to its end in the background.
pub enum ResponseBody<P: Permit> {
    /// None.
    Empty,
    /// All of it.
    Whole(Bytes),
    /// A worker's, passed on as it comes.
    Upstream(Box<Reading<P>>),
    /// None: another protocol is spoken from here on.
    Switched(Option<Box<WorkerEnd<P>>>),
}

/// Why a worker's response did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ResponseBodyError {
    /// The connection was lost.
    #[error("the upstream connection was lost in the middle of the response")]
    Lost(#[source] Option<hyper::Error>),
    /// The worker was silent for too long.
    #[error("the upstream stayed silent in the middle of the response")]
    Silent,
}

/// A worker's response that may not have ended yet.
pub struct Reading<P: Permit> {
    /// `None` once it has ended.
    rest: Option<Rest<P>>,
    /// Read with the head.
    first: Option<Bytes>,
    /// How it failed, until that is passed on.
    failed: Option<ResponseBodyError>,
}

struct Rest<P: Permit> {
    incoming: Incoming,
    in_flight: InFlight<P>,
}

impl<P: Permit> ResponseBody<P> {
    /// The body of a response whose head has just come. A small one is mostly here already, and then the request is
    /// over before the client has heard of it.
    ///
    /// # Errors
    ///
    /// If the body has failed already, and so nothing needs to be passed on.
    pub(super) fn begin(
        mut incoming: Incoming,
        in_flight: InFlight<P>,
        cx: &mut Context<'_>,
    ) -> Result<ResponseBody<P>, hyper::Error> {
        if incoming.is_end_stream() {
            in_flight.complete(cx);
            return Ok(ResponseBody::Empty);
        }
        let mut first = None;
        if incoming.size_hint().exact().is_some()
            && let Poll::Ready(Some(here)) = Pin::new(&mut incoming).poll_frame(cx)
        {
            let bytes = match here {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => {
                    in_flight.lost();
                    return Err(error);
                }
            };
            if incoming.is_end_stream() {
                in_flight.complete(cx);
                return Ok(ResponseBody::Whole(bytes));
            }
            first = Some(bytes);
        }
        let reading = Reading { rest: Some(Rest { incoming, in_flight }), first, failed: None };
        Ok(ResponseBody::Upstream(Box::new(reading)))
    }

    pub(super) fn switched(worker: WorkerEnd<P>) -> ResponseBody<P> {
        ResponseBody::Switched(Some(Box::new(worker)))
    }
}

impl<P: Permit> Reading<P> {
    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.first.is_none() && self.failed.is_none()
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        if let Some(bytes) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let step = ready!(rest.poll_step(cx));
        let ended = if matches!(step, Step::Piece(_)) { None } else { self.rest.take() };
        if let Some(rest) = ended {
            match &step {
                Step::Piece(_) | Step::Last(_) | Step::End => rest.in_flight.complete(cx),
                Step::Lost(_) => rest.in_flight.lost(),
                Step::Silent => rest.leave_silent_worker(),
            }
        }
        self.failed = match step {
            Step::Piece(frame) | Step::Last(frame) => return Poll::Ready(Some(Ok(frame))),
            Step::End => return Poll::Ready(None),
            Step::Lost(error) => Some(ResponseBodyError::Lost(error)),
            Step::Silent => Some(ResponseBodyError::Silent),
        };
        // hyper drops what it has not written yet when a body fails, the head perhaps. So it fails a little later.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<P: Permit> Drop for Reading<P> {
    fn drop(&mut self) {
        if let Some(mut rest) = self.rest.take() {
            rest.in_flight.detach();
            rest.read_on();
        }
    }
}

/// What a response does next.
enum Step {
    Piece(Frame<Bytes>),
    Last(Frame<Bytes>),
    End,
    Lost(Option<hyper::Error>),
    Silent,
}

impl<P: Permit> Rest<P> {
    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        self.in_flight.drive(cx);
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                self.in_flight.heard();
                if let Some(trailers) = frame.trailers_mut() {
                    fields::retain_harmless_trailers(trailers, &[]);
                }
                let last = self.incoming.is_end_stream();
                Poll::Ready(if last { Step::Last(frame) } else { Step::Piece(frame) })
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Step::Lost(Some(error))),
            Poll::Ready(None) if self.is_whole() => Poll::Ready(Step::End),
            Poll::Ready(None) => Poll::Ready(Step::Lost(None)),
            Poll::Pending => self.in_flight.poll_impatience(cx).map(|()| Step::Silent),
        }
    }

    /// Whether a body is whole that hyper says has ended: it takes an HTTP/2 reset with NO_ERROR for an end.
    fn is_whole(&self) -> bool {
        match self.in_flight.protocol() {
            Protocol::Http1 => self.incoming.size_hint().exact().is_none_or(|left| left == 0),
            Protocol::Http2 => self.incoming.is_end_stream(),
        }
    }

    /// The client is not kept waiting. The permit is, until the worker's time is over altogether.
    fn leave_silent_worker(mut self) {
        if self.in_flight.is_overdue() {
            return self.in_flight.gave_up();
        }
        self.in_flight.overdue();
        self.read_on();
    }

    fn read_on(self) {
        let background = self.in_flight.pool().background().clone();
        background.spawn(read_to_end(self.incoming, self.in_flight));
    }
}

/// Reads a response that no client waits for, for its permit's sake.
pub(super) async fn read_to_end<P: Permit>(incoming: Incoming, in_flight: InFlight<P>) {
    let mut reading = Reading { rest: Some(Rest { incoming, in_flight }), first: None, failed: None };
    while let Some(Ok(_)) = poll_fn(|cx| reading.poll_frame(cx)).await {}
}

impl<P: Permit> Body for ResponseBody<P> {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
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
            ResponseBody::Upstream(reading) => reading.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Empty | ResponseBody::Switched(_) => SizeHint::with_exact(0),
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Upstream(reading) => {
                let first = reading.first.as_ref().map_or(0, Bytes::len) as u64;
                let rest = reading.rest.as_ref().map_or(Some(0), |rest| rest.incoming.size_hint().exact());
                rest.map_or_else(SizeHint::default, |rest| SizeHint::with_exact(first + rest))
            }
        }
    }
}

impl<P: Permit> AnswerBody for ResponseBody<P> {
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        let ResponseBody::Switched(worker) = self else { return None };
        let worker = worker.take()?;
        Some(Box::new(move |client, read_already| Box::pin(worker.join(client, read_already))))
    }
}
