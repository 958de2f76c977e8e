//! What must hold between routes, and what their users should know about them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::check_locks::check_locks;
use crate::group::Group;
use crate::index::{CoverIndex, LockIndex};
use crate::listening::{Admin, Listener};
use crate::lock::Lock;
use crate::path_template::PathTemplate;
use crate::prefixes::Prefixes;
use crate::problem::Place;
use crate::reader::Table;
use crate::rewrite::{Rewrite, UpstreamHost};
use crate::route::{Mode, Route, WrittenRoute};
use crate::routing::without_port;
use crate::source::Source;
use crate::upstream::UpstreamAddress;

/// The routes; none if something is wrong with one.
pub(crate) fn check_routes(
    tables: Vec<Table<'_>>,
    (sources, source_places): (&[Source], &[Place]),
    (listeners, admin): (&[Listener], Option<&Admin>),
    group: Option<&Group>,
) -> Vec<Route> {
    let read = |table| WrittenRoute::read(table, sources);
    let written: Vec<WrittenRoute<'_>> = tables.into_iter().map(read).collect();
    check_names(&written);
    warn_of_unused_sources(&written, source_places);
    check_locks(&written, sources);
    right(&written).for_each(|route| check_listeners(route, listeners, admin));
    for (route, written) in right(&written) {
        let problem = group.and_then(|group| group.problem_of(route, sources));
        problem.iter().for_each(|problem| written.table.problem("lock", problem));
    }
    let routes: Vec<Right<'_>> = right(&written).collect();
    if routes.len() == written.len() {
        warn_of_wildcards(&routes);
        let index = CoverIndex::new(routes.iter().map(|(route, _)| *route));
        warn_of_hidden_routes(&routes, &index);
        warn_of_lost_slashes(&routes, &index);
        warn_of_missing_identities(&routes);
        warn_of_unjudged_ways(&routes, &index);
        check_rewritten(&routes);
    }
    written.into_iter().filter_map(|written| written.route).collect()
}

/// A route with which nothing is wrong, and how it is written.
type Right<'r> = (&'r Route, &'r WrittenRoute<'r>);

fn right<'r>(written: &'r [WrittenRoute<'r>]) -> impl Iterator<Item = Right<'r>> {
    written.iter().filter_map(|written| Some((written.route.as_ref()?, written)))
}

/// No two routes have one name, and none has that of requests without a route.
fn check_names(routes: &[WrittenRoute<'_>]) {
    let mut known: HashMap<&str, &Place> = HashMap::new();
    for WrittenRoute { name, name_place, table, .. } in routes {
        if name == "none" {
            let text = r#""none" is what requests are counted under that no route takes"#;
            table.notes.problem(name_place, text);
        }
        if let Some(earlier) = known.get(name.as_str()).filter(|_| !name.is_empty()) {
            let line = earlier.reference(table.notes);
            table.notes.problem(name_place, format_args!("another route{line} has this name"));
        }
        known.entry(name).or_insert(name_place);
    }
}

fn warn_of_unused_sources(routes: &[WrittenRoute<'_>], places: &[Place]) {
    let used = routes.iter().filter_map(|route| Some(route.lock.as_ref()?.source));
    let used: HashSet<usize> = used.collect();
    for (number, place) in places.iter().enumerate() {
        if let Some(route) = routes.first().filter(|_| !used.contains(&number)) {
            route.table.notes.warning(place, "no route uses this source");
        }
    }
}

/// Paths of the admin listener that only tell, and that probes and Prometheus ask for, who may have
/// no other way to it.
const TELLING_PATHS: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// A route that asks for an identity gets certificates to look at, whatever listener a request
/// comes in by. No worker is this proxy, where requests would go round and round. Routes to the
/// admin listener are worth a warning: it may be on loopback so that strangers don't get to it.
fn check_listeners((route, written): Right<'_>, listeners: &[Listener], admin: Option<&Admin>) {
    let (upstream, table) = (&route.upstream, &written.table);
    let is_asked = route.identity.is_some() && route.mode.lock().is_some();
    for Listener { address, tls, proxies: _ } in listeners {
        if is_asked && tls.as_ref().is_none_or(|tls| tls.clients.is_none()) {
            let text = format!("listener {address} has no tls with client_ca");
            table.problem("identity", format_args!("needs client certificates, but {text}"));
        }
    }
    if let Some(own) = listeners.iter().find(|own| upstream.address.leads_to(&own.address)) {
        let text = format!("{upstream} leads to fencepost itself: listener {}", own.address);
        table.problem("upstream", text);
    }
    let leads_to_admin = admin.is_some_and(|admin| upstream.address.leads_to(&admin.address));
    if leads_to_admin && !TELLING_PATHS.contains(&route.path.as_str()) {
        let told = format!("(routes for {} alone only tell)", TELLING_PATHS.join(", "));
        let text = "the admin listener: whoever the route takes can change what that offers";
        table.warning("upstream", format_args!("{upstream} leads to {text} {told}"));
    }
}

/// Warns of what other proxies take for a wildcard, and nothing here does.
fn warn_of_wildcards(routes: &[Right<'_>]) {
    let is_parameter = |segment: &str| segment.starts_with(':') && segment.len() > 1;
    for (route, written) in routes {
        let mut segments = route.path.as_str().split('/');
        if let Some(segment) = segments.find(|part| part.ends_with('*') || is_parameter(part)) {
            let below = "whatever is below its path a route takes anyway";
            let text =
                format!("stands for itself alone: {{name}} takes any one segment, and {below}");
            written.table.warning("path", format_args!("{segment:?} {text}"));
        }
    }
}

/// Warns of routes that never match.
fn warn_of_hidden_routes(routes: &[Right<'_>], index: &CoverIndex<'_>) {
    for (number, (later, written)) in routes.iter().enumerate() {
        // Or itself.
        let first = index.first_that_takes_all_of(later).filter(|first| *first < number);
        if let Some(earlier) = first.map(|first| routes[first].1.named("path")) {
            let text = format!("never matches: all its paths meet {earlier} first");
            written.table.warning("path", text);
        }
    }
}

/// Warns of guarded routes like `/shards/{shard}/` where `/shards/2` goes to a later route past the
/// lock, since many workers make no difference between the two.
fn warn_of_lost_slashes(routes: &[Right<'_>], index: &CoverIndex<'_>) {
    for (number, (guarded, written)) in routes.iter().enumerate() {
        let bare = guarded.path.without_last_slash();
        let Some((lock, bare)) = guarded.mode.lock().zip(bare) else { continue };
        let first = index.first_taking(guarded.host.as_deref(), &bare);
        let later = first.filter(|first| *first > number).map(|first| routes[first]);
        let Some((later, other)) = later else { continue };
        if later.mode.lock().is_none_or(|other| other.key != lock.key) {
            let (bare, later) = (bare.as_str(), other.named("path"));
            let text = format!("goes to {later}: a path {bare:?} takes both");
            written.table.warning("path", format_args!("{bare:?}, without the slash, {text}"));
        }
    }
}

/// Warns of routes that ask nobody who he is, where another route with the same lock does.
fn warn_of_missing_identities(routes: &[Right<'_>]) {
    let (asking, others): (Vec<Right<'_>>, Vec<Right<'_>>) =
        routes.iter().partition(|(route, _)| route.identity.is_some());
    let asking = asking.into_iter().filter_map(|(route, by)| Some((route.mode.lock()?, by)));
    let asking: Vec<_> = asking.collect();
    let index = LockIndex::new(asking.iter().map(|(lock, _)| *lock));
    for (route, written) in others {
        let Some(lock) = route.mode.lock() else { continue };
        let mut overlapping = index.overlapping(&lock.key).map(|number| asking[number]);
        if let Some((_, other)) = overlapping.find(|(other, _)| other.source == lock.source) {
            let text = "with the same lock asks for its identity";
            let other = other.named("path");
            let text = format!("takes the holder's token from any sender, though {other} {text}");
            written.table.warning("path", text);
        }
    }
}

/// Warns of routes that are off before a worker which another route guards: it may take what it
/// gets for judged.
fn warn_of_unjudged_ways(routes: &[Right<'_>], index: &CoverIndex<'_>) {
    let mut guarding: HashMap<&UpstreamAddress, &WrittenRoute<'_>> = HashMap::new();
    for (route, written) in routes {
        if let Mode::Enforce(_) = route.mode {
            guarding.entry(&route.upstream.address).or_insert(written);
        }
    }
    for (number, (route, written)) in routes.iter().enumerate() {
        let is_reached = || index.first_that_takes_all_of(route) == Some(number);
        let guarded = guarding.get(&route.upstream.address).filter(|_| route.mode == Mode::Off);
        if let Some(guarded) = guarded.filter(|_| is_reached()) {
            let text = "forwards requests unjudged, with whatever token they bring, to the worker";
            written.table.warning("path", format_args!("{text} of {}", guarded.named("path")));
        }
    }
}

/// One path of a worker has one lock. A route that strips a prefix, or changes the host, may send
/// what another route sends under another lock. A route without a lock gets its warning elsewhere.
fn check_rewritten(routes: &[Right<'_>]) {
    let guarded = routes.iter().filter_map(|(route, written)| Some((Sent::by(route)?, written)));
    let guarded: Vec<_> = guarded.collect();
    let mut workers: HashMap<&UpstreamAddress, Prefixes> = HashMap::new();
    for (number, (sent, _)) in guarded.iter().enumerate() {
        let worker = workers.entry(&sent.route.upstream.address).or_default();
        worker.insert(number, &sent.path.beginning());
    }
    for (number, (sent, written)) in guarded.iter().enumerate() {
        let Rewrite { strip_prefix, host, .. } = &sent.route.rewrite;
        let key = match (strip_prefix, host) {
            (Some(_), _) => "strip_prefix",
            (None, UpstreamHost::Upstream | UpstreamHost::Named(_)) => "upstream_host",
            (None, UpstreamHost::Kept) => continue,
        };
        let alike = workers[&sent.route.upstream.address].alike(&sent.path.beginning());
        let collides = |other: &usize| {
            let (earlier, later) = (number.min(*other), number.max(*other));
            guarded[earlier].0.collides(&guarded[later].0)
        };
        if let Some(other) = alike.into_iter().find(collides) {
            let other = guarded[other].1.named("path");
            let text = format!("sends the worker the same paths as {other}, under another lock");
            let help = "give both one lock, or paths that differ at the worker";
            written.table.problem(key, format_args!("{text}: {help}"));
        }
    }
}

/// What a worker gets of a guarded route.
struct Sent<'r> {
    route: &'r Route,
    lock: &'r Lock,
    path: Cow<'r, PathTemplate>,
    /// `None`: any.
    host: Option<String>,
}

impl Sent<'_> {
    fn by(route: &Route) -> Option<Sent<'_>> {
        let Rewrite { strip_prefix, host, .. } = &route.rewrite;
        let stripped = strip_prefix.as_ref().and_then(|prefix| route.path.without(prefix));
        let host = match host {
            UpstreamHost::Kept => route.host.clone(),
            UpstreamHost::Upstream => Some(route.upstream.address.to_string()),
            UpstreamHost::Named(name) => name.to_str().ok().map(str::to_owned),
        };
        let host = host.map(|host| without_port(&host).to_owned());
        let path = stripped.map_or(Cow::Borrowed(&route.path), Cow::Owned);
        Some(Sent { route, lock: route.mode.lock()?, path, host })
    }

    /// Whether the worker may get one request from this route and from a later one that is under
    /// another lock.
    fn collides(&self, later: &Sent<'_>) -> bool {
        let (route, other) = (self.route, later.route);
        let is_first_asked = route.rewrite.strip_prefix == other.rewrite.strip_prefix
            && (route.host.is_none() || route.host == other.host);
        let is_same_lock = self.lock == later.lock
            && (self.lock.key.static_key().is_some() || self.path == later.path);
        let may_be_one_host =
            self.host.is_none() || later.host.is_none() || self.host == later.host;
        !is_first_asked && !is_same_lock && may_be_one_host && self.path.overlaps(&later.path)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::path_template::PathTemplate;
    use crate::problem::Notes;
    use crate::route::tests::any_route;

    /// What is wrong with two routes to one worker.
    fn problems_of(one: &str, other: &str) -> String {
        let route = |name, lines: &str| {
            let (upstream, path) =
                ("http://127.0.0.1:9", if lines.contains("path = ") { "" } else { "path = \"/\"" });
            format!(
                "[[route]]\nname = {name:?}\nupstream = {upstream:?}\n{path}\n{}\n",
                lines.replace("; ", "\n")
            )
        };
        let text = format!(
            "listener = [{{ address = \"127.0.0.1:0\" }}]\nsource.main.kind = \"memory\"\n{}{}",
            route("one", one),
            route("other", other)
        )
        .replace("lock = ", "lock.source = \"main\"\nlock.key = ");
        crate::Config::from_toml("f.toml", &text)
            .map_or_else(|problems| problems.to_string(), |_| String::new())
    }

    #[test]
    fn rewritten_paths_of_a_worker_have_one_lock() {
        for (one, other, key) in [
            // `/a/b/x` and `/b/x` are one path to the worker.
            (
                r#"path = "/a/"; strip_prefix = "/a"; lock = "/a""#,
                r#"path = "/b/"; lock = "/b""#,
                "strip_prefix",
            ),
            (
                r#"path = "/b/"; lock = "/b""#,
                r#"path = "/a/"; strip_prefix = "/a"; lock = "/a""#,
                "strip_prefix",
            ),
            (
                r#"path = "/a/{x}/"; strip_prefix = "/a"; lock = "/{x}""#,
                r#"path = "/b/{x}/"; strip_prefix = "/b"; lock = "/b/{x}""#,
                "strip_prefix",
            ),
            (
                r#"path = "/a/{x}/{y}"; strip_prefix = "/a"; lock = "/{x}""#,
                r#"path = "/b/{y}/{x}"; strip_prefix = "/b"; lock = "/{x}""#,
                "strip_prefix",
            ),
            (
                r#"host = "a"; upstream_host = "upstream"; lock = "/a""#,
                r#"host = "b"; upstream_host = "upstream"; lock = "/b""#,
                "upstream_host",
            ),
            (
                r#"host = "a"; upstream_host = "b"; lock = "/a""#,
                r#"host = "b"; lock = "/b""#,
                "upstream_host",
            ),
        ] {
            let problems = problems_of(one, other);
            let told = format!("{key}: sends the worker the same paths as route");
            assert!(problems.contains(&told), "{one} | {other}: {problems}");
        }
        for (one, other) in [
            // The first route that takes a path has it, before and after.
            (
                r#"path = "/a/x/"; strip_prefix = "/a"; lock = "/x""#,
                r#"path = "/a/"; strip_prefix = "/a"; lock = "/a""#,
            ),
            (
                r#"path = "/x/"; upstream_host = "upstream"; lock = "/x""#,
                r#"upstream_host = "upstream"; lock = "/a""#,
            ),
            (r#"path = "/a/"; strip_prefix = "/a"; lock = "/k""#, r#"path = "/b/"; lock = "/k""#),
            (
                r#"path = "/a/{x}/"; strip_prefix = "/a"; lock = "/{x}""#,
                r#"path = "/b/{x}/"; strip_prefix = "/b"; lock = "/{x}""#,
            ),
            (r#"path = "/a/x/"; strip_prefix = "/a"; lock = "/a""#, r#"path = "/b/"; lock = "/b""#),
            (r#"path = "/a/"; strip_prefix = "/a"; lock = "/a""#, r#"path = "/b/"; mode = "off""#),
            (
                r#"host = "a"; upstream_host = "x"; lock = "/a""#,
                r#"host = "b"; upstream_host = "y:80"; lock = "/b""#,
            ),
        ] {
            assert_eq!(problems_of(one, other), "", "{one} | {other}");
        }
    }

    proptest! {
        /// As by asking all routes, which takes a reload of 8,000 of them seconds.
        #[test]
        fn later_route_of_a_lost_slash_is_named(
            written in vec(("(/(a|A|b|[{][xyz][}])){0,3}/?", select(vec![None, None, Some("h")]), 0..2_usize), 1..16),
        ) {
            let (notes, guarded) = (Notes::default(), any_route());
            let kinds = [guarded.clone(), Route { mode: Mode::Off, ..guarded }];
            let route = |(number, (path, host, kind)): (usize, &(String, Option<&str>, usize))| {
                let (path, host) = (PathTemplate::parse(path).ok()?, host.map(str::to_owned));
                let name = format!("r{number}");
                let table = Table::empty(&notes, &format!("route.{name}"));
                let route = Some(Route { name: name.clone(), path, host, ..kinds[*kind].clone() });
                Some(WrittenRoute { name_place: table.place.clone(), table, name, lock: None, route })
            };
            let written: Vec<WrittenRoute<'_>> = written.iter().enumerate().filter_map(route).collect();
            let routes: Vec<Right<'_>> = right(&written).collect();
            let expected = routes.iter().enumerate().filter_map(|(index, (guarded, _))| {
                guarded.mode.lock()?;
                let bare = guarded.path.without_last_slash()?;
                let takes_bare = |(other, _): &&Right<'_>| other.takes_all(guarded.host.as_deref(), &bare);
                let (later, _) = routes[index + 1..].iter().find(takes_bare)?;
                let is_told = !routes[..index].iter().any(|earlier| takes_bare(&earlier)) && later.mode == Mode::Off;
                is_told.then(|| format!("--upstream: {:?}, without the slash, goes to route {:?}", bare.as_str(), later.name))
            });
            let expected: Vec<String> = expected.collect();
            warn_of_lost_slashes(&routes, &CoverIndex::new(routes.iter().map(|(route, _)| *route)));
            drop(routes);
            drop(written);
            let warnings = notes.finish().unwrap().0.into_iter().map(|warning| warning.to_string());
            let told = warnings.map(|warning| warning.split(": a path").next().unwrap().to_owned());
            prop_assert_eq!(told.collect::<Vec<_>>(), expected);
        }
    }
}
