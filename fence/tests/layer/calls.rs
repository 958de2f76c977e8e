//! `POST /.well-known/fence`.

use bytes::Bytes;
use fencepost_fence::{FENCE_PATH, FenceLayer, LockKey};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use tower::{ServiceExt, service_fn};

use crate::scene::{LOCK, LONG, Scene, answer, outcome, request, send};

fn call(owner: &str, revision: u64) -> Request<Full<Bytes>> {
    let mut call = request(owner, revision);
    *call.uri_mut() = FENCE_PATH.parse().unwrap();
    call
}

fn naming(lock: &str, mut call: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    call.headers_mut().insert("fence-lock", lock.parse().unwrap());
    call
}

fn naming_in_bytes(lock: &str, mut call: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    call.headers_mut().insert("fence-lock", HeaderValue::from_bytes(lock.as_bytes()).unwrap());
    call
}

async fn answered(layer: &FenceLayer, call: Request<Full<Bytes>>) -> String {
    outcome(&send(layer, service_fn(answer), call).await)
}

#[tokio::test]
async fn the_call_is_answered_when_no_predecessor_request_runs() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let old = scene.takes("a");
    let running = send(&layer, service_fn(answer), request("a", old)).await;
    assert_eq!(answered(&layer, call("a", old)).await, "204");
    let new = scene.takes("b");
    assert_eq!(answered(&layer, call("b", new)).await, "503 handoff-timeout");
    assert_eq!(answered(&layer, call("a", old)).await, "412 stale-tenure");
    drop(running);
    assert_eq!(answered(&layer, call("b", new)).await, "204");
    assert_eq!(answered(&layer, request("a", old)).await, "412 stale-tenure");
}

#[tokio::test]
async fn a_call_that_waits_is_answered_when_the_predecessor_has_gone() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG));
    let old = scene.takes("a");
    let running = send(&layer, service_fn(answer), request("a", old)).await;
    let new = scene.takes("b");
    let (calling, waits) = (layer.clone(), call("b", new));
    let mut calling = tokio::spawn(async move { answered(&calling, waits).await });
    assert!(tokio::time::timeout(crate::scene::SHORT, &mut calling).await.is_err());
    drop(running);
    assert_eq!(calling.await.unwrap(), "204");
}

#[tokio::test]
async fn a_call_may_name_the_lock_and_no_other() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock);
    let revision = scene.takes("a");
    assert_eq!(answered(&layer, naming(LOCK, call("a", revision))).await, "204");
    assert_eq!(
        answered(&layer, naming("/other", call("a", revision))).await,
        "400 lock-not-allowed"
    );
    let mut token = call("a", revision);
    token.headers_mut().remove("fence-revision");
    assert_eq!(answered(&layer, token).await, "428 token-missing");
}

#[tokio::test]
async fn a_call_names_its_lock_plain_or_percent_encoded() {
    let (scene, key) = (Scene::new(), "/ü x/lock");
    let one = scene.fence.lock(key).layer().unwrap();
    let revision = scene.takes_key(key, "a");
    assert_eq!(answered(&one, naming_in_bytes(key, call("a", revision))).await, "204");
    assert_eq!(answered(&one, naming("/%C3%BC%20x/lock", call("a", revision))).await, "204");
    assert_eq!(
        answered(&one, naming("/%c3%bc%20x/lock", call("a", revision))).await,
        "400 lock-not-allowed"
    );

    // Where keys are found, one that looks percent-encoded is a key of its own.
    let found = scene.fence.locks_below("/", |_| None).layer().unwrap();
    assert_eq!(answered(&found, naming_in_bytes(key, call("a", revision))).await, "204");
    assert_eq!(
        answered(&found, naming("/%C3%BC%20x/lock", call("a", revision))).await,
        "412 no-owner"
    );
}

#[tokio::test]
async fn where_locks_are_found_in_requests_a_call_has_to_name_one() {
    let scene = Scene::new();
    let layer = scene.fence.locks_below("/shards/", |_| LockKey::new(LOCK).ok()).layer().unwrap();
    let revision = scene.takes("a");
    assert_eq!(answered(&layer, naming(LOCK, call("a", revision))).await, "204");
    assert_eq!(
        answered(&layer, naming("/other", call("a", revision))).await,
        "400 lock-not-allowed"
    );
    assert_eq!(answered(&layer, call("a", revision)).await, "400 lock-not-allowed");
}

#[tokio::test]
async fn only_a_post_is_a_call_where_the_layer_answers_calls() {
    let scene = Scene::new();
    let revision = scene.takes("a");
    let layer = scene.layer(|lock| lock);
    let mut get = call("a", revision);
    *get.method_mut() = Method::GET;
    assert_eq!(answered(&layer, get).await, "200");
    let elsewhere = scene.layer(|lock| lock.answers_fence_call(false));
    assert_eq!(answered(&elsewhere, call("a", revision)).await, "200", "the handler's");
    let service: Response<Full<Bytes>> =
        elsewhere.fence_call().oneshot(request("a", revision)).await.unwrap();
    assert_eq!(outcome(&service), "204");
    let refused = elsewhere.fence_call().oneshot(request("b", revision)).await.unwrap();
    assert_eq!(outcome(&refused), "412 not-owner");
}
