//! Changes of files take effect, in whatever way the files are changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use fencepost_tests::{Authority, Issued, Scratch, Subject, replace_file};
use fencepost_tls::{
    ClientCertificates, ClientFiles, ClientTls, Dated, FileRole, Flaw, Followed, IdentityFiles,
    Look, MinVersion, ServerFiles, ServerTls, TlsError,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};

/// A server's files in a directory of their own.
struct Server {
    directory: Scratch,
    authority: Authority,
    files: ServerFiles,
}

impl Server {
    fn new() -> Server {
        let directory = Scratch::new();
        let authority = Authority::new("test authority");
        let (certificate, key) = authority.issue_for_localhost().write(directory.path(), "server");
        let identity = IdentityFiles { certificate, key };
        let files = ServerFiles {
            identity,
            more: Vec::new(),
            clients: None,
            min_version: MinVersion::Tls12,
        };
        Server { directory, authority, files }
    }

    fn with_clients() -> Server {
        let mut server = Server::new();
        let ca = server.path("ca.pem");
        fs::write(&ca, server.authority.certificate()).unwrap();
        server.files.clients = Some(ClientCertificates { ca, crl: None, required: true });
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn load(&self) -> Result<ServerTls, TlsError> {
        ServerTls::load(self.files.clone(), &[b"h2", b"http/1.1"])
    }

    fn issue(&self) -> Issued {
        self.authority.issue_for_localhost()
    }
}

#[track_caller]
fn check_flaw(server: &Server, file: &str, contents: &str, expected: &str) {
    fs::write(server.path(file), contents).unwrap();
    let error = server.load().expect_err("a flawed file is of no use");
    assert_eq!(error.to_string(), format!("{}: {expected}", server.path(file).display()));
}

#[test]
fn what_has_not_changed_is_not_made_anew() {
    let server = Server::with_clients();
    let tls = server.load().unwrap();
    let config = tls.config();
    // The same bytes in another file, with another date.
    let certificate = fs::read_to_string(server.path("server.pem")).unwrap();
    replace_file(&server.path("server.pem"), &certificate);
    assert_eq!(tls.look(), Look::Unchanged);
    assert!(std::sync::Arc::ptr_eq(&config, &tls.config()));
}

#[test]
fn a_pair_that_is_half_written_waits_for_its_other_half() {
    let server = Server::new();
    let tls = server.load().unwrap();
    let config = tls.config();
    let next = server.issue();
    fs::write(server.path("server.pem"), &next.certificate).unwrap();
    let other = Flaw::OtherKey { certificate: server.path("server.pem") };
    assert_eq!(
        tls.look(),
        Look::Failed(TlsError {
            file: server.path("server.key"),
            role: FileRole::Key,
            flaw: other
        })
    );
    assert_eq!(tls.look(), Look::Unchanged, "the same flaw is said once");
    assert!(std::sync::Arc::ptr_eq(&config, &tls.config()), "the old one stays");
    fs::write(server.path("server.key"), &next.key).unwrap();
    assert_eq!(tls.look(), Look::Reloaded);
    assert_eq!(tls.look(), Look::Unchanged);
}

#[test]
fn a_file_that_is_gone_keeps_what_was_in_force_until_it_is_back() {
    let server = Server::new();
    let tls = server.load().unwrap();
    fs::remove_file(server.path("server.key")).unwrap();
    let gone = Flaw::Unreadable("No such file or directory (os error 2)".to_owned());
    assert_eq!(
        tls.look(),
        Look::Failed(TlsError { file: server.path("server.key"), role: FileRole::Key, flaw: gone })
    );
    let next = server.issue();
    next.write(server.directory.path(), "server");
    assert_eq!(tls.look(), Look::Reloaded);
}

#[test]
fn a_link_that_is_swapped_is_a_change() {
    let mut server = Server::new();
    for (directory, issued) in [("first", server.issue()), ("second", server.issue())] {
        fs::create_dir(server.path(directory)).unwrap();
        issued.write(&server.path(directory), "tls");
    }
    // As Kubernetes lays out a secret: the files are links through one link to a directory.
    symlink("first", server.path("..data")).unwrap();
    symlink("..data/tls.pem", server.path("tls.pem")).unwrap();
    symlink("..data/tls.key", server.path("tls.key")).unwrap();
    server.files.identity =
        IdentityFiles { certificate: server.path("tls.pem"), key: server.path("tls.key") };
    let tls = server.load().unwrap();
    symlink("second", server.path("..data.new")).unwrap();
    fs::rename(server.path("..data.new"), server.path("..data")).unwrap();
    assert_eq!(tls.look(), Look::Reloaded);
}

#[test]
fn two_writes_in_one_tick_of_the_clock_are_both_seen() {
    let server = Server::with_clients();
    let tls = server.load().unwrap();
    let ca = server.path("ca.pem");
    let date = ca.metadata().unwrap().modified().unwrap();
    let before = fs::read_to_string(&ca).unwrap();
    // Names of one length: certificates of nearly one length, too.
    let other = std::iter::repeat_with(|| Authority::new("else authority").certificate());
    let other = other.into_iter().find(|other| other.len() == before.len()).unwrap();
    fs::write(&ca, other).unwrap();
    fs::File::options().write(true).open(&ca).unwrap().set_modified(date).unwrap();
    assert_eq!(tls.look(), Look::Reloaded);
}

#[test]
fn a_flawed_file_is_named_with_what_is_wrong_with_it() {
    let server = Server::with_clients();
    let issued = server.issue();
    let truncated = &issued.certificate[..200];
    let no_certificate = "has no certificate in it (-----BEGIN CERTIFICATE-----)";
    for file in ["server.pem", "ca.pem"] {
        let good = fs::read_to_string(server.path(file)).unwrap();
        check_flaw(&server, file, "", "is not PEM: nothing in it begins with -----BEGIN");
        check_flaw(&server, file, truncated, "its PEM is cut short or garbled");
        check_flaw(&server, file, &issued.key, no_certificate);
        let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        check_flaw(
            &server,
            file,
            nonsense,
            "certificate 1 in it cannot be used: it cannot be read",
        );
        fs::write(server.path(file), good).unwrap();
    }
    let key = "server.key";
    check_flaw(&server, key, "secret", "is not PEM: nothing in it begins with -----BEGIN");
    let no_key = "has no private key in it (-----BEGIN PRIVATE KEY-----)";
    check_flaw(&server, key, &issued.certificate, no_key);
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let passphrase = "its private key is encrypted: it has to be without a passphrase";
    check_flaw(&server, key, encrypted, passphrase);
    let traditional = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
    check_flaw(&server, key, traditional, passphrase);
    let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let unusable = "its private key cannot be used: ECDSA (P-256, P-384), Ed25519 and RSA of 2048 bits or more can";
    check_flaw(&server, key, nonsense, unusable);
    let certificate = server.path("server.pem");
    let other = format!(
        "its private key does not belong to the (first) certificate in {}",
        certificate.display()
    );
    check_flaw(&server, key, &issued.key, &other);
}

#[test]
fn a_certificate_that_cannot_be_used_is_named_and_not_its_key() {
    let server = Server::new();
    let mut params = CertificateParams::default();
    let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
    unknown.set_criticality(true);
    params.custom_extensions.push(unknown);
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    let extension = "certificate 1 in it cannot be used: UnsupportedCriticalExtension";
    check_flaw(&server, "server.pem", &certificate, extension);
}

#[test]
fn a_flawed_revocation_list_is_named_with_what_is_wrong_with_it() {
    let mut server = Server::with_clients();
    let crl = server.path("crl.pem");
    if let Some(clients) = &mut server.files.clients {
        clients.crl = Some(crl.clone());
    }
    check_flaw(&server, "crl.pem", "", "is not PEM: nothing in it begins with -----BEGIN");
    let none = "has no revocation list in it (-----BEGIN X509 CRL-----)";
    check_flaw(&server, "crl.pem", &server.authority.certificate(), none);
    let nonsense = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    check_flaw(
        &server,
        "crl.pem",
        nonsense,
        "a revocation list in it cannot be used: it cannot be read",
    );
    fs::write(&crl, server.authority.crl(&[])).unwrap();
    assert!(server.load().is_ok());
}

#[test]
fn nothing_but_a_regular_file_is_read() {
    let mut server = Server::new();
    server.files.identity.key = server.directory.path().to_owned();
    assert_eq!(server.load().unwrap_err().flaw, Flaw::NotAFile);
    server.files.identity.key = "/dev/zero".into();
    assert_eq!(server.load().unwrap_err().flaw, Flaw::NotAFile);
}

#[test]
fn no_part_of_a_key_is_in_an_error_or_in_debug_output() {
    let server = Server::new();
    let key = fs::read_to_string(server.path("server.key")).unwrap();
    let tls = server.load().unwrap();
    let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with("-----")).collect();
    // As a line that the parser would quote.
    let garbled = key.replace("-----END PRIVATE", "-----BEGIN PRIVATE");
    fs::write(server.path("server.key"), garbled.replace('\n', "-----BEGIN ")).unwrap();
    let Look::Failed(error) = tls.look() else { panic!("a garbled key is of no use") };
    let shown = format!("{error} {error:?} {tls:?}");
    assert!(lines.iter().all(|line| !shown.contains(line)), "{shown}");
}

#[test]
fn the_end_of_every_certificate_and_revocation_list_is_known() {
    let mut server = Server::with_clients();
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    // It has expired, and is of use all the same: who refuses it then is the other side.
    let [not_before, not_after] = [900_000_000, 1_000_000_000].map(|second| Some(at(second)));
    let subject =
        Subject { common_name: Some("old"), names: &["localhost"], not_before, not_after };
    server.authority.issue(&subject).write(server.directory.path(), "server");
    let crl = server.path("crl.pem");
    fs::write(&crl, server.authority.crl_until(&[], at(1_500_000_000))).unwrap();
    if let Some(clients) = &mut server.files.clients {
        clients.crl = Some(crl);
    }
    let tls = server.load().unwrap();
    let expiries = tls.expiries();
    let seen: Vec<_> =
        expiries.iter().map(|expiry| (expiry.what, expiry.subject.as_str())).collect();
    let authority = "CN=test authority";
    assert_eq!(
        seen,
        [(Dated::Certificate, "CN=old"), (Dated::Authority, authority), (Dated::Crl, authority)]
    );
    assert_eq!((expiries[0].not_before, expiries[0].not_after), (900_000_000, 1_000_000_000));
    assert_eq!(expiries[2].not_after, 1_500_000_000);
    assert_eq!(expiries[0].file, server.path("server.pem"));
}

#[test]
fn a_file_of_authorities_has_ended_when_the_last_of_them_has() {
    let server = Server::with_clients();
    let ended = |name: &str, second| {
        Authority::until(name, SystemTime::UNIX_EPOCH + Duration::from_secs(second))
    };
    let (first, last) =
        (ended("first", 1_000_000_000).certificate(), ended("last", 1_100_000_000).certificate());
    let good = server.authority.certificate();
    let of_authorities = |certificates: &[&str]| {
        fs::write(server.path("ca.pem"), certificates.concat()).unwrap();
        let expiries = server.load().unwrap().expiries();
        let [end] = expiries
            .iter()
            .filter(|end| end.what == Dated::Authority)
            .cloned()
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        (end.subject.clone(), end.caution(SystemTime::now()).is_some())
    };
    assert_eq!(of_authorities(&[&last, &good, &first]), ("CN=test authority".to_owned(), false));
    assert_eq!(of_authorities(&[&first, &last]), ("CN=last".to_owned(), true));
    assert_eq!(of_authorities(&[&first]), ("CN=first".to_owned(), true));
}

#[test]
fn a_file_of_authorities_has_begun_when_the_first_of_them_has() {
    let server = Server::with_clients();
    let next =
        Authority::from("next", SystemTime::UNIX_EPOCH + Duration::from_secs(60_000_000_000))
            .certificate();
    let present = server.authority.certificate();
    let cautions = |certificates: &[&str]| {
        fs::write(server.path("ca.pem"), certificates.concat()).unwrap();
        let cautions = server
            .load()
            .unwrap()
            .expiries()
            .iter()
            .filter_map(|end| end.caution(SystemTime::now()))
            .collect();
        let cautions: Vec<String> = cautions;
        cautions
    };
    assert_eq!(cautions(&[&present, &next]), [""; 0]);
    let alone = format!(
        "{}: the authority of \"CN=next\" is not valid before 3871-04-29T10:40:00Z",
        server.path("ca.pem").display()
    );
    assert_eq!(cautions(&[&next]), [alone]);
}

#[test]
fn what_a_client_is_made_of_is_followed_alike() {
    let server = Server::with_clients();
    let identity = Some(server.files.identity.clone());
    let files = ClientFiles { ca: server.path("ca.pem"), crl: None, identity };
    let tls = ClientTls::load(files, &[]).unwrap();
    assert_eq!(tls.look(), Look::Unchanged);
    assert_eq!(tls.expiries().len(), 2);
    server.issue().write(server.directory.path(), "server");
    assert_eq!(tls.look(), Look::Reloaded);
    fs::write(server.path("ca.pem"), "").unwrap();
    assert_eq!(
        tls.look(),
        Look::Failed(TlsError {
            file: server.path("ca.pem"),
            role: FileRole::Authorities,
            flaw: Flaw::NotPem
        })
    );
    fs::write(server.path("ca.pem"), Authority::new("another").certificate()).unwrap();
    assert_eq!(tls.look(), Look::Reloaded);
}
