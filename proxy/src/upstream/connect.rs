//! Opens connections to a worker.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fencepost_config::{HostPort, UpstreamAddress};
use fencepost_locks::first_to_connect;
use rustls::ClientConfig;
use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::addresses::ADDRESSES;
use super::error::UpstreamError;
use super::target::{Speaks, Upstream, UpstreamTls, Wants};
use super::tls_failure::TlsFailure;
use crate::server::Protocol;
use crate::wire::{Socket, Transport, write_little_ahead};

/// A connection on which nothing has been sent yet.
pub(super) struct Opened {
    pub(super) socket: Socket,
    /// What is spoken on it.
    pub(super) protocol: Protocol,
    /// `None`: without TLS.
    pub(super) made_with: Option<Arc<ClientConfig>>,
}

/// Whether a worker takes connections within that time, and what is spoken on them. It is closed
/// again soon.
///
/// # Errors
///
/// If the last address that was tried takes none, or who is there is not the worker that it should
/// be, or does not take us for what we are.
pub async fn connects(upstream: &Upstream, within: Duration) -> Result<Protocol, UpstreamError> {
    let opened = timeout(within, open(upstream, Wants::Either))
        .await
        .map_err(|_| UpstreamError::Timeout)??;
    let Opened { mut socket, protocol, .. } = opened;
    if let Speaks::Tls(tls) = &upstream.speaks
        && let Ok(Err(refused)) = timeout(REFUSAL_MAX, socket.read_u8()).await
    {
        return Err(tls.failed(refused));
    }
    socket.end_in_order();
    Ok(protocol)
}

/// How long a worker may take to refuse our certificate: by TLS 1.3 it does so when the handshake
/// is over for us, and by nothing does it say that it has taken it.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// Opens a connection. By TLS, the worker picks what is spoken on it, of what would do.
pub(super) async fn open(upstream: &Upstream, wants: Wants) -> Result<Opened, UpstreamError> {
    let transport = connect(upstream).await.map_err(UpstreamError::unreachable)?;
    let wants = if upstream.keepalive { wants } else { Wants::Http1 };
    match &upstream.speaks {
        Speaks::Cleartext(protocol) => {
            Ok(Opened { socket: Socket::upstream(transport), protocol: *protocol, made_with: None })
        }
        Speaks::Tls(tls) => secure(transport, tls, wants).await.map_err(|cause| tls.failed(cause)),
    }
}

/// Opens a connection to one of the addresses that the name has.
pub(crate) async fn connect(upstream: &Upstream) -> io::Result<Transport> {
    match &upstream.address {
        UpstreamAddress::Unix(path) => Ok(UnixStream::connect(path).await?.into()),
        UpstreamAddress::Tcp(HostPort { host, port }) => {
            let (quota, host) = (&upstream.quota, (host.clone(), *port));
            let look_up = async || Ok(lookup_host((host.0.as_str(), host.1)).await?.collect());
            let prepare = |socket: &TcpSocket| prepare(socket, upstream.unacknowledged_max);
            let connect = async |found: &[SocketAddr]| {
                first_to_connect(found.iter().copied(), SILENCE_MAX, || quota.take_spare(), prepare)
                    .await
            };
            let stream = ADDRESSES.connect(&host, look_up, connect).await?;
            stream.set_nodelay(true)?;
            write_little_ahead(&SockRef::from(&stream));
            Ok(stream.into())
        }
    }
}

/// Has the kernel reset the connection when the socket is closed or the process is killed, instead
/// of delivering what it holds ([`Socket::end_in_order`] takes that back), and give up on what the
/// worker does not acknowledge in time.
///
/// Both are set before the connection exists, so that no byte is ever written without.
fn prepare(socket: &TcpSocket, unacknowledged_max: Duration) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_user_timeout(Some(unacknowledged_max))
}

/// How long an address may say nothing until the next is tried as well: what RFC 8305 (section 5)
/// recommends.
const SILENCE_MAX: Duration = Duration::from_millis(250);

impl UpstreamTls {
    /// There is no TLS because of that.
    pub(super) fn failed(&self, cause: io::Error) -> UpstreamError {
        UpstreamError::Tls { server_name: self.server_name.clone(), failure: TlsFailure::of(cause) }
    }
}

async fn secure(transport: Transport, tls: &UpstreamTls, wants: Wants) -> io::Result<Opened> {
    let made_with = tls.identity.config();
    let connector = TlsConnector::from(Arc::clone(&made_with));
    let server_name = tls.server_name.clone();
    let stream = match wants {
        Wants::Either => connector.connect(server_name, transport).await?,
        Wants::Http1 => {
            connector.with_alpn(vec![HTTP1.to_vec()]).connect(server_name, transport).await?
        }
    };
    // A worker without ALPN speaks what was there before it.
    let protocol = if stream.get_ref().1.alpn_protocol() == Some(HTTP2) {
        Protocol::Http2
    } else {
        Protocol::Http1
    };
    Ok(Opened { socket: Socket::upstream_tls(stream), protocol, made_with: Some(made_with) })
}

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// What a worker behind TLS may pick from, the one we like best first.
pub const UPSTREAM_PROTOCOLS: &[&[u8]] = &[HTTP2, HTTP1];
