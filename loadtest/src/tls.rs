//! TLS with the proxy.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::client::Protocol;

/// How to speak TLS with one proxy. Each connection has a whole handshake: sessions are not resumed, so that what a new connection costs
/// does not depend on the one before it.
#[derive(Clone)]
pub(crate) struct Tls {
    server_name: ServerName<'static>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

/// Files in PEM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'f> {
    /// The authorities that are believed.
    pub(crate) ca: &'f Path,
    /// The certificate to present, with what lies between it and its authority, and its key.
    pub(crate) identity: Option<(&'f Path, &'f Path)>,
}

impl Tls {
    /// With the proxy of that name or address.
    ///
    /// # Errors
    /// What is wrong with the name or with one of the files, which is named by its option.
    pub(crate) fn new(host: &str, files: &Files<'_>) -> anyhow::Result<Tls> {
        let server_name = ServerName::try_from(host.to_owned());
        let server_name = server_name.with_context(|| format!("--proxy: no certificate can be for {host:?}"))?;
        let mut authorities = RootCertStore::empty();
        for certificate in certificates("--proxy-ca", files.ca)? {
            let unusable = || format!("--proxy-ca: {}: a certificate that cannot be used", files.ca.display());
            authorities.add(certificate).with_context(unusable)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions()?.with_root_certificates(authorities);
        let mut config = match files.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates("--proxy-cert", certificate)?;
                let key_file = || format!("--proxy-key: {}", key.display());
                let secret = PrivateKeyDer::from_pem_file(key).with_context(key_file)?;
                let no_pair = || format!("--proxy-key: {} is not the key of --proxy-cert", key.display());
                config.with_client_auth_cert(chain, secret).with_context(no_pair)?
            }
        };
        config.resumption = Resumption::disabled();
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Ok(Tls { server_name, http1: speaking(b"http/1.1"), http2: speaking(b"h2") })
    }

    /// Whom it is spoken with.
    pub(crate) fn server_name(&self) -> ServerName<'static> {
        self.server_name.clone()
    }

    /// How, for a connection that speaks this inside of it.
    pub(crate) fn config(&self, protocol: Protocol) -> Arc<ClientConfig> {
        Arc::clone(match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// All that a file has, one at least.
fn certificates(option: &str, file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let unread = || format!("{option}: {}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.with_context(unread)?;
    ensure!(!certificates.is_empty(), "{option}: {}: there is no certificate in it", file.display());
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost_testsupport::{Authority, Scratch, WorkerTls};
    use rustls::HandshakeKind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_option_and_its_name() {
        let scratch = Scratch::new();
        let (one, other) = (Authority::new("one"), Authority::new("other"));
        let (certificate, key) = one.issue_for_localhost().write(scratch.path(), "one");
        let (_, another_key) = other.issue_for_localhost().write(scratch.path(), "other");
        let (ca, empty) = (scratch.path().join("ca.pem"), scratch.path().join("empty.pem"));
        std::fs::write(&ca, one.certificate()).unwrap();
        std::fs::write(&empty, "").unwrap();
        let missing = scratch.path().join("missing.pem");
        let good = Files { ca: &ca, identity: Some((&certificate, &key)) };
        assert!(Tls::new("localhost", &good).is_ok());
        assert!(Tls::new("::1", &good).is_ok());
        for (host, files, words) in [
            ("localhost", Files { ca: &missing, ..good }, "--proxy-ca: "),
            ("localhost", Files { ca: &empty, ..good }, "there is no certificate in it"),
            ("localhost", Files { identity: Some((&key, &key)), ..good }, "--proxy-cert: "),
            ("localhost", Files { identity: Some((&certificate, &certificate)), ..good }, "--proxy-key: "),
            (
                "localhost",
                Files { identity: Some((&certificate, &another_key)), ..good },
                "is not the key of --proxy-cert",
            ),
            ("not a host", good, "--proxy: "),
        ] {
            let error = format!("{:#}", Tls::new(host, &files).unwrap_err());
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[tokio::test]
    async fn no_connection_takes_over_the_session_of_one_before() {
        let (scratch, authority) = (Scratch::new(), Authority::new("proxies"));
        let ca = scratch.path().join("ca.pem");
        std::fs::write(&ca, authority.certificate()).unwrap();
        let server =
            WorkerTls { identity: &authority.issue_for_localhost(), client_ca: None, protocols: &["http/1.1"] };
        let acceptor = TlsAcceptor::from(server.config());
        let tls = Tls::new("localhost", &Files { ca: &ca, identity: None }).unwrap();
        for _ in 0..2 {
            let (ours, theirs) = tokio::io::duplex(16_384);
            let connector = TlsConnector::from(tls.config(Protocol::Http1));
            let connecting = connector.connect(tls.server_name(), ours);
            let (connected, accepted) = tokio::join!(connecting, acceptor.accept(theirs));
            let (mut client, mut server) = (connected.unwrap(), accepted.unwrap());
            // What a session could be taken over by comes before it.
            server.write_all(b"x").await.unwrap();
            server.flush().await.unwrap();
            client.read_u8().await.unwrap();
            assert_eq!(client.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
        }
    }
}
