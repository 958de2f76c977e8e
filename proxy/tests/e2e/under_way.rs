//! Uploads that are under way while etcd does not answer, has forgotten its history, or goes back.

use fencepost_tests::{BodyEnd, Connection, EtcdVersion, PATIENCE, Relay, eventually};

use crate::fencepost::Route;
use crate::scene::Scene;
use crate::store::Tenure;

const LOCK: &str = "/k";

/// A route whose uploads may pause for that long.
fn route(key: &str, handoff_timeout: &str) -> Route {
    let pause = format!("handoff_timeout = \"{handoff_timeout}\"");
    Route::new("k", "/{name}/", &format!("key = \"{key}\"")).with(r#"max_age = "1s""#).with(&pause)
}

/// Begins an upload under that tenure. Returns once the worker has seen it.
async fn begin(scene: &Scene, Tenure { owner, revision }: &Tenure) -> Connection {
    let mut client = Connection::open(scene.fence.listener.clone()).await.unwrap();
    let head = format!(
        "POST /k/up HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\r\n"
    );
    client.send(head + "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n").await.unwrap();
    let has_begun = |one: &fencepost_tests::Seen| one.path == "/k/up" && one.body_bytes == 5;
    scene.worker.wait_until("the upload has begun", |seen| seen.iter().any(has_begun)).await;
    client
}

/// Sends the rest, which waits until it is known that the tenure goes on.
async fn send_rest(client: &mut Connection) {
    client.send("3\r\nend\r\n0\r\n\r\n").await.unwrap();
}

async fn is_answered(mut client: Connection) {
    let answer = tokio::time::timeout(PATIENCE, client.response())
        .await
        .expect("the upload goes on")
        .unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn until_age(scene: &Scene, what: &str, is: impl Fn(f64) -> bool) {
    eventually(what, async || {
        let age = scene.fence.admin_json("/locks//k").await["age_seconds"].as_f64();
        age.is_some_and(&is).then_some(())
    })
    .await;
}

fn body_end(scene: &Scene) -> Option<BodyEnd> {
    scene.worker.seen().iter().find(|one| one.path == "/k/up").and_then(|one| one.body_end)
}

#[tokio::test]
async fn an_upload_that_paused_goes_on_when_etcd_answers_again() {
    for key in [LOCK, "/{name}"] {
        let scene = Scene::open(EtcdVersion::V3_5, &[route(key, "1h")]).await;
        let holder = scene.store.hold(LOCK, "shard-1").await;
        let mut client = begin(&scene, &holder).await;
        scene.etcd.pause().await;
        until_age(&scene, "the news is too old", |age| age > 1.0).await;
        send_rest(&mut client).await;
        scene.etcd.resume();
        is_answered(client).await;
        scene.finish().await;
    }
}

/// No request comes that would have the lock read: the upload has it read itself.
#[tokio::test]
async fn an_upload_goes_on_after_etcd_lost_its_history() {
    let etcd = fencepost_tests::Etcd::start(EtcdVersion::V3_5).await;
    let relay = Relay::before(&etcd).await;
    let through = format!("http://{}", relay.address());
    let scene = Scene::seeing(etcd, &[through], &[route("/{name}", "1h")]).await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    let mut client = begin(&scene, &holder).await;
    let other = scene.store.hold("/other", "shard-1").await;
    eventually("the lock is read again", async || {
        let as_of = scene.fence.admin_json("/locks//k").await["as_of"].as_i64();
        (as_of >= Some(other.revision)).then_some(())
    })
    .await;
    relay.cut().await;
    until_age(&scene, "the news is too old", |age| age > 1.0).await;
    scene.store.delete("/other").await;
    let newest = scene.store.hold("/third", "shard-1").await;
    scene.etcd.etcdctl(&["compact", &newest.revision.to_string()]).await;
    send_rest(&mut client).await;
    relay.restore().await;
    is_answered(client).await;
    scene.finish().await;
}

#[tokio::test]
async fn an_upload_stops_when_its_store_went_back() {
    for key in [LOCK, "/{name}"] {
        let mut scene = Scene::open(EtcdVersion::V3_5, &[route(key, "10s")]).await;
        scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        let mut client = begin(&scene, &lost).await;
        scene.etcd.restore_snapshot(&snapshot).await;
        scene.until_metric(r#"fencepost_source_regressed{source="main"}"#, 1.0).await;
        // Grown beyond all that was seen of it, it is read again.
        let mut newest = scene.store.hold("/other", "shard-1").await;
        while newest.revision <= lost.revision + 1 {
            newest = scene.store.hold("/other", "shard-1").await;
        }
        until_age(&scene, "the news is young", |age| age < 1.0).await;
        let _ = send_rest(&mut client).await;
        let has_ended = |one: &fencepost_tests::Seen| one.path == "/k/up" && one.body_end.is_some();
        scene.worker.wait_until("the upload has ended", |seen| seen.iter().any(has_ended)).await;
        assert_eq!(body_end(&scene), Some(BodyEnd::Cut), "{key}");
        drop(client);
        scene.finish().await;
    }
}
