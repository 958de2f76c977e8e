//! Locks that are found in requests.

use std::convert::Infallible;

use bytes::Bytes;
use fencepost_fence::{FENCE_PATH, FenceLayer, LockKey, RequestBody};
use fencepost_tests::{PATIENCE, eventually};
use http::request::Parts;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::timeout;
use tower::service_fn;

use crate::cluster::Cluster;
use crate::scene::{SHORT, Scene, answer, outcome, request, send};

/// `/shards/2/jobs` needs `/shards/2/lock`, and a path elsewhere a lock elsewhere.
fn lock_of(request: &Parts) -> Option<LockKey> {
    let path = request.uri.path().strip_suffix("/jobs")?;
    LockKey::new(&format!("{path}/lock")).ok()
}

async fn at(layer: &FenceLayer, path: &str, owner: &str, revision: u64) -> String {
    let mut request = request(owner, revision);
    *request.uri_mut() = path.parse().unwrap();
    outcome(&send(layer, service_fn(answer), request).await)
}

#[tokio::test]
async fn each_request_needs_the_lock_that_is_found_in_it() {
    let scene = Scene::new();
    let layer = scene.fence.locks_below("/shards/", lock_of).layer().unwrap();
    let [two, three] =
        ["/shards/2/lock", "/shards/3/lock"].map(|lock| scene.store.put(lock, "a").get());
    assert_eq!(at(&layer, "/shards/2/jobs", "a", two).await, "200");
    assert_eq!(at(&layer, "/shards/3/jobs", "a", three).await, "200");
    assert_eq!(at(&layer, "/shards/3/jobs", "a", two).await, "412 replayed-tenure");
    assert_eq!(at(&layer, "/shards/4/jobs", "a", three).await, "412 no-owner");
    assert_eq!(at(&layer, "/shards/2", "a", two).await, "400 lock-not-allowed");
    assert_eq!(at(&layer, "/elsewhere/2/jobs", "a", two).await, "400 lock-not-allowed");
    timeout(PATIENCE, scene.fence.ready()).await.unwrap();
}

/// It is known then, and its holder's token is a good one: elsewhere.
#[tokio::test]
async fn a_lock_outside_the_prefix_is_refused_though_tracked() {
    let scene = Scene::new();
    let layer = scene.fence.locks_below("/shards/", lock_of).layer().unwrap();
    let (by_name, by_prefix) = ("/elsewhere/2", "/beyond/2");
    let named = scene.fence.lock(format!("{by_name}/lock")).layer().unwrap();
    let below = scene.fence.locks_below("/beyond/", lock_of).layer().unwrap();
    for (place, other) in [(by_name, named), (by_prefix, below)] {
        let (lock, jobs) = (format!("{place}/lock"), format!("{place}/jobs"));
        let revision = scene.store.put(lock.clone(), "a").get();
        assert_eq!(at(&other, &jobs, "a", revision).await, "200");
        assert_eq!(at(&layer, &jobs, "a", revision).await, "400 lock-not-allowed", "{lock}");
        let mut call = request("a", revision);
        *call.uri_mut() = FENCE_PATH.parse().unwrap();
        call.headers_mut().insert("fence-lock", lock.parse().unwrap());
        assert_eq!(
            outcome(&send(&layer, service_fn(answer), call).await),
            "400 lock-not-allowed",
            "{lock}"
        );
    }
}

/// A lock that was never read gets the answer that a known lock gets.
#[tokio::test]
async fn a_regressed_store_refuses_locks_never_read_as_well() {
    let scene = Scene::new();
    let layer = scene.fence.locks_below("/shards/", lock_of).layer().unwrap();
    let kept = scene.store.put("/shards/2/lock", "a");
    scene.store.put("/shards/3/lock", "a");
    let lost = scene.store.put("/shards/2/lock", "b").get();
    assert_eq!(at(&layer, "/shards/2/jobs", "b", lost).await, "200");
    scene.store.rewind_to(kept);
    eventually("that is found", async || {
        (at(&layer, "/shards/2/jobs", "a", kept.get()).await == "503 store-regressed").then_some(())
    })
    .await;
    assert_eq!(at(&layer, "/shards/3/jobs", "a", kept.get()).await, "503 store-regressed");
}

#[tokio::test]
async fn each_lock_has_a_gate_of_its_own() {
    let scene = Scene::new();
    let layer =
        scene.fence.locks_below("/shards/", lock_of).handoff_timeout(SHORT).layer().unwrap();
    let [old, other] =
        ["/shards/2/lock", "/shards/3/lock"].map(|lock| scene.store.put(lock, "a").get());
    let mut first = request("a", old);
    *first.uri_mut() = "/shards/2/jobs".parse().unwrap();
    let running = send(&layer, service_fn(answer), first).await;
    let new = scene.store.put("/shards/2/lock", "b").get();
    assert_eq!(at(&layer, "/shards/2/jobs", "b", new).await, "503 handoff-timeout");
    assert_eq!(at(&layer, "/shards/3/jobs", "a", other).await, "200");
    drop(running);
    assert_eq!(at(&layer, "/shards/2/jobs", "b", new).await, "200");
}

/// Without it, a cache that has room for one lock would forget the gate with the orphan in it.
#[tokio::test]
async fn a_lock_with_an_orphan_keeps_its_gate_when_evicted() {
    let cluster = Cluster::start().await;
    let fence = cluster.builder().tracked_locks_max(1).build().unwrap();
    let layer = fence.locks_below("/shards/", lock_of).handoff_timeout(SHORT).layer().unwrap();
    let old = cluster.put("/shards/2/lock", "a").await;
    let sending = layer.clone();
    let panicking = service_fn(
        async |_: Request<RequestBody<Full<Bytes>>>| -> Result<Response<Full<Bytes>>, Infallible> {
            panic!("on purpose")
        },
    );
    let mut first = request("a", old);
    *first.uri_mut() = "/shards/2/jobs".parse().unwrap();
    let sent = tokio::spawn(async move { send(&sending, panicking, first).await.status() });
    assert!(sent.await.unwrap_err().is_panic());
    for shard in 3..6 {
        let revision = cluster.put(&format!("/shards/{shard}/lock"), "a").await;
        assert_eq!(at(&layer, &format!("/shards/{shard}/jobs"), "a", revision).await, "200");
    }
    let new = cluster.put("/shards/2/lock", "b").await;
    assert_eq!(at(&layer, "/shards/2/jobs", "b", new).await, "503 handoff-timeout");
}
