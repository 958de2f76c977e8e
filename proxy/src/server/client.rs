//! Who is at the other end of a connection: its address, its protocol, and the names in its
//! certificate.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use fencepost_config::Proxies;
use fencepost_tls::PeerNames;

use super::proxy_protocol::Unexpected;

/// Where a client's connection comes from, or its request, as trusted proxies name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddress {
    /// Over TCP, from that address.
    Tcp(SocketAddr),
    /// Over a unix socket.
    Unix,
    /// By trusted proxies, which say that it comes from there. Ports count for nothing.
    Named(IpAddr),
}

impl ClientAddress {
    /// Its IP address. Clients of a unix socket have none.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            ClientAddress::Tcp(address) => Some(address.ip()),
            ClientAddress::Named(address) => Some(address),
            ClientAddress::Unix => None,
        }
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientAddress::Tcp(address) => address.fmt(f),
            ClientAddress::Unix => f.write_str("unix"),
            ClientAddress::Named(address) => address.fmt(f),
        }
    }
}

/// The protocol that a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A client, as the beginning of its connection has shown it.
pub(super) struct Client {
    pub(super) address: ClientAddress,
    pub(super) protocol: Protocol,
    pub(super) is_tls: bool,
    /// The names in its certificate, shared by its requests. `None` if it showed no certificate.
    pub(super) names: Option<Rc<PeerNames>>,
    /// The proxies before the listener, if it has any.
    pub(super) proxies: Option<Arc<Proxies>>,
    /// Whether it is a proxy that is trusted.
    pub(super) is_trusted: bool,
    /// What its first bytes are of, if they are no HTTP.
    pub(super) unexpected: Option<Unexpected>,
}

/// Whether a peer at that address is a trusted proxy. The peer of a unix socket is.
pub(super) fn is_trusted(proxies: Option<&Proxies>, address: ClientAddress) -> bool {
    proxies.is_some_and(|proxies| address.ip().is_none_or(|address| proxies.trusts(address)))
}
