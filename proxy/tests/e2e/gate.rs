//! From admitted to forwarded: no two tenures at the worker at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fencepost_tests::{
    Answer, Behaviour, EtcdVersion, Latch, PATIENCE, Seen, Worker, eventually, until,
};
use futures_util::future::join_all;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::fencepost::Route;
use crate::refusal::{assert_failed, assert_refused, reason};
use crate::scene::{Ask, Dice, Line, Scene};
use crate::store::{Layout, Store, Tenure};

const LOCK: &str = "/k";

/// A route under another lock, to the same worker.
fn beside() -> Route {
    Route::new("beside", "/beside/", r#"key = "/beside""#)
}

/// All else is under [`LOCK`]: a route with these lines.
fn guarded(lines: &[&str]) -> Route {
    lines.iter().fold(Route::new("k", "/", r#"key = "/k""#), |route, line| route.with(line))
}

/// Requests under another lock go through, and no request whose path begins so has arrived at the
/// worker.
async fn nothing_of(scene: &Scene, path: &str, other: &Tenure) {
    for _ in 0..5 {
        scene.admits("/beside/probe", other).await;
    }
    let seen = scene.worker.seen();
    assert!(!seen.iter().any(|one| one.path.starts_with(path)), "{path} waits: {seen:#?}");
}

/// The only request for a path that the worker has seen.
#[track_caller]
fn only<'a>(seen: &'a [Seen], path: &str) -> &'a Seen {
    let mut found = seen.iter().filter(|one| one.path == path);
    let one = found.next().unwrap_or_else(|| panic!("no {path} in {seen:#?}"));
    assert!(found.next().is_none(), "{path} came twice: {seen:#?}");
    one
}

/// A request ended at the worker before another began.
#[track_caller]
fn assert_in_order(seen: &[Seen], earlier: &str, later: &str) {
    let (earlier, later) = (only(seen, earlier), only(seen, later));
    assert!(
        earlier.ended.is_some_and(|ended| ended <= later.began),
        "{earlier:#?} before {later:#?}"
    );
}

async fn clear_orphans(scene: &Scene) -> String {
    let cleared = scene.fence.admin("POST", "/locks//k/clear-orphans").await;
    assert_eq!(cleared.status, 200, "{cleared:?}");
    cleared.text()
}

#[tokio::test]
async fn a_new_holder_waits_for_its_predecessors_last_request() {
    for version in EtcdVersion::ALL {
        let routes = Layout::ALL.map(|layout| {
            let name = layout.name();
            Route::new(
                name,
                &format!("/{name}/"),
                &format!("key = \"/locks/{name}\", layout = {name:?}"),
            )
        });
        let scene = Scene::open(version, &[&routes[..], &[beside()]].concat()).await;
        let other = scene.store.hold("/beside", "another").await;
        for layout in Layout::ALL {
            let (name, lock) = (layout.name(), format!("/locks/{}", layout.name()));
            let held_path = format!("/{name}/held");
            let session = scene.store.session("shard-1").await;
            let old = scene.store.acquire(layout, &lock, &session).await.tenure;
            let held = scene.held(Ask::post(&held_path).under(&old)).await;
            scene.store.crash(&session).await;
            let session = scene.store.session("shard-2").await;
            let new = scene.store.acquire(layout, &lock, &session).await.tenure;

            let next: Vec<String> = (0..8).map(|number| format!("/{name}/next/{number}")).collect();
            let waiting: Vec<_> =
                next.iter().map(|path| scene.start(Ask::post(path).under(&new))).collect();
            scene.until_known(&lock, Some(&new.owner)).await;
            scene.until_metric(&format!("fencepost_in_flight{{route={name:?}}}"), 9.0).await;
            nothing_of(&scene, &format!("/{name}/next"), &other).await;
            assert_eq!(scene.at_worker(&lock).await, (1, 0), "{layout:?}");
            // The predecessor gets nothing more past the door meanwhile.
            let late = scene.send(Ask::post(&format!("/{name}/late")).under(&old)).await;
            assert!(
                matches!(reason(&late), Some("stale-tenure" | "not-owner")),
                "{layout:?}: {}",
                late.text()
            );

            held.ends().await;
            for waited in waiting {
                let answer = waited.await.unwrap();
                assert_eq!(answer.status, 200, "etcd {version}, {layout:?}: {}", answer.text());
            }
            let seen = scene.worker.seen();
            for path in &next {
                assert_in_order(&seen, &held_path, path);
            }
            scene.until_at_worker(&lock, 0, 0).await;
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn the_barrier_stands_for_a_client_that_has_left() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &[beside(), guarded(&[])]).await;
        let other = scene.store.hold("/beside", "another").await;
        let latches = [Latch::new(), Latch::new()];
        scene.worker.on("/held", Behaviour::Hold(latches[0].clone(), Answer::ok("held")));
        let halting = Answer::ok("answer").halting_after(3, latches[1].clone());
        scene.worker.on("/halting", Behaviour::Answer(halting));
        let old = scene.store.hold(LOCK, "shard-1").await;
        // One leaves before it has an answer, one in the middle of it.
        let (mut first, mut second) = (scene.line().await, scene.line().await);
        first.begin(Ask::post("/held").under(&old)).await.unwrap();
        second.begin(Ask::post("/halting").under(&old)).await.unwrap();
        assert_eq!(second.connection().head().await.unwrap().status, 200);
        scene.worker.wait_for(2).await;
        drop((first, second));
        scene.until_metric("fencepost_connections", 0.0).await;

        let new = scene.store.hold(LOCK, "shard-2").await;
        let waiting = scene.start(Ask::post("/next").under(&new));
        scene.until_known(LOCK, Some("shard-2")).await;
        nothing_of(&scene, "/next", &other).await;
        assert_eq!(scene.at_worker(LOCK).await, (2, 0));
        latches[0].open();
        scene.until_at_worker(LOCK, 1, 0).await;
        nothing_of(&scene, "/next", &other).await;
        latches[1].open();
        assert_eq!(waiting.await.unwrap().status, 200);
        let seen = scene.worker.seen();
        for path in ["/held", "/halting"] {
            assert!(only(&seen, path).answered, "read to its end: {seen:#?}");
            assert_in_order(&seen, path, "/next");
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_request_that_had_to_wait_is_counted_however_its_wait_ends() {
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&[r#"handoff_timeout = "1h""#])]).await;
    let first = scene.store.hold(LOCK, "shard-1").await;
    let held = scene.held(Ask::post("/held").under(&first)).await;
    let second = scene.store.hold(LOCK, "shard-2").await;
    scene.until_known(LOCK, Some("shard-2")).await;
    let until_waiting = async |count: u64| {
        eventually("so many wait at the barrier", async || {
            let timeline = scene.fence.admin_json("/timeline").await;
            let waits = timeline["locks"][0]["waits"].as_array()?;
            (waits.iter().filter_map(|bar| bar["waiting"].as_u64()).sum::<u64>() == count)
                .then_some(())
        })
        .await;
    };
    let counted = async |requests: f64| {
        scene.until_metric(r#"fencepost_handoffs_total{route="k"}"#, requests).await;
        scene.until_metric("fencepost_handoff_wait_seconds_count", requests).await;
    };
    for path in ["/second", "/.well-known/fence"] {
        let mut line = scene.line().await;
        line.begin(Ask::post(path).under(&second)).await.unwrap();
        until_waiting(1).await;
        drop(line);
        until_waiting(0).await;
    }
    counted(2.0).await;
    assert_eq!(scene.counted().await, 1, "only the one at the worker has a verdict");
    assert_eq!(
        scene.fence.metric(r#"fencepost_verdict_seconds_count{route="k"}"#).await,
        2.0,
        "and one has left that was judged"
    );
    let refused = scene.start(Ask::post("/second").under(&second));
    until_waiting(1).await;
    let third = scene.store.hold(LOCK, "shard-3").await;
    assert_refused(&refused.await.unwrap(), "stale-tenure", LOCK, &third);
    counted(3.0).await;
    let last = scene.start(Ask::post("/third").under(&third));
    until_waiting(1).await;
    held.ends().await;
    assert_eq!(last.await.unwrap().status, 200);
    counted(4.0).await;
    scene.finish().await;
}

/// A client that waits at the barrier and leaves: its request is never sent.
#[tokio::test]
async fn a_client_that_leaves_the_barrier_is_never_forwarded() {
    let scene = Scene::open(EtcdVersion::V3_5, &[beside(), guarded(&[])]).await;
    let other = scene.store.hold("/beside", "another").await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    let held = scene.held(Ask::post("/held").under(&old)).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    let mut line = scene.line().await;
    line.begin(Ask::post("/given-up").under(&new)).await.unwrap();
    scene.until_metric(r#"fencepost_in_flight{route="k"}"#, 2.0).await;
    scene.until_known(LOCK, Some("shard-2")).await;
    nothing_of(&scene, "/given-up", &other).await;
    drop(line);
    scene.until_metric(r#"fencepost_in_flight{route="k"}"#, 1.0).await;
    held.ends().await;
    scene.admits("/next", &new).await;
    nothing_of(&scene, "/given-up", &other).await;
    scene.finish().await;
}

#[tokio::test]
async fn after_handoff_timeout_the_barrier_still_stands() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &[guarded(&[r#"handoff_timeout = "200ms""#])]).await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        let held = scene.held(Ask::post("/held").under(&old)).await;
        let new = scene.store.hold(LOCK, "shard-2").await;
        for _ in 0..3 {
            let sent = Instant::now();
            let answer = scene.send(Ask::post("/next").under(&new)).await;
            assert_refused(&answer, "handoff-timeout", LOCK, &new);
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert!(
                sent.elapsed() >= Duration::from_millis(200),
                "it was waited for: {:?}",
                sent.elapsed()
            );
        }
        assert_eq!(scene.worker.seen().len(), 1, "{:#?}", scene.worker.seen());
        assert_eq!(scene.at_worker(LOCK).await, (1, 0));
        let refused = r#"fencepost_requests_total{mode="enforce",reason="handoff-timeout",route="k",verdict="reject"}"#;
        assert_eq!(scene.fence.metric(refused).await, 3.0);
        assert_eq!(scene.fence.metric(r#"fencepost_handoffs_total{route="k"}"#).await, 3.0);
        assert_eq!(scene.fence.metric("fencepost_handoff_wait_seconds_count").await, 3.0);
        held.ends().await;
        scene.until_at_worker(LOCK, 0, 0).await;
        scene.admits("/next", &new).await;
        assert_in_order(&scene.worker.seen(), "/held", "/next");
        scene.finish().await;
    }
}

#[tokio::test]
async fn dangerous_proceed_overlaps_and_is_counted() {
    let lines = [
        r#"handoff_timeout = "100ms""#,
        r#"on_handoff_timeout = "dangerous_proceed""#,
        "verdict_header = true",
    ];
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&lines)]).await;
    let dangerous = r#"fencepost_dangerous_total{route="k",setting="on_handoff_timeout"}"#;
    let old = scene.store.hold(LOCK, "shard-1").await;
    let held = scene.held(Ask::post("/held").under(&old)).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    assert_eq!(scene.fence.metric(dangerous).await, 0.0);
    let sent = Instant::now();
    let past = scene.send(Ask::post("/next").under(&new)).await;
    assert_eq!((past.status, past.header("fence-verdict")), (200, Some("pass")), "{past:?}");
    assert!(sent.elapsed() >= Duration::from_millis(100), "it waits first: {:?}", sent.elapsed());
    let decision = scene.fence.admin_json("/decisions?verdict=pass").await["decisions"][0].take();
    assert_eq!(
        (&decision["reason"], &decision["owner"]),
        (&"handoff-timeout".into(), &"shard-2".into()),
        "{decision}"
    );
    assert_eq!(scene.fence.metric(dangerous).await, 1.0);
    assert_eq!(scene.at_worker(LOCK).await.0, 1, "the request of the old tenure still runs");
    // Past the barrier, not past the verdict.
    assert_refused(&scene.send(Ask::post("/late").under(&old)).await, "stale-tenure", LOCK, &new);
    held.ends().await;
    scene.until_at_worker(LOCK, 0, 0).await;
    scene.admits("/after", &new).await;
    assert_eq!(scene.fence.metric(dangerous).await, 1.0, "nothing to pass any more");
    scene.finish().await;
}

#[tokio::test]
async fn a_reset_request_counts_for_orphan_timeout() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &[beside(), guarded(&[r#"orphan_timeout = "5s""#])]).await;
        let other = scene.store.hold("/beside", "another").await;
        scene.worker.on("/reset", Behaviour::Reset);
        let old = scene.store.hold(LOCK, "shard-1").await;
        assert_failed(&scene.send(Ask::post("/reset").under(&old)).await, 502, "worker-no-answer");
        assert_eq!(scene.at_worker(LOCK).await, (0, 1));
        assert_eq!(scene.fence.metric(r#"fencepost_orphans{route="k"}"#).await, 1.0);
        assert_eq!(scene.fence.metric(r#"fencepost_orphans_expired_total{route="k"}"#).await, 0.0);
        // Its own tenure goes on.
        scene.admits("/own", &old).await;
        let new = scene.store.hold(LOCK, "shard-2").await;
        let waiting = scene.start(Ask::post("/next").under(&new));
        scene.admits("/beside/probe", &other).await;
        assert_eq!(waiting.await.unwrap().status, 200);
        let seen = scene.worker.seen();
        let apart = only(&seen, "/next").began - only(&seen, "/reset").began;
        assert!(apart >= Duration::from_secs(5), "{apart:?}");
        scene.until_metric(r#"fencepost_orphans{route="k"}"#, 0.0).await;
        scene.until_metric(r#"fencepost_orphans_expired_total{route="k"}"#, 1.0).await;
        assert_eq!(scene.at_worker(LOCK).await, (0, 0));
        scene.finish().await;
    }
}

#[tokio::test]
async fn an_operator_ends_orphans_by_hand() {
    let lines = [r#"orphan_timeout = "1h""#, r#"handoff_timeout = "100ms""#];
    let patient = Route::new("patient", "/patient/", r#"key = "/k""#)
        .with(lines[0])
        .with(r#"handoff_timeout = "1m""#);
    let scene = Scene::open(EtcdVersion::V3_5, &[beside(), patient, guarded(&lines)]).await;
    let other = scene.store.hold("/beside", "another").await;
    scene.worker.on("/reset", Behaviour::Reset);
    let old = scene.store.hold(LOCK, "shard-1").await;
    for _ in 0..2 {
        assert_failed(&scene.send(Ask::post("/reset").under(&old)).await, 502, "worker-no-answer");
    }
    let new = scene.store.hold(LOCK, "shard-2").await;
    let answer = scene.send(Ask::post("/next").under(&new)).await;
    assert_refused(&answer, "handoff-timeout", LOCK, &new);
    let remains: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&remains), "what remains of the orphans' time: {remains}");
    let waiting = scene.start(Ask::post("/patient/next").under(&new));
    scene.until_metric(r#"fencepost_in_flight{route="patient"}"#, 1.0).await;
    nothing_of(&scene, "/patient/next", &other).await;

    // Changes are by POST only.
    assert!(scene.fence.admin("GET", "/locks//k/clear-orphans").await.status >= 400);
    assert_eq!(scene.fence.admin("POST", "/locks//nothing/clear-orphans").await.status, 404);
    assert_eq!(scene.at_worker(LOCK).await, (0, 2));
    assert_eq!(clear_orphans(&scene).await, "2 orphans of lock \"/k\" no longer count\n");
    assert_eq!(waiting.await.unwrap().status, 200);
    scene.admits("/next", &new).await;
    assert_eq!(scene.at_worker(LOCK).await, (0, 0));
    assert_eq!(clear_orphans(&scene).await, "0 orphans of lock \"/k\" no longer count\n");
    scene.until_metric(r#"fencepost_orphans{route="k"}"#, 0.0).await;
    // They were ended, they did not outlast their time.
    assert_eq!(scene.fence.metric(r#"fencepost_orphans_expired_total{route="k"}"#).await, 0.0);
    scene.finish().await;
}

/// A route that gives up early, under the same lock.
fn impatient() -> Route {
    Route::new("slow", "/slow/", r#"key = "/k""#)
        .with("upstream_timeout = \"1s\"\nstream_idle_timeout = \"1s\"")
        .with(r#"orphan_timeout = "1h""#)
        .with(r#"handoff_timeout = "1m""#)
}

#[tokio::test]
async fn a_late_answer_ends_the_orphan_that_its_timeout_made() {
    for version in EtcdVersion::ALL {
        let scene =
            Scene::open(version, &[beside(), impatient(), guarded(&[r#"handoff_timeout = "1m""#])])
                .await;
        let other = scene.store.hold("/beside", "another").await;
        let mut old = scene.store.hold(LOCK, "shard-1").await;
        // Without a sign, and in the middle of its answer.
        for round in ["silent", "halting"] {
            let latch = Latch::new();
            let (path, next) = (format!("/slow/{round}"), format!("/next/{round}"));
            scene.worker.on(
                &path,
                match round {
                    "silent" => Behaviour::Hold(latch.clone(), Answer::ok("late")),
                    _ => Behaviour::Answer(Answer::ok("answer").halting_after(3, latch.clone())),
                },
            );
            let mut line = scene.line().await;
            let answer = line.send(Ask::post(&path).under(&old)).await;
            match round {
                "silent" => assert_failed(&answer.unwrap(), 504, "worker-timeout"),
                _ => assert!(answer.is_err(), "the answer is not whole: {answer:?}"),
            }
            scene.until_at_worker(LOCK, 0, 1).await;
            assert_eq!(scene.fence.metric(r#"fencepost_orphans{route="slow"}"#).await, 1.0);
            let new = scene.store.hold(LOCK, &format!("shard-2-{round}")).await;
            let waiting = scene.start(Ask::post(&next).under(&new));
            scene.until_known(LOCK, Some(&new.owner)).await;
            nothing_of(&scene, &next, &other).await;
            latch.open();
            assert_eq!(waiting.await.unwrap().status, 200);
            assert_in_order(&scene.worker.seen(), &path, &next);
            scene.until_at_worker(LOCK, 0, 0).await;
            scene.until_metric(r#"fencepost_orphans{route="slow"}"#, 0.0).await;
            assert_eq!(
                scene.fence.metric(r#"fencepost_orphans_expired_total{route="slow"}"#).await,
                0.0
            );
            old = new;
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn an_overlong_request_is_an_orphan_however_busy_its_worker() {
    let lines =
        [r#"request_timeout = "500ms""#, r#"upstream_timeout = "1h""#, r#"orphan_timeout = "1h""#];
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&lines)]).await;
    let trickle = Answer::ok("x".repeat(72_000)).trickling(1, Duration::from_millis(50));
    scene.worker.on("/trickle", Behaviour::Answer(trickle));
    let held = scene.store.hold(LOCK, "shard-1").await;
    let mut line = scene.line().await;
    line.begin(Ask::post("/trickle").under(&held)).await.unwrap();
    let answer = tokio::time::timeout(PATIENCE, line.connection().final_response())
        .await
        .expect("it comes to an end");
    assert!(answer.is_err(), "it is cut: {answer:?}");
    scene.until_at_worker(LOCK, 0, 1).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_request_whose_tenure_ends_before_a_connection_is_refused() {
    for version in EtcdVersion::ALL {
        let one_connection = r#"upstream_connections_max = 1"#;
        let scene = Scene::with(version, &[beside(), guarded(&[])], |config| {
            config.threads(1).limit(one_connection).limit(r#"connect_timeout = "1m""#)
        })
        .await;
        let other = scene.store.hold("/beside", "another").await;
        for (round, expected) in ["stale-tenure", "no-owner"].into_iter().enumerate() {
            let held_path = format!("/beside/held/{round}");
            let old = scene.store.hold(LOCK, "shard-1").await;
            scene.admits("/before", &old).await;
            let held = scene.held(Ask::post(&held_path).under(&other)).await;
            let waiting: Vec<_> =
                (0..5).map(|_| scene.start(Ask::post("/waited").under(&old))).collect();
            scene.until_metric(r#"fencepost_in_flight{route="k"}"#, 5.0).await;
            let new = (expected == "stale-tenure").then_some("shard-2");
            match new {
                Some(owner) => drop(scene.store.hold(LOCK, owner).await),
                None => drop(scene.store.delete(LOCK).await),
            }
            scene.until_known(LOCK, new).await;
            held.ends().await;
            for waited in waiting {
                assert_refused(&waited.await.unwrap(), expected, LOCK, None);
            }
            scene.admits("/beside/probe", &other).await;
            let seen = scene.worker.seen();
            assert!(!seen.iter().any(|one| one.path == "/waited"), "{seen:#?}");
        }
        scene.finish().await;
    }
}

/// It was judged by fresh news when it came. What counts is their age when its first byte would go
/// out.
#[tokio::test]
async fn a_request_whose_news_ages_before_a_connection_is_refused() {
    let routes = [beside(), guarded(&[r#"max_age = "1s""#])];
    let scene = Scene::with(EtcdVersion::V3_5, &routes, |config| {
        config.threads(1).limit("upstream_connections_max = 1").limit(r#"connect_timeout = "1m""#)
    })
    .await;
    let other = scene.store.hold("/beside", "another").await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/before", &holder).await;
    let held = scene.held(Ask::post("/beside/held").under(&other)).await;
    let waiting = scene.start(Ask::post("/waited").under(&holder));
    scene.until_metric(r#"fencepost_in_flight{route="k"}"#, 1.0).await;
    scene.etcd.pause().await;
    eventually("the news has aged", async || {
        (scene.fence.admin_json("/locks//k").await["age_seconds"].as_f64() > Some(1.0))
            .then_some(())
    })
    .await;
    assert!(!waiting.is_finished() && !held.has_ended());
    held.ends().await;
    assert_refused(&waiting.await.unwrap(), "unverifiable", LOCK, &holder);
    scene.etcd.resume();
    scene.finish().await;
}

/// A request that waits at the barrier when its own tenure ends is told so at once, though the
/// barrier still stands.
#[tokio::test]
async fn a_waiter_is_refused_at_once_when_its_tenure_ends() {
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&[r#"handoff_timeout = "1h""#])]).await;
    let first = scene.store.hold(LOCK, "shard-1").await;
    let held = scene.held(Ask::post("/held").under(&first)).await;
    let second = scene.store.hold(LOCK, "shard-2").await;
    let waiting: Vec<_> =
        (0..5).map(|_| scene.start(Ask::post("/second").under(&second))).collect();
    scene.until_metric(r#"fencepost_in_flight{route="k"}"#, 6.0).await;
    scene.until_known(LOCK, Some("shard-2")).await;
    let third = scene.store.hold(LOCK, "shard-3").await;
    let last = scene.start(Ask::post("/third").under(&third));
    for waited in waiting {
        assert_refused(&waited.await.unwrap(), "stale-tenure", LOCK, &third);
    }
    assert!(!held.has_ended() && !last.is_finished());
    held.ends().await;
    assert_eq!(last.await.unwrap().status, 200);
    assert_in_order(&scene.worker.seen(), "/held", "/third");
    scene.finish().await;
}

#[tokio::test]
async fn a_waiter_without_a_connection_holds_up_nobody_behind() {
    let [crowded, free] = [Worker::start().await, Worker::start().await];
    let to = |worker: &Worker| format!("upstream = {:?}", worker.endpoint().to_string());
    let routes = [
        Route::new("crowded", "/crowded/", r#"key = "/k""#).with(&to(&crowded)),
        Route::new("free", "/free/", r#"key = "/k""#).with(&to(&free)),
        beside().with(&to(&crowded)),
        guarded(&[]),
    ];
    let scene = Scene::with(EtcdVersion::V3_5, &routes, |config| {
        config.threads(1).limit("upstream_connections_max = 1").limit(r#"connect_timeout = "1m""#)
    })
    .await;
    let (latch, crowd) = (Latch::new(), Latch::new());
    scene.worker.on("/held", Behaviour::Hold(latch.clone(), Answer::ok("held")));
    crowded.on("/beside/held", Behaviour::Hold(crowd.clone(), Answer::ok("held")));
    let other = scene.store.hold("/beside", "another").await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    let held = scene.start_at_worker(Ask::post("/held").under(&old)).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.until_known(LOCK, Some("shard-2")).await;
    let until_waiting = async |route: usize| {
        until("it waits at the barrier", async || {
            scene.fence.admin_json("/routes").await["routes"][route]["waiting"] == 1
        })
        .await;
    };
    let first = scene.start(Ask::post("/crowded/first").under(&new));
    until_waiting(0).await;
    // It has given its connection back, and another takes it.
    let crowding = scene.start(Ask::post("/beside/held").under(&other));
    crowded.wait_for(1).await;
    let second = scene.start(Ask::post("/free/second").under(&new));
    until_waiting(1).await;
    latch.open();
    assert_eq!(held.await.unwrap().text(), "held");
    assert_eq!(second.await.unwrap().status, 200);
    assert!(!first.is_finished());
    crowd.open();
    assert_eq!((crowding.await.unwrap().status, first.await.unwrap().status), (200, 200));
}

const MOVES: usize = 60;
const SEED: u64 = 20_261_121;

/// What one client's requests came to.
#[derive(Debug, Default)]
struct Tally {
    answered: usize,
    left: usize,
    refused: BTreeMap<String, usize>,
}

/// A client of one master: writes as fast as it can under the last tenure that its master got,
/// until told to stop, and now and then leaves without its answer.
async fn write_without_pause(
    scene: &Scene,
    mut dice: Dice,
    mut tenure: watch::Receiver<Tenure>,
    stop: watch::Receiver<bool>,
) -> Tally {
    let mut tally = Tally::default();
    let mut line: Option<Line> = None;
    while !*stop.borrow() {
        let ask = Ask::post("/").under(&tenure.borrow_and_update());
        let mut current = match line.take() {
            Some(line) => line,
            None => scene.line().await,
        };
        if dice.roll(6) == 0 {
            current.begin(ask).await.unwrap();
            tally.left += 1;
            continue;
        }
        let answer = current.send(ask).await.unwrap();
        match reason(&answer) {
            None => {
                assert_eq!(answer.status, 200, "{}", answer.text());
                tally.answered += 1;
            }
            Some(reason) => *tally.refused.entry(reason.to_owned()).or_default() += 1,
        }
        line = Some(current);
    }
    tally
}

/// The lock changes hands in turn by a crash of its holder and by a write over it.
async fn move_lock(scene: &Scene, tenures: &[watch::Sender<Tenure>; 2]) {
    let store: &Store = &scene.store;
    let mut session = None;
    for round in 0..MOVES {
        let owner = format!("shard-{}", round % 2);
        let now = if round % 3 == 0 {
            store.hold(LOCK, &owner).await
        } else {
            match session.take() {
                Some(session) => store.crash(&session).await,
                None => drop(store.delete(LOCK).await),
            }
            let new = store.session(&owner).await;
            let held = store.acquire(Layout::Key, LOCK, &new).await;
            session = Some(new);
            held.tenure
        };
        if round % 3 == 0 {
            session = None; // The write took the key from its lease.
        }
        let revision = now.revision.to_string();
        tenures[round % 2].send_replace(now);
        let is_its = |seen: &&Seen| seen.header("fence-revision") == Some(&revision);
        let enough = |seen: &[Seen]| seen.iter().rev().take(50).filter(is_its).count() >= 5;
        scene
            .worker
            .wait_until(&format!("requests of {owner}, move {round}, seed {SEED}"), enough)
            .await;
    }
}

#[tokio::test]
async fn under_load_tenures_never_overlap_at_the_worker_nor_go_back() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &[guarded(&[])]).await;
        // Some take longer than others.
        scene.worker.when(|seen| {
            (seen.order % 4 == 0).then(|| {
                Behaviour::Answer(Answer::ok("slow").trickling(1, Duration::from_millis(1)))
            })
        });
        let nobody = scene.store.hold(LOCK, "nobody").await;
        let tenures = [0, 1].map(|_| watch::Sender::new(nobody.clone()));
        let (stop, stopped) = watch::channel(false);
        let clients = (0..8).map(|number| {
            let dice = Dice(SEED + number);
            write_without_pause(
                &scene,
                dice,
                tenures[number as usize % 2].subscribe(),
                stopped.clone(),
            )
        });
        let mover = async {
            move_lock(&scene, &tenures).await;
            stop.send_replace(true);
        };
        let (tallies, ()) = tokio::join!(join_all(clients), mover);
        scene.until_at_worker(LOCK, 0, 0).await;

        let mut tenure = 0;
        let mut tenures_seen = 0;
        // When the last request of all earlier tenures ended, and of this one.
        let mut earlier_ended: Option<Instant> = None;
        let mut ended: Option<Instant> = None;
        let seen = scene.worker.seen();
        for one in &seen {
            let revision: i64 = one.header("fence-revision").unwrap().parse().unwrap();
            assert!(revision >= tenure, "seed {SEED}: {revision} after {tenure}: {one:#?}");
            if revision > tenure {
                (tenure, earlier_ended) = (revision, ended);
                tenures_seen += 1;
            }
            assert!(
                earlier_ended <= Some(one.began),
                "seed {SEED}: an earlier tenure's ended after {one:#?}"
            );
            assert!(one.answered, "seed {SEED}: {one:#?}");
            ended = ended.max(one.ended);
        }
        assert!(tenures_seen >= MOVES, "{tenures_seen}");
        for tally in &tallies {
            println!("etcd {version}: {tally:?}");
            let reasons = tally.refused.keys().map(String::as_str);
            for reason in reasons {
                assert!(
                    ["stale-tenure", "replayed-tenure", "no-owner"].contains(&reason),
                    "seed {SEED}: {tally:?}"
                );
            }
            assert!(tally.answered > 0 && tally.left > 0, "seed {SEED}: {tally:?}");
        }
        scene.finish().await;
    }
}

/// It was counted as one that was admitted, and as one that was refused.
#[tokio::test]
async fn a_request_refused_at_its_retry_counts_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("upstream = \"h2c://{}\"", listener.local_addr().unwrap());
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&[&upstream])]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    let asked = scene.start(Ask::post("/").under(&old));
    let (stream, _) = listener.accept().await.unwrap();
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let (request, mut answer) = connection.accept().await.unwrap().unwrap();
    let driven = tokio::spawn(async move { while let Some(Ok(_)) = connection.accept().await {} });
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.until_known(LOCK, Some("shard-2")).await;
    answer.send_reset(h2::Reason::REFUSED_STREAM); // It was not looked at, and may be sent again.
    assert_refused(&asked.await.unwrap(), "stale-tenure", LOCK, &new);
    assert_eq!(scene.counted().await, 1);
    drop((request, answer));
    driven.abort();
    scene.finish().await;
}
