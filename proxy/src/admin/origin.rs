//! Who may talk to the admin listener: programs on this machine, and pages that it has served
//! itself.
//!
//! A browser on this machine runs pages of strangers too. They can send requests here, and with a
//! name of their own that resolves to a loopback address (DNS rebinding) they could read the
//! answers. So a request has to name this machine by its address or as `localhost`, and what
//! changes something must not come from another page. By TLS, the certificate already tells a
//! browser which name is ours.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Method, Request};

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Foreign {
    /// It names another host.
    #[error(
        "the Host header has to be an IP address or localhost: by another name, a page of strangers could read this"
    )]
    Host,
    /// It comes from another page.
    #[error("a page of another origin cannot change anything here")]
    Origin,
}

/// Lets a request pass, unless a page of strangers may be behind it.
///
/// # Errors
/// What is foreign about it.
pub(super) fn check<B>(request: &Request<B>, by_tls: bool) -> Result<(), Foreign> {
    let headers = request.headers();
    let host = request
        .uri()
        .authority()
        .map(|authority| authority.as_str())
        .or_else(|| text(headers, HOST));
    // HTTP/1.0 without a host is no browser.
    if !by_tls && host.is_some_and(|host| !is_here(host)) {
        return Err(Foreign::Host);
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let same_site =
        text(headers, "sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none"));
    let own = text(headers, ORIGIN).is_none_or(|origin| {
        let origin_host = origin.split_once("://").map(|(_, host)| host);
        origin_host.is_some() && origin_host == host
    });
    if same_site && own { Ok(()) } else { Err(Foreign::Origin) }
}

fn text(headers: &HeaderMap, name: impl http::header::AsHeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or(""))
}

/// Whether that host, with or without a port, is a name that nobody else can give to this machine.
fn is_here(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            return rest
                .split_once(']')
                .is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
        }
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(method: &str, headers: &[(&str, &str)]) -> Result<(), Foreign> {
        let request = headers
            .iter()
            .fold(Request::builder().method(method).uri("/locks"), |request, (name, value)| {
                request.header(*name, *value)
            });
        check(&request.body(()).unwrap(), false)
    }

    #[test]
    fn this_machine_is_named_by_its_address_or_as_localhost() {
        for host in [
            "127.0.0.1:9901",
            "127.0.0.1",
            "localhost:9901",
            "LOCALHOST",
            "[::1]:9901",
            "[::1]",
            "10.1.2.3:80",
        ] {
            assert_eq!(checked("GET", &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:9901",
            "127.0.0.1.evil.example",
            "",
            "[evil]",
            "ü",
        ] {
            assert_eq!(checked("GET", &[("host", host)]), Err(Foreign::Host), "{host}");
        }
        assert_eq!(checked("GET", &[]), Ok(()));
    }

    #[test]
    fn by_tls_any_name_that_the_certificate_has_will_do() {
        let request = |method: &str, origin: &str| {
            let request =
                Request::builder().method(method).uri("/log").header("host", "admin.example:9901");
            check(&request.header("origin", origin).body(()).unwrap(), true)
        };
        assert_eq!(request("GET", "https://admin.example:9901"), Ok(()));
        assert_eq!(request("POST", "https://admin.example:9901"), Ok(()));
        assert_eq!(request("POST", "https://evil.example"), Err(Foreign::Origin));
    }

    #[test]
    fn nothing_is_changed_for_a_page_of_another_origin() {
        let post = |more: &[(&str, &str)]| {
            checked("POST", &[&[("host", "127.0.0.1:9901")], more].concat())
        };
        assert_eq!(post(&[]), Ok(()));
        assert_eq!(
            post(&[("origin", "http://127.0.0.1:9901"), ("sec-fetch-site", "same-origin")]),
            Ok(())
        );
        for foreign in [
            &[("origin", "http://evil.example")][..],
            &[("origin", "http://127.0.0.1:9902")],
            &[("origin", "null")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "cross-site"), ("origin", "http://127.0.0.1:9901")],
        ] {
            assert_eq!(post(foreign), Err(Foreign::Origin), "{foreign:?}");
        }
        assert_eq!(
            checked("GET", &[("host", "127.0.0.1:1"), ("sec-fetch-site", "cross-site")]),
            Ok(()),
            "a link"
        );
    }
}
