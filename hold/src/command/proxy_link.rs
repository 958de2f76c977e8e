//! Connections to a proxy, in the clear or by TLS. They write nothing once the tenure may be over.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::Standing;
use bytes::Bytes;
use fencepost_tls::{Called, ClientFiles, ClientTls, Look, TlsError, tls_behind};
use http::Uri;
use hyper::body::Body;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use super::console::Console;
use super::proxy_address::ProxyAddress;
use super::while_held::WhileHeld;

/// What is spoken inside of TLS.
const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// How long the proxy may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection is kept without a request: half as long as the proxy keeps it by default
/// (`idle_timeout`). When the proxy closes a connection while a request is on its way, nobody knows
/// what became of the request.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// How many header fields a message may have: the most that the proxy can be told to take
/// (`headers_max`).
pub(super) const HEADERS_MAX: usize = 1_000;

/// A proxy, and how to connect to it.
#[derive(Debug, Clone)]
pub(super) struct ProxyLink {
    pub(super) address: ProxyAddress,
    /// `None`: in the clear.
    tls: Option<(ServerName<'static>, ProxyTls)>,
}

/// Sends requests to a proxy, with bodies of that kind, under one tenure.
pub(super) type ProxyClient<B> =
    Client<BoxCloneSyncService<Uri, TokioIo<ProxyStream>, io::Error>, B>;

/// A connection to a proxy.
pub(super) type ProxyStream = Box<dyn Duplex>;

/// A stream of bytes in both directions.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

impl Connection for ProxyStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl ProxyLink {
    /// `tls` is needed where TLS is spoken with the proxy.
    pub(super) fn new(address: &ProxyAddress, tls: Option<&ProxyTls>) -> ProxyLink {
        let tls = address.server_name().cloned().zip(tls.cloned());
        ProxyLink { address: address.clone(), tls }
    }

    /// Whether TLS is spoken with it.
    pub(super) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// A client for as long as that tenure lasts. Its requests go to [`ProxyAddress::uri`].
    pub(super) fn client<B>(&self, standing: watch::Receiver<Standing>) -> ProxyClient<B>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let link = self.clone();
        let connector = service_fn(move |_: Uri| {
            let (link, standing) = (link.clone(), standing.clone());
            async move { link.connect(standing).await.map(TokioIo::new) }
        });
        let mut client = Client::builder(TokioExecutor::new());
        client
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .http1_max_headers(HEADERS_MAX);
        client.build(BoxCloneSyncService::new(connector))
    }

    /// Connects, for as long as that tenure lasts.
    pub(super) async fn connect(
        &self,
        standing: watch::Receiver<Standing>,
    ) -> io::Result<ProxyStream> {
        let connected = timeout(CONNECT_TIMEOUT, async {
            let stream = TcpStream::connect(self.address.socket()).await?;
            stream.set_nodelay(true)?;
            let stream = WhileHeld::new(stream, standing);
            let Some((server_name, tls)) = &self.tls else {
                return Ok(Box::new(stream) as ProxyStream);
            };
            let connector = TlsConnector::from(tls.config().await);
            Ok(Box::new(connector.connect(server_name.clone(), stream).await?) as ProxyStream)
        });
        connected.await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long to connect"))
        })
    }
}

impl fmt::Display for ProxyLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// TLS with proxies, as its files say. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct ProxyTls {
    client: ClientTls,
    console: Console,
}

impl ProxyTls {
    /// Reads and checks the files.
    pub(super) fn load(files: ClientFiles, console: Console) -> Result<ProxyTls, TlsError> {
        Ok(ProxyTls { client: ClientTls::load(files, PROTOCOLS)?, console })
    }

    /// For a connection that begins now: certificates may be renewed while a lock is held.
    async fn config(&self) -> Arc<ClientConfig> {
        let followed = self.client.followed();
        // Reading a file may block. An error means that looking panicked.
        if let Ok(Look::Failed(error)) = tokio::task::spawn_blocking(move || followed.look()).await
        {
            self.console.print(format_args!("{error}; what was in force stays"));
        }
        self.client.config()
    }
}

/// One side does not take the other for what it should be.
#[derive(Debug, thiserror::Error)]
pub(super) struct TlsRefusal(rustls::Error);

impl fmt::Display for TlsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CALLED.explain(&self.0) {
            Some(words) => write!(f, "{words}: {}", self.0),
            None => self.0.fmt(f),
        }
    }
}

impl TlsRefusal {
    /// What TLS has to say, if it is behind that error.
    pub(super) fn behind(error: &(dyn Error + 'static)) -> Option<TlsRefusal> {
        tls_behind(error).cloned().map(TlsRefusal)
    }
}

const CALLED: Called = Called {
    ca: "--proxy-ca",
    crl: "crl",
    certificate: "the certificate of --proxy-cert, or wants one",
};
