//! Finds the route of a request.

use std::cell::LazyCell;
use std::net::Ipv6Addr;

use crate::captures::Captures;
use crate::config::Config;
use crate::path_template::{PathMatch, PathTemplate, shown_segment};
use crate::percent::{is_ambiguous, names_a_host};
use crate::route::{Mode, Route};
use crate::routes::Routes;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq)]
pub enum Routing<'c, 'p> {
    /// To this route.
    To {
        /// The route.
        route: &'c Route,
        /// Its number in [`Config::routes`].
        index: usize,
        /// What its path template captured.
        captures: Captures<'p>,
    },
    /// No route takes it.
    NoRoute,
    /// Which route takes it depends on who reads the path, or a capture may not stand in a lock
    /// key: it is refused as `lock-not-allowed`.
    LockNotAllowed,
}

impl Config {
    /// The route of a request: the first that takes its host and path.
    ///
    /// `host` is the request's authority or `Host` header, its port included or not; `path` is the
    /// path as received, without the query.
    ///
    /// # Contract
    /// As long as any route has a lock, a path that workers may read differently is refused on
    /// every route, the ones in `off` mode included: it might be an unguarded path here and a
    /// guarded one at the worker. See [`PathTemplate::matches`](crate::PathTemplate::matches).
    /// Where the host decides too, so is a path that begins with two slashes, in any spelling: it
    /// is another host's to some. So is one that does without the prefix that its route strips. Without any lock there is nothing to slip past, and every path
    /// goes to the first route that may take it.
    pub fn route<'p>(&self, host: Option<&str>, path: &'p str) -> Routing<'_, 'p> {
        self.routes.first_that_takes(host, path, self.routes.that_may_take(path))
    }

    /// Why [`Config::route`] refuses a path as `lock-not-allowed`: which segment, on which route, and
    /// what to write instead.
    pub fn why_not_allowed(&self, host: Option<&str>, path: &str) -> String {
        self.routes.why_not_allowed(host, path)
    }

    /// Whether the host of a request decides if it is fenced.
    ///
    /// # Contract
    /// Then a request that names no host must be refused: whatever host the worker takes it for, it
    /// may be that of a fence.
    pub fn fences_by_host(&self) -> bool {
        self.routes.fences_by_host
    }
}

impl Routes {
    /// The first of those of these numbers that takes a host and path.
    fn first_that_takes<'p>(
        &self,
        host: Option<&str>,
        path: &'p str,
        numbers: impl IntoIterator<Item = usize>,
    ) -> Routing<'_, 'p> {
        let fenced = self.has_locks;
        if fenced && is_ambiguous(path) || self.fences_by_host && names_a_host(path) {
            return Routing::LockNotAllowed;
        }
        let host = LazyCell::new(|| host.map(without_port));
        for index in numbers {
            let route = &self[index];
            if !route.serves(|| *host) {
                continue;
            }
            if path == "*" && route.takes_options_of_server() {
                return Routing::To { route, index, captures: Captures::default() };
            }
            match route.path.matches_unambiguous(path) {
                PathMatch::No => {}
                PathMatch::Yes(_) if fenced && route.sends_to_a_host(path) => {
                    return Routing::LockNotAllowed;
                }
                PathMatch::Yes(captures) => return Routing::To { route, index, captures },
                PathMatch::BadCapture if fenced => return Routing::LockNotAllowed,
                PathMatch::BadCapture => {
                    return Routing::To { route, index, captures: Captures::default() };
                }
            }
        }
        Routing::NoRoute
    }
}

impl Routes {
    fn why_not_allowed(&self, host: Option<&str>, path: &str) -> String {
        if is_ambiguous(path) {
            let is_ambiguous = |segment: &&str| is_ambiguous(&format!("/{segment}"));
            let segment = path.split('/').find(is_ambiguous).unwrap_or(path);
            return format!(
                "The segment {} of the path can be read in two ways: write the path without \".\" and \"..\", and \"%\" as \"%25\".",
                shown_segment(segment)
            );
        }
        if self.fences_by_host && names_a_host(path) {
            return "The path begins with two slashes, as another host's does: begin it with one."
                .to_owned();
        }
        let host = host.map(without_port);
        let mut taking = self
            .that_may_take(path)
            .map(|index| &self[index])
            .filter(|route| route.serves(|| host));
        let first = taking.find(|route| route.path.matches_unambiguous(path) != PathMatch::No);
        first.map_or_else(String::new, |route| {
            let Route { name, path: template, rewrite, .. } = route;
            let why = match &rewrite.strip_prefix {
                Some(prefix) if route.sends_to_a_host(path) => format!(
                    "Behind {prefix} the path begins with two slashes, as another host's does: begin it with one."
                ),
                _ => template.why_bad(path),
            };
            format!("{why} Route {name:?} takes paths like {:?}.", template.as_str())
        })
    }
}

impl Route {
    /// Whether no request that another route takes gets past this one, if this one is asked first.
    pub fn takes_all_of(&self, other: &Route) -> bool {
        self.takes_all(other.host.as_deref(), &other.path)
    }

    /// Whether no request for these paths, on that host or on any, gets past this route.
    pub(crate) fn takes_all(&self, host: Option<&str>, paths: &PathTemplate) -> bool {
        let same_hosts = self.host.is_none() || self.host.as_deref() == host;
        same_hosts && self.path.covers(paths)
    }

    /// Whether there may be a request that both take. When in doubt, there may.
    pub fn overlaps(&self, other: &Route) -> bool {
        let same_hosts = self.host.is_none() || other.host.is_none() || self.host == other.host;
        same_hosts && self.path.overlaps(&other.path)
    }

    /// Whether it takes `OPTIONS *`, which is about no path, and so under no lock.
    fn takes_options_of_server(&self) -> bool {
        self.mode == Mode::Off && self.path.as_str() == "/"
    }

    /// Whether some workers take what is left of a path without its prefix for one of another host.
    fn sends_to_a_host(&self, path: &str) -> bool {
        let prefix = self.rewrite.strip_prefix.as_ref();
        prefix.and_then(|prefix| prefix.strip(path)).is_some_and(names_a_host)
    }

    fn serves<'h>(&self, host: impl FnOnce() -> Option<&'h str>) -> bool {
        let Some(served) = &self.host else {
            return true;
        };
        host()
            .is_some_and(|host| host.eq_ignore_ascii_case(served) || is_same_address(host, served))
    }
}

/// Whether both are IPv6 addresses, and one: it may be written in many ways.
fn is_same_address(host: &str, other: &str) -> bool {
    let address = |host: &str| host.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    address(host).is_some_and(|one| address(other) == Some(one))
}

/// The host of an authority, without its port and without the dot that an absolute name may end
/// with.
pub(crate) fn without_port(authority: &str) -> &str {
    // An IPv6 address has colons of its own, inside of its brackets. Behind a colon, brackets are
    // none of a host.
    let is_address = authority.starts_with('[');
    let behind_address = authority.find(']').filter(|_| is_address).unwrap_or(0);
    let host = match authority[behind_address..].find(':') {
        Some(colon) => &authority[..behind_address + colon],
        None => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::path_template::PathTemplate;
    use crate::route::tests::any_route;

    const GUARDED: &str = r#"lock = { source = "main", key = "/shards/{shard}/lock" }"#;
    const OFF: &str = r#"mode = "off""#;

    fn config(fence: &str) -> Config {
        let text = format!(
            r#"
            listener = [{{ address = "127.0.0.1:0" }}]
            source.main.kind = "memory"
            [[route]]
            name = "shards"
            path = "/shards/{{shard}}/"
            upstream = "http://127.0.0.1:9000"
            {fence}
            [[route]]
            name = "admin"
            path = "/"
            host = "Admin.example."
            upstream = "http://127.0.0.1:9001"
            mode = "off"
            [[route]]
            name = "files"
            path = "/files/"
            upstream = "http://127.0.0.1:9001"
            mode = "off"
            "#
        );
        Config::from_toml("f.toml", &text).unwrap()
    }

    fn check(config: &Config, host: Option<&str>, path: &str, goes_to: &str) {
        let went_to = match config.route(host, path) {
            Routing::To { route, index, captures } => {
                assert_eq!(config.routes[index].name, route.name);
                let captures: Vec<String> =
                    captures.iter().map(|capture| capture.to_string()).collect();
                format!("{} {}", route.name, captures.join(",")).trim_end().to_owned()
            }
            Routing::NoRoute => "none".to_owned(),
            Routing::LockNotAllowed => "lock-not-allowed".to_owned(),
        };
        assert_eq!(went_to, goes_to, "{host:?} {path}");
    }

    #[test]
    fn the_first_route_that_takes_host_and_path_has_the_request() {
        let config = config(GUARDED);
        check(&config, None, "/shards/2/x", "shards 2");
        check(&config, Some("admin.example"), "/shards/2/x", "shards 2");
        check(&config, None, "/files/x", "files");
        check(&config, None, "/x", "none");
        check(&config, None, "*", "none");
        check(&config, Some("admin.example"), "*", "admin");
        for host in ["admin.example", "ADMIN.example:8080", "admin.example.", "Admin.Example.:80"] {
            check(&config, Some(host), "/x", "admin");
        }
        for host in ["", "admin.example.org", "xadmin.example", "admin.example..", "[::1]:80"] {
            check(&config, Some(host), "/x", "none");
        }
    }

    #[test]
    fn an_address_as_host_is_one_however_it_is_written() {
        let config = config(&format!("host = \"[0:0::1]\"\n{GUARDED}"));
        assert_eq!(config.routes[0].host.as_deref(), Some("[::1]"));
        for host in ["[::1]", "[::0001]:80", "[0:0:0:0:0:0:0:1]", "[::0.0.0.1].:80"] {
            check(&config, Some(host), "/shards/2/x", "shards 2");
        }
        for host in ["[::2]", "::1", "[::1", "[::1]x", "0.0.0.1", ""] {
            check(&config, Some(host), "/shards/2/x", "none");
        }
    }

    #[test]
    fn the_host_decides_where_a_route_with_a_lock_has_one() {
        assert!(!config(GUARDED).fences_by_host(), "the one with a host is off");
        for fence in [GUARDED, "mode = \"shadow\"\nlock = { source = \"main\", key = \"/k\" }"] {
            assert!(config(&format!("host = \"h\"\n{fence}")).fences_by_host());
        }
        assert!(
            !config("host = \"h\"\nmode = \"off\"\nlock = { source = \"main\", key = \"/k\" }")
                .fences_by_host()
        );
    }

    #[test]
    fn where_the_host_decides_no_path_names_another() {
        let off = format!("host = \"h\"\n{OFF}");
        let text = |fence: &str| format!("host = \"h\"\n{fence}");
        for path in ["//h/shards/2/", "/\\h/x", "/%2fh/x"] {
            check(&config(&text(GUARDED)), Some("admin.example"), path, "lock-not-allowed");
            check(&config(&off), Some("admin.example"), path, "admin");
        }
        check(&config(&text(GUARDED)), Some("admin.example"), "/x//h", "admin");
    }

    #[test]
    fn a_host_is_compared_without_its_port() {
        for (authority, host) in [
            ("a", "a"),
            ("a:80", "a"),
            ("a.:80", "a"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]"),
            ("", ""),
            (":80", ""),
            ("a:80[]", "a"),
            ("a:[x]", "a"),
            ("a[:]:80", "a["),
        ] {
            assert_eq!(without_port(authority), host, "{authority}");
        }
    }

    #[test]
    fn beside_a_lock_an_ambiguous_path_is_refused_on_every_route() {
        let config = config(GUARDED);
        let listed = "\
            /files/../shards/2/ | /files/%2e%2e/shards/2/x | /files/% | //shards/2/ | /x/../y | \
            /Shards/2/ | /shards/a%20b/";
        for path in listed.split(" | ") {
            check(&config, None, path, "lock-not-allowed");
        }
        for path in ["/files/a%2fb", "/files//x", "/files/;v=1", "/files/a%20b"] {
            check(&config, None, path, "files");
        }
    }

    #[test]
    fn refused_path_is_told_segment_route_and_spelling() {
        let config = config(&format!("host = \"h\"\n{GUARDED}"));
        for (path, told) in [
            (
                "/files/%2e%2e/x",
                r#"The segment "%2e%2e" of the path can be read in two ways: write the path without "." and"#,
            ),
            ("/files/%", r#"The segment "%" of"#),
            (
                "/shards/a%20b/",
                r#"The segment "a%20b" of the path stands for {shard}: write it with A-Z, a-z"#,
            ),
            (
                "/shards//",
                "has an empty segment: write one slash in place of two. Route \"shards\" takes paths like \"/shards/{shard}/\".",
            ),
            (
                "/Shards/2/",
                r#"The segment "Shards" of the path has to be written "shards". Route "shards" takes"#,
            ),
            (
                "/shards%3bx/2/",
                r#"The segment "shards%3bx" of the path can be read in two ways: write it without slash,"#,
            ),
            ("/\\h/x", "begins with two slashes"),
        ] {
            check(&config, Some("h"), path, "lock-not-allowed");
            let why = config.why_not_allowed(Some("h"), path);
            assert!(why.contains(told), "{path}: {why}");
        }
        let long = format!("/shards/{}%20/", "x".repeat(10_000));
        assert!(config.why_not_allowed(Some("h"), &long).len() < 400);
    }

    #[test]
    fn stripped_path_names_no_host() {
        let stripped = |fence| config(&format!("strip_prefix = \"/shards\"\n{fence}"));
        for path in ["/shards/2/", "/shards/2/x//y", "/%73hards/2/"] {
            check(&stripped(GUARDED), None, path, "shards 2");
        }
        let files = |fence: &str| {
            let text = format!(
                "{fence}\n[[route]]\nname = \"f\"\npath = \"/f/\"\nstrip_prefix = \"/f\"\nupstream = \"http://h:1\"\nmode = \"off\""
            );
            config(&text)
        };
        for path in ["/f//h/x", "/f/%2fh", "/%66/\\h", "/f/%255ch"] {
            check(&files(GUARDED), None, path, "lock-not-allowed");
            let why = files(GUARDED).why_not_allowed(None, path);
            assert!(why.starts_with("Behind /f the path begins with two slashes"), "{why}");
            check(&files(OFF), None, path, "f");
        }
        check(&files(GUARDED), None, "/f/x//h", "f");
    }

    #[test]
    fn without_any_lock_every_path_goes_somewhere() {
        let config = config(OFF);
        check(&config, None, "/files/../x", "files");
        check(&config, None, "/files/%", "files");
        check(&config, None, "/shards/a%20b/", "shards");
        check(&config, None, "/shards/a/", "shards a");
        check(&config, None, "/x", "none");
    }

    #[test]
    fn path_asks_only_routes_with_its_first_segment() {
        let paths = ["/a/x", "/b/", "/A/y", "/{x}/y", "/ä/", "/b/{x}", "/"];
        let route = |path: &str| Route { path: PathTemplate::parse(path).unwrap(), ..any_route() };
        let routes = Routes::new(paths.map(route).to_vec());
        for (path, asked) in [
            ("/a", &[0, 2, 3, 4, 6][..]),
            ("/A/x", &[0, 2, 3, 4, 6]),
            ("/b/c", &[1, 3, 4, 5, 6]),
            ("/ab/", &[3, 4, 6]),
        ] {
            assert_eq!(routes.that_may_take(path).collect::<Vec<_>>(), asked, "{path}");
        }
        let texts = "\
            * | a | / | //a | /%61/ | /a;v=1/ | /\u{212a}/ | /a\\b | /a\0 | ";
        for unclear in texts.split(" | ") {
            assert_eq!(
                routes.that_may_take(unclear).collect::<Vec<_>>(),
                [0, 1, 2, 3, 4, 5, 6],
                "{unclear:?}"
            );
        }
    }

    proptest! {
        /// What is not asked would have said no, in whatever order the routes are.
        #[test]
        fn asked_routes_include_the_one_that_takes_the_path(
            written in vec(
                (
                    "(/(a|A|b|ab|k|K|\u{212a}|\u{17f}|s|ä|Ä|[.]a|[{][xyz][}])){0,3}/?",
                    select(vec![None, None, Some("h"), Some("[::1]")]),
                ),
                1..24,
            ),
            has_locks in any::<bool>(),
            host in select(vec![None, Some("h"), Some("H:80"), Some("[0::1]"), Some("other")]),
            path in "(/|/|/|//|%2f|)((a|A|b|ab|k|K|\u{212a}|\u{17f}|s|S|ä|Ä|[.]a|[.]|%61|%4B|;|%|%00|[.][.]|\\\\| |\u{1})(/|/|/|//|)){0,4}",
        ) {
            let any_route = any_route();
            let mode = if has_locks { any_route.mode.clone() } else { Mode::Off };
            let route = |(path, host): &(String, Option<&str>)| {
                let path = PathTemplate::parse(path).ok()?;
                Some(Route { path, host: host.map(str::to_owned), mode: mode.clone(), ..any_route.clone() })
            };
            let routes = Routes::new(written.iter().filter_map(route).collect());
            let asked: Vec<usize> = routes.that_may_take(&path).collect();
            prop_assert!(asked.is_sorted_by(|one, other| one < other), "{:?}", asked);
            let found = routes.first_that_takes(host, &path, asked.iter().copied());
            prop_assert_eq!(found, routes.first_that_takes(host, &path, 0..routes.len()), "{:?} of {:?}", asked, written);
        }
    }
}
