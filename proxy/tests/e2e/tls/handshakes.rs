//! Clients that misbehave before they are served.

use fencepost_testsupport::{Connection, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Scene, text, tls};

#[tokio::test]
async fn a_handshake_that_goes_on_for_too_long_is_ended_while_others_are_served() {
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
    eventually("all are counted", async || (scene.failures("timeout").await == 60.0).then_some(())).await;
}

#[tokio::test]
async fn plain_http_is_told_that_the_port_speaks_https() {
    let scene = Scene::open(|files| tls(files, "")).await;
    for request in ["GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut client = Connection::open(scene.address()).await.unwrap();
        client.send(request).await.unwrap();
        let answer = client.response().await.unwrap();
        assert_eq!(answer.status, 400);
        assert_eq!(answer.text(), "This port speaks HTTPS, and the request was plain.\r\n");
        assert!(client.rest().await.unwrap().is_empty());
    }
    assert_eq!(scene.failures("plain-http").await, 2.0);
    assert!(scene.worker.seen().is_empty());
}

#[tokio::test]
async fn what_is_neither_is_closed_by_an_alert() {
    let scene = Scene::open(|files| tls(files, "")).await;
    let mut client = Connection::open(scene.address()).await.unwrap();
    client.send(b"\x05\x01\x00").await.unwrap(); // SOCKS.
    client.send([0; 64]).await.unwrap();
    assert_eq!(client.rest().await.unwrap().first(), Some(&21), "an alert");
    drop(TcpStream::connect(scene.address()).await.unwrap());
    eventually("both are counted", async || {
        (scene.failures("protocol").await + scene.failures("closed").await == 2.0).then_some(())
    })
    .await;
    // What anybody can cause is not in the log that everybody keeps.
    scene.fence.until_log("TLS handshake failed").await;
    let log = scene.fence.log();
    assert!(log.lines().filter(|line| line.contains("handshake")).all(|line| line.contains("DEBUG")), "{log}");
}

#[tokio::test]
async fn a_client_that_does_not_believe_us_is_counted() {
    let scene = Scene::open(|files| tls(files, "")).await;
    let output = crate::programs::run("curl", &["-sS", &scene.url("/")]).await;
    assert_eq!(output.status.code(), Some(60), "{}", text(&output));
    eventually("it is counted", async || (scene.failures("refused").await == 1.0).then_some(())).await;
}

#[tokio::test]
async fn the_last_word_to_a_client_that_asks_for_too_much_ends_as_tls_ends() {
    const GOAWAY: u8 = 7;
    let scene = Scene::open(|files| tls(files, "")).await;
    let stream = scene.connect(&scene.client(None, &[b"h2"])).await.unwrap();
    let ping = b"\0\0\x08\x06\0\0\0\0\0harmless";
    let flood = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], &ping.repeat(20_000)].concat();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut back = Vec::new();
    // An end that TLS does not tell of is an error: somebody in between may have cut something off.
    let (written, read) = tokio::join!(writer.write_all(&flood), reader.read_to_end(&mut back));
    written.unwrap();
    read.unwrap();
    assert_eq!(back[back.len() - 14], GOAWAY);
}
