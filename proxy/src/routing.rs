//! The first layer: which route takes a request, and which lock guards it there.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use fencepost_config::{Captures, Mode, Routing};
use fencepost_policy::{LockKey, Rejection};
use fencepost_sources::TrackedLock;
use http::header::HOST;
use http::{HeaderMap, Method, Request, Response, Version};
use tokio::time::Instant;
use tower::Service;

use crate::about::About;
use crate::access_log::{Logged, Unanswered, logged};
use crate::downstream::ClientBody;
use crate::exchange::{Answer, Exchange, InFlight, Place};
use crate::fence_call;
use crate::forward::{ResponseBody, check_host};
use crate::in_force::ThreadShare;
use crate::panics::{Panicked, contained};
use crate::recording::Subject;
use crate::refusal::{AnswerForm, Failure};
use crate::routes::{Guard, KeyBuffer};
use crate::ticket::Ticket;

/// What guards a request.
pub enum Guarded {
    /// Nothing: its route is off.
    Not,
    /// This lock.
    By(Arc<TrackedLock>),
    /// The lock of that name, which has to be looked up first.
    ByUncached(LockKey),
    /// It names no lock of its route.
    Unclear(Rejection),
}

/// Finds the route; ends requests that have none, that ask for what we do not do, or that come too late.
pub async fn route<S>(
    share: Rc<ThreadShare>,
    mut request: Box<Request<ClientBody>>,
    mut next: S,
) -> Result<Response<Logged<ResponseBody<Ticket>>>, Infallible>
where
    S: Service<Exchange<Guarded>, Response = Answer, Error = Infallible>,
{
    let has_access_log = share.fence.access_log.is_some();
    let place = Rc::new(Place {
        route: Cell::new(None),
        form: AnswerForm::of(request.method(), request.headers()),
        client: request.body().connection().address(),
        peer: request.body().connection().peer().cloned(),
        arrived: Instant::now(),
        about: About::of(&request, has_access_log),
        share,
    });
    let unanswered = Unanswered::of(&place);
    let found = contained(begin(&place, &mut request)).await;
    let answer = match found.unwrap_or_else(|Panicked| Err(place.panicked())) {
        Ok(guarded) => {
            let in_flight = InFlight::new(Rc::clone(place.counts()), request.body().connection().under_way());
            let exchange = Exchange { request, place: Rc::clone(&place), in_flight, state: guarded };
            contained(next.call(exchange)).await.unwrap_or_else(|Panicked| Ok(place.panicked()))?
        }
        Err(answer) => answer,
    };
    Ok(logged(*answer, unanswered))
}

/// Answers what asks for the fence alone, or finds out what guards the request.
///
/// # Errors
/// The answer to a request that gets no further.
async fn begin(place: &Rc<Place>, request: &mut Request<ClientBody>) -> Result<Guarded, Answer> {
    if request.body().waits_in_vain() {
        return Err(place.fail(Failure::Expectation));
    }
    let asks_for_fence = request.uri().path() == fence_call::PATH && request.method() == Method::POST;
    if asks_for_fence && !place.share.fence.process.is_draining() {
        named_host(place, request)?;
        check_host(request.headers(), request.uri(), request.version()).map_err(|_| place.fail(Failure::BadTarget))?;
        return Err(Box::pin(fence_call::answer(place, request.headers_mut())).await);
    }
    find(place, request)
}

/// Notes which route takes the request, and finds out what guards it there.
///
/// # Errors
/// The answer to a request that gets no further.
fn find(place: &Place, request: &Request<ClientBody>) -> Result<Guarded, Answer> {
    if place.share.fence.process.is_draining() {
        return Err(place.refuse(Rejection::Draining, Subject::default()));
    }
    // On HTTP/1 nothing with more fields is read to its end.
    if request.headers().len() > place.share.fence.config.limits.headers_max {
        return Err(place.fail(Failure::LargeHead));
    }
    if request.method() == Method::CONNECT {
        return Err(place.fail(Failure::NotSupported));
    }
    let host = named_host(place, request)?;
    match place.share.fence.config.route(host, request.uri().path()) {
        Routing::NoRoute => {
            place.log_no_route(host);
            Err(place.fail(Failure::NoRoute))
        }
        Routing::LockNotAllowed => Err(place.refuse(Rejection::LockNotAllowed, Subject::default())),
        Routing::To { index, captures, .. } => {
            place.route.set(Some(index));
            let guarded = guarded(place, &captures, request.headers());
            match &guarded {
                Guarded::By(lock) => place.about.note_lock(lock.key()),
                Guarded::ByUncached(key) => place.about.note_lock(key),
                Guarded::Not | Guarded::Unclear(_) => {}
            }
            Ok(guarded)
        }
    }
}

/// The host that a request is for. The worker gets one in any case, so that one which is not named must be none by which a fence can
/// be passed.
///
/// # Errors
/// The answer to a request that names none, or an empty one. Where no fence goes by it, HTTP/1.0 does without, and it may be empty.
fn named_host<'r>(place: &Place, request: &'r Request<ClientBody>) -> Result<Option<&'r str>, Answer> {
    let field = || request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(|authority| authority.as_str()).or_else(field);
    let is_named = host.is_some_and(|host| !host.is_empty() && !host.starts_with(':'));
    let may_be_missing = || host.is_some() || request.version() == Version::HTTP_10;
    let is_fine = is_named || may_be_missing() && !place.share.fence.config.fences_by_host();
    if is_fine { Ok(host) } else { Err(place.fail(Failure::BadTarget)) }
}

fn guarded(place: &Place, captures: &Captures<'_>, headers: &HeaderMap) -> Guarded {
    let in_force = place.in_force();
    let (Mode::Enforce(lock) | Mode::Shadow(lock), Some(guard)) = (&place.route().mode, &in_force.guard) else {
        return Guarded::Not;
    };
    let locks = match guard {
        Guard::Static(lock) => return Guarded::By(Arc::clone(lock)),
        Guard::Templated(locks) => locks,
    };
    let key = match KeyBuffer::render(lock, captures, &in_force.headers, headers) {
        Ok(key) => key,
        Err(reason) => return Guarded::Unclear(reason),
    };
    match locks.get(key.as_str()) {
        Some(lock) => Guarded::By(lock),
        None => LockKey::new(key.as_str()).map_or(Guarded::Unclear(Rejection::LockNotAllowed), Guarded::ByUncached),
    }
}
