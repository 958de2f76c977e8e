//! The beginning of a connection: the TLS handshake, if there is one, and the first bytes, which tell what is spoken.

use std::io;

use tokio::time::{Instant, timeout};

use super::accept::AcceptedStream;
use super::connection::{ClientAddress, Protocol, TlsClient};
use super::handshake::handshake;
use super::limits::Limits;
use super::listener::ListenerTls;
use super::sniff;
use crate::wire::{Socket, Transport};

/// A connection whose first bytes are there.
pub(super) struct Arrived {
    pub(super) socket: Socket,
    pub(super) address: ClientAddress,
    pub(super) protocol: Protocol,
    /// `None`: in the clear.
    pub(super) tls: Option<Box<TlsClient>>,
    /// When it was ready for the first bytes.
    pub(super) started: Instant,
}

/// Waits for the first bytes of a connection. `None` if they don't come in time, or no handshake comes about.
pub(super) async fn arrive(stream: AcceptedStream, tls: Option<ListenerTls>, limits: &Limits) -> Option<Arrived> {
    let (transport, address) = register(stream).ok()?;
    let (socket, tls, negotiated) = match tls {
        None => (Socket::downstream(transport), None, None),
        // Boxed: it is many times larger than what an idle connection needs.
        Some(tls) => {
            let shaken = Box::pin(handshake(transport, address, &tls, limits)).await?;
            (shaken.socket, Some(shaken.client), shaken.protocol)
        }
    };
    let started = Instant::now();
    let sniffed = timeout(limits.header_timeout, sniff::protocol(&socket)).await.ok()??;
    Some(Arrived { socket, address, protocol: negotiated.unwrap_or(sniffed), tls, started })
}

fn register(stream: AcceptedStream) -> io::Result<(Transport, ClientAddress)> {
    Ok(match stream {
        AcceptedStream::Tcp(stream, peer) => {
            (tokio::net::TcpStream::from_std(stream)?.into(), ClientAddress::Tcp(peer))
        }
        AcceptedStream::Unix(stream) => (tokio::net::UnixStream::from_std(stream)?.into(), ClientAddress::Unix),
    })
}
