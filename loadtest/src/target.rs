//! Where the proxy is, and how it is reached.

use std::fmt;
use std::str::FromStr;

use anyhow::{bail, ensure};
use hyper::Uri;

use crate::tls::{Files, Tls};

/// The address of a running proxy, `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    is_secure: bool,
    /// A name or an address; one of IPv6 in brackets.
    host: String,
    port: u16,
}

/// A running proxy.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    authority: String,
    tls: Option<Tls>,
}

impl Address {
    /// Whether TLS is spoken there.
    pub(crate) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// What a certificate has to be for.
    pub(crate) fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl FromStr for Address {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Address> {
        let uri: Uri = text.parse()?;
        let (is_secure, usual_port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            Some(_) | None => bail!("only http://HOST:PORT and https://HOST:PORT are understood"),
        };
        ensure!(uri.path_and_query().is_none_or(|path| path == "/"), "the path belongs in --path");
        let Some(authority) = uri.authority() else { bail!("there is no host") };
        ensure!(!authority.as_str().contains('@'), "user names are not understood");
        let port = authority.port_u16().unwrap_or(usual_port);
        Ok(Address { is_secure, host: authority.host().to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl Target {
    /// The proxy at that address. For one that speaks TLS these are the files to do it by.
    ///
    /// # Errors
    /// TLS is spoken there and there are no files, or one is not what it should be.
    pub(crate) fn new(address: &Address, files: Option<&Files<'_>>) -> anyhow::Result<Target> {
        let tls = match (address.is_secure, files) {
            (false, _) => None,
            (true, Some(files)) => Some(Tls::new(address.host(), files)?),
            (true, None) => bail!("{address}: no authority is believed that is not named"),
        };
        Ok(Target { authority: format!("{}:{}", address.host, address.port), tls })
    }

    /// `HOST:PORT`: to connect to, and to name in requests.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// The scheme of its URLs.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// How to speak TLS with it; `None`: in the clear.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_and_says_whether_tls_is_spoken() {
        for (text, full, host) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1"),
            ("http://localhost/", "http://localhost:80", "localhost"),
            ("http://[::1]:8080", "http://[::1]:8080", "::1"),
            ("https://proxy.test", "https://proxy.test:443", "proxy.test"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.host()), (full, host));
            assert_eq!(address.is_secure(), text.starts_with("https:"));
        }
    }

    #[test]
    fn anything_else_is_no_address() {
        for text in ["127.0.0.1:8080", "ftp://127.0.0.1", "http://a/b", "http://me@a", "", "/"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
