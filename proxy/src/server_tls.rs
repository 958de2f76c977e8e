//! Loads the TLS files of the listeners as configured, follows them, and counts failed handshakes.

use std::sync::Arc;

use fencepost_config as config;
use fencepost_tls::{
    ClientCertificates, IdentityFiles, MinVersion, ServerFiles, ServerTls, TlsError,
};
use tokio::time::Instant;

use crate::metrics::TlsUse;
use crate::process::Process;
use crate::server::{ALPN, Listener, LostHandshake};

/// Reads and checks the files that are configured.
///
/// # Errors
/// What is wrong with the first that is of no use.
pub fn load(tls: &config::ServerTls) -> Result<ServerTls, TlsError> {
    ServerTls::load(files(tls), &ALPN)
}

fn files(tls: &config::ServerTls) -> ServerFiles {
    let config::ServerTls { identity, more, clients, min_version } = tls.clone();
    let identity_files = |config::Identity { certificate, key }| IdentityFiles { certificate, key };
    let clients = clients.map(|config::ClientCertificates { ca, crl, required }| {
        ClientCertificates { ca, crl, required }
    });
    ServerFiles {
        identity: identity_files(identity),
        more: more.into_iter().map(identity_files).collect(),
        clients,
        min_version: match min_version {
            config::TlsVersion::Tls12 => MinVersion::Tls12,
            config::TlsVersion::Tls13 => MinVersion::Tls13,
        },
    }
}

/// Follows the files of listeners, and counts the handshakes that come to nothing; writes them to
/// the log, at a bounded rate.
pub fn follow(
    listeners: impl IntoIterator<Item = Listener>,
    of: TlsUse,
    process: &Arc<Process>,
) -> Vec<Listener> {
    let follow_one = |mut listener: Listener| {
        let Some(tls) = listener.tls() else { return listener };
        let name = listener.address().to_string();
        process.tls_files.follow(of, &name, &tls.followed());
        let counters = process.metrics.tls().handshakes(of, &name);
        let process = Arc::clone(process);
        listener.on_handshake_failure(move |lost| {
            counters.failed(lost.why);
            log(&process, of, &name, lost);
        });
        listener
    };
    listeners.into_iter().map(follow_one).collect()
}

fn log(process: &Process, of: TlsUse, listener: &str, lost: &LostHandshake) {
    let (of, reason, client, error) = (of.name(), lost.why.code(), lost.client, lost.words());
    if lost.is_wordless() {
        tracing::debug!(r#use = of, listener, %client, reason, error, "a TLS handshake came to nothing");
        return;
    }
    // Made for each: nothing beside what a handshake costs.
    if let Some(left_out) = process.log.admits_handshake(lost.why, Instant::now()) {
        tracing::info!(r#use = of, listener, %client, reason, error, left_out, "a TLS handshake came to nothing");
    }
}
