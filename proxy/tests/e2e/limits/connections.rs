//! Connections: how many, from whom, and which one makes room.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fencepost_tests::{PATIENCE, eventually};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::{MIB, address, closed, connect, head, limited};
use crate::fencepost::{Config, Fencepost, Route};
use crate::scene::Ask;

/// Connects from another address of this machine.
async fn connect_from(last: u8, server: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0)).unwrap();
    socket.connect(server).await.unwrap()
}

/// Whether the server has closed it: what it sent before is read.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.is_ok() // With or without a reset.
}

/// Whether the server has closed it, without having said anything.
fn has_ended(stream: &TcpStream) -> bool {
    !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[tokio::test]
async fn ten_thousand_slow_heads_neither_starve_nor_exhaust() {
    const SLOW: usize = 10_000;
    let maximum = getrlimit(Resource::Nofile).maximum;
    assert!(
        maximum.is_none_or(|most| most > 12_000),
        "this test needs 12,000 descriptors (ulimit -Hn)"
    );
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let (scene, tenure) = limited("header_timeout = \"10m\"").await;
    let before = scene.fence.memory_peak();
    let mut slow = Vec::new();
    for number in 0..SLOW {
        let mut stream =
            connect_from(2 + u8::try_from(number % 10).unwrap(), address(&scene)).await;
        stream.write_all(b"POST / HTTP/1.1\r\nHost: h\r\nX: ").await.unwrap();
        slow.push(stream);
        if number % 100 == 0 {
            scene.admits("/", &tenure).await;
        }
    }
    let mut kept = scene.line().await;
    for number in 0..100 {
        scene.admits("/", &tenure).await;
        assert_eq!(kept.send(Ask::post("/").under(&tenure)).await.unwrap().status, 200);
        slow[SLOW - 1 - number].write_all(b"x").await.unwrap();
    }
    assert!(closed(&scene, "connections_max").await >= 1.0, "they were full");
    // Each is counted as it is called, and ends on its own thread.
    eventually("all that were called to make room have ended", async || {
        let still_open = slow.iter().filter(|stream| !has_ended(stream)).count();
        ((SLOW - still_open) as f64 == closed(&scene, "connections_max").await).then_some(())
    })
    .await;
    // Those that wait for as long to the millisecond may go in any order.
    assert!(
        slow[100..].iter().all(|stream| !has_ended(stream)),
        "who has waited longest makes room"
    );
    let grown = scene.fence.memory_peak() - before;
    println!("{SLOW} slow heads: the peak of memory grew by {} KiB", grown / 1024);
    assert!(grown < 320 * MIB, "{grown} bytes");
    scene.finish().await;
}

#[tokio::test]
async fn idle_connections_make_room_and_busy_ones_never_do() {
    let (scene, tenure) = limited("connections_max = 2\nconnections_per_client_max = 3").await;
    let latch = scene.worker.holds("/held");
    let held = scene.start_at_worker(Ask::post("/held").under(&tenure)).await;
    let mut idle = connect(&scene).await;
    idle.send(head("GET", "/idle", &tenure, "")).await.unwrap();
    assert_eq!(idle.response().await.unwrap().status, 200);
    scene.admits("/new", &tenure).await;
    assert_eq!(idle.rest().await.unwrap(), b"", "it made room");
    // With requests on all connections, the next waits until one of them is over.
    let second = scene.start_at_worker(Ask::post("/held").under(&tenure)).await;
    scene
        .worker
        .wait_until("both are at the worker", |seen| {
            seen.iter().filter(|one| one.path == "/held").count() == 2
        })
        .await;
    let mut waiting = connect(&scene).await;
    waiting.send(head("GET", "/waiting", &tenure, "")).await.unwrap();
    scene.until_metric("fencepost_connections", 2.0).await;
    assert!(scene.worker.seen().iter().all(|one| one.path != "/waiting"));
    latch.open();
    assert_eq!(waiting.response().await.unwrap().status, 200);
    for held in [held, second] {
        assert_eq!(held.await.unwrap().status, 200);
    }
    scene.finish().await;
}

#[tokio::test]
async fn a_departed_client_keeps_its_place_until_its_request_ends() {
    let (scene, tenure) = limited("connections_max = 1\nconnections_per_client_max = 3").await;
    let latch = scene.worker.holds("/held");
    let mut leaving = connect(&scene).await;
    leaving.send(head("GET", "/held", &tenure, "")).await.unwrap();
    scene
        .worker
        .wait_until("it is at the worker", |seen| seen.iter().any(|one| one.path == "/held"))
        .await;
    drop(leaving);
    scene.until_metric("fencepost_connections", 0.0).await;
    let next = scene.start(Ask::post("/next").under(&tenure));
    // Several looks at the metrics: time for the next to get in where it could.
    for _ in 0..20 {
        scene.until_metric("fencepost_connections", 0.0).await;
    }
    assert!(scene.worker.seen().iter().all(|one| one.path != "/next"));
    latch.open();
    assert_eq!(next.await.unwrap().status, 200);
    scene.finish().await;
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_no_more() {
    let (scene, tenure) = limited("connections_per_client_max = 2").await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect_from(2, address(&scene)).await;
        stream.write_all(head("GET", "/", &tenure, "").as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        held.push(stream);
    }
    assert!(is_closed(&mut connect_from(2, address(&scene)).await).await);
    assert_eq!(scene.fence.metric("fencepost_connections_refused_total").await, 1.0);
    scene.admits("/", &tenure).await;
    held.pop();
    eventually("its place is free again", async || {
        let mut stream = connect_from(2, address(&scene)).await;
        stream.write_all(head("GET", "/", &tenure, "").as_bytes()).await.ok()?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.ok()?;
        (&answer == b"HTTP/1.1 200").then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_last_request_of_a_connection_says_so() {
    let (scene, tenure) = limited("requests_per_connection_max = 2").await;
    let mut client = connect(&scene).await;
    for expected in [None, Some("close")] {
        client.send(head("GET", "/", &tenure, "")).await.unwrap();
        assert_eq!(client.response().await.unwrap().header("connection"), expected);
    }
    assert_eq!(client.rest().await.unwrap(), b"");
    assert_eq!(closed(&scene, "requests_per_connection_max").await, 1.0);
}

#[tokio::test]
async fn descriptors_are_raised_and_too_few_are_logged() {
    let routes = [Route::new("k", "/", r#"key = "/k""#)];
    let config = Config::new(&["http://127.0.0.1:1".to_owned()], "http://127.0.0.1:1", &routes);
    let enough = Fencepost::launch_with_descriptors(&config, "1024:").await;
    assert!(!enough.log().contains("descriptors"), "{}", enough.log());
    let few = Fencepost::launch_with_descriptors(&config, "256:1024").await;
    few.until_log("in_force=256").await;
    let fencepost_tests::Endpoint::Tcp(address) = few.listener else { panic!("it listens on TCP") };
    let mut clients = Vec::new();
    for number in 0..600 {
        clients.push(connect_from(2 + u8::try_from(number % 10).unwrap(), address).await);
    }
    eventually("the oldest have made room", async || {
        (few.metric("fencepost_connections_closed_total{limit=\"connections_max\"}").await >= 344.0)
            .then_some(())
    })
    .await;
    assert!(few.metric("fencepost_connections").await <= 256.0);
    assert!(!few.log().contains("cannot accept connections"), "{}", few.log());
}
