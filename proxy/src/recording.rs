//! Every verdict leaves a trace: a count, for refusals a line in the log, and a decision that operators can look at.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::TrackedLock;
use fencepost_policy::{FenceToken, LockKey, Rejection, Revision};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use smol_str::SmolStr;
use tokio::time::Instant;

use crate::active_config::ThreadShare;
use crate::decision::DecisionId;
use crate::downstream::{ClientAddress, UnreadHead};
use crate::fencing::{Claim, Grounds};
use crate::in_place::boxed;
use crate::let_past::PassReason;
use crate::metrics::Counted;
use crate::observe::record::whole_millis;
use crate::observe::text::{shown_host, shown_method, shown_owner, shown_path, shown_peer};
use crate::observe::{Decision, Likeness, Outcome, RouteLabel};
use crate::refusal::{FENCE_DECISION, FENCE_REASON, Failure, Refusal};
use crate::request_context::{Answer, RequestContext};
use crate::upstream::ResponseBody;

/// What the verdict on a request was, where its route says so: `Fence-Verdict`.
pub const FENCE_VERDICT: HeaderName = HeaderName::from_static("fence-verdict");

/// What a verdict is about, as far as that is known.
#[derive(Default, Clone, Copy)]
pub struct Subject<'a> {
    /// The key of the lock that guards the request.
    pub lock: Option<&'a LockKey>,
    /// That lock, if it is tracked.
    pub tracked: Option<&'a TrackedLock>,
    /// What was presented.
    pub token: Option<&'a FenceToken<HeaderValue>>,
    /// The owner that was presented, where that is no token, or none to be judged.
    pub owner: Option<&'a HeaderValue>,
    /// The revision that was presented beside it.
    pub revision: Option<Revision>,
    /// What the lock was like when it was judged, if nothing has been waited for since.
    pub judged: Option<Judgement>,
    /// What helps whoever is refused more than the reason's own words.
    pub detail: Option<&'static str>,
}

/// When a request was judged, and how old what is known of its lock was then.
#[derive(Debug, Clone, Copy)]
pub struct Judgement {
    /// When.
    pub at: Instant,
    /// The age of the news; `None` if there was none.
    pub age: Option<Duration>,
}

impl<'a> Subject<'a> {
    /// A lock, nothing having been presented that could be judged.
    pub fn of_lock(lock: &'a LockKey) -> Subject<'a> {
        Subject { lock: Some(lock), ..Subject::default() }
    }

    /// The same, of a lock that is tracked.
    pub fn of_tracked(lock: &'a TrackedLock) -> Subject<'a> {
        Subject { lock: Some(lock.key()), tracked: Some(lock), ..Subject::default() }
    }

    /// A claim.
    pub fn of(claim: &'a Claim) -> Subject<'a> {
        Subject { token: Some(&claim.token), ..Subject::of_tracked(&claim.lock) }
    }
}

impl RequestContext {
    /// The subject with what these headers present, as far as that can be read: no token, or none to be judged.
    pub fn presenting<'a>(&self, headers: &'a HeaderMap, subject: Subject<'a>) -> Subject<'a> {
        let names = &self.in_force().headers;
        let (owner, revision) = (names.owner(headers).ok().flatten(), names.revision_alone(headers));
        self.about.note_part(owner, revision);
        Subject { owner, revision, ..subject }
    }

    /// Records the refusal and writes its answer.
    pub fn refuse(&self, reason: Rejection, subject: Subject<'_>) -> Answer {
        self.refuse_for(reason, subject, 1)
    }

    /// The same, for a cause that lasts that many seconds.
    pub fn refuse_for(&self, reason: Rejection, subject: Subject<'_>, retry_after: u64) -> Answer {
        let decision = self.share.decisions.next();
        let stale_status = match self.route.get() {
            Some(_) => self.route().stale_status.status(),
            None => StatusCode::PRECONDITION_FAILED,
        };
        let (decision_id, Subject { lock, detail, .. }) = (decision.as_str(), subject);
        let refusal = Refusal { reason, lock, decision: decision_id, stale_status, retry_after, detail };
        let answer = boxed(|| refusal.answer(self.form).map(ResponseBody::Whole));
        self.record(decision, Outcome::Refused(reason), subject, Some(answer.status()));
        answer
    }

    /// Records that the request would have been refused if its route did more than watch.
    pub fn would_refuse(&self, reason: Rejection, subject: Subject<'_>) {
        let decision = self.share.decisions.next();
        self.record(decision, Outcome::WouldBeRefused(reason), subject, None);
    }

    /// What has to be judged though the request's route only watched when it came: the route enforces by now.
    ///
    /// # Errors
    /// The refusal of a request that has no token to judge.
    pub fn judged_after_all(&self, lock: Option<&Arc<TrackedLock>>) -> Result<Claim, Answer> {
        match (self.about.token(), lock) {
            (Some(token), Some(lock)) => Ok(Claim { token: token.clone(), lock: Arc::clone(lock) }),
            (token, _) => {
                let otherwise = if token.is_some() { Rejection::Unverifiable } else { Rejection::TokenMissing };
                let reason = self.about.outcome().and_then(Outcome::rejection).unwrap_or(otherwise);
                Err(self.refuse(reason, lock.map(|lock| Subject::of_tracked(lock)).unwrap_or_default()))
            }
        }
    }

    /// Records that the request goes on though something speaks against it, by a setting that weakens the fence.
    pub fn let_past(&self, reason: Rejection, subject: Subject<'_>) {
        self.record(self.share.decisions.next(), Outcome::LetPast(reason), subject, None);
    }

    /// Counts that the request was admitted, or would have been; some admissions are recorded.
    pub fn admitted(&self, claim: &Claim) {
        self.about.count(|| self.counts().count(Counted::Admitted));
        self.about.note_admitted();
        if self.share.generation.process.observations.is_some() && self.share.sample.takes() {
            self.record(self.share.decisions.next(), Outcome::Admitted, Subject::of(claim), None);
        }
    }

    /// Counts what was decided, writes it to the log at a bounded rate, and notes it for operators to look at.
    fn record(&self, id: DecisionId, outcome: Outcome, subject: Subject<'_>, status: Option<StatusCode>) {
        match outcome {
            Outcome::Refused(reason) => self.about.count(|| self.counts().count(Counted::Refused(reason))),
            Outcome::WouldBeRefused(reason) => {
                self.about.count(|| self.counts().count(Counted::WouldBeRefused(reason)))
            }
            Outcome::LetPast(_) | Outcome::Admitted => {}
        }
        let process = &self.share.generation.process;
        self.about.note(outcome, &id);
        let now = subject.judged.map_or_else(Instant::now, |judged| judged.at);
        let left_out = outcome.rejection().and_then(|reason| process.log.admits(reason, now));
        if left_out.is_none() && process.observations.is_none() {
            return;
        }
        let like = Likeness {
            outcome,
            route: self.label(),
            lock: subject.lock,
            owner: subject.token.map(|token| &token.owner).or(subject.owner).map(HeaderValue::as_bytes),
            revision: subject.token.map(|token| token.revision).or(subject.revision),
        };
        let decision = || boxed(|| self.decision(id.clone(), &like, subject, status, now));
        let logged = left_out.map(|left_out| {
            let decision = decision();
            log(&decision, left_out);
            decision
        });
        if let Some(observations) = &process.observations {
            // What stands in the log is to be found by its id.
            let like = logged.is_none().then_some(&like);
            observations.note_decision(self.share.thread, like, || logged.unwrap_or_else(decision));
        }
    }

    /// Writes to the log, at a bounded rate, that no route takes the request: it has no decision that would say whose it was.
    pub fn log_no_route(&self, host: Option<&str>) {
        let Some(left_out) = self.share.generation.process.log.admits_no_route(self.arrived) else { return };
        tracing::info!(
            failure = Failure::NoRoute.code(),
            host = host.map(shown_host).as_deref(),
            client = %self.client,
            peer = self.peer.as_deref().map(shown_peer).as_deref(),
            method = &*shown_method(&self.about.method),
            path = &*shown_path(self.about.path()),
            traceparent = self.about.traceparent(),
            left_out,
            "no route takes the request"
        );
    }

    fn decision(
        &self,
        id: DecisionId,
        like: &Likeness<'_>,
        subject: Subject<'_>,
        status: Option<StatusCode>,
        now: Instant,
    ) -> Decision {
        Decision {
            id,
            at: self.share.wall_clock.at(now),
            route: Arc::clone(like.route),
            lock: like.lock.cloned(),
            owner: like.owner.map(shown_owner),
            revision: like.revision,
            outcome: like.outcome,
            age: match subject.judged {
                Some(judged) => judged.age,
                None => subject.tracked.and_then(|lock| lock.view().age(now)),
            },
            waited: now.saturating_duration_since(self.arrived),
            client: self.client,
            peer: self.peer.as_deref().map(shown_peer),
            method: shown_method(&self.about.method),
            path: shown_path(self.about.path()),
            status,
            traceparent: self.about.traceparent().map(SmolStr::new),
        }
    }

    /// What decisions say of its route.
    pub fn label(&self) -> &Arc<RouteLabel> {
        match self.route.get() {
            Some(route) => &self.share.generation.routes[route].label,
            None => &self.share.generation.process.unrouted_label,
        }
    }

    /// Says in the worker's response what the verdict was, if the route wants that.
    pub fn tell_verdict(&self, grounds: &Grounds, headers: &mut HeaderMap) {
        if !self.route().verdict_header {
            return;
        }
        let verdict = match grounds {
            // Past the barrier, because its operator says so.
            Grounds::Claim(_) if self.about.decision().is_some() => self.about.verdict(),
            Grounds::Claim(_) => "admit",
            Grounds::Pass(PassReason::Shadow, _) => match self.about.decision() {
                Some(decision) => {
                    headers.insert(FENCE_REASON, HeaderValue::from_static(self.about.reason()));
                    headers.insert(FENCE_DECISION, decision.header());
                    self.about.verdict()
                }
                None if self.about.is_admitted() => "admit",
                None => "pending",
            },
            Grounds::Pass(PassReason::Exempt | PassReason::Off | PassReason::DangerousAdmit, _) => "pass",
        };
        headers.insert(FENCE_VERDICT, HeaderValue::from_static(verdict));
    }
}

impl ThreadShare {
    /// Counts a request over HTTP/1 whose head could not be read, and writes it to the log, at a bounded rate: it has neither a route nor a
    /// line in the access log.
    pub fn note_unread_head(&self, client: ClientAddress, why: UnreadHead) {
        let failure = match why {
            UnreadHead::TooLarge => Failure::LargeHead,
            UnreadHead::Unclear(_) | UnreadHead::Unknown => Failure::Unreadable,
        };
        self.generation.unrouted.failed(failure);
        if let Some(left_out) = self.generation.process.log.admits_unread_head(Instant::now()) {
            tracing::info!(failure = failure.code(), %client, %why, left_out, "a request could not be read");
        }
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
        left_out,
        "{message}"
    );
}
