//! Connections to the worker: what needs no token keeps none of them from the holder of a lock.

use std::time::{Duration, Instant};

use fencepost_tests::{
    Answer, Behaviour, Endpoint, Etcd, EtcdVersion, Worker, eventually, request,
};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::connect;
use crate::fencepost::{Config, Fencepost, Route};
use crate::scene::Scene;
use crate::store::Store;

const ORPHAN: Duration = Duration::from_millis(300);
const EXEMPT: &str = r#"exempt_methods = ["GET", "POST"]"#;

/// One connection to the worker, for which others wait for that long.
async fn with_one_connection(connect_timeout: &str, routes: &[Route]) -> Scene {
    let lines = format!("upstream_connections_max = 1\nconnect_timeout = \"{connect_timeout}\"");
    Scene::with(EtcdVersion::V3_5, routes, |config| config.threads(1).limit(&lines)).await
}

/// Each took a connection: until there were no descriptors left, for locks, the journal, operators
/// and other workers neither.
#[tokio::test]
async fn a_stuck_worker_leaves_connections_for_others() {
    let (etcd, busy, other) =
        (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Worker::start().await);
    let latch = busy.holds("/busy");
    let upstream = format!("upstream = \"{}\"", other.endpoint());
    let routes = [
        Route::new("other", "/other/{shard}", r#"key = "/{shard}""#).with(&upstream),
        Route::new("busy", "/", r#"key = "/k""#),
    ];
    let config = Config::new(&[etcd.endpoint()], &busy.endpoint().to_string(), &routes).threads(1);
    let fencepost = Fencepost::launch_with_descriptors(&config, "1024:1024").await;
    fencepost.wait_until_ready().await;
    assert!(fencepost.log().contains("in_force=256 to_workers=256"), "{}", fencepost.log());
    let (store, Endpoint::Tcp(address)) = (Store::of(&etcd).await, fencepost.listener.clone())
    else {
        panic!("TCP")
    };
    let tenure = store.hold("/k", "shard-1").await;
    let mut answers = JoinSet::new();
    for _ in 0..10 {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..100 {
            let request = http::Request::post(format!("http://{address}/busy"))
                .header("fence-owner", &tenure.owner)
                .header("fence-revision", tenure.revision);
            sender = sender.ready().await.unwrap();
            let answer = sender.send_request(request.body(()).unwrap(), true).unwrap().0;
            answers.spawn(async { answer.await.unwrap().status() });
        }
    }
    // A quarter is left to those that have few.
    busy.wait_until("all that are for everybody are in use", |seen| seen.len() == 192).await;
    let next = store.hold("/next", "shard-2").await;
    let token =
        [("fence-owner", next.owner.clone()), ("fence-revision", next.revision.to_string())];
    let token = token.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer =
        request(fencepost.listener.clone(), "POST", "/other/next", &token, b"").await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    eventually("only the first are connected", async || {
        (fencepost.metric("fencepost_connections").await == 10.0).then_some(())
    })
    .await;
    for _ in 192..1000 {
        // No connection gets free for it.
        assert_eq!(answers.join_next().await.unwrap().unwrap(), 503);
    }
    assert_eq!(busy.seen().len(), 192);
    latch.open();
    while let Some(answer) = answers.join_next().await {
        assert_eq!(answer.unwrap(), 200);
    }
}

/// Each held its connection for as long as the worker went on: a few thousand requests by anybody,
/// and a restart was all that helped.
#[tokio::test]
async fn an_abandoned_exempt_endless_response_is_ended() {
    let lock = r#"key = "/k""#;
    let orphan_timeout = format!("orphan_timeout = \"{}ms\"", ORPHAN.as_millis());
    let route = |name: &str, path: &str| Route::new(name, path, lock).with(&orphan_timeout);
    let routes = [
        route("off", "/off/").with("mode = \"off\""),
        route("streaming", "/streaming/").with(EXEMPT).with("streaming = true"),
        route("k", "/").with(EXEMPT),
    ];
    let scene = with_one_connection("20s", &routes).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &tenure).await;
    let endless = Answer::ok(vec![b'x'; 1024 * 1024]).trickling(1, Duration::from_millis(10));
    scene.worker.when(move |seen| {
        seen.path.ends_with("/endless").then(|| Behaviour::Answer(endless.clone()))
    });
    for path in ["/off/endless", "/streaming/endless", "/endless"] {
        let mut client = connect(&scene).await;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await.unwrap();
        assert_eq!(client.head().await.unwrap().status, 200);
        let left = Instant::now();
        drop(client);
        scene.admits("/", &tenure).await;
        eventually(&format!("{path} counts no more"), async || {
            let routes = scene.fence.admin_json("/routes").await["routes"].clone();
            routes.as_array().unwrap().iter().all(|route| route["passed"] == 0).then_some(())
        })
        .await;
        // The worker may go on with it: it counts for as long as any other whose end was not seen.
        assert!(
            path.starts_with("/off/") || left.elapsed() >= 2 * ORPHAN,
            "{path} counted for {:?}",
            left.elapsed()
        );
    }
    scene.finish().await;
}
