//! The steps in which a process stops, under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_tests::{Etcd, EtcdVersion, Relay, Scratch, eventually, request};

use crate::access_log::make_fifo;
use crate::fencepost::{Config, Route};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Ledger, Line, Scene, send};
use crate::store::Tenure;

async fn scene(more: impl FnOnce(Config) -> Config) -> (Scene, Tenure) {
    let scene = Scene::with(EtcdVersion::V3_5, &[Route::k()], more).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    (scene, tenure)
}

#[tokio::test]
async fn no_request_is_lost_while_a_balancer_removes_the_process() {
    let (mut scene, tenure) = scene(|config| config.limit("drain_delay = \"1m\"")).await;
    let (goes_on, ledger) = (Arc::new(AtomicBool::new(true)), Ledger::default());
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let (goes_on, ledger, tenure) = (Arc::clone(&goes_on), ledger.clone(), tenure.clone());
            let listener = scene.fence.listener.clone();
            tokio::spawn(async move {
                let mut answered = 0_u32;
                while goes_on.load(Ordering::Relaxed) {
                    // On a connection of its own, and it fails the test if it fails.
                    let answer = send(&listener, &ledger, Ask::post("/").under(&tenure)).await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    let mut kept = Line::open(&scene.fence.listener, &ledger).await;
    let before = kept.send(Ask::post("/kept").under(&tenure)).await.unwrap();
    assert_eq!((before.status, before.header("connection")), (200, None));
    scene.worker.wait_for(100).await;
    scene.fence.process().terminate();
    let admin = scene.fence.admin;
    eventually("the balancer sees it", async || {
        let answer = request(admin, "GET", "/readyz", &[], b"").await.ok()?;
        (answer.status == 503).then_some(())
    })
    .await;
    let seen = scene.worker.seen().len();
    scene.worker.wait_for(seen + 50).await; // It goes on serving until the balancer has acted, and asks to be left.
    let last = kept.send(Ask::post("/kept").under(&tenure)).await.unwrap();
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    drop(kept);
    goes_on.store(false, Ordering::Relaxed);
    let mut answered = 2;
    for sender in senders {
        answered += sender.await.unwrap();
    }
    scene.until_metric("fencepost_connections", 0.0).await;
    assert!(scene.fence.terminate().await.success());
    assert_eq!(answered as usize, scene.worker.seen().len());
    let log = scene.fence.log();
    for step in
        ["step=\"leaving\" drain_delay=60s", "step=\"closing\" drain_timeout=30s", "step=\"ended\""]
    {
        assert!(log.contains(step), "{step}: {log}");
    }
    ledger.check(&scene.worker);
}

#[tokio::test]
async fn what_has_not_ended_by_the_deadline_is_cut_and_counted() {
    let short = "drain_delay = \"0s\"\ndrain_timeout = \"100ms\"";
    let (mut scene, tenure) = scene(|config| config.limit(short)).await;
    let latch = scene.worker.holds("/held");
    let mut lines = [scene.line().await, scene.line().await];
    for line in &mut lines {
        line.begin(Ask::post("/held").under(&tenure)).await.unwrap();
    }
    scene.worker.wait_for(2).await;
    assert!(scene.fence.terminate().await.success());
    let cut = "step=\"cutting\" connections=2 requests=2 ";
    scene.fence.has_logged(cut);
    latch.open();
    scene.finish().await;
}

#[tokio::test]
async fn whoever_says_it_twice_need_not_wait() {
    for step in ["leaving", "closing"] {
        let delay = if step == "leaving" { "1m" } else { "0s" };
        let (mut scene, tenure) = scene(|config| {
            config.limit(&format!("drain_delay = {delay:?}\ndrain_timeout = \"1h\""))
        })
        .await;
        let latch = scene.worker.holds("/held");
        let mut line = scene.line().await;
        line.begin(Ask::post("/held").under(&tenure)).await.unwrap();
        scene.worker.wait_for(1).await;
        scene.fence.process().terminate();
        scene.fence.until_log(&format!("step={step:?}")).await;
        // Nothing is reloaded any more.
        assert_eq!(scene.fence.admin("POST", "/reload").await.status, 503);
        assert!(scene.fence.process().ended().is_none());
        scene.fence.process().terminate();
        assert!(scene.fence.process().end_of_itself().await.success());
        scene.fence.has_logged("step=\"cutting\" connections=1 requests=1 ");
        latch.open();
        scene.finish().await;
    }
}

#[tokio::test]
async fn requests_before_the_worker_are_refused_before_the_cut() {
    for drain_timeout in ["100ms", "1h"] {
        let limits = format!("drain_delay = \"0s\"\ndrain_timeout = {drain_timeout:?}");
        let route = Route::k().with(r#"handoff_timeout = "1h""#);
        let mut scene =
            Scene::with(EtcdVersion::V3_5, &[route], |config| config.limit(&limits)).await;
        let latch = scene.worker.holds("/held");
        let old = scene.store.hold("/k", "shard-1").await;
        let mut held = scene.line().await;
        held.begin(Ask::post("/held").under(&old)).await.unwrap();
        scene.worker.wait_for(1).await;
        let new = scene.store.hold("/k", "shard-2").await;
        scene.until_known("/k", Some("shard-2")).await;
        let mut lines = [scene.line().await, scene.line().await, scene.line().await];
        let [waits, fences, sends] = &mut lines;
        waits.begin(Ask::post("/waits").under(&new)).await.unwrap();
        fences.begin(Ask::post("/.well-known/fence").under(&new)).await.unwrap();
        let token = format!("Fence-Owner: shard-2\r\nFence-Revision: {}", new.revision);
        let half = format!(
            "POST /sends HTTP/1.1\r\nHost: test\r\n{token}\r\nContent-Length: 9\r\n\r\nhalf"
        );
        sends.connection().send(half.into_bytes()).await.unwrap();
        scene.until_metric(r#"fencepost_in_flight{route="k"}"#, 3.0).await;
        eventually("the one is held up, and who asks whether it could go too", async || {
            let timeline = scene.fence.admin_json("/timeline").await;
            (timeline["locks"][0]["waits"][0]["waiting"] == 2).then_some(())
        })
        .await;
        scene.fence.process().terminate();
        if drain_timeout == "1h" {
            scene.fence.until_log("step=\"closing\"").await;
            scene.fence.process().terminate();
        }
        for (line, lock) in lines.iter_mut().zip([Some("/k"), Some("/k"), None]) {
            let answer = line.connection().final_response().await.expect("it is answered");
            assert_refused(&answer, "draining", lock, None);
        }
        assert!(scene.fence.process().end_of_itself().await.success());
        let log = scene.fence.log();
        assert!(log.contains("step=\"cutting\"") && log.contains(" requests=1 "), "{log}");
        latch.open();
        scene.finish().await;
    }
}

#[tokio::test]
async fn requests_that_wait_for_the_store_are_refused_before_the_cut() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let address = etcd.endpoint().trim_start_matches("http://").parse().unwrap();
    // A read goes on for as long as there is another endpoint to be tried.
    let relays =
        [Relay::start(address).await, Relay::start(address).await, Relay::start(address).await];
    let endpoints = relays.each_ref().map(|relay| format!("http://{}", relay.address()));
    let routes = [
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}""#),
        Route::k().with(r#"freshness = "linearizable""#),
    ];
    let short = "drain_delay = \"0s\"\ndrain_timeout = \"100ms\"\nconfirm_timeout = \"1m\"";
    let mut scene = Scene::built(etcd, &endpoints, &routes, |config| config.limit(short)).await;
    let held = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &held).await;
    let unread = scene.store.hold("/shards/2", "shard-1").await;
    let mut lines = [scene.line().await, scene.line().await];
    for relay in &relays {
        relay.freeze().await;
    }
    let [reads, loads] = &mut lines;
    reads.begin(Ask::post("/").under(&held)).await.unwrap();
    loads.begin(Ask::post("/shards/2/").under(&unread)).await.unwrap();
    scene.until_metric(r#"fencepost_in_flight{route="k"}"#, 1.0).await;
    scene.until_metric(r#"fencepost_in_flight{route="shards"}"#, 1.0).await;
    scene.fence.process().terminate();
    for (line, lock) in lines.iter_mut().zip(["/k", "/shards/2"]) {
        let answer = line.connection().final_response().await.expect("it is answered");
        assert_refused(&answer, "draining", lock, None);
    }
    assert!(scene.fence.process().end_of_itself().await.success());
    scene.finish().await;
}

#[tokio::test]
async fn a_process_ends_though_its_disk_hangs() {
    let scratch = Scratch::new();
    let state_dir = scratch.path().join("state");
    let (mut scene, tenure) =
        scene(|config| config.limit("drain_delay = \"0s\"").remembering_in(&state_dir)).await;
    assert_eq!(scene.send(Ask::post("/").under(&tenure)).await.status, 200);
    make_fifo(&state_dir.join("journal.next"));
    std::fs::remove_file(state_dir.join("journal")).unwrap();
    scene.fence.process().terminate();
    let ended = scene.fence.process().end_of_itself().await;
    let log = scene.fence.log();
    assert_eq!(ended.code(), Some(1), "{log}");
    let said = format!(
        "the state_dir cannot be used: the disk does not answer: a write to the state_dir {} has taken",
        state_dir.display()
    );
    assert!(log.contains("drained: everything has ended") && log.contains(&said), "{log}");
    scene.finish().await;
}
