//! `POST /.well-known/fence`: a new holder closes the door behind its predecessor, before it reads
//! the worker's state.
//!
//! The answer is 204 only when no request of an earlier tenure is at the worker or will ever be
//! forwarded. The call forwards nothing.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use fencepost_config::{Mode, Route};
use fencepost_fence::claim::{Claim, Guard, NamedLock};
use fencepost_fence::enter::close_door;
use fencepost_policy::{Layout, Rejection};
use http::{HeaderMap, Response, StatusCode};

use crate::at_gate::Arrived;
use crate::fencing::{NAME_THE_LOCK, load, token};
use crate::recording::{Answer, Subject};
use crate::request_context::RequestContext;
use crate::upstream::ResponseBody;

/// Where it is, on every listener.
pub use fencepost_fence::FENCE_PATH as PATH;

/// The detail of a refusal for a lock in shadow mode. The reason's own words would have the caller
/// look for a slip in the key.
const ONLY_WATCHED: &str = "The routes of this lock are in shadow mode: they only watch, so that nobody can be kept from the worker. Make this \
    call once one of them enforces.";

/// Answers the call.
pub async fn answer(context: &Rc<RequestContext>, headers: &mut HeaderMap) -> Answer {
    match close(context, headers).await {
        Ok(()) => {
            let mut answer = Box::new(Response::new(ResponseBody::Empty));
            *answer.status_mut() = StatusCode::NO_CONTENT;
            answer
        }
        Err(answer) => answer,
    }
}

/// Waits until the caller's tenure has the worker to itself.
async fn close(context: &Rc<RequestContext>, headers: &mut HeaderMap) -> Result<(), Answer> {
    let named = find(context, headers).map_err(|reason| {
        let detail = if reason == Rejection::LockNotAllowed {
            why_not_allowed(context, headers)
        } else {
            None
        };
        context.refuse(reason, Subject { detail, ..Subject::default() })
    })?;
    context.about.note_lock(named.key());
    let identified = context.identify(headers);
    let refuse =
        |reason| context.refuse(reason, context.presenting(headers, Subject::of_lock(named.key())));
    identified.map_err(refuse)?;
    let token = token(context, headers).map_err(refuse)?;
    let lock = match named {
        NamedLock::Tracked(lock) => lock,
        NamedLock::Unread(key) => {
            let subject = Subject::of_lock(&key).with(&token);
            load(context, &key).await.map_err(|reason| context.refuse(reason, subject))?
        }
    };
    let claim = Claim { token, lock };
    let arrived = Arrived::call(context, &claim);
    close_door(&arrived).await.map_err(|reason| match unreadable(&claim, reason) {
        Some(detail) => {
            let subject = Subject { detail: Some(&detail), ..Subject::of(&claim) };
            context.refuse(Rejection::LockNotAllowed, subject)
        }
        None => arrived.refuse(reason),
    })
}

/// What the caller has to correct, where the lock's record, which the caller has written, is not of
/// the form that the route reads. Asking again would not help.
fn unreadable(claim: &Claim, reason: Rejection) -> Option<String> {
    let (lock, view) = (&claim.lock, claim.lock.view());
    let is_callers = view.snapshot().is_some_and(|known| known.as_of >= Some(claim.token.revision));
    if reason != Rejection::Unverifiable || lock.layout() != Layout::Key || !is_callers {
        return None;
    }
    view.problem().map(|problem| {
        format!("{problem}: write it as the route's lock says (owner_field), or change the route")
    })
}

/// Finds the lock, and the enforced route whose rules it is judged by. The caller names it, unless
/// there is only one. Of several routes of the lock it is the first that the headers of the token
/// are those of.
fn find(context: &RequestContext, headers: &HeaderMap) -> Result<NamedLock, Rejection> {
    let generation = Arc::clone(&context.share.generation);
    let mut enforced = generation.config.routes.iter().enumerate().filter_map(|(index, route)| {
        match &route.mode {
            Mode::Enforce(lock) => Some((index, route, lock)),
            Mode::Shadow(_) | Mode::Off => None,
        }
    });
    let mut meant: Option<(usize, Cow<'_, str>)> = None;
    for (index, route, lock) in
        enforced.clone().filter(|(_, route, _)| headers.contains_key(&route.lock_header))
    {
        let Some(key) = lock.key.named(generation.routes[index].headers.lock(headers)?) else {
            continue;
        };
        if presents_token(route, headers) {
            meant = Some((index, key));
            break;
        }
        meant = meant.or(Some((index, key)));
    }
    if let Some((index, key)) = meant {
        context.route.set(Some(index));
        return named(&generation.routes[index].guard, &key);
    }
    if enforced.clone().any(|(_, route, _)| headers.contains_key(&route.lock_header)) {
        return Err(Rejection::LockNotAllowed);
    }
    // Without a name there must be nothing to choose.
    let (first, _, lock) = enforced.clone().next().ok_or(Rejection::LockNotAllowed)?;
    let key = lock.key.static_key().ok_or(Rejection::LockNotAllowed)?;
    if enforced.clone().any(|(_, _, other)| other.key.static_key() != Some(key)) {
        return Err(Rejection::LockNotAllowed);
    }
    let index = enforced
        .find(|(_, route, _)| presents_token(route, headers))
        .map_or(first, |(index, _, _)| index);
    context.route.set(Some(index));
    named(&generation.routes[index].guard, key.as_str())
}

/// What helps the caller, whose lock was not found, more than the reason's own words.
fn why_not_allowed(context: &RequestContext, headers: &HeaderMap) -> Option<&'static str> {
    if is_only_watched(context, headers) {
        return Some(ONLY_WATCHED);
    }
    let routes = &context.share.generation.config.routes;
    let is_named = routes.iter().any(|route| headers.contains_key(&route.lock_header));
    let can_be_named = routes.iter().any(|route| matches!(route.mode, Mode::Enforce(_)));
    (can_be_named && !is_named).then_some(NAME_THE_LOCK)
}

/// Whether the lock that is named is one of routes that only watch; or, where none is named,
/// whether there are only such routes.
fn is_only_watched(context: &RequestContext, headers: &HeaderMap) -> bool {
    let generation = &context.share.generation;
    let routes = &generation.config.routes;
    let names_one = |route: &Route| headers.contains_key(&route.lock_header);
    let is_named = routes.iter().any(names_one);
    let nobody_enforces = !routes.iter().any(|route| matches!(route.mode, Mode::Enforce(_)));
    routes.iter().zip(&generation.routes).any(|(route, in_force)| match &route.mode {
        Mode::Shadow(_) if !is_named => nobody_enforces,
        Mode::Shadow(lock) => {
            names_one(route)
                && in_force.headers.lock(headers).is_ok_and(|key| lock.key.named(key).is_some())
        }
        Mode::Enforce(_) | Mode::Off => false,
    })
}

/// Whether the headers are there in which a route has its token.
fn presents_token(route: &Route, headers: &HeaderMap) -> bool {
    let takes_owner = route.identity.as_ref().is_some_and(|identity| identity.take_owner);
    headers.contains_key(&route.revision_header)
        && (takes_owner || headers.contains_key(&route.owner_header))
}

fn named(guard: &Option<Guard>, key: &str) -> Result<NamedLock, Rejection> {
    guard.as_ref().ok_or(Rejection::LockNotAllowed)?.lock(|| Ok(key))
}
