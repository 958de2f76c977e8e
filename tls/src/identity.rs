//! A certificate and its key: what one side of a connection shows to be itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, InconsistentKeys};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

use crate::contents::{Contents, Text};
use crate::crypto::provider;
use crate::error::{FileRole, Flaw, TlsError};
use crate::expiry::{Dated, Expiry};

/// Where a certificate and its key are. They may be the same file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdentityFiles {
    /// The certificate and after it those that lead to its authority, in PEM.
    pub certificate: PathBuf,
    /// The private key without a passphrase, in PEM: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
}

impl IdentityFiles {
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        [self.certificate.as_path(), self.key.as_path()].into_iter()
    }

    /// What the files come to, and when each certificate of the chain begins and ends.
    pub(crate) fn make(
        &self,
        contents: &Contents,
    ) -> Result<(Arc<CertifiedKey>, Vec<Expiry>), TlsError> {
        let certificate = contents.of(&self.certificate, FileRole::Certificate)?;
        let chain: Vec<CertificateDer<'static>> = certificate.objects(Flaw::NoCertificate)?;
        let expiries = Expiry::of_certificates(&certificate, Dated::Certificate, &chain)?;
        let key_file = contents.of(&self.key, FileRole::Key)?;
        let key = private_key(&key_file)?;
        let unusable = |_| key_file.error(Flaw::UnusableKey);
        let signing_key = provider().key_provider.load_private_key(key).map_err(unusable)?;
        let certified = CertifiedKey::new(chain, signing_key);
        certified.keys_match().map_err(|error| {
            if error == InconsistentKeys::KeyMismatch.into() {
                return key_file.error(Flaw::OtherKey { certificate: self.certificate.clone() });
            }
            certificate
                .error(Flaw::Certificate { number: 1, reason: reason(&certified.cert[0], &error) })
        })?;
        Ok((Arc::new(certified), expiries))
    }
}

/// Why a certificate can't be ours.
fn reason(certificate: &CertificateDer<'_>, error: &Error) -> String {
    if let Ok((_, parsed)) = X509Certificate::from_der(certificate)
        && parsed.version() != X509Version::V3
    {
        return format!("its version is {} of X.509, and has to be 3", parsed.version().0 + 1);
    }
    if let Error::InvalidCertificate(CertificateError::Other(error)) = error {
        return error.to_string();
    }
    error.to_string()
}

fn private_key(file: &Text<'_>) -> Result<PrivateKeyDer<'static>, TlsError> {
    if file.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----")
        || file.contains("Proc-Type: 4,ENCRYPTED")
    {
        return Err(file.error(Flaw::EncryptedKey));
    }
    let mut keys = file.objects(Flaw::NoKey)?;
    Ok(keys.swap_remove(0))
}
