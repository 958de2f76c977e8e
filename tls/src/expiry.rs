//! When certificates and revocation lists end.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

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
    /// Of the authorities in a file that we believe, the one that lasts longest.
    Authority,
    /// A revocation list, whose next is due then.
    Crl,
}

impl Dated {
    /// Every one.
    pub const ALL: [Dated; 3] = [Dated::Certificate, Dated::Authority, Dated::Crl];

    /// As a metric's label has it.
    pub fn name(self) -> &'static str {
        match self {
            Dated::Certificate => "certificate",
            Dated::Authority => "authority",
            Dated::Crl => "crl",
        }
    }
}

/// How long before its end something is to be renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * DAY);

const DAY: u64 = 24 * 60 * 60;

impl Expiry {
    /// What is to be said at that time, if it has ended or ends within 30 days.
    pub fn caution(&self, now: SystemTime) -> Option<String> {
        let Expiry { file, what, subject, not_after } = self;
        let what = match what {
            Dated::Certificate => "the certificate",
            Dated::Authority => "the authority",
            Dated::Crl => "the revocation list",
        };
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(*not_after);
        let when = match end.duration_since(now) {
            Ok(left) if left > RENEWED_BEFORE => return None,
            Ok(left) => format!("ends in {} days", left.as_secs() / DAY),
            Err(_) => "has ended".to_owned(),
        };
        Some(format!("{}: {what} of {subject:?} {when}", file.display()))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_within_thirty_days_is_told() {
        let expiry =
            Expiry { file: "/t/a.pem".into(), what: Dated::Crl, subject: "CN=a".to_owned(), not_after: 31 * DAY };
        let at = |seconds| expiry.caution(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(DAY - 1), None);
        let expected = |when: &str| Some(format!("/t/a.pem: the revocation list of \"CN=a\" {when}"));
        assert_eq!(at(DAY), expected("ends in 30 days"));
        assert_eq!(at(31 * DAY), expected("ends in 0 days"));
        assert_eq!(at(31 * DAY + 1), expected("has ended"));
    }
}
