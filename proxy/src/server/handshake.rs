//! The TLS handshake of a client's connection.

use std::io;
use std::rc::Rc;

use fencepost_tls::{Called, PeerNames, ServerTls};
use rustls::ServerConnection;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::client::{ClientAddress, Protocol};
use super::limits::Limits;
use super::lingering_close;
use super::listener::ListenerTls;
use super::proxy_protocol::Unexpected;
use crate::wire::{Socket, Transport};

/// Protocols inside of TLS, the preferred first. A client that offers others only is refused in the
/// handshake.
pub const ALPN: [&[u8]; 3] = [b"h2", b"http/1.1", b"http/1.0"];

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HandshakeFailure {
    /// It took longer than `handshake_timeout`.
    #[error("it took longer than handshake_timeout")]
    Timeout,
    /// The client left, or the connection was lost.
    #[error("the client left")]
    Closed,
    /// The client showed no certificate where one is required, or one that is not trusted.
    #[error("the client showed no certificate, or none that is trusted")]
    Certificate,
    /// The client broke off, for example because it does not trust our certificate.
    #[error("the client ended it, perhaps because it does not trust our certificate")]
    Refused,
    /// The two sides have no version or cipher in common, or the client broke a rule, for example by
    /// HTTP in the clear.
    #[error("the two sides have no version or cipher in common, or the client speaks no TLS")]
    Protocol,
}

impl HandshakeFailure {
    /// Every one.
    pub const ALL: [HandshakeFailure; 5] = [
        HandshakeFailure::Timeout,
        HandshakeFailure::Closed,
        HandshakeFailure::Certificate,
        HandshakeFailure::Refused,
        HandshakeFailure::Protocol,
    ];

    /// As a metric's label has it.
    pub fn code(self) -> &'static str {
        match self {
            HandshakeFailure::Timeout => "timeout",
            HandshakeFailure::Closed => "closed",
            HandshakeFailure::Certificate => "certificate",
            HandshakeFailure::Refused => "refused",
            HandshakeFailure::Protocol => "protocol",
        }
    }

    fn of(error: &io::Error) -> HandshakeFailure {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        cause.map_or(HandshakeFailure::Closed, HandshakeFailure::of_tls)
    }

    fn of_tls(error: &rustls::Error) -> HandshakeFailure {
        use rustls::Error;
        // The last: the authority has not signed its revocation list, for example.
        let of_certificate = matches!(
            error,
            Error::NoCertificatesPresented
                | Error::InvalidCertificate(_)
                | Error::InvalidCertRevocationList(_)
        );
        if of_certificate {
            HandshakeFailure::Certificate
        } else if matches!(error, Error::AlertReceived(_)) {
            HandshakeFailure::Refused
        } else {
            HandshakeFailure::Protocol
        }
    }
}

const CALLED: Called =
    Called { ca: "client_ca", crl: "crl", certificate: "the certificate of the listener" };

/// A failed handshake, for the log and the metrics.
pub struct LostHandshake {
    /// The client's address.
    pub client: ClientAddress,
    /// Why.
    pub why: HandshakeFailure,
    /// What went wrong, if the client has sent anything.
    error: Option<io::Error>,
}

impl LostHandshake {
    /// What went wrong, in words.
    pub fn words(&self) -> String {
        let Some(error) = &self.error else { return self.why.to_string() };
        CALLED.explain_behind(error).unwrap_or_else(|| error.to_string())
    }

    /// Whether its client has closed without sending anything, as health checks do.
    pub fn is_wordless(&self) -> bool {
        self.why == HandshakeFailure::Closed && self.error.is_none()
    }
}

/// A connection whose handshake is done.
pub(super) struct Established {
    pub(super) socket: Socket,
    /// The names in the client's certificate, if it has shown one.
    pub(super) names: Option<Rc<PeerNames>>,
    /// What was agreed on; `None` if the client asked for nothing.
    pub(super) protocol: Option<Protocol>,
}

/// A failed handshake.
struct Failed {
    why: HandshakeFailure,
    /// What went wrong, for the log.
    error: Option<io::Error>,
    /// The connection, if it may still be open.
    still_open: Option<Transport>,
}

/// Completes the handshake with a client. `None` if it fails, once the client could read the alert.
pub(super) async fn handshake(
    transport: Transport,
    address: ClientAddress,
    tls: &ListenerTls,
    limits: &Limits,
) -> Option<Established> {
    let accepted = timeout(limits.handshake_timeout, accept(transport, &tls.server)).await;
    let Failed { why, error, still_open } = match accepted {
        Ok(Ok(established)) => return Some(established),
        Ok(Err(failed)) => failed,
        Err(_) => Failed { why: HandshakeFailure::Timeout, error: None, still_open: None },
    };
    (tls.on_failure)(&LostHandshake { client: address, why, error });
    if let Some(transport) = still_open {
        lingering_close::linger(Socket::downstream(transport), &[]).await;
    }
    None
}

async fn accept(transport: Transport, tls: &ServerTls) -> Result<Established, Failed> {
    let first = transport.first_bytes().await;
    let accepting = TlsAcceptor::from(tls.config()).accept(transport).into_fallible();
    let stream = accepting.await.map_err(|(error, transport)| Failed {
        why: HandshakeFailure::of(&error),
        error: (transport.bytes_moved() > 0)
            .then(|| Unexpected::of(&first, true).map_or(error, io::Error::other)),
        still_open: Some(transport), // The alert has been written: the client is to hear it.
    })?;
    established(stream)
}

fn established(stream: TlsStream<Transport>) -> Result<Established, Failed> {
    let session = stream.get_ref().1;
    let failed = |error: rustls::Error| Failed {
        why: HandshakeFailure::of_tls(&error),
        error: Some(io::Error::other(error)),
        still_open: None,
    };
    let names = peer_names(session).map_err(failed)?;
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Some(Protocol::Http2),
        Some(_) => Some(Protocol::Http1),
        None => None,
    };
    Ok(Established { socket: Socket::downstream_tls(stream), names: names.map(Rc::new), protocol })
}

fn peer_names(session: &ServerConnection) -> Result<Option<PeerNames>, rustls::Error> {
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    let unreadable = |_| rustls::CertificateError::BadEncoding.into();
    certificate.map(PeerNames::of).transpose().map_err(unreadable)
}
