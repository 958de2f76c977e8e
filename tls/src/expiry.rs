//! When certificates and revocation lists end.

use std::path::PathBuf;

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::contents::Text;
use crate::error::{Flaw, TlsError};

/// The time after which something in a file is no longer believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    /// The file.
    pub file: PathBuf,
    /// What ends.
    pub what: Dated,
    /// Whose it is: the subject of the certificate, or the issuer of the revocation list.
    pub subject: String,
    /// When, in seconds of Unix time. What came before 1970 ends at 0.
    pub not_after: u64,
}

/// What has an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dated {
    /// A certificate of the chain that we show.
    Certificate,
    /// A certificate of an authority that we believe.
    Authority,
    /// A revocation list, whose next is due then.
    Crl,
}

impl Expiry {
    /// # Errors
    /// If one of them is no certificate.
    pub(crate) fn of_certificates(
        file: &Text<'_>,
        what: Dated,
        certificates: &[CertificateDer<'_>],
    ) -> Result<Vec<Expiry>, TlsError> {
        let expiry = |(index, certificate): (usize, &CertificateDer<'_>)| {
            let unreadable =
                |_| file.error(Flaw::Certificate { number: index + 1, reason: "it cannot be read".to_owned() });
            let (_, parsed) = X509Certificate::from_der(certificate).map_err(unreadable)?;
            let not_after = seconds(parsed.validity().not_after.timestamp());
            Ok(Expiry { file: file.path.to_owned(), what, subject: parsed.subject().to_string(), not_after })
        };
        certificates.iter().enumerate().map(expiry).collect()
    }

    /// Of those that say when their next is due.
    ///
    /// # Errors
    /// If one of them is no revocation list.
    pub(crate) fn of_crls(file: &Text<'_>, crls: &[CertificateRevocationListDer<'_>]) -> Result<Vec<Expiry>, TlsError> {
        let expiry = |crl: &CertificateRevocationListDer<'_>| {
            let unreadable = |_| file.error(Flaw::Crl("it cannot be read".to_owned()));
            let (_, parsed) = CertificateRevocationList::from_der(crl).map_err(unreadable)?;
            Ok(parsed.next_update().map(|next_update| Expiry {
                file: file.path.to_owned(),
                what: Dated::Crl,
                subject: parsed.issuer().to_string(),
                not_after: seconds(next_update.timestamp()),
            }))
        };
        crls.iter().filter_map(|crl| expiry(crl).transpose()).collect()
    }
}

fn seconds(timestamp: i64) -> u64 {
    u64::try_from(timestamp).unwrap_or(0)
}
