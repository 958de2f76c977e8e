//! The moment in which a lock changes hands.

use std::time::Duration;

use fencepost_tests::{Etcd, EtcdVersion, Relay};

use crate::fencepost::Route;
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Scene};
use crate::store::{Layout, Tenure};

const TAKEOVERS: usize = 300;

#[tokio::test]
async fn a_new_holder_is_admitted_at_once_its_predecessor_never() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &[Route::new("one", "/", r#"key = "/one/lock""#)]).await;
        let (mut new, mut old) = (scene.line().await, scene.line().await);
        let mut before = scene.store.hold("/one/lock", "shard-0").await;
        for round in 1..=TAKEOVERS {
            let now = scene.store.hold("/one/lock", &format!("shard-{}", round % 3)).await;
            let first = new.send(Ask::post("/").under(&now)).await.unwrap();
            assert_eq!(first.status, 200, "etcd {version}, takeover {round}: {}", first.text());
            let late = old.send(Ask::post("/").under(&before)).await.unwrap();
            assert_refused(&late, "stale-tenure", "/one/lock", &now);
            before = now;
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_new_holder_of_a_queue_is_admitted_its_predecessor_never() {
    for layout in [Layout::Election, Layout::Mutex] {
        let lock = format!("key = \"/queue\", layout = {:?}", layout.name());
        let scene = Scene::open(EtcdVersion::V3_5, &[Route::new("one", "/", &lock)]).await;
        let (mut new, mut old) = (scene.line().await, scene.line().await);
        let mut session = scene.store.session("shard-0").await;
        let mut held = scene.store.acquire(layout, "/queue", &session).await;
        for round in 1..=TAKEOVERS / 3 {
            let next = scene.store.session(&format!("shard-{round}")).await;
            let waiting = tokio::spawn({
                let (store, next) = (scene.store.clone(), next.clone());
                async move { store.acquire(layout, "/queue", &next).await }
            });
            fencepost_tests::until("the next contender queues", async || {
                scene.store.queue("/queue/").await.len() == 2
            })
            .await;
            scene.store.crash(&session).await;
            let now = waiting.await.unwrap();
            let first = new.send(Ask::post("/").under(&now.tenure)).await.unwrap();
            assert_eq!(first.status, 200, "{layout:?}, takeover {round}: {}", first.text());
            let late = old.send(Ask::post("/").under(&held.tenure)).await.unwrap();
            // Under `mutex` the predecessor was told a revision that may be above its successor's
            // create revision.
            assert!(
                matches!(reason(&late), Some("stale-tenure" | "not-owner")),
                "{layout:?}: {}",
                late.text()
            );
            (session, held) = (next, now);
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn news_that_are_late_refuse_no_new_holder() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start(version).await;
        let relay = Relay::before(&etcd).await;
        let seen_at = [format!("http://{}", relay.address())];
        let scene =
            Scene::seeing(etcd, &seen_at, &[Route::new("one", "/", r#"key = "/one/lock""#)]).await;
        let mut before = scene.store.hold("/one/lock", "shard-0").await;
        scene.admits("/", &before).await;
        // Far longer than a request takes to get here on a busy machine, so that it is here first.
        relay.delay(Duration::from_millis(150)).await;
        for round in 1..=5 {
            let now: Tenure = scene.store.hold("/one/lock", &format!("shard-{round}")).await;
            scene.admits("/", &now).await;
            scene.refuses("/", &before, "stale-tenure", "/one/lock", &now).await;
            before = now;
        }
        let confirmed =
            scene.fence.metric(r#"fencepost_confirms_total{outcome="admitted",route="one"}"#).await;
        assert!(confirmed >= 5.0, "each was admitted on a read of its own: {confirmed}");
        scene.finish().await;
    }
}
