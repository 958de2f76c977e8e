//! What went wrong with TLS to a worker, in words that say what to look at.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "what can go wrong is rustls's list, which grows"
)]

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::{AlertDescription, CertificateError};

/// Why there is no TLS with a worker: what is wrong, and with whose certificate.
#[derive(Debug, Clone)]
pub struct TlsFailure {
    cause: Arc<io::Error>,
}

impl TlsFailure {
    pub(super) fn of(cause: io::Error) -> TlsFailure {
        TlsFailure { cause: Arc::new(cause) }
    }

    /// Whether the connection was lost, without a word of TLS on why.
    pub(super) fn is_loss(&self) -> bool {
        self.cause.get_ref().is_none_or(|cause| !cause.is::<rustls::Error>())
    }
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause.get_ref().and_then(|cause| cause.downcast_ref()) {
            Some(error) => f.write_str(explained(error)),
            None if self.cause.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("it closed the connection in the handshake")
            }
            None => f.write_str("the connection was lost in the handshake"),
        }
    }
}

impl Error for TlsFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

/// What the operator should look at. rustls's own words, the cause of this, have the details.
pub(super) fn explained(error: &rustls::Error) -> &'static str {
    use rustls::Error::{
        AlertReceived, InvalidCertRevocationList, InvalidCertificate, InvalidMessage,
        PeerIncompatible,
    };
    match error {
        InvalidCertificate(error) => explained_certificate(error),
        InvalidCertRevocationList(_) => {
            "the list in upstream_tls.crl of what its authority has revoked is of no use"
        }
        AlertReceived(alert) => explained_alert(*alert),
        InvalidMessage(_) => "it does not speak TLS",
        PeerIncompatible(_) => "it speaks no version or cipher of TLS that is spoken here",
        _ => "the handshake failed",
    }
}

fn explained_certificate(error: &CertificateError) -> &'static str {
    use CertificateError as C;
    match error {
        C::UnknownIssuer | C::BadSignature => {
            "its certificate is not signed by an authority of upstream_tls.ca"
        }
        C::Expired | C::ExpiredContext { .. } => "its certificate has expired",
        C::NotValidYet | C::NotValidYetContext { .. } => "its certificate is not valid yet",
        C::NotValidForName | C::NotValidForNameContext { .. } => {
            "its certificate is for another name"
        }
        C::Revoked => "its certificate has been revoked",
        _ => "its certificate cannot be believed",
    }
}

fn explained_alert(alert: AlertDescription) -> &'static str {
    use AlertDescription as A;
    match alert {
        _ if fencepost_tls::refuses_certificate(alert) => {
            "it refuses our certificate, or wants one"
        }
        A::NoApplicationProtocol => "it speaks no version of HTTP that was offered",
        A::ProtocolVersion | A::InsufficientSecurity => {
            "it speaks no version or cipher of TLS that is spoken here"
        }
        // By TLS 1.2, OpenSSL says so of both.
        A::HandshakeFailure => {
            "it wants a certificate, or speaks no version or cipher of TLS that is spoken here"
        }
        A::UnrecognisedName => "it has no certificate for the name",
        _ => "it ended the handshake",
    }
}
