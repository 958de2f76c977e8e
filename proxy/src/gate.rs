//! Everything a request has to wait for, then the gate, then its first byte.
//! It does not carry bytes: that is `upstream`.

use std::rc::Rc;

use fencepost_fence::enter::{Entered, QueuePlace, enter};
use fencepost_policy::Rejection;
use http::Request;
use tokio::time::Instant;

use crate::at_gate::{Arrived, HeldUp};
use crate::fencing::{Authorization, enforced_after_all, rejected};
use crate::in_place::boxed;
use crate::logging::WithCauses;
use crate::recording::{Answer, Subject};
use crate::refusal::Failure;
use crate::request_context::{InFlight, RequestContext};
use crate::request_id::X_REQUEST_ID;
use crate::server::{BodyFault, ClientBody};
use crate::upstream::{
    Admitted, Forwarded, InvalidHead, Pool, ReadyConnection, RequestBody, SendError, Timeouts,
    UpstreamError, Wants, outgoing_request, prepare_body, rewrite_request, rewrite_response,
};
use crate::worker_permit::WorkerPermit;

/// How often a request that provably was not sent tries another connection.
const SENDS_MAX: usize = 4;

/// Reads a small body whole, gets a connection ready, enters the gate and sends the request.
///
/// # Errors
/// The answer to a request that gets no further.
pub async fn forward(
    context: &Rc<RequestContext>,
    in_flight: InFlight,
    authorization: Authorization,
    request: Box<Request<ClientBody>>,
) -> Result<Answer, Answer> {
    let request = prepare(context, request).await?;
    send(context, &Rc::new(in_flight), authorization, request).await
}

/// Makes the request that the worker gets. A small body is read whole first, so that a slow sender
/// holds nothing up.
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
    let body = prepare_body(body, whole_bytes_max, kept);
    let body = context.share.generation.process.unless_over(body).await;
    let body = body.map_err(|over| context.refuse(over, Subject::default()))?;
    let body = body.map_err(|error| {
        tracing::debug!(error = %WithCauses(&error), client = %context.client, "a request's body did not arrive whole");
        context.fail(match error.fault() {
            BodyFault::Broken => Failure::BrokenBody,
            BodyFault::Slow => Failure::SlowBody,
            BodyFault::Large => Failure::LargeBody,
        })
    })?;
    let (head, rest) = (*request).into_parts();
    let upstream = context.pools().unfenced.upstream();
    let mut request =
        outgoing_request(head, body, rest.connection(), upstream, kept).map_err(|error| {
            context.fail(match error {
                InvalidHead::Target => Failure::BadTarget,
                InvalidHead::TwoLengths => Failure::BrokenBody,
            })
        })?;
    if let Some(id) = context.about.request_id_value() {
        request.headers_mut().insert(X_REQUEST_ID, id.clone());
    }
    rewrite_request(&mut request, &context.route().rewrite, upstream);
    Ok(request)
}

/// Sends the request as soon as the gate lets it in. At most once: what provably was not sent
/// leaves the gate and enters again, on another connection.
async fn send(
    context: &Rc<RequestContext>,
    in_flight: &Rc<InFlight>,
    mut authorization: Authorization,
    mut request: Box<Request<RequestBody>>,
) -> Result<Answer, Answer> {
    let route = context.route();
    let timeouts = Timeouts {
        silence: route.upstream_timeout,
        stream_idle: route.stream_idle_timeout,
        total: route.request_timeout,
        late: route.orphan_timeout,
    };
    let wants = Wants::of(&request);
    let mut last_refused = None;
    for attempt in 0..SENDS_MAX {
        let Sendable { ready, permit, place, at } =
            permit(context, wants, in_flight, &mut authorization).await?;
        if attempt == 0
            && let Authorization::Claim(claim) = &authorization
        {
            context.admitted(claim);
        }
        context.about.note_sending();
        let sent = ready.send(Admitted::new(request, permit), timeouts, at);
        let head = match place {
            None => sent.head().await,
            // The next request in the queue enters once something of this one is written.
            Some(place) => sent.head_in_turn(place).await,
        };
        match head {
            Ok(mut answer) => {
                rewrite_response(&mut answer, &route.rewrite);
                authorization.show(context, answer.headers_mut());
                return Ok(boxed(|| answer));
            }
            Err(SendError::Unsent { admitted, refused }) => {
                let permit;
                (request, permit) = admitted.into_parts();
                drop(permit); // It leaves the gate.
                last_refused = refused;
            }
            Err(
                error @ (SendError::NoAnswer { .. }
                | SendError::Unreadable(_)
                | SendError::Coded
                | SendError::LostStanding
                | SendError::Timeout
                | SendError::Body(_)),
            ) => {
                return Err(context.no_answer(&error));
            }
        }
    }
    if last_refused.is_none() {
        return Err(context.fail(Failure::Unreachable));
    }
    let declined = SendError::NoAnswer { forwarded: Forwarded::No, source: last_refused };
    Err(context.no_answer(&declined))
}

/// A request that may be sent, now.
struct Sendable {
    ready: ReadyConnection,
    permit: WorkerPermit,
    place: Option<Box<QueuePlace<HeldUp>>>,
    /// When the gate let it in.
    at: Instant,
}

/// Why a request does not enter the gate.
enum NotEntered {
    Rejected(Rejection),
    /// It has no connection.
    Answered(Answer),
}

impl From<Rejection> for NotEntered {
    fn from(reason: Rejection) -> NotEntered {
        NotEntered::Rejected(reason)
    }
}

/// Waits for a connection to the worker and for the gate; returns with both, and nothing in
/// between.
///
/// # Errors
/// The answer to a request that gets no further.
async fn permit(
    context: &Rc<RequestContext>,
    wants: Wants,
    in_flight: &Rc<InFlight>,
    authorization: &mut Authorization,
) -> Result<Sendable, Answer> {
    let mut was_in_shadow = false;
    loop {
        let claim = match authorization {
            Authorization::Claim(claim) => claim,
            Authorization::Pass(reason, lock) => {
                let ready = connection(context, &context.pools().unfenced, wants, None).await?;
                let (context_of, counted) = (Rc::clone(context), Rc::clone(in_flight));
                if let Some(permit) = WorkerPermit::passing(context_of, *reason, counted) {
                    return Ok(Sendable { ready, permit, place: None, at: Instant::now() });
                }
                *authorization = enforced_after_all(context, lock.as_ref())?;
                was_in_shadow = true;
                continue;
            }
        };
        let arrived = Arrived::request(context, claim);
        let get_ready = |kept| async move {
            let pool = &context.pools().fenced;
            if !pool.stands() {
                return Err(Rejection::OutOfGroup.into()); // It would wait for the connection first.
            }
            connection(context, pool, wants, kept).await.map_err(NotEntered::Answered)
        };
        let reason = match enter(&arrived, get_ready).await {
            Ok(Entered { entry, ready, place, at }) => {
                let permit =
                    WorkerPermit::admitted(Rc::clone(context), entry, Rc::clone(in_flight));
                return Ok(Sendable { ready, permit, place, at });
            }
            Err(NotEntered::Answered(answer)) => return Err(answer),
            Err(NotEntered::Rejected(reason)) => reason,
        };
        if was_in_shadow || reason == Rejection::HandoffTimeout {
            return Err(arrived.refuse(reason));
        }
        *authorization = rejected(context, reason, Subject::of(claim), Some(&claim.lock))?;
    }
}

/// The connection that was kept, if it is still usable, or another one.
async fn connection(
    context: &RequestContext,
    pool: &Pool,
    wants: Wants,
    kept: Option<ReadyConnection>,
) -> Result<ReadyConnection, Answer> {
    match kept.filter(ReadyConnection::is_usable).or_else(|| pool.free(wants)) {
        Some(ready) => Ok(ready),
        // Boxed: a request that finds one would move the room for the wait.
        None => Box::pin(wait_for_connection(context, pool, wants)).await,
    }
}

async fn wait_for_connection(
    context: &RequestContext,
    pool: &Pool,
    wants: Wants,
) -> Result<ReadyConnection, Answer> {
    let deadline = Instant::now() + context.share.generation.config.limits.connect_timeout;
    let ready = context.share.generation.process.unless_over(pool.ready(wants, deadline)).await;
    ready.map_err(|over| context.refuse(over, Subject::default()))?.map_err(|error| {
        let failure = match &error {
            UpstreamError::Unreachable(_)
            | UpstreamError::Tls { .. }
            | UpstreamError::Handshake(_) => Failure::Unreachable,
            UpstreamError::Timeout => Failure::ConnectTimeout,
            UpstreamError::Crowded => Failure::Overloaded,
        };
        context.log_failure(failure, &error, true);
        context.fail(failure)
    })
}

impl RequestContext {
    /// The answer to a request that was sent and that the worker did not answer.
    fn no_answer(&self, error: &SendError<WorkerPermit>) -> Answer {
        let failure = match error {
            SendError::Timeout => Failure::TimedOut,
            SendError::Body(BodyFault::Broken) => Failure::CutBody,
            SendError::Body(BodyFault::Slow) => Failure::SlowBodyCut,
            SendError::Body(BodyFault::Large) => Failure::LargeBodyCut,
            SendError::NoAnswer { forwarded: Forwarded::No, .. } => Failure::Declined,
            SendError::LostStanding => Failure::LostStanding,
            SendError::Coded => Failure::CodedAnswer,
            SendError::Unreadable(_) => Failure::UnreadableAnswer,
            SendError::NoAnswer { forwarded: Forwarded::Unknown, .. }
            | SendError::Unsent { .. } => Failure::NoAnswer,
        };
        // A body that did not arrive is the client's fault; a request that was cut with its tenure
        // is ours, or with our standing, which has a warning of its own.
        let is_the_workers = !matches!(
            error,
            SendError::Body(_) | SendError::NoAnswer { source: None, .. } | SendError::LostStanding
        );
        self.log_failure(failure, error, is_the_workers);
        let why = if let SendError::Unreadable(why) = error { Some(why.as_str()) } else { None };
        self.fail_for(failure, why)
    }

    fn log_failure(
        &self,
        failure: Failure,
        error: &(dyn std::error::Error + 'static),
        is_the_workers: bool,
    ) {
        let route = self.route().name.as_str();
        let pool = &self.pools().unfenced;
        let upstream = &pool.upstream().address;
        let (code, error) = (failure.code(), WithCauses(error));
        if is_the_workers && pool.is_news(code) {
            tracing::warn!(route, %upstream, failure = code, %error, "the worker did not answer");
        } else if failure == Failure::LostStanding {
            tracing::debug!(route, %upstream, failure = code, %error, "a request at the worker was cut");
        } else {
            tracing::debug!(route, %upstream, failure = code, %error, "the worker did not answer");
        }
    }
}
