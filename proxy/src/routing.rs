//! The first layer: which route takes a request, and which lock guards it there.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use fencepost_config::{Captures, Mode, Routing};
use fencepost_policy::{LockKey, Rejection};
use fencepost_sources::TrackedLock;
use http::header::HOST;
use http::{HeaderMap, Method, Request};
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use crate::downstream::ClientBody;
use crate::exchange::{Answer, Exchange, InFlight, Place, Worker};
use crate::fence_call;
use crate::recording::{About, Subject};
use crate::refusal::{AnswerForm, Failure};
use crate::routes::{Guard, KeyBuffer};

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
pub async fn route<S>(worker: Rc<Worker>, request: Request<ClientBody>, next: S) -> Result<Answer, Infallible>
where
    S: Service<Exchange<Guarded>, Response = Answer, Error = Infallible>,
{
    let mut place = Place {
        route: None,
        form: AnswerForm::of(request.method(), request.headers()),
        client: request.body().connection().address(),
        arrived: Instant::now(),
        about: About::of(&request),
        worker,
    };
    if place.worker.fence.is_draining() {
        return Ok(place.refuse(Rejection::Draining, Subject::default()));
    }
    if request.method() == Method::CONNECT {
        return Ok(place.fail(Failure::NotSupported));
    }
    if request.uri().path() == fence_call::PATH && request.method() == Method::POST {
        return Ok(Box::pin(fence_call::answer(place, request.headers())).await);
    }
    let worker = Rc::clone(&place.worker);
    let host = request.uri().authority().map(|authority| authority.as_str()).or_else(|| host(request.headers()));
    let guarded = match worker.fence.config.route(host, request.uri().path()) {
        Routing::NoRoute => return Ok(place.fail(Failure::NoRoute)),
        Routing::LockNotAllowed => return Ok(place.refuse(Rejection::LockNotAllowed, Subject::default())),
        Routing::To { index, captures, .. } => {
            place.route = Some(index);
            guarded(&place, &captures, request.headers())
        }
    };
    let in_flight = InFlight::new(&place.metrics().in_flight);
    next.oneshot(Exchange { request, place, in_flight, state: guarded }).await
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST).and_then(|host| host.to_str().ok())
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
