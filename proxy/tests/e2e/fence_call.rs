//! `POST /.well-known/fence`: how a new master closes the door behind its predecessor.

use fencepost_tests::{Behaviour, EtcdVersion, Response, request};

use crate::fencepost::Route;
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Scene};
use crate::store::{Layout, Tenure};

const LOCK: &str = "/k";

fn guarded(lines: &[&str]) -> Route {
    lines.iter().fold(Route::new("k", "/", r#"key = "/k""#), |route, line| route.with(line))
}

/// What the call is answered, of a proxy that listens there. It is no request to the worker, so no
/// ledger has it.
pub(crate) fn call_with(
    scene: &Scene,
    headers: &[(&str, &str)],
) -> impl Future<Output = Response> + use<> {
    let listener = scene.fence.listener.clone();
    let headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    async move {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        request(listener, "POST", "/.well-known/fence", &headers, b"").await.unwrap()
    }
}

/// What the call is answered under a tenure, and for a lock if one is given.
pub(crate) fn call(
    scene: &Scene,
    tenure: &Tenure,
    lock: Option<&str>,
) -> impl Future<Output = Response> + use<> {
    let revision = tenure.revision.to_string();
    let mut headers =
        vec![("Fence-Owner", tenure.owner.as_str()), ("Fence-Revision", revision.as_str())];
    headers.extend(lock.map(|lock| ("Fence-Lock", lock)));
    call_with(scene, &headers)
}

#[track_caller]
fn assert_closed(answer: &Response) {
    assert_eq!(answer.status, 204, "{answer:?} {}", answer.text());
    assert_eq!(reason(answer), None, "{answer:?}");
    assert!(answer.body.is_empty(), "{answer:?}");
}

fn called_worker(scene: &Scene) -> bool {
    scene.worker.seen().iter().any(|seen| seen.path == "/.well-known/fence")
}

#[tokio::test]
async fn the_fence_call_returns_after_the_predecessors_last_request() {
    for version in EtcdVersion::ALL {
        let beside = Route::new("beside", "/beside/", r#"key = "/beside""#);
        let routes = Layout::ALL.map(|layout| {
            let name = layout.name();
            Route::new(
                name,
                &format!("/{name}/"),
                &format!("key = \"/locks/{name}\", layout = {name:?}"),
            )
        });
        let scene = Scene::open(version, &[&routes[..], &[beside]].concat()).await;
        let other = scene.store.hold("/beside", "another").await;
        for layout in Layout::ALL {
            let (lock, path) =
                (format!("/locks/{}", layout.name()), format!("/{}/held", layout.name()));
            let latch = scene.worker.holds(&path);
            let session = scene.store.session("shard-1").await;
            let old = scene.store.acquire(layout, &lock, &session).await.tenure;
            assert_closed(&call(&scene, &old, Some(&lock)).await);
            let held = scene.start_at_worker(Ask::post(&path).under(&old)).await;
            // Its own requests are no predecessor's.
            assert_closed(&call(&scene, &old, Some(&lock)).await);
            scene.store.crash(&session).await;
            let session = scene.store.session("shard-2").await;
            let new = scene.store.acquire(layout, &lock, &session).await.tenure;
            let calls: Vec<_> =
                (0..4).map(|_| tokio::spawn(call(&scene, &new, Some(&lock)))).collect();
            scene.until_known(&lock, Some(&new.owner)).await;
            for _ in 0..5 {
                scene.admits("/beside/probe", &other).await;
            }
            assert!(calls.iter().all(|call| !call.is_finished()), "{layout:?}");
            latch.open();
            for called in calls {
                assert_closed(&called.await.unwrap());
                let seen = scene.worker.seen();
                let held = seen.iter().find(|one| one.path == path).unwrap();
                assert!(held.ended.is_some(), "etcd {version}, {layout:?}: {held:#?}");
            }
            assert_eq!(held.await.unwrap().text(), "held");
            // From then on nothing of the predecessor's is forwarded.
            let late = scene.send(Ask::post(&path).under(&old)).await;
            assert!(
                matches!(reason(&late), Some("stale-tenure" | "not-owner")),
                "{layout:?}: {}",
                late.text()
            );
            let late = call(&scene, &old, Some(&lock)).await;
            assert!(
                matches!(reason(&late), Some("stale-tenure" | "not-owner")),
                "{layout:?}: {}",
                late.text()
            );
        }
        assert!(!called_worker(&scene));
        scene.finish().await;
    }
}

/// The holder may call before anything else of its tenure has come: the proxy may not have the news
/// yet.
#[tokio::test]
async fn it_is_answered_right_after_the_lock_was_taken() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &[guarded(&[])]).await;
        let mut before = scene.store.hold(LOCK, "shard-0").await;
        for round in 1..=100 {
            let now = scene.store.hold(LOCK, &format!("shard-{}", round % 3)).await;
            assert_closed(&call(&scene, &now, None).await);
            assert_refused(
                &scene.send(Ask::post("/").under(&before)).await,
                "stale-tenure",
                LOCK,
                &now,
            );
            before = now;
        }
        assert!(scene.worker.seen().is_empty());
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_caller_that_does_not_hold_the_lock_is_refused() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &[guarded(&[])]).await;
        let refused = async |tenure: &Tenure, expected: &str, present: Option<&Tenure>| {
            assert_refused(&call(&scene, tenure, Some(LOCK)).await, expected, LOCK, present);
        };
        let first = scene.store.hold(LOCK, "shard-1").await;
        let second = scene.store.hold(LOCK, "shard-2").await;
        scene.until_known(LOCK, Some("shard-2")).await;
        refused(&first, "stale-tenure", Some(&second)).await;
        refused(&Tenure::new("shard-1", second.revision), "not-owner", None).await;
        let third = scene.store.hold(LOCK, "shard-1").await;
        scene.until_known(LOCK, Some("shard-1")).await;
        refused(&first, "replayed-tenure", Some(&third)).await;
        refused(&second, "stale-tenure", Some(&third)).await;
        let beyond = scene.store.put("/elsewhere", "").await;
        refused(&Tenure::new("shard-1", beyond), "unknown-revision", Some(&third)).await;
        refused(&Tenure::new("shard-1", beyond + 1_000), "ahead-of-store", Some(&third)).await;
        assert_closed(&call(&scene, &third, Some(LOCK)).await);
        scene.store.delete(LOCK).await;
        scene.until_known(LOCK, None).await;
        refused(&third, "no-owner", None).await;
        scene.finish().await;
    }
}

#[tokio::test]
async fn it_takes_a_token_like_any_request() {
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&[])]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let revision = held.revision.to_string();
    let (owner, revision) = (("Fence-Owner", "shard-1"), ("Fence-Revision", revision.as_str()));
    for headers in [&[][..], &[owner], &[revision]] {
        assert_refused(&call_with(&scene, headers).await, "token-missing", LOCK, None);
    }
    for headers in [
        [owner, ("Fence-Revision", "-1"), ("Fence-Lock", LOCK)],
        [owner, ("Fence-Revision", "007"), ("Fence-Lock", LOCK)],
        [owner, owner, revision],
        [owner, revision, revision],
    ] {
        assert_refused(&call_with(&scene, &headers).await, "token-malformed", LOCK, None);
    }
    assert_closed(&call_with(&scene, &[owner, revision]).await);
    assert_closed(&call_with(&scene, &[owner, revision, ("Fence-Lock", LOCK)]).await);
    scene.finish().await;
}

#[tokio::test]
async fn it_names_its_lock_wherever_there_is_more_than_one() {
    let shards = || Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#);
    let not_allowed = |answer: Response| assert_refused(&answer, "lock-not-allowed", None, None);

    let scene = Scene::open(EtcdVersion::V3_5, &[shards()]).await;
    let seven = scene.store.hold("/shards/7/lock", "shard-7").await;
    let before = scene.store.hold("/shards/8/lock", "shard-7").await;
    let eight = scene.store.hold("/shards/8/lock", "shard-8").await;
    not_allowed(call(&scene, &seven, None).await);
    for stranger in [
        "/shards/7/other",
        "/shards//lock",
        "/shards/../lock",
        "/shards/7/8/lock",
        "/k",
        "",
        "/shards/7/lock/",
    ] {
        not_allowed(call(&scene, &seven, Some(stranger)).await);
    }
    assert_closed(&call(&scene, &seven, Some("/shards/7/lock")).await);
    assert_closed(&call(&scene, &eight, Some("/shards/8/lock")).await);
    let answer = call(&scene, &seven, Some("/shards/8/lock")).await;
    assert_refused(&answer, "stale-tenure", "/shards/8/lock", &eight);
    let answer = call(&scene, &before, Some("/shards/8/lock")).await;
    assert_refused(&answer, "stale-tenure", "/shards/8/lock", &eight);
    let revision = seven.revision.to_string();
    let lock = ("Fence-Lock", "/shards/7/lock");
    let answer =
        call_with(&scene, &[("Fence-Owner", "shard-7"), ("Fence-Revision", &revision), lock, lock])
            .await;
    assert_eq!((answer.status, reason(&answer)), (400, Some("token-malformed")), "{answer:?}");
    scene.finish().await;

    // Two static locks: one has to be named. The lock of a route that only watches guards nothing.
    let watching =
        Route::new("watching", "/watching/", r#"key = "/watched""#).with(r#"mode = "shadow""#);
    let two = Route::new("two", "/two/", r#"key = "/two""#);
    let again = Route::new("again", "/again/", r#"key = "/k""#);
    let scene = Scene::open(EtcdVersion::V3_5, &[watching.clone(), two, guarded(&[])]).await;
    let (k, second) =
        (scene.store.hold(LOCK, "shard-1").await, scene.store.hold("/two", "shard-1").await);
    let watched = scene.store.hold("/watched", "shard-1").await;
    let unnamed = call(&scene, &k, None).await;
    assert!(
        unnamed.text().contains("Name the lock that you hold in Fence-Lock"),
        "{}",
        unnamed.text()
    );
    not_allowed(unnamed);
    assert_closed(&call(&scene, &k, Some(LOCK)).await);
    assert_closed(&call(&scene, &second, Some("/two")).await);
    // What helps then is said, and only then.
    for (lock, is_watched) in [("/watched", true), ("/elsewhere", false)] {
        let answer = call(&scene, &watched, Some(lock)).await;
        assert_eq!(answer.text().contains("they only watch"), is_watched, "{}", answer.text());
        not_allowed(answer);
    }
    scene.finish().await;

    // Two routes under one lock: there is nothing to choose.
    let scene = Scene::open(EtcdVersion::V3_5, &[watching.clone(), again, guarded(&[])]).await;
    let k = scene.store.hold(LOCK, "shard-1").await;
    assert_closed(&call(&scene, &k, None).await);
    scene.finish().await;

    // Nor where there is nothing to guard.
    let scene = Scene::open(EtcdVersion::V3_5, &[watching]).await;
    let watched = scene.store.hold("/watched", "shard-1").await;
    let answer = call(&scene, &watched, None).await;
    assert!(answer.text().contains("they only watch"), "{}", answer.text());
    not_allowed(answer);
    scene.finish().await;
}

/// Which of the routes of a lock is meant, the headers of the token say.
#[tokio::test]
async fn it_takes_a_token_by_the_headers_of_any_route_of_its_lock() {
    let other = Route::new("other", "/other/", r#"key = "/k""#)
        .with(r#"owner_header = "X-Owner""#)
        .with(r#"revision_header = "X-Revision""#);
    let scene = Scene::open(EtcdVersion::V3_5, &[other, guarded(&[])]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let revision = held.revision.to_string();
    for lock in [None, Some(("Fence-Lock", LOCK))] {
        for (owner, number) in [("Fence-Owner", "Fence-Revision"), ("X-Owner", "X-Revision")] {
            let token = [(owner, "shard-1"), (number, revision.as_str())];
            assert_closed(&call_with(&scene, &[&token[..], lock.as_slice()].concat()).await);
        }
        let half = [("Fence-Owner", "shard-1"), ("X-Revision", revision.as_str())];
        let answer = call_with(&scene, &[&half[..], lock.as_slice()].concat()).await;
        assert_refused(&answer, "token-missing", LOCK, &held);
    }
    scene.finish().await;
}

#[tokio::test]
async fn the_fence_call_gives_up_after_handoff_timeout() {
    for version in EtcdVersion::ALL {
        // What `dangerous_proceed` lets past, this call does not deny.
        for on_timeout in ["reject", "dangerous_proceed"] {
            let on_timeout = format!("on_handoff_timeout = {on_timeout:?}");
            let lines = [r#"handoff_timeout = "150ms""#, &on_timeout, r#"orphan_timeout = "1h""#];
            let scene = Scene::open(version, &[guarded(&lines)]).await;
            scene.worker.on("/reset", Behaviour::Reset);
            let old = scene.store.hold(LOCK, "shard-1").await;
            let held = scene.held(Ask::post("/held").under(&old)).await;
            assert_eq!(scene.send(Ask::post("/reset").under(&old)).await.status, 502);
            let new = scene.store.hold(LOCK, "shard-2").await;
            let answer = call(&scene, &new, None).await;
            assert_refused(&answer, "handoff-timeout", LOCK, &new);
            held.ends().await;
            scene.until_at_worker(LOCK, 0, 1).await;
            // Orphans are waited for too, and the answer tells for how long.
            let answer = call(&scene, &new, None).await;
            assert_refused(&answer, "handoff-timeout", LOCK, &new);
            let remains: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((3_000..=3_600).contains(&remains), "{remains}");
            assert_eq!(scene.fence.admin("POST", "/locks//k/clear-orphans").await.status, 200);
            assert_closed(&call(&scene, &new, None).await);
            scene.finish().await;
        }
    }
}
