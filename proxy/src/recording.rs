//! Records every verdict: a count, for refusals a line in the log, and a decision that operators
//! can look at. Writes the proxy's own answers. It decides nothing.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use fencepost_fence::claim::Claim;
use fencepost_locks::TrackedLock;
use fencepost_policy::{FenceToken, LockKey, Rejection, Revision};
use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use smol_str::SmolStr;
use tokio::time::Instant;

use crate::active_config::ThreadShare;
use crate::decision::DecisionId;
use crate::in_place::boxed;
use crate::metrics::Counted;
use crate::observe::record::whole_millis;
use crate::observe::text::{shown_host, shown_method, shown_owner, shown_path, shown_peer};
use crate::observe::{Decision, Outcome, RouteLabel};
use crate::refusal::{AnswerForm, Failure, Refusal};
use crate::request_context::RequestContext;
use crate::server::{ClientAddress, UnreadHead};
use crate::upstream::ResponseBody;

/// An answer on its way to the client. Behind a pointer, as the request: it is moved from layer to
/// layer.
pub type Answer = Box<Response<ResponseBody>>;

/// What the verdict on a request was, where its route says so: `Fence-Verdict`.
pub const FENCE_VERDICT: HeaderName = HeaderName::from_static("fence-verdict");

/// What a verdict is about, as far as that is known.
#[derive(Default, Clone, Copy)]
pub struct Subject<'a> {
    /// The key of the lock that guards the request.
    pub lock: Option<&'a LockKey>,
    /// That lock, if it is tracked.
    pub tracked: Option<&'a TrackedLock>,
    /// The owner that the request presents, even without a revision.
    pub owner: Option<&'a HeaderValue>,
    /// The revision that the request presents, even without an owner.
    pub revision: Option<Revision>,
    /// What helps the client more than the reason's own words.
    pub detail: Option<&'a str>,
}

impl<'a> Subject<'a> {
    /// A lock that is not tracked.
    pub fn of_lock(lock: &'a LockKey) -> Subject<'a> {
        Subject { lock: Some(lock), ..Subject::default() }
    }

    /// A lock that is tracked.
    pub fn of_tracked(lock: &'a TrackedLock) -> Subject<'a> {
        Subject { tracked: Some(lock), ..Subject::of_lock(lock.key()) }
    }

    /// A claim.
    pub fn of(claim: &'a Claim) -> Subject<'a> {
        Subject::of_tracked(&claim.lock).with(&claim.token)
    }

    /// The subject with a token.
    #[must_use]
    pub fn with(self, token: &'a FenceToken<HeaderValue>) -> Subject<'a> {
        Subject { owner: Some(&token.owner), revision: Some(token.revision), ..self }
    }
}

impl RequestContext {
    /// Records why the worker did not answer, or was not asked, and writes the client's answer.
    pub fn fail(&self, failure: Failure) -> Answer {
        self.fail_for(failure, None)
    }

    /// Like [`fail`](Self::fail), with a reason that the client is told.
    pub fn fail_for(&self, failure: Failure, why: Option<&str>) -> Answer {
        self.metrics().failed(failure);
        self.about.note_failure(failure);
        boxed(|| failure.answer_for(self.form, why).map(ResponseBody::Whole))
    }

    /// The answer to a request that made us panic.
    pub fn panicked(&self) -> Answer {
        self.fail(if self.about.may_be_sent() {
            Failure::InternalAfterSending
        } else {
            Failure::Internal
        })
    }

    /// The subject with the readable part of what these headers present.
    pub fn presenting<'a>(&self, headers: &'a HeaderMap, subject: Subject<'a>) -> Subject<'a> {
        let names = &self.active_route().headers;
        let (owner, revision) =
            (names.owner(headers).ok().flatten(), names.revision_alone(headers));
        self.about.note_part(owner, revision);
        Subject { owner, revision, ..subject }
    }

    /// Records the refusal and writes its answer.
    pub fn refuse(&self, reason: Rejection, subject: Subject<'_>) -> Answer {
        self.refuse_for(reason, subject, 1)
    }

    /// Records the refusal for a cause that lasts that many seconds, and writes its answer.
    pub fn refuse_for(&self, reason: Rejection, subject: Subject<'_>, retry_after: u64) -> Answer {
        let reason = self.unless_out_of_group(reason);
        let decision = self.share.decisions.next();
        let stale_status = match self.route.get() {
            Some(_) => self.route().stale_status.status(),
            None => StatusCode::PRECONDITION_FAILED,
        };
        let (decision_id, Subject { lock, detail, .. }) = (decision.as_str(), subject);
        let refusal =
            Refusal { reason, lock, decision: decision_id, stale_status, retry_after, detail };
        let mut answer = boxed(|| refusal.answer(self.form).map(ResponseBody::Whole));
        if reason == Rejection::OutOfGroup {
            // A balancer that passes TCP on sends the next connection to a member that stands.
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.record(decision, Outcome::Refused(reason), subject, Some(answer.status()));
        answer
    }

    /// The reason, unless it is that of a member without its group: another member may answer.
    fn unless_out_of_group(&self, reason: Rejection) -> Rejection {
        let stands = || self.share.generation.group().is_none_or(|group| group.stands());
        if reason == Rejection::Unverifiable && !stands() { Rejection::OutOfGroup } else { reason }
    }

    /// Records that the request would have been refused if its route enforced.
    pub fn would_refuse(&self, reason: Rejection, subject: Subject<'_>) {
        let decision = self.share.decisions.next();
        self.record(decision, Outcome::WouldBeRefused(reason), subject, None);
    }

    /// Records that the request goes on though something speaks against it, by a setting that
    /// weakens the fence.
    pub fn let_past(&self, reason: Rejection, subject: Subject<'_>) {
        self.record(self.share.decisions.next(), Outcome::LetPast(reason), subject, None);
    }

    /// Counts that the request was admitted, or would have been, and records a sample of these.
    pub fn admitted(&self, claim: &Claim) {
        self.about.count(|| self.counts().count(Counted::Admitted));
        self.about.note_admitted();
        if self.share.generation.process.observations.is_some() && self.share.sample.takes() {
            self.record(self.share.decisions.next(), Outcome::Admitted, Subject::of(claim), None);
        }
    }

    /// Counts what was decided, writes it to the log at a bounded rate, and notes it for operators
    /// to look at.
    fn record(
        &self,
        id: DecisionId,
        outcome: Outcome,
        subject: Subject<'_>,
        status: Option<StatusCode>,
    ) {
        match outcome {
            Outcome::Refused(reason) | Outcome::WouldBeRefused(reason) => {
                self.about.count(|| self.counts().count(Counted::Rejected(reason)))
            }
            Outcome::LetPast(_) | Outcome::Admitted => {}
        }
        let process = &self.share.generation.process;
        self.about.note(outcome, &id);
        let now = Instant::now();
        let left_out = outcome.rejection().and_then(|reason| process.log.admits(reason, now));
        if left_out.is_none() && process.observations.is_none() {
            return;
        }
        // As rarely as it is logged.
        match (left_out, outcome.rejection(), subject.tracked) {
            (Some(_), Some(Rejection::NoOwner), Some(lock)) => process.layout_hints.suspect(lock),
            (Some(_), Some(Rejection::NotOwner), Some(lock)) => {
                let owner = subject.owner.map(|owner| owner.as_bytes()).unwrap_or_default();
                process.layout_hints.suspect_owner(lock, owner);
            }
            _ => {}
        }
        let decision = Box::new(Decision {
            id,
            at: SystemTime::now(),
            route: Arc::clone(self.label()),
            lock: subject.lock.cloned(),
            owner: subject.owner.map(|owner| shown_owner(owner.as_bytes())),
            revision: subject.revision,
            outcome,
            age: subject.tracked.and_then(|lock| lock.view().age(now)),
            waited: now.saturating_duration_since(self.arrived),
            client: self.client,
            peer: self.peer.as_deref().map(shown_peer),
            method: shown_method(&self.about.method),
            path: shown_path(self.about.path()),
            status,
            traceparent: self.about.traceparent().map(SmolStr::new),
            request_id: self.about.request_id().map(SmolStr::new),
        });
        if let Some(left_out) = left_out {
            log(&decision, left_out);
        }
        if let Some(observations) = &process.observations {
            observations.note_decision(decision);
        }
    }

    /// Writes to the log, at a bounded rate, that no route takes the request. It has no decision.
    pub fn log_no_route(&self, host: Option<&str>) {
        let Some(left_out) = self.share.generation.process.log.admits_no_route(self.arrived) else {
            return;
        };
        tracing::info!(
            failure = Failure::NoRoute.code(),
            host = host.map(shown_host).as_deref(),
            client = %self.client,
            peer = self.peer.as_deref().map(shown_peer).as_deref(),
            method = &*shown_method(&self.about.method),
            path = &*shown_path(self.about.path()),
            traceparent = self.about.traceparent(),
            request_id = self.about.request_id(),
            left_out,
            "no route takes the request"
        );
    }

    /// What decisions say of its route.
    pub fn label(&self) -> &Arc<RouteLabel> {
        match self.route.get() {
            Some(route) => &self.share.generation.routes[route].label,
            None => &self.share.generation.process.unrouted_label,
        }
    }
}

impl ThreadShare {
    /// Counts a request over HTTP/1 whose head could not be read, and writes it to the log, at a
    /// bounded rate: it has neither a route nor a line in the access log. Returns its answer.
    pub fn note_unread_head(&self, client: ClientAddress, why: UnreadHead) -> Response<Bytes> {
        let failure = match why {
            UnreadHead::TooLarge => Failure::LargeHead,
            UnreadHead::Unclear(_) | UnreadHead::Unknown | UnreadHead::Unexpected(_) => {
                Failure::Unreadable
            }
        };
        self.generation.unrouted.failed(failure);
        if let Some(left_out) = self.generation.process.log.admits_unread_head(Instant::now()) {
            tracing::info!(failure = failure.code(), %client, %why, left_out, "a request could not be read");
        }
        failure.answer_for(AnswerForm::Problem, Some(&format!("The request has {why}.")))
    }
}

fn log(decision: &Decision, left_out: u64) {
    let message = match decision.outcome {
        Outcome::Refused(_) => "request refused",
        Outcome::WouldBeRefused(_) => "request would be refused",
        Outcome::LetPast(_) => "request let past",
        Outcome::Admitted => "request admitted",
    };
    tracing::info!(
        decision = %decision.id,
        route = decision.route.name,
        mode = decision.route.mode,
        lock = decision.lock.as_ref().map(LockKey::as_str),
        owner = decision.owner.as_deref(),
        revision = decision.revision.map(fencepost_policy::Revision::get),
        reason = decision.outcome.reason(),
        age_ms = decision.age.map(whole_millis),
        waited_ms = whole_millis(decision.waited),
        client = %decision.client,
        peer = decision.peer.as_deref(),
        method = &*decision.method,
        path = &*decision.path,
        traceparent = decision.traceparent.as_deref(),
        request_id = decision.request_id.as_deref(),
        left_out,
        "{message}"
    );
}
