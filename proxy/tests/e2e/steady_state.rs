//! What fencepost costs its lock store.

use std::time::{Duration, Instant};

use fencepost_tests::{Etcd, EtcdVersion};

use crate::fencepost::Route;
use crate::refusal::reason;
use crate::scene::{Ask, Scene};

/// `max_age` is 1 s, and reads are five to a `max_age`.
const READS_EVERY: Duration = Duration::from_millis(200);

fn quick_to_age(route: Route) -> Route {
    route.with(r#"max_age = "1s""#)
}

/// What `work` made etcd answer, all methods together, and the largest number that freshness allows
/// for its duration.
async fn cost(etcd: &Etcd, work: impl Future<Output = ()>) -> (u64, u64) {
    let before = etcd.requests_total().await;
    let began = Instant::now();
    work.await;
    let added = etcd.requests_total().await.since(&before);
    let allowed = began.elapsed().as_millis() / READS_EVERY.as_millis() + 2;
    println!("{added:?}, at most {allowed}");
    (added.total(), u64::try_from(allowed).unwrap())
}

#[tokio::test]
async fn traffic_costs_the_store_nothing_but_the_freshness_reads() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &[quick_to_age(Route::k())]).await;
        let stale = scene.store.hold("/k", "shard-2").await;
        let present = scene.store.hold("/k", "shard-1").await;
        scene.admits("/", &present).await;
        let (reads, allowed) = cost(&scene.etcd, async {
            let mut clients = tokio::task::JoinSet::new();
            for _ in 0..20 {
                let (mut line, present, stale) =
                    (scene.line().await, present.clone(), stale.clone());
                clients.spawn(async move {
                    for request in 0..500 {
                        let ended = request % 5 == 0;
                        let ask = Ask::post("/").under(if ended { &stale } else { &present });
                        let answer = line.send(ask).await.unwrap();
                        assert_eq!(
                            answer.status,
                            if ended { 412 } else { 200 },
                            "{}",
                            answer.text()
                        );
                    }
                });
            }
            while let Some(client) = clients.join_next().await {
                client.unwrap();
            }
        })
        .await;
        assert!(reads <= allowed, "etcd {version}: {reads} calls, {allowed} are for freshness");
        assert!(
            reads * 3 >= allowed,
            "etcd {version}: {reads} calls of {allowed}: is the news still fresh?"
        );
        scene.finish().await;
    }
}

#[tokio::test]
async fn made_up_keys_neither_reach_the_store_nor_harm_a_lock() {
    let route = Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#);
    let scene = Scene::open(EtcdVersion::V3_5, &[quick_to_age(route)]).await;
    let present = scene.store.hold("/shards/2/lock", "shard-1").await;
    scene.admits("/shards/2/", &present).await;
    let flood = 3_000;
    let began = Instant::now();
    let (reads, for_freshness) = cost(&scene.etcd, async {
        let mut clients = tokio::task::JoinSet::new();
        for client in 0..20 {
            let (mut line, present) = (scene.line().await, present.clone());
            clients.spawn(async move {
                for request in 0..flood / 20 {
                    let path = format!("/shards/made-up-{client}-{request}/");
                    let answer = line.send(Ask::post(&path).under(&present)).await.unwrap();
                    assert!(
                        matches!(reason(&answer), Some("no-owner" | "unverifiable")),
                        "{}",
                        answer.text()
                    );
                    let answer = line.send(Ask::post("/shards/2/").under(&present)).await.unwrap();
                    assert_eq!(answer.status, 200, "the lock in use: {}", answer.text());
                }
            });
        }
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
    })
    .await;
    // 100 a second, and those for the lock in use.
    let allowed = 100 * (began.elapsed().as_secs() + 1) + 2 * for_freshness;
    println!("{flood} made-up keys in {:?}: {reads} calls, at most {allowed}", began.elapsed());
    assert!(reads <= allowed, "{reads} calls for {flood} made-up keys, {allowed} are allowed");
    // An honest newcomer is not locked out by it.
    let honest = scene.store.hold("/shards/new/lock", "shard-1").await;
    scene.admits("/shards/new/", &honest).await;
    scene.finish().await;
}
