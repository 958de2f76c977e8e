//! The beginning of a connection: the TLS handshake, if there is one, and the first bytes, which
//! tell the protocol.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use fencepost_config::Proxies;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};

use super::client::{Client, ClientAddress, Protocol, is_trusted};
use super::handshake::handshake;
use super::limits::{Closing, Limits};
use super::listener::ListenerTls;
use super::proxy_protocol::{self, Unexpected, Whose};
use crate::wire::{Socket, Transport};

/// How every HTTP/2 connection begins, and no HTTP/1 request does: there is no method of that name.
const PREFACE: &[u8] = b"PRI ";

/// Waits for the first bytes of a connection, which are there to be read again. Returns when it was
/// ready for them, too.
///
/// # Errors
/// If they don't come, or no handshake comes about; with the limit that was passed, if it is one of
/// those that are counted.
pub(super) async fn first_bytes(
    transport: Transport,
    sender: Sender,
    tls: Option<ListenerTls>,
    limits: &Limits,
) -> Result<(Socket, Client, Instant), Option<Closing>> {
    let Sender { address, proxies, is_trusted } = sender;
    let is_tls = tls.is_some();
    let (socket, names, negotiated) = match tls {
        None => (Socket::downstream(transport), None, None),
        Some(tls) => {
            let done = handshake(transport, address, &tls, limits).await.ok_or(None)?;
            (done.socket, done.names, done.protocol)
        }
    };
    let since = Instant::now();
    let sniffed = timeout(limits.header_timeout, protocol(&socket))
        .await
        .map_err(|_| Some(Closing::Header))?;
    let (sniffed, unexpected) = sniffed.ok_or(None)?;
    let protocol = negotiated.unwrap_or(sniffed);
    let unexpected = unexpected.filter(|_| !is_tls);
    Ok((
        socket,
        Client { address, protocol, is_tls, names, proxies, is_trusted, unexpected },
        since,
    ))
}

/// Who has connected.
pub(super) struct Sender {
    pub(super) address: ClientAddress,
    pub(super) proxies: Option<Arc<Proxies>>,
    pub(super) is_trusted: bool,
}

impl Sender {
    /// Whether its connection begins with a header of the PROXY protocol.
    pub(super) fn has_proxy_header(&self) -> bool {
        self.proxies.as_ref().is_some_and(|proxies| proxies.proxy_protocol)
    }

    /// Takes that header, and is whom it names from then on: one that says nothing of its own
    /// clients, unless it is a trusted proxy as well.
    ///
    /// # Errors
    /// As those of [`proxy_protocol::read`], and if it may not say for whom it speaks.
    pub(super) async fn take_proxy_header(
        &mut self,
        transport: &mut Transport,
    ) -> Result<(), Option<Unexpected>> {
        if !self.is_trusted {
            return Err(Some(Unexpected::NotTrusted));
        }
        match proxy_protocol::read(transport).await? {
            Whose::Own => {}
            Whose::Unnamed => self.is_trusted = false,
            Whose::Of(client) => {
                self.address = ClientAddress::Tcp(client);
                self.is_trusted = is_trusted(self.proxies.as_deref(), self.address);
            }
        }
        Ok(())
    }
}

/// Has this thread's runtime look after an accepted socket.
pub(super) fn register(socket: socket2::Socket, address: ClientAddress) -> io::Result<Transport> {
    Ok(match address {
        ClientAddress::Tcp(_) | ClientAddress::Named(_) => {
            TcpStream::from_std(socket.into())?.into()
        }
        ClientAddress::Unix => UnixStream::from_std(socket.into())?.into(),
    })
}

/// Reads the first bytes, tells the protocol by them, or what else they are of, and gives them back
/// to the socket. `None` if
/// the client closed.
///
/// hyper-util's own detection costs 8 KiB for each connection as long as it lives.
async fn protocol(socket: &Socket) -> Option<(Protocol, Option<Unexpected>)> {
    let mut reader = socket.clone();
    let mut buffer = [0; 1024];
    let mut filled = 0;
    loop {
        let count = reader.read(&mut buffer[filled..]).await.ok().filter(|count| *count > 0)?;
        filled += count;
        let compared = filled.min(PREFACE.len());
        let is_preface = buffer[..compared] == PREFACE[..compared];
        if is_preface && compared < PREFACE.len() {
            continue;
        }
        socket.unread(Bytes::copy_from_slice(&buffer[..filled]));
        let protocol = if is_preface { Protocol::Http2 } else { Protocol::Http1 };
        return Some((protocol, Unexpected::of(&buffer[..filled], false)));
    }
}
