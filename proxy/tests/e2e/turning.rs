//! Routes that only watched and judge after a reload, and what they had let past.

use fencepost_tests::{Behaviour, BodyEnd, Connection, EtcdVersion, Response, eventually};
use tokio::task::JoinHandle;

use crate::fencepost::Route;
use crate::refusal::assert_refused;
use crate::scene::{Ask, Held, Scene};

const LOCK: &str = "/k";

/// Nothing but the last pass's end opens a barrier within the patience of a test.
fn patient(route: Route) -> Route {
    ["max_age", "handoff_timeout", "orphan_timeout"]
        .iter()
        .fold(route, |route, time| route.with(&format!("{time} = \"1h\"")))
}

fn watching(route: Route) -> Route {
    route.with("mode = \"shadow\"")
}

fn named_by_the_caller() -> Route {
    Route::new("k", "/", r#"key = "/{name}", from_header = true"#)
}

async fn begin(scene: &Scene, head: &str, body: &str) -> Connection {
    let mut client = Connection::open(scene.fence.listener.clone()).await.unwrap();
    client.send(format!("POST {head}\r\n\r\n{body}")).await.unwrap();
    client
}

/// Nobody judges what it let past: it goes on, and nobody waits for it.
#[tokio::test]
async fn what_was_let_past_goes_on_where_no_route_judges_its_like() {
    let lock = r#"key = "/k""#;
    let judge =
        |name: &str, path: &str| Route::new(name, path, lock).with("handoff_timeout = \"200ms\"");
    let rest = |name: &str| watching(Route::new(name, "/b/", lock));
    for after in [
        vec![judge("judge", "/a/"), Route::new("rest", "/b/", lock).with("mode = \"off\"")],
        vec![judge("judge", "/a/")],
        vec![judge("judge", "/a/"), rest("other")],
        vec![judge("judge", "/a/more/"), judge("another", "/a/"), rest("rest")],
        vec![judge("judge", "/a/"), judge("another", "/c/")],
        vec![judge("judge", "/a/"), rest("rest"), judge("another", "/")],
        vec![judge("judge", "/a/"), judge("another", "/b/judged/"), rest("rest")],
    ] {
        let before = [judge("judge", "/a/"), judge("judged", "/b/judged/"), rest("rest")];
        let scene = Scene::open(EtcdVersion::V3_5, &before).await;
        let holder = scene.store.hold(LOCK, "shard-1").await;
        scene.until_known(LOCK, Some("shard-1")).await;
        let mut upload = begin(
            &scene,
            "/b/up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked",
            "3\r\nhal\r\n",
        )
        .await;
        let of = |path: &str| scene.worker.seen().into_iter().find(|seen| seen.path == path);
        eventually("a part of the upload is there", async || {
            of("/b/up").filter(|seen| seen.body_bytes == 3)
        })
        .await;
        let mut unsent =
            begin(&scene, "/b/unsent HTTP/1.1\r\nHost: a\r\nContent-Length: 5", "wr").await;
        scene.until_metric("fencepost_in_flight{route=\"rest\"}", 2.0).await;
        scene.fence.reloads(&scene.config.clone().routes(&after)).await;
        scene.admits("/a/next", &holder).await;
        upload.send("4\r\nfall\r\n0\r\n\r\n").await.unwrap();
        assert_eq!(upload.final_response().await.unwrap().status, 200);
        unsent.send("ite").await.unwrap();
        assert_eq!(unsent.final_response().await.unwrap().status, 200);
        scene.finish().await;
    }
}

/// A request that was let past ends, and the holder's, begun before, goes out after it.
async fn lets_in(scene: &Scene, held: Held, path: &str, next: JoinHandle<Response>) {
    held.ends().await;
    assert_eq!(next.await.unwrap().status, 200);
    let seen = scene.worker.seen();
    let of = |path: &str| seen.iter().find(|seen| seen.path == path).unwrap();
    assert!(of("/held").ended.is_some_and(|ended| ended <= of(path).began), "{seen:#?}");
}

#[tokio::test]
async fn a_pass_without_a_lock_counts_when_its_route_enforces() {
    // What is cut need not be waited for.
    let route = || patient(named_by_the_caller()).with("partial_requests = \"harmless\"");
    let scene = Scene::open(EtcdVersion::V3_5, &[watching(route())]).await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    let held = scene.held(Ask::post("/held")).await;
    let mut upload =
        begin(&scene, "/upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", "3\r\nhal\r\n")
            .await;
    let of = |path: &str| scene.worker.seen().into_iter().find(|seen| seen.path == path);
    eventually("a part of the upload is there", async || {
        of("/upload").filter(|seen| seen.body_bytes == 3)
    })
    .await;
    // Its body is not whole: nothing of it can have gone out.
    let mut unsent = begin(&scene, "/unsent HTTP/1.1\r\nHost: a\r\nContent-Length: 5", "wr").await;
    scene.until_metric("fencepost_in_flight{route=\"k\"}", 3.0).await;

    scene.fence.reloads(&scene.config.clone().routes(&[route()])).await;
    let next = scene.start(Ask::post("/held/next").header("Fence-Lock", LOCK).under(&holder));
    unsent.send("ite").await.unwrap();
    assert_refused(&unsent.final_response().await.unwrap(), "token-missing", None, None);
    let _ = upload.send("4\r\nfall\r\n0\r\n\r\n").await; // Cut or not yet: it goes nowhere.
    let upload = eventually("the upload is over", async || {
        of("/upload").filter(|seen| seen.body_end.is_some())
    })
    .await;
    assert_eq!((upload.body_bytes, upload.body_end), (3, Some(BodyEnd::Cut)));
    scene.until_metric("fencepost_in_flight{route=\"k\"}", 2.0).await;
    assert!(of("/held/next").is_none(), "one of those that came before is at the worker");
    lets_in(&scene, held, "/held/next", next).await;
    assert!(of("/unsent").is_none());
    assert_eq!(scene.counted().await, 4, "what was judged after all was counted when it came");
    scene.finish().await;
}

/// However it comes about that a route judges what another one, or the same, let past before.
#[tokio::test]
async fn a_pass_is_waited_for_whichever_route_enforces_now() {
    let lock = r#"key = "/k""#;
    let judge = |path: &str| patient(Route::new("judge", path, lock));
    let watch = |name: &str, path: &str| watching(patient(Route::new(name, path, lock)));
    let off = |path: &str| Route::new("off", path, lock).with("mode = \"off\"");
    let cases = [
        (
            "folded into one that judges",
            vec![judge("/w/"), watch("rest", "/")],
            vec![vec![judge("/")]],
        ),
        (
            "behind one that takes what it took",
            vec![judge("/w/"), watch("rest", "/")],
            vec![vec![judge("/"), watch("rest", "/")]],
        ),
        (
            "behind one that was behind it",
            vec![watch("rest", "/"), judge("/held")],
            vec![vec![judge("/held"), watch("rest", "/")]],
        ),
        (
            "taking less than it took",
            vec![watch("rest", "/"), judge("/")],
            vec![vec![watch("rest", "/r/"), judge("/")]],
        ),
        ("off in between", vec![watch("rest", "/")], vec![vec![off("/")], vec![judge("/")]]),
        (
            "gone in between, beside another that stays",
            vec![watch("held", "/held"), watch("rest", "/")],
            vec![vec![watch("rest", "/r/")], vec![judge("/held"), watch("rest", "/r/")]],
        ),
        (
            "taking less in between",
            vec![watch("rest", "/")],
            vec![vec![watch("rest", "/r/")], vec![watch("rest", "/r/"), judge("/")]],
        ),
        (
            "behind one that is off in between",
            vec![watch("rest", "/")],
            vec![vec![off("/held"), watch("rest", "/")], vec![judge("/held"), watch("rest", "/")]],
        ),
    ];
    for (case, before, reloads) in cases {
        println!("{case}");
        let scene = Scene::open(EtcdVersion::V3_5, &before).await;
        let holder = scene.store.hold(LOCK, "shard-1").await;
        scene.until_known(LOCK, Some("shard-1")).await;
        let held = scene.held(Ask::post("/held")).await;
        for routes in reloads {
            scene.fence.reloads(&scene.config.clone().routes(&routes)).await;
        }
        let next = scene.start(Ask::post("/held/next").under(&holder));
        scene.until_metric("fencepost_in_flight{route=\"judge\"}", 1.0).await;
        lets_in(&scene, held, "/held/next", next).await;
        scene.finish().await;
    }
}

/// A superseded write went out behind the holder's.
#[tokio::test]
async fn a_pass_is_waited_for_though_its_route_has_another_path() {
    let route = |path: &str| patient(Route::new("k", path, r#"key = "/k""#));
    for other in [route("/new/"), route("/new/").with("host = \"localhost\"")] {
        let scene = Scene::open(EtcdVersion::V3_5, &[watching(route("/held"))]).await;
        let stale = scene.store.hold(LOCK, "shard-1").await;
        let holder = scene.store.hold(LOCK, "shard-2").await;
        scene.until_known(LOCK, Some("shard-2")).await;
        let held = scene.held(Ask::post("/held")).await;
        let token = format!("Fence-Owner: {}\r\nFence-Revision: {}", stale.owner, stale.revision);
        let head = format!("/held/unsent HTTP/1.1\r\nHost: a\r\n{token}\r\nContent-Length: 5");
        let mut unsent = begin(&scene, &head, "wr").await;
        scene.until_metric("fencepost_in_flight{route=\"k\"}", 2.0).await;
        scene.fence.reloads(&scene.config.clone().routes(&[other])).await;
        let next = scene.start(Ask::post("/new/next").under(&holder));
        scene.until_metric("fencepost_in_flight{route=\"k\"}", 3.0).await;
        unsent.send("ite").await.unwrap();
        assert_eq!(unsent.final_response().await.unwrap().status, 412);
        lets_in(&scene, held, "/new/next", next).await;
        assert!(!scene.worker.seen().iter().any(|seen| seen.path == "/held/unsent"));
        scene.finish().await;
    }
}

#[tokio::test]
async fn an_exempt_pass_goes_on_and_is_waited_for() {
    let route = || {
        let times = "orphan_timeout = \"1h\"\nhandoff_timeout = \"200ms\"";
        Route::new("k", "/", r#"key = "/k""#).with(times).with("exempt_methods = [\"GET\"]")
    };
    let scene = Scene::open(EtcdVersion::V3_5, &[watching(route())]).await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    scene.until_known(LOCK, Some("shard-1")).await;
    let held = scene.held(Ask::post("/held").method("GET")).await;
    scene.fence.reloads(&scene.config.clone().routes(&[route()])).await;
    assert_refused(
        &scene.send(Ask::post("/next").under(&holder)).await,
        "handoff-timeout",
        LOCK,
        &holder,
    );
    held.ends().await;
    scene.until_metric("fencepost_in_flight{route=\"k\"}", 0.0).await;
    scene.admits("/next", &holder).await;
    scene.finish().await;
}

/// A route's turn has its own wait. The turn of another route, long over, does not shorten it.
#[tokio::test]
async fn a_pass_is_waited_for_though_another_route_turned_before() {
    let lock = r#"key = "/k""#;
    let short =
        |name: &str, path: &str| Route::new(name, path, lock).with("orphan_timeout = \"100ms\"");
    let judge = patient(Route::new("judge", "/held", lock));
    let off = Route::new("off", "/", lock).with("mode = \"off\"");
    let before = [watching(short("another", "/a/")), watching(short("held", "/held"))];
    let scene = Scene::open(EtcdVersion::V3_5, &before).await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    scene.until_known(LOCK, Some("shard-1")).await;
    let held = scene.held(Ask::post("/held")).await;
    scene
        .fence
        .reloads(&scene.config.clone().routes(&[short("another", "/a/"), off.clone()]))
        .await;
    scene.admits("/a/", &holder).await; // It may be another's: waited for, for as long as that route says.
    scene.fence.reloads(&scene.config.clone().routes(&[judge, off])).await;
    let next = scene.start(Ask::post("/held/next").under(&holder));
    scene.until_metric("fencepost_in_flight{route=\"judge\"}", 1.0).await;
    lets_in(&scene, held, "/held/next", next).await;
    scene.finish().await;
}

/// No other source can guard its locks while it may run, and an operator, who speaks of one lock,
/// does not end it.
#[tokio::test]
async fn a_running_pass_is_not_forgotten_with_its_source() {
    let named =
        || named_by_the_caller().with("handoff_timeout = \"200ms\"\norphan_timeout = \"1h\"");
    for ask in [Ask::post("/lost"), Ask::post("/lost").header("Fence-Lock", LOCK)] {
        let scene = Scene::open(EtcdVersion::V3_5, &[watching(named())]).await;
        let holder = scene.store.hold(LOCK, "shard-1").await;
        scene.worker.on("/lost", Behaviour::Reset);
        assert_eq!(scene.send(ask).await.status, 502);
        let enforcing = scene.config.clone().routes(&[named()]).toml();
        let (without, renamed) = (without_source(&enforcing), with_renamed_source(&enforcing));
        for (file, status) in [(&without, 200), (&renamed, 422), (&enforcing, 200)] {
            std::fs::write(scene.fence.file(), file).unwrap();
            let answer = scene.fence.admin("POST", "/reload").await;
            assert_eq!(answer.status, status, "{}", answer.text());
        }
        let next = || scene.send(Ask::post("/next").header("Fence-Lock", LOCK).under(&holder));
        assert_refused(&next().await, "handoff-timeout", LOCK, &holder);
        let cleared = scene.fence.admin("POST", "/locks//k/clear-orphans").await;
        assert_eq!(cleared.text(), "0 orphans of lock \"/k\" no longer count\n");
        let after = next().await;
        assert_refused(&after, "handoff-timeout", LOCK, &holder);
        let wait: u32 = after.header("retry-after").unwrap().parse().unwrap();
        assert!((3_000..=3_600).contains(&wait), "{wait}");
        scene.finish().await;
    }
}

/// The file without its source, its route off.
fn without_source(file: &str) -> String {
    let (before, after) = file.split_once("[source.main]").unwrap();
    let route = after.split_once("[[route]]").unwrap().1.replace("lock = {", "# lock = {");
    format!("{before}[[route]]\nmode = \"off\"{route}")
}

fn with_renamed_source(file: &str) -> String {
    file.replace("[source.main]", "[source.renamed]").replace("\"main\"", "\"renamed\"")
}
