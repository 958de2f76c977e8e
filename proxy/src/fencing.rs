//! The fence: which token a request has, what it is worth, and what follows from that on its route.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use fencepost_config::{Mode, OnUnavailable, folds_alike};
use fencepost_fence::confirm::{Confirmed, unloaded};
use fencepost_locks::TrackedLock;
use fencepost_policy::{FenceToken, LockKey, Rejection, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body::Body as _;
use tokio::time::Instant;
use tower::Service;

use crate::let_past::PassReason;
use crate::metrics::{ConfirmOutcome, Counted};
use crate::recording::{Judgement, Subject};
use crate::request_context::{Answer, Exchange, RequestContext};
use crate::routes::Guard;
use crate::routing::Guarded;
use crate::server::ClientBody;
use crate::upstream::{METHOD_OVERRIDES, names_websocket};

/// The parameter of a query by which some workers take another method than the request's. WordPress takes it for any method, as ServiceStack
/// does one that is called like a field.
const METHOD_PARAMETER: &str = "_method";

/// What is said where the lock is to be named in a header, and is not: the reasons' own words are about the token, or a slip in the name.
pub const NAME_THE_LOCK: &str = "Name the lock that you hold in Fence-Lock, or in the header that the route has instead, beside its owner and revision.";

/// A token, and the lock that it claims to hold.
#[derive(Clone)]
pub struct Claim {
    /// What was presented.
    pub token: FenceToken<HeaderValue>,
    /// The lock that guards the request.
    pub lock: Arc<TrackedLock>,
}

/// What a request stands on, before the gate.
pub enum Grounds {
    /// A token that its lock has to bear out.
    Claim(Claim),
    /// A pass of its route, with the lock that the request is judged by should the route enforce before it is sent.
    Pass(PassReason, Option<Arc<TrackedLock>>),
}

/// What a request stands on, a claim having been judged once.
pub struct Judged(pub Grounds);

/// Finds out whether the request comes from whom it says, takes the token off it and finds the lock that it claims.
///
/// In this order: whoever claims to be somebody else is told the same whatever the rest of its token and whatever is known of the lock,
/// and the store is not asked.
pub async fn extract<S>(exchange: Exchange<Guarded>, mut next: S) -> Result<Answer, Infallible>
where
    S: Service<Exchange<Grounds>, Response = Answer, Error = Infallible>,
{
    let Exchange { mut request, context, in_flight, state: guarded } = exchange;
    let exempt = context.route().exempt_methods.contains(request.method()) && !may_mean_another(&request);
    let identified = if exempt { Ok(()) } else { context.identify(request.headers_mut()) };
    if exempt && matches!(context.route().mode, Mode::Enforce(_)) {
        // Nobody judges it, and a worker behind a fence takes what it gets for judged.
        context.in_force().headers.drop_from(request.headers_mut());
    }
    let headers = request.headers();
    let grounds = match (guarded, identified) {
        (Guarded::Not, _) => Ok(Grounds::Pass(PassReason::Off, None)),
        (_, _) if exempt => Ok(Grounds::Pass(PassReason::Exempt, None)),
        (guarded, Err(reason)) => unclaimed(&context, &guarded, headers, reason),
        (Guarded::Unclear(reason), Ok(())) => unclaimed(&context, &Guarded::Unclear(reason), headers, reason),
        (Guarded::By(lock), Ok(())) => match token(&context, headers) {
            Ok(token) => Ok(Grounds::Claim(Claim { token, lock })),
            Err(reason) => unclaimed(&context, &Guarded::By(lock), headers, reason),
        },
        // The token is looked at first: a request without one costs no read of the store.
        (Guarded::ByUncached(key), Ok(())) => match token(&context, headers) {
            // Boxed, as all that is rare and large: each request would move the room for it.
            Ok(token) => Box::pin(look_up(&context, &key, token)).await,
            Err(reason) => unclaimed(&context, &Guarded::ByUncached(key), headers, reason),
        },
    };
    match grounds {
        Ok(grounds) => next.call(Exchange { request, context, in_flight, state: grounds }).await,
        Err(answer) => {
            time_verdict(&context, Instant::now());
            Ok(answer)
        }
    }
}

/// The token of a request of whose sender nothing is wrong.
///
/// # Errors
/// Why there is none to judge.
pub fn token(context: &RequestContext, headers: &HeaderMap) -> Result<FenceToken<HeaderValue>, Rejection> {
    context.in_force().headers.token(headers).inspect(|token| context.about.note_presented(token))
}

/// Takes note of how long the verdict took, which stands since then.
fn time_verdict(context: &RequestContext, since: Instant) {
    context.counts().verdict_took(since.saturating_duration_since(context.arrived));
}

/// Whether a worker may take a request for something else than its method says. What asks for a websocket is no GET any more: a tunnel carries
/// writes. No other protocol is passed on; `h2c` is asked for by clients that don't insist (`java.net.http`, `curl --http2`). A body that has no
/// meaning (RFC 9110, section 9.3.1) some workers leave unread, and take it for the next request.
fn may_mean_another(request: &Request<ClientBody>) -> bool {
    let overrides = |name: &[u8]| METHOD_OVERRIDES.into_iter().any(|field| folds_alike(field, name));
    let in_head = |name: &HeaderName| overrides(name.as_str().as_bytes());
    // Some take `;` for `&` (Rack before 3), and PHP ends a name before what would be an index, or at a NUL.
    let parameters = request.uri().query().unwrap_or_default().split(['&', ';']);
    let mut names = parameters
        .flat_map(|one| form_urlencoded::parse(one.as_bytes()))
        .map(|(name, _)| name.trim_start().split(['[', '\0']).next().unwrap_or_default().to_ascii_lowercase());
    names_websocket(request.headers())
        || request.method().is_safe() && !request.body().is_end_stream()
        || request.headers().keys().any(in_head)
        || names.any(|name| overrides(name.as_bytes()) || folds_alike(METHOD_PARAMETER, name))
}

/// What becomes of a request that has no token to be judged.
fn unclaimed(
    context: &RequestContext,
    guarded: &Guarded,
    headers: &HeaderMap,
    reason: Rejection,
) -> Result<Grounds, Answer> {
    let subject = match guarded {
        Guarded::Not | Guarded::Unclear(_) => Subject::default(),
        Guarded::By(lock) => Subject::of_tracked(lock),
        Guarded::ByUncached(key) => Subject::of_lock(key),
    };
    let names_none = matches!((guarded, reason), (Guarded::Unclear(Rejection::TokenMissing), Rejection::TokenMissing));
    let subject = Subject { detail: names_none.then_some(NAME_THE_LOCK), ..subject };
    let held = if context.is_shadow() { at_hand(context, guarded) } else { None };
    rejected(context, reason, context.presenting(headers, subject), held.as_ref())
}

/// The lock of a request that passes, if there is one.
fn at_hand(context: &RequestContext, guarded: &Guarded) -> Option<Arc<TrackedLock>> {
    match guarded {
        Guarded::Not | Guarded::Unclear(_) => None,
        Guarded::By(lock) => Some(Arc::clone(lock)),
        Guarded::ByUncached(key) => hold(context, key),
    }
}

/// The claim to a lock that may have to be read first.
async fn look_up(
    context: &Rc<RequestContext>,
    key: &LockKey,
    token: FenceToken<HeaderValue>,
) -> Result<Grounds, Answer> {
    if context.is_shadow() {
        context.about.note_token(&token);
        context.about.note_pending();
        let held = hold(context, key);
        // Who only watches does not make requests wait for the store.
        let (context, key) = (Rc::clone(context), key.clone());
        context.share.background.clone().spawn(async move {
            match load(&context, &key).await {
                Ok(lock) => record_shadow_verdict(context, Claim { token, lock }).await,
                Err(reason) => {
                    context.would_refuse(reason, Subject { token: Some(&token), ..Subject::of_lock(&key) });
                }
            }
        });
        return Ok(Grounds::Pass(PassReason::Shadow, held));
    }
    match load(context, key).await {
        Ok(lock) => Ok(Grounds::Claim(Claim { token, lock })),
        Err(reason) => rejected(context, reason, Subject { token: Some(&token), ..Subject::of_lock(key) }, None),
    }
}

/// The lock of that key, though nothing may be known of it yet.
fn hold(context: &RequestContext, key: &LockKey) -> Option<Arc<TrackedLock>> {
    match &context.in_force().guard {
        Some(Guard::Templated(locks)) => locks.hold(key.as_str()),
        Some(Guard::Static(_)) | None => None,
    }
}

/// The lock of that key, read first if need be.
///
/// # Errors
/// `unverifiable` if it can't be read in time, `draining` if the process does not go on for so long.
pub async fn load(context: &RequestContext, key: &LockKey) -> Result<Arc<TrackedLock>, Rejection> {
    let Some(Guard::Templated(locks)) = &context.in_force().guard else {
        return Err(Rejection::Unverifiable);
    };
    let loaded = context.share.generation.process.unless_over(locks.load(key.as_str(), deadline(context))).await?;
    loaded.map_err(|error| {
        tracing::debug!(%key, %error, "the lock could not be looked up");
        unloaded(&error)
    })
}

/// Until when a request waits for the lock store.
fn deadline(context: &RequestContext) -> Instant {
    Instant::now() + context.share.generation.config.limits.confirm_timeout
}

/// What a rejection means on this route: an answer, unless the route only watches or says `dangerous_admit`.
pub fn rejected(
    context: &RequestContext,
    reason: Rejection,
    subject: Subject<'_>,
    lock: Option<&Arc<TrackedLock>>,
) -> Result<Grounds, Answer> {
    if context.is_shadow() {
        context.would_refuse(reason, subject);
        return Ok(Grounds::Pass(PassReason::Shadow, lock.cloned()));
    }
    if reason == Rejection::Unverifiable && context.route().on_unavailable == OnUnavailable::DangerousAdmit {
        context.metrics().dangerous_admit.inc();
        context.about.count(|| context.counts().count(Counted::Unverified));
        context.let_past(reason, subject);
        return Ok(Grounds::Pass(PassReason::DangerousAdmit, lock.cloned()));
    }
    Err(context.refuse(reason, subject))
}

/// Judges the claim by what is known, and asks the store where that can't say.
pub async fn judge<S>(exchange: Exchange<Grounds>, mut next: S) -> Result<Answer, Infallible>
where
    S: Service<Exchange<Judged>, Response = Answer, Error = Infallible>,
{
    let Exchange { request, context, in_flight, state } = exchange;
    let mut judged_at = None;
    let grounds = match state {
        Grounds::Pass(reason, lock) => {
            count_pass(&context, reason);
            Ok(Grounds::Pass(reason, lock))
        }
        Grounds::Claim(claim) => {
            if context.is_shadow() {
                context.about.note_token(&claim.token);
            }
            let timing = context.timing();
            judged_at = Some(timing.now);
            let (verdict, age) = {
                let outlook = claim.lock.view();
                let verdict = outlook.judge(&claim.token, &timing);
                let is_told = matches!(verdict, Verdict::Reject(_));
                (verdict, if is_told { outlook.age(timing.now) } else { None })
            };
            match verdict {
                Verdict::Confirm if context.is_shadow() => {
                    context.about.note_pending();
                    let lock = Arc::clone(&claim.lock);
                    context.share.background.spawn(record_shadow_verdict(Rc::clone(&context), claim));
                    Ok(Grounds::Pass(PassReason::Shadow, Some(lock)))
                }
                Verdict::Admit => Ok(admitted(&context, claim)),
                Verdict::Reject(reason) => {
                    let judged = Some(Judgement { at: timing.now, age });
                    let subject = Subject { judged, ..Subject::of(&claim) };
                    rejected(&context, reason, subject, Some(&claim.lock))
                }
                // Boxed: it is rare, and large.
                Verdict::Confirm => {
                    let confirmed = Box::pin(confirm(&context, &claim)).await;
                    judged_at = None; // It has waited.
                    match confirmed {
                        Ok(()) => Ok(admitted(&context, claim)),
                        Err(reason) => rejected(&context, reason, Subject::of(&claim), Some(&claim.lock)),
                    }
                }
            }
        }
    };
    time_verdict(&context, judged_at.unwrap_or_else(Instant::now));
    match grounds {
        Ok(grounds) => next.call(Exchange { request, context, in_flight, state: Judged(grounds) }).await,
        Err(answer) => Ok(answer),
    }
}

fn count_pass(context: &RequestContext, reason: PassReason) {
    let counted = match reason {
        PassReason::Exempt => Counted::Exempt,
        PassReason::Off => Counted::Off,
        PassReason::Shadow | PassReason::DangerousAdmit => return, // Counted by what they would have met.
    };
    context.about.note_pass();
    context.about.count(|| context.counts().count(counted));
}

/// What a claim that was admitted stands on: itself, to be judged and counted at the gate, unless the route only watches.
fn admitted(context: &RequestContext, claim: Claim) -> Grounds {
    if context.is_shadow() {
        context.admitted(&claim);
        return Grounds::Pass(PassReason::Shadow, Some(claim.lock));
    }
    Grounds::Claim(claim)
}

async fn record_shadow_verdict(context: Rc<RequestContext>, claim: Claim) {
    match confirm(&context, &claim).await {
        Ok(()) => context.admitted(&claim),
        Err(reason) => context.would_refuse(reason, Subject::of(&claim)),
    }
}

/// Asks the store until it is clear whether the claim stands.
///
/// # Errors
/// The reason why it does not; `unverifiable` if the store does not answer in time, `draining` if the process does not go on for so long.
pub async fn confirm(context: &RequestContext, claim: &Claim) -> Result<(), Rejection> {
    let asked = fencepost_fence::confirm::confirm(&claim.lock, &claim.token, deadline(context), || context.timing());
    let confirmed = context.share.generation.process.unless_over(asked).await?;
    let outcome = match confirmed {
        Confirmed::Admitted => ConfirmOutcome::Admitted,
        Confirmed::Refused(_) => ConfirmOutcome::Refused,
        Confirmed::Unanswered => ConfirmOutcome::Failed,
    };
    context.metrics().confirmed(outcome).inc();
    confirmed.verdict()
}
