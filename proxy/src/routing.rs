//! Which route takes a request, and which lock guards it there.
//! It looks at no token.

use std::rc::Rc;

use fencepost_config::{Captures, Mode, Routing};
use fencepost_policy::Rejection;
use http::header::HOST;
use http::{HeaderMap, Method, Request, Version};

use crate::fence_call;
use crate::fencing::GuardedBy;
use crate::recording::{Answer, Subject};
use crate::refusal::Failure;
use crate::request_context::RequestContext;
use crate::routes::lock_name;
use crate::server::ClientBody;
use crate::upstream::check_host;

/// Finds the route of a request, and the lock that guards it there. Answers requests that have no
/// route, that ask for what we do not do, that come too late, or that ask for the fence alone.
///
/// # Errors
/// The answer to a request that gets no further.
pub async fn route(
    context: &Rc<RequestContext>,
    request: &mut Request<ClientBody>,
) -> Result<GuardedBy, Answer> {
    if request.body().expects_in_vain() {
        return Err(context.fail(Failure::Expectation));
    }
    let asks_for_fence =
        request.uri().path() == fence_call::PATH && request.method() == Method::POST;
    if asks_for_fence && !context.share.generation.process.is_draining() {
        named_host(context, request)?;
        check_host(request.headers(), request.uri(), request.version())
            .map_err(|_| context.fail(Failure::BadTarget))?;
        return Err(Box::pin(fence_call::answer(context, request.headers_mut())).await);
    }
    find(context, request)
}

/// Notes which route takes the request, and finds out what guards it there.
///
/// # Errors
/// The answer to a request that gets no further.
fn find(context: &RequestContext, request: &Request<ClientBody>) -> Result<GuardedBy, Answer> {
    if context.share.generation.process.is_draining() {
        return Err(context.refuse(Rejection::Draining, Subject::default()));
    }
    // On HTTP/1 nothing with more fields is read to its end.
    if request.headers().len() > context.share.generation.config.limits.headers_max {
        return Err(context.fail(Failure::LargeHead));
    }
    if request.method() == Method::CONNECT {
        return Err(context.fail(Failure::NotSupported));
    }
    // The one method that has this target (RFC 9112, section 3.2.4).
    if request.uri().path() == "*" && request.method() != Method::OPTIONS {
        return Err(context.fail(Failure::BadTarget));
    }
    let host = named_host(context, request)?;
    match context.share.generation.config.route(host, request.uri().path()) {
        Routing::NoRoute => {
            context.log_no_route(host);
            Err(context.fail(Failure::NoRoute))
        }
        Routing::LockNotAllowed => {
            let why = context.share.generation.config.why_not_allowed(host, request.uri().path());
            let subject = Subject { detail: Some(&why), ..Subject::default() };
            Err(context.refuse(Rejection::LockNotAllowed, subject))
        }
        Routing::To { index, captures, .. } => {
            context.route.set(Some(index));
            let lock = lock(context, &captures, request.headers());
            if let Some(Ok(lock)) = &lock {
                context.about.note_lock(lock.key());
            }
            Ok(lock)
        }
    }
}

/// The host that a request is for. The worker gets one in any case, so that one which is not named
/// must be none by which a fence can be passed.
///
/// # Errors
/// The answer to a request that names none, or an empty one. Where no fence goes by it, HTTP/1.0
/// does without, and it may be empty.
fn named_host<'r>(
    context: &RequestContext,
    request: &'r Request<ClientBody>,
) -> Result<Option<&'r str>, Answer> {
    let field = || request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(|authority| authority.as_str()).or_else(field);
    let is_named = host.is_some_and(|host| !host.is_empty() && !host.starts_with(':'));
    let may_be_missing = || host.is_some() || request.version() == Version::HTTP_10;
    let is_fine = is_named || may_be_missing() && !context.share.generation.config.fences_by_host();
    if is_fine { Ok(host) } else { Err(context.fail(Failure::BadTarget)) }
}

/// The lock that guards a request on its route.
fn lock(context: &RequestContext, captures: &Captures<'_>, headers: &HeaderMap) -> GuardedBy {
    let active = context.active_route();
    match (&context.route().mode, &active.guard) {
        (Mode::Enforce(lock) | Mode::Shadow(lock), Some(guard)) => {
            Some(guard.lock(|| lock_name(lock, captures, &active.headers, headers)))
        }
        (Mode::Enforce(_) | Mode::Shadow(_), None) | (Mode::Off, _) => None,
    }
}
