//! The beginning of a connection: the TLS handshake, if there is one, and the first bytes, which tell what is spoken.

use std::io;

use tokio::time::{Instant, timeout};

use super::accept::AcceptedStream;
use super::connection::{ClientAddress, Protocol, TlsClient};
use super::handshake::handshake;
use super::limits::Limits;
use super::listener::ListenerTls;
use super::sniff;
use super::tally::Closing;
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

/// Waits for the first bytes of a connection.
///
/// # Errors
/// If they don't come, or no handshake comes about; with the limit that was passed, if it was one of those that are counted.
pub(super) async fn arrive(
    stream: AcceptedStream,
    tls: Option<ListenerTls>,
    limits: &Limits,
) -> Result<Arrived, Option<Closing>> {
    let (transport, address) = register(stream).map_err(|_| None)?;
    let (socket, tls, negotiated) = match tls {
        None => (Socket::downstream(transport), None, None),
        // Boxed: it is many times larger than what an idle connection needs.
        Some(tls) => {
            let shaken = Box::pin(handshake(transport, address, &tls, limits)).await.ok_or(None)?;
            (shaken.socket, Some(shaken.client), shaken.protocol)
        }
    };
    let started = Instant::now();
    let sniffed = timeout(limits.header_timeout, sniff::protocol(&socket)).await.map_err(|_| Some(Closing::Header))?;
    let sniffed = sniffed.ok_or(None)?;
    Ok(Arrived { socket, address, protocol: negotiated.unwrap_or(sniffed), tls, started })
}

fn register(stream: AcceptedStream) -> io::Result<(Transport, ClientAddress)> {
    Ok(match stream {
        AcceptedStream::Tcp(stream, peer) => {
            (tokio::net::TcpStream::from_std(stream)?.into(), ClientAddress::Tcp(peer))
        }
        AcceptedStream::Unix(stream) => (tokio::net::UnixStream::from_std(stream)?.into(), ClientAddress::Unix),
    })
}
