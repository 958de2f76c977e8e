//! TLS of what listens: from the configuration to the files, and on to whoever follows and counts.

use fencepost_config as config;
use fencepost_tls::{ClientCertificates, IdentityFiles, MinVersion, ServerFiles, ServerTls, TlsError};

use crate::downstream::{ALPN, Listener};
use crate::metrics::TlsUse;
use crate::process::Process;

/// Reads and checks the files that are configured.
///
/// # Errors
/// What is wrong with the first that is of no use.
pub fn load(tls: &config::ServerTls) -> Result<ServerTls, TlsError> {
    ServerTls::load(files(tls), &ALPN)
}

fn files(tls: &config::ServerTls) -> ServerFiles {
    let config::ServerTls { identity, clients, min_version } = tls.clone();
    let clients =
        clients.map(|config::ClientCertificates { ca, crl, required }| ClientCertificates { ca, crl, required });
    ServerFiles {
        identity: IdentityFiles { certificate: identity.certificate, key: identity.key },
        clients,
        min_version: match min_version {
            config::TlsVersion::Tls12 => MinVersion::Tls12,
            config::TlsVersion::Tls13 => MinVersion::Tls13,
        },
    }
}

/// Follows the files of listeners, and counts the handshakes that come to nothing.
pub fn follow(listeners: impl IntoIterator<Item = Listener>, of: TlsUse, process: &Process) -> Vec<Listener> {
    let follow_one = |mut listener: Listener| {
        let Some(tls) = listener.tls() else { return listener };
        let name = listener.address().to_string();
        process.tls_files.follow(of, &name, &tls.followed());
        let counters = process.metrics.tls().handshakes(of, &name);
        listener.on_handshake_failure(move |why| counters.failed(why));
        listener
    };
    listeners.into_iter().map(follow_one).collect()
}
