//! What a request says of itself, and what became of it: for the access log, the counts, and routes
//! that come to judge it later. It decides nothing.

use std::cell::{Cell, OnceCell, RefCell};

use fencepost_policy::{FenceToken, LockKey, Revision};
use http::header::{REFERER, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Version};
use smol_str::SmolStr;

use crate::decision::DecisionId;
use crate::observe::Outcome;
use crate::observe::text::shown_owner;
use crate::refusal::Failure;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The longest `traceparent` that is noted: version 00 of W3C Trace Context has 55 bytes, later
/// ones may have more.
const TRACEPARENT_MAX: usize = 128;

/// What a request says of itself, and what became of it.
pub struct About {
    pub(crate) method: Method,
    target: Option<PathAndQuery>,
    pub(crate) version: Version,
    traceparent: Option<HeaderValue>,
    /// Visible ASCII. `None` only in tests.
    request_id: Option<HeaderValue>,
    /// Noted for the access log only, as are the next two.
    pub(crate) referer: Option<HeaderValue>,
    pub(crate) user_agent: Option<HeaderValue>,
    for_access_log: bool,
    lock: OnceCell<LockKey>,
    /// What the request presents: for the access log, and for a route that comes to judge it later.
    token: OnceCell<FenceToken<HeaderValue>>,
    /// The readable part of what is no token: for the access log only. Boxed, because it is rare.
    part: OnceCell<Box<(Option<HeaderValue>, Option<Revision>)>>,
    decided: RefCell<Decided>,
    /// Something of the request may have gone out.
    sent: Cell<bool>,
    /// Its verdict has been counted.
    counted: Cell<bool>,
    /// Why it has failed, if it has.
    failure: Cell<Option<Failure>>,
}

/// What has been decided of a request.
enum Decided {
    Nothing,
    /// Its route is in shadow mode, and the store is still asked.
    Pending,
    /// It needs no token.
    Passed,
    /// Nothing speaks against it.
    Admitted,
    /// This speaks against it, recorded under that id.
    Against(Outcome, DecisionId),
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
            request_id: None,
            referer: wanted(REFERER),
            user_agent: wanted(USER_AGENT),
            for_access_log,
            lock: OnceCell::new(),
            token: OnceCell::new(),
            part: OnceCell::new(),
            decided: RefCell::new(Decided::Nothing),
            sent: Cell::new(false),
            counted: Cell::new(false),
            failure: Cell::new(None),
        }
    }

    /// What is known of the request, and its id.
    pub fn with_request_id(self, id: HeaderValue) -> About {
        About { request_id: Some(id), ..self }
    }

    /// Notes what speaks against the request. The last decision stands.
    pub fn note(&self, outcome: Outcome, decision: &DecisionId) {
        if outcome != Outcome::Admitted {
            *self.decided.borrow_mut() = Decided::Against(outcome, decision.clone());
        }
    }

    /// Notes that it was admitted, or would have been.
    pub fn note_admitted(&self) {
        self.decide(Decided::Admitted);
    }

    /// Notes that the request needs no token.
    pub fn note_pass(&self) {
        self.decide(Decided::Passed);
    }

    /// Notes that the store is still asked, though the request goes on.
    pub fn note_pending(&self) {
        self.decide(Decided::Pending);
    }

    /// Nothing takes back what speaks against a request.
    fn decide(&self, decided: Decided) {
        let mut now = self.decided.borrow_mut();
        if !matches!(*now, Decided::Against(..)) {
            *now = decided;
        }
    }

    /// Counts its verdict, unless it has been. A request counts once, by the first: it may be
    /// judged again, because its route enforces by now, or because it could not be sent.
    pub fn count(&self, verdict: impl FnOnce()) {
        if !self.counted.replace(true) {
            verdict();
        }
    }

    /// Notes which lock guards it, for the access log.
    pub fn note_lock(&self, lock: &LockKey) {
        if self.for_access_log {
            let _ = self.lock.set(lock.clone()); // A request has one lock.
        }
    }

    /// Notes what it presents, for the access log.
    pub fn note_presented(&self, token: &FenceToken<HeaderValue>) {
        if self.for_access_log {
            self.note_token(token);
        }
    }

    /// Notes the readable part of what is no token, for the access log.
    pub fn note_part(&self, owner: Option<&HeaderValue>, revision: Option<Revision>) {
        if self.for_access_log {
            let _ = self.part.set(Box::new((owner.cloned(), revision))); // A request presents one token.
        }
    }

    /// Notes what it presents, for a route that comes to judge it later.
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

    /// What it presents, if that was noted.
    pub fn token(&self) -> Option<&FenceToken<HeaderValue>> {
        self.token.get()
    }

    /// Whether something of the request may have gone out.
    pub fn may_be_sent(&self) -> bool {
        self.sent.get()
    }

    /// Whether it was refused.
    pub fn is_refused(&self) -> bool {
        matches!(self.outcome(), Some(Outcome::Refused(_)))
    }

    /// What speaks against it, if anything does.
    pub fn outcome(&self) -> Option<Outcome> {
        match &*self.decided.borrow() {
            Decided::Against(outcome, _) => Some(*outcome),
            Decided::Nothing | Decided::Pending | Decided::Passed | Decided::Admitted => None,
        }
    }

    /// What was decided, in one word; `none` if nothing was.
    pub fn verdict(&self) -> &'static str {
        match &*self.decided.borrow() {
            Decided::Nothing => "none",
            Decided::Pending => "pending",
            Decided::Passed => "pass",
            Decided::Admitted => "admit",
            Decided::Against(outcome, _) => outcome.verdict(),
        }
    }

    /// The code of what speaks against it; `none` if nothing does.
    pub fn reason(&self) -> &'static str {
        self.outcome().map_or("none", Outcome::reason)
    }

    /// The id under which that was recorded.
    pub fn decision(&self) -> Option<DecisionId> {
        match &*self.decided.borrow() {
            Decided::Against(_, decision) => Some(decision.clone()),
            Decided::Nothing | Decided::Pending | Decided::Passed | Decided::Admitted => None,
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

    /// The owner that was presented, as it is shown.
    pub fn owner(&self) -> Option<SmolStr> {
        let part = || self.part.get()?.0.as_ref();
        self.token
            .get()
            .map(|token| &token.owner)
            .or_else(part)
            .map(|owner| shown_owner(owner.as_bytes()))
    }

    /// The revision that was presented.
    pub fn revision(&self) -> Option<u64> {
        let part = || self.part.get()?.1;
        self.token.get().map(|token| token.revision).or_else(part).map(Revision::get)
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.target.as_ref().map_or("", PathAndQuery::as_str)
    }

    /// Path without query.
    pub fn path(&self) -> &str {
        self.target.as_ref().map_or("", PathAndQuery::path)
    }

    /// Its id, as the worker gets it.
    pub fn request_id_value(&self) -> Option<&HeaderValue> {
        self.request_id.as_ref()
    }

    /// Its id.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_ref()?.to_str().ok()
    }

    /// The trace that it belongs to, if that is text of a sane length.
    pub fn traceparent(&self) -> Option<&str> {
        let text = self.traceparent.as_ref()?.to_str().ok()?;
        (text.len() <= TRACEPARENT_MAX).then_some(text)
    }
}
