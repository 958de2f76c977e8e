//! Several fenceposts before one worker share a gate per lock.

use std::time::{Duration, Instant};

use fencepost_tests::{
    BodyEnd, Connection, EtcdVersion, PATIENCE, Response, Seen, eventually, until,
};
use futures_util::future::join_all;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::fencepost::{BINARY, Config, Fencepost, Route};
use crate::frames::{Client, GOAWAY, NO_ERROR, ask, code};
use crate::refusal::{assert_failed, assert_refused, reason};
use crate::scene::{Ask, Scene, send};
use crate::store::{Layout, Tenure};

const LOCK: &str = "/k";

/// `member_ttl` is the least there is; what a lost request counts for is shorter.
const GROUP: &str = "[group]\nname = \"g\"\nmember_ttl = \"3s\"";
const MEMBER_TTL: Duration = Duration::from_secs(3);
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(2);

fn k() -> Route {
    k_with("2s")
}

fn k_with(orphan_timeout: &str) -> Route {
    let orphan_timeout = format!("orphan_timeout = {orphan_timeout:?}");
    Route::k().with(&orphan_timeout).with("handoff_timeout = \"1m\"")
}

fn in_group(config: Config) -> Config {
    config.section(GROUP).limit("drain_delay = \"0s\"")
}

/// Two members; what one scene has, and another before the same worker.
struct Pair {
    scene: Scene,
    other: Fencepost,
}

impl Pair {
    async fn open(version: EtcdVersion, routes: &[Route]) -> Pair {
        let scene = Scene::with(version, routes, in_group).await;
        let other = Fencepost::serve(&scene.config).await;
        let pair = Pair { scene, other };
        pair.until_two().await;
        pair
    }

    async fn until_two(&self) {
        for member in [&self.scene.fence, &self.other] {
            member.until_metric("fencepost_group_members{state=\"live\"}", 2.0).await;
        }
    }

    /// Sends a request to the other member.
    fn start_at_other(&self, ask: Ask) -> JoinHandle<Response> {
        let (listener, ledger) = (self.other.listener.clone(), self.scene.ledger.clone());
        tokio::spawn(async move { send(&listener, &ledger, ask).await })
    }

    async fn send_to_other(&self, ask: Ask) -> Response {
        send(&self.other.listener, &self.scene.ledger, ask).await
    }

    async fn until_other_waits(&self) {
        self.other.until_metric("fencepost_group_asks_open", 1.0).await;
    }

    async fn finish(self) {
        assert!(!self.other.log().contains("panicked"), "{}", self.other.log());
        self.scene.finish().await;
    }
}

fn began(pair: &Pair, path: &str) -> Instant {
    let seen = pair.scene.worker.seen();
    seen.iter().find(|one| one.path == path).unwrap_or_else(|| panic!("no {path}")).began
}

#[tokio::test]
async fn a_new_holder_waits_for_a_request_that_runs_through_another_member() {
    for version in EtcdVersion::ALL {
        let routes = Layout::ALL.map(|layout| {
            let name = layout.name();
            let lock = format!("key = \"/locks/{name}\", layout = {name:?}");
            Route::new(name, &format!("/{name}/"), &lock)
        });
        let pair = Pair::open(version, &routes).await;
        for layout in Layout::ALL {
            let (name, lock) = (layout.name(), format!("/locks/{}", layout.name()));
            let session = pair.scene.store.session("shard-1").await;
            let old = pair.scene.store.acquire(layout, &lock, &session).await.tenure;
            let held = pair.scene.held(Ask::post(&format!("/{name}/held")).under(&old)).await;
            pair.scene.store.crash(&session).await;
            let session = pair.scene.store.session("shard-2").await;
            let new = pair.scene.store.acquire(layout, &lock, &session).await.tenure;

            let next = format!("/{name}/next");
            let waiting = pair.start_at_other(Ask::post(&next).under(&new));
            pair.until_other_waits().await;
            // The first member has sealed what is older, though nobody has asked it for the new.
            let late = pair.scene.send(Ask::post(&format!("/{name}/late")).under(&old)).await;
            assert_ne!(late.status, 200, "{layout:?}");
            assert!(!pair.scene.worker.seen().iter().any(|one| one.path == next), "{layout:?}");
            held.ends().await;
            let answer = waiting.await.unwrap();
            assert_eq!(answer.status, 200, "etcd {version}, {layout:?}: {}", answer.text());
            // It is told to be clear: the first member has to ask nobody.
            pair.scene.admits(&format!("/{name}/also"), &new).await;
        }
        pair.finish().await;
    }
}

#[tokio::test]
async fn the_delayed_request_is_refused_by_every_member() {
    let pair = Pair::open(EtcdVersion::V3_5, &[k()]).await;
    let store = &pair.scene.store;
    let first = store.hold(LOCK, "shard-1").await;
    pair.scene.admits("/r0", &first).await;
    let second = store.hold(LOCK, "shard-2").await;
    let answer = pair.send_to_other(Ask::post("/r2").under(&second)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let third = store.hold(LOCK, "shard-1").await;
    assert!(explained(&pair.scene, &third).contains("No member of the group tells"));
    pair.scene.admits("/r3", &third).await;
    until("its tenure is told to be clear", async || {
        explained(&pair.scene, &third).contains("Its tenure is clear")
    })
    .await;
    let late = pair.send_to_other(Ask::post("/r1").under(&first)).await;
    assert_refused(&late, "replayed-tenure", LOCK, &third);
    pair.scene.refuses("/r1", &first, "replayed-tenure", LOCK, &third).await;
    pair.finish().await;
}

#[tokio::test]
async fn a_member_that_only_watches_is_gone_past_and_counted_until_what_it_let_past_is_over() {
    let watching = k().with("mode = \"shadow\"");
    let mut pair = Pair::open(EtcdVersion::V3_5, &[watching]).await;
    let enforcing = pair.scene.config.clone().routes(&[k()]);
    pair.other.terminate().await;
    pair.other = Fencepost::serve(&enforcing).await;
    pair.until_two().await;
    let first = pair.scene.store.hold(LOCK, "shard-1").await;
    let passed = pair.scene.held(Ask::post("/passed").under(&first)).await;
    let second = pair.scene.store.hold(LOCK, "shard-2").await;
    let answer = pair.send_to_other(Ask::post("/met").under(&second)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    pair.other.until_metric("fencepost_group_unfenced_total", 1.0).await;
    pair.other.has_logged("only watches this lock");
    // It enforces from now on, but what it let past goes on.
    pair.scene.fence.reloads(&enforcing).await;
    let third = pair.scene.store.hold(LOCK, "shard-3").await;
    let answer = pair.send_to_other(Ask::post("/also-met").under(&third)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    pair.other.until_metric("fencepost_group_unfenced_total", 2.0).await;
    passed.ends().await;
    pair.scene.until_metric("fencepost_in_flight{route=\"k\"}", 0.0).await;
    let fourth = pair.scene.store.hold(LOCK, "shard-4").await;
    let answer = pair.send_to_other(Ask::post("/fenced").under(&fourth)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(pair.other.metric("fencepost_group_unfenced_total").await, 2.0);
    pair.finish().await;
}

/// What `fencepost explain` says of a request.
fn explained(scene: &Scene, tenure: &Tenure) -> String {
    let revision = tenure.revision.to_string();
    let mut command = std::process::Command::new(BINARY);
    command.arg("explain").arg("-c").arg(scene.fence.file());
    command.args(["--owner", &tenure.owner, "--revision", &revision]);
    let said = command.output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

#[tokio::test]
async fn a_member_that_is_killed_is_waited_for_and_holders_in_use_are_not_held_up() {
    let mut pair = Pair::open(EtcdVersion::V3_5, &[k()]).await;
    let old = pair.scene.store.hold(LOCK, "shard-1").await;
    let answer = pair.send_to_other(Ask::post("/also").under(&old)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let held = pair.scene.held(Ask::post("/held").under(&old)).await;
    pair.scene.fence.kill();
    let killed = Instant::now();
    // The tenure that was in use goes on where it is known to be clear.
    let answer = pair.send_to_other(Ask::post("/still").under(&old)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let new = pair.scene.store.hold(LOCK, "shard-2").await;
    let waiting = pair.start_at_other(Ask::post("/next").under(&new));
    // Before the ask is written nobody knows who has to answer.
    let ask = eventually("who is waited for", async || {
        let group = pair.other.admin_json("/group").await;
        group["asks"].get(0).filter(|ask| ask["waits_for"].is_array()).cloned()
    })
    .await;
    assert_eq!(ask["lock"], LOCK, "{ask}");
    assert_eq!(ask["waits_for"].as_array().unwrap().len(), 1, "{ask}");
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let waited = began(&pair, "/next") - killed;
    // It had written its key no longer than two thirds of member_ttl before it let the last one in.
    assert!(waited >= MEMBER_TTL / 3 + ORPHAN_TIMEOUT, "{waited:?}");
    assert!(waited < MEMBER_TTL + ORPHAN_TIMEOUT + PATIENCE / 3, "{waited:?}");
    drop(held);
    pair.other.until_metric("fencepost_group_members{state=\"live\"}", 1.0).await;
    pair.scene.ledger.check(&pair.scene.worker);
}

#[tokio::test]
async fn a_member_that_leaves_in_order_is_not_waited_for() {
    let mut pair = Pair::open(EtcdVersion::V3_5, &[k()]).await;
    let old = pair.scene.store.hold(LOCK, "shard-1").await;
    pair.scene.admits("/old", &old).await;
    assert!(pair.scene.fence.terminate().await.success());
    pair.other.until_metric("fencepost_group_members{state=\"left\"}", 1.0).await;
    let new = pair.scene.store.hold(LOCK, "shard-2").await;
    let asked = Instant::now();
    let answer = pair.send_to_other(Ask::post("/next").under(&new)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(asked.elapsed() < MEMBER_TTL, "{:?}", asked.elapsed());
    // The next process of that file joins, and is asked.
    pair.scene.start_again().await;
    pair.until_two().await;
    pair.scene.admits("/again", &new).await;
    pair.finish().await;
}

#[tokio::test]
async fn a_member_that_cannot_write_its_key_lets_nothing_in() {
    let route = k().with("exempt_methods = [\"GET\"]");
    let pair = Pair::open(EtcdVersion::V3_5, &[route]).await;
    let tenure = pair.scene.store.hold(LOCK, "shard-1").await;
    pair.scene.admits("/before", &tenure).await;
    pair.scene.etcd.pause().await;
    let refused = until_refused(&pair.scene, &tenure).await;
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let readiness = pair.scene.fence.admin("GET", "/readyz").await;
    assert_eq!(readiness.status, 503, "{}", readiness.text());
    assert!(readiness.text().contains("group g"), "{}", readiness.text());
    pair.scene.fence.until_metric("fencepost_group_standing", 0.0).await;
    // What nobody judges goes on, on connections of its own.
    let exempt = pair.scene.send(Ask::post("/exempt").method("GET")).await;
    assert_eq!(exempt.status, 200, "{}", exempt.text());
    let seen = pair.scene.worker.seen();
    let connection =
        |path: &str| seen.iter().find(|one| one.path == path).map(|one| one.connection);
    assert_ne!(connection("/exempt"), connection("/before"));
    pair.scene.etcd.resume();
    pair.scene.fence.until_metric("fencepost_group_standing", 1.0).await;
    until("it lets requests in again", async || {
        pair.scene.send(Ask::post("/after").under(&tenure)).await.status == 200
    })
    .await;
    assert!(pair.scene.fence.metric("fencepost_group_lapses_total").await >= 1.0);
    pair.finish().await;
}

/// A balancer that passes TCP on kept clients with the member that refused them.
#[tokio::test]
async fn out_of_group_refusals_make_clients_connect_anew() {
    let aged = Route::new("aged", "/aged/", r#"key = "/k""#).with("max_age = \"500ms\"");
    let route = k().with("exempt_methods = [\"GET\"]").with("max_age = \"1h\"");
    let scene = Scene::with(EtcdVersion::V3_5, &[aged, route], in_group).await;
    let tenure = scene.store.hold(LOCK, "shard-1").await;
    let mut line = scene.line().await;
    let before = line.send(Ask::post("/before").under(&tenure)).await.unwrap();
    assert_eq!((before.status, before.header("connection")), (200, None));
    let latch = scene.worker.holds("/held");
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    client.send(ask(1, "GET", "/held", &tenure)).await;
    scene.worker.wait_for(2).await;
    scene.etcd.pause().await;
    scene.until_metric("fencepost_group_standing", 0.0).await;

    let refused = line.send(Ask::post("/refused").under(&tenure)).await.unwrap();
    assert_eq!(reason(&refused), Some("out-of-group"), "{}", refused.text());
    assert_eq!(refused.header("connection"), Some("close"));
    assert_eq!(line.connection().rest().await.unwrap(), b"");
    let unread = scene.send(Ask::post("/aged/refused").under(&tenure)).await;
    assert_eq!(reason(&unread), Some("out-of-group"), "{}", unread.text());
    client.send(ask(3, "PUT", "/refused", &tenure)).await;
    for _ in 0..2 {
        // The first lets in what is on its way, the second names the last request.
        assert_eq!(code(&client.next(GOAWAY).await), NO_ERROR);
    }
    latch.open();
    assert!(client.is_answered(1).await, "what is under way goes on");
    scene.finish().await;
}

#[tokio::test]
async fn requests_cut_with_the_standing_are_told_apart() {
    let scene = Scene::with(EtcdVersion::V3_5, &[k()], in_group).await;
    let tenure = scene.store.hold(LOCK, "shard-1").await;
    // The second time, it seemed that the worker does not keep its connections.
    for (round, path) in [(1, "/held"), (2, "/held-again")] {
        until("it lets requests in, and keeps the connection", async || {
            scene.send(Ask::post("/").under(&tenure)).await.status == 200
        })
        .await;
        let _latch = scene.worker.holds(path);
        let held = scene.start_at_worker(Ask::post(path).under(&tenure)).await;
        let mut uploading = Connection::open(scene.fence.listener.clone()).await.unwrap();
        uploading.send(half_an_upload(&tenure)).await.unwrap();
        let is_there = |seen: &[Seen]| seen.iter().filter(|one| is_half(one)).count() == round;
        scene.worker.wait_until("half of the upload", is_there).await;
        scene.etcd.pause().await;
        for answer in [held.await.unwrap(), uploading.final_response().await.unwrap()] {
            assert_failed(&answer, 502, "lost-standing");
        }
        scene.etcd.resume();
    }
    let log = scene.fence.log();
    assert!(log.contains("connections to the worker were reset"), "{log}");
    assert!(!log.contains("the worker did not answer"), "{log}");
    assert!(!log.contains("the worker closes kept connections"), "{log}");
}

/// The answer of a request that is refused because its member has lost touch.
async fn until_refused(scene: &Scene, tenure: &Tenure) -> Response {
    eventually("a request is refused as out-of-group", async || {
        let answer = scene.send(Ask::post("/meanwhile").under(tenure)).await;
        (reason(&answer) == Some("out-of-group")).then_some(answer)
    })
    .await
}

#[tokio::test]
async fn the_word_of_an_operator_ends_the_wait_for_a_member() {
    let quick = Route::new("quick", "/quick/", r#"key = "/k""#).with("handoff_timeout = \"100ms\"");
    let mut pair = Pair::open(EtcdVersion::V3_5, &[quick, k_with("10m")]).await;
    let old = pair.scene.store.hold(LOCK, "shard-1").await;
    pair.scene.admits("/old", &old).await;
    let group = pair.scene.fence.admin_json("/group").await;
    let id = group["member"].as_str().expect("it has joined").to_owned();
    let itself = pair.scene.fence.admin("POST", &format!("/group/members/{id}/forget")).await;
    assert_eq!(itself.status, 409, "{}", itself.text());
    pair.scene.fence.kill();
    let new = pair.scene.store.hold(LOCK, "shard-2").await;
    let waiting = pair.start_at_other(Ask::post("/next").under(&new));
    pair.until_other_waits().await;
    pair.other.until_metric("fencepost_group_members{state=\"given-up\"}", 1.0).await;
    let impatient = pair.send_to_other(Ask::post("/quick/now").under(&new)).await;
    assert_refused(&impatient, "handoff-timeout", LOCK, None);
    let wait: u64 = impatient.header("retry-after").unwrap().parse().unwrap();
    assert!((500..=603).contains(&wait), "it knows when nothing of that member is left: {wait}");
    let lock = pair.other.admin_json("/locks//k").await;
    assert_eq!(lock["clear"], Value::Bool(false), "{lock}");
    assert_eq!(lock["waits_for"][0]["member"], id, "{lock}");
    let forgotten = pair.other.admin("POST", &format!("/group/members/{id}/forget")).await;
    assert_eq!(forgotten.status, 200, "{}", forgotten.text());
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let nobody = pair.other.admin("POST", "/group/members/2a/forget").await;
    assert_eq!(nobody.status, 409, "{}", nobody.text());
    pair.scene.ledger.check(&pair.scene.worker);
}

#[tokio::test]
async fn members_notice_a_restore_of_their_store() {
    let mut pair = Pair::open(EtcdVersion::V3_5, &[k()]).await;
    let first = pair.scene.store.hold(LOCK, "shard-1").await;
    pair.scene.admits("/before", &first).await;
    let snapshot = pair.scene.etcd.save_snapshot().await;
    // What the members write afterwards does not come up to that.
    for _ in 0..200 {
        pair.scene.store.hold(LOCK, "shard-1").await;
    }
    let second = pair.scene.store.hold(LOCK, "shard-2").await;
    // Both write their keys once more, to ask and to answer.
    let answer = pair.send_to_other(Ask::post("/lost").under(&second)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    pair.scene.etcd.restore_snapshot(&snapshot).await;
    for member in [&pair.scene.fence, &pair.other] {
        member.until_log("no longer: the store has gone back").await;
        member.until_metric("fencepost_group_standing", 1.0).await;
    }
    until("the store is not believed", async || {
        let answer = pair.scene.send(Ask::post("/first").under(&first)).await;
        reason(&answer) == Some("store-regressed")
    })
    .await;
    for member in [&pair.scene.fence, &pair.other] {
        let accepted = member.admin("POST", "/sources/main/accept-regression").await;
        assert_eq!(accepted.status, 200, "{}", accepted.text());
    }
    let third = pair.scene.store.hold(LOCK, "shard-3").await;
    pair.scene.admits("/after", &third).await;
    let answer = pair.send_to_other(Ask::post("/after-too").under(&third)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    pair.finish().await;
}

fn half_an_upload(tenure: &Tenure) -> Vec<u8> {
    let head = format!(
        "POST /upload HTTP/1.1\r\nHost: test\r\nFence-Owner: {}\r\nFence-Revision: {}\r\nContent-Length: 400000\r\n\r\n",
        tenure.owner, tenure.revision
    );
    [head.into_bytes(), vec![b'x'; 200_000]].concat()
}

fn is_half(one: &Seen) -> bool {
    one.path == "/upload" && one.body_bytes == 200_000
}

/// A paused master's upload reached the worker after the next holder's requests: here it is the proxy
/// that was paused, for longer than the others wait for it.
#[tokio::test]
async fn a_member_that_stood_still_writes_nothing_more_of_an_upload_when_it_wakes() {
    let mut pair = Pair::open(EtcdVersion::V3_5, &[k()]).await;
    let old = pair.scene.store.hold(LOCK, "shard-1").await;
    let mut client = Connection::open(pair.scene.fence.listener.clone()).await.unwrap();
    client.send(half_an_upload(&old)).await.unwrap();
    pair.scene.worker.wait_until("half of the upload", |seen| seen.iter().any(is_half)).await;
    pair.scene.fence.process().pause().await;
    client.send(vec![b'x'; 200_000]).await.unwrap();
    let new = pair.scene.store.hold(LOCK, "shard-2").await;
    let next = pair.send_to_other(Ask::post("/next").under(&new)).await;
    assert_eq!(next.status, 200, "{}", next.text());
    pair.scene.fence.process().resume();
    let upload = eventually("the upload has ended", async || {
        let seen = pair.scene.worker.seen();
        seen.into_iter().find(|one| one.path == "/upload" && one.ended.is_some())
    })
    .await;
    assert_eq!((upload.body_bytes, upload.body_end), (200_000, Some(BodyEnd::Cut)));
    let answer = client.final_response().await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status != 200));
    // It was given up, so it has joined anew, and goes on.
    pair.until_two().await;
    until("it lets requests in", async || {
        pair.scene.send(Ask::post("/again").under(&new)).await.status == 200
    })
    .await;
    pair.finish().await;
}

/// No request began at the worker after one with a higher revision, nor while one of another tenure
/// ran.
#[track_caller]
fn assert_apart(seen: &[Seen]) {
    let revision = |one: &Seen| -> u64 { one.header("fence-revision").unwrap().parse().unwrap() };
    let mut order: Vec<&Seen> = seen.iter().collect();
    order.sort_by_key(|one| one.began);
    for pair in order.windows(2) {
        assert!(revision(pair[0]) <= revision(pair[1]), "{pair:#?}");
    }
    for (at, later) in order.iter().enumerate() {
        for earlier in order[..at].iter().filter(|earlier| revision(earlier) < revision(later)) {
            assert!(
                earlier.ended.is_some_and(|ended| ended <= later.began),
                "{earlier:#?} {later:#?}"
            );
        }
    }
}

#[tokio::test]
async fn tenures_of_many_handoffs_never_meet_at_the_worker() {
    let pair = Pair::open(EtcdVersion::V3_5, &[k()]).await;
    let mut late = Vec::new();
    for number in 0..60 {
        let owner = format!("shard-{}", number % 3);
        let tenure = pair.scene.store.hold(LOCK, &owner).await;
        let asks = (0..6).map(|part| {
            let ask = Ask::post(&format!("/{number}/{part}")).under(&tenure);
            if part % 2 == 0 { pair.scene.start(ask) } else { pair.start_at_other(ask) }
        });
        let mut asks: Vec<_> = asks.collect();
        // Some are still on their way when the next one takes the lock.
        late.extend(asks.split_off(3));
        for answer in join_all(asks).await {
            let answer = answer.unwrap();
            assert_eq!(answer.status, 200, "{number}: {}", answer.text());
        }
    }
    for answer in join_all(late).await {
        let answer = answer.unwrap();
        assert!(matches!(answer.status, 200 | 412), "{}", answer.text());
    }
    assert_apart(&pair.scene.worker.seen());
    pair.finish().await;
}

#[tokio::test]
async fn a_rolling_restart_refuses_no_request_of_the_holder() {
    let mut pair = Pair::open(EtcdVersion::V3_5, &[k()]).await;
    let tenure = pair.scene.store.hold(LOCK, "shard-1").await;
    for _ in 0..2 {
        // The balancer sends nothing to the member that is restarted.
        let (listener, ledger) = (pair.other.listener.clone(), pair.scene.ledger.clone());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let ask = Ask::post("/load").under(&tenure);
        let load = tokio::spawn(async move {
            let mut stopped = std::pin::pin!(stopped);
            let mut sent = 0;
            while futures_util::poll!(&mut stopped).is_pending() {
                let answer = send(&listener, &ledger, ask.clone()).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                sent += 1;
            }
            sent
        });
        assert!(pair.scene.fence.terminate().await.success());
        pair.scene.start_again().await;
        pair.until_two().await;
        stop.send(()).unwrap();
        assert!(load.await.unwrap() > 0);
        std::mem::swap(&mut pair.scene.fence, &mut pair.other);
    }
    pair.scene.admits("/after", &tenure).await;
    pair.finish().await;
}
