//! What must hold between routes.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use crate::check::DeclaredSource;
use crate::check_locks::check_locks;
use crate::check_route::{CheckedRoute, check_route};
use crate::index::{CoverIndex, LockIndex};
use crate::listening::{Admin, Listener};
use crate::problem::{Notes, Place};
use crate::raw::RawRoute;
use crate::route::{Mode, Route};
use crate::setting::Setting;
use crate::upstream::UpstreamAddress;

/// The routes; nothing if there are none or something is wrong with one.
pub(crate) fn check_routes(
    raw: Setting<Vec<RawRoute>>,
    sources: &[DeclaredSource],
    (listeners, admin): (&[Listener], Option<&Admin>),
    notes: &Notes,
) -> Option<Vec<Route>> {
    let raw = raw.required(notes, "at least one route, which says which requests go where")?;
    check_names(&raw, notes);
    warn_of_unused_sources(&raw, sources, notes);
    let routes: Vec<CheckedRoute> = raw.into_iter().map(|route| check_route(route, sources, notes)).collect();
    check_locks(&routes, sources, notes);
    check_listeners_ask(&routes, listeners, notes);
    check_upstreams_are_others(&routes, listeners, notes);
    warn_of_ways_to_admin(&routes, admin, notes);
    let right = routes.into_iter().map(|checked| Some((checked.route?, checked.path_place)));
    let routes: Vec<(Route, Place)> = right.collect::<Option<_>>()?;
    warn_of_wildcards(&routes, notes);
    let index = CoverIndex::new(routes.iter().map(|(route, _)| route));
    warn_of_hidden_routes(&routes, &index, notes);
    warn_of_lost_slashes(&routes, &index, notes);
    warn_of_missing_identities(&routes, notes);
    warn_of_unjudged_ways(&routes, &index, notes);
    Some(routes.into_iter().map(|(route, _)| route).collect())
}

/// What stands in the place of a route's name where there is none.
const UNROUTED: &str = "none";

/// No two routes have one name, and none has that of what no route takes.
fn check_names(routes: &[RawRoute], notes: &Notes) {
    let mut known: HashMap<&str, &Place> = HashMap::new();
    for route in routes {
        let (Some(name), place) = (route.name.value(), &route.name.place) else { continue };
        if name == UNROUTED {
            notes.problem(place, format_args!("{UNROUTED:?} is what requests are counted under that no route takes"));
        }
        match known.entry(name) {
            Entry::Occupied(earlier) => {
                notes.problem(place, format_args!("another route{} has this name", earlier.get().reference()));
            }
            Entry::Vacant(entry) => {
                entry.insert(place);
            }
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

/// Paths of the admin listener that only tell, and that probes and Prometheus ask for, who may have no other way to it.
const TELLING_PATHS: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Warns of routes by which strangers get to the admin listener, though it may be on loopback so that they don't.
fn warn_of_ways_to_admin(routes: &[CheckedRoute], admin: Option<&Admin>, notes: &Notes) {
    let Some(admin) = admin else { return };
    for CheckedRoute { upstream_place, route, .. } in routes {
        let Some(Route { upstream, path, .. }) = route else { continue };
        if upstream.address.leads_to(&admin.address) && !TELLING_PATHS.contains(&path.as_str()) {
            let told = TELLING_PATHS.join(", ");
            notes.warning(
                upstream_place,
                format_args!("{upstream} leads to the admin listener: whoever the route takes can change what that offers (routes for {told} alone only tell)"),
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
    let used: HashSet<&String> = routes.iter().filter_map(|route| route.lock.value()?.source.value()).collect();
    for DeclaredSource { name, place, .. } in sources {
        if !used.contains(name) {
            notes.warning(place, "no route uses this source");
        }
    }
}

/// Warns of routes that never match.
fn warn_of_hidden_routes(routes: &[(Route, Place)], index: &CoverIndex<'_>, notes: &Notes) {
    for (number, (later, place)) in routes.iter().enumerate() {
        // Or itself.
        let first = index.first_that_takes_all_of(later).filter(|first| *first < number);
        if let Some((earlier, earlier_place)) = first.map(|first| &routes[first]) {
            let (name, line) = (&earlier.name, earlier_place.reference());
            notes.warning(place, format_args!("never matches: all its paths meet route {name:?}{line} first"));
        }
    }
}

/// Warns of guarded routes like `/shards/{shard}/` where `/shards/2` goes to a later route past the lock, since many
/// workers make no difference between the two.
fn warn_of_lost_slashes(routes: &[(Route, Place)], index: &CoverIndex<'_>, notes: &Notes) {
    for (number, (guarded, place)) in routes.iter().enumerate() {
        let (Some(lock), Some(bare)) = (guarded.mode.lock(), guarded.path.without_last_slash()) else {
            continue;
        };
        let first = index.first_that_takes_all(guarded.host.as_deref(), &bare);
        let Some((later, later_place)) = first.filter(|first| *first > number).map(|first| &routes[first]) else {
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
    let asking = routes.iter().filter(|(route, _)| route.identity.is_some());
    let asking: Vec<_> = asking.filter_map(|asking| Some((asking, asking.0.mode.lock()?))).collect();
    let index = LockIndex::new(asking.iter().map(|(_, lock)| *lock));
    for (route, place) in routes.iter().filter(|(route, _)| route.identity.is_none()) {
        let Some(lock) = route.mode.lock() else { continue };
        let mut overlapping = index.overlapping(&lock.key);
        if let Some(number) = overlapping.find(|number| asking[*number].1.source == lock.source) {
            let (other, other_place) = asking[number].0;
            let (name, line) = (&other.name, other_place.reference());
            let text = format!(
                "takes the holder's token from any sender, though route {name:?}{line} with the same lock asks for its identity"
            );
            notes.warning(place, text);
        }
    }
}

/// Warns of routes that are off before a worker which another route guards: it may take what it gets for judged.
fn warn_of_unjudged_ways(routes: &[(Route, Place)], index: &CoverIndex<'_>, notes: &Notes) {
    let mut guarding: HashMap<&UpstreamAddress, &(Route, Place)> = HashMap::new();
    for guarded in routes.iter().filter(|(route, _)| matches!(route.mode, Mode::Enforce(_))) {
        guarding.entry(&guarded.0.upstream.address).or_insert(guarded);
    }
    let is_reached = |number, route: &Route| index.first_that_takes_all_of(route) == Some(number);
    for (number, (off, place)) in routes.iter().enumerate() {
        if off.mode != Mode::Off || !is_reached(number, off) {
            continue;
        }
        if let Some((guarded, guarded_place)) = guarding.get(&off.upstream.address) {
            let (name, line) = (&guarded.name, guarded_place.reference());
            let text = format!(
                "forwards requests unjudged, with whatever token they bring, to the worker of route {name:?}{line}"
            );
            notes.warning(place, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::Config;
    use crate::path_template::PathTemplate;

    /// One that is guarded, and one that is not.
    fn two_routes() -> Vec<Route> {
        let route = |name: &str, fence: &str| {
            format!("[[route]]\nname = {name:?}\npath = \"/\"\nupstream = \"http://127.0.0.1:9000\"\n{fence}\n")
        };
        let text = "listener = [{ address = \"127.0.0.1:0\" }]\nsource.main.kind = \"memory\"\n".to_owned()
            + &route("guarded", "lock = { source = \"main\", key = \"/k\" }")
            + &route("off", "mode = \"off\"");
        Config::from_toml("f.toml", &text).unwrap().routes.to_vec()
    }

    proptest! {
        /// As by asking all routes, which takes a reload of 8,000 of them seconds.
        #[test]
        fn the_route_that_comes_by_a_lost_slash_is_named_if_none_is_asked_before_the_guarded_one(
            written in vec(("(/(a|A|b|[{][xyz][}])){0,3}/?", select(vec![None, None, Some("h")]), 0..2_usize), 1..16),
        ) {
            let kinds = two_routes();
            let route = |(number, (path, host, kind)): (usize, &(String, Option<&str>, usize))| {
                let (path, host) = (PathTemplate::parse(path).ok()?, host.map(str::to_owned));
                let place = Place::flag(&format!("r{number}"));
                Some((Route { name: format!("r{number}"), path, host, ..kinds[*kind].clone() }, place))
            };
            let routes: Vec<(Route, Place)> = written.iter().enumerate().filter_map(route).collect();
            let expected = routes.iter().enumerate().filter_map(|(index, (guarded, place))| {
                guarded.mode.lock()?;
                let bare = guarded.path.without_last_slash()?;
                let takes_bare = |(other, _): &&(Route, Place)| other.takes_all(guarded.host.as_deref(), &bare);
                let later = routes[index + 1..].iter().find(takes_bare)?;
                let is_told = !routes[..index].iter().any(|earlier| takes_bare(&earlier)) && later.0.mode == Mode::Off;
                is_told.then(|| format!("{}: {:?}, without the slash, goes to route {:?}", place.key(), bare.as_str(), later.0.name))
            });
            let notes = Notes::for_flags();
            warn_of_lost_slashes(&routes, &CoverIndex::new(routes.iter().map(|(route, _)| route)), &notes);
            let warnings = notes.finish().unwrap().0.into_iter().map(|warning| warning.to_string());
            let told = warnings.map(|warning| warning.split(": a path").next().unwrap().to_owned());
            prop_assert_eq!(told.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{:?}", &written);
        }
    }
}
