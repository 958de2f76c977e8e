//! A certificate that a trust file names for itself: a peer that presents it is trusted, and
//! nothing that it has signed. Proof of the key and the server's name are left to the handshake.

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::ParsedCertificate;
use x509_parser::oid_registry::OID_X509_EXT_ISSUER_DISTRIBUTION_POINT;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

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
    /// What no time heals: the wrong kind of peer, a revocation.
    flaw: Option<CertificateError>,
    /// When the revocation list that does not name it is overdue.
    list_until: Option<u64>,
}

impl Pinned {
    /// `others` are all certificates of the trust file. `lists` are the revocation lists, the
    /// newest of each issuer first; `None`: nothing is revoked.
    pub(crate) fn new(
        certificate: &CertificateDer<'static>,
        parsed: &X509Certificate<'_>,
        peer: Peer,
        others: &[X509Certificate<'_>],
        lists: Option<&[CertificateRevocationListDer<'_>]>,
    ) -> Pinned {
        let cleared = lists.map(|lists| cleared_until(parsed, others, lists)).transpose();
        let flaw =
            ParsedCertificate::try_from(certificate).err().map(|_| CertificateError::BadEncoding);
        let flaw =
            flaw.or_else(|| (!is_for(parsed, peer)).then_some(CertificateError::InvalidPurpose));
        Pinned {
            certificate: certificate.clone(),
            not_before: seconds(parsed.validity().not_before),
            not_after: seconds(parsed.validity().not_after),
            flaw: flaw.or_else(|| cleared.clone().err()),
            list_until: cleared.ok().flatten(),
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
        if self.list_until.is_some_and(|until| until < now) {
            return Err(CertificateError::ExpiredRevocationList);
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

/// The time up to which a revocation list clears a certificate. As with webpki, a list counts if
/// the certificate's issuer has signed it, and a certificate without one is refused. So the issuer
/// has to be in the trust file; of a self-signed one, it is.
fn cleared_until(
    certificate: &X509Certificate<'_>,
    others: &[X509Certificate<'_>],
    lists: &[CertificateRevocationListDer<'_>],
) -> Result<u64, CertificateError> {
    let has_issued = |other: &&X509Certificate<'_>| {
        other.subject().as_raw() == certificate.issuer().as_raw()
            && certificate.verify_signature(Some(other.public_key())).is_ok()
    };
    let issuer = others.iter().find(has_issued).ok_or(CertificateError::UnknownRevocationStatus)?;
    for list in lists {
        let Ok((_, list)) = CertificateRevocationList::from_der(list) else { continue };
        // A list of some certificates only says nothing of this one.
        let is_partial =
            list.extensions().iter().any(|one| one.oid == OID_X509_EXT_ISSUER_DISTRIBUTION_POINT);
        if is_partial
            || list.issuer().as_raw() != certificate.issuer().as_raw()
            || list.verify_signature(issuer.public_key()).is_err()
        {
            continue;
        }
        if list
            .iter_revoked_certificates()
            .any(|revoked| revoked.raw_serial() == certificate.raw_serial())
        {
            return Err(CertificateError::Revoked);
        }
        return list.next_update().map(seconds).ok_or(CertificateError::UnknownRevocationStatus);
    }
    Err(CertificateError::UnknownRevocationStatus)
}
