//! What went wrong with a TLS peer, in words that say what to look at. rustls's own words have the
//! details.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "what can go wrong is rustls's list, which grows"
)]

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError};

use crate::refuses_certificate;

/// What the user calls what a connection is made of.
#[derive(Debug, Clone, Copy)]
pub struct Called {
    /// Where the authorities are named.
    pub ca: &'static str,
    /// Where the revocation lists are named.
    pub crl: &'static str,
    /// What a peer refuses that refuses our certificate.
    pub certificate: &'static str,
}

impl Called {
    /// What to look at where this has gone wrong; `None` if rustls's own words are all there is.
    pub fn explain(&self, error: &rustls::Error) -> Option<String> {
        use rustls::Error::{
            AlertReceived, InvalidCertRevocationList, InvalidCertificate, InvalidMessage,
            NoCertificatesPresented, PeerIncompatible,
        };
        Some(match error {
            InvalidCertificate(error) => self.explain_certificate(error),
            InvalidCertRevocationList(_) => {
                format!("the list in {} of what its authority has revoked is of no use", self.crl)
            }
            AlertReceived(alert) if refuses_certificate(*alert) => {
                format!("it refuses {}", self.certificate)
            }
            AlertReceived(alert) => explained_alert(*alert).to_owned(),
            InvalidMessage(_) => "it does not speak TLS".to_owned(),
            NoCertificatesPresented => "it shows no certificate".to_owned(),
            PeerIncompatible(_) => NO_COMMON.to_owned(),
            _ => return None,
        })
    }

    /// What has gone wrong by TLS behind an error, explained, with rustls's own words after it.
    pub fn explain_behind(&self, error: &(dyn Error + 'static)) -> Option<String> {
        let error = tls_behind(error)?;
        Some(match self.explain(error) {
            Some(words) => format!("{words} ({error})"),
            None => error.to_string(),
        })
    }

    fn explain_certificate(&self, error: &CertificateError) -> String {
        use CertificateError as C;
        let words = match error {
            C::UnknownIssuer | C::BadSignature => {
                return format!("its certificate is not signed by an authority of {}", self.ca);
            }
            C::Expired | C::ExpiredContext { .. } => "its certificate has expired",
            C::NotValidYet | C::NotValidYetContext { .. } => "its certificate is not valid yet",
            C::NotValidForName | C::NotValidForNameContext { .. } => {
                "its certificate is for another name"
            }
            C::Revoked => "its certificate has been revoked",
            _ => "its certificate cannot be believed",
        };
        words.to_owned()
    }
}

const NO_COMMON: &str = "it speaks no version or cipher of TLS that is spoken here";

fn explained_alert(alert: AlertDescription) -> &'static str {
    use AlertDescription as A;
    match alert {
        A::NoApplicationProtocol => "it speaks no version of HTTP that was offered",
        A::ProtocolVersion | A::InsufficientSecurity => NO_COMMON,
        // By TLS 1.2, OpenSSL says so of both.
        A::HandshakeFailure => {
            "it wants a certificate, or speaks no version or cipher of TLS that is spoken here"
        }
        A::UnrecognisedName => "it has no certificate for the name",
        _ => "it ended the handshake",
    }
}

/// What rustls says, if it is behind that error. By TLS 1.3, a peer refuses our certificate only
/// when the handshake is over for us: the first who reads learns of it.
pub fn tls_behind<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // What an error of I/O has inside is not its cause.
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inside.map(|inside| inside as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}
