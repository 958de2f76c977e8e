//! What is wrong with a file.

use std::path::{Path, PathBuf};

/// A file that is of no use, and why. Nothing that stands in the file is repeated here: it may be a
/// key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {flaw}", file.display())]
pub struct TlsError {
    /// The file.
    pub file: PathBuf,
    /// What was looked for in it. One file may be named for more than one thing.
    pub role: FileRole,
    /// What is wrong with it.
    pub flaw: Flaw,
}

/// What a file is named for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRole {
    /// The certificate that we show, and those that lead to its authority.
    Certificate,
    /// The private key.
    Key,
    /// The authorities that we believe.
    Authorities,
    /// What these have revoked.
    Crl,
}

impl TlsError {
    pub(crate) fn new(file: &Path, role: FileRole, flaw: Flaw) -> TlsError {
        TlsError { file: file.to_owned(), role, flaw }
    }
}

/// What can be wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The system does not let us read it.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// It is a directory, a pipe or a device.
    #[error("is not a regular file")]
    NotAFile,
    /// It has more than [`Flaw::BYTES_MAX`] bytes.
    #[error("is larger than 64 MiB")]
    TooLarge,
    /// There is no PEM in it at all.
    #[error("is not PEM: nothing in it begins with -----BEGIN")]
    NotPem,
    /// Its PEM is cut short or garbled.
    #[error("its PEM is cut short or garbled")]
    Garbled,
    /// There is PEM in it, but no certificate.
    #[error("has no certificate in it (-----BEGIN CERTIFICATE-----)")]
    NoCertificate,
    /// A certificate in it can't be read, or can't be what it is to be.
    #[error("certificate {number} in it cannot be used: {reason}")]
    Certificate {
        /// Which one, from 1.
        number: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There is PEM in it, but no private key.
    #[error("has no private key in it (-----BEGIN PRIVATE KEY-----)")]
    NoKey,
    /// The key takes a passphrase.
    #[error("its private key is encrypted: it has to be without a passphrase")]
    EncryptedKey,
    /// The key is of a kind or size that can't be used.
    #[error(
        "its private key cannot be used: ECDSA (P-256, P-384), Ed25519 and RSA of 2048 bits or more can"
    )]
    UnusableKey,
    /// The key is another certificate's.
    #[error("its private key does not belong to the (first) certificate in {}", certificate.display())]
    OtherKey {
        /// The file with the certificate.
        certificate: PathBuf,
    },
    /// There is PEM in it, but no revocation list.
    #[error("has no revocation list in it (-----BEGIN X509 CRL-----)")]
    NoCrl,
    /// A revocation list in it can't be read.
    #[error("a revocation list in it cannot be used: {0}")]
    Crl(String),
}

impl Flaw {
    /// What is read of a file at most.
    pub const BYTES_MAX: u64 = 64 << 20;
}
