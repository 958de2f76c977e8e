//! The last layer: everything a request has to wait for, then the gate, then its first byte.

mod handoff;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use fencepost_policy::{EnterError, Rejection};
use http::Request;
use tokio::time::Instant;

pub use handoff::Handoff;
use handoff::Turn;

use crate::fencing::{Grounds, Judged, confirm, rejected};
use crate::in_place::boxed;
use crate::logging::WithCauses;
use crate::recording::Subject;
use crate::refusal::Failure;
use crate::request_context::{Answer, Exchange, InFlight, RequestContext};
use crate::server::{BodyFault, ClientBody};
use crate::upstream::{
    Admitted, AwaitedHead, Forwarded, InvalidHead, PreparedBody, ReadyConnection, RequestBody, SendError, Timeouts,
    UpstreamError, Wants, outgoing_request, prepare_body,
};
use crate::worker_permit::WorkerPermit;

/// How often a request that provably was not sent tries another connection.
const SENDS_MAX: usize = 4;

/// Reads a small body whole, gets a connection ready, enters the gate and sends the request.
pub async fn forward(exchange: Exchange<Judged>) -> Result<Answer, Infallible> {
    let Exchange { request, context, in_flight, state: Judged(grounds) } = exchange;
    let prepared = prepare(&context, request).await;
    let request = match prepared {
        Ok(request) => request,
        Err(answer) => return Ok(answer),
    };
    Ok(send(context, in_flight, grounds, request).await.unwrap_or_else(|answer| answer))
}

/// Makes the request that the worker gets. A small body is read whole first, so that a slow sender holds nothing up.
///
/// # Errors
/// The answer to a request that cannot be sent.
async fn prepare(
    context: &RequestContext,
    mut request: Box<Request<ClientBody>>,
) -> Result<Box<Request<RequestBody>>, Answer> {
    let kept = context.kept_headers();
    if request.body().is_too_large() {
        return Err(context.fail(Failure::LargeBody));
    }
    let body = request.body_mut().take();
    let whole_bytes_max = context.share.generation.config.limits.buffer_body_max;
    let body = match prepare_body(body, whole_bytes_max, kept) {
        Ok(PreparedBody::Ready(body)) => Ok(body),
        Ok(PreparedBody::Awaited(body)) => {
            let body = Box::pin(context.share.generation.process.unless_over(body)).await;
            body.map_err(|over| context.refuse(over, Subject::default()))?
        }
        Err(error) => Err(error),
    };
    let body = body.map_err(|error| {
        tracing::debug!(error = %WithCauses(&error), client = %context.client, "a request's body did not arrive whole");
        context.fail(match error.fault() {
            BodyFault::Broken => Failure::BrokenBody,
            BodyFault::Slow => Failure::SlowBody,
            BodyFault::Large => Failure::LargeBody,
        })
    })?;
    let (head, rest) = (*request).into_parts();
    outgoing_request(head, body, rest.connection(), context.pool().upstream(), kept).map_err(|error| {
        context.fail(match error {
            InvalidHead::Target => Failure::BadTarget,
            InvalidHead::TwoLengths => Failure::BrokenBody,
        })
    })
}

/// Sends the request as soon as the gate lets it out. At most once: what provably was not sent leaves the gate and enters
/// again, on another connection.
async fn send(
    context: Rc<RequestContext>,
    mut in_flight: InFlight,
    mut grounds: Grounds,
    mut request: Box<Request<RequestBody>>,
) -> Result<Answer, Answer> {
    let route = context.route();
    let timeouts =
        Timeouts { silence: route.upstream_timeout, total: route.request_timeout, late: route.orphan_timeout };
    let wants = Wants::of(&request);
    for attempt in 0..SENDS_MAX {
        let Entered { ready, permit, turn, grounds: admitted, at } = enter(&context, wants, in_flight, grounds).await?;
        grounds = admitted;
        if attempt == 0
            && let Grounds::Claim(claim) = &grounds
        {
            context.admitted(claim);
        }
        context.about.note_sending();
        match in_turn(turn, ready.send(Admitted::new(request, permit), timeouts, at)).await {
            Ok(mut answer) => {
                context.tell_verdict(&grounds, answer.headers_mut());
                return Ok(boxed(|| answer));
            }
            Err(SendError::Unsent(unsent)) => {
                let permit;
                (request, permit) = unsent.into_parts();
                in_flight = permit.leave();
            }
            Err(error @ (SendError::NoAnswer { .. } | SendError::Coded | SendError::Timeout | SendError::Body(_))) => {
                return Err(context.no_answer(&error));
            }
        }
    }
    Err(context.fail(Failure::Unreachable))
}

/// Waits for the answer to what has been let in. Who waits for its turn is next when the first byte is out.
async fn in_turn(
    mut turn: Option<Box<Turn>>,
    mut head: AwaitedHead<WorkerPermit>,
) -> <AwaitedHead<WorkerPermit> as Future>::Output {
    poll_fn(|cx| {
        let polled = Pin::new(&mut head).poll(cx);
        turn.take_if(|_| polled.is_ready() || head.has_begun(cx));
        polled
    })
    .await
}

/// A request that has been let in.
struct Entered {
    ready: ReadyConnection,
    permit: WorkerPermit,
    /// `None` if it did not have to wait for others. Boxed, as all that is rare: each request would move the room for it.
    turn: Option<Box<Turn>>,
    grounds: Grounds,
    /// When that was.
    at: Instant,
}

/// Waits for a connection to the worker and for the gate; returns with both, and nothing in between.
///
/// # Errors
/// The answer to a request that gets no further.
async fn enter(
    context: &Rc<RequestContext>,
    wants: Wants,
    mut in_flight: InFlight,
    mut grounds: Grounds,
) -> Result<Entered, Answer> {
    let mut handoff = Handoff::default();
    let mut kept = None;
    // Its route only watched when it came, and enforces by now.
    let mut enforces = false;
    loop {
        let ready = match kept.take().filter(ReadyConnection::is_usable) {
            Some(ready) => ready,
            None if handoff.is_queued() => Box::pin(handoff.get_ready(ready(context, wants))).await?,
            None => ready(context, wants).await?,
        };
        let claim = match &grounds {
            Grounds::Claim(claim) => claim,
            Grounds::Pass(reason, lock) => match WorkerPermit::passing(Rc::clone(context), *reason, in_flight) {
                Ok(permit) => return Ok(Entered { ready, permit, turn: None, grounds, at: Instant::now() }),
                Err(back) => {
                    in_flight = back;
                    kept = Some(ready);
                    grounds = Grounds::Claim(context.judged_after_all(lock.as_ref())?);
                    enforces = true;
                    continue;
                }
            },
        };
        let timing = context.timing();
        let outcome = match handoff.enter(claim, &timing) {
            Ok(admission) => {
                // From here on it is given back, whatever happens.
                let permit = WorkerPermit::admitted(Rc::clone(context), Arc::clone(&claim.lock), admission, in_flight);
                let turn = handoff.passed(context, &claim.lock);
                return Ok(Entered { ready, permit, turn, grounds, at: timing.now });
            }
            Err(EnterError::Refused(reason)) => Err(reason),
            Err(EnterError::Record(tenure)) => {
                drop(ready); // Others may have it meanwhile; it would not stay fresh.
                Box::pin(handoff.record(context, &claim.lock, tenure)).await
            }
            Err(EnterError::Wait) => Box::pin(handoff.wait(context, claim, ready)).await.map(|ready| kept = ready),
            Err(EnterError::Confirm) => {
                drop(ready);
                Box::pin(handoff.get_ready(confirm(context, claim))).await
            }
        };
        match outcome {
            Ok(()) => {}
            Err(reason @ Rejection::HandoffTimeout) if handoff.proceeds(context) => {
                context.metrics().dangerous_proceed.inc();
                context.let_past(reason, Subject::of(claim));
            }
            Err(Rejection::HandoffTimeout) => return Err(handoff.timed_out(context, claim)),
            Err(reason) if enforces => return Err(context.refuse(reason, Subject::of(claim))),
            Err(reason) => grounds = rejected(context, reason, Subject::of(claim), Some(&claim.lock))?,
        }
    }
}

async fn ready(context: &RequestContext, wants: Wants) -> Result<ReadyConnection, Answer> {
    match context.pool().free(wants) {
        Some(ready) => Ok(ready),
        // Boxed: who finds one would move the room for the wait.
        None => Box::pin(wait_for_connection(context, wants)).await,
    }
}

async fn wait_for_connection(context: &RequestContext, wants: Wants) -> Result<ReadyConnection, Answer> {
    let deadline = Instant::now() + context.share.generation.config.limits.connect_timeout;
    let ready = context.share.generation.process.unless_over(context.pool().ready(wants, deadline)).await;
    ready.map_err(|over| context.refuse(over, Subject::default()))?.map_err(|error| {
        let failure = match &error {
            UpstreamError::Unreachable(_) | UpstreamError::Tls { .. } | UpstreamError::Handshake(_) => {
                Failure::Unreachable
            }
            UpstreamError::Timeout => Failure::ConnectTimeout,
            UpstreamError::Crowded => Failure::Overloaded,
        };
        context.log_failure(failure, &error, true);
        context.fail(failure)
    })
}

impl RequestContext {
    /// What a client is told whose request was sent and not answered.
    fn no_answer(&self, error: &SendError<WorkerPermit>) -> Answer {
        let failure = match error {
            SendError::Timeout => Failure::TimedOut,
            SendError::Body(BodyFault::Broken) => Failure::CutBody,
            SendError::Body(BodyFault::Slow) => Failure::SlowBodyCut,
            SendError::Body(BodyFault::Large) => Failure::LargeBodyCut,
            SendError::NoAnswer { forwarded: Forwarded::No, .. } => Failure::Declined,
            SendError::NoAnswer { forwarded: Forwarded::Unknown, .. } | SendError::Coded | SendError::Unsent(_) => {
                Failure::NoAnswer
            }
        };
        // A body that did not arrive is its client's affair, and what was cut because its tenure had ended is ours.
        let is_the_workers = !matches!(error, SendError::Body(_) | SendError::NoAnswer { source: None, .. });
        self.log_failure(failure, error, is_the_workers);
        self.fail(failure)
    }

    fn log_failure(&self, failure: Failure, error: &(dyn std::error::Error + 'static), is_the_workers: bool) {
        let route = self.route().name.as_str();
        let upstream = &self.pool().upstream().address;
        let (code, error) = (failure.code(), WithCauses(error));
        if is_the_workers && self.pool().is_news(code) {
            tracing::warn!(route, %upstream, failure = code, %error, "the worker did not answer");
        } else {
            tracing::debug!(route, %upstream, failure = code, %error, "the worker did not answer");
        }
    }
}
