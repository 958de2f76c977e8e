//! The head of a request as the worker gets it.

use std::net::Ipv6Addr;

use bytes::{BufMut, BytesMut};
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::uri::{PathAndQuery, Uri};
use http::{Method, Request, Version};

use super::fields::{self, KeptFields};
use super::origin::Origin;
use super::request_body::RequestBody;
use super::request_form::{CHUNKED, is_chunked};
use super::target::Upstream;
use crate::server::{Connection, Protocol};

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// A request that a worker could read in another way than we do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHead {
    /// What it asks for is no resource, or it names no host, no valid one, or two.
    #[error("the request's target names no resource, or its host is not the one that it names")]
    Target,
    /// It says its length twice, as only HTTP/2 lets it.
    #[error("the request has two lengths")]
    TwoLengths,
}

/// Makes the worker's request from the client's, in the form that HTTP/1.1 has for it.
///
/// Drops fields that concern only the client's connection, and fields named like fencing unless
/// `kept` has them. Sets the framing anew from `body`. Passes on `Upgrade: websocket` from HTTP/1.1
/// to a worker that may speak HTTP/1.1. Forwards any other request to upgrade without its upgrade.
///
/// # Errors
///
/// If the request has one of these:
///
/// - a target that is not one of a resource, such as that of CONNECT
/// - a host that is missing (except over HTTP/1.0), invalid, or given twice
/// - a target that names another host than `Host`
/// - an empty host, if the worker may speak HTTP/2
/// - two lengths
pub fn outgoing_request(
    mut head: Parts,
    body: RequestBody,
    client: &Connection,
    upstream: &Upstream,
    kept: &KeptFields,
) -> Result<Box<Request<RequestBody>>, InvalidHead> {
    let headers = &mut head.headers;
    if headers.get_all(header::CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(InvalidHead::TwoLengths);
    }
    let may_switch = head.version == Version::HTTP_11 && upstream.may_speak(Protocol::Http1);
    // What has a body, if only an empty one in chunks, opens none.
    let may_switch = may_switch && !headers.contains_key(header::TRANSFER_ENCODING);
    let opens_websocket = may_switch && opens_websocket(&head.method, headers, &body);
    // Before anything is removed that says of it.
    let origin = Origin::of(client, headers);
    let takes_trailers = fields::has_token(headers, &header::TE, b"trailers");
    fields::remove_hop_by_hop(headers, kept);
    if opens_websocket {
        headers.insert(header::CONNECTION, UPGRADE);
        headers.insert(header::UPGRADE, WEBSOCKET);
    }
    headers.remove(header::TE);
    if takes_trailers {
        headers.insert(header::TE, TRAILERS);
    }
    // We answer the expectation ourselves, by reading the body. Other expectations were refused.
    headers.remove(header::EXPECT);
    frame_anew(&head.method, headers, &body);
    if client.protocol() == Protocol::Http2 {
        join_cookies(headers);
    }
    headers.append(header::VIA, received_by(head.version, client.protocol()));
    let host = settle_host(headers, &head.uri, head.version, upstream)?;
    origin.tell(headers, client, host, kept);
    head.uri = without_authority(head.uri, head.version)?;
    head.version = Version::HTTP_11;
    Ok(Box::write(Box::new_uninit(), Request::from_parts(head, body)))
}

fn opens_websocket(method: &Method, headers: &HeaderMap, body: &RequestBody) -> bool {
    *method == Method::GET
        && matches!(body, RequestBody::Empty)
        && fields::has_token(headers, &header::CONNECTION, b"upgrade")
        && names_websocket(headers)
}

/// Whether `Upgrade` has the one protocol that is passed on.
pub(crate) fn names_websocket(headers: &HeaderMap) -> bool {
    fields::has_token(headers, &header::UPGRADE, b"websocket")
}

/// Leaves the framing to the body. hyper keeps a `Content-Length` that precedes `Transfer-Encoding`
/// in its map, so what the client's framing said must not stay beside the new one.
fn frame_anew(method: &Method, headers: &mut HeaderMap, body: &RequestBody) {
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::TRANSFER_ENCODING);
    let announces_empty = [Method::POST, Method::PUT, Method::PATCH].contains(method);
    if is_chunked(body) {
        headers.insert(header::TRANSFER_ENCODING, CHUNKED);
    } else if announces_empty && matches!(body, RequestBody::Empty) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
}

fn received_by(version: Version, protocol: Protocol) -> HeaderValue {
    match protocol {
        Protocol::Http1 if version == Version::HTTP_10 => HeaderValue::from_static("1.0 fencepost"),
        Protocol::Http1 => HeaderValue::from_static("1.1 fencepost"),
        Protocol::Http2 => HeaderValue::from_static("2 fencepost"),
    }
}

/// HTTP/2 may send one cookie per field; HTTP/1.1 has one field (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(header::COOKIE).iter();
    let Some(first) = crumbs.next() else { return };
    let mut joined = BytesMut::from(first.as_bytes());
    for crumb in crumbs {
        joined.put_slice(b"; ");
        joined.put_slice(crumb.as_bytes());
    }
    if let Ok(joined) = HeaderValue::from_maybe_shared(joined.freeze()) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Looks at the host that a request is for, which is named once: what is forwarded is looked at in
/// this way anyhow.
///
/// # Errors
///
/// If it names none, though not over HTTP/1.0, no valid one, or two.
pub fn check_host(headers: &HeaderMap, uri: &Uri, version: Version) -> Result<(), InvalidHead> {
    named_hosts(headers, uri, version).map(drop)
}

/// The host that the target names, and the one of the field. A target that names another host than
/// the field is refused: who stands before us may have gone by the one, and the worker may go by
/// the other.
fn named_hosts<'r>(
    headers: &'r HeaderMap,
    uri: &'r Uri,
    version: Version,
) -> Result<(Option<&'r [u8]>, Option<&'r HeaderValue>), InvalidHead> {
    let wants_field = match version {
        Version::HTTP_10 => false,
        Version::HTTP_11 => true,
        _ => uri.authority().is_none(),
    };
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => return Err(InvalidHead::Target),
        (None, _) if wants_field => return Err(InvalidHead::Target),
        (host, None) | (host @ None, Some(_)) => host,
    };
    let named = uri.authority().map(|authority| authority.as_str().as_bytes());
    if let (Some(named), Some(host)) = (named, host)
        && !named.eq_ignore_ascii_case(host.as_bytes())
    {
        return Err(InvalidHead::Target);
    }
    let is_valid = named.or_else(|| host.map(HeaderValue::as_bytes)).is_none_or(is_host);
    if is_valid { Ok((named, host)) } else { Err(InvalidHead::Target) }
}

/// Sees to it that there is one `Host`, and returns what the client said. Who says nothing, over
/// HTTP/1.0, means the worker's.
fn settle_host(
    headers: &mut HeaderMap,
    uri: &Uri,
    version: Version,
    upstream: &Upstream,
) -> Result<Option<HeaderValue>, InvalidHead> {
    let (said, stands_there) = match named_hosts(headers, uri, version)? {
        (Some(named), _) => {
            (Some(HeaderValue::from_bytes(named).map_err(|_| InvalidHead::Target)?), false)
        }
        (None, host) => (host.cloned(), host.is_some()),
    };
    if said.as_ref().is_some_and(HeaderValue::is_empty) && upstream.may_speak(Protocol::Http2) {
        return Err(InvalidHead::Target);
    }
    if !stands_there {
        headers.insert(header::HOST, said.as_ref().unwrap_or(&upstream.authority).clone());
    }
    Ok(said)
}

/// Whether these bytes are a host and perhaps a port, or nothing: a name as a route's `host` may
/// be, an IPv4 address, or an IPv6 address in brackets. Wherever a worker looks for the port then,
/// it finds the host that the route was found by.
fn is_host(authority: &[u8]) -> bool {
    let Ok(authority) = str::from_utf8(authority) else { return false };
    let (is_host, port) = match authority.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((address, port))) => (address.parse::<Ipv6Addr>().is_ok(), port),
        Some(None) => return false,
        None => {
            let (name, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            (is_name(name), port)
        }
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    is_host && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// Whether that is a name, an IPv4 address, or nothing.
///
/// RFC 3986 (section 3.2.2) allows more in a name, such as `,` and `;`. DNS has no host names with
/// it (RFC 1123, section 2.1), except for `_`, which is in use. A server that reads a list there
/// would read another host.
///
/// A name with an empty label (`a..b`) is invalid, because some servers would read a shorter name.
/// The dot that ends an absolute name is valid.
fn is_name(name: &str) -> bool {
    let mut before = b'.';
    name.bytes().all(|byte| {
        let is_empty_label = byte == b'.' && before == b'.';
        before = byte;
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') && !is_empty_label
    })
}

/// The path alone. A URL may have none, which is `/` then (RFC 9112, section 3.2.1). An HTTP/2
/// request says its path apart, and has to say one (RFC 9113, section 8.3.1).
fn without_authority(uri: Uri, version: Version) -> Result<Uri, InvalidHead> {
    // A target of the authority form has no path; CONNECT is its only user.
    let target = uri.path_and_query().ok_or(InvalidHead::Target)?.as_str();
    let has_path = target.starts_with('/') || target == "*";
    if !has_path && version == Version::HTTP_2 {
        return Err(InvalidHead::Target);
    }
    if uri.authority().is_none() && uri.scheme().is_none() {
        return Ok(uri);
    }
    let behind_slash = (!has_path).then(|| PathAndQuery::from_maybe_shared(format!("/{target}")));
    let mut parts = uri.into_parts();
    if let Some(path) = behind_slash {
        parts.path_and_query = Some(path.map_err(|_| InvalidHead::Target)?);
    }
    parts.scheme = None;
    parts.authority = None;
    Uri::from_parts(parts).map_err(|_| InvalidHead::Target)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fencepost_config::{Config, Routing};
    use http::uri::Authority;

    use super::*;

    /// Has a look at all texts of these bytes that are no more than so long.
    fn each_of(alphabet: &[u8], length_max: usize, look: &mut impl FnMut(&str)) {
        fn behind(
            text: &mut String,
            alphabet: &[u8],
            length_max: usize,
            look: &mut impl FnMut(&str),
        ) {
            look(text);
            if text.len() < length_max {
                for byte in alphabet {
                    text.push(char::from(*byte));
                    behind(text, alphabet, length_max, look);
                    text.pop();
                }
            }
        }
        behind(&mut String::new(), alphabet, length_max, look);
    }

    #[test]
    fn whatever_is_a_host_is_one_for_the_library_too() {
        let mut hosts = 0;
        each_of(b"aZ0-._:[]@%,", 5, &mut |text| {
            if is_host(text.as_bytes()) {
                assert!(text.is_empty() || Authority::try_from(text).is_ok(), "{text:?}");
                hosts += 1;
            }
        });
        assert!(hosts > 5_u32.pow(5), "names of five letters among them");
    }

    #[test]
    fn a_host_has_no_empty_label_but_behind_its_last_dot_and_brackets_around_an_address_alone() {
        each_of(b"a_.:[],", 6, &mut |text| {
            let host = text.strip_suffix(':').unwrap_or(text);
            let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let labels: Vec<&str> = host.split('.').collect();
            let is_named = labels.iter().rev().skip(1).all(|label| !label.is_empty());
            let is_name = is_named && !host.contains([':', '[', ']', ',']);
            let expected =
                is_name || address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
            assert_eq!(is_host(text.as_bytes()), expected, "{text:?}");
        });
    }

    #[test]
    fn a_host_is_of_bytes_that_the_host_of_a_route_may_have_and_a_port_is_of_digits() {
        for byte in 0..=u8::MAX {
            let may_stand = byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            assert_eq!(is_host(&[b'a', byte, b'b']), may_stand, "{:?}", char::from(byte));
            assert_eq!(
                is_host(&[b'a', b':', byte]),
                byte.is_ascii_digit(),
                "{:?}",
                char::from(byte)
            );
        }
    }

    /// `Host: a:80[]` went past the route of `a`, to a worker that took what stands before the
    /// colon for the host.
    #[test]
    fn a_route_is_found_by_what_stands_before_the_port() {
        let route = |name: &str, host: &str| {
            format!(
                "[[route]]\nname = {name:?}\npath = \"/\"\nupstream = \"http://h:1\"\nmode = \"off\"\n{host}\n"
            )
        };
        let routes =
            [route("a", "host = \"a\""), route("address", "host = \"[::1]\""), route("rest", "")]
                .concat();
        let config = Config::from_toml(
            "f.toml",
            &format!("listener = [{{ address = \"127.0.0.1:0\" }}]\n{routes}"),
        );
        let config = config.unwrap();
        let mut found = BTreeSet::new();
        each_of(b"a1.:[],", 6, &mut |text| {
            if !is_host(text.as_bytes()) {
                return;
            }
            let expected = match text.split(':').next() {
                Some("a" | "a.") => "a",
                _ if text.starts_with("[::1]") => "address",
                _ => "rest",
            };
            let Routing::To { route, .. } = config.route(Some(text), "/") else {
                panic!("nobody takes {text:?}")
            };
            assert_eq!(route.name, expected, "{text:?}");
            found.insert(expected);
        });
        assert_eq!(found.len(), 3);
    }
}
