//! A certificate that a trust file names for itself: a peer that presents it is trusted, and
//! nothing that it has signed. Proof of the key and the server's name are left to the handshake.

use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use x509_parser::prelude::X509Certificate;

use crate::expiry::seconds;

/// Who presents certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Client,
    Server,
}

/// Such a certificate, and what makes a peer that presents it refused all the same.
#[derive(Debug)]
pub(crate) struct Pinned {
    certificate: CertificateDer<'static>,
    pub(crate) not_before: u64,
    pub(crate) not_after: u64,
    /// What no time heals.
    flaw: Option<CertificateError>,
}

impl Pinned {
    /// `has_lists`: what is not revoked has to stand in lists of authorities, and this stands in
    /// none.
    pub(crate) fn new(
        certificate: &CertificateDer<'static>,
        parsed: &X509Certificate<'_>,
        peer: Peer,
        has_lists: bool,
    ) -> Pinned {
        let flaw = if ParsedCertificate::try_from(certificate).is_err() {
            Some(CertificateError::BadEncoding)
        } else if !is_for(parsed, peer) {
            Some(CertificateError::InvalidPurpose)
        } else {
            has_lists.then_some(CertificateError::UnknownRevocationStatus)
        };
        Pinned {
            certificate: certificate.clone(),
            not_before: seconds(parsed.validity().not_before),
            not_after: seconds(parsed.validity().not_after),
            flaw,
        }
    }

    /// Whether that is the certificate, byte for byte.
    pub(crate) fn is(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificate == *certificate
    }

    /// Whether a peer that presents it is trusted at that time, in seconds of Unix time.
    pub(crate) fn check(&self, now: u64) -> Result<(), CertificateError> {
        if now < self.not_before {
            return Err(CertificateError::NotValidYet);
        }
        if self.not_after < now {
            return Err(CertificateError::Expired);
        }
        self.flaw.clone().map_or(Ok(()), Err)
    }
}

/// Whether its extended key usage, if it has one, lets such a peer present it. That is webpki's
/// rule, too.
fn is_for(certificate: &X509Certificate<'_>, peer: Peer) -> bool {
    match (certificate.extended_key_usage(), peer) {
        (Err(_), _) => false,
        (Ok(None), _) => true,
        (Ok(Some(usage)), Peer::Client) => usage.value.client_auth,
        (Ok(Some(usage)), Peer::Server) => usage.value.server_auth,
    }
}
