//! Connections to the worker: what needs no token keeps none of them from the holder of a lock.

use std::time::{Duration, Instant};

use fencepost_testsupport::{Answer, Behaviour, EtcdVersion, eventually};

use super::connect;
use crate::fencepost::Route;
use crate::scene::Scene;

const ORPHAN: Duration = Duration::from_millis(300);
const EXEMPT: &str = r#"exempt_methods = ["GET"]"#;

/// One connection to the worker, for which whoever waits has time enough.
async fn with_one_connection(routes: &[Route]) -> Scene {
    let lines = "upstream_connections_max = 1\nconnect_timeout = \"20s\"";
    Scene::with(EtcdVersion::V3_5, routes, |config| config.threads(1).limit(lines)).await
}

/// Each held its connection for as long as the worker went on: a few thousand requests by anybody, and a restart was all that helped.
#[tokio::test]
async fn an_answer_without_end_that_needed_no_token_is_left_some_time_after_its_client() {
    let lock = r#"key = "/k""#;
    let orphan_timeout = format!("orphan_timeout = \"{}ms\"", ORPHAN.as_millis());
    let route = |name: &str, path: &str| Route::new(name, path, lock).with(&orphan_timeout);
    let routes = [
        route("off", "/off/").with("mode = \"off\""),
        route("streaming", "/streaming/").with(EXEMPT).with("streaming = true"),
        route("k", "/").with(EXEMPT),
    ];
    let scene = with_one_connection(&routes).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &tenure).await;
    let endless = Answer::ok(vec![b'x'; 1024 * 1024]).trickling(1, Duration::from_millis(10));
    scene.worker.when(move |seen| seen.path.ends_with("/endless").then(|| Behaviour::Answer(endless.clone())));
    for path in ["/off/endless", "/streaming/endless", "/endless"] {
        let mut client = connect(&scene).await;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await.unwrap();
        assert_eq!(client.head().await.unwrap().status, 200);
        let left = Instant::now();
        drop(client);
        scene.admits("/", &tenure).await;
        eventually(&format!("{path} counts no more"), async || {
            (scene.fence.admin_json("/locks//k").await["gate"]["passed"] == 0).then_some(())
        })
        .await;
        // The worker may go on with it: it counts for as long as any other whose end was not seen.
        assert!(path.starts_with("/off/") || left.elapsed() >= 2 * ORPHAN, "{path} counted for {:?}", left.elapsed());
    }
    scene.finish().await;
}
