//! TLS as the worker speaks it.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ALL_VERSIONS, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::pki::Issued;

/// TLS as a worker speaks it.
#[derive(Clone)]
pub struct WorkerTls<'t> {
    /// What it shows to be itself.
    pub identity: &'t Issued,
    /// The authority, in PEM, whose certificates clients must show; `None`: they need show none.
    pub client_ca: Option<&'t str>,
    /// The protocols that it picks from, the one it likes best first: `h2` and `http/1.1`.
    pub protocols: &'t [&'t str],
}

/// What connections to come speak.
#[derive(Debug)]
pub(super) struct Present(Mutex<Arc<ServerConfig>>);

impl WorkerTls<'_> {
    /// As rustls takes it.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config_for(ALL_VERSIONS)
    }

    /// As rustls takes it, limited to these versions of TLS.
    pub fn config_for(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(versions).expect("ring speaks them");
        let builder = match self.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                for authority in CertificateDer::pem_slice_iter(ca.as_bytes()) {
                    roots
                        .add(authority.expect("an authority is PEM"))
                        .expect("an authority is a certificate");
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().expect("there is an authority"))
            }
        };
        let chain = CertificateDer::pem_slice_iter(self.identity.certificate.as_bytes());
        let chain = chain.collect::<Result<_, _>>().expect("a certificate is PEM");
        let key =
            PrivateKeyDer::from_pem_slice(self.identity.key.as_bytes()).expect("a key is PEM");
        let mut config =
            builder.with_single_cert(chain, key).expect("the key is the certificate's");
        config.alpn_protocols =
            self.protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

impl Present {
    pub(super) fn new(tls: &WorkerTls<'_>) -> Present {
        Present(Mutex::new(tls.config()))
    }

    pub(super) fn change(&self, tls: &WorkerTls<'_>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tls.config();
    }

    pub(super) fn now(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
