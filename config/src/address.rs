//! Addresses: where the proxy listens, and a host and a port to connect to.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use crate::problem::must_be;

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
    /// Reads `127.0.0.1:8080`, `[::1]:8080`, `unix:/path` or `systemd:NAME`. Host names are
    /// refused: what they mean may change.
    ///
    /// # Errors
    /// If it is something else, with what to write instead where that can be guessed.
    pub fn parse(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Address::Unix);
        }
        if let Some(name) = text.strip_prefix("systemd:") {
            return socket_name(name).map(Address::Systemd);
        }
        let forms = r#""ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME""#;
        text.parse().map(Address::Tcp).map_err(|_| must_be(forms, text) + &spelling(text))
    }

    /// Whether two sockets on these addresses would meet. Two ports that the system chooses never
    /// do.
    pub(crate) fn collides(&self, other: &Address) -> bool {
        let (Address::Tcp(one), Address::Tcp(other)) = (self, other) else { return self == other };
        let is_one_port = one.port() == other.port() && one.port() != 0;
        is_one_port && shares_hosts(one.ip(), other.ip()) && !are_on_two_links(one, other)
    }
}

/// What to write instead of an address that only people understand. `:8080` is every address to
/// some programs and one to others, so that it is not taken for either.
fn spelling(text: &str) -> String {
    let bare = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let bare = bare.unwrap_or(text).trim_end_matches('/');
    let (host, port) = bare.rsplit_once(':').unwrap_or(("", bare));
    let Ok(port) = port.parse::<u16>() else { return String::new() };
    match host {
        "" | "*" => format!(
            ": write \"127.0.0.1:{port}\" for this machine alone, \"0.0.0.0:{port}\" for every IPv4 address"
        ),
        "localhost" => format!(": write \"127.0.0.1:{port}\""),
        _ if bare.parse::<SocketAddr>().is_ok() => format!(": write {bare:?}"),
        _ if host.parse::<Ipv6Addr>().is_ok() => format!(": write \"[{host}]:{port}\""),
        _ if host_name(host).is_some() => ": write an IP address in place of the name".to_owned(),
        _ => String::new(),
    }
}

/// Whether a socket on each of two addresses would take connections to the same one: `0.0.0.0`
/// takes those to any of version 4, `[::]` those to any, and `[::ffff:a.b.c.d]` is `a.b.c.d`.
fn shares_hosts(one: IpAddr, other: IpAddr) -> bool {
    let takes = |any: IpAddr, one: IpAddr| any.is_unspecified() && (any.is_ipv6() || one.is_ipv4());
    let (one, other) = (one.to_canonical(), other.to_canonical());
    one == other || takes(one, other) || takes(other, one)
}

/// Whether both are addresses of a link, of two different ones: each link may have the same (RFC
/// 4007).
fn are_on_two_links(one: &SocketAddr, other: &SocketAddr) -> bool {
    let link = |address: &SocketAddr| match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => Some(v6.scope_id()),
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

const SOCKET_NAME: &str = r#""systemd:" and the FileDescriptorName= of a socket unit, 1 to 255 of A-Z, a-z, 0-9, _, -, . and @"#;

/// Reads the name of a socket: as systemd has it (sd_listen_fds(3)), but without what has to be
/// quoted.
fn socket_name(name: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@".contains(&byte);
    let is_name = (1..=255).contains(&name.len()) && name.bytes().all(is_part);
    if is_name { Ok(name.to_owned()) } else { Err(must_be(SOCKET_NAME, name)) }
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
    /// Reads what follows `http://`. A slash alone at its end says no more than none (RFC 3986,
    /// section 6.2.3).
    pub(crate) fn parse(text: &str) -> Result<HostPort, String> {
        // Nobody would be logged in. What ends an authority may stand in a password, so that this
        // is looked at first.
        if text.contains('@') {
            let what = "must name a host and a port alone, without who logs in";
            return Err(format!("{what}, not {:?}", without_login(text)));
        }
        let is_end = |letter: char| matches!(letter, '/' | '?' | '#');
        let bare = text.strip_suffix('/').filter(|bare| !bare.contains(is_end));
        let text = bare.unwrap_or(text);
        if let Some(end) = text.find(is_end) {
            let (before, path) = text.split_at(end);
            let ignored = format!("{path:?} after {before:?} would be ignored");
            return Err(format!("must end after the port: {ignored}"));
        }
        let parts = text.rsplit_once(':').and_then(|(host, port)| {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| is_number && *port != 0)?;
            Some((host_name(host)?.trim_matches(['[', ']']).to_owned(), port))
        });
        if text.starts_with('[') && text.contains('%') {
            let what = "an IPv6 address with a zone is not offered: write a global address, a unique local one (fc00::/7), or a host name";
            return Err(format!("{what}, not {text:?}"));
        }
        let what = r#"must name a host and a port from 1 to 65535, like "127.0.0.1:9000""#;
        let (host, port) = parts.ok_or_else(|| format!("{what}, not {text:?}"))?;
        Ok(HostPort { host, port })
    }

    /// Reads `http://host:port` or `https://host:port`, the address of a member of the lock store,
    /// and whether it is the latter. Without a scheme it is the former, as etcdctl has it.
    pub(crate) fn parse_endpoint(text: &str) -> Result<(bool, HostPort), String> {
        if text.starts_with("unix:") || text.starts_with("unixs:") {
            let what = "etcd by a unix socket is not offered: have it listen on a loopback address too, and write";
            return Err(format!("{what} \"http://127.0.0.1:2379\", not {text:?}"));
        }
        let (is_secure, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            None => (false, text),
            Some(_) => {
                let forms = r#""http://host:port" or "https://host:port""#;
                return Err(must_be(forms, &without_login(text)));
            }
        };
        Ok((is_secure, HostPort::parse(rest)?))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostPort { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// An address as it may be shown: what is in front of an `@` is a name and a password, often
/// enough.
pub(crate) fn without_login(text: &str) -> String {
    text.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, host)| format!("…@{host}"))
}

/// A host name, an IPv4 address or an IPv6 address in brackets, in lower case; an address in the
/// one form that RFC 5952 has for it.
pub(crate) fn host_name(text: &str) -> Option<String> {
    if let Some(rest) = text.strip_prefix('[') {
        let address: Ipv6Addr = rest.strip_suffix(']')?.parse().ok()?;
        return Some(format!("[{address}]"));
    }
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let has_empty_label = text.is_empty() || text.starts_with('.') || text.contains("..");
    let is_name = !has_empty_label && text.len() <= 253 && text.bytes().all(is_part);
    is_name.then(|| text.to_ascii_lowercase())
}

/// The longest path that the kernel takes for a unix socket.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// Reads the path of a unix socket.
pub(crate) fn unix_path(path: &str) -> Result<PathBuf, String> {
    let what = "the path of a unix socket";
    if !path.starts_with('/') || path.ends_with('/') || path.contains(char::is_control) {
        return Err(format!("{what} must be absolute and name a file, not {path:?}"));
    }
    match path.len() {
        0..=UNIX_PATH_BYTES_MAX => Ok(PathBuf::from(path)),
        bytes => Err(format!("{what} has at most {UNIX_PATH_BYTES_MAX} bytes, not {bytes}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::parse_url;

    #[test]
    fn a_password_in_an_address_is_in_no_problem() {
        let listed = "\
            http://me:s3cret@h:1 | me:s3cret@h:1 | http://me:s3@cret@h:1/x | \
            ftp://me:s3cret@h:1 | http://me:s3/cret@h:1 | http://me:s3?cret@h:1 | \
            https://me:s3#cret@h:1 | http://me:s3//cret@h:1 | me:s3//cret@h:1 | \
            https://me:s3/@h:1/";
        for text in listed.split(" | ") {
            for problem in
                [parse_url(text).unwrap_err(), HostPort::parse_endpoint(text).unwrap_err()]
            {
                assert!(
                    !problem.contains("s3")
                        && !problem.contains("cret")
                        && problem.contains("…@h:1"),
                    "{problem}"
                );
            }
        }
    }

    #[test]
    fn an_address_to_listen_on_is_a_socket_address_or_a_unix_path() {
        for text in ["127.0.0.1:8080", "0.0.0.0:0", "[::1]:80", "unix:/run/fencepost/http.sock"] {
            assert_eq!(
                Address::parse(text).map(|address| address.to_string()),
                Ok(text.to_owned())
            );
        }
        let texts = "\
            8080 | :8080 | localhost:80 | 127.0.0.1 | ::1:80 | unix: | unix:run | unix:/ | \
            unix:/a\0 | 127.0.0.1:65536 | ";
        for text in texts.split(" | ") {
            assert!(Address::parse(text).is_err(), "{text:?}");
        }
        for (text, write) in [
            ("8080", r#"write "127.0.0.1:8080" for this machine alone, "0.0.0.0:8080" for"#),
            (":8080", r#"write "127.0.0.1:8080" for this machine alone, "0.0.0.0:8080" for"#),
            ("localhost:80", r#"write "127.0.0.1:80""#),
            ("http://[::1]:80/", r#"write "[::1]:80""#),
            ("::1:80", r#"write "[::1]:80""#),
            ("worker:80", "write an IP address in place of the name"),
        ] {
            let problem = Address::parse(text).unwrap_err();
            assert!(problem.contains(write), "{problem}");
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
}
