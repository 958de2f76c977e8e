//! The side that accepts connections.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::ServerName;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
    VerifierBuilderError, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;

use crate::contents::Contents;
use crate::crypto::{TLS12_AND_13, TLS13_ONLY, provider};
use crate::error::{FileRole, Flaw, TlsError};
use crate::expiry::Expiry;
use crate::followed::{Followed, Kept, Look, Made, Recipe};
use crate::identity::IdentityFiles;
use crate::pinned::Peer;
use crate::trust::Trust;
use crate::trust_entry::TrustEntry;
use crate::verifier::{ClientVerifier, PeerVerifier};

/// What a server is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerFiles {
    /// What it shows to be itself.
    pub identity: IdentityFiles,
    /// What it shows instead to clients that ask for one of their names (SNI).
    pub more: Vec<IdentityFiles>,
    /// What it asks of its clients; `None`: no certificate.
    pub clients: Option<ClientCertificates>,
    /// The oldest version that it speaks.
    pub min_version: MinVersion,
}

/// What a server asks of its clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientCertificates {
    /// The certificates that are trusted, in PEM: an authority for what it issues, any other for
    /// itself.
    pub ca: PathBuf,
    /// What these have revoked, in PEM: one list for each of them. Without a list of its authority,
    /// or with one whose next is overdue, a certificate is not believed. `None`: nothing is
    /// revoked.
    pub crl: Option<PathBuf>,
    /// Whether a client without a certificate is refused. One with a certificate that is not
    /// believed always is.
    pub required: bool,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MinVersion {
    /// 1.2, and 1.3.
    Tls12,
    /// 1.3.
    Tls13,
}

/// A server's side of TLS, as its files say. Clones are the same one.
///
/// Sessions are resumed only where no certificate is asked for.
#[derive(Clone)]
pub struct ServerTls(Arc<Kept<Server>>);

impl ServerTls {
    /// Reads and checks the files. `alpn`: the protocols that are spoken inside, the preferred
    /// first.
    ///
    /// # Errors
    /// What is wrong with the first file that is of no use. What has expired or not begun can be
    /// used: see [`Followed::expiries`].
    pub fn load(files: ServerFiles, alpn: &[&[u8]]) -> Result<ServerTls, TlsError> {
        let alpn = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(ServerTls(Arc::new(Kept::load(Server { files, alpn })?)))
    }

    /// For connections that begin now.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.now().config)
    }

    /// What each certificate of the clients' `ca` is good for; none where no certificate is asked
    /// for.
    pub fn trust_entries(&self) -> Arc<[TrustEntry]> {
        Arc::clone(&self.0.now().entries)
    }

    /// Returns these settings as [`Followed`], for the task that checks the files for changes.
    pub fn followed(&self) -> Arc<dyn Followed> {
        Arc::clone(&self.0) as Arc<dyn Followed>
    }
}

impl Followed for ServerTls {
    fn look(&self) -> Look {
        self.0.look()
    }

    fn expiries(&self) -> Arc<[Expiry]> {
        self.0.expiries()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerTls").field(&self.0.recipe.files).finish()
    }
}

struct Server {
    files: ServerFiles,
    alpn: Vec<Vec<u8>>,
}

impl Recipe for Server {
    type Config = ServerConfig;

    fn paths(&self) -> Vec<&Path> {
        let clients = self.files.clients.iter();
        let trust = clients
            .flat_map(|clients| [Some(&clients.ca), clients.crl.as_ref()].into_iter().flatten());
        let identities = [&self.files.identity].into_iter().chain(&self.files.more);
        let identities = identities.flat_map(IdentityFiles::paths);
        identities.chain(trust.map(PathBuf::as_path)).collect()
    }

    fn make(
        &self,
        contents: &Contents,
        old: Option<&ServerConfig>,
    ) -> Result<Made<ServerConfig>, TlsError> {
        let (identity, mut expiries) = self.files.identity.make(contents)?;
        let mut identities = vec![identity];
        for files in &self.files.more {
            let (identity, of_identity) = files.make(contents)?;
            identities.push(identity);
            expiries.extend(of_identity);
        }
        let mut verifier = None;
        let mut entries: Arc<[TrustEntry]> = Arc::default();
        if let Some(clients) = &self.files.clients {
            let trust = Trust::read(contents, &clients.ca, clients.crl.as_deref(), Peer::Client)?;
            expiries.extend(trust.expiries.iter().cloned());
            entries = Arc::clone(&trust.entries);
            verifier = Some(clients.verifier(trust)?);
        }
        let versions = match self.files.min_version {
            MinVersion::Tls12 => TLS12_AND_13,
            MinVersion::Tls13 => TLS13_ONLY,
        };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .expect("ring has ciphers for both versions");
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(BySni(identities)));
        config.alpn_protocols.clone_from(&self.alpn);
        config.ignore_client_order = true;
        if self.files.clients.is_some() {
            // A resumed session has the certificate that it was begun with: nobody would look at it
            // again, and a client that has a new one could not show it.
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
        } else if let Some(old) = old {
            config.ticketer = Arc::clone(&old.ticketer);
            config.session_storage = Arc::clone(&old.session_storage);
        } else {
            config.ticketer = Ticketer::new().expect("the system has random numbers");
        }
        Ok(Made { config: Arc::new(config), entries, expiries: expiries.into() })
    }
}

/// Shows each client the first certificate that is for the name that it asks for, and that it can
/// verify. A client that asks for another name, or for no name, is shown the first of all.
#[derive(Debug)]
struct BySni(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let is_for = |identity: &&Arc<CertifiedKey>| {
            let certificate = identity.end_entity_cert().and_then(ParsedCertificate::try_from);
            let is_named = name
                .as_ref()
                .zip(certificate.ok())
                .is_some_and(|(name, certificate)| verify_server_name(&certificate, name).is_ok());
            is_named && identity.key.choose_scheme(hello.signature_schemes()).is_some()
        };
        // One alone is shown to everybody.
        let named = if self.0.len() > 1 { self.0.iter().find(is_for) } else { None };
        named.or(self.0.first()).cloned()
    }
}

impl ClientCertificates {
    fn verifier(&self, trust: Trust) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let webpki = || {
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&trust.authorities), provider())
                .with_crls(trust.crls.iter().cloned())
                .enforce_revocation_expiration()
                .build()
                .map_err(|error| match (error, &self.crl) {
                    (VerifierBuilderError::InvalidCrl(error), Some(crl)) => TlsError::new(
                        crl,
                        FileRole::Crl,
                        Flaw::Crl(rustls::Error::from(error).to_string()),
                    ),
                    _ => TlsError::new(&self.ca, FileRole::Authorities, Flaw::NoCertificate),
                })
        };
        let webpki = trust.has_authority().then(webpki).transpose()?;
        let peers = PeerVerifier::new(webpki, trust.entries);
        Ok(Arc::new(ClientVerifier { peers, issuers: trust.issuers, required: self.required }))
    }
}
