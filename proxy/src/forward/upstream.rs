//! Where requests go, and what may be spent on it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;

use crate::downstream::Protocol;

/// A worker, or several behind one address.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Where it listens.
    pub address: UpstreamAddress,
    /// What it speaks.
    pub protocol: Protocol,
    /// Open connections of one worker thread.
    pub connections_max: usize,
    /// Requests of one worker thread that may wait for a connection. One more fails at once.
    pub waiting_max: usize,
    /// HTTP/2 requests at a time on one connection, where the worker does not allow fewer.
    pub streams_max: usize,
    /// How long an HTTP/1.1 connection without a request is kept. Short, because a request that is sent while the
    /// worker closes has an unknown fate.
    pub idle_timeout: Duration,
    /// `Host` for requests that came without.
    pub authority: HeaderValue,
}

/// Where a worker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamAddress {
    /// A host, looked up for each connection, and a port.
    Tcp {
        /// A name or an IP address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A unix socket at that path.
    Unix(PathBuf),
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            UpstreamAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            UpstreamAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Upstream {
    /// An upstream with the usual limits.
    pub fn new(address: UpstreamAddress, protocol: Protocol) -> Upstream {
        let authority = match &address {
            UpstreamAddress::Tcp { .. } => HeaderValue::try_from(address.to_string()).ok(),
            UpstreamAddress::Unix(_) => None,
        };
        Upstream {
            address,
            protocol,
            connections_max: 1024,
            waiting_max: 1024,
            streams_max: 100,
            idle_timeout: Duration::from_secs(1),
            authority: authority.unwrap_or(HeaderValue::from_static("localhost")),
        }
    }
}

/// How long a worker may take for a request.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the request's last byte to the response's head, and between two pieces of the response.
    pub silence: Duration,
    /// For the whole of it. `None`: as long as it takes.
    pub total: Option<Duration>,
    /// How long a worker's connection is still read after that, and after the client has left.
    pub late: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { silence: Duration::from_secs(30), total: None, late: Duration::from_secs(30) }
    }
}
