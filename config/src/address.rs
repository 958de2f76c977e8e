//! Where the proxy listens and where it connects.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use crate::tls::ClientTls;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address and a port; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A unix socket at this absolute path.
    Unix(PathBuf),
    /// The sockets that systemd passes under this name (`FileDescriptorName=`).
    Systemd(String),
}

impl Address {
    /// Reads `127.0.0.1:8080`, `[::1]:8080`, `unix:/path` or `systemd:NAME`. Host names are refused: what they mean may change.
    pub(crate) fn parse(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Address::Unix);
        }
        if let Some(name) = text.strip_prefix("systemd:") {
            return socket_name(name).map(Address::Systemd);
        }
        let wrong = || format!(r#"must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME", not {text:?}"#);
        text.parse().map(Address::Tcp).map_err(|_| wrong())
    }

    /// Whether two sockets on these addresses would meet. Two ports that the system chooses never do.
    pub(crate) fn collides(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Tcp(one), Address::Tcp(other)) => {
                let same = shares_hosts(one.ip(), other.ip()) && !are_on_two_links(one, other);
                one.port() == other.port() && one.port() != 0 && same
            }
            (Address::Unix(_) | Address::Systemd(_), _) | (Address::Tcp(_), _) => self == other,
        }
    }
}

/// Whether a socket on each of two addresses would take connections to the same one: `0.0.0.0` takes those to any of version 4, `[::]`
/// those to any, and `[::ffff:a.b.c.d]` is `a.b.c.d`.
fn shares_hosts(one: IpAddr, other: IpAddr) -> bool {
    let takes = |wide: IpAddr, narrow: IpAddr| match wide {
        IpAddr::V4(wide) => wide.is_unspecified() && narrow.is_ipv4(),
        IpAddr::V6(wide) => wide.is_unspecified(),
    };
    let (one, other) = (one.to_canonical(), other.to_canonical());
    one == other || takes(one, other) || takes(other, one)
}

/// Whether both are addresses of a link, of two different ones: each link may have the same (RFC 4007).
fn are_on_two_links(one: &SocketAddr, other: &SocketAddr) -> bool {
    let link = |address: &SocketAddr| match address {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() => Some(address.scope_id()),
        SocketAddr::V6(_) | SocketAddr::V4(_) => None,
    };
    link(one).zip(link(other)).is_some_and(|(one, other)| one != other)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Systemd(name) => write!(f, "systemd:{name}"),
        }
    }
}

/// Reads the name of a socket: as systemd has it (sd_listen_fds(3)), but without what has to be quoted.
fn socket_name(name: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@".contains(&byte);
    if !(1..=255).contains(&name.len()) || !name.bytes().all(is_part) {
        return Err(format!(
            r#"must be "systemd:" and the FileDescriptorName= of a socket unit, 1 to 255 of A-Z, a-z, 0-9, _, -, . and @, not {name:?}"#
        ));
    }
    Ok(name.to_owned())
}

/// The worker that a route forwards to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// Where it listens.
    pub address: UpstreamAddress,
    /// What it speaks.
    pub protocol: UpstreamProtocol,
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            UpstreamProtocol::Http1 => Scheme::Http,
            UpstreamProtocol::H2c => Scheme::H2c,
            UpstreamProtocol::Tls(_) => Scheme::Https,
        };
        match &self.address {
            UpstreamAddress::Tcp(address) => write!(f, "{}://{address}", scheme.over_tcp()),
            UpstreamAddress::Unix(path) => write!(f, "{}:{}", scheme.over_unix(), path.display()),
        }
    }
}

/// Where a worker listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UpstreamAddress {
    /// A host and a port.
    Tcp(HostPort),
    /// A unix socket at this absolute path.
    Unix(PathBuf),
}

impl UpstreamAddress {
    /// Whether connections to it come in at that address on this machine, as far as can be told without asking anybody.
    pub(crate) fn leads_to(&self, listener: &Address) -> bool {
        match (self, listener) {
            (UpstreamAddress::Unix(path), Address::Unix(own)) => path == own,
            (UpstreamAddress::Tcp(HostPort { host, port }), Address::Tcp(own)) => {
                let hosts: Vec<IpAddr> = match host.parse::<IpAddr>() {
                    // Whoever connects to "any address" gets to this machine.
                    Ok(IpAddr::V4(any)) if any.is_unspecified() => vec![Ipv4Addr::LOCALHOST.into()],
                    Ok(IpAddr::V6(any)) if any.is_unspecified() => vec![Ipv6Addr::LOCALHOST.into()],
                    Ok(host) => vec![host.to_canonical()],
                    Err(_) if host == "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
                    Err(_) => Vec::new(),
                };
                // Of a listener on all addresses it is not known which these are, but for loopback.
                let is_known = |host: &IpAddr| host.is_loopback() || !own.ip().to_canonical().is_unspecified();
                let same = |host: &IpAddr| Address::Tcp(SocketAddr::new(*host, *port)).collides(listener);
                hosts.iter().any(|host| is_known(host) && same(host))
            }
            (UpstreamAddress::Tcp(_) | UpstreamAddress::Unix(_), _) => false,
        }
    }
}

/// What a worker speaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UpstreamProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 in cleartext, with prior knowledge.
    H2c,
    /// HTTP/2 or HTTP/1.1 over TLS, whichever it picks for a connection.
    Tls(UpstreamTls),
}

/// TLS to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// Which files it is made of.
    pub files: ClientTls,
    /// Who the worker has to be by its certificate: a DNS name in lower case, or an IP address.
    pub server_name: String,
}

/// A worker as it is written: where it listens, and what it speaks there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpstreamUrl {
    pub(crate) address: UpstreamAddress,
    pub(crate) scheme: Scheme,
}

/// What the URL of a worker begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    H2c,
    Https,
}

impl Scheme {
    const ALL: [Scheme; 3] = [Scheme::Http, Scheme::H2c, Scheme::Https];

    fn over_tcp(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::H2c => "h2c",
            Scheme::Https => "https",
        }
    }

    fn over_unix(self) -> &'static str {
        match self {
            Scheme::Http => "unix",
            Scheme::H2c => "unix+h2c",
            Scheme::Https => "unix+https",
        }
    }
}

impl UpstreamUrl {
    /// Reads `SCHEME://host:port` or `SCHEME:/path`.
    pub(crate) fn parse(text: &str) -> Result<UpstreamUrl, String> {
        let wrong = || {
            format!(
                r#"must be "http://host:port", "https://host:port", "h2c://host:port", "unix:/path", "unix+https:/path" or "unix+h2c:/path", not {:?}"#,
                without_login(text)
            )
        };
        let (written, rest) = text.split_once(':').ok_or_else(wrong)?;
        for scheme in Scheme::ALL {
            if written == scheme.over_unix() {
                return Ok(UpstreamUrl { address: UpstreamAddress::Unix(unix_path(rest)?), scheme });
            }
            if written == scheme.over_tcp()
                && let Some(authority) = rest.strip_prefix("//")
            {
                return Ok(UpstreamUrl { address: UpstreamAddress::Tcp(HostPort::parse(authority)?), scheme });
            }
        }
        Err(wrong())
    }
}

/// A host to connect to, and its port. Shown as `host:port`, an IPv6 address in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A host name or an IP address, an IPv6 one without brackets; in lower case.
    pub host: String,
    /// Never 0.
    pub port: u16,
}

impl HostPort {
    /// Reads what follows `http://`. A slash alone at its end says no more than none (RFC 3986, section 6.2.3).
    fn parse(text: &str) -> Result<HostPort, String> {
        // Nobody would be logged in. What ends an authority may stand in a password, so that this is looked at first.
        if text.contains('@') {
            return Err(format!(
                "must name a host and a port alone, without who logs in, not {:?}",
                without_login(text)
            ));
        }
        let text = text.strip_suffix('/').filter(|rest| !rest.contains(['/', '?', '#'])).unwrap_or(text);
        if let Some(end) = text.find(['/', '?', '#']) {
            let (authority, path) = text.split_at(end);
            return Err(format!("must end after the port: {path:?} after {authority:?} would be ignored"));
        }
        let wrong = || format!("must name a host and a port from 1 to 65535, like \"127.0.0.1:9000\", not {text:?}");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port != 0).ok_or_else(wrong)?;
        let host = host_name(host).ok_or_else(wrong)?;
        Ok(HostPort { host: host.trim_matches(['[', ']']).to_owned(), port })
    }

    /// Reads `http://host:port` or `https://host:port`, the address of a member of the lock store, and whether it is the latter.
    pub(crate) fn parse_endpoint(text: &str) -> Result<(bool, HostPort), String> {
        let (secure, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => {
                let text = without_login(text);
                return Err(format!(r#"must be "http://host:port" or "https://host:port", not {text:?}"#));
            }
        };
        Ok((secure, HostPort::parse(rest)?))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostPort { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// An address as it may be shown: what is in front of an `@` is a name and a password, often enough.
fn without_login(text: &str) -> String {
    let Some((_, host)) = text.rsplit_once('@') else { return text.to_owned() };
    format!("…@{host}")
}

/// A host name, an IPv4 address or an IPv6 address in brackets, in lower case; an address in the one form that RFC 5952 has for it.
pub(crate) fn host_name(text: &str) -> Option<String> {
    if let Some(rest) = text.strip_prefix('[') {
        let address: Ipv6Addr = rest.strip_suffix(']')?.parse().ok()?;
        return Some(format!("[{address}]"));
    }
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let has_empty_label = text.is_empty() || text.starts_with('.') || text.contains("..");
    let valid = !has_empty_label && text.len() <= 253 && text.bytes().all(is_part);
    valid.then(|| text.to_ascii_lowercase())
}

/// The longest path that the kernel takes for a unix socket.
const UNIX_PATH_BYTES_MAX: usize = 107;

fn unix_path(path: &str) -> Result<PathBuf, String> {
    if !path.starts_with('/') || path.ends_with('/') || path.contains(char::is_control) {
        return Err(format!("the path of a unix socket must be absolute and name a file, not {path:?}"));
    }
    if path.len() > UNIX_PATH_BYTES_MAX {
        return Err(format!("the path of a unix socket has at most {UNIX_PATH_BYTES_MAX} bytes, not {}", path.len()));
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_an_address_is_in_no_problem() {
        for text in [
            "http://me:s3cret@h:1",
            "me:s3cret@h:1",
            "http://me:s3@cret@h:1/x",
            "ftp://me:s3cret@h:1",
            "http://me:s3/cret@h:1",
            "http://me:s3?cret@h:1",
            "https://me:s3#cret@h:1",
            "http://me:s3//cret@h:1",
            "me:s3//cret@h:1",
            "https://me:s3/@h:1/",
        ] {
            for problem in [UpstreamUrl::parse(text).unwrap_err(), HostPort::parse_endpoint(text).unwrap_err()] {
                assert!(!problem.contains("s3") && !problem.contains("cret") && problem.contains("…@h:1"), "{problem}");
            }
        }
    }

    #[test]
    fn an_address_to_listen_on_is_a_socket_address_or_a_unix_path() {
        for text in ["127.0.0.1:8080", "0.0.0.0:0", "[::1]:80", "unix:/run/fencepost/http.sock"] {
            assert_eq!(Address::parse(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "8080",
            ":8080",
            "localhost:80",
            "127.0.0.1",
            "::1:80",
            "unix:",
            "unix:run",
            "unix:/",
            "unix:/a\0",
            "127.0.0.1:65536",
        ] {
            assert!(Address::parse(text).is_err(), "{text:?}");
        }
        assert!(Address::parse(&format!("unix:/{}", "p".repeat(106))).is_ok());
        assert!(Address::parse(&format!("unix:/{}", "p".repeat(107))).is_err());
    }

    /// As the kernel has it: a second socket on one of these addresses is refused.
    #[test]
    fn an_address_for_all_of_a_machine_meets_each_of_them() {
        let collide = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| Address::parse(text).unwrap());
            assert_eq!(one.collides(&other), other.collides(&one), "{one} {other}");
            one.collides(&other)
        };
        for (one, other) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("[::]:80", "127.0.0.1:80"),
            ("[::]:80", "0.0.0.0:80"),
            ("[::]:80", "[fe80::1%2]:80"),
            ("[fe80::1%2]:80", "[fe80::1%2]:80"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
            ("[::ffff:127.0.0.1]:80", "0.0.0.0:80"),
            ("[::ffff:0.0.0.0]:80", "127.0.0.1:80"),
            ("unix:/a", "unix:/a"),
        ] {
            assert!(collide(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("127.0.0.1:80", "127.0.0.2:80"),
            ("0.0.0.0:80", "127.0.0.1:81"),
            ("0.0.0.0:80", "[::1]:80"),
            ("[fe80::1%2]:80", "[fe80::1%3]:80"),
            ("[::ffff:127.0.0.1]:80", "[::1]:80"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("0.0.0.0:0", "127.0.0.1:80"),
            ("unix:/a", "unix:/b"),
        ] {
            assert!(!collide(one, other), "{one} {other}");
        }
    }

    /// How a worker is shown that is written so.
    fn shown(text: &str) -> String {
        let UpstreamUrl { address, scheme } = UpstreamUrl::parse(text).unwrap();
        let files = ClientTls { ca: PathBuf::from("/ca.pem"), crl: None, identity: None, server_name: None };
        let protocol = match scheme {
            Scheme::Http => UpstreamProtocol::Http1,
            Scheme::H2c => UpstreamProtocol::H2c,
            Scheme::Https => UpstreamProtocol::Tls(UpstreamTls { files, server_name: "worker".to_owned() }),
        };
        Upstream { address, protocol }.to_string()
    }

    #[test]
    fn an_upstream_is_shown_as_it_is_written() {
        for text in [
            "http://127.0.0.1:9000",
            "http://[::1]:9000",
            "h2c://worker-1.example:1",
            "unix:/run/w.sock",
            "unix+h2c:/w",
            "https://worker.example:443",
            "unix+https:/w",
        ] {
            assert_eq!(shown(text), text);
        }
        assert_eq!(shown("http://WORKER.:80"), "http://worker.:80");
        assert_eq!(shown("http://[0:0::0001]:80"), "http://[::1]:80");
        let ipv6 = UpstreamUrl::parse("http://[::1]:9000").unwrap().address;
        assert_eq!(ipv6, UpstreamAddress::Tcp(HostPort { host: "::1".to_owned(), port: 9000 }));
    }

    #[test]
    fn what_is_not_wholly_an_upstream_is_none() {
        let wrong = [
            "",
            "http",
            "http:",
            "http:/a:1",
            "http://",
            "http://a",
            "http://a:",
            "http://a:0",
            "http://a:65536",
            "http://:80",
        ];
        let odd = [
            "http://a:+1",
            "http://u@a:1",
            "http://a b:1",
            "http://::1:80",
            "http://[::1:80",
            "http://.:80",
            "http://a..b:80",
            "HTTP://a:1",
            "https:/a",
            "unix+http:/a",
            "ftp://a:1",
            "unix:x",
        ];
        for text in wrong.into_iter().chain(odd) {
            assert!(UpstreamUrl::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(UpstreamUrl::parse("http://a:1/"), UpstreamUrl::parse("http://a:1"));
        assert_eq!(HostPort::parse_endpoint("https://[::1]:2379/"), HostPort::parse_endpoint("https://[::1]:2379"));
        for text in ["http://a:1//", "http://a:1/x", "http://a:1/x/", "http://a:1?x", "http://a:1/?x", "http://a:1#x/"]
        {
            assert!(UpstreamUrl::parse(text).unwrap_err().contains("must end after the port"), "{text:?}");
        }
    }

    #[test]
    fn a_worker_at_an_own_listener_is_told_from_one_that_may_be_elsewhere() {
        for (upstream, listener, leads) in [
            ("http://127.0.0.1:80", "127.0.0.1:80", true),
            ("http://127.0.0.1:81", "127.0.0.1:80", false),
            ("http://127.0.0.2:80", "127.0.0.1:80", false),
            ("http://127.0.0.2:80", "0.0.0.0:80", true),
            ("http://[::1]:80", "[::]:80", true),
            ("http://127.0.0.1:80", "[::]:80", true),
            ("http://[::1]:80", "0.0.0.0:80", false),
            ("http://localhost:80", "[::1]:80", true),
            ("h2c://0.0.0.0:80", "127.0.0.1:80", true),
            ("http://10.0.0.1:80", "10.0.0.1:80", true),
            ("http://10.0.0.1:80", "0.0.0.0:80", false),
            ("http://worker:80", "0.0.0.0:80", false),
            ("unix:/run/a", "unix:/run/a", true),
            ("unix:/run/a", "unix:/run/b", false),
        ] {
            let (of, at) = (UpstreamUrl::parse(upstream).unwrap().address, Address::parse(listener).unwrap());
            assert_eq!(of.leads_to(&at), leads, "{upstream} {listener}");
        }
    }
}
