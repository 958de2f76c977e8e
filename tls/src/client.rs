//! The side that connects.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::AlertDescription;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, VerifierBuilderError, WebPkiServerVerifier};
use rustls::sign::SingleCertAndKey;

use crate::contents::Contents;
use crate::crypto::{TLS12_AND_13, provider};
use crate::error::{FileRole, Flaw, TlsError};
use crate::expiry::Expiry;
use crate::followed::{Followed, Kept, Look, Made, Recipe};
use crate::identity::IdentityFiles;
use crate::pinned::Peer;
use crate::trust::Trust;
use crate::trust_entry::TrustEntry;
use crate::verifier::PeerVerifier;

/// What a client is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientFiles {
    /// The certificates that are trusted, in PEM: an authority for what it issues, any other for
    /// itself.
    pub ca: PathBuf,
    /// What these have revoked, in PEM: one list for each of them. Without a list of its authority,
    /// or with one whose next is overdue, a certificate is not believed. `None`: nothing is
    /// revoked.
    pub crl: Option<PathBuf>,
    /// What it shows to be itself, if it is asked; `None`: nothing.
    pub identity: Option<IdentityFiles>,
}

/// A client's side of TLS, as its files say. Clones are the same one.
///
/// No session is resumed.
#[derive(Clone)]
pub struct ClientTls(Arc<Kept<Client>>);

impl ClientTls {
    /// Reads and checks the files. `alpn`: the protocols that are spoken inside, the preferred
    /// first.
    ///
    /// # Errors
    /// What is wrong with the first file that is of no use. What has expired or not begun can be
    /// used: see [`Followed::expiries`].
    pub fn load(files: ClientFiles, alpn: &[&[u8]]) -> Result<ClientTls, TlsError> {
        let alpn = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(ClientTls(Arc::new(Kept::load(Client { files, alpn, is_followed: true })?)))
    }

    /// Made of PEM that is at hand: trusted certificates, and what it shows to be itself. Follows
    /// no files.
    ///
    /// # Errors
    /// What is wrong with the first that is of no use. It is named by its role.
    pub fn of_pem(
        ca: &[u8],
        identity: Option<(&[u8], &[u8])>,
        alpn: &[&[u8]],
    ) -> Result<ClientTls, TlsError> {
        let [trusted, certificate, key] = ["authorities", "certificate", "key"]
            .map(|name| PathBuf::from(format!("the PEM of the {name}")));
        let mut given = vec![(trusted.as_path(), ca)];
        if let Some((chain, secret)) = identity {
            given.extend([(certificate.as_path(), chain), (key.as_path(), secret)]);
        }
        let contents = Contents::given(&given);
        let identity = identity.map(|_| IdentityFiles { certificate, key });
        let files = ClientFiles { ca: trusted, crl: None, identity };
        let alpn = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(ClientTls(Arc::new(Kept::given(Client { files, alpn, is_followed: false }, &contents)?)))
    }

    /// For connections that begin now.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.now().config)
    }

    /// What each certificate of `ca` is good for.
    pub fn trust_entries(&self) -> Arc<[TrustEntry]> {
        Arc::clone(&self.0.now().entries)
    }

    /// Returns these settings as [`Followed`], for the task that checks the files for changes.
    pub fn followed(&self) -> Arc<dyn Followed> {
        Arc::clone(&self.0) as Arc<dyn Followed>
    }
}

impl Followed for ClientTls {
    fn look(&self) -> Look {
        self.0.look()
    }

    fn expiries(&self) -> Arc<[Expiry]> {
        self.0.expiries()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientTls").field(&self.0.recipe.files).finish()
    }
}

struct Client {
    files: ClientFiles,
    alpn: Vec<Vec<u8>>,
    is_followed: bool,
}

impl Recipe for Client {
    type Config = ClientConfig;

    fn paths(&self) -> Vec<&Path> {
        if !self.is_followed {
            return Vec::new();
        }
        let ClientFiles { ca, crl, identity } = &self.files;
        let trust = [Some(ca), crl.as_ref()].into_iter().flatten().map(PathBuf::as_path);
        trust.chain(identity.iter().flat_map(IdentityFiles::paths)).collect()
    }

    fn make(
        &self,
        contents: &Contents,
        _old: Option<&ClientConfig>,
    ) -> Result<Made<ClientConfig>, TlsError> {
        let ClientFiles { ca, crl, identity } = &self.files;
        let trust = Trust::read(contents, ca, crl.as_deref(), Peer::Server)?;
        let verifier = server_verifier(&trust, ca, crl.as_deref())?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(TLS12_AND_13)
            .expect("ring has ciphers for both versions")
            .dangerous() // As any that is not rustls's own.
            .with_custom_certificate_verifier(verifier);
        let Trust { entries, mut expiries, .. } = trust;
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (identity, of_identity) = identity.make(contents)?;
                expiries.extend(of_identity);
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)))
            }
        };
        config.alpn_protocols.clone_from(&self.alpn);
        // The other side's certificate is verified when a session begins, and never again: not when
        // it has ended since.
        config.resumption = Resumption::disabled();
        Ok(Made { config: Arc::new(config), entries, expiries: expiries.into() })
    }
}

fn server_verifier(
    trust: &Trust,
    ca: &Path,
    crl: Option<&Path>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let webpki = || {
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&trust.authorities), provider())
            .with_crls(trust.crls.iter().cloned())
            .enforce_revocation_expiration()
            .build()
            .map_err(|error| match (error, crl) {
                (VerifierBuilderError::InvalidCrl(error), Some(crl)) => TlsError::new(
                    crl,
                    FileRole::Crl,
                    Flaw::Crl(rustls::Error::from(error).to_string()),
                ),
                _ => TlsError::new(ca, FileRole::Authorities, Flaw::NoCertificate),
            })
    };
    let webpki = trust.has_authority().then(webpki).transpose()?;
    Ok(Arc::new(PeerVerifier::new(webpki, Arc::clone(&trust.entries))))
}

/// Whether a peer sends this alert because it rejects our certificate, or requires one.
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
