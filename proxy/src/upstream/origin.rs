//! Where a request comes from: reads what trusted proxies say of its client, and tells the worker.
//! Looks at no connection's own bytes: the PROXY protocol is the server side's.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{BufMut, BytesMut};
use fencepost_config::{ForwardedFields, Proxies};
use http::header::{Entry, FORWARDED, HeaderMap, HeaderName, HeaderValue};

use super::fields::KeptFields;
use crate::server::{ClientAddress, Connection};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HTTP: HeaderValue = HeaderValue::from_static("http");
const HTTPS: HeaderValue = HeaderValue::from_static("https");

/// A request's client, its scheme and its host.
pub struct Origin {
    /// Where the request comes from.
    pub client: ClientAddress,
    is_https: bool,
    /// `None`: the request's own.
    host: Option<HeaderValue>,
}

/// What one proxy says of whom it has the request from.
#[derive(Default)]
struct Hop<'h> {
    client: &'h str,
    scheme: Option<&'h str>,
    host: Option<&'h str>,
}

impl Origin {
    /// What the request's connection shows, and, if it is a trusted proxy's, what that proxy and
    /// those before it say.
    ///
    /// The walk begins at the last proxy. It ends at the first client that is no trusted proxy, or
    /// has no address. What is said nearest to that client counts.
    pub fn of(connection: &Connection, headers: &HeaderMap) -> Origin {
        let mut origin =
            Origin { client: connection.address(), is_https: connection.is_tls(), host: None };
        if let Some(proxies) = connection.proxies().filter(|_| connection.is_trusted()) {
            match proxies.forwarded {
                ForwardedFields::XForwarded => {
                    let [clients, schemes, hosts] =
                        [X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST]
                            .map(|name| lines(headers, &name));
                    origin.follow(proxies, hops_of_lists([&clients, &schemes, &hosts]));
                }
                ForwardedFields::Rfc7239 => {
                    let elements = lines(headers, &FORWARDED);
                    origin.follow(proxies, split(&elements, ',').rev().map(Hop::of_element));
                }
            }
        }
        origin
    }

    fn follow<'h>(&mut self, proxies: &Proxies, hops: impl Iterator<Item = Hop<'h>>) {
        for hop in hops {
            self.is_https = hop.scheme.and_then(is_https).unwrap_or(self.is_https);
            self.host = hop.host.and_then(host).or(self.host.take());
            let Some(address) = address(hop.client) else { return };
            self.client = ClientAddress::Named(address);
            if !proxies.trusts(address) {
                return;
            }
        }
    }

    /// Tells the worker. `host` is what the client said; without one over HTTP/1.0.
    ///
    /// What a trusted proxy said stays, and the connection's address is added. On a listener with
    /// trusted proxies, nothing of that kind is left of anybody else.
    pub(super) fn tell(
        self,
        headers: &mut HeaderMap,
        connection: &Connection,
        host: Option<HeaderValue>,
        kept: &KeptFields,
    ) {
        let family =
            connection.proxies().map_or(ForwardedFields::XForwarded, |proxies| proxies.forwarded);
        if connection.proxies().is_some() {
            remove_others(headers, connection.is_trusted().then_some(family));
        }
        // A request is judged by its own host, where locks depend on it.
        let host = if kept.has_one_host() { host } else { self.host.or(host) };
        let address = connection.forwarded_for();
        match family {
            ForwardedFields::XForwarded => {
                if let Some(address) = address {
                    append(headers, X_FORWARDED_FOR, address);
                }
                headers.insert(X_FORWARDED_PROTO, if self.is_https { HTTPS } else { HTTP });
                match host {
                    Some(host) => headers.insert(X_FORWARDED_HOST, host),
                    None => headers.remove(X_FORWARDED_HOST),
                };
            }
            ForwardedFields::Rfc7239 => {
                let address = address.and_then(|address| address.to_str().ok());
                let client = match address.unwrap_or("unknown") {
                    address if address.contains(':') => format!("\"[{address}]\""),
                    address => address.to_owned(),
                };
                let scheme = if self.is_https { "https" } else { "http" };
                let host = host.as_ref().and_then(|host| host.to_str().ok());
                let host = host.map_or(String::new(), |host| format!(";host=\"{host}\""));
                let element = format!("for={client}{host};proto={scheme}");
                let element = HeaderValue::try_from(element).expect("a host is visible ASCII");
                remove_open_quotes(headers);
                append(headers, FORWARDED, &element);
            }
        }
    }
}

impl<'h> Hop<'h> {
    /// Of an element of `Forwarded`.
    fn of_element(element: &'h str) -> Hop<'h> {
        let mut hop = Hop::default();
        for (name, value) in split(element, ';').filter_map(|pair| pair.split_once('=')) {
            let value = value.trim();
            let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            let value = quoted.unwrap_or(value);
            match name.trim() {
                name if name.eq_ignore_ascii_case("for") => hop.client = value,
                name if name.eq_ignore_ascii_case("proto") => hop.scheme = Some(value),
                name if name.eq_ignore_ascii_case("host") => hop.host = Some(value),
                _ => {}
            }
        }
        hop
    }
}

/// The last proxy's first. A proxy may pass on scheme and host as it got them, so that their lists
/// are shorter than that of the clients.
fn hops_of_lists<'h>(lists: [&'h str; 3]) -> impl Iterator<Item = Hop<'h>> {
    let [clients, schemes, hosts] = lists.map(|list| list.rsplit([',', '\n']).collect::<Vec<_>>());
    (0..clients.len()).map(move |hop| Hop {
        client: clients[hop].trim(),
        scheme: schemes.get(hop).or(schemes.last()).copied(),
        host: hosts.get(hop).or(hosts.last()).copied(),
    })
}

/// All fields of a name, one to a line.
fn lines<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Cow<'h, str> {
    let mut lines =
        headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
    let first = lines.next().unwrap_or_default();
    lines.fold(first, |all, line| Cow::Owned(format!("{all}\n{line}")))
}

/// What is between the separators that stand in no quotes. A line ends all quotes.
fn split(text: &str, separator: char) -> std::vec::IntoIter<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let is_end = |letter: char| {
        let is_literal = std::mem::take(&mut is_escaped);
        match letter {
            '\n' => {
                is_quoted = false;
                return true;
            }
            '"' if !is_literal => is_quoted = !is_quoted,
            '\\' if is_quoted && !is_literal => is_escaped = true,
            _ => {}
        }
        letter == separator && !is_quoted
    };
    text.split(is_end).collect::<Vec<_>>().into_iter()
}

/// The address of a client, with or without a port. `None` of `unknown`, of a name that hides an
/// address (`_a`), and of what is neither.
fn address(client: &str) -> Option<IpAddr> {
    let is_port = |port: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        port.len() > 1 && port.starts_with(':') && port.bytes().skip(1).all(is_part)
    };
    let (address, port) = match client.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            (IpAddr::V6(address.parse::<Ipv6Addr>().ok()?), port)
        }
        None => match client.parse::<IpAddr>() {
            Ok(address) => (address, ""),
            Err(_) => {
                let (address, port) = client.split_at(client.find(':')?);
                (IpAddr::V4(address.parse::<Ipv4Addr>().ok()?), port)
            }
        },
    };
    (port.is_empty() || is_port(port)).then(|| address.to_canonical())
}

fn is_https(scheme: &str) -> Option<bool> {
    let scheme = scheme.trim();
    let is = |names: [&str; 2]| names.iter().any(|name| scheme.eq_ignore_ascii_case(name));
    if is(["https", "wss"]) { Some(true) } else { is(["http", "ws"]).then_some(false) }
}

/// A host and perhaps a port; `None` of what could be read as more.
fn host(host: &str) -> Option<HeaderValue> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    let host = host.trim();
    let is_host = !host.is_empty() && host.bytes().all(is_part);
    HeaderValue::from_str(host).ok().filter(|_| is_host)
}

/// Removes what names a client, a scheme or a host, but for the fields of a family that is
/// believed.
fn remove_others(headers: &mut HeaderMap, believed: Option<ForwardedFields>) {
    let of = |name: &HeaderName| match name.as_str() {
        "forwarded" => Some(ForwardedFields::Rfc7239),
        name if name.starts_with("x-forwarded") || name.starts_with("x_forwarded") => {
            Some(ForwardedFields::XForwarded)
        }
        _ => None,
    };
    let is_other = |name: &&HeaderName| of(name).is_some_and(|family| Some(family) != believed);
    let others: Vec<HeaderName> = headers.keys().filter(is_other).cloned().collect();
    for name in others {
        headers.remove(name);
    }
}

/// Removes lines of `Forwarded` whose quotes do not end: joined with the lines behind them, they
/// would hide those from the worker.
fn remove_open_quotes(headers: &mut HeaderMap) {
    let is_open = |line: &HeaderValue| {
        let mut is_literal = false;
        line.as_bytes().iter().fold(false, |is_quoted, byte| {
            let was_literal = std::mem::replace(&mut is_literal, false);
            is_literal = is_quoted && !was_literal && *byte == b'\\';
            is_quoted != (*byte == b'"' && !was_literal)
        })
    };
    if headers.get_all(FORWARDED).iter().any(is_open) {
        let lines: Vec<HeaderValue> =
            headers.get_all(FORWARDED).iter().filter(|line| !is_open(line)).cloned().collect();
        headers.remove(FORWARDED);
        lines.into_iter().for_each(|line| _ = headers.append(FORWARDED, line));
    }
}

/// Adds a value to the list that a field is, and makes one field of it.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(none) => _ = none.insert(value.clone()),
        Entry::Occupied(mut earlier) => {
            let mut joined = BytesMut::new();
            for earlier in earlier.iter().filter(|earlier| !earlier.is_empty()) {
                joined.put_slice(earlier.as_bytes());
                joined.put_slice(b", ");
            }
            joined.put_slice(value.as_bytes());
            let joined = HeaderValue::from_maybe_shared(joined.freeze());
            earlier.insert(joined.unwrap_or_else(|_| value.clone()));
        }
    }
}
