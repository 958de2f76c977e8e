//! Whether a request may go to its worker, and what follows from that on its route.
//! The gate judges once more, when the request is about to be sent.

use std::rc::Rc;
use std::sync::Arc;

use fencepost_config::{OnUnavailable, Route, folds_alike};
use fencepost_fence::claim::{Claim, Guard, NamedLock};
use fencepost_fence::enter::confirm;
use fencepost_locks::TrackedLock;
use fencepost_policy::{FenceToken, LockKey, Rejection, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body::Body as _;
use tokio::time::Instant;

use crate::at_gate::Arrived;
use crate::let_past::PassReason;
use crate::metrics::Counted;
use crate::observe::Outcome;
use crate::recording::{Answer, FENCE_VERDICT, Subject};
use crate::refusal::{FENCE_DECISION, FENCE_REASON};
use crate::request_context::RequestContext;
use crate::server::ClientBody;
use crate::upstream::{METHOD_OVERRIDES, names_websocket};

/// The parameter of a query by which some workers take another method than the request's. WordPress
/// takes it for any method, as ServiceStack does one that is called like a field.
const METHOD_PARAMETER: &str = "_method";

/// The detail of a refusal for a request that names no lock: the reasons' own words are about the
/// token, or a slip in the name.
pub const NAME_THE_LOCK: &str = "Name the lock that you hold in Fence-Lock, or in the header that the route has instead, beside its owner and revision.";

/// What guards a request: its lock, or why the request names none. `None` where its route is off.
pub type GuardedBy = Option<Result<NamedLock, Rejection>>;

/// Why a request may go to its worker, as far as is known before the gate.
pub enum Authorization {
    /// Its sender holds the lock. The gate judges that once more.
    Claim(Claim),
    /// A pass of its route, with the lock that the request is judged by should the route enforce
    /// before it is sent.
    Pass(PassReason, Option<Arc<TrackedLock>>),
}

/// Judges a request, or lets it pass where its route says so.
///
/// # Errors
/// The answer to a request that gets no further.
pub async fn authorize(
    context: &Rc<RequestContext>,
    lock: GuardedBy,
    request: &mut Request<ClientBody>,
) -> Result<Authorization, Answer> {
    let authorization = judge(context, lock, request).await;
    context.counts().verdict_took(context.arrived.elapsed());
    authorization
}

/// Checks the sender's identity first, then the token, then the lock. So a request from somebody
/// else gets the same answer whatever its token, and a request without a token costs no read of the
/// store.
async fn judge(
    context: &Rc<RequestContext>,
    lock: GuardedBy,
    request: &mut Request<ClientBody>,
) -> Result<Authorization, Answer> {
    let Some(lock) = lock else { return Ok(passed(context, PassReason::Off, Counted::Off)) };
    if context.route().exempt_methods.contains(request.method()) && !may_mean_another(request) {
        if !context.is_shadow() {
            // Nobody judges it, and a worker behind a fence takes what it gets for judged.
            context.active_route().headers.drop_from(request.headers_mut());
        }
        return Ok(passed(context, PassReason::Exempt, Counted::Exempt));
    }
    let identified = context.identify(request.headers_mut());
    let token = match (identified, &lock) {
        (Err(reason), _) => Err(reason),
        (Ok(()), Err(reason)) => Err(*reason),
        (Ok(()), Ok(_)) => token(context, request.headers()),
    };
    let (lock, token) = match (lock, token) {
        (Ok(lock), Ok(token)) => (lock, token),
        (lock, Err(reason)) => return unclaimed(context, lock, request.headers(), reason),
        (Err(reason), Ok(_)) => return unclaimed(context, Err(reason), request.headers(), reason),
    };
    if context.is_shadow() {
        return Ok(watch(context, lock, token));
    }
    let lock = match lock {
        NamedLock::Tracked(lock) => lock,
        // Boxed, because it is rare and large: each request would move the room for it.
        NamedLock::Unread(key) => match Box::pin(load(context, &key)).await {
            Ok(lock) => lock,
            Err(reason) => {
                return rejected(context, reason, Subject::of_lock(&key).with(&token), None);
            }
        },
    };
    let claim = Claim { token, lock };
    let verdict = match claim.judge(&context.timing()) {
        Verdict::Admit => Ok(()),
        Verdict::Reject(reason) => Err(reason),
        Verdict::Confirm => Box::pin(confirm(&Arrived::request(context, &claim))).await,
    };
    match verdict {
        Ok(()) => Ok(Authorization::Claim(claim)),
        Err(reason) => rejected(context, reason, Subject::of(&claim), Some(&claim.lock)),
    }
}

/// The token of a request whose sender has proved its identity.
///
/// # Errors
/// Why the request has none to judge.
pub fn token(
    context: &RequestContext,
    headers: &HeaderMap,
) -> Result<FenceToken<HeaderValue>, Rejection> {
    context
        .active_route()
        .headers
        .token(headers)
        .inspect(|token| context.about.note_presented(token))
}

/// Whether a worker may take a request for something else than its method says. What asks for a
/// websocket is no GET any more: a tunnel carries writes. No other protocol is passed on; `h2c` is
/// asked for by clients that don't insist (`java.net.http`, `curl --http2`). A body that has no
/// meaning (RFC 9110, section 9.3.1) some workers leave unread, and take it for the next request.
fn may_mean_another(request: &Request<ClientBody>) -> bool {
    let overrides =
        |name: &[u8]| METHOD_OVERRIDES.into_iter().any(|field| folds_alike(field, name));
    let in_head = |name: &HeaderName| overrides(name.as_str().as_bytes());
    // Some take `;` for `&` (Rack before 3), and PHP ends a name before what would be an index, or
    // at a NUL.
    let parameters = request.uri().query().unwrap_or_default().split(['&', ';']);
    let mut names =
        parameters.flat_map(|one| form_urlencoded::parse(one.as_bytes())).map(|(name, _)| {
            name.trim_start().split(['[', '\0']).next().unwrap_or_default().to_ascii_lowercase()
        });
    names_websocket(request.headers())
        || request.method().is_safe() && !request.body().is_end_stream()
        || request.headers().keys().any(in_head)
        || names.any(|name| overrides(name.as_bytes()) || folds_alike(METHOD_PARAMETER, name))
}

/// Lets a request pass that nobody judges.
fn passed(context: &RequestContext, reason: PassReason, counted: Counted) -> Authorization {
    context.about.note_pass();
    context.about.count(|| context.counts().count(counted));
    Authorization::Pass(reason, None)
}

/// What helps the sender of a request that names none of the route's locks.
fn why_not_allowed(route: &Route) -> String {
    let (name, key) = (&route.name, route.mode.lock().map_or("", |lock| lock.key.as_str()));
    format!("The request names no lock of route {name:?}: its locks are written like {key:?}.")
}

/// What helps the sender of a request without a whole token.
fn what_is_missing(route: &Route, headers: &HeaderMap) -> String {
    let (owner, revision) = (&route.owner_header, &route.revision_header);
    let both = format!(
        "the owner and the revision of the lock that you hold with every request, in {owner} and {revision}."
    );
    match (headers.contains_key(owner), headers.contains_key(revision)) {
        (true, false) => format!("{revision} is missing: send {both}"),
        (false, true) => format!("{owner} is missing: send {both}"),
        _ => format!("Send {both}"),
    }
}

/// What becomes of a request that has no token to be judged.
fn unclaimed(
    context: &RequestContext,
    lock: Result<NamedLock, Rejection>,
    headers: &HeaderMap,
    reason: Rejection,
) -> Result<Authorization, Answer> {
    let why;
    let subject = match &lock {
        Err(Rejection::LockNotAllowed) if reason == Rejection::LockNotAllowed => {
            why = why_not_allowed(context.route());
            Subject { detail: Some(&why), ..Subject::default() }
        }
        Err(Rejection::TokenMissing) if reason == Rejection::TokenMissing => {
            Subject { detail: Some(NAME_THE_LOCK), ..Subject::default() }
        }
        Err(_) => Subject::default(),
        Ok(lock) => {
            let subject = match lock {
                NamedLock::Tracked(lock) => Subject::of_tracked(lock),
                NamedLock::Unread(key) => Subject::of_lock(key),
            };
            if reason == Rejection::TokenMissing {
                why = what_is_missing(context.route(), headers);
                Subject { detail: Some(&why), ..subject }
            } else {
                subject
            }
        }
    };
    let held =
        lock.as_ref().ok().filter(|_| context.is_shadow()).and_then(|lock| hold(context, lock));
    rejected(context, reason, context.presenting(headers, subject), held.as_ref())
}

/// Lets a request pass on a route in shadow mode, and records what enforcing would have done. The
/// request does not wait for the store.
fn watch(
    context: &Rc<RequestContext>,
    lock: NamedLock,
    token: FenceToken<HeaderValue>,
) -> Authorization {
    context.about.note_token(&token);
    let held = hold(context, &lock);
    let verdict = match &lock {
        NamedLock::Tracked(lock) => lock.view().judge(&token, &context.timing()),
        NamedLock::Unread(_) => Verdict::Confirm,
    };
    match (verdict, lock) {
        (Verdict::Admit, NamedLock::Tracked(lock)) => context.admitted(&Claim { token, lock }),
        (Verdict::Reject(reason), NamedLock::Tracked(lock)) => {
            context.would_refuse(reason, Subject::of(&Claim { token, lock }));
        }
        (_, lock) => {
            context.about.note_pending();
            context.share.background.spawn(record_shadow_verdict(Rc::clone(context), lock, token));
        }
    }
    Authorization::Pass(PassReason::Shadow, held)
}

async fn record_shadow_verdict(
    context: Rc<RequestContext>,
    lock: NamedLock,
    token: FenceToken<HeaderValue>,
) {
    let lock = match lock {
        NamedLock::Tracked(lock) => lock,
        NamedLock::Unread(key) => match load(&context, &key).await {
            Ok(lock) => lock,
            Err(reason) => {
                return context.would_refuse(reason, Subject::of_lock(&key).with(&token));
            }
        },
    };
    let claim = Claim { token, lock };
    match confirm(&Arrived::request(&context, &claim)).await {
        Ok(()) => context.admitted(&claim),
        Err(reason) => context.would_refuse(reason, Subject::of(&claim)),
    }
}

/// The lock of a request that passes, though nothing may be known of it yet.
fn hold(context: &RequestContext, lock: &NamedLock) -> Option<Arc<TrackedLock>> {
    match (lock, &context.active_route().guard) {
        (NamedLock::Tracked(lock), _) => Some(Arc::clone(lock)),
        (NamedLock::Unread(key), Some(Guard::Templated(locks))) => locks.hold(key.as_str()),
        (NamedLock::Unread(_), Some(Guard::Static(_)) | None) => None,
    }
}

/// Reads a lock that the cache does not know yet.
///
/// # Errors
/// `unverifiable` if it can't be read in time, `draining` if the process does not go on for so
/// long.
pub async fn load(context: &RequestContext, key: &LockKey) -> Result<Arc<TrackedLock>, Rejection> {
    let guard = context.active_route().guard.as_ref().ok_or(Rejection::Unverifiable)?;
    let generation = &context.share.generation;
    let deadline = Instant::now() + generation.config.limits.confirm_timeout;
    generation.process.unless_over(guard.load(key, deadline)).await?
}

/// What a rejection means on this route: an answer, unless the route is in shadow mode or says
/// `dangerous_admit`.
///
/// # Errors
/// That answer.
pub fn rejected(
    context: &RequestContext,
    reason: Rejection,
    subject: Subject<'_>,
    lock: Option<&Arc<TrackedLock>>,
) -> Result<Authorization, Answer> {
    if context.is_shadow() {
        context.would_refuse(reason, subject);
        return Ok(Authorization::Pass(PassReason::Shadow, lock.cloned()));
    }
    if reason == Rejection::Unverifiable
        && context.route().on_unavailable == OnUnavailable::DangerousAdmit
    {
        context.metrics().dangerous_admit.inc();
        context.about.count(|| context.counts().count(Counted::Unverified));
        context.let_past(reason, subject);
        return Ok(Authorization::Pass(PassReason::DangerousAdmit, lock.cloned()));
    }
    Err(context.refuse(reason, subject))
}

/// Authorizes a request that came in shadow mode once more, because its route enforces now.
///
/// # Errors
/// The refusal of a request that has no token to judge.
pub fn enforced_after_all(
    context: &RequestContext,
    lock: Option<&Arc<TrackedLock>>,
) -> Result<Authorization, Answer> {
    if let (Some(token), Some(lock)) = (context.about.token(), lock) {
        return Ok(Authorization::Claim(Claim { token: token.clone(), lock: Arc::clone(lock) }));
    }
    let otherwise = if context.about.token().is_some() {
        Rejection::Unverifiable
    } else {
        Rejection::TokenMissing
    };
    let reason = context.about.outcome().and_then(Outcome::rejection).unwrap_or(otherwise);
    Err(context.refuse(reason, lock.map(|lock| Subject::of_tracked(lock)).unwrap_or_default()))
}

impl Authorization {
    /// Says in the worker's response what the verdict was, if the route wants that.
    pub fn show(&self, context: &RequestContext, headers: &mut HeaderMap) {
        if !context.route().verdict_header {
            return;
        }
        let about = &context.about;
        if let (Authorization::Pass(PassReason::Shadow, _), Some(decision)) =
            (self, about.decision())
        {
            headers.insert(FENCE_REASON, HeaderValue::from_static(about.reason()));
            headers.insert(FENCE_DECISION, decision.header());
        }
        headers.insert(FENCE_VERDICT, HeaderValue::from_static(about.verdict()));
    }
}
