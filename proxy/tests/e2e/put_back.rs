//! A source that was taken out, that nobody used for a time, and that is put back.

use fencepost_tests::{Etcd, EtcdVersion, FreePort, Response, Scratch};

use crate::fencepost::{Config, Route};
use crate::refusal::reason;
use crate::scene::{Ask, Scene};

const LOCK: &str = "/k";

fn named() -> Route {
    Route::new("k", "/k/", r#"key = "/k""#)
}

fn templated() -> Route {
    Route::new("k", "/{name}/", r#"key = "/{name}""#)
}

/// The file is refused, and nothing has changed.
async fn refused(scene: &Scene, config: &Config) -> Response {
    let answer = scene.fence.reload(config).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    answer
}

async fn accept(scene: &Scene, expected: &str) {
    let answer = scene.fence.admin("POST", "/sources/main/accept-regression").await;
    assert!(answer.status == 200 && answer.text().contains(expected), "{}", answer.text());
}

#[tokio::test]
async fn a_kept_source_is_put_back_only_if_its_store_answers() {
    let scene = Scene::open(EtcdVersion::V3_5, &[templated()]).await;
    let tenure = scene.store.hold(LOCK, "shard-1").await;
    let held = scene.held(Ask::post("/k/held").under(&tenure)).await;
    scene.fence.reloads(&scene.config.clone().without_source()).await;
    let nobody = FreePort::reserve();
    let elsewhere = scene.config.clone().endpoints(&[format!("http://{}", nobody.address())]);
    let elsewhere = elsewhere.limit("confirm_timeout = \"500ms\"");
    let said = refused(&scene, &elsewhere).await.text();
    assert!(said.contains("source.main: "), "{said}");
    scene.fence.reloads(&scene.config).await;
    scene.admits("/k/next", &tenure).await;
    held.ends().await;
    scene.finish().await;
}

#[tokio::test]
async fn a_store_that_went_back_while_unused_is_not_believed() {
    for (route, remembers) in [(named(), false), (templated(), true)] {
        let state_dir = Scratch::new();
        let path = state_dir.path().join("state");
        let mut scene = Scene::with(EtcdVersion::V3_5, &[route], |config| {
            let config = config.limit(r#"drain_delay = "0s""#);
            if remembers { config.remembering_in(&path) } else { config }
        })
        .await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        scene.admits("/k/", &lost).await;
        if remembers {
            // So that what an earlier process has seen says the same.
            assert!(scene.fence.terminate().await.success());
            scene.start_again().await;
            scene.admits("/k/", &lost).await;
        }

        scene.take_source_out().await;
        accept(&scene, "nothing is changed").await;
        scene.etcd.restore_snapshot(&snapshot).await;
        let said = refused(&scene, &scene.config).await.text();
        let all = ["source.main: ", "store-regressed", "POST /sources/main/accept-regression"];
        assert!(all.iter().all(|part| said.contains(part)), "{said}");
        accept(&scene, "is accepted").await;
        accept(&scene, "nothing is changed").await;
        scene.fence.reloads(&scene.config).await;
        scene.admits("/k/", &old).await;
        // What was accepted stays accepted, and is not held against what an earlier process has
        // seen.
        scene.take_source_out().await;
        scene.fence.reloads(&scene.config).await;
        scene.admits("/k/", &old).await;
        let answer = scene.send(Ask::post("/k/").under(&lost)).await;
        assert!(
            matches!(reason(&answer), Some("ahead-of-store" | "unknown-revision")),
            "{}",
            answer.text()
        );
        assert_eq!(scene.fence.metric("fencepost_source_regressed{source=\"main\"}").await, 0.0);
        if remembers {
            assert!(scene.fence.terminate().await.success());
            scene.start_again().await;
            scene.admits("/k/", &old).await;
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_source_that_is_put_back_keeps_its_cluster() {
    // Longer than etcd is asked until it is said that it is another cluster.
    let patient = |config: Config| config.limit(r#"confirm_timeout = "10s""#);
    let scene = Scene::with(EtcdVersion::V3_5, &[named()], patient).await;
    let tenure = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/k/", &tenure).await;
    let elsewhere = Etcd::start(EtcdVersion::V3_5).await;
    let there = scene.config.clone().endpoints(&[elsewhere.endpoint()]);
    scene.take_source_out().await;
    let said = refused(&scene, &there).await.text();
    let (_, ids) = said.split_once(" belongs to cluster ").unwrap_or_else(|| panic!("{said}"));
    let (found, pinned) =
        ids.trim().split_once(", not to the pinned cluster ").unwrap_or_else(|| panic!("{said}"));
    let of_cluster =
        |config: &Config, id: &str| config.clone().source(&format!("cluster_id = {id:?}"));

    let said = refused(&scene, &of_cluster(&there, found)).await.text();
    assert!(said.contains("source.main: ") && said.contains("needs a restart"), "{said}");
    scene.fence.reloads(&of_cluster(&scene.config, pinned)).await;
    scene.admits("/k/", &tenure).await;
    scene.finish().await;
}
