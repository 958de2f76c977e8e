//! Where a proxy is, as `--fence` and `--stamp` name it.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, InvalidUri, PathAndQuery, Scheme};
use rustls::pki_types::ServerName;

/// Where a proxy is, and whether TLS is spoken there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyAddress {
    authority: Authority,
    host: String,
    port: u16,
    /// The name that its certificate has to be for; `None`: no TLS.
    server_name: Option<ServerName<'static>>,
}

/// Why there is no such proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProxyAddress {
    /// It is not of the form that is wanted.
    #[error("must be \"http://host:port\" or \"https://host:port\"")]
    Form,
    /// No certificate can be for that name.
    #[error("{0:?} is not a name that a certificate can be for")]
    ServerName(String),
}

impl FromStr for ProxyAddress {
    type Err = InvalidProxyAddress;

    /// Takes scheme and host, with a port or with that of the scheme, and nothing after them; or
    /// host and port of one without TLS.
    fn from_str(text: &str) -> Result<ProxyAddress, InvalidProxyAddress> {
        let url: Uri = text.parse().map_err(|_| InvalidProxyAddress::Form)?;
        let (default_port, is_secure) = match url.scheme_str() {
            Some("http") => (80, false),
            Some("https") => (443, true),
            None if url.port().is_some() => (80, false),
            Some(_) | None => return Err(InvalidProxyAddress::Form),
        };
        let authority = url.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or(InvalidProxyAddress::Form)?;
        if url.query().is_some() || !matches!(url.path(), "" | "/") {
            return Err(InvalidProxyAddress::Form);
        }
        // What looks like a port and is none must not be taken for the absence of one.
        let port = match authority.port() {
            Some(_) => authority.port_u16().ok_or(InvalidProxyAddress::Form)?,
            None if authority.as_str() == authority.host() => default_port,
            None => return Err(InvalidProxyAddress::Form),
        };
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let server_name = match is_secure {
            true => {
                let named = ServerName::try_from(host.clone());
                Some(named.map_err(|_| InvalidProxyAddress::ServerName(host.clone()))?)
            }
            false => None,
        };
        Ok(ProxyAddress { authority: authority.clone(), host, port, server_name })
    }
}

impl ProxyAddress {
    /// Where to connect.
    pub(super) fn socket(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// The address of that path there, as [`ProxyClient`](super::proxy_link::ProxyClient) takes it.
    pub(super) fn uri(&self, path: &str) -> Result<Uri, InvalidUri> {
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone());
        Ok(uri
            .path_and_query(path.parse::<PathAndQuery>()?)
            .build()
            .expect("it has all parts of an address"))
    }

    /// The name that its certificate has to be for; `None`: no TLS is spoken with it.
    pub(super) fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }
}

impl fmt::Display for ProxyAddress {
    /// As a URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.server_name.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_named_by_scheme_and_host_alone_and_has_the_port_of_its_scheme() {
        for (text, host, port, name) in [
            ("http://127.0.0.1:8080", "127.0.0.1", 8080, None),
            ("http://proxy", "proxy", 80, None),
            ("http://proxy:80/", "proxy", 80, None),
            ("http://[::1]", "::1", 80, None),
            ("https://proxy.example", "proxy.example", 443, Some("proxy.example")),
            ("https://127.0.0.1:8443/", "127.0.0.1", 8443, Some("127.0.0.1")),
            ("https://[::1]:8443", "::1", 8443, Some("::1")),
        ] {
            let address: ProxyAddress = text.parse().unwrap();
            assert_eq!(address.socket(), (host, port), "{text}");
            assert_eq!(address.server_name().map(ServerName::to_str).as_deref(), name, "{text}");
            assert_eq!(address.to_string(), text.trim_end_matches('/'));
        }
        let without_scheme: ProxyAddress = "proxy:8080".parse().unwrap();
        assert_eq!(without_scheme.to_string(), "http://proxy:8080");
    }

    #[test]
    fn what_names_no_proxy_is_refused() {
        for wrong in [
            "proxy",
            "ftp://proxy",
            "http://proxy/path",
            "https://proxy/path",
            "http://proxy?x",
            "https://a@proxy",
            "https://proxy:",
            "https://proxy:99999",
            "unix:/run/x",
            "",
            "/",
        ] {
            assert_eq!(wrong.parse::<ProxyAddress>(), Err(InvalidProxyAddress::Form), "{wrong}");
        }
        let unnameable = "https://under_score-.example".parse::<ProxyAddress>();
        assert_eq!(
            unnameable,
            Err(InvalidProxyAddress::ServerName("under_score-.example".to_owned()))
        );
    }
}
