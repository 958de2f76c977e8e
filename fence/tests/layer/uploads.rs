//! What a client sees of a refusal that has more to send.

use std::net::SocketAddr;

use fencepost_fence::FENCE_PATH;
use fencepost_tests::Connection;
use tower::service_fn;

use crate::cluster::{listen, serve};
use crate::scene::{Scene, answer};

const MIB: usize = 1 << 20;

/// The head of an upload under that token.
fn head(path: &str, revision: u64, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: worker\r\nFence-Owner: a\r\nFence-Revision: {revision}\r\n{more}\r\n"
    )
}

/// The status of what is answered to an upload of 8 MiB, by a client that writes all of it before
/// it reads, and after that to a second request on the same connection.
async fn answered(server: SocketAddr, path: &str, revision: u64) -> [u16; 2] {
    let mut connection = Connection::open(server).await.unwrap();
    let head = |length| head(path, revision, &format!("Content-Length: {length}\r\n"));
    connection.send(head(8 * MIB)).await.unwrap();
    connection.send(vec![b'x'; 8 * MIB]).await.expect("it is read");
    let first = connection.final_response().await.expect("an answer, not a reset").status;
    connection.send(head(0)).await.unwrap();
    [first, connection.final_response().await.unwrap().status]
}

/// A scene and the revision of a tenure that has ended.
fn superseded() -> (Scene, u64) {
    let scene = Scene::new();
    let old = scene.takes("a");
    scene.takes("b");
    (scene, old)
}

/// As seen: a connection reset in place of the refusal, since the server ended a connection whose
/// request it had not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_writes_before_it_reads_sees_its_refusal() {
    let (scene, old) = superseded();
    let layer = scene.layer(|lock| lock);
    let server = serve(&layer, service_fn(answer)).await;
    for path in ["/apply", FENCE_PATH] {
        assert_eq!(answered(server, path, old).await, [412, 412], "{path}");
    }
    assert_eq!(answered(listen(layer.fence_call()).await, "/elsewhere", old).await, [412, 412]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_expects_100_continue_is_refused_first() {
    let (scene, old) = superseded();
    let server = serve(&scene.layer(|lock| lock), service_fn(answer)).await;
    let mut connection = Connection::open(server).await.unwrap();
    let more = format!("Content-Length: {}\r\nExpect: 100-continue\r\n", 8 * MIB);
    connection.send(head("/apply", old, &more)).await.unwrap();
    assert_eq!(connection.response().await.unwrap().status, 412);
}
