//! Whom a trust file has us trust: real handshakes, with certificates that an attacker could make.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_tests::{Authority, Claim, Issued, Scratch, Subject};
use fencepost_tls::{
    ClientCertificates, ClientFiles, ClientTls, IdentityFiles, MinVersion, ServerFiles, ServerTls,
    TrustEntry,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection,
};

/// Every certificate that is no authority.
const PINNED: [Claim; 3] = [Claim::EndEntity, Claim::Nothing, Claim::AuthorityThatMayNotSign];

const DAY: Duration = Duration::from_secs(86_400);

/// Who presents a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Client,
    Server,
}

const PEERS: [Peer; 2] = [Peer::Client, Peer::Server];

/// A side of ours, which trusts what is in a file.
struct Trusting {
    directory: Scratch,
    ca: PathBuf,
    crl: Option<PathBuf>,
    /// Of our own certificates, which the peer does not look at.
    own: Authority,
}

impl Trusting {
    fn new(certificates: &[&str]) -> Trusting {
        let directory = Scratch::new();
        let ca = directory.path().join("ca.pem");
        fs::write(&ca, certificates.concat()).unwrap();
        let own = Authority::new("our own");
        own.issue_for_localhost().write(directory.path(), "own");
        Trusting { directory, ca, crl: None, own }
    }

    fn with_crl(mut self, lists: &[&str]) -> Trusting {
        let crl = self.directory.path().join("crl.pem");
        fs::write(&crl, lists.concat()).unwrap();
        self.crl = Some(crl);
        self
    }

    fn server(&self) -> ServerTls {
        let file = |name: &str| self.directory.path().join(name);
        let identity = IdentityFiles { certificate: file("own.pem"), key: file("own.key") };
        let clients =
            ClientCertificates { ca: self.ca.clone(), crl: self.crl.clone(), required: true };
        let files = ServerFiles {
            identity,
            more: Vec::new(),
            clients: Some(clients),
            min_version: MinVersion::Tls12,
        };
        ServerTls::load(files, &[]).unwrap()
    }

    fn client(&self) -> ClientTls {
        let files = ClientFiles { ca: self.ca.clone(), crl: self.crl.clone(), identity: None };
        ClientTls::load(files, &[]).unwrap()
    }

    /// Shakes hands with a peer that presents these certificates, the first with its key.
    fn meets(&self, peer: Peer, presented: &Issued, others: &[String]) -> Result<(), Error> {
        let shown = chain(&presented.certificate, others);
        let key = PrivateKeyDer::from_pem_slice(presented.key.as_bytes()).unwrap();
        match peer {
            Peer::Client => {
                let trusted =
                    CertificateDer::from_pem_slice(self.own.certificate().as_bytes()).unwrap();
                let mut roots = rustls::RootCertStore::empty();
                roots.add(trusted).unwrap();
                let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
                let builder = builder
                    .with_safe_default_protocol_versions()
                    .unwrap()
                    .with_root_certificates(roots);
                let client = builder.with_client_auth_cert(shown, key).unwrap();
                shake_hands(Arc::new(client), self.server().config())
            }
            Peer::Server => {
                let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
                let builder =
                    builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
                let server = builder.with_single_cert(shown, key).unwrap();
                shake_hands(self.client().config(), Arc::new(server))
            }
        }
    }

    fn good_for(&self, peer: Peer) -> Vec<String> {
        let entries = match peer {
            Peer::Client => self.server().trust_entries(),
            Peer::Server => self.client().trust_entries(),
        };
        entries.iter().map(|entry: &TrustEntry| entry.good_for(SystemTime::now())).collect()
    }
}

fn chain(own: &str, others: &[String]) -> Vec<CertificateDer<'static>> {
    let parts = [own.as_bytes()].into_iter().chain(others.iter().map(String::as_bytes));
    parts.map(|certificate| CertificateDer::from_pem_slice(certificate).unwrap()).collect()
}

fn shake_hands(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Result<(), Error> {
    let mut client =
        ClientConnection::new(client, ServerName::try_from("localhost").unwrap()).unwrap();
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
    Ok(())
}

fn pass(wire: &mut Vec<u8>, mut read: impl FnMut(&mut &[u8]) -> std::io::Result<usize>) {
    let mut bytes = wire.as_slice();
    while !bytes.is_empty() {
        read(&mut bytes).unwrap();
    }
    wire.clear();
}

fn localhost(name: &str) -> Subject<'_> {
    Subject { common_name: Some(name), names: &["localhost"], ..Subject::default() }
}

fn of_pem(certificate: String, key: String) -> Issued {
    let mut issued = Authority::new("any").own();
    (issued.certificate, issued.key) = (certificate, key);
    issued
}

fn refused(error: CertificateError) -> Result<(), Error> {
    Err(Error::InvalidCertificate(error))
}

#[test]
fn pinned_certificate_is_trusted_for_itself_alone() {
    for claim in PINNED {
        let (root, real) = (Authority::new("elsewhere"), Authority::new("real"));
        for pinned in
            [Authority::claiming(claim, &localhost("a")), root.issue_issuer(claim, &localhost("a"))]
        {
            let below = pinned.issue_issuer(Claim::Authority, &localhost("below"));
            for trusting in [
                Trusting::new(&[&pinned.certificate()]),
                Trusting::new(&[&real.certificate(), &pinned.certificate()]),
            ] {
                for peer in PEERS {
                    assert_eq!(
                        trusting.meets(peer, &pinned.own(), &[]),
                        Ok(()),
                        "{claim:?} {peer:?}"
                    );
                    for (forged, others) in [
                        (pinned.issue(&localhost("b")), vec![]),
                        (pinned.issue(&localhost("b")), vec![pinned.certificate()]),
                        (
                            below.issue(&localhost("b")),
                            vec![below.certificate(), pinned.certificate()],
                        ),
                        (below.own(), vec![pinned.certificate()]),
                    ] {
                        let met = trusting.meets(peer, &forged, &others);
                        assert!(
                            matches!(met, Err(Error::InvalidCertificate(_))),
                            "{claim:?} {peer:?}: {met:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn authorities_are_trusted_for_what_they_issue() {
    let root = Authority::claiming(Claim::Authority, &localhost("root"));
    let intermediate = root.issue_issuer(Claim::Authority, &localhost("intermediate"));
    let leaf = intermediate.issue(&localhost("a"));
    for peer in PEERS {
        let trusting = Trusting::new(&[&root.certificate()]);
        assert_eq!(trusting.meets(peer, &root.own(), &[]), Ok(()), "{peer:?}");
        assert_eq!(trusting.meets(peer, &leaf, &[intermediate.certificate()]), Ok(()), "{peer:?}");
        // An intermediate is an authority, too, without the one above.
        let trusting = Trusting::new(&[&intermediate.certificate()]);
        assert_eq!(trusting.meets(peer, &leaf, &[]), Ok(()), "{peer:?}");
        assert!(trusting.meets(peer, &intermediate.own(), &[]).is_err(), "{peer:?}");
        assert!(trusting.meets(peer, &root.issue(&localhost("b")), &[]).is_err(), "{peer:?}");
    }
}

#[test]
fn pinned_certificate_outside_its_time_is_refused() {
    let (before, after) = (SystemTime::now() - DAY, SystemTime::now() + DAY);
    for claim in [Claim::EndEntity, Claim::Authority] {
        let ended = Subject { not_after: Some(before), ..localhost("a") };
        let later = Subject { not_before: Some(after), ..localhost("a") };
        for (subject, error) in
            [(ended, CertificateError::Expired), (later, CertificateError::NotValidYet)]
        {
            let pinned = Authority::claiming(claim, &subject);
            let trusting = Trusting::new(&[&pinned.certificate()]);
            for peer in PEERS {
                let met = trusting.meets(peer, &pinned.own(), &[]);
                assert_eq!(met, refused(error.clone()), "{claim:?} {peer:?}");
            }
        }
    }
}

#[test]
fn pinned_server_of_another_name_is_refused() {
    for claim in [Claim::EndEntity, Claim::Authority] {
        let elsewhere = Subject { names: &["elsewhere.example"], ..localhost("localhost") };
        let pinned = Authority::claiming(claim, &elsewhere);
        let trusting = Trusting::new(&[&pinned.certificate()]);
        let met = trusting.meets(Peer::Server, &pinned.own(), &[]);
        let Err(Error::InvalidCertificate(error)) = met else { panic!("{met:?}") };
        assert!(matches!(error, CertificateError::NotValidForNameContext { .. }), "{error:?}");
    }
}

#[test]
fn pinned_certificate_without_its_key_is_refused() {
    let pinned = Authority::claiming(Claim::EndEntity, &localhost("a"));
    let trusting = Trusting::new(&[&pinned.certificate()]);
    let stranger = Authority::claiming(Claim::EndEntity, &localhost("a"));
    let copied = of_pem(pinned.certificate(), stranger.own().key);
    let key = PrivateKeyDer::from_pem_slice(copied.key.as_bytes()).unwrap();
    let key = default_provider().key_provider.load_private_key(key).unwrap();
    let shown = Arc::new(CertifiedKey::new(chain(&copied.certificate, &[]), key));
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let server = builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(shown)));
    let met = shake_hands(trusting.client().config(), Arc::new(server));
    assert_eq!(met, refused(CertificateError::BadSignature));
    // Another certificate of that name, by its own key, is another certificate.
    for peer in PEERS {
        assert!(trusting.meets(peer, &stranger.own(), &[]).is_err(), "{peer:?}");
    }
}

#[test]
fn with_lists_no_certificate_is_trusted_for_itself() {
    let root = Authority::new("root");
    for claim in [Claim::EndEntity, Claim::Authority] {
        let pinned = Authority::claiming(claim, &localhost("a"));
        let trusting = Trusting::new(&[&root.certificate(), &pinned.certificate()])
            .with_crl(&[&root.crl(&[]), &pinned.crl(&[])]);
        for peer in PEERS {
            let expected = refused(CertificateError::UnknownRevocationStatus);
            assert_eq!(trusting.meets(peer, &pinned.own(), &[]), expected, "{claim:?} {peer:?}");
        }
    }
    // What its authority's list does not name is trusted.
    let issued = root.issue_issuer(Claim::EndEntity, &localhost("a"));
    let trusting =
        Trusting::new(&[&root.certificate(), &issued.certificate()]).with_crl(&[&root.crl(&[])]);
    for peer in PEERS {
        assert_eq!(trusting.meets(peer, &issued.own(), &[]), Ok(()), "{peer:?}");
    }
}

#[test]
fn entries_say_what_they_are_good_for() {
    let (root, yesterday) = (Authority::new("root"), SystemTime::now() - DAY);
    let ended = Subject { not_after: Some(yesterday), ..localhost("a") };
    let authority = "authority: trusted for the certificates that it issues";
    let unmarked = "this certificate only (it is not marked CA:TRUE):";
    let pinned = |claim| Authority::claiming(claim, &localhost("a")).certificate();
    let below = |claim| root.issue_issuer(claim, &localhost("a")).certificate();
    for (entry, begins, goes_on) in [
        (root.certificate(), authority, ", and for itself"),
        (below(Claim::Authority), authority, ""),
        (Authority::until("old", yesterday).certificate(), authority, "; it expired at "),
        (below(Claim::EndEntity), unmarked, " trusted until 4096-01-01T00:00:00Z"),
        (pinned(Claim::Nothing), unmarked, " trusted until 4096-01-01T00:00:00Z"),
        (
            pinned(Claim::AuthorityThatMayNotSign),
            "this certificate only (its key usage lacks keyCertSign):",
            " trusted",
        ),
        (
            Authority::claiming(Claim::EndEntity, &ended).certificate(),
            unmarked,
            " refused: it expired at ",
        ),
    ] {
        for peer in PEERS {
            let said = Trusting::new(&[&root.certificate(), &entry]).good_for(peer);
            assert!(said[1].starts_with(&format!("{begins}{goes_on}")), "{said:?}");
        }
    }
    let pinned = Authority::claiming(Claim::EndEntity, &localhost("a"));
    let said = Trusting::new(&[&pinned.certificate()])
        .with_crl(&[&pinned.crl(&[])])
        .good_for(Peer::Client);
    let expected = "refused: with crl, only what an authority has issued is trusted";
    assert_eq!(said, [format!("this certificate only (it is not marked CA:TRUE): {expected}")]);
}

fn openssl(directory: &Path, arguments: &str) {
    let output =
        Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a certificate with `openssl req -x509`: `CA:TRUE`, unless more is said.
fn self_signed_by_openssl(directory: &Path, more: &str) -> Issued {
    let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=worker \
        -addext subjectAltName=DNS:localhost -keyout made.key -out made.pem";
    openssl(directory, &format!("{make}{more}"));
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    of_pem(read("made.pem"), read("made.key"))
}

#[test]
fn self_signed_certificate_of_openssl_is_trusted_for_itself() {
    let directory = Scratch::new();
    for (more, issues) in [("", true), (" -addext basicConstraints=critical,CA:FALSE", false)] {
        let made = self_signed_by_openssl(directory.path(), more);
        openssl(
            directory.path(),
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=b -addext subjectAltName=DNS:localhost \
             -keyout forged.key -out forged.csr",
        );
        openssl(
            directory.path(),
            "x509 -req -in forged.csr -CA made.pem -CAkey made.key -days 30 -copy_extensions copy -out forged.pem",
        );
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let forged = of_pem(read("forged.pem"), read("forged.key"));
        let trusting = Trusting::new(&[&made.certificate]);
        for peer in PEERS {
            assert_eq!(trusting.meets(peer, &made, &[]), Ok(()), "{more} {peer:?}");
            assert_eq!(trusting.meets(peer, &forged, &[]).is_ok(), issues, "{more} {peer:?}");
        }
    }
}

/// Version 1 has no extensions, so that nothing marks an authority. TLS presents no such
/// certificate either.
#[test]
fn certificate_of_x509_version_1_issues_nothing() {
    let directory = Scratch::new();
    let sign = |arguments: &str| openssl(directory.path(), arguments);
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    sign(&format!("req -new {key} -subj /CN=old -keyout old.key -out old.csr"));
    sign("x509 -req -in old.csr -signkey old.key -days 30 -out old.pem");
    sign(&format!(
        "req -new {key} -subj /CN=b -addext subjectAltName=DNS:localhost -keyout b.key -out b.csr"
    ));
    sign(
        "x509 -req -in b.csr -CA old.pem -CAkey old.key -CAcreateserial -days 30 -copy_extensions copy -out b.pem",
    );
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let issued = of_pem(read("b.pem"), read("b.key"));
    let trusting = Trusting::new(&[&read("old.pem")]);
    for peer in PEERS {
        assert!(trusting.meets(peer, &issued, &[]).is_err(), "{peer:?}");
        let said = "this certificate only (its version of X.509 is below 3): refused: TLS cannot present such a certificate";
        assert_eq!(trusting.good_for(peer), [said]);
    }
}
