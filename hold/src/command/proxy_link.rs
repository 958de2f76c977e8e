//! Connections to a proxy, in the clear or by TLS, which write nothing once the tenure may be over.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::Standing;
use fencepost_tls::{ClientFiles, ClientTls, Look, TlsError};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use super::console::Console;
use super::proxy_address::ProxyAddress;
use super::while_held::WhileHeld;

/// What is spoken inside of TLS.
const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// A proxy, and how to connect to it.
#[derive(Debug, Clone)]
pub(super) struct ProxyLink {
    pub(super) address: ProxyAddress,
    /// `None`: in the clear.
    tls: Option<(ServerName<'static>, ProxyTls)>,
}

/// A connection to a proxy.
pub(super) type ProxyStream = Box<dyn Duplex>;

/// What can be read and written.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// Nobody is there, or the connection was lost: later somebody may be.
    #[error("{0}")]
    Lost(#[from] io::Error),
    /// Who is there is not who it should be, or does not take us for what we are.
    #[error("{0}")]
    Tls(#[from] TlsRefusal),
}

impl ProxyLink {
    /// `tls` is what there is of it for all proxies: where one speaks TLS, there is some.
    pub(super) fn new(address: &ProxyAddress, tls: Option<&ProxyTls>) -> ProxyLink {
        let tls = address.server_name().cloned().zip(tls.cloned());
        ProxyLink { address: address.clone(), tls }
    }

    /// Whether TLS is spoken with it.
    pub(super) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects, for as long as that tenure lasts.
    pub(super) async fn connect(&self, standing: watch::Receiver<Standing>) -> Result<ProxyStream, LinkError> {
        let stream = TcpStream::connect(self.address.socket()).await?;
        stream.set_nodelay(true)?;
        let stream = WhileHeld::new(stream, standing);
        let Some((server_name, tls)) = &self.tls else { return Ok(Box::new(stream)) };
        let connector = TlsConnector::from(tls.config().await);
        match connector.connect(server_name.clone(), stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(match TlsRefusal::behind(&error) {
                Some(refusal) => refusal.into(),
                None => {
                    io::Error::new(error.kind(), format!("the connection was lost in the handshake: {error}")).into()
                }
            }),
        }
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
        if let Ok(Look::Failed(error)) = tokio::task::spawn_blocking(move || followed.look()).await {
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
        match explained(&self.0) {
            Some(words) => write!(f, "{words}: {}", self.0),
            None => self.0.fmt(f),
        }
    }
}

impl TlsRefusal {
    /// What TLS has to say, if it is behind that error. By TLS 1.3, a proxy refuses our certificate only when the handshake is over
    /// for us: the first who reads learns of it.
    pub(super) fn behind(error: &(dyn Error + 'static)) -> Option<TlsRefusal> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(refusal) = error.downcast_ref::<rustls::Error>() {
                return Some(TlsRefusal(refusal.clone()));
            }
            // What an error of I/O has inside is not its cause.
            let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            next = inside.map(|inside| inside as &(dyn Error + 'static)).or_else(|| error.source());
        }
        None
    }
}

/// What to look at, where rustls's own words do not say it.
#[expect(clippy::wildcard_enum_match_arm, reason = "what can go wrong is rustls's list, which grows")]
fn explained(error: &rustls::Error) -> Option<&'static str> {
    use AlertDescription as A;
    use CertificateError as C;
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    Some(match error {
        InvalidCertificate(C::UnknownIssuer | C::BadSignature) => {
            "its certificate is not signed by an authority of --proxy-ca"
        }
        InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => "its certificate has expired",
        InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => {
            "its certificate is for another name"
        }
        InvalidMessage(_) => "it does not speak TLS",
        AlertReceived(alert) if fencepost_tls::refuses_certificate(*alert) => {
            "it refuses the certificate of --proxy-cert, or wants one"
        }
        AlertReceived(A::NoApplicationProtocol) => "it does not speak HTTP/1.1",
        _ => return None,
    })
}
