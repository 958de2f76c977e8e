//! Proxies that are reached by TLS.

use std::path::PathBuf;

use fencepost_tests::{Authority, Issued, Scratch, Worker, WorkerTls};
use hyper::Version;

use crate::support::loadtest;

/// Who believes whom, as files for the options of a run.
struct Trust {
    authority: Authority,
    server: Issued,
    ca: PathBuf,
    /// The certificate and the key of who sends.
    client: (PathBuf, PathBuf),
    scratch: Scratch,
}

impl Trust {
    fn new() -> Trust {
        let (authority, scratch) = (Authority::new("proxies"), Scratch::new());
        let ca = scratch.path().join("ca.pem");
        std::fs::write(&ca, authority.certificate()).expect("a scratch directory can be written");
        let client = authority.issue_for_localhost().write(scratch.path(), "client");
        Trust { server: authority.issue_for_localhost(), authority, ca, client, scratch }
    }

    /// A server that shows its certificate, and wants to see one.
    async fn server(&self, protocols: &[&str]) -> Worker {
        let client_ca = self.authority.certificate();
        Worker::start_tls(&WorkerTls {
            identity: &self.server,
            client_ca: Some(&client_ca),
            protocols,
        })
        .await
    }

    /// The options of somebody who believes it, and shows one.
    fn options(&self) -> String {
        let [ca, certificate, key] = [&self.ca, &self.client.0, &self.client.1]
            .map(|file| file.to_str().expect("a scratch directory's path is text"));
        format!("--proxy-ca {ca} --proxy-cert {certificate} --proxy-key {key}")
    }
}

const TOKEN: &str = "--owner shard-1 --revision 7";
const BRIEFLY: &str = "--duration 500ms --warm-up 0s";

#[tokio::test]
async fn requests_by_tls_are_sent_whole_over_both_protocols() {
    let trust = Trust::new();
    for (version, protocol) in [(Version::HTTP_11, ""), (Version::HTTP_2, "--h2 --streams 3")] {
        let server = trust.server(&["h2", "http/1.1"]).await;
        let url = server.https();
        let common =
            format!("open --proxy {url} --rate 100 --connections 1 --requests-per-connection 5");
        let run = loadtest(format!(
            "{common} {} {TOKEN} {BRIEFLY} --body 100000 {protocol}",
            trust.options()
        ))
        .await;
        run.is_as_expected().says(&format!("to {url}"));
        let seen = server.seen();
        let mut requests = vec![0; 10];
        for request in &seen {
            requests[request.connection] += 1;
            assert_eq!((request.version, request.body_bytes), (version, 100_000));
            assert_eq!(request.header("fence-owner"), Some("shard-1"));
        }
        assert_eq!(requests, [5; 10], "{version:?}: connections are replaced");
    }
}

#[tokio::test]
async fn untrusted_peer_gets_no_request() {
    let (trust, others) = (Trust::new(), Trust::new());
    let (server, clear) = (trust.server(&["http/1.1"]).await, Worker::start().await);
    let (url, clear_url) = (
        server.https(),
        format!("https://{}", clear.endpoint().to_string().replace("http://", "")),
    );
    let nobody = format!("--proxy-ca {}", trust.ca.display());
    for (proxy, options, words) in [
        (&url, others.options(), "invalid peer certificate"),
        (&url, nobody, "CertificateRequired"),
        (&clear_url, trust.options(), "no TLS with https://"),
    ] {
        let common = format!("closed --proxy {proxy} --connections 1");
        loadtest(format!("{common} {options} {TOKEN} {BRIEFLY}")).await.ended_with(1).says(words);
    }
    assert_eq!(server.seen().len() + clear.seen().len(), 0);
}

#[tokio::test]
async fn tls_option_that_is_missing_or_useless_is_named() {
    let trust = Trust::new();
    let missing = trust.scratch.path().join("missing.pem");
    let missing = missing.to_str().expect("a scratch directory's path is text");
    let (ca, certificate, key) =
        (trust.ca.display(), trust.client.0.display(), trust.client.1.display());
    let shown = format!("--proxy-cert {certificate} --proxy-key {key}");
    let unused = "need an https:// --proxy";
    for (proxy, options, code, words) in [
        ("https://127.0.0.1:1", String::new(), 64, "needs --proxy-ca"),
        ("http://127.0.0.1:1", format!("--proxy-ca {ca}"), 64, unused),
        ("http://127.0.0.1:1", shown.clone(), 64, unused),
        (
            "https://127.0.0.1:1",
            format!("--proxy-ca {ca} --proxy-cert {certificate}"),
            64,
            "--proxy-key",
        ),
        ("https://127.0.0.1:1", format!("--proxy-ca {missing}"), 1, missing),
    ] {
        let run = loadtest(format!("closed --proxy {proxy} {options} {TOKEN}")).await;
        run.ended_with(code).says(words);
    }
}
