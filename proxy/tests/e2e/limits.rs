//! What clients may take, and what they may not keep others from.

mod connections;
mod draining;
mod heads;
mod pace;
mod readers;
mod streams;
mod worker_connections;

use std::net::SocketAddr;

use fencepost_tests::{Connection, Endpoint, EtcdVersion};

use crate::fencepost::Route;
use crate::scene::Scene;
use crate::store::Tenure;

const MIB: u64 = 1024 * 1024;

/// A scene with these lines under `[limits]`, and a tenure that is admitted.
async fn limited(lines: &str) -> (Scene, Tenure) {
    let routes = [Route::k()];
    let scene = Scene::with(EtcdVersion::V3_5, &routes, |config| config.limit(lines)).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &tenure).await;
    (scene, tenure)
}

fn address(scene: &Scene) -> SocketAddr {
    match &scene.fence.listener {
        Endpoint::Tcp(address) => *address,
        Endpoint::Unix(path) => panic!("listens on {}", path.display()),
    }
}

fn head(method: &str, path: &str, tenure: &Tenure, fields: &str) -> String {
    let Tenure { owner, revision } = tenure;
    format!(
        "{method} {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\r\n{fields}\r\n"
    )
}

async fn connect(scene: &Scene) -> Connection {
    Connection::open(scene.fence.listener.clone()).await.unwrap()
}

/// How many connections that limit has ended.
async fn closed(scene: &Scene, limit: &str) -> f64 {
    scene.fence.metric(&format!("fencepost_connections_closed_total{{limit=\"{limit}\"}}")).await
}
