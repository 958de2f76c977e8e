//! No session carries a certificate past the end of its time.

use std::fs;
use std::iter;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fencepost_tests::{Authority, Issued, Scratch, Subject, eventually, replace_file};
use fencepost_tls::{
    ClientCertificates, ClientFiles, ClientTls, Followed, IdentityFiles, Look, MinVersion,
    PeerNames, ServerFiles, ServerTls,
};
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme, SupportedProtocolVersion,
};

struct Pair {
    directory: Scratch,
    authority: Authority,
    server: ServerTls,
}

impl Pair {
    /// A server that asks for certificates, of that authority's.
    fn new() -> Pair {
        Pair::asking(Some(true))
    }

    /// A server that requires certificates, takes them, or asks for none.
    fn asking(required: Option<bool>) -> Pair {
        Pair::believing(Authority::new("test authority"), required)
    }

    /// A server whose authority is the given one, and which requires certificates, takes them, or
    /// asks for none.
    fn believing(authority: Authority, required: Option<bool>) -> Pair {
        let directory = Scratch::new();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("ca.pem"), authority.certificate()).unwrap();
        fs::write(path("crl.pem"), authority.crl(&[])).unwrap();
        let (certificate, key) = authority.issue_for_localhost().write(directory.path(), "server");
        let clients = required.map(|required| ClientCertificates {
            ca: path("ca.pem"),
            crl: Some(path("crl.pem")),
            required,
        });
        let identity = IdentityFiles { certificate, key };
        let files =
            ServerFiles { identity, more: Vec::new(), clients, min_version: MinVersion::Tls12 };
        let server = ServerTls::load(files, &[]).unwrap();
        Pair { directory, authority, server }
    }

    fn issue(&self, name: &str) -> Issued {
        self.authority.issue(&client_named(name))
    }

    /// A client that resumes its sessions where it can, as others' do.
    fn client(&self, issued: &Issued, version: &'static SupportedProtocolVersion) -> Client {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.authority.certificate().as_bytes()).unwrap())
            .unwrap();
        let shown = Arc::new(Shown(Mutex::new(certified(issued))));
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder =
            builder.with_protocol_versions(&[version]).unwrap().with_root_certificates(roots);
        let config =
            builder.with_client_cert_resolver(Arc::clone(&shown) as Arc<dyn ResolvesClientCert>);
        Client { config: Arc::new(config), shown }
    }

    /// Shakes hands: how, and by whose name the server knows the client.
    fn shake(&self, client: &Client) -> Result<(HandshakeKind, Option<String>), rustls::Error> {
        let server = self.shake_as(&client.config)?;
        let shown = server.peer_certificates().map(|chain| PeerNames::of(&chain[0]).unwrap());
        Ok((server.handshake_kind().unwrap(), shown.map(|names| names.common_names.concat())))
    }

    /// Shakes hands: the server's side.
    fn shake_as(&self, client: &Arc<ClientConfig>) -> Result<ServerConnection, rustls::Error> {
        shake_hands(client, self.server.config())
    }
}

fn shake_hands(
    client: &Arc<ClientConfig>,
    server: Arc<ServerConfig>,
) -> Result<ServerConnection, rustls::Error> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    let mut wire = Vec::new();
    while client.wants_write() || server.wants_write() {
        client.write_tls(&mut wire).unwrap();
        pass(&mut wire, |bytes| server.read_tls(bytes));
        server.process_new_packets()?;
        server.write_tls(&mut wire).unwrap();
        pass(&mut wire, |bytes| client.read_tls(bytes));
        client.process_new_packets()?;
    }
    Ok(server)
}

struct Client {
    config: Arc<ClientConfig>,
    shown: Arc<Shown>,
}

impl Client {
    /// Shows another certificate from now on, and forgets no session for that.
    fn renew(&self, issued: &Issued) {
        *self.shown.0.lock().unwrap() = certified(issued);
    }
}

#[derive(Debug)]
struct Shown(Mutex<Arc<CertifiedKey>>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.lock().unwrap()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn certified(issued: &Issued) -> Arc<CertifiedKey> {
    as_shown(issued, [])
}

fn pass(wire: &mut Vec<u8>, mut read: impl FnMut(&mut &[u8]) -> std::io::Result<usize>) {
    let mut bytes = wire.as_slice();
    while !bytes.is_empty() {
        read(&mut bytes).unwrap();
    }
    wire.clear();
}

fn client_named(name: &str) -> Subject<'_> {
    Subject { common_name: Some(name), ..Subject::default() }
}

#[test]
fn without_client_certificates_sessions_outlive_a_change() {
    for version in [&TLS12, &TLS13] {
        let pair = Pair::asking(None);
        let client = pair.client(&pair.issue("shard-1"), version);
        let kind = || pair.shake(&client).unwrap().0;
        assert_eq!((kind(), kind()), (HandshakeKind::Full, HandshakeKind::Resumed), "{version:?}");
        pair.authority.issue_for_localhost().write(pair.directory.path(), "server");
        assert_eq!(pair.server.look(), Look::Reloaded);
        assert_eq!(kind(), HandshakeKind::Resumed, "{version:?}");
    }
}

#[test]
fn with_client_certificates_no_session_is_resumed() {
    for version in [&TLS12, &TLS13] {
        for required in [true, false] {
            let pair = Pair::asking(Some(required));
            let client = pair.client(&pair.issue("shard-1"), version);
            for _ in 0..3 {
                let shaken = (HandshakeKind::Full, Some("shard-1".to_owned()));
                assert_eq!(pair.shake(&client), Ok(shaken), "{version:?}");
            }
        }
    }
}

#[test]
fn a_certificate_is_refused_without_a_current_revocation_list() {
    let pair = Pair::new();
    let crl = pair.directory.path().join("crl.pem");
    let client = pair.client(&pair.issue("shard-1"), &TLS13);
    assert!(pair.shake(&client).is_ok());
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    for list in [pair.authority.crl_until(&[], yesterday), Authority::new("another").crl(&[])] {
        replace_file(&crl, &list);
        assert_eq!(pair.server.look(), Look::Reloaded);
        assert!(pair.shake(&client).is_err());
    }
}

#[test]
fn of_two_lists_of_one_authority_the_newer_is_believed() {
    let pair = Pair::new();
    let issued = pair.issue("shard-1");
    let client = pair.client(&issued, &TLS13);
    let (older, newer) = (pair.authority.crl(&[]), pair.authority.crl(&[&issued]));
    let [other, by_its_name] =
        ["another", "test authority"].map(|name| Authority::new(name).crl(&[]));
    for lists in [
        older.clone() + &newer,
        newer.clone() + &older,
        other + &older + &newer,
        older.clone() + &by_its_name + &newer,
    ] {
        replace_file(&pair.directory.path().join("crl.pem"), &lists);
        assert_eq!(pair.server.look(), Look::Reloaded);
        let refused = pair.shake(&client).unwrap_err();
        assert_eq!(refused, rustls::Error::InvalidCertificate(CertificateError::Revoked));
    }
}

/// A certificate, and many that could each have issued it or any other of them.
fn maze() -> Arc<CertifiedKey> {
    let authorities: Vec<Authority> = (0..30).map(|_| Authority::new("maze")).collect();
    let subject = Subject { names: &["localhost"], ..client_named("shard-1") };
    as_shown(&authorities[0].issue(&subject), authorities.iter().map(Authority::certificate))
}

/// A certificate, and others that are sent with it.
fn as_shown(issued: &Issued, others: impl IntoIterator<Item = String>) -> Arc<CertifiedKey> {
    let chain = iter::once(issued.certificate.clone()).chain(others);
    let chain = chain
        .map(|certificate| CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap())
        .collect();
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
    Arc::new(CertifiedKey::from_der(chain, key, &default_provider()).unwrap())
}

#[test]
fn of_many_certificates_that_come_with_one_a_few_are_looked_at() {
    let (pair, maze) = (Pair::new(), maze());
    // Not that there were too many ways, or that they were too long.
    let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
    for version in [&TLS12, &TLS13] {
        let client = pair.client(&pair.issue("shard-1"), version);
        *client.shown.0.lock().unwrap() = Arc::clone(&maze);
        assert_eq!(pair.shake(&client).unwrap_err(), unknown, "{version:?}");
    }
    let ca = pair.directory.path().join("ca.pem");
    let tls = ClientTls::load(ClientFiles { ca, crl: None, identity: None }, &[]).unwrap();
    let server = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let server = server.with_cert_resolver(Arc::new(SingleCertAndKey::from(maze)));
    assert_eq!(shake_hands(&tls.config(), Arc::new(server)).unwrap_err(), unknown);
}

#[test]
fn an_authority_is_believed_while_it_stands_in_its_file() {
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    let pair = Pair::believing(Authority::until("ended", yesterday), Some(true));
    let client = pair.client(&pair.issue("shard-1"), &TLS13);
    assert!(pair.shake(&client).is_ok());
    replace_file(&pair.directory.path().join("ca.pem"), &Authority::new("next").certificate());
    assert_eq!(pair.server.look(), Look::Reloaded);
    assert!(pair.shake(&client).is_err());
}

#[tokio::test]
async fn a_client_with_an_ended_certificate_gets_in_with_its_next() {
    let pair = Pair::new();
    let end = SystemTime::now() + Duration::from_secs(5);
    let old = pair.authority.issue(&Subject { not_after: Some(end), ..client_named("old") });
    let clients = [&TLS12, &TLS13].map(|version| pair.client(&old, version));
    for client in &clients {
        assert_eq!(pair.shake(client).unwrap().1.as_deref(), Some("old"));
    }
    eventually("it has ended", async || {
        (SystemTime::now() > end + Duration::from_secs(1)).then_some(())
    })
    .await;
    for client in &clients {
        assert!(matches!(pair.shake(client), Err(rustls::Error::InvalidCertificate(_))));
        client.renew(&pair.issue("new"));
        assert_eq!(pair.shake(client).unwrap().1.as_deref(), Some("new"));
    }
}

#[test]
fn whoever_connects_verifies_the_certificate_at_each_connection() {
    let pair = Pair::asking(None);
    let other = pair.client(&pair.issue("other"), &TLS13);
    let files = ClientFiles { ca: pair.directory.path().join("ca.pem"), crl: None, identity: None };
    let tls = ClientTls::load(files, &[]).unwrap();
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        assert_eq!(pair.shake(&other).unwrap().0, kind, "this is a server that resumes");
        let server = pair.shake_as(&tls.config()).unwrap();
        assert_eq!(server.handshake_kind(), Some(HandshakeKind::Full));
    }
}
