//! What each path of the admin listener can be asked, and how.

use http::{Method, StatusCode};

use super::answers::{AdminAnswer, not_allowed, text};
use crate::dashboard;

/// The paths, for people.
pub(super) const INDEX: &str = "fencepost admin\n\n\
    GET  /                                   the dashboard; this page with Accept: text/plain\n\
    GET  /livez                              is the process alive?\n\
    GET  /readyz                             is every lock watched and read?\n\
    GET  /metrics                            for Prometheus\n\
    GET  /sources                            how every lock store is, and how many locks it has\n\
    GET  /group                              the other proxies that share the gates\n\
    GET  /locks                              the same, and what is known of every lock\n\
    GET  /locks/{key}                        what is known of one\n\
    GET  /routes                             each route: its mode, its lock, what it counts\n\
    GET  /config                             every setting in force, defaults included\n\
    GET  /decisions                          who was refused, and why; ?route=&lock=&reason=&owner=&mode=&verdict=&forwarded=&client=&id=&since=&limit=\n\
    GET  /timeline                           who held which lock when\n\
    GET  /shadow                             what the routes in shadow mode would have refused; ?format=text\n\
    GET  /log                                what is logged\n\
    POST /log?filter=FILTER                  log by that filter, like info,fencepost=debug\n\
    POST /reload                             read the configuration file again\n\
    POST /locks/{key}/clear-orphans          none of its orphans is running any more\n\
    POST /sources/{name}/accept-regression   go on with a store that went back\n\
    POST /group/members/{id}/forget          that proxy is gone, and nothing of it at the worker\n";

/// Lets a request pass that asks a path for what is there.
///
/// # Errors
/// What to answer to any other.
pub(super) fn check(method: &Method, path: &str) -> Result<(), AdminAnswer> {
    let allowed = methods(path).ok_or_else(not_found)?;
    let is_allowed = allowed.split(", ").any(|one| one == method.as_str());
    if is_allowed { Ok(()) } else { Err(not_allowed(allowed)) }
}

pub(super) fn not_found() -> AdminAnswer {
    text(StatusCode::NOT_FOUND, format!("There is nothing at this path.\n\n{INDEX}"))
}

/// What a parameter is set to.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    parameters
        .find_map(|(found, value)| (found == name && !value.is_empty()).then(|| value.into_owned()))
}

/// The source that an `accept-regression` path names.
pub(super) fn accepted_source(path: &str) -> Option<&str> {
    path.strip_prefix("/sources/")?.strip_suffix("/accept-regression")
}

/// The member that a `forget` path names.
pub(super) fn forgotten_member(path: &str) -> Option<&str> {
    path.strip_prefix("/group/members/")?.strip_suffix("/forget")
}

/// The key of the lock that a `clear-orphans` path names.
pub(super) fn cleared_lock(path: &str) -> Option<&str> {
    path.strip_prefix("/locks/")?.strip_suffix("/clear-orphans")
}

/// The methods that a path takes; `None` if there is nothing.
fn methods(path: &str) -> Option<&'static str> {
    match path {
        "/log" => Some("GET, HEAD, POST"),
        "/reload" => Some("POST"),
        "/" | "/livez" | "/readyz" | "/metrics" | "/decisions" | "/timeline" | "/shadow"
        | "/routes" | "/config" | "/sources" | "/group" | "/locks" => Some("GET, HEAD"),
        _ if accepted_source(path).is_some()
            || cleared_lock(path).is_some()
            || forgotten_member(path).is_some() =>
        {
            Some("POST")
        }
        _ if path.starts_with("/locks/") || dashboard::asset(path).is_some() => Some("GET, HEAD"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of what is not let past, and the methods that it names instead.
    fn check(method: Method, path: &str) -> Option<(u16, String)> {
        let refused = super::check(&method, path).err()?;
        let allowed = refused
            .headers()
            .get(http::header::ALLOW)
            .map(|allowed| allowed.to_str().unwrap().to_owned());
        Some((refused.status().as_u16(), allowed.unwrap_or_default()))
    }

    #[test]
    fn each_path_of_the_index_takes_the_method_that_stands_before_it() {
        let mut seen = 0;
        for line in
            INDEX.lines().filter(|line| line.starts_with("GET ") || line.starts_with("POST "))
        {
            let [method, target] = [0, 1].map(|at| line.split_whitespace().nth(at).unwrap());
            let path = target.split('?').next().unwrap();
            assert_eq!(check(method.parse().unwrap(), path), None, "{line}");
            seen += 1;
        }
        assert!(seen > 15, "{INDEX}");
        for asset in &dashboard::ASSETS {
            assert_eq!(check(Method::HEAD, asset.path), None, "{}", asset.path);
        }
    }

    #[test]
    fn what_a_path_does_not_take_is_told_from_a_path_that_is_none() {
        for (method, path, allowed) in [
            (Method::POST, "/livez", "GET, HEAD"),
            (Method::POST, "/locks", "GET, HEAD"),
            (Method::POST, "/locks/%2Fk", "GET, HEAD"),
            (Method::POST, "/dashboard/app.js", "GET, HEAD"),
            (Method::GET, "/reload", "POST"),
            (Method::GET, "/sources/main/accept-regression", "POST"),
            (Method::DELETE, "/log", "GET, HEAD, POST"),
        ] {
            assert_eq!(check(method, path), Some((405, allowed.to_owned())), "{path}");
        }
        for method in [Method::GET, Method::HEAD, Method::POST, Method::DELETE] {
            for path in ["/nothing", "/sources/main", "/reload/", "/dashboard/"] {
                let found = check(method.clone(), path);
                assert_eq!(found, Some((404, String::new())), "{method} {path}");
            }
        }
    }
}
