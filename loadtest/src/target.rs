//! Where the proxy is.

use std::fmt;
use std::str::FromStr;

use anyhow::{bail, ensure};
use hyper::Uri;

/// The address of a running proxy, `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    authority: String,
}

impl Target {
    /// `HOST:PORT`: to connect to, and to name in requests.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Target> {
        let uri: Uri = text.parse()?;
        ensure!(uri.scheme_str() == Some("http"), "only http://HOST:PORT is understood");
        ensure!(uri.path_and_query().is_none_or(|path| path == "/"), "the path belongs in --path");
        let Some(authority) = uri.authority() else { bail!("there is no host") };
        ensure!(!authority.as_str().contains('@'), "user names are not understood");
        let port = authority.port_u16().unwrap_or(80);
        Ok(Target { authority: format!("{}:{port}", authority.host()) })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for (text, authority) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://localhost/", "localhost:80"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(text.parse::<Target>().unwrap().authority(), authority);
        }
    }

    #[test]
    fn anything_else_is_no_target() {
        for text in ["127.0.0.1:8080", "https://127.0.0.1", "http://a/b", "http://me@a", "", "/"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
