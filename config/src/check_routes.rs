//! What must hold between routes.

use crate::check::DeclaredSource;
use crate::check_locks::check_locks;
use crate::check_route::{CheckedRoute, check_route};
use crate::listening::Listener;
use crate::path_template::PathTemplate;
use crate::problem::{Notes, Place};
use crate::raw::RawRoute;
use crate::route::{Lock, Mode, Route};
use crate::setting::Setting;

/// The routes; nothing if there are none or something is wrong with one.
pub(crate) fn check_routes(
    raw: Setting<Vec<RawRoute>>,
    sources: &[DeclaredSource],
    listeners: &[Listener],
    notes: &Notes,
) -> Option<Vec<Route>> {
    let raw = raw.required(notes, "at least one route, which says which requests go where")?;
    check_names(&raw, notes);
    warn_of_unused_sources(&raw, sources, notes);
    let routes: Vec<CheckedRoute> = raw.into_iter().map(|route| check_route(route, sources, notes)).collect();
    check_locks(&routes, sources, notes);
    check_listeners_ask(&routes, listeners, notes);
    check_upstreams_are_others(&routes, listeners, notes);
    let right = routes.into_iter().map(|checked| Some((checked.route?, checked.path_place)));
    let routes: Vec<(Route, Place)> = right.collect::<Option<_>>()?;
    warn_of_wildcards(&routes, notes);
    warn_of_hidden_routes(&routes, notes);
    warn_of_lost_slashes(&routes, notes);
    warn_of_missing_identities(&routes, notes);
    warn_of_unjudged_ways(&routes, notes);
    Some(routes.into_iter().map(|(route, _)| route).collect())
}

/// What stands in the place of a route's name where there is none.
const UNROUTED: &str = "none";

/// No two routes have one name, and none has that of what no route takes.
fn check_names(routes: &[RawRoute], notes: &Notes) {
    for (index, route) in routes.iter().enumerate() {
        if route.name.value().is_some_and(|name| name == UNROUTED) {
            notes.problem(
                &route.name.place,
                format_args!("{UNROUTED:?} is what requests are counted under that no route takes"),
            );
        }
        let same_name = |other: &&RawRoute| route.name.value().is_some() && other.name.value() == route.name.value();
        if let Some(earlier) = routes[..index].iter().find(same_name) {
            notes.problem(
                &route.name.place,
                format_args!("another route{} has this name", earlier.name.place.reference()),
            );
        }
    }
}

/// A route that asks for an identity gets certificates to look at, whatever listener a request comes in by.
fn check_listeners_ask(routes: &[CheckedRoute], listeners: &[Listener], notes: &Notes) {
    let asks = |listener: &&Listener| listener.tls.as_ref().is_some_and(|tls| tls.clients.is_some());
    for CheckedRoute { identity_place, route, .. } in routes {
        let wants = |route: &Route| route.identity.is_some() && route.mode.lock().is_some();
        for Listener { address, .. } in listeners.iter().filter(|listener| !asks(listener)) {
            if route.as_ref().is_some_and(wants) {
                notes.problem(
                    identity_place,
                    format_args!("needs client certificates, but listener {address} has no tls with client_ca"),
                );
            }
        }
    }
}

/// A request to a worker that is this proxy would go round and round.
fn check_upstreams_are_others(routes: &[CheckedRoute], listeners: &[Listener], notes: &Notes) {
    for CheckedRoute { upstream_place, route, .. } in routes {
        let Some(Route { upstream, .. }) = route else { continue };
        if let Some(own) = listeners.iter().find(|listener| upstream.address.leads_to(&listener.address)) {
            notes.problem(
                upstream_place,
                format_args!("{upstream} leads to fencepost itself: listener {}", own.address),
            );
        }
    }
}

/// Warns of what other proxies take for a wildcard, and nothing here does.
fn warn_of_wildcards(routes: &[(Route, Place)], notes: &Notes) {
    for (route, place) in routes {
        let is_wildcard = |segment: &&str| segment.ends_with('*') || (segment.starts_with(':') && segment.len() > 1);
        if let Some(segment) = route.path.as_str().split('/').find(is_wildcard) {
            notes.warning(
                place,
                format_args!("{segment:?} stands for itself alone: {{name}} takes any one segment, and whatever is below its path a route takes anyway"),
            );
        }
    }
}

fn warn_of_unused_sources(routes: &[RawRoute], sources: &[DeclaredSource], notes: &Notes) {
    for DeclaredSource { name, place, .. } in sources {
        let uses = |route: &RawRoute| route.lock.value().and_then(|lock| lock.source.value()) == Some(name);
        if !routes.iter().any(uses) {
            notes.warning(place, "no route uses this source");
        }
    }
}

/// Warns of routes that never match.
fn warn_of_hidden_routes(routes: &[(Route, Place)], notes: &Notes) {
    for (index, (later, place)) in routes.iter().enumerate() {
        let hides = |(earlier, _): &&(Route, Place)| takes_all(earlier, later, &later.path);
        if let Some((earlier, earlier_place)) = routes[..index].iter().find(hides) {
            let (name, line) = (&earlier.name, earlier_place.reference());
            notes.warning(place, format_args!("never matches: all its paths meet route {name:?}{line} first"));
        }
    }
}

/// Warns of guarded routes like `/shards/{shard}/` where `/shards/2` goes to a later route past the lock, since many
/// workers make no difference between the two.
fn warn_of_lost_slashes(routes: &[(Route, Place)], notes: &Notes) {
    for (index, (guarded, place)) in routes.iter().enumerate() {
        let (Some(lock), Some(bare)) = (guarded.mode.lock(), guarded.path.without_last_slash()) else {
            continue;
        };
        let takes_bare = |(other, _): &&(Route, Place)| takes_all(other, guarded, &bare);
        let taken_earlier = routes[..index].iter().any(|earlier| takes_bare(&earlier));
        let later = routes[index + 1..].iter().find(takes_bare).filter(|_| !taken_earlier);
        let Some((later, later_place)) = later else {
            continue;
        };
        if later.mode.lock().is_none_or(|other| other.key != lock.key) {
            let (bare, name, line) = (bare.as_str(), &later.name, later_place.reference());
            let text = format!("{bare:?}, without the slash, goes to route {name:?}{line}: a path {bare:?} takes both");
            notes.warning(place, text);
        }
    }
}

/// Warns of routes that ask nobody who he is, where another route with the same lock does.
fn warn_of_missing_identities(routes: &[(Route, Place)], notes: &Notes) {
    for (route, place) in routes.iter().filter(|(route, _)| route.identity.is_none()) {
        let Some(lock) = route.mode.lock() else { continue };
        let shares = |other: &Lock| other.source == lock.source && other.key.overlaps(&lock.key);
        let asks = |(other, _): &&(Route, Place)| other.identity.is_some() && other.mode.lock().is_some_and(shares);
        if let Some((other, other_place)) = routes.iter().find(asks) {
            let (name, line) = (&other.name, other_place.reference());
            let text = format!(
                "takes the holder's token from any sender, though route {name:?}{line} with the same lock asks for its identity"
            );
            notes.warning(place, text);
        }
    }
}

/// Warns of routes that are off before a worker which another route guards: it may take what it gets for judged.
fn warn_of_unjudged_ways(routes: &[(Route, Place)], notes: &Notes) {
    let reached = routes.iter().enumerate().filter(|(index, (route, _))| {
        route.mode == Mode::Off && !routes[..*index].iter().any(|(earlier, _)| takes_all(earlier, route, &route.path))
    });
    for (_, (off, place)) in reached {
        let guards = |(other, _): &&(Route, Place)| {
            matches!(other.mode, Mode::Enforce(_)) && other.upstream.address == off.upstream.address
        };
        if let Some((guarded, guarded_place)) = routes.iter().find(guards) {
            let (name, line) = (&guarded.name, guarded_place.reference());
            let text = format!(
                "forwards requests unjudged, with whatever token they bring, to the worker of route {name:?}{line}"
            );
            notes.warning(place, text);
        }
    }
}

/// Whether no request for these paths, on a host that the other route serves, gets past this route.
fn takes_all(route: &Route, other: &Route, paths: &PathTemplate) -> bool {
    let same_hosts = route.host.is_none() || route.host == other.host;
    same_hosts && route.path.covers(paths)
}
