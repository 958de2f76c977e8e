//! The worker that a route forwards to, as it is written and as it is reached.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::address::{Address, HostPort, unix_path, without_login};
use crate::problem::must_be;
use crate::reader::Table;
use crate::tls::{ClientTls, check_host};
use crate::units::{HOUR, SECOND, Unit};

/// The worker that a route forwards to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// Where it listens.
    pub address: UpstreamAddress,
    /// What it speaks.
    pub protocol: UpstreamProtocol,
    /// Whether an HTTP/1.1 connection carries another request after its first.
    pub keepalive: bool,
    /// How long a connection gets requests; 1 s to 24 h; `None`: for ever.
    pub connection_age_max: Option<Duration>,
}

impl Upstream {
    /// `upstream` and `upstream_tls` of a route; `None` if there is a problem with them.
    pub(crate) fn read(t: &mut Table<'_>) -> Option<Upstream> {
        let url = t.required("upstream", r#"the worker, like "http://127.0.0.1:9000""#, parse_url);
        // Read in any case, so that all of its problems are noted.
        let files = t.table("upstream_tls", ClientTls::read);
        let keepalive = t.flag_or("upstream_keepalive", true);
        let connection_age_max =
            t.optional("upstream_connection_age_max", Unit::Time, SECOND..=24 * HOUR);
        let (address, scheme) = url?;
        if !keepalive && scheme == Scheme::H2c {
            t.problem("upstream_keepalive", NO_KEEPALIVE);
        }
        let protocol = match scheme {
            Scheme::Http => UpstreamProtocol::Http1,
            Scheme::H2c => UpstreamProtocol::H2c,
            Scheme::Https => {
                if !t.is_written("upstream_tls") {
                    t.problem("upstream_tls", MISSING_TLS);
                }
                let files = files?;
                let server_name = match (&files.server_name, &address) {
                    (Some(name), _) => name.clone(),
                    (None, UpstreamAddress::Tcp(HostPort { host, .. })) => {
                        check_host(host, &t.place_of("upstream"), t.notes);
                        host.clone()
                    }
                    (None, UpstreamAddress::Unix(_)) => {
                        let place = t.place_of("upstream_tls");
                        t.notes.problem(&place.child(place.line, "server_name"), MISSING_NAME);
                        return None;
                    }
                };
                UpstreamProtocol::Tls(UpstreamTls { files, server_name })
            }
        };
        if scheme != Scheme::Https && t.is_written("upstream_tls") {
            t.problem("upstream_tls", "means nothing to a worker that is spoken to in cleartext");
        }
        let connection_age_max = connection_age_max.map(Duration::from_millis);
        Some(Upstream { address, protocol, keepalive, connection_age_max })
    }
}

const NO_KEEPALIVE: &str = "an HTTP/2 connection carries many requests at a time: write \
    upstream_connection_age_max to have it replaced";
const MISSING_NAME: &str = "missing: the name in the certificate of a worker behind a unix socket";
const MISSING_TLS: &str = "missing: it says whose certificates are believed of an https upstream, as in \
    { ca = \"/etc/fencepost/worker-ca.pem\" }";

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            UpstreamProtocol::Http1 => Scheme::Http,
            UpstreamProtocol::H2c => Scheme::H2c,
            UpstreamProtocol::Tls(_) => Scheme::Https,
        };
        let names = SCHEMES.into_iter().find(|(of, ..)| *of == scheme);
        let (_, over_tcp, over_unix) = names.expect("each scheme has names");
        match &self.address {
            UpstreamAddress::Tcp(address) => write!(f, "{over_tcp}://{address}"),
            UpstreamAddress::Unix(path) => write!(f, "{over_unix}:{}", path.display()),
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

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamAddress::Tcp(address) => address.fmt(f),
            UpstreamAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl UpstreamAddress {
    /// Whether connections to it come in at that address on this machine, as far as can be told
    /// without asking anybody.
    pub fn leads_to(&self, listener: &Address) -> bool {
        match (self, listener) {
            (UpstreamAddress::Unix(path), Address::Unix(own)) => path == own,
            (UpstreamAddress::Tcp(HostPort { host, port }), Address::Tcp(own)) => {
                let hosts: Vec<IpAddr> = match host.parse::<IpAddr>() {
                    // Whoever connects to "any address" gets to this machine.
                    Ok(IpAddr::V4(any)) if any.is_unspecified() => vec![Ipv4Addr::LOCALHOST.into()],
                    Ok(IpAddr::V6(any)) if any.is_unspecified() => vec![Ipv6Addr::LOCALHOST.into()],
                    Ok(host) => vec![host.to_canonical()],
                    Err(_) if host == "localhost" => {
                        vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
                    }
                    Err(_) => Vec::new(),
                };
                // Of a listener on all addresses it is not known which these are, but for loopback.
                let is_any = own.ip().to_canonical().is_unspecified();
                let at = |host: &IpAddr| Address::Tcp(SocketAddr::new(*host, *port));
                let is_known = |host: &&IpAddr| host.is_loopback() || !is_any;
                hosts.iter().filter(is_known).any(|host| at(host).collides(listener))
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

/// What the URL of a worker begins with, and so what is spoken there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    H2c,
    Https,
}

/// The schemes over TCP and over a unix socket.
const SCHEMES: [(Scheme, &str, &str); 3] = [
    (Scheme::Http, "http", "unix"),
    (Scheme::H2c, "h2c", "unix+h2c"),
    (Scheme::Https, "https", "unix+https"),
];

const FORMS: &str = "\"http://host:port\", \"https://host:port\", \"h2c://host:port\", \"unix:/path\", \
    \"unix+https:/path\" or \"unix+h2c:/path\"";

/// Reads `SCHEME://host:port` or `SCHEME:/path`.
pub(crate) fn parse_url(text: &str) -> Result<(UpstreamAddress, Scheme), String> {
    if let Some((written, rest)) = text.split_once(':') {
        for (scheme, over_tcp, over_unix) in SCHEMES {
            if written == over_unix {
                return Ok((UpstreamAddress::Unix(unix_path(rest)?), scheme));
            }
            if let Some(authority) = rest.strip_prefix("//").filter(|_| written == over_tcp) {
                return Ok((UpstreamAddress::Tcp(HostPort::parse(authority)?), scheme));
            }
        }
    }
    let mut problem = must_be(FORMS, &without_login(text));
    let host_port = match text.strip_prefix(':') {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    let foreign = text.split_once("://").and_then(|(written, rest)| {
        let scheme = match written {
            "ws" | "tcp" | "http1" => "http",
            "h2" | "http2" | "grpc" => "h2c",
            "wss" | "tls" | "grpcs" => "https",
            _ => return None,
        };
        Some((scheme, HostPort::parse(rest).ok()?))
    });
    let bare = HostPort::parse(&host_port).ok().map(|host_port| ("http", host_port));
    if let Some((scheme, host_port)) = foreign.or(bare) {
        problem += &format!(": write \"{scheme}://{host_port}\"");
    }
    Err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a worker is shown that is written so.
    fn shown(text: &str) -> String {
        let (address, scheme) = parse_url(text).unwrap();
        let files = ClientTls {
            ca: PathBuf::from("/ca.pem"),
            crl: None,
            identity: None,
            server_name: None,
        };
        let protocol = match scheme {
            Scheme::Http => UpstreamProtocol::Http1,
            Scheme::H2c => UpstreamProtocol::H2c,
            Scheme::Https => {
                UpstreamProtocol::Tls(UpstreamTls { files, server_name: "worker".to_owned() })
            }
        };
        Upstream { address, protocol, keepalive: true, connection_age_max: None }.to_string()
    }

    #[test]
    fn an_upstream_is_shown_as_it_is_written() {
        let listed = "\
            http://127.0.0.1:9000 | http://[::1]:9000 | h2c://worker-1.example:1 | \
            unix:/run/w.sock | unix+h2c:/w | https://worker.example:443 | unix+https:/w";
        for text in listed.split(" | ") {
            assert_eq!(shown(text), text);
        }
        assert_eq!(shown("http://WORKER.:80"), "http://worker.:80");
        assert_eq!(shown("http://[0:0::0001]:80"), "http://[::1]:80");
        let ipv6 = parse_url("http://[::1]:9000").unwrap().0;
        assert_eq!(ipv6, UpstreamAddress::Tcp(HostPort { host: "::1".to_owned(), port: 9000 }));
    }

    #[test]
    fn what_is_not_wholly_an_upstream_is_none() {
        let wrong = "\
            http | http: | http:/a:1 | http:// | http://a | http://a: | http://a:0 | \
            http://a:65536 | http://:80 | "
            .split(" | ");
        let odd = "\
            http://a:+1 | http://u@a:1 | http://a b:1 | http://::1:80 | http://[::1:80 | \
            http://.:80 | http://a..b:80 | HTTP://a:1 | https:/a | unix+http:/a | ftp://a:1 | \
            unix:x"
            .split(" | ");
        for text in wrong.into_iter().chain(odd) {
            assert!(parse_url(text).is_err(), "{text:?}");
        }
        assert_eq!(parse_url("http://a:1/"), parse_url("http://a:1"));
        assert_eq!(
            HostPort::parse_endpoint("https://[::1]:2379/"),
            HostPort::parse_endpoint("https://[::1]:2379")
        );
        let texts = "\
            http://a:1// | http://a:1/x | http://a:1/x/ | http://a:1?x | http://a:1/?x | \
            http://a:1#x/";
        for text in texts.split(" | ") {
            assert!(parse_url(text).unwrap_err().contains("must end after the port"), "{text:?}");
        }
    }

    #[test]
    fn worker_at_an_own_listener_is_recognised() {
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
            let (of, at) = (parse_url(upstream).unwrap().0, Address::parse(listener).unwrap());
            assert_eq!(of.leads_to(&at), leads, "{upstream} {listener}");
        }
    }
}
