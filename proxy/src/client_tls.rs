//! TLS of what connects: from the configuration to the files.

use fencepost_config as config;
use fencepost_tls::{ClientFiles, ClientTls, IdentityFiles, TlsError};
use rustls::AlertDescription;

/// Reads and checks the files that are configured. `protocols`: what is offered by ALPN, the preferred first.
///
/// # Errors
/// What is wrong with the first that is of no use.
pub fn load(tls: &config::ClientTls, protocols: &[&[u8]]) -> Result<ClientTls, TlsError> {
    ClientTls::load(files(tls), protocols)
}

/// The files that are configured.
pub fn files(tls: &config::ClientTls) -> ClientFiles {
    let config::ClientTls { ca, crl, identity, server_name: _ } = tls.clone();
    let identity = identity.map(|config::Identity { certificate, key }| IdentityFiles { certificate, key });
    ClientFiles { ca, crl, identity }
}

/// Whether the other side says by that alert that our certificate is of no use to it, or that it wants one.
pub fn refuses_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::NoCertificate
            | A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
            | A::CertificateRequired
    )
}
