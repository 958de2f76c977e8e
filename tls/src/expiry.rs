//! When certificates and revocation lists begin and end.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{ASN1Time, CertificateRevocationList, FromDer, X509Certificate};

use crate::contents::Text;
use crate::error::{Flaw, TlsError};

/// The time after which something in a file is no longer believed, and the one before which it is
/// not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    /// The file.
    pub file: PathBuf,
    /// What ends.
    pub what: Dated,
    /// Whose it is: the subject of the certificate, or the issuer of the revocation list.
    pub subject: String,
    /// When it begins, in seconds of Unix time; for an authority, when the first of its file does.
    /// What came before 1970 begins at 0.
    pub not_before: u64,
    /// When it ends, in the same. What came before 1970 ends at 0.
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

/// The last second of 9999: a later one cannot be written down.
const LAST_SECOND: u64 = 253_402_300_799;

impl Expiry {
    /// What is to be said at that time, if it has not begun, has ended, or ends within 30 days.
    pub fn caution(&self, now: SystemTime) -> Option<String> {
        let Expiry { file, what, subject, not_before, not_after } = self;
        let what = match what {
            Dated::Certificate => "the certificate",
            Dated::Authority => "the authority",
            Dated::Crl => "the revocation list",
        };
        let [begin, end] =
            [not_before, not_after].map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(*at));
        let when = match end.duration_since(now) {
            // Before its end is near: whoever sees it now does not believe it.
            Ok(_) if now < begin => {
                format!("is not valid before {}", format_rfc3339_seconds(begin))
            }
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
            let unreadable = |_| {
                file.error(Flaw::Certificate {
                    number: index + 1,
                    reason: "it cannot be read".to_owned(),
                })
            };
            let (_, parsed) = X509Certificate::from_der(certificate).map_err(unreadable)?;
            let [not_before, not_after] =
                [parsed.validity().not_before, parsed.validity().not_after].map(seconds);
            Ok(Expiry {
                file: file.path.to_owned(),
                what,
                subject: parsed.subject().to_string(),
                not_before,
                not_after,
            })
        };
        certificates.iter().enumerate().map(expiry).collect()
    }

    /// Of those that say when their next is due.
    ///
    /// # Errors
    /// If one of them is no revocation list.
    pub(crate) fn of_crls(
        file: &Text<'_>,
        crls: &[CertificateRevocationListDer<'_>],
    ) -> Result<Vec<Expiry>, TlsError> {
        let expiry = |crl: &CertificateRevocationListDer<'_>| {
            let unreadable = |_| file.error(Flaw::Crl("it cannot be read".to_owned()));
            let (_, parsed) = CertificateRevocationList::from_der(crl).map_err(unreadable)?;
            Ok(parsed.next_update().map(|next_update| Expiry {
                file: file.path.to_owned(),
                what: Dated::Crl,
                subject: parsed.issuer().to_string(),
                not_before: seconds(parsed.last_update()),
                not_after: seconds(next_update),
            }))
        };
        crls.iter().filter_map(|crl| expiry(crl).transpose()).collect()
    }
}

/// In seconds of Unix time. What came before 1970 is 0.
pub(crate) fn seconds(time: ASN1Time) -> u64 {
    u64::try_from(time.timestamp()).unwrap_or(0).min(LAST_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_within_thirty_days_is_told() {
        check(0, 31 * DAY, DAY - 1, None);
        check(0, 31 * DAY, DAY, Some("ends in 30 days"));
        check(0, 31 * DAY, 31 * DAY, Some("ends in 0 days"));
        check(0, 31 * DAY, 31 * DAY + 1, Some("has ended"));
    }

    /// It was put in force without a word, and every client failed.
    #[test]
    fn what_has_not_begun_is_told() {
        let not_yet = Some("is not valid before 1970-01-02T00:00:00Z");
        check(DAY, 90 * DAY, DAY - 1, not_yet);
        check(DAY, 90 * DAY, DAY, None);
        check(DAY, 2 * DAY, DAY - 1, not_yet);
        check(DAY, 2 * DAY, DAY, Some("ends in 1 days"));
        check(2 * DAY, DAY, DAY + 1, Some("has ended"));
        check(LAST_SECOND, LAST_SECOND, 0, Some("is not valid before 9999-12-31T23:59:59Z"));
    }

    #[track_caller]
    fn check(not_before: u64, not_after: u64, now: u64, expected: Option<&str>) {
        let subject = "CN=a".to_owned();
        let expiry =
            Expiry { file: "/t/a.pem".into(), what: Dated::Crl, subject, not_before, not_after };
        let caution = expiry.caution(SystemTime::UNIX_EPOCH + Duration::from_secs(now));
        assert_eq!(
            caution,
            expected.map(|when| format!("/t/a.pem: the revocation list of \"CN=a\" {when}"))
        );
    }
}
