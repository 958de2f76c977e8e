//! Who is at the other end of a connection: its address, its protocol, and the names in its
//! certificate.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use fencepost_tls::PeerNames;

/// Where a client's connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddress {
    /// Over TCP, from that address.
    Tcp(SocketAddr),
    /// Over a unix socket.
    Unix,
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientAddress::Tcp(address) => address.fmt(f),
            ClientAddress::Unix => f.write_str("unix"),
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
}
