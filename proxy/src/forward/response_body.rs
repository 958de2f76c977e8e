//! The body of a worker's response on its way to the client.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::admitted::Permit;
use super::http1::First;
use super::in_flight::InFlight;
use super::pool::Pool;
use super::relay::{Relay, read_ahead};
use super::rest::{Rest, may_go_on_for_ever};
use super::stalled::Stalls;
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
    Upstream(Reading<P>),
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
    /// It was cut because the tenure of its request has ended: it would never have ended, or its request have gone on being written.
    #[error("the tenure of the request has ended")]
    Sealed,
    /// The tenure of its request has ended, or its request was cut, and the client did not read it as fast as it came.
    #[error("the client is too slow for a response that is not to wait for it")]
    TooSlow,
    /// The client did not read it, and others waited for its connection.
    #[error("the client does not read its response, and others wait for an upstream connection")]
    Stalled,
}

/// A worker's response that may not have ended yet, for its client.
///
/// While the tenure of its request goes on, whoever polls this reads from the worker. A task stands by to take the reading over
/// when the tenure ends or the request is cut, since a client that does not read does not poll.
pub struct Reading<P: Permit>(Rc<RefCell<Course<P>>>);

/// How far a response has come.
struct Course<P: Permit> {
    source: Source<P>,
    /// Read with the head.
    first: Option<Bytes>,
    /// Since when a piece waits to be written to the client.
    given: Option<Instant>,
    /// How it failed, until that is passed on.
    failed: Option<ResponseBodyError>,
    /// The client's task, if another may have to wake it.
    client: Option<Waker>,
    /// The task that watches the tenure, if the request depends on one.
    watcher: Option<AbortHandle>,
}

/// Where the client reads from.
enum Source<P: Permit> {
    /// From the worker. `None` once that has ended.
    Worker(Option<Rest<P>>),
    /// From what is read by another task.
    Relay(Rc<Relay>),
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
        mut in_flight: Box<InFlight<P>>,
        headers: &HeaderMap,
        cx: &mut Context<'_>,
    ) -> Result<ResponseBody<P>, hyper::Error> {
        if incoming.is_end_stream() {
            in_flight.complete();
            return Ok(ResponseBody::Empty);
        }
        let here = match Here::read(&mut incoming, &mut in_flight, headers, cx) {
            Ok(here) => here,
            Err(error) => {
                in_flight.lost();
                return Err(error);
            }
        };
        if here.is_all {
            in_flight.complete();
            return Ok(ResponseBody::Whole(here.data));
        }
        let mut rest = Rest::new(incoming, in_flight, headers);
        rest.next = here.next;
        Ok(ResponseBody::Upstream(Reading::new(rest, here.data)))
    }

    pub(super) fn switched(worker: WorkerEnd<P>) -> ResponseBody<P> {
        ResponseBody::Switched(Some(Box::new(worker)))
    }
}

/// What of a response came with its head.
#[derive(Default)]
struct Here {
    data: Bytes,
    /// What was found behind data that is passed on: trailers, or how it failed.
    next: Option<Result<Frame<Bytes>, hyper::Error>>,
    is_all: bool,
}

impl Here {
    /// Up to how much is read of a response that does not say how long it is, and in how many pieces. Whoever makes short answers up as
    /// they go sends a chunk or two.
    const BYTES_MAX: usize = 8 * 1024;
    const PIECES_MAX: usize = 8;

    /// Reads what is here, and waits for nothing.
    fn read<P: Permit>(
        incoming: &mut Incoming,
        in_flight: &mut InFlight<P>,
        headers: &HeaderMap,
        cx: &mut Context<'_>,
    ) -> Result<Here, hyper::Error> {
        let mut here = Here::default();
        let pieces_max = match incoming.size_hint().exact() {
            // Behind a length of 0 over HTTP/2 there may be trailers, and what comes first would be those.
            Some(length) => usize::from(length > 0),
            None if in_flight.protocol() == Protocol::Http1 && !may_go_on_for_ever(in_flight, headers) => {
                Here::PIECES_MAX
            }
            None => 0,
        };
        let mut first = First::Ask;
        for _ in 0..pieces_max {
            match in_flight.poll_driven(cx, first, |cx| Pin::new(&mut *incoming).poll_frame(cx)) {
                Poll::Ready(Some(Err(error))) if here.data.is_empty() => return Err(error),
                Poll::Ready(Some(next @ Err(_))) => {
                    here.next = Some(next);
                    break;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => here.add(data),
                    Err(trailers) => {
                        here.next = Some(Ok(trailers));
                        break;
                    }
                },
                // One that ends before its length is not whole.
                Poll::Ready(None) => {
                    here.is_all = incoming.size_hint().exact().is_none();
                    break;
                }
                Poll::Pending => break,
            }
            here.is_all = incoming.is_end_stream();
            if here.is_all || here.data.len() >= Here::BYTES_MAX {
                break;
            }
            first = First::Drive;
        }
        Ok(here)
    }

    fn add(&mut self, data: Bytes) {
        self.data = if self.data.is_empty() { data } else { [&self.data[..], &data].concat().into() };
    }
}

impl<P: Permit> Reading<P> {
    fn new(rest: Rest<P>, first: Bytes) -> Reading<P> {
        let first = Some(first).filter(|first| !first.is_empty());
        let is_watched = rest.in_flight.is_watched();
        let source = Source::Worker(Some(rest));
        let given = Some(Instant::now()); // The head.
        let course = Course { source, first, given, failed: None, client: None, watcher: None };
        let course = Rc::new(RefCell::new(course));
        if let Some(pool) = course.borrow().pool_of_its_own() {
            pool.may_stall(Rc::downgrade(&course) as Weak<dyn Stalls>);
        }
        if is_watched {
            let watcher = tokio::task::spawn_local(hurry_in_time(course.clone()));
            course.borrow_mut().watcher = Some(watcher.abort_handle());
        }
        Reading(course)
    }
}

impl<P: Permit> Drop for Reading<P> {
    fn drop(&mut self) {
        self.0.borrow_mut().client_leaves();
    }
}

/// Waits until the client is to be waited for no more, and then has the rest of the response read without.
async fn hurry_in_time<P: Permit>(course: Rc<RefCell<Course<P>>>) {
    poll_fn(|cx| match &mut course.borrow_mut().source {
        Source::Worker(Some(rest)) => rest.in_flight.poll_hurry(cx),
        Source::Worker(None) | Source::Relay(_) => Poll::Ready(()),
    })
    .await;
    course.borrow_mut().hurry();
}

impl<P: Permit> Course<P> {
    fn is_end_stream(&self) -> bool {
        let source_has_ended = match &self.source {
            Source::Worker(rest) => rest.is_none(),
            Source::Relay(relay) => relay.is_end_stream(),
        };
        source_has_ended && self.first.is_none() && self.failed.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.failed.is_some() {
            // It has no end that could be told: what was cut must not look like a whole.
            return SizeHint::default();
        }
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let rest = match &self.source {
            Source::Worker(Some(rest)) => rest.incoming.size_hint().exact(),
            Source::Worker(None) => Some(0),
            Source::Relay(_) => None,
        };
        rest.map_or_else(SizeHint::default, |rest| SizeHint::with_exact(first + rest))
    }

    /// The pool that its connection belongs to, if it has that for itself.
    fn pool_of_its_own(&self) -> Option<&Pool> {
        let Source::Worker(Some(rest)) = &self.source else { return None };
        (rest.in_flight.protocol() == Protocol::Http1).then(|| rest.in_flight.pool())
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let piece = self.poll_next(cx);
        self.given = if piece.is_ready() { Some(Instant::now()) } else { None };
        piece
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        if let Some(bytes) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let piece = match &mut self.source {
            Source::Worker(rest) => Rest::poll_piece(rest, cx),
            Source::Relay(relay) => relay.poll_piece(cx),
        };
        match piece {
            Poll::Ready(Some(Err(error))) => {
                // hyper drops what it has not written yet when a body fails, the head perhaps. So it fails a little later.
                self.failed = Some(error);
                cx.waker().wake_by_ref();
                self.end_watch();
                return Poll::Pending;
            }
            Poll::Ready(_) if matches!(self.source, Source::Worker(None)) => self.end_watch(),
            Poll::Ready(_) => {}
            Poll::Pending if self.watcher.is_some() => self.client = Some(cx.waker().clone()),
            Poll::Pending => {}
        }
        piece
    }

    /// From here on the client is not waited for.
    fn hurry(&mut self) {
        let Source::Worker(rest) = &mut self.source else { return };
        let Some(rest) = rest.take() else { return };
        let relay = Rc::new(Relay::default());
        self.source = Source::Relay(relay.clone());
        let background = rest.in_flight.pool().background().clone();
        background.spawn(read_ahead(rest, relay));
        if let Some(client) = self.client.take() {
            client.wake();
        }
    }

    fn client_leaves(&mut self) {
        self.end_watch();
        match &mut self.source {
            Source::Worker(rest) => {
                if let Some(mut rest) = rest.take() {
                    rest.in_flight.detach();
                    rest.read_on();
                }
            }
            Source::Relay(relay) => relay.client_leaves(),
        }
    }

    fn end_watch(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
    }
}

impl<P: Permit> Stalls for RefCell<Course<P>> {
    fn since(&self) -> Option<Instant> {
        let course = self.borrow();
        course.given.filter(|_| matches!(course.source, Source::Worker(Some(_))))
    }

    fn leave_client(&self) {
        let mut course = self.borrow_mut();
        course.client_leaves();
        course.failed = Some(ResponseBodyError::Stalled);
    }
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
            ResponseBody::Upstream(reading) => reading.0.borrow_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Empty | ResponseBody::Switched(_) => true,
            ResponseBody::Whole(bytes) => bytes.is_empty(),
            ResponseBody::Upstream(reading) => reading.0.borrow().is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Empty | ResponseBody::Switched(_) => SizeHint::with_exact(0),
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Upstream(reading) => reading.0.borrow().size_hint(),
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
