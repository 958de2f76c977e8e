//! The certificate that all have that are measured over TLS.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};

/// Files in PEM: of an authority made for this run, and of a server at its address. Keys are ECDSA's on P-256.
pub(super) struct TlsFiles {
    /// The authority's certificate.
    pub(super) authority: PathBuf,
    /// The server's certificate.
    pub(super) certificate: PathBuf,
    /// The server's key.
    pub(super) key: PathBuf,
    /// Both in one, as HAProxy wants them.
    pub(super) pair: PathBuf,
}

impl TlsFiles {
    /// Writes them into that directory.
    pub(super) fn write(directory: &Path, host: Ipv4Addr) -> anyhow::Result<TlsFiles> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let mut server = CertificateParams::default();
        server.subject_alt_names = vec![SanType::IpAddress(host.into())];
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &authority)?.pem();
        let key = key.serialize_pem();
        let write = |name: &str, text: &str| {
            let file = directory.join(name);
            std::fs::write(&file, text).map(|()| file)
        };
        Ok(TlsFiles {
            authority: write("authority.pem", &authority.pem())?,
            certificate: write("certificate.pem", &certificate)?,
            key: write("key.pem", &key)?,
            pair: write("pair.pem", &format!("{certificate}{key}"))?,
        })
    }
}
