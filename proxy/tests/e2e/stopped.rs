//! A process that is stopped in its tracks, and goes on.

use std::time::Duration;

use fencepost_tests::{Answer, Behaviour, EtcdVersion, Latch, Worker, until};

use crate::fencepost::Route;
use crate::scene::{Ask, Scene};

const LOCK: &str = "/k";

#[tokio::test]
async fn a_worker_that_talked_during_a_stop_is_waited_for() {
    // Side by side: what takes time is waiting.
    tokio::join!(talks_while_stopped("http"), talks_while_stopped("h2c"));
}

async fn talks_while_stopped(scheme: &str) {
    let worker = Worker::start().await;
    let upstream = worker.endpoint().to_string().replace("http", scheme);
    let route = |name, path| {
        Route::new(name, path, r#"key = "/k""#)
            .with(&format!("upstream = {upstream:?}"))
            .with(r#"orphan_timeout = "3s""#) // Longer than it takes until all wait.
            .with(r#"handoff_timeout = "1m""#)
    };
    // Of one lock, but only one of them is given up that soon.
    let routes = [route("slow", "/slow").with(r#"upstream_timeout = "100ms""#), route("k", "/")];
    let mut scene = Scene::open(EtcdVersion::V3_5, &routes).await;
    let latch = Latch::new();
    let seven_seconds = Answer::ok(vec![b'x'; 70]).trickling(1, Duration::from_millis(100));
    worker.on("/slow", Behaviour::Hold(latch.clone(), seven_seconds));
    let old = scene.store.hold(LOCK, "shard-1").await;
    assert_eq!(scene.send(Ask::post("/slow").under(&old)).await.status, 504);
    scene.until_at_worker(LOCK, 0, 1).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.until_known(LOCK, Some("shard-2")).await;
    let waiting: Vec<_> = (0..4).map(|_| scene.start(Ask::post("/next").under(&new))).collect();
    // Who is still getting a connection when the process stops has no time left for it afterwards.
    until("they wait at the barrier", async || {
        scene.fence.admin_json("/routes").await["routes"][1]["waiting"] == 4
    })
    .await;

    latch.open();
    scene.fence.process().pause().await;
    tokio::time::sleep(Duration::from_secs(5)).await; // What that time does is what is tested.
    scene.fence.process().resume();

    for waited in waiting {
        let answer = waited.await.unwrap();
        assert_eq!(answer.status, 200, "{scheme}: {answer:?}");
    }
    let seen = worker.seen();
    let of = |path| seen.iter().filter(move |one| one.path == path);
    let slow = of("/slow").next().and_then(|slow| slow.ended).expect("it has ended");
    assert!(of("/next").all(|next| slow <= next.began), "{scheme}: {seen:#?}");
    // Nor was its connection closed so that it ended before them.
    let expired = scene.fence.metric(r#"fencepost_orphans_expired_total{route="slow"}"#).await;
    assert_eq!(expired, 0.0, "{scheme}");
}
