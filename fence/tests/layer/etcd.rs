//! Over a real etcd: the story, the layouts, and what happens without it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::{Fence, FenceLayer, RequestBody};
use fencepost_tests::{
    Connection, Etcd, EtcdOptions, EtcdSecurity, EtcdVersion, FreePort, PATIENCE, Tokens,
    eventually,
};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};
use tower::service_fn;

use crate::cluster::{Cluster, serve};
use crate::scene::{LOCK, Log, running, verdict};

/// A server whose handler notes what it gets, having read all of it.
async fn noting(layer: &FenceLayer, log: &Log) -> SocketAddr {
    let log = log.clone();
    let handler = service_fn(move |request: Request<RequestBody<Incoming>>| {
        let log = log.clone();
        async move {
            let running = running(&request);
            let (head, body) = request.into_parts();
            match body.collect().await {
                Ok(_) => log.add(format!(
                    "{} {}@{}",
                    head.uri.path(),
                    running.owner(),
                    running.revision()
                )),
                Err(error) => log.add(format!("{} broken: {error}", head.uri.path())),
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("applied")))
        }
    });
    serve(layer, handler).await
}

fn written(path: &str, owner: &str, revision: u64) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: worker\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\r\nContent-Length: 5\r\n\r\nwrite"
    )
}

async fn told(connection: &mut Connection) -> (u16, Option<String>) {
    let response = connection.final_response().await.unwrap();
    (response.status, response.header("fence-reason").map(str::to_owned))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_write_of_the_present_owner_is_refused() {
    let cluster = Cluster::start().await;
    let fence = cluster.fence();
    let layer = fence.lock(LOCK).layer().unwrap();
    let log = Log::default();
    let server = noting(&layer, &log).await;

    // R1 is held up on its way: its connection is open, its bytes are not here yet.
    let mut delayed = Connection::open(server).await.unwrap();
    let first = cluster.put(LOCK, "shard-1").await;
    cluster.delete(LOCK).await;

    let second = cluster.put(LOCK, "shard-2").await;
    let mut other = Connection::open(server).await.unwrap();
    other.send(written("/r2", "shard-2", second)).await.unwrap();
    assert_eq!(told(&mut other).await, (200, None));
    cluster.delete(LOCK).await;

    let third = cluster.put(LOCK, "shard-1").await;
    let mut present = Connection::open(server).await.unwrap();
    present.send(written("/r3", "shard-1", third)).await.unwrap();
    assert_eq!(told(&mut present).await, (200, None));

    delayed.send(written("/r1", "shard-1", first)).await.unwrap();
    assert_eq!(told(&mut delayed).await, (412, Some("replayed-tenure".to_owned())));
    assert_eq!(log.lines(), [format!("/r2 shard-2@{second}"), format!("/r3 shard-1@{third}")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_over_http_is_cut_when_its_tenure_ends() {
    let cluster = Cluster::start().await;
    let fence = cluster.fence();
    let layer = fence.lock(LOCK).layer().unwrap();
    let log = Log::default();
    let server = noting(&layer, &log).await;
    let old = cluster.put(LOCK, "a").await;
    let mut upload = Connection::open(server).await.unwrap();
    let head = format!(
        "POST /old HTTP/1.1\r\nHost: worker\r\nFence-Owner: a\r\nFence-Revision: {old}\r\n"
    );
    upload
        .send(format!("{head}Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"))
        .await
        .unwrap();
    // The handler asks for the body: the request has been let in.
    assert_eq!(upload.response().await.unwrap().status, 100);
    upload.send("4\r\npart\r\n").await.unwrap();
    let new = cluster.put(LOCK, "b").await;
    let mut next = Connection::open(server).await.unwrap();
    next.send(written("/new", "b", new)).await.unwrap();
    assert_eq!(told(&mut next).await, (200, None));
    let broken =
        "/old broken: the body was cut, because the tenure of its request has ended".to_owned();
    assert_eq!(log.lines(), [broken, format!("/new b@{new}")]);
}

async fn until_refused(layer: &FenceLayer, owner: &str, revision: u64) -> String {
    eventually("the end of the tenure is known", async || {
        let verdict = verdict(layer, owner, revision).await;
        (verdict != "200").then_some(verdict)
    })
    .await
}

/// A read that began after the request arrived admits it; any other would admit what has just
/// ended.
#[tokio::test]
async fn a_linearizable_layer_asks_etcd_about_each_request() {
    let cluster = Cluster::start().await;
    let fence = cluster.fence();
    let layer = fence.lock(LOCK).linearizable(true).layer().unwrap();
    for _ in 0..50 {
        let revision = cluster.put(LOCK, "a").await;
        assert_eq!(verdict(&layer, "a", revision).await, "200");
        cluster.delete(LOCK).await;
        assert_eq!(verdict(&layer, "a", revision).await, "412 no-owner");
    }
}

#[tokio::test]
async fn without_etcd_all_are_refused_in_time() {
    let cluster = Cluster::start().await;
    let fence = cluster.fence();
    let (max_age, confirm_timeout) = (Duration::from_millis(300), Duration::from_millis(400));
    let layer = fence.lock(LOCK).max_age(max_age).confirm_timeout(confirm_timeout).layer().unwrap();
    let revision = cluster.put(LOCK, "a").await;
    let is_let_in = async || (verdict(&layer, "a", revision).await == "200").then_some(());
    eventually("the holder is let in", &is_let_in).await;
    cluster.member.pause().await;
    assert_eq!(until_refused(&layer, "a", revision).await, "503 unverifiable");
    let mut quickest = PATIENCE;
    for _ in 0..5 {
        let since = Instant::now();
        assert_eq!(verdict(&layer, "a", revision).await, "503 unverifiable");
        quickest = quickest.min(since.elapsed());
    }
    // etcd's own calls fail after 1.5 s.
    assert!(quickest >= confirm_timeout && quickest < Duration::from_secs(1), "{quickest:?}");
    assert_eq!(
        verdict(&layer, "b", revision).await,
        "412 not-owner",
        "what is known refuses all the same"
    );
    cluster.member.resume();
    eventually("the holder is let in again", &is_let_in).await;
}

#[tokio::test]
async fn a_fence_that_never_reached_etcd_refuses_and_is_not_ready() {
    let port = FreePort::reserve();
    let fence = Fence::etcd([format!("http://{}", port.address())]).build().unwrap();
    let layer = fence.lock(LOCK).confirm_timeout(Duration::from_millis(200)).layer().unwrap();
    assert_eq!(verdict(&layer, "a", 1).await, "503 unverifiable");
    assert!(!fence.is_ready());
}

#[tokio::test]
async fn only_the_cluster_that_is_meant_is_believed() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let put: serde_json::Value =
        serde_json::from_str(&etcd.etcdctl(&["put", LOCK, "a", "-w", "json"]).await).unwrap();
    let (revision, id) = (
        put["header"]["revision"].as_u64().unwrap(),
        put["header"]["cluster_id"].as_u64().unwrap(),
    );
    let fence = |id| Fence::etcd([etcd.endpoint()]).cluster_id(id).build().unwrap();
    let layer_of =
        |fence: &Fence| fence.lock(LOCK).confirm_timeout(Duration::from_secs(1)).layer().unwrap();
    let (meant, other) = (fence(id), fence(id ^ 1));
    let layers = (layer_of(&meant), layer_of(&other));
    timeout(PATIENCE, meant.ready()).await.expect("the lock is read");
    assert_eq!(verdict(&layers.0, "a", revision).await, "200");
    assert_eq!(verdict(&layers.1, "a", revision).await, "503 unverifiable");
    assert!(!other.is_ready());
}

/// An etcd that wants a certificate and a login, and in it the lock, held by `a` under that
/// revision.
async fn secure() -> (Etcd, Arc<EtcdSecurity>, u64) {
    let security = EtcdSecurity::new(Tokens::Simple(Duration::from_secs(300)));
    let options = EtcdOptions { security: Some(Arc::clone(&security)), ..EtcdOptions::default() };
    let etcd = Etcd::start_with(EtcdVersion::V3_5, &options).await;
    let put: serde_json::Value =
        serde_json::from_str(&etcd.etcdctl(&["put", LOCK, "a", "-w", "json"]).await).unwrap();
    etcd.enable_users().await;
    std::fs::write(security.directory().join("password"), "root\n").unwrap();
    (etcd, security, put["header"]["revision"].as_u64().unwrap())
}

#[tokio::test]
async fn etcd_may_ask_for_tls_a_certificate_and_a_login() {
    let (etcd, security, revision) = secure().await;
    let (certificate, key) = security.client();
    let stranger =
        Fence::etcd([etcd.endpoint()]).ca_file(security.ca()).identity_files(certificate, key);
    let layer_of =
        |fence: &Fence| fence.lock(LOCK).confirm_timeout(Duration::from_secs(1)).layer().unwrap();
    let fence =
        stranger.clone().user("root", security.directory().join("password")).build().unwrap();
    let layer = layer_of(&fence);
    timeout(PATIENCE, fence.ready()).await.expect("the lock is read");
    assert_eq!(verdict(&layer, "a", revision).await, "200");
    let fence = stranger.build().unwrap();
    assert_eq!(verdict(&layer_of(&fence), "a", revision).await, "503 unverifiable");
}
