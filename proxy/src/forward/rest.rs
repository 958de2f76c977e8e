//! What is left of a response after its head.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fencepost_fence::is_event_stream;
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::admitted::Permit;
use super::fields::{self, KeptFields};
use super::http1::First;
use super::in_flight::InFlight;
use super::response_body::ResponseBodyError;
use crate::downstream::Protocol;

/// What is left of a response.
pub(super) struct Rest<P: Permit> {
    pub(super) incoming: Incoming,
    pub(super) in_flight: Box<InFlight<P>>,
    /// What was read of it already.
    pub(super) next: Option<Result<Frame<Bytes>, hyper::Error>>,
    /// Whether it has no end of its own, and a tenure to end with.
    is_endless: bool,
}

impl<P: Permit> Rest<P> {
    /// What is left when the head has come. From here on the tenure of the request is watched: it may take long.
    pub(super) fn new(incoming: Incoming, mut in_flight: Box<InFlight<P>>, headers: &HeaderMap) -> Rest<P> {
        let is_watched = in_flight.watch_tenure();
        let may_go_on_for_ever = may_go_on_for_ever(&in_flight, headers);
        if may_go_on_for_ever || in_flight.may_be_left() {
            in_flight.leave_in_time();
        }
        Rest { incoming, in_flight, next: None, is_endless: is_watched && may_go_on_for_ever }
    }

    /// The next piece from the worker, as soon as it is there. With the last, the request is over.
    pub(super) fn poll_piece(
        this: &mut Option<Rest<P>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let Some(rest) = this else { return Poll::Ready(None) };
        let step = ready!(rest.poll_step(cx));
        let ended = if matches!(step, Step::Piece(_)) { None } else { this.take() };
        if let Some(rest) = ended {
            match &step {
                Step::Piece(_) | Step::Last(_) | Step::End => rest.in_flight.complete(),
                Step::Lost(_) => rest.in_flight.lost(),
                Step::Silent => rest.leave_silent_worker(),
            }
        }
        Poll::Ready(match step {
            Step::Piece(frame) | Step::Last(frame) => Some(Ok(frame)),
            Step::End => None,
            Step::Lost(error) => Some(Err(ResponseBodyError::Lost(error))),
            Step::Silent => Some(Err(ResponseBodyError::Silent)),
        })
    }

    /// The same where nobody else watches the tenure.
    pub(super) fn poll_alone(
        this: &mut Option<Rest<P>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let sealed = this.as_mut().is_some_and(|rest| rest.in_flight.poll_seal(cx).is_ready());
        if sealed
            && let Some(rest) = this.take_if(|rest| rest.is_endless || rest.in_flight.poll_cut_left(cx).is_ready())
        {
            rest.in_flight.cut();
            return Poll::Ready(Some(Err(ResponseBodyError::Sealed)));
        }
        Rest::poll_piece(this, cx)
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Rest { incoming, in_flight, next, .. } = self;
        let next = match next.take() {
            Some(next) => Poll::Ready(Some(next)),
            None => in_flight.poll_driven(cx, First::Drive, |cx| Pin::new(&mut *incoming).poll_frame(cx)),
        };
        match next {
            Poll::Ready(Some(Ok(mut frame))) => {
                self.in_flight.heard();
                if let Some(trailers) = frame.trailers_mut() {
                    fields::retain_harmless_trailers(trailers, &KeptFields::NONE);
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

    pub(super) fn read_on(self) {
        let background = self.in_flight.pool().background().clone();
        background.spawn(self.read_to_end());
    }

    /// Reads a response that no client waits for, for its permit's sake.
    pub(super) async fn read_to_end(self) {
        let mut rest = Some(self);
        while let Some(Ok(_)) = poll_fn(|cx| Rest::poll_alone(&mut rest, cx)).await {}
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

/// Whether a response has no end of its own.
pub(super) fn may_go_on_for_ever<P: Permit>(in_flight: &InFlight<P>, headers: &HeaderMap) -> bool {
    in_flight.is_endless() || is_event_stream(headers)
}
