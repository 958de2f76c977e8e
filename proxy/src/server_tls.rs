//! TLS of what listens: from the configuration to the files, and on to whoever follows and counts.

use std::time::SystemTime;

use fencepost_config as config;
use fencepost_tls::{ClientCertificates, Followed, IdentityFiles, MinVersion, ServerFiles, ServerTls, TlsError};

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

/// Reads and checks the files of every listener that is configured. Says what has ended or soon will, each with its listener.
///
/// # Errors
/// What is wrong with them, each with its listener.
pub fn check(config: &config::Config) -> Result<Vec<String>, Vec<String>> {
    let admin = config.admin.iter().map(|admin| ("admin listener", &admin.address, admin.tls.as_ref()));
    let listeners = config.listeners.iter().map(|listener| ("listener", &listener.address, listener.tls.as_ref()));
    let (mut cautions, mut problems) = (Vec::new(), Vec::new());
    let now = SystemTime::now();
    for (what, address, tls) in listeners.chain(admin) {
        let Some(tls) = tls else { continue };
        match load(tls) {
            Ok(tls) => {
                let of_files = tls.expiries();
                let of_files = of_files.iter().filter_map(|expiry| expiry.caution(now));
                cautions.extend(of_files.map(|caution| format!("{what} {address}: {caution}")));
            }
            Err(error) => problems.push(format!("{what} {address}: {error}")),
        }
    }
    if problems.is_empty() { Ok(cautions) } else { Err(problems) }
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
