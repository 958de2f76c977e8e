//! The delayed request of an earlier tenure, under every layout, and every reason that the lock's
//! state can give.

use fencepost_tests::EtcdVersion;

use crate::fencepost::Route;
use crate::refusal::{assert_refused, assert_refused_grpc, assert_refused_head, reason};
use crate::scene::{Ask, Scene};
use crate::store::{Layout, Tenure};

fn lock(layout: Layout) -> String {
    format!("/story/{}", layout.name())
}

fn path(layout: Layout) -> String {
    format!("/{}/records/1", layout.name())
}

fn routes(freshness: &str) -> Vec<Route> {
    Layout::ALL
        .map(|layout| {
            let name = layout.name();
            let lock = format!("key = {:?}, layout = {name:?}", lock(layout));
            Route::new(name, &format!("/{name}/"), &lock)
                .with(&format!("freshness = {freshness:?}"))
        })
        .to_vec()
}

#[tokio::test]
async fn the_delayed_request_never_arrives_whatever_the_layout() {
    for version in EtcdVersion::ALL {
        for freshness in ["cached", "linearizable"] {
            let scene = Scene::open(version, &routes(freshness)).await;
            for layout in Layout::ALL {
                delayed_request(&scene, layout).await;
            }
            scene.finish().await;
        }
    }
}

async fn delayed_request(scene: &Scene, layout: Layout) {
    let (lock, path) = (lock(layout), path(layout));
    let send = |tenure: &Tenure| scene.send(Ask::post(&path).under(tenure));
    let [one, two] = [scene.store.session("shard-1").await, scene.store.session("shard-2").await];

    // Nobody has held the lock yet.
    let early = Tenure::new("shard-1", scene.store.revision().await);
    assert_refused(&send(&early).await, "no-owner", &*lock, None);

    // shard-1 takes the lock. The network holds R1 back, which it sends now.
    let first = scene.store.acquire(layout, &lock, &one).await;
    let r1 = first.tenure.clone();
    scene.admits(&path, &r1).await;

    // It loses the lock, and for a while nobody holds it.
    scene.store.release(first).await;
    let unborn = Tenure::new("shard-2", scene.store.revision().await + 1);
    assert_refused(&send(&unborn).await, "no-owner", &*lock, &r1);
    assert_refused(&send(&r1).await, "no-owner", &*lock, &r1);

    // shard-2 takes it and sends R2.
    let second = scene.store.acquire(layout, &lock, &two).await;
    let r2 = second.tenure.clone();
    scene.admits(&path, &r2).await;
    assert_refused(&send(&r1).await, "stale-tenure", &*lock, &r2);
    let impostor = Tenure::new(&r1.owner, r2.revision);
    assert_refused(&send(&impostor).await, "not-owner", &*lock, &r2);

    // shard-2 crashes, shard-1 takes the lock again, and R1 arrives: its owner is the right one.
    scene.store.crash(&two).await;
    let third = scene.store.acquire(layout, &lock, &one).await;
    let r3 = third.tenure.clone();
    assert_eq!(r3.owner, r1.owner);
    // Whatever is known by now of the three, R1 is of a tenure that has ended.
    let early = send(&r1).await;
    let reasons = ["stale-tenure", "no-owner", "replayed-tenure"];
    assert!(reason(&early).is_some_and(|reason| reasons.contains(&reason)), "{}", early.text());
    scene.admits(&path, &r3).await;
    assert_refused(&send(&r1).await, "replayed-tenure", &*lock, &r3);
    assert_refused(&send(&r2).await, "stale-tenure", &*lock, &r3);

    // A write elsewhere gives nobody a token. Under `mutex` a holder may have been told any later
    // revision.
    let elsewhere = scene.store.put("/elsewhere", "").await;
    let later = send(&Tenure::new(&r3.owner, elsewhere)).await;
    match layout {
        Layout::Key | Layout::Election => assert_refused(&later, "unknown-revision", &*lock, &r3),
        Layout::Mutex => assert_eq!(later.status, 200, "{}", later.text()),
    }
    let others = send(&Tenure::new(&r2.owner, elsewhere)).await;
    let reason = if layout == Layout::Mutex { "not-owner" } else { "unknown-revision" };
    assert_refused(&others, reason, &*lock, &r3);

    // Nor does what the store has not reached.
    for revision in [elsewhere + 1, elsewhere + 1_000_000, i64::MAX] {
        for owner in [&r3.owner, &r2.owner] {
            assert_refused(
                &send(&Tenure::new(owner, revision)).await,
                "ahead-of-store",
                &*lock,
                &r3,
            );
        }
    }
    scene.admits(&path, &r3).await;

    // A gRPC client gets its own kind of answer, HEAD gets no body.
    let call =
        Ask::post(&path).header("content-type", "application/grpc+proto").header("te", "trailers");
    assert_refused_grpc(&scene.send(call.clone().under(&r1)).await, "replayed-tenure");
    assert_refused_grpc(&scene.send(call.clone()).await, "token-missing");
    assert_refused_grpc(&scene.send(call.token(&r1.owner, "x")).await, "token-malformed");
    assert_refused_head(
        &scene.send(Ask::post(&path).method("HEAD").under(&r1)).await,
        "replayed-tenure",
    );
    scene.store.release(third).await;
}

#[tokio::test]
async fn whoever_waits_is_not_the_owner_yet() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &routes("cached")).await;
        for layout in [Layout::Election, Layout::Mutex] {
            let (lock, path) = (lock(layout), path(layout));
            let [one, two] =
                [scene.store.session("shard-1").await, scene.store.session("shard-2").await];
            let first = scene.store.acquire(layout, &lock, &one).await;
            let held = first.tenure.clone();
            let waiting = tokio::spawn({
                let (store, lock, two) = (scene.store.clone(), lock.clone(), two.clone());
                async move { store.acquire(layout, &lock, &two).await }
            });
            let (key, created) =
                fencepost_tests::eventually("the second contender queues", async || {
                    scene.store.queue(&format!("{lock}/")).await.into_iter().nth(1)
                })
                .await;
            let (owner, reason) = match layout {
                Layout::Mutex => (key.as_str(), "not-owner"),
                Layout::Key | Layout::Election => ("shard-2", "not-yet-owner"),
            };
            let early = Tenure::new(owner, created);
            scene.refuses(&path, &early, reason, &*lock, &held).await;
            scene.admits(&path, &held).await;

            // The same token is the right one as soon as the lock is its sender's.
            scene.store.release(first).await;
            let second = waiting.await.unwrap();
            scene.admits(&path, &early).await;
            scene.admits(&path, &second.tenure).await;
            scene.refuses(&path, &held, "stale-tenure", &*lock, &second.tenure).await;
            scene.store.release(second).await;
        }
        scene.finish().await;
    }
}
