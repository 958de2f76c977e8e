//! Every verdict leaves a trace: a count, for refusals a line in the log, and a decision that operators can look at.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{FenceToken, LockKey, PassReason, Rejection, Revision};
use fencepost_sources::TrackedLock;
use http::header::{REFERER, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use smol_str::SmolStr;
use tokio::time::Instant;

use crate::decision::DecisionId;
use crate::exchange::{Answer, Place};
use crate::fencing::{Claim, Standing};
use crate::forward::ResponseBody;
use crate::in_place::boxed;
use crate::metrics::Counted;
use crate::observe::record::{shown_host, shown_method, shown_owner, shown_path, shown_peer, whole_millis};
use crate::observe::{Decision, Likeness, Outcome, RouteLabel};
use crate::refusal::{FENCE_DECISION, FENCE_REASON, Failure, Refusal};
use crate::token::TokenHeaders;

/// What the verdict on a request was, where its route says so: `Fence-Verdict`.
pub const FENCE_VERDICT: HeaderName = HeaderName::from_static("fence-verdict");

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The longest `traceparent` that is noted: version 00 of W3C Trace Context has 55 bytes, later ones may have more.
const TRACEPARENT_MAX: usize = 128;

/// What a request said of itself, and what was said to it.
pub struct About {
    pub(crate) method: Method,
    target: Option<PathAndQuery>,
    pub(crate) version: Version,
    traceparent: Option<HeaderValue>,
    /// Taken down for the access log only, as are these.
    pub(crate) referer: Option<HeaderValue>,
    pub(crate) user_agent: Option<HeaderValue>,
    for_access_log: bool,
    lock: OnceCell<LockKey>,
    /// What was presented: for the access log, and for who may have to judge it later.
    token: OnceCell<FenceToken<HeaderValue>>,
    /// What speaks against it, if anything does, and under which id that was recorded. The last verdict stands.
    outcome: RefCell<Option<(Outcome, DecisionId)>>,
    /// Nothing speaks against it.
    admitted: Cell<bool>,
    /// It needs no token.
    passed: Cell<bool>,
    /// The store is still asked, and its route only watches.
    pending: Cell<bool>,
    /// Something of it may have gone out.
    sent: Cell<bool>,
    /// Its verdict has been counted.
    counted: Cell<bool>,
    /// Why it has failed, if it has.
    failure: Cell<Option<Failure>>,
}

impl About {
    /// What is known of a request by its head.
    pub fn of<B>(request: &Request<B>, for_access_log: bool) -> About {
        let headers = request.headers();
        let wanted = |name| if for_access_log { headers.get(name).cloned() } else { None };
        About {
            method: request.method().clone(),
            target: request.uri().path_and_query().cloned(),
            version: request.version(),
            traceparent: headers.get(TRACEPARENT).cloned(),
            referer: wanted(REFERER),
            user_agent: wanted(USER_AGENT),
            for_access_log,
            lock: OnceCell::new(),
            token: OnceCell::new(),
            outcome: RefCell::new(None),
            admitted: Cell::new(false),
            passed: Cell::new(false),
            pending: Cell::new(false),
            sent: Cell::new(false),
            counted: Cell::new(false),
            failure: Cell::new(None),
        }
    }

    /// Notes what was decided.
    pub fn note(&self, outcome: Outcome, decision: &DecisionId) {
        if outcome != Outcome::Admitted {
            *self.outcome.borrow_mut() = Some((outcome, decision.clone()));
        }
    }

    /// Notes that the request needs no token.
    pub fn note_pass(&self) {
        self.passed.set(true);
    }

    /// Notes that its route only watches, and that nobody waits for its verdict.
    pub fn note_pending(&self) {
        self.pending.set(true);
    }

    /// Counts its verdict, unless it has been. A request counts once, by the first: it may be judged again, because its route enforces by
    /// now, or because what was let in could not be sent.
    pub fn count(&self, verdict: impl FnOnce()) {
        if !self.counted.replace(true) {
            verdict();
        }
    }

    /// Notes which lock guards it, if anybody wants to know that later.
    pub fn note_lock(&self, lock: &LockKey) {
        if self.for_access_log {
            let _ = self.lock.set(lock.clone()); // A request has one lock.
        }
    }

    /// Notes what was presented, if anybody wants to know that later but those who judge it.
    pub fn note_presented(&self, token: &FenceToken<HeaderValue>) {
        if self.for_access_log {
            self.note_token(token);
        }
    }

    /// Notes what was presented, for who has to know it later.
    pub fn note_token(&self, token: &FenceToken<HeaderValue>) {
        let _ = self.token.set(token.clone()); // A request presents one token.
    }

    /// Notes that something of the request may go out from now on.
    pub fn note_sending(&self) {
        self.sent.set(true);
    }

    /// Notes why it has failed.
    pub fn note_failure(&self, failure: Failure) {
        self.failure.set(Some(failure));
    }

    /// Whether something of the request may have gone out.
    pub fn may_be_sent(&self) -> bool {
        self.sent.get()
    }

    /// Whether it was refused.
    pub fn is_refused(&self) -> bool {
        matches!(self.outcome(), Some(Outcome::Refused(_)))
    }

    fn outcome(&self) -> Option<Outcome> {
        self.outcome.borrow().as_ref().map(|(outcome, _)| *outcome)
    }

    /// What was decided, in one word; `none` if nothing was.
    pub fn verdict(&self) -> &'static str {
        match self.outcome() {
            Some(outcome) => outcome.verdict(),
            // Where its route only watches it was judged, but the gate has let out nothing of what failed before.
            None if self.admitted.get() && (self.may_be_sent() || self.failure().is_none()) => "admit",
            None if self.passed.get() => "pass",
            None if self.pending.get() => "pending",
            None => "none",
        }
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.get()
    }

    /// The key of the lock that guards it, if that is known.
    pub fn lock(&self) -> Option<&str> {
        self.lock.get().map(LockKey::as_str)
    }

    /// The code of what speaks against it; `none` if nothing does.
    pub fn reason(&self) -> &'static str {
        self.outcome().map_or("none", Outcome::reason)
    }

    /// The id under which that was recorded.
    pub fn decision(&self) -> Option<DecisionId> {
        self.outcome.borrow().as_ref().map(|(_, decision)| decision.clone())
    }

    /// The owner that was presented, as it is shown.
    pub fn owner(&self) -> Option<SmolStr> {
        self.token.get().map(|token| shown_owner(token.owner.as_bytes()))
    }

    /// The revision that was presented.
    pub fn revision(&self) -> Option<u64> {
        self.token.get().map(|token| token.revision.get())
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.target.as_ref().map_or("", PathAndQuery::as_str)
    }

    fn path(&self) -> &str {
        self.target.as_ref().map_or("", PathAndQuery::path)
    }

    /// The trace that it belongs to, if that is text of a sane length.
    pub fn traceparent(&self) -> Option<&str> {
        let text = self.traceparent.as_ref()?.to_str().ok()?;
        (text.len() <= TRACEPARENT_MAX).then_some(text)
    }
}

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

    /// The same, with what these headers present, as far as that can be read: no token, or none to be judged.
    pub fn presenting(self, names: &TokenHeaders, headers: &'a HeaderMap) -> Subject<'a> {
        Subject { owner: names.owner(headers).ok().flatten(), revision: names.revision_alone(headers), ..self }
    }

    /// A claim.
    pub fn of(claim: &'a Claim) -> Subject<'a> {
        Subject { token: Some(&claim.token), ..Subject::of_tracked(&claim.lock) }
    }
}

impl Place {
    /// Records the refusal and writes its answer.
    pub fn refuse(&self, reason: Rejection, subject: Subject<'_>) -> Answer {
        self.refuse_for(reason, subject, 1)
    }

    /// The same, for a cause that lasts that many seconds.
    pub fn refuse_for(&self, reason: Rejection, subject: Subject<'_>, retry_after: u64) -> Answer {
        let decision = self.worker.decisions.next();
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
        let decision = self.worker.decisions.next();
        self.record(decision, Outcome::WouldBeRefused(reason), subject, None);
    }

    /// What has to be judged though the request's route only watched when it came: the route enforces by now.
    ///
    /// # Errors
    /// The refusal of a request that has no token to judge.
    pub fn judged_after_all(&self, lock: Option<&Arc<TrackedLock>>) -> Result<Claim, Answer> {
        match (self.about.token.get(), lock) {
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
        self.record(self.worker.decisions.next(), Outcome::LetPast(reason), subject, None);
    }

    /// Counts that the request was admitted, or would have been; some admissions are recorded.
    pub fn admitted(&self, claim: &Claim) {
        self.about.count(|| self.counts().count(Counted::Admitted));
        self.about.admitted.set(true);
        if self.worker.fence.process.observations.is_some() && self.worker.sample.takes() {
            self.record(self.worker.decisions.next(), Outcome::Admitted, Subject::of(claim), None);
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
        let process = &self.worker.fence.process;
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
            observations.note_decision(self.worker.thread, like, || logged.unwrap_or_else(decision));
        }
    }

    /// Writes to the log, at a bounded rate, that no route takes the request: it has no decision that would say whose it was.
    pub fn log_no_route(&self, host: Option<&str>) {
        let Some(left_out) = self.worker.fence.process.log.admits_no_route(self.arrived) else { return };
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
            at: self.worker.wall_clock.at(now),
            route: Arc::clone(like.route),
            lock: like.lock.cloned(),
            owner: like.owner.map(shown_owner),
            revision: like.revision,
            outcome: like.outcome,
            age: match subject.judged {
                Some(judged) => judged.age,
                None => subject.tracked.and_then(|lock| lock.outlook().age(now)),
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
            Some(route) => &self.worker.fence.routes[route].label,
            None => &self.worker.fence.process.unrouted_label,
        }
    }

    /// Says in the worker's response what the verdict was, if the route wants that.
    pub fn tell_verdict(&self, standing: &Standing, headers: &mut HeaderMap) {
        if !self.route().verdict_header {
            return;
        }
        let verdict = match standing {
            // Past the barrier, because its operator says so.
            Standing::Claim(_) if self.about.decision().is_some() => self.about.verdict(),
            Standing::Claim(_) => "admit",
            Standing::Pass(PassReason::Shadow, _) => match self.about.decision() {
                Some(decision) => {
                    headers.insert(FENCE_REASON, HeaderValue::from_static(self.about.reason()));
                    headers.insert(FENCE_DECISION, decision.header());
                    self.about.verdict()
                }
                None if self.about.admitted.get() => "admit",
                None => "pending",
            },
            Standing::Pass(PassReason::Exempt | PassReason::Off | PassReason::DangerousAdmit, _) => "pass",
        };
        headers.insert(FENCE_VERDICT, HeaderValue::from_static(verdict));
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
