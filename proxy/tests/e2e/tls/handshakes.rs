//! Clients that misbehave before they are served.

use std::time::Duration;

use fencepost_tests::{Authority, Connection, Subject, replace_file, until};
use rustls::pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Scene, clients_required, text, tls};

#[tokio::test]
async fn a_slow_handshake_is_ended_while_others_are_served() {
    let scene = Scene::with_limits(|files| tls(files, ""), "handshake_timeout = \"2s\"").await;
    let mut slow = Vec::new();
    for index in 0..60 {
        let mut stream = TcpStream::connect(scene.address()).await.unwrap();
        // Some say nothing, some begin a record that never ends.
        if index % 2 == 0 {
            stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        }
        slow.push(Connection::over(stream));
    }
    for _ in 0..3 {
        let output = scene.curl(&[&scene.url("/")]).await;
        assert!(output.status.success(), "{}", text(&output));
    }
    for mut slow in slow {
        // With a reset where something was left unread.
        assert!(slow.rest().await.unwrap_or_default().is_empty());
    }
    // Each is closed before it is counted.
    until("all are counted", async || scene.failures("timeout").await == 60.0).await;
}

#[tokio::test]
async fn what_is_no_tls_is_closed_by_an_alert() {
    let scene = Scene::open(|files| tls(files, "")).await;
    let socks = [&b"\x05\x01\x00"[..], &[0; 64]].concat();
    let proxy_header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    for sent in [&socks[..], b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", proxy_header] {
        let mut client = Connection::open(scene.address()).await.unwrap();
        client.send(sent).await.unwrap();
        assert_eq!(client.rest().await.unwrap().first(), Some(&21), "an alert");
    }
    drop(TcpStream::connect(scene.address()).await.unwrap());
    let open = async || scene.fence.metric("fencepost_connections").await;
    until("all have gone", async || open().await == 0.0).await;
    // As HAProxy's health checks leave.
    let reset = TcpStream::connect(scene.address()).await.unwrap();
    until("it is there", async || open().await == 1.0).await;
    SockRef::from(&reset).set_linger(Some(Duration::ZERO)).unwrap();
    drop(reset);
    let counted = async || (scene.failures("protocol").await, scene.failures("closed").await);
    until("all are counted", async || counted().await == (3.0, 2.0)).await;
    scene.fence.until_log("plain HTTP on a TLS port").await;
    scene.fence.until_log("PROXY protocol v1 on a listener that does not expect it").await;
    // Who only looks whether anybody listens is not in the log that everybody keeps.
    for (level, reason) in [(" INFO ", "protocol"), ("DEBUG ", "closed")] {
        scene.fence.until_log(&format!("reason=\"{reason}\"")).await;
        let log = scene.fence.log();
        for line in log.lines().filter(|line| line.contains(&format!("reason=\"{reason}\""))) {
            assert!(
                line.contains(level) && line.contains("a TLS handshake came to nothing"),
                "{line}"
            );
        }
    }
}

#[tokio::test]
async fn a_client_without_a_believed_certificate_is_logged() {
    let scene = Scene::open(clients_required).await;
    let listener = format!("listener=\"{}\"", scene.address());
    let stranger = Authority::new("strangers")
        .issue(&Subject { common_name: Some("stranger"), ..Subject::default() });
    stranger.write(scene.files.path(), "stranger");
    for (name, error) in [
        (None, "peer sent no certificates"),
        (
            Some("stranger"),
            "its certificate is not signed by an authority of client_ca (invalid peer certificate: UnknownIssuer)",
        ),
    ] {
        let mut stream = TcpStream::connect(scene.address()).await.unwrap();
        let client = format!("client={}", stream.local_addr().unwrap());
        let shaken = TlsConnector::from(scene.client(name, &[]))
            .connect(ServerName::from(scene.address().ip()), &mut stream);
        if let Ok(mut shaken) = shaken.await {
            shaken.read_to_end(&mut Vec::new()).await.unwrap_err(); // By TLS 1.3 a client hears of it late.
        }
        scene.fence.until_log(error).await;
        let log = scene.fence.log();
        let line = log.lines().find(|line| line.contains(error)).unwrap();
        for part in [" INFO ", &listener, &client, "reason=\"certificate\""] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[tokio::test]
async fn a_client_of_an_unsigned_list_counts_as_without_certificate() {
    let scene = Scene::open(clients_required).await;
    scene.issue_client("master");
    let by_its_name = Authority::new("test authority");
    replace_file(scene.path("crl.pem").as_ref(), &by_its_name.crl(&[]));
    scene.fence.admin("POST", "/reload").await;
    if let Ok(mut shaken) = scene.connect(&scene.client(Some("master"), &[])).await {
        shaken.read_to_end(&mut Vec::new()).await.unwrap_err(); // By TLS 1.3 a client hears of it late.
    }
    scene
        .fence
        .until_log(
            "reason=\"certificate\" error=\"the list in crl of what its authority has revoked is of no use (invalid certificate revocation list: BadSignature)\"",
        )
        .await;
    assert_eq!(scene.failures("certificate").await, 1.0);
}

#[tokio::test]
async fn a_client_that_does_not_believe_us_is_counted() {
    let scene = Scene::open(|files| tls(files, "")).await;
    let output = crate::programs::run("curl", &["-sS", &scene.url("/")]).await;
    assert_eq!(output.status.code(), Some(60), "{}", text(&output));
    until("it is counted", async || scene.failures("refused").await == 1.0).await;
}
