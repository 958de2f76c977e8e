//! The last layer: everything a request has to wait for, then the gate, then its first byte.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_config::OnHandoffTimeout;
use fencepost_policy::{Entry, Rejection, Revision};
use fencepost_sources::TrackedLock;
use http::Request;
use tokio::time::{Instant, sleep_until};

use crate::exchange::{Answer, Exchange, InFlight, Place};
use crate::fencing::{Claim, Judged, Standing, confirm, rejected};
use crate::forward::{
    Admitted, Forwarded, ReadyConnection, RequestBody, SendError, Timeouts, UpstreamError, outgoing_request,
    prepare_body,
};
use crate::recording::Subject;
use crate::refusal::Failure;
use crate::ticket::Ticket;

/// How many requests wait at the barrier of one lock. One more is refused as if it had waited.
const WAITING_PER_LOCK_MAX: usize = 1_000;

/// How many requests wait at barriers in all.
const WAITING_MAX: usize = 10_000;

/// How many tenures a request has recorded before it gives up.
const RECORDS_MAX: u32 = 8;

/// How often a request that provably was not sent tries another connection.
const SENDS_MAX: usize = 4;

/// Reads a small body whole, gets a connection ready, enters the gate and sends the request.
pub async fn forward(exchange: Exchange<Judged>) -> Result<Answer, Infallible> {
    let Exchange { request, place, in_flight, state: Judged(standing) } = exchange;
    let prepared = prepare(&place, request).await;
    let request = match prepared {
        Ok(request) => request,
        Err(failure) => return Ok(place.fail(failure)),
    };
    Ok(send(place, in_flight, standing, request).await.unwrap_or_else(|answer| answer))
}

/// Makes the request that the worker gets. A small body is read whole first, so that a slow sender holds nothing up.
async fn prepare(
    place: &Place,
    request: Request<crate::downstream::ClientBody>,
) -> Result<Request<RequestBody>, Failure> {
    let kept = place.kept_headers();
    let (head, body) = request.into_parts();
    let connection = Rc::clone(body.connection());
    let whole_bytes_max = place.worker.fence.config.limits.buffer_body_max;
    let body = prepare_body(body, whole_bytes_max, kept).await.map_err(|error| {
        tracing::debug!(%error, client = %place.client, "a request's body did not arrive whole");
        Failure::BrokenBody
    })?;
    outgoing_request(head, body, &connection, place.pool().upstream(), kept).map_err(|_| Failure::BadTarget)
}

/// Sends the request as soon as the gate lets it out. At most once: what provably was not sent leaves the gate and enters
/// again, on another connection.
async fn send(
    place: Place,
    in_flight: InFlight,
    mut standing: Standing,
    mut request: Request<RequestBody>,
) -> Result<Answer, Answer> {
    let route = place.route();
    let timeouts =
        Timeouts { silence: route.upstream_timeout, total: route.request_timeout, late: route.orphan_timeout };
    let mut in_flight = in_flight;
    for attempt in 0..SENDS_MAX {
        let (ready, ticket);
        (ready, ticket, standing) = enter(&place, in_flight, standing).await?;
        if attempt == 0
            && let Standing::Claim(claim) = &standing
        {
            place.admitted(claim);
        }
        let sent = Instant::now();
        match ready.send(Admitted::new(request, ticket), timeouts).await {
            Ok(mut answer) => {
                place.metrics().upstream_seconds.observe(sent.elapsed().as_secs_f64());
                place.tell_verdict(&standing, answer.headers_mut());
                return Ok(answer);
            }
            Err(SendError::Unsent(unsent)) => {
                let ticket;
                (request, ticket) = unsent.into_parts();
                in_flight = ticket.leave();
            }
            Err(error @ (SendError::NoAnswer { .. } | SendError::Timeout)) => return Err(place.no_answer(&error)),
        }
    }
    Err(place.fail(Failure::Unreachable))
}

/// Waits for a connection to the worker and for the gate; returns with both, and nothing in between.
///
/// # Errors
/// The answer to a request that gets no further.
async fn enter(
    place: &Place,
    in_flight: InFlight,
    mut standing: Standing,
) -> Result<(ReadyConnection, Ticket, Standing), Answer> {
    let mut handoff = Handoff::default();
    loop {
        let ready = ready(place).await?;
        let claim = match &standing {
            Standing::Claim(claim) => claim,
            Standing::Pass(reason, lock) => {
                let ticket = Ticket::passing(place.clone(), lock.clone(), *reason, in_flight);
                return Ok((ready, ticket, standing));
            }
        };
        let entry = if handoff.proceeds {
            claim.lock.enter_dangerously(&claim.token, &place.timing())
        } else {
            claim.lock.enter(&claim.token, &place.timing())
        };
        let outcome = match entry {
            Entry::Admitted(admission) => {
                handoff.passed(place);
                let ticket = Ticket::admitted(place.clone(), Arc::clone(&claim.lock), admission, in_flight);
                return Ok((ready, ticket, standing));
            }
            Entry::Refused(reason) => Err(reason),
            Entry::Record(tenure) => {
                drop(ready);
                Box::pin(handoff.record(place, &claim.lock, tenure)).await
            }
            Entry::Wait => {
                drop(ready); // Others may have it meanwhile; it would not stay fresh.
                Box::pin(handoff.wait(place, claim)).await
            }
            Entry::Confirm => {
                drop(ready);
                Box::pin(confirm(place, claim)).await
            }
        };
        if let Err(reason) = outcome {
            if reason == Rejection::HandoffTimeout {
                if handoff.crowded || place.route().on_handoff_timeout == OnHandoffTimeout::Reject {
                    return Err(handoff.timed_out(place, claim));
                }
                place.metrics().dangerous_proceed.inc();
                place.let_past(reason, Subject::of(claim));
                handoff.proceeds = true;
                continue;
            }
            standing = rejected(place, reason, Subject::of(claim), Some(&claim.lock))?;
        }
    }
}

async fn ready(place: &Place) -> Result<ReadyConnection, Answer> {
    let deadline = Instant::now() + place.worker.fence.config.limits.connect_timeout;
    place.pool().ready(deadline).await.map_err(|error| {
        let failure = match &error {
            UpstreamError::Unreachable(_) | UpstreamError::Handshake(_) => Failure::Unreachable,
            UpstreamError::Timeout => Failure::ConnectTimeout,
            UpstreamError::Crowded => Failure::Overloaded,
        };
        place.log_failure(failure, &error);
        place.fail(failure)
    })
}

/// A wait at the barrier, while requests of an earlier tenure may still be at the worker.
#[derive(Default)]
pub struct Handoff {
    since: Option<Instant>,
    /// How often a tenure was recorded on its way.
    records: u32,
    /// There was no room for it to wait.
    crowded: bool,
    /// It has waited for long enough, and its route says `dangerous_proceed`.
    proceeds: bool,
}

impl Handoff {
    /// Waits until the gate may answer otherwise.
    ///
    /// # Errors
    /// `handoff-timeout` if that takes longer than the route allows.
    pub async fn wait(&mut self, place: &Place, claim: &Claim) -> Result<(), Rejection> {
        let deadline = *self.since.get_or_insert_with(Instant::now) + place.route().handoff_timeout;
        let changed = claim.lock.gate_changed();
        // Looked at again now that no change can be missed.
        if !claim.lock.must_wait(&claim.token, &place.timing()) {
            return Ok(());
        }
        let here = Waiting::join(claim.lock.waiting(), WAITING_PER_LOCK_MAX);
        let overall = Waiting::join(&place.worker.fence.waiting, WAITING_MAX);
        let (Some(_here), Some(_overall)) = (here, overall) else {
            self.crowded = true;
            return Err(Rejection::HandoffTimeout);
        };
        if Instant::now() >= deadline {
            return Err(Rejection::HandoffTimeout);
        }
        let now = Instant::now();
        let seen_off = claim.lock.unseen_until().filter(|until| *until > now).unwrap_or(deadline);
        tokio::select! {
            () = changed => {}
            () = sleep_until(deadline.min(seen_off)) => {}
        }
        Ok(())
    }

    /// Has a tenure recorded, so that a later process knows of it before its first request goes out.
    ///
    /// # Errors
    /// `unverifiable` if it can't be recorded, or not for long enough: tenures follow each other too fast.
    pub async fn record(&mut self, place: &Place, lock: &TrackedLock, tenure: Revision) -> Result<(), Rejection> {
        self.records += 1;
        match &place.worker.fence.memory {
            Some(memory) if self.records <= RECORDS_MAX => {
                memory.record(lock, tenure, place.in_force().orphan_timeout_max).await
            }
            // Without a memory no gate asks for this.
            Some(_) | None => Err(Rejection::Unverifiable),
        }
    }

    fn passed(&self, place: &Place) {
        if let Some(since) = self.since {
            place.metrics().handoff_waited(since.elapsed());
        }
    }

    /// What a request is told that has waited for too long.
    pub fn timed_out(&self, place: &Place, claim: &Claim) -> Answer {
        if let Some(since) = self.since {
            place.metrics().handoff_waited(since.elapsed());
        }
        let now = Instant::now();
        let left = claim.lock.unseen_until().map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        place.refuse_for(Rejection::HandoffTimeout, Subject::of(claim), seconds.max(1))
    }
}

/// One of those that wait, for as long as this lives.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    /// One more, unless there are `max` already.
    fn join(count: &AtomicUsize, max: usize) -> Option<Waiting<'_>> {
        let joined = Waiting(count);
        (count.fetch_add(1, Ordering::Relaxed) < max).then_some(joined)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Place {
    /// What a client is told whose request was sent and not answered.
    fn no_answer(&self, error: &SendError<Ticket>) -> Answer {
        let failure = match error {
            SendError::Timeout => Failure::TimedOut,
            SendError::NoAnswer { forwarded: Forwarded::No, .. } => Failure::Declined,
            SendError::NoAnswer { forwarded: Forwarded::Unknown, .. } | SendError::Unsent(_) => Failure::NoAnswer,
        };
        self.log_failure(failure, error);
        self.fail(failure)
    }

    fn log_failure(&self, failure: Failure, error: &(dyn std::error::Error + 'static)) {
        let route = self.route().name.as_str();
        let upstream = &self.pool().upstream().address;
        tracing::debug!(route, %upstream, failure = failure.code(), error, "the worker did not answer");
    }
}
