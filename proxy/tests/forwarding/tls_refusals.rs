//! Workers behind TLS that are not who they should be, and workers that do not believe us.

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use fencepost::upstream::{Ending, Speaks, UPSTREAM_PROTOCOLS, Upstream, UpstreamTls, connects};
use fencepost_config::{HostPort, UpstreamAddress};
use fencepost_tests::{Authority, Subject, WorkerTls};
use fencepost_tls::{ClientFiles, ClientTls};
use rustls::ServerConfig;

use crate::support::{Certificates, Event, MOMENT, PATIENCE, Proxy, Settings, TlsWorker, trusting};

const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
const H1: &[&str] = &["http/1.1"];
const BOTH: &[&str] = &["h2", "http/1.1"];

/// How it is said what is wrong with TLS to a worker.
async fn complaint(worker: SocketAddr, tls: UpstreamTls) -> String {
    let address =
        UpstreamAddress::Tcp(HostPort { host: worker.ip().to_string(), port: worker.port() });
    let error = connects(&Upstream::new(address, Speaks::Tls(tls)), PATIENCE).await.unwrap_err();
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said.push_str(&format!(": {error}"));
        cause = error.source();
    }
    said
}

/// A request to such a worker is answered at once, and nothing was at the worker for any time.
fn nothing_is_sent(worker: SocketAddr, tls: UpstreamTls) {
    let proxy = Proxy::with(worker, Settings { upstream_tls: Some(tls), ..Settings::default() });
    for _ in 0..3 {
        assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 503 "), "no connection is ready");
    }
    assert!(proxy.events().is_empty());
}

async fn check(worker: SocketAddr, tls: UpstreamTls, says: &str) {
    let said = complaint(worker, tls.clone()).await;
    assert!(said.contains(says), "{said}");
    tokio::task::block_in_place(|| nothing_is_sent(worker, tls));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impostor_of_a_worker_gets_nothing_and_the_error_says_why() {
    let certificates = Certificates::new();
    let believes = |name| trusting(&certificates.path("ca.pem"), None, name);
    let worker = TlsWorker::start(certificates.server(BOTH));
    let other = TlsWorker::start(Certificates::new().server(BOTH));
    check(
        other.address(),
        believes("127.0.0.1"),
        "as 127.0.0.1: its certificate is not signed by an authority",
    )
    .await;
    check(
        worker.address(),
        believes("worker.internal"),
        "as worker.internal: its certificate is for another name",
    )
    .await;
    check(worker.address(), believes("127.0.0.2"), "its certificate is for another name").await;
    let not_after = Some(SystemTime::now() - Duration::from_secs(3600));
    let identity = certificates.authority.issue(&Subject {
        names: &["127.0.0.1"],
        not_after,
        ..Subject::default()
    });
    let expired = WorkerTls { identity: &identity, client_ca: None, protocols: BOTH }.config();
    check(
        TlsWorker::start(expired).address(),
        believes("127.0.0.1"),
        "its certificate has expired",
    )
    .await;
    let crl = certificates.path("crl.pem");
    std::fs::write(&crl, Authority::new("the test's").crl(&[])).unwrap(); // Of another by its name.
    let files = ClientFiles { ca: certificates.path("ca.pem"), crl: Some(crl), identity: None };
    let unsigned = UpstreamTls {
        identity: ClientTls::load(files, UPSTREAM_PROTOCOLS).unwrap(),
        ..believes("127.0.0.1")
    };
    check(
        worker.address(),
        unsigned,
        "the list in upstream_tls.crl of what its authority has revoked is of no use",
    )
    .await;
    let foreign = TlsWorker::start(certificates.server(&["acme-tls/1"]));
    check(
        foreign.address(),
        believes("127.0.0.1"),
        "it speaks no version of HTTP that was offered",
    )
    .await;
    for name in ["127.0.0.1", "localhost"] {
        let upstream = UpstreamAddress::Tcp(HostPort {
            host: "127.0.0.1".to_owned(),
            port: worker.address().port(),
        });
        assert!(
            connects(&Upstream::new(upstream, Speaks::Tls(believes(name))), PATIENCE).await.is_ok(),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_speak_tls_gets_nothing_and_it_is_said_so() {
    let certificates = Certificates::new();
    let listener = |answer: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                use std::io::{Read, Write};
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
            }
        });
        address
    };
    check(
        listener(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        certificates.client(),
        "it does not speak TLS",
    )
    .await;
    check(listener(b""), certificates.client(), "it closed the connection in the handshake").await;
    // As a worker with OpenSSL by TLS 1.2 to whom nobody has shown a certificate.
    let alert = listener(&[21, 3, 3, 0, 2, 2, 40]);
    check(
        alert,
        certificates.client(),
        "it wants a certificate, or speaks no version or cipher of TLS",
    )
    .await;
}

#[test]
fn a_handshake_counts_as_connecting() {
    let certificates = Certificates::new();
    // The system accepts for it; nobody ever answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = Settings {
        upstream_tls: Some(certificates.client()),
        ready_timeout: MOMENT,
        ..Settings::default()
    };
    let proxy = Proxy::with(silent.local_addr().unwrap(), settings);
    assert!(proxy.client().ask(GET).0.starts_with("HTTP/1.1 503 "));
    assert!(proxy.events().is_empty());
}

fn with_client_certificates(
    certificates: &Certificates,
    clients: &Authority,
    only_tls12: bool,
) -> Arc<ServerConfig> {
    let mut config = certificates.server_for(clients, H1);
    if only_tls12 {
        let versions = &[&rustls::version::TLS12];
        config = WorkerTls {
            identity: &certificates.worker,
            client_ca: Some(&clients.certificate()),
            protocols: H1,
        }
        .config_for(versions);
    }
    config
}

#[test]
fn a_worker_that_asks_for_a_certificate_gets_ours() {
    let (certificates, clients) = (Certificates::new(), Authority::new("clients"));
    for only_tls12 in [false, true] {
        let worker =
            TlsWorker::start(with_client_certificates(&certificates, &clients, only_tls12));
        let settings = Settings {
            upstream_tls: Some(certificates.client_of(&clients)),
            ..Settings::default()
        };
        let proxy = Proxy::with(worker.address(), settings);
        let mut client = proxy.client();
        client.send(GET);
        let mut peer = worker.next();
        peer.next_request();
        peer.respond("hello");
        assert_eq!(client.answer().1, b"hello");
    }
}

/// By TLS 1.2 the handshake tells. By TLS 1.3 we may have written before we read that it failed:
/// the request then counts as one whose end was not seen, though a worker never looks at what comes
/// after a handshake that failed.
#[test]
fn a_worker_that_refuses_our_certificate_gets_no_request() {
    let (certificates, clients) = (Certificates::new(), Authority::new("clients"));
    for only_tls12 in [false, true] {
        for tls in [certificates.client(), certificates.client_of(&Authority::new("others"))] {
            let worker =
                TlsWorker::start(with_client_certificates(&certificates, &clients, only_tls12));
            let proxy = Proxy::with(
                worker.address(),
                Settings { upstream_tls: Some(tls), ..Settings::default() },
            );
            for _ in 0..5 {
                let (head, _) = proxy.client().ask(GET);
                let unsent = head.starts_with("HTTP/1.1 503 ");
                assert!(unsent || !only_tls12 && head.starts_with("HTTP/1.1 502 "), "{head}");
            }
            assert!(!worker.has_another(), "no handshake came to its end");
            let events = proxy.events();
            assert!(
                events.iter().all(|event| *event == Event::Finished(Ending::Reset)),
                "{events:?}"
            );
            assert!(
                events.len() <= if only_tls12 { 0 } else { 5 },
                "each was sent once at most: {events:?}"
            );
        }
    }
}
