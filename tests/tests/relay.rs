//! A relay that breaks on command.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fencepost_tests::{PATIENCE, Relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Long enough for a byte that is let through to arrive; nothing but a failure depends on it.
const A_WHILE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn bytes_and_ends_pass_both_ways() {
    let relay = Relay::start(echo_server().await).await;
    let mut client = TcpStream::connect(relay.address()).await.unwrap();
    client.write_all(b"hello").await.unwrap();
    client.shutdown().await.unwrap();
    let mut echoed = String::new();
    client.read_to_string(&mut echoed).await.unwrap();
    assert_eq!(echoed, "hello");
    assert_eq!(relay.accepted(), 1);
}

#[tokio::test]
async fn a_cut_closes_connections_and_refuses_new_ones_until_restored() {
    let relay = Relay::start(echo_server().await).await;
    let mut client = TcpStream::connect(relay.address()).await.unwrap();
    assert_eq!(round_trip(&mut client, b"x").await, b"x");

    relay.cut().await;

    let end = timeout(PATIENCE, client.read(&mut [0])).await.expect("a cut connection ends");
    assert!(!matches!(end, Ok(1..)), "{end:?}");
    let refused = TcpStream::connect(relay.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

    relay.restore().await;

    let mut client = TcpStream::connect(relay.address()).await.unwrap();
    assert_eq!(round_trip(&mut client, b"y").await, b"y");
}

#[tokio::test]
async fn a_freeze_holds_bytes_and_connections_and_loses_none() {
    let relay = Relay::start(echo_server().await).await;
    let mut old = TcpStream::connect(relay.address()).await.unwrap();
    assert_eq!(round_trip(&mut old, b"x").await, b"x");

    relay.freeze().await;

    let mut new = TcpStream::connect(relay.address()).await.unwrap();
    for client in [&mut old, &mut new] {
        client.write_all(b"held").await.unwrap();
        let passed = timeout(A_WHILE, client.read(&mut [0; 4])).await;
        assert!(passed.is_err(), "a frozen relay passed something on: {passed:?}");
    }

    relay.restore().await;

    for client in [&mut old, &mut new] {
        let mut echoed = [0; 4];
        client.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"held");
    }
}

#[tokio::test]
async fn a_delay_counts_once_each_way_and_leaves_the_order() {
    let relay = Relay::start(echo_server().await).await;
    let mut client = TcpStream::connect(relay.address()).await.unwrap();
    relay.delay(Duration::from_millis(50)).await;
    let sent = Instant::now();
    let message: Vec<u8> = (0..1_000_000_u32).map(|index| index as u8).collect();
    assert_eq!(round_trip(&mut client, &message).await, message);
    let took = sent.elapsed();
    assert!(took >= Duration::from_millis(100), "{took:?}");
    // 62 pieces each way, each delayed after the other, would take 6 s.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn a_target_that_refuses_shows_as_a_connection_that_ends() {
    let nobody = fencepost_tests::FreePort::reserve();
    let relay = Relay::start(nobody.address()).await;
    let mut client = TcpStream::connect(relay.address()).await.unwrap();
    let end = client.read(&mut [0]).await;
    assert!(!matches!(end, Ok(1..)), "{end:?}");
}

async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut from, mut to) = stream.into_split();
            tokio::spawn(async move {
                // A cut breaks it: that is what the tests do.
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

/// Writes while it reads: a relay full of bytes takes no more.
async fn round_trip(client: &mut TcpStream, message: &[u8]) -> Vec<u8> {
    let (mut from, mut to) = client.split();
    let mut echoed = vec![0; message.len()];
    let (written, read) = tokio::join!(to.write_all(message), from.read_exact(&mut echoed));
    written.unwrap();
    read.unwrap();
    echoed
}
