//! Waiting for the head of a response.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::Instant;

use super::admitted::{Admitted, Permit};
use super::error::{Forwarded, SendError};
use super::http1::{First, HeadFuture};
use super::http2::was_refused;
use super::in_flight::{InFlight, Outgoing};
use super::pool::{Link, Pool, Wants};
use super::request_body::RequestBody;
use super::request_form;
use super::response_body::ResponseBody;
use super::response_head;
use super::rest::Rest;
use super::tunnel::WorkerEnd;
use super::upstream::Timeouts;

/// Waits for the head of a response. The first poll sends the request: see [`ReadyConnection::send`](super::ReadyConnection::send).
///
/// If it is dropped, because the client has left, the response is read to its end in the background: closing the
/// connection would cancel nothing at the worker.
#[must_use = "the request is sent when this is polled"]
pub struct AwaitedHead<P: Permit> {
    sent: Option<Sent<P>>,
}

/// A request that hyper has been given.
struct Sent<P: Permit> {
    head: HeadFuture,
    in_flight: Box<InFlight<P>>,
    asked_to_upgrade: bool,
    /// The request once more, where hyper would not give it back although the worker has refused it.
    copy: Option<Box<Request<RequestBody>>>,
}

/// What came of waiting for a head that no client waits for.
enum Awaited {
    Head(Result<Response<Incoming>, TrySendError<Request<RequestBody>>>),
    Cut,
    Babble,
    Nothing,
}

impl<P: Permit> AwaitedHead<P> {
    pub(super) fn new(
        mut link: Link,
        pool: Pool,
        wants: Wants,
        admitted: Admitted<Box<Request<RequestBody>>, P>,
        timeouts: Timeouts,
        at: Instant,
    ) -> AwaitedHead<P> {
        let (mut request, permit) = admitted.into_parts();
        let body = request.body().state().cloned();
        let asked_to_upgrade = wants == Wants::Http1;
        let (is_head, has_body) = (request.method() == Method::HEAD, !request.body().is_end_stream());
        let (head, copy, unwritten) = match &mut link {
            Link::Http1(connection) => {
                request_form::for_http1(&mut request);
                (connection.send(request), None, None)
            }
            Link::Http2(stream) => {
                request_form::for_http2(&mut request, stream.scheme());
                if let Some(body) = &body {
                    body.goes_over_http2();
                }
                let copy = copy_of(&request);
                let (head, unwritten) = stream.send(*request);
                (head, copy, Some(unwritten))
            }
        };
        let is_streamed = body.is_some();
        let outgoing = Outgoing { body, unwritten, is_head, has_body };
        let mut in_flight = Box::write(Box::new_uninit(), InFlight::new(link, pool, permit, outgoing, timeouts, at));
        if is_streamed || in_flight.is_endless() {
            in_flight.watch_tenure();
        }
        in_flight.give_way();
        AwaitedHead { sent: Some(Sent { head, in_flight, asked_to_upgrade, copy }) }
    }
}

fn copy_of(request: &Request<RequestBody>) -> Option<Box<Request<RequestBody>>> {
    let mut copy = Request::new(request.body().copy()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(Box::new(copy))
}

// Whatever is pinned is boxed.
impl<P: Permit> Unpin for AwaitedHead<P> {}

impl<P: Permit> Future for AwaitedHead<P> {
    type Output = Result<Response<ResponseBody<P>>, SendError<P>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let sent = self.sent.as_mut().expect("an exchange is not polled after it has ended");
        let head = sent.poll_head(cx);
        let cut = head.is_pending() && sent.poll_cut(cx).is_ready();
        let fault = sent.in_flight.poll_client_failed(cx);
        let babble = head.is_pending() && sent.in_flight.is_babble();
        let goes_on = head.is_pending() && !cut && fault.is_pending() && !babble;
        if goes_on && sent.in_flight.poll_impatience(cx).is_pending() {
            return Poll::Pending;
        }
        let mut sent = self.sent.take().expect("it was there just now");
        Poll::Ready(match (head, fault) {
            (Poll::Pending, Poll::Ready(fault)) => {
                sent.in_flight.detach();
                sent.read_on();
                Err(SendError::Body(fault))
            }
            (Poll::Pending, _) if cut => {
                sent.cut();
                Err(SendError::NoAnswer { forwarded: Forwarded::Unknown, source: None })
            }
            (Poll::Pending, _) if babble => {
                sent.in_flight.lost();
                Err(SendError::NoAnswer { forwarded: Forwarded::Unknown, source: None })
            }
            (Poll::Ready(Ok(response)), _) => sent.answered(response, cx),
            (Poll::Ready(Err(error)), fault) => Err(match (sent.failed(error), fault) {
                (SendError::NoAnswer { .. }, Poll::Ready(fault)) => SendError::Body(fault),
                (failed, _) => failed,
            }),
            (Poll::Pending, _) if sent.in_flight.is_held_back() || sent.in_flight.is_upload() => {
                // The worker does not have the whole of it, and is not to get that later: it is not waited for.
                let Sent { head, in_flight, .. } = sent;
                drop(head);
                in_flight.gave_up();
                Err(SendError::Timeout)
            }
            (Poll::Pending, _) => {
                sent.in_flight.overdue();
                sent.read_on();
                Err(SendError::Timeout)
            }
        })
    }
}

impl<P: Permit> Drop for AwaitedHead<P> {
    fn drop(&mut self) {
        if let Some(mut sent) = self.sent.take() {
            sent.in_flight.detach();
            sent.read_on();
        }
    }
}

impl<P: Permit> Sent<P> {
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Incoming>, TrySendError<Request<RequestBody>>>> {
        let Sent { head, in_flight, .. } = self;
        let head = in_flight.poll_driven(cx, First::Drive, |cx| head.as_mut().poll(cx));
        if head.is_pending() {
            in_flight.hear_before_head();
        }
        head
    }

    /// Ready when the request is to be cut now, the tenure having ended. What else is cut then goes on.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.in_flight.watch_if_left(cx);
        let sealed = self.in_flight.poll_seal(cx);
        if self.in_flight.is_cut_and_held_back() {
            return Poll::Ready(());
        }
        ready!(sealed);
        if self.in_flight.is_endless() { Poll::Ready(()) } else { self.in_flight.poll_cut_left(cx) }
    }

    /// Cuts the request. What HTTP/2 holds back of it goes with its head: hyper resets its stream then, and no other.
    fn cut(self) {
        let Sent { head, in_flight, .. } = self;
        drop(head);
        if in_flight.is_cut_and_held_back() { in_flight.lost() } else { in_flight.cut() }
    }

    fn answered(
        mut self,
        response: Response<Incoming>,
        cx: &mut Context<'_>,
    ) -> Result<Response<ResponseBody<P>>, SendError<P>> {
        let (mut head, incoming) = response.into_parts();
        let is_clear = self.in_flight.answered(&head);
        if !is_clear && !incoming.is_end_stream() && response_head::is_coded(&head.headers) {
            self.in_flight.detach();
            let background = self.in_flight.pool().background().clone();
            background.spawn(Rest::new(incoming, self.in_flight, &head.headers).read_to_end());
            return Err(SendError::Coded);
        }
        response_head::clean(&mut head.headers, head.status, self.in_flight.protocol());
        head.version = response_head::ANSWER_VERSION;
        if head.status != StatusCode::SWITCHING_PROTOCOLS {
            return match ResponseBody::begin(incoming, self.in_flight, &head.headers, cx) {
                Ok(body) => Ok(Response::from_parts(head, body)),
                Err(error) => Err(SendError::NoAnswer { forwarded: Forwarded::Unknown, source: Some(error) }),
            };
        }
        if !self.asked_to_upgrade {
            self.in_flight.lost();
            return Err(SendError::NoAnswer { forwarded: Forwarded::Unknown, source: None });
        }
        Ok(Response::from_parts(head, ResponseBody::switched(WorkerEnd::new(self.in_flight))))
    }

    fn failed(self, mut error: TrySendError<Request<RequestBody>>) -> SendError<P> {
        let returned = error.take_message();
        let error = error.into_error();
        self.in_flight.connection_failed();
        if returned.as_ref().and_then(|request| request.body().state()).is_some_and(|body| body.is_cut()) {
            self.in_flight.ended(); // Nothing was sent, and nothing is left to be sent whole.
            return SendError::NoAnswer { forwarded: Forwarded::No, source: Some(error) };
        }
        let refused = was_refused(&error);
        let copy = if refused { self.copy } else { None };
        if let Some(request) = returned.map(Box::new).or(copy) {
            return SendError::Unsent(Box::new(Admitted::new(request, self.in_flight.into_permit())));
        }
        if refused {
            self.in_flight.ended(); // The worker has not looked at it and never will, but a streamed body can't be sent again.
            return SendError::NoAnswer { forwarded: Forwarded::No, source: Some(error) };
        }
        self.in_flight.lost();
        SendError::NoAnswer { forwarded: Forwarded::Unknown, source: Some(error) }
    }

    /// Reads the response to its end for the permit's sake.
    fn read_on(self) {
        let background = self.in_flight.pool().background().clone();
        background.spawn(self.read_to_end());
    }

    async fn read_to_end(mut self) {
        let awaited = poll_fn(|cx| {
            let head = self.poll_head(cx);
            if head.is_ready() {
                return head.map(Awaited::Head);
            }
            if self.poll_cut(cx).is_ready() {
                return Poll::Ready(Awaited::Cut);
            }
            if self.in_flight.is_babble() {
                return Poll::Ready(Awaited::Babble);
            }
            self.in_flight.poll_impatience(cx).map(|()| Awaited::Nothing)
        })
        .await;
        let response = match awaited {
            Awaited::Head(Ok(response)) => response,
            Awaited::Head(Err(error)) => {
                // Handed back or not, nobody is left to send it again.
                drop(self.failed(error));
                return;
            }
            Awaited::Cut => return self.cut(),
            Awaited::Babble => return self.in_flight.lost(),
            Awaited::Nothing => return self.in_flight.gave_up(),
        };
        let (head, incoming) = response.into_parts();
        self.in_flight.answered(&head);
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.in_flight.lost();
        }
        Rest::new(incoming, self.in_flight, &head.headers).read_to_end().await;
    }
}
