//! TLS of what connects: from the configuration to the files.

use fencepost_config as config;
use fencepost_tls::{ClientFiles, ClientTls, IdentityFiles, TlsError};

/// Reads and checks the files that are configured. `protocols`: what is offered by ALPN, the
/// preferred first.
///
/// # Errors
/// What is wrong with the first that is of no use.
pub fn load(tls: &config::ClientTls, protocols: &[&[u8]]) -> Result<ClientTls, TlsError> {
    ClientTls::load(files(tls), protocols)
}

/// The files that are configured.
pub fn files(tls: &config::ClientTls) -> ClientFiles {
    let config::ClientTls { ca, crl, identity, server_name: _ } = tls.clone();
    let identity =
        identity.map(|config::Identity { certificate, key }| IdentityFiles { certificate, key });
    ClientFiles { ca, crl, identity }
}
