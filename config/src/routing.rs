//! Finds the route of a request.

use std::cell::LazyCell;
use std::net::Ipv6Addr;

use crate::captures::Captures;
use crate::config::Config;
use crate::path_template::PathMatch;
use crate::percent::is_ambiguous;
use crate::route::Route;

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
    /// Which route takes it depends on who reads the path, or a capture may not stand in a lock key: it is refused
    /// as `lock-not-allowed`.
    LockNotAllowed,
}

impl Config {
    /// The route of a request: the first that takes its host and path.
    ///
    /// `host` is the request's authority or `Host` header, its port included or not; `path` is the path as received,
    /// without the query.
    ///
    /// # Contract
    /// As long as any route has a lock, a path that workers may read differently is refused on every route, the ones
    /// in `off` mode included: it might be an unguarded path here and a guarded one at the worker. See
    /// [`PathTemplate::matches`](crate::PathTemplate::matches). Without any lock there is nothing to slip past, and
    /// every path goes to the first route that may take it.
    pub fn route<'p>(&self, host: Option<&str>, path: &'p str) -> Routing<'_, 'p> {
        let fenced = self.routes.iter().any(|route| route.mode.lock().is_some());
        if fenced && is_ambiguous(path) {
            return Routing::LockNotAllowed;
        }
        let host = LazyCell::new(|| host.map(without_port));
        for (index, route) in self.routes.iter().enumerate().filter(|(_, route)| route.serves(|| *host)) {
            match route.path.matches_unambiguous(path) {
                PathMatch::No => {}
                PathMatch::Yes(captures) => return Routing::To { route, index, captures },
                PathMatch::BadCapture if fenced => return Routing::LockNotAllowed,
                PathMatch::BadCapture => return Routing::To { route, index, captures: Captures::default() },
            }
        }
        Routing::NoRoute
    }

    /// Whether the host of a request decides if it is fenced.
    ///
    /// # Contract
    /// Then a request that names no host must be refused: whatever host the worker takes it for, it may be that of a fence.
    pub fn fences_by_host(&self) -> bool {
        self.routes.iter().any(|route| route.host.is_some() && route.mode.lock().is_some())
    }
}

impl Route {
    /// Whether no request that another route takes gets past this one, if this one is asked first.
    pub fn takes_all_of(&self, other: &Route) -> bool {
        let same_hosts = self.host.is_none() || self.host == other.host;
        same_hosts && self.path.covers(&other.path)
    }

    /// Whether there may be a request that both take. When in doubt, there may.
    pub fn overlaps(&self, other: &Route) -> bool {
        let same_hosts = self.host.is_none() || other.host.is_none() || self.host == other.host;
        same_hosts && self.path.overlaps(&other.path)
    }

    fn serves<'h>(&self, host: impl FnOnce() -> Option<&'h str>) -> bool {
        let Some(served) = &self.host else {
            return true;
        };
        host().is_some_and(|host| host.eq_ignore_ascii_case(served) || is_same_address(host, served))
    }
}

/// Whether both are IPv6 addresses, and one: it may be written in many ways.
fn is_same_address(host: &str, other: &str) -> bool {
    let address = |host: &str| host.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    address(host).is_some_and(|one| address(other) == Some(one))
}

/// The host of an authority, without its port and without the dot that an absolute name may end with.
fn without_port(authority: &str) -> &str {
    // An IPv6 address has colons of its own, inside of its brackets.
    let behind_brackets = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    let host = match authority[behind_brackets..].find(':') {
        Some(colon) => &authority[..behind_brackets + colon],
        None => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let captures: Vec<String> = captures.iter().map(|capture| capture.to_string()).collect();
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
        assert!(!config("host = \"h\"\nmode = \"off\"\nlock = { source = \"main\", key = \"/k\" }").fences_by_host());
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
        ] {
            assert_eq!(without_port(authority), host, "{authority}");
        }
    }

    #[test]
    fn beside_a_lock_an_ambiguous_path_is_refused_on_every_route() {
        let config = config(GUARDED);
        for path in [
            "/files/../shards/2/",
            "/files/%2e%2e/shards/2/x",
            "/files/%",
            "//shards/2/",
            "/x/../y",
            "/Shards/2/",
            "/shards/a%20b/",
        ] {
            check(&config, None, path, "lock-not-allowed");
        }
        for path in ["/files/a%2fb", "/files//x", "/files/;v=1", "/files/a%20b"] {
            check(&config, None, path, "files");
        }
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
}
