//! A certificate in a trust file, and what it is good for: the verifiers go by it, and `fencepost
//! check` shows it. Builds no chain: webpki does, from the entries that are authorities.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{X509Certificate, X509Version};

use crate::pinned::Pinned;

/// A certificate in a trust file, and what it is good for.
#[derive(Debug)]
pub struct TrustEntry {
    /// The file.
    pub file: PathBuf,
    /// Its place in the file, from 1.
    pub number: usize,
    /// Whose it is.
    pub subject: String,
    pub(crate) standing: Standing,
}

/// What a certificate is trusted for.
#[derive(Debug)]
pub(crate) enum Standing {
    /// What it has issued. `itself`: one that is self-signed is trusted when a peer presents it,
    /// too, as a worker's is that `openssl req -x509` made.
    Authority { itself: Option<Pinned>, not_after: u64 },
    /// Itself alone.
    Pinned(Pinned, NoAuthority),
}

/// Why a certificate is not trusted as an issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAuthority {
    /// It is older than extensions.
    #[error("its version of X.509 is below 3")]
    Version,
    /// Its basic constraints are missing or say `CA:FALSE`.
    #[error("it is not marked CA:TRUE")]
    EndEntity,
    /// Its key usage does not have `keyCertSign`.
    #[error("its key usage lacks keyCertSign")]
    KeyUsage,
}

impl NoAuthority {
    /// Why a certificate is no authority; `None`: it is one.
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Option<NoAuthority> {
        if certificate.version() != X509Version::V3 {
            return Some(NoAuthority::Version);
        }
        let constraints = certificate.basic_constraints().ok().flatten();
        if !constraints.is_some_and(|constraints| constraints.value.ca) {
            return Some(NoAuthority::EndEntity);
        }
        let may_sign = certificate
            .key_usage()
            .is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
        (!may_sign).then_some(NoAuthority::KeyUsage)
    }
}

impl TrustEntry {
    /// The entry, if it is that certificate and trusted for itself.
    pub(crate) fn pinned(&self, certificate: &CertificateDer<'_>) -> Option<&Pinned> {
        match &self.standing {
            Standing::Authority { itself, .. } => itself.as_ref(),
            Standing::Pinned(pinned, _) => Some(pinned),
        }
        .filter(|pinned| pinned.is(certificate))
    }

    /// What it is good for at that time.
    pub fn good_for(&self, now: SystemTime) -> String {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        match &self.standing {
            Standing::Authority { itself, not_after } => {
                let is_trusted = itself.as_ref().is_some_and(|pinned| pinned.check(now).is_ok());
                let itself = if is_trusted { ", and for itself" } else { "" };
                let expired = match *not_after < now {
                    true => {
                        format!(
                            "; it expired at {}, and is trusted as long as it is in the file",
                            date(*not_after)
                        )
                    }
                    false => String::new(),
                };
                format!("authority: trusted for the certificates that it issues{itself}{expired}")
            }
            Standing::Pinned(pinned, why) => {
                let state = match pinned.check(now) {
                    Ok(()) => format!("trusted until {}", date(pinned.not_after)),
                    Err(error) => format!("refused: {}", refusal(&error, pinned)),
                };
                format!("this certificate only ({why}): {state}")
            }
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "rustls's list grows")]
fn refusal(error: &CertificateError, pinned: &Pinned) -> String {
    match error {
        CertificateError::Expired => format!("it expired at {}", date(pinned.not_after)),
        CertificateError::NotValidYet => {
            format!("it is not valid before {}", date(pinned.not_before))
        }
        CertificateError::UnknownRevocationStatus => {
            "with crl, only what an authority has issued is trusted".to_owned()
        }
        CertificateError::InvalidPurpose => {
            "its extended key usage is for something else".to_owned()
        }
        CertificateError::BadEncoding => "TLS cannot present such a certificate".to_owned(),
        other => other.to_string(),
    }
}

fn date(seconds: u64) -> String {
    format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}
