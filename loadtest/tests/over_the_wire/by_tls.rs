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
        Worker::start_tls(&WorkerTls { identity: &self.server, client_ca: Some(&client_ca), protocols }).await
    }

    /// The options of somebody who believes it, and shows one.
    fn options(&self) -> [&str; 6] {
        let [ca, certificate, key] = [&self.ca, &self.client.0, &self.client.1]
            .map(|file| file.to_str().expect("a scratch directory's path is text"));
        ["--proxy-ca", ca, "--proxy-cert", certificate, "--proxy-key", key]
    }
}

const TOKEN: [&str; 4] = ["--owner", "shard-1", "--revision", "7"];
const BRIEFLY: [&str; 4] = ["--duration", "500ms", "--warm-up", "0s"];

#[tokio::test]
async fn requests_by_tls_are_sent_whole_over_both_protocols() {
    let trust = Trust::new();
    for (version, protocol) in [(Version::HTTP_11, &[][..]), (Version::HTTP_2, &["--h2", "--streams", "3"])] {
        let server = trust.server(&["h2", "http/1.1"]).await;
        let url = server.https();
        let common = ["open", "--proxy", &url, "--rate", "100", "--connections", "1", "--requests-per-connection", "5"];
        let more = ["--body", "100000"];
        let run = loadtest(&[&common[..], &trust.options(), &TOKEN, &BRIEFLY, &more, protocol].concat()).await;
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

/// What a connection does not take at once is encrypted already: it is written before the answer is waited for.
#[tokio::test]
async fn body_beyond_the_socket_buffer_is_sent_whole() {
    let trust = Trust::new();
    let server = trust.server(&["http/1.1"]).await;
    let common = ["closed", "--proxy", &server.https(), "--connections", "1", "--body", "9000000"].map(str::to_owned);
    let common = common.each_ref().map(String::as_str);
    loadtest(&[&common[..], &trust.options(), &TOKEN, &BRIEFLY].concat()).await.is_as_expected();
    assert!(server.seen().iter().all(|request| request.body_bytes == 9_000_000));
}

#[tokio::test]
async fn server_without_alpn_speaks_http1() {
    let trust = Trust::new();
    let server = trust.server(&[]).await;
    let url = server.https();
    let common = ["closed", "--proxy", &url, "--connections", "1"];
    loadtest(&[&common[..], &trust.options(), &TOKEN, &BRIEFLY].concat()).await.is_as_expected();
    let run = loadtest(&[&common[..], &trust.options(), &TOKEN, &BRIEFLY, &["--h2"]].concat()).await;
    run.ended_with(1).says(&format!("{url} does not speak HTTP/2 by TLS"));
}

#[tokio::test]
async fn untrusted_peer_gets_no_request() {
    let (trust, others) = (Trust::new(), Trust::new());
    let (server, clear) = (trust.server(&["http/1.1"]).await, Worker::start().await);
    let (url, clear_url) = (server.https(), format!("https://{}", clear.endpoint().to_string().replace("http://", "")));
    let nobody = ["--proxy-ca", trust.options()[1]];
    for (proxy, options, words) in [
        (&url, &others.options()[..], "invalid peer certificate"),
        (&url, &nobody, "CertificateRequired"),
        (&clear_url, &trust.options(), "no TLS with https://"),
    ] {
        let common = ["closed", "--proxy", proxy, "--connections", "1"];
        loadtest(&[&common[..], options, &TOKEN, &BRIEFLY].concat()).await.ended_with(1).says(words);
    }
    assert_eq!(server.seen().len() + clear.seen().len(), 0);
}

#[tokio::test]
async fn tls_option_that_is_missing_or_useless_is_named() {
    let trust = Trust::new();
    let missing = trust.scratch.path().join("missing.pem");
    let missing = missing.to_str().expect("a scratch directory's path is text");
    let [_, ca, _, certificate, _, key] = trust.options();
    for (proxy, options, code, words) in [
        ("https://127.0.0.1:1", &[][..], 64, "needs --proxy-ca"),
        ("http://127.0.0.1:1", &["--proxy-ca", ca], 64, "need an https:// --proxy"),
        ("http://127.0.0.1:1", &["--proxy-cert", certificate, "--proxy-key", key], 64, "need an https:// --proxy"),
        ("https://127.0.0.1:1", &["--proxy-ca", ca, "--proxy-cert", certificate], 64, "--proxy-key"),
        ("https://127.0.0.1:1", &["--proxy-ca", missing], 1, missing),
    ] {
        let run = loadtest(&[&["closed", "--proxy", proxy], options, &TOKEN].concat()).await;
        run.ended_with(code).says(words);
    }
}
