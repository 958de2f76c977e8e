//! What becomes of locks, their gates and their sources when another configuration is put in force.

use fencepost_tests::{
    Behaviour, BodyEnd, EtcdVersion, FreePort, Relay, Scratch, eventually, request, until,
};
use std::cell::{Cell, RefCell};

use crate::fencepost::{Config, Fencepost, Route};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Held, Scene};
use crate::store::Tenure;

const LOCK: &str = "/k";

fn guarded(lines: &[&str]) -> Route {
    lines.iter().fold(Route::k(), |route, line| route.with(line))
}

/// A request of a holder that has lost its lock, at the worker until the latch opens.
struct Predecessor {
    held: Held,
    successor: Tenure,
}

impl Predecessor {
    async fn at_worker(scene: &Scene) -> Predecessor {
        let old = scene.store.hold(LOCK, "shard-1").await;
        let held = scene.held(Ask::post("/held").under(&old)).await;
        let successor = scene.store.hold(LOCK, "shard-2").await;
        scene.until_known(LOCK, Some("shard-2")).await;
        Predecessor { held, successor }
    }

    /// The predecessor's request ends, and the successor's, begun before, only after it.
    async fn lets_in(
        self,
        scene: &Scene,
        waiting: Vec<tokio::task::JoinHandle<fencepost_tests::Response>>,
    ) {
        let begun = scene.worker.seen();
        assert!(!begun.iter().any(|seen| seen.path.starts_with("/next")), "{begun:#?}");
        self.held.ends().await;
        for waited in waiting {
            let answer = waited.await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let seen = scene.worker.seen();
        let held = seen.iter().find(|seen| seen.path == "/held").unwrap();
        for next in seen.iter().filter(|seen| seen.path.starts_with("/next")) {
            assert!(held.ended.is_some_and(|ended| ended <= next.began), "{seen:#?}");
        }
    }
}

async fn until_in_flight(scene: &Scene, requests: u32) {
    scene.until_metric("fencepost_in_flight{route=\"k\"}", f64::from(requests)).await;
}

#[tokio::test]
async fn a_gate_outlives_a_reload_while_a_request_is_under_way() {
    let other = Route::new("other", "/other/", r#"key = "/other""#);
    let changes: [fn(&Config, &Route) -> Vec<Config>; 3] = [
        |config, other| {
            vec![config.clone().routes(&[other.clone(), guarded(&["max_age = \"4s\""])])]
        },
        |config, other| vec![config.clone().routes(std::slice::from_ref(other)), config.clone()],
        |config, _| vec![config.clone().without_source(), config.clone()],
    ];
    for change in changes {
        let scene = Scene::open(EtcdVersion::V3_5, &[other.clone(), guarded(&[])]).await;
        let predecessor = Predecessor::at_worker(&scene).await;
        let before = scene.start(Ask::post("/next/before").under(&predecessor.successor));
        until_in_flight(&scene, 2).await;
        for config in change(&scene.config, &other) {
            scene.fence.reloads(&config).await;
        }
        let after = scene.start(Ask::post("/next/after").under(&predecessor.successor));
        until_in_flight(&scene, 3).await;
        assert_eq!(scene.at_worker(LOCK).await, (1, 0));
        predecessor.lets_in(&scene, vec![before, after]).await;
        until_in_flight(&scene, 0).await;
        scene.finish().await;
    }
}

/// Its file and the first line of that text which is such a one, as problems have them.
fn place(fence: &Fencepost, text: &str, is_it: impl Fn(&str) -> bool) -> String {
    let line = text.lines().position(is_it).expect("there is such a line") + 1;
    format!("{}:{line}", fence.file().display())
}

#[tokio::test]
async fn a_lock_keeps_its_source_and_with_it_its_gate() {
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&[])]).await;
    let predecessor = Predecessor::at_worker(&scene).await;
    let renamed = scene
        .config
        .toml()
        .replace("[source.main]", "[source.renamed]")
        .replace("\"main\"", "\"renamed\"");
    let under_other_name = renamed.replace("name = \"k\"", "name = \"l\"");
    let templated = renamed
        .replace("key = \"/k\"", "key = \"/{k}\"")
        .replace("path = \"/\"", "path = \"/{k}/\"");
    let without = scene
        .config
        .toml()
        .replace("lock = {", "# lock = {")
        .replace("path", "mode = \"off\"\npath");
    let refuses = async |file: &str| {
        std::fs::write(scene.fence.file(), file).unwrap();
        let answer = scene.fence.admin("POST", "/reload").await;
        let text = answer.text();
        assert_eq!(answer.status, 422, "{text}");
        let said = "belongs to source \"main\", and with source \"renamed\" it would have another";
        assert!(text.contains(said) && text.contains("needs a restart"), "{text}");
        let place = place(&scene.fence, file, |line| line.starts_with("lock = "));
        assert!(text.contains(&format!("{place}: route.")), "{place} is not in {text}");
    };
    for file in [&renamed, &under_other_name, &templated] {
        refuses(file).await;
    }
    // Nor when no route names it any more, and only the request that is under way has it.
    std::fs::write(scene.fence.file(), without).unwrap();
    let answer = scene.fence.admin("POST", "/reload").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    refuses(&renamed).await;
    scene.fence.reloads(&scene.config).await;
    let next = scene.start(Ask::post("/next/again").under(&predecessor.successor));
    until_in_flight(&scene, 2).await;
    predecessor.lets_in(&scene, vec![next]).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_source_is_reached_at_other_addresses_and_keeps_its_gates() {
    let etcd = fencepost_tests::Etcd::start(EtcdVersion::V3_5).await;
    let relay = Relay::before(&etcd).await;
    let through = format!("http://{}", relay.address());
    let scene = Scene::seeing(etcd, &[through], &[guarded(&["max_age = \"500ms\""])]).await;
    let predecessor = Predecessor::at_worker(&scene).await;
    scene.fence.reloads(&scene.config.clone().endpoints(&[scene.etcd.endpoint()])).await;
    relay.cut().await;
    let next = scene.start(Ask::post("/next/elsewhere").under(&predecessor.successor));
    until_in_flight(&scene, 2).await;
    let successor = predecessor.successor.clone();
    predecessor.lets_in(&scene, vec![next]).await;
    // Nothing comes through the old address any more: only the new one can tell this.
    let last = scene.store.hold(LOCK, "shard-3").await;
    scene.until_known(LOCK, Some("shard-3")).await;
    scene.refuses("/", &successor, "stale-tenure", LOCK, &last).await;
    scene.admits("/", &last).await;
    let members = scene.fence.admin_json("/locks").await["sources"][0]["members"].clone();
    eventually("the members are asked again", async || {
        let members = scene.fence.admin_json("/locks").await["sources"][0]["members"].clone();
        (members[0]["endpoint"] == scene.etcd.endpoint()).then_some(())
    })
    .await;
    assert_eq!(members.as_array().unwrap().len(), 1);
    scene.finish().await;
}

#[tokio::test]
async fn a_record_is_not_read_in_another_way_while_its_gate_goes_on() {
    let templated = |layout: &str| {
        let lock = format!("key = \"/shards/{{shard}}\", layout = {layout:?}");
        Route::new("shards", "/shards/{shard}/", &lock)
    };
    let fixed = |lock: &str| Route::new("k", "/", &format!("key = \"/k\", {lock}"));
    let scene =
        Scene::open(EtcdVersion::V3_5, &[templated("key"), fixed("layout = \"key\"")]).await;
    let shard = scene.store.hold("/shards/7", "shard-7").await;
    scene.admits("/shards/7/x", &shard).await;
    for (shards, k, key) in [
        (templated("mutex"), fixed("layout = \"key\""), "/shards/7"),
        (templated("key"), fixed("layout = \"election\""), "/k"),
        (templated("key"), fixed("owner_field = \"owner\""), "/k"),
        (templated("key"), fixed("free_values = [\"\"]"), "/k"),
    ] {
        let answer = scene.fence.reload(&scene.config.clone().routes(&[shards, k])).await;
        let text = answer.text();
        assert_eq!(answer.status, 422, "{text}");
        assert!(
            text.contains(&format!(".lock: the record of {key} "))
                && text.contains("needs a restart"),
            "{text}"
        );
    }
    scene.admits("/shards/7/x", &shard).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_store_that_never_answered_does_not_stop_a_reload() {
    let mut etcd = fencepost_tests::Etcd::start(EtcdVersion::V3_5).await;
    let tenure = crate::store::Store::of(&etcd).await.hold(LOCK, "shard-1").await;
    let (port, worker) = (FreePort::reserve(), fencepost_tests::Worker::start().await);
    let nowhere = format!("http://{}", port.address());
    let config = Config::new(&[nowhere], &worker.endpoint().to_string(), &[guarded(&[])]);
    let fence = Fencepost::launch(&config).await;
    fence
        .reloads(&config.clone().routes(&[guarded(&["on_unavailable = \"dangerous_admit\""])]))
        .await;
    let token =
        [("Fence-Owner", tenure.owner.as_str()), ("Fence-Revision", &tenure.revision.to_string())];
    let answer = request(fence.listener.clone(), "POST", "/", &token, b"").await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    fence.reloads(&config.endpoints(&[etcd.endpoint()])).await;
    fence.wait_until_ready().await;
    etcd.kill();
}

#[tokio::test]
async fn a_longer_orphan_timeout_is_remembered_before_its_use() {
    let (state_dir, short) =
        (Scratch::new(), ["orphan_timeout = \"100ms\"", "handoff_timeout = \"200ms\""]);
    let remember = |config: Config| config.remembering_in(&state_dir.path().join("state"));
    let mut scene = Scene::with(EtcdVersion::V3_5, &[guarded(&short)], remember).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    scene
        .fence
        .reloads(&scene.config.clone().routes(&[guarded(&["orphan_timeout = \"1h\""])]))
        .await;
    scene.admits("/", &old).await;
    scene.fence.kill();
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.start_again().await;
    scene.refuses("/", &new, "handoff-timeout", LOCK, &new).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_watched_request_counts_as_an_earlier_tenures() {
    for template in [false, true] {
        let route = |mode: &str| {
            let lock = if template { "key = \"/{name}\"" } else { "key = \"/k\"" };
            let path = if template { "/{name}/" } else { "/k/" };
            // Nothing but the last pass's end opens the barrier within the patience of a test.
            let times = "max_age = \"1h\"\nhandoff_timeout = \"1h\"\norphan_timeout = \"1h\"";
            Route::new("k", path, lock).with(&format!("mode = {mode:?}\n{times}"))
        };
        let scene = Scene::open(EtcdVersion::V3_5, &[route("shadow")]).await;
        let (zombie, holder) =
            (scene.store.hold(LOCK, "shard-1").await, scene.store.hold(LOCK, "shard-2").await);
        // The first of a template's lock is let past before the lock is at hand.
        assert_eq!(scene.send(Ask::post("/k/first").under(&holder)).await.status, 200);
        scene.until_known(LOCK, Some("shard-2")).await;
        let held = scene.held(Ask::post("/k/held").under(&zombie)).await;
        scene.fence.reloads(&scene.config.clone().routes(&[route("enforce")])).await;
        let next = scene.start(Ask::post("/k/next").under(&holder));
        until_in_flight(&scene, 2).await;
        scene.refuses("/k/late", &zombie, "stale-tenure", LOCK, &holder).await;
        assert!(!scene.worker.seen().iter().any(|seen| seen.path == "/k/next"));
        held.ends().await;
        assert_eq!(next.await.unwrap().status, 200);
        let seen = scene.worker.seen();
        let of = |path: &str| seen.iter().find(|seen| seen.path == path).unwrap();
        assert!(of("/k/held").ended.is_some_and(|ended| ended <= of("/k/next").began), "{seen:#?}");
        scene.finish().await;
    }
}

#[tokio::test]
async fn an_unsent_request_is_judged_by_the_route_that_enforces() {
    let route = |mode: &str| {
        Route::new("k", "/{name}/", "key = \"/{name}\"").with(&format!("mode = {mode:?}"))
    };
    let scene = Scene::open(EtcdVersion::V3_5, &[route("shadow")]).await;
    let (zombie, holder) =
        (scene.store.hold(LOCK, "shard-1").await, scene.store.hold(LOCK, "shard-2").await);
    // Each has a body that is not whole yet: nothing of it can have gone out.
    let mut clients = Vec::new();
    for token in [Some(&zombie), Some(&holder), None] {
        let token = token
            .map(|of| format!("Fence-Owner: {}\r\nFence-Revision: {}\r\n", of.owner, of.revision));
        let token = token.unwrap_or_default();
        let head =
            format!("POST /k/late HTTP/1.1\r\nHost: a\r\n{token}Content-Length: 5\r\n\r\nwr");
        let mut client =
            fencepost_tests::Connection::open(scene.fence.listener.clone()).await.unwrap();
        client.send(head).await.unwrap();
        clients.push(client);
    }
    until_in_flight(&scene, 3).await;
    scene.fence.reloads(&scene.config.clone().routes(&[route("enforce")])).await;
    scene.admits("/k/next", &holder).await;
    let mut answers = Vec::new();
    for client in &mut clients {
        client.send("ite").await.unwrap();
        answers.push(client.final_response().await.unwrap());
    }
    assert_refused(&answers[0], "stale-tenure", LOCK, &holder);
    assert_eq!(answers[1].status, 200, "{:?}", answers[1]);
    assert_refused(&answers[2], "token-missing", LOCK, None);
    let late = scene.worker.seen().iter().filter(|seen| seen.path == "/k/late").count();
    assert_eq!(late, 1, "the holder's alone");
    scene.finish().await;
}

#[tokio::test]
async fn a_source_sent_to_another_cluster_believes_nothing_there() {
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&["max_age = \"500ms\""])]).await;
    let tenure = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &tenure).await;
    let elsewhere = fencepost_tests::Etcd::start(EtcdVersion::V3_5).await;
    let store = crate::store::Store::of(&elsewhere).await;
    for _ in 0..tenure.revision + 5 {
        store.put("/other", "x").await;
    }
    let impostor = store.hold(LOCK, "shard-9").await;
    // As long as the own cluster answers, it is not left for one that is not it.
    let there = scene.config.clone().endpoints(&[elsewhere.endpoint()]);
    let is_over = Cell::new(false);
    let trial = async {
        let answer = scene.fence.reload(&there).await;
        is_over.set(true);
        answer
    };
    // Longer than news may be old: requests notice nothing of it.
    let meanwhile = async {
        while !is_over.get() {
            scene.admits("/", &tenure).await;
        }
    };
    let (answer, ()) = tokio::join!(trial, meanwhile);
    let said = answer.text();
    assert!(
        answer.status == 422 && said.contains("source.main: reached as this configuration says, "),
        "{said}"
    );
    scene.admits("/", &tenure).await;
    scene.etcd.pause().await;
    eventually("what was known has aged", async || {
        let answer = scene.send(Ask::post("/").under(&tenure)).await;
        (answer.status == 503).then_some(())
    })
    .await;
    scene.fence.reloads(&there).await;
    scene.refuses("/", &tenure, "unverifiable", LOCK, &tenure).await;
    scene.refuses("/", &impostor, "unverifiable", LOCK, &impostor).await;
    scene.etcd.resume();
    scene.fence.reloads(&scene.config).await;
    scene.admits("/", &tenure).await;
    scene.finish().await;
}

#[tokio::test]
async fn watched_uploads_and_tunnels_are_cut_when_a_route_enforces() {
    let lines =
        |mode| [mode, "max_age = \"1h\"", "handoff_timeout = \"1h\"", "orphan_timeout = \"300ms\""];
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&lines("mode = \"shadow\""))]).await;
    let (zombie, holder) =
        (scene.store.hold(LOCK, "shard-1").await, scene.store.hold(LOCK, "shard-2").await);
    scene.until_known(LOCK, Some("shard-2")).await;
    scene.worker.on("/tunnel", Behaviour::UpgradeAndEcho);
    let token = format!("Fence-Owner: {}\r\nFence-Revision: {}\r\n", zombie.owner, zombie.revision);
    let open =
        async || fencepost_tests::Connection::open(scene.fence.listener.clone()).await.unwrap();
    let (mut upload, mut tunnel) = (open().await, open().await);
    let head = format!(
        "POST /upload HTTP/1.1\r\nHost: a\r\n{token}Transfer-Encoding: chunked\r\n\r\n3\r\nhal\r\n"
    );
    upload.send(head).await.unwrap();
    let head = format!(
        "GET /tunnel HTTP/1.1\r\nHost: a\r\n{token}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    tunnel.send(head).await.unwrap();
    assert_eq!(tunnel.head().await.unwrap().status, 101);
    let of = |path: &str| scene.worker.seen().into_iter().find(|seen| seen.path == path);
    eventually("a part of the upload is there", async || {
        of("/upload").filter(|seen| seen.body_bytes == 3)
    })
    .await;

    let turned = std::time::Instant::now();
    scene
        .fence
        .reloads(&scene.config.clone().routes(&[guarded(&lines("mode = \"enforce\""))]))
        .await;
    let _ = upload.send("4\r\nfall\r\n0\r\n\r\n").await; // Cut or not yet: it goes nowhere.
    scene.admits("/next", &holder).await;
    assert!(turned.elapsed() >= std::time::Duration::from_millis(300), "{:?}", turned.elapsed());
    let upload = eventually("the upload is over", async || {
        of("/upload").filter(|seen| seen.body_end.is_some())
    })
    .await;
    assert_eq!((upload.body_bytes, upload.body_end), (3, Some(BodyEnd::Cut)));
    assert_eq!(tunnel.rest().await.unwrap_or_default(), b"", "the tunnel is closed");
    let cut = "fencepost_cut_requests_total{route=\"k\"}";
    scene.until_metric(cut, 2.0).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_lock_is_read_as_often_as_its_route_now_needs_it() {
    for key in ["/k", "/{name}"] {
        let route = |max_age: &str| {
            Route::new("k", "/{name}/", &format!("key = {key:?}"))
                .with(&format!("max_age = {max_age:?}"))
        };
        let scene = Scene::open(EtcdVersion::V3_5, &[route("1h")]).await;
        let tenure = scene.store.hold(LOCK, "shard-1").await;
        scene.admits("/k/x", &tenure).await;
        let age =
            async || scene.fence.metric("fencepost_source_age_seconds{source=\"main\"}").await;
        until("the news grow old", async || age().await > 0.5).await;
        scene.fence.reloads(&scene.config.clone().routes(&[route("500ms")])).await;
        until("the news are young", async || age().await < 0.3).await;
        scene.finish().await;
    }
}

/// What `/metrics` has of a route.
async fn series_of(scene: &Scene, route: &str) -> Vec<String> {
    let text = scene.fence.admin("GET", "/metrics").await.text();
    text.lines()
        .filter(|line| line.contains(&format!("route=\"{route}\"")))
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn a_source_that_does_not_answer_is_not_added() {
    let scene = Scene::open(EtcdVersion::V3_5, &[guarded(&[])]).await;
    let tenure = scene.store.hold(LOCK, "shard-1").await;
    let relay = Relay::before(&scene.etcd).await;
    let more = format!(
        "[source.more]\nkind = \"etcd\"\nendpoints = [\"http://{}\"]\n[[route]]\nname = \"more\"\npath = \"/more/{{n}}/\"\n\
         upstream = {:?}\nlock = {{ source = \"more\", key = \"/more/{{n}}\" }}\n",
        relay.address(),
        scene.worker.endpoint().to_string(),
    );
    let with_more =
        scene.config.clone().more(&more).routes(&[Route::new("k", "/k/", r#"key = "/k""#)]);
    relay.freeze().await;
    let hasty = with_more.clone().limit("confirm_timeout = \"1s\"");
    let rejected = scene.fence.reload(&hasty).await;
    assert_eq!(rejected.status, 422, "{}", rejected.text());
    let place = place(&scene.fence, &hasty.toml(), |line| line == "[source.more]");
    assert!(rejected.text().contains(&format!("{place}: source.more: ")), "{}", rejected.text());
    assert_eq!(scene.fence.admin("GET", "/readyz").await.status, 200);
    scene.admits("/k/x", &tenure).await;
    assert_eq!(
        series_of(&scene, "more").await,
        Vec::<String>::new(),
        "of what was rejected nothing is shown"
    );

    relay.restore().await;
    scene.fence.reloads(&with_more.limit("confirm_timeout = \"10s\"")).await;
    assert_eq!(scene.fence.admin("GET", "/readyz").await.status, 200);
    let series = series_of(&scene, "more").await;
    let admits =
        r#"fencepost_requests_total{mode="enforce",reason="none",route="more",verdict="admit"} 0"#;
    assert!(series.iter().any(|line| line == admits), "{admits} is not among {series:#?}");
    let held = scene.store.hold("/more/7", "shard-7").await;
    scene.admits("/more/7/x", &held).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_lock_asked_for_during_a_reload_is_checked_as_well() {
    let templated =
        |more: &str| Route::new("k", "/{name}/", &format!(r#"key = "/{{name}}"{more}"#));
    let scene = Scene::with(EtcdVersion::V3_5, &[templated("")], |config| {
        config.limit("confirm_timeout = \"30s\"")
    })
    .await;
    let tenure = scene.store.hold("/7", "shard-1").await;
    let relay = Relay::before(&scene.etcd).await;
    relay.freeze().await;
    let more = format!(
        "[source.more]\nkind = \"etcd\"\nendpoints = [\"http://{}\"]\n[[route]]\nname = \"more\"\npath = \"/more/{{n}}/\"\n\
         upstream = {:?}\nlock = {{ source = \"more\", key = \"/more/{{n}}\" }}\n",
        relay.address(),
        scene.worker.endpoint().to_string(),
    );
    let other =
        scene.config.clone().routes(&[templated(", free_values = [\"nobody\"]")]).more(&more);
    let held = RefCell::new(None);
    let meanwhile = async {
        until("the new source asks", async || relay.accepted() > 0).await;
        held.replace(Some(scene.held(Ask::post("/7/held").under(&tenure)).await));
        relay.restore().await;
    };
    let (reloaded, ()) = tokio::join!(scene.fence.reload(&other), meanwhile);
    let said = reloaded.text();
    assert!(
        reloaded.status == 422 && said.contains("the record of /7 is read in another way"),
        "{said}"
    );
    held.take().unwrap().ends().await;
    scene.finish().await;
}
