//! A session that is resumed gives nobody more than a new one would.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_testsupport::{Authority, Issued, Scratch, Subject, eventually, replace_file};
use fencepost_tls::{
    ClientCertificates, ClientFiles, ClientTls, Followed, IdentityFiles, Look, MinVersion, ServerFiles, ServerTls,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConnection};

struct Pair {
    directory: Scratch,
    authority: Authority,
    server: ServerTls,
}

impl Pair {
    /// A server that asks for certificates, of that authority's.
    fn new() -> Pair {
        let (directory, authority) = (Scratch::new(), Authority::new("test authority"));
        let path = |name: &str| directory.path().join(name);
        fs::write(path("ca.pem"), authority.certificate()).unwrap();
        fs::write(path("crl.pem"), authority.crl(&[])).unwrap();
        let (certificate, key) = authority.issue_for_localhost().write(directory.path(), "server");
        let clients = ClientCertificates { ca: path("ca.pem"), crl: Some(path("crl.pem")), required: true };
        let identity = IdentityFiles { certificate, key };
        let files = ServerFiles { identity, clients: Some(clients), min_version: MinVersion::Tls12 };
        let server = ServerTls::load(files, &[]).unwrap();
        Pair { directory, authority, server }
    }

    fn client(&self, issued: &Issued) -> Arc<ClientConfig> {
        let (certificate, key) = issued.write(self.directory.path(), "client");
        let identity = Some(IdentityFiles { certificate, key });
        ClientTls::load(ClientFiles { ca: self.directory.path().join("ca.pem"), crl: None, identity }, &[])
            .unwrap()
            .config()
    }

    /// Shakes hands: how, and the server's side.
    fn shake(&self, client: &Arc<ClientConfig>) -> Result<(HandshakeKind, ServerConnection), rustls::Error> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
        let mut server = ServerConnection::new(self.server.config()).unwrap();
        let mut wire = Vec::new();
        while client.wants_write() || server.wants_write() {
            client.write_tls(&mut wire).unwrap();
            pass(&mut wire, |bytes| server.read_tls(bytes));
            server.process_new_packets()?;
            server.write_tls(&mut wire).unwrap();
            pass(&mut wire, |bytes| client.read_tls(bytes));
            client.process_new_packets()?;
        }
        Ok((server.handshake_kind().unwrap(), server))
    }
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
fn a_new_certificate_of_the_server_ends_no_session_and_other_trust_ends_all() {
    let pair = Pair::new();
    let client = pair.client(&pair.authority.issue(&client_named("shard-1")));
    let kind = || pair.shake(&client).unwrap().0;
    assert_eq!((kind(), kind()), (HandshakeKind::Full, HandshakeKind::Resumed));

    pair.authority.issue_for_localhost().write(pair.directory.path(), "server");
    assert_eq!(pair.server.look(), Look::Reloaded);
    assert_eq!(kind(), HandshakeKind::Resumed);

    let other = pair.authority.issue(&client_named("shard-2"));
    replace_file(&pair.directory.path().join("crl.pem"), &pair.authority.crl(&[&other]));
    assert_eq!(pair.server.look(), Look::Reloaded);
    assert_eq!((kind(), kind()), (HandshakeKind::Full, HandshakeKind::Resumed));

    let both = format!("{}{}", pair.authority.certificate(), Authority::new("another").certificate());
    replace_file(&pair.directory.path().join("ca.pem"), &both);
    assert_eq!(pair.server.look(), Look::Reloaded);
    assert_eq!(kind(), HandshakeKind::Full);
}

#[test]
fn a_certificate_is_refused_where_its_authority_has_no_list_or_an_overdue_one() {
    let pair = Pair::new();
    let crl = pair.directory.path().join("crl.pem");
    let client = pair.client(&pair.authority.issue(&client_named("shard-1")));
    assert!(pair.shake(&client).is_ok());
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    for list in [pair.authority.crl_until(&[], yesterday), Authority::new("another").crl(&[])] {
        replace_file(&crl, &list);
        assert_eq!(pair.server.look(), Look::Reloaded);
        assert!(pair.shake(&client).is_err());
    }
}

#[tokio::test]
async fn a_certificate_that_has_ended_since_is_found_out_when_its_session_is_resumed() {
    let pair = Pair::new();
    let end = SystemTime::now() + Duration::from_secs(2);
    let subject = Subject { not_after: Some(end), ..client_named("shard-1") };
    let client = pair.client(&pair.authority.issue(&subject));
    let (kind, server) = pair.shake(&client).unwrap();
    assert_eq!(kind, HandshakeKind::Full);
    pair.server.verify_resumed(&server).unwrap();
    let (kind, server) = pair.shake(&client).unwrap();
    assert_eq!(kind, HandshakeKind::Resumed);
    pair.server.verify_resumed(&server).unwrap();
    eventually("it has ended", async || (SystemTime::now() > end + Duration::from_secs(1)).then_some(())).await;
    let (kind, server) = pair.shake(&client).expect("the handshake itself believes the earlier one");
    assert_eq!(kind, HandshakeKind::Resumed);
    assert!(pair.server.verify_resumed(&server).is_err());
}
