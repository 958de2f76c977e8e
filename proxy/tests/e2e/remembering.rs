//! What a process with a `state_dir` knows of the one before it.

use std::process::Command;
use std::time::{Duration, Instant};

use fencepost_tests::{Answer, Behaviour, Browser, Connection, EtcdVersion, Latch, Process, Scratch, eventually};
use futures_util::future::join_all;

use crate::access_log::make_fifo;
use crate::fence_call::call;
use crate::fencepost::{BINARY, Config, Fencepost, Route};
use crate::page::Page;
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Scene};
use crate::store::{Store, Tenure};

const LOCK: &str = "/k";

fn guarded(lines: &[&str]) -> Route {
    lines.iter().fold(Route::new("k", "/", r#"key = "/k""#), |route, line| route.with(line))
}

/// With a `state_dir`, and without a pause before it stops.
async fn remembering(version: EtcdVersion, state_dir: &Scratch, routes: &[Route]) -> Scene {
    let path = state_dir.path().join("state");
    Scene::with(version, routes, |config| {
        config.remembering_in(&path).limit(r#"drain_delay = "0s""#).limit(r#"drain_timeout = "1s""#)
    })
    .await
}

/// The barrier stands: the request waits for as long as its route says, and what remains is about an hour.
async fn waits(scene: &Scene, tenure: &Tenure) {
    let answer = scene.send(Ask::post("/waits").under(tenure)).await;
    assert_refused(&answer, "handoff-timeout", LOCK, tenure);
    let remains: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&remains), "{remains}");
}

const AN_HOUR: [&str; 2] = [r#"orphan_timeout = "1h""#, r#"handoff_timeout = "200ms""#];

#[tokio::test]
async fn after_a_kill_the_same_tenure_goes_on_at_once_and_the_next_one_waits() {
    for version in EtcdVersion::ALL {
        let state_dir = Scratch::new();
        let fresh = Route::new("fresh", "/fresh/", r#"key = "/fresh""#).with(AN_HOUR[0]).with(AN_HOUR[1]);
        let mut scene = remembering(version, &state_dir, &[fresh, guarded(&AN_HOUR)]).await;
        let latch = Latch::new();
        scene.worker.on("/held", Behaviour::Hold(latch.clone(), Answer::ok("held")));
        let dead = scene.store.hold(LOCK, "shard-0").await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        let mut line = scene.line().await;
        line.begin(Ask::post("/held").under(&old)).await.unwrap();
        scene.worker.wait_for(1).await;
        scene.fence.kill();

        scene.start_again().await;
        assert_refused(&scene.send(Ask::post("/").under(&dead)).await, "stale-tenure", LOCK, &old);
        scene.admits("/", &old).await;
        let new = scene.store.hold(LOCK, "shard-2").await;
        waits(&scene, &new).await;
        assert_refused(&scene.send(Ask::post("/").under(&old)).await, "stale-tenure", LOCK, &new);
        // A lock of which the killed process let nobody in holds nobody up.
        let other = scene.store.hold("/fresh", "shard-1").await;
        scene.admits("/fresh/", &other).await;

        // Killed again: the time begins anew, and it is still that tenure's.
        scene.fence.kill();
        scene.start_again().await;
        waits(&scene, &new).await;
        let left = async || scene.fence.admin_json("/locks//k").await["gate"]["left_behind_seconds"].clone();
        assert!(left().await.as_f64().is_some_and(|left| (3_000.0..=3_600.0).contains(&left)), "{}", left().await);
        let cleared = scene.fence.admin("POST", "/locks//k/clear-orphans").await;
        let said = "0 orphans of lock \"/k\" no longer count, nor does what an earlier process left at the worker\n";
        assert_eq!((cleared.status, cleared.text().as_str()), (200, said));
        assert!(left().await.is_null(), "{}", left().await);
        scene.admits("/after", &new).await;
        // Nor do they count again where the gate is made anew.
        scene.take_source_out().await;
        scene.fence.reloads(&scene.config).await;
        scene.admits("/again", &new).await;
        latch.open();
        scene.finish().await;
    }
}

/// The log says that this ends the wait, and an operator may have a list of locks.
#[tokio::test]
async fn what_a_killed_process_has_left_can_be_ended_by_hand_before_anybody_asks_for_the_lock() {
    let state_dir = Scratch::new();
    let templated = Route::new("each", "/{each}/", r#"key = "/{each}""#).with(AN_HOUR[0]).with(AN_HOUR[1]);
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[templated]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/k/", &old).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.fence.kill();
    scene.start_again().await;
    let clear = async |path: &str| {
        let answer = scene.fence.admin("POST", path).await;
        (answer.status, answer.text())
    };
    let said = "0 orphans of lock \"/k\" no longer count, nor does what an earlier process left at the worker\n";
    assert_eq!(clear("/locks//other/clear-orphans").await.0, 404);
    assert_eq!(clear("/locks//k/clear-orphans").await, (200, said.to_owned()));
    assert_eq!(clear("/locks//k/clear-orphans").await.0, 404, "there is nothing left to end");
    scene.admits("/k/", &new).await;
    scene.finish().await;
}

/// It was told that it has the worker to itself: from then on it is the last that was let in.
#[tokio::test]
async fn after_a_kill_a_tenure_that_has_only_closed_the_door_goes_on_at_once() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&AN_HOUR)]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    let closed = call(&scene, &new, None).await;
    assert_eq!(closed.status, 204, "{closed:?}");
    scene.fence.kill();
    scene.start_again().await;
    scene.admits("/after", &new).await;
    assert_refused(&scene.send(Ask::post("/").under(&old)).await, "stale-tenure", LOCK, &new);
    scene.finish().await;
}

/// A source's name is the operator's to choose, and what is at the worker has nothing to do with it.
#[tokio::test]
async fn after_a_kill_the_next_tenure_waits_though_the_source_has_another_name() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&AN_HOUR)]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    scene.fence.kill();
    let new = scene.store.hold(LOCK, "shard-2").await;
    let file = scene.config.toml().replace("[source.main]", "[source.renamed]").replace("\"main\"", "\"renamed\"");
    scene.start_again_as(&file).await;
    waits(&scene, &new).await;
    scene.finish().await;
}

/// Which of two sources has let somebody in last is not remembered.
#[tokio::test]
async fn after_a_kill_everybody_waits_for_what_another_source_let_in_though_this_one_has_known_the_lock() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&AN_HOUR)]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    scene.fence.terminate().await;

    let file = scene.config.toml();
    let (before, main) = file.split_once("[source.main]").unwrap();
    let (table, routes) = main.split_once("[[route]]").unwrap();
    let both = format!("{before}[source.second]{table}[source.main]{table}[[route]]");
    scene.start_again_as(&format!("{both}{}", routes.replace("\"main\"", "\"second\""))).await;
    scene.admits("/", &old).await;
    scene.fence.kill();
    scene.start_again_as(&format!("{both}{routes}")).await;
    waits(&scene, &old).await;
    scene.finish().await;
}

/// What it let past may be anybody's.
#[tokio::test]
async fn after_a_kill_everybody_waits_for_what_a_route_let_past_while_it_only_watched() {
    let watching = |mode: &str| guarded(&[AN_HOUR[0], AN_HOUR[1], &format!("mode = {mode:?}")]);
    for by_reload in [false, true] {
        let state_dir = Scratch::new();
        let first = if by_reload { "enforce" } else { "shadow" };
        let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[watching(first)]).await;
        let holder = scene.store.hold(LOCK, "shard-1").await;
        scene.admits("/", &holder).await;
        if by_reload {
            // The tenure is remembered then, and it is not the only one that may be there.
            scene.fence.reloads(&scene.config.clone().routes(&[watching("shadow")])).await;
            scene.admits("/", &holder).await;
        }
        scene.fence.kill();
        let enforcing = scene.config.clone().routes(&[watching("enforce")]).toml();
        scene.start_again_as(&enforcing).await;
        waits(&scene, &holder).await;

        // It has not sent anything, and nothing else is left once those have been ended by hand: nobody has to wait for it.
        let cleared = scene.fence.admin("POST", "/locks//k/clear-orphans").await;
        assert_eq!(cleared.status, 200, "{cleared:?}");
        scene.admits("/after", &holder).await;
        scene.finish().await;
    }
}

/// The time that counts is the longest that was in force.
#[tokio::test]
async fn after_a_kill_everybody_waits_for_as_long_as_a_watching_route_was_given_by_a_reload() {
    let with = |mode: &str, orphan_timeout: &str| {
        let lines = [format!("mode = {mode:?}"), format!("orphan_timeout = {orphan_timeout:?}")];
        guarded(&[AN_HOUR[1], &lines[0], &lines[1]])
    };
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[with("shadow", "100ms")]).await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    for orphan_timeout in ["1h", "200ms"] {
        scene.fence.reloads(&scene.config.clone().routes(&[with("shadow", orphan_timeout)])).await;
        scene.admits("/", &holder).await;
    }
    scene.fence.kill();
    let enforcing = scene.config.clone().routes(&[with("enforce", "100ms")]).toml();
    scene.start_again_as(&enforcing).await;
    waits(&scene, &holder).await;
    scene.finish().await;
}

#[tokio::test]
async fn after_a_watching_process_has_left_cleanly_nobody_waits() {
    let watching = |mode: &str| guarded(&[AN_HOUR[0], AN_HOUR[1], &format!("mode = {mode:?}")]);
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[watching("shadow")]).await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &holder).await;
    scene.fence.terminate().await;
    let enforcing = scene.config.clone().routes(&[watching("enforce")]).toml();
    scene.start_again_as(&enforcing).await;
    scene.admits("/", &holder).await;
    scene.fence.kill();
    scene.start_again_as(&enforcing).await;
    scene.admits("/", &holder).await;
    scene.finish().await;
}

/// It may be any lock's.
#[tokio::test]
async fn a_stop_is_no_clean_one_where_a_request_may_run_on_that_was_let_past_and_named_no_lock() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[by_name("shadow")]).await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    scene.worker.on("/reset", Behaviour::Reset);
    assert_eq!(scene.send(Ask::post("/reset")).await.status, 502);
    assert!(scene.fence.terminate().await.success(), "{}", scene.fence.log());
    waits_for_what_was_let_past(&mut scene, &holder).await;
    scene.finish().await;
}

/// Nobody but its worker's thread had the lock.
#[tokio::test]
async fn a_stop_is_no_clean_one_where_a_request_may_run_on_that_came_while_the_process_drained() {
    let state_dir = Scratch::new();
    let path = state_dir.path().join("state");
    let mut scene = Scene::with(EtcdVersion::V3_5, &[by_name("shadow")], |config| {
        config.remembering_in(&path).limit(r#"drain_delay = "10m""#)
    })
    .await;
    let holder = scene.store.hold(LOCK, "shard-1").await;
    scene.worker.on("/reset", Behaviour::Reset);
    scene.fence.process().terminate();
    eventually("it drains", async || scene.fence.log().contains("step=\"leaving\"").then_some(())).await;
    assert_eq!(scene.send(Ask::post("/reset").header("Fence-Lock", LOCK)).await.status, 502);
    eventually("nobody is connected", async || {
        (scene.fence.metric("fencepost_connections").await == 0.0).then_some(())
    })
    .await;
    assert!(scene.fence.terminate().await.success(), "{}", scene.fence.log());
    assert!(scene.fence.log().contains("drained: everything has ended"), "{}", scene.fence.log());
    waits_for_what_was_let_past(&mut scene, &holder).await;
    scene.finish().await;
}

/// A route whose callers name their lock.
fn by_name(mode: &str) -> Route {
    let route = Route::new("k", "/", r#"key = "/{name}", from_header = true"#);
    AN_HOUR.iter().fold(route.with(&format!("mode = {mode:?}")), |route, line| route.with(line))
}

/// The next process, which enforces, lets nobody in yet.
async fn waits_for_what_was_let_past(scene: &mut Scene, holder: &Tenure) {
    let enforcing = scene.config.clone().routes(&[by_name("enforce")]).toml();
    scene.start_again_as(&enforcing).await;
    let next = scene.send(Ask::post("/next").header("Fence-Lock", LOCK).under(holder)).await;
    assert_refused(&next, "handoff-timeout", LOCK, holder);
}

#[tokio::test]
async fn after_a_kill_the_next_tenure_waits_for_orphan_timeout_from_the_start() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&[r#"orphan_timeout = "2s""#])]).await;
    let latch = Latch::new();
    scene.worker.on("/held", Behaviour::Hold(latch.clone(), Answer::ok("held")));
    let old = scene.store.hold(LOCK, "shard-1").await;
    let mut line = scene.line().await;
    line.begin(Ask::post("/held").under(&old)).await.unwrap();
    scene.worker.wait_for(1).await;
    scene.fence.kill();
    let new = scene.store.hold(LOCK, "shard-2").await;
    let started = Instant::now();
    scene.start_again().await;
    scene.admits("/next", &new).await;
    let seen = scene.worker.seen();
    let next = seen.iter().find(|one| one.path == "/next").unwrap();
    assert!(next.began - started >= Duration::from_secs(2), "{:?}", next.began - started);
    latch.open();
    scene.finish().await;
}

/// The time that counts is the one that was in force when the request went out.
#[tokio::test]
async fn the_killed_processs_own_orphan_timeout_counts() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&AN_HOUR)]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    scene.fence.kill();
    let new = scene.store.hold(LOCK, "shard-2").await;
    let upstream = scene.worker.endpoint().to_string();
    let shorter = guarded(&[r#"orphan_timeout = "100ms""#, r#"handoff_timeout = "200ms""#]);
    scene.config = crate::fencepost::Config::new(&[scene.etcd.endpoint()], &upstream, &[shorter])
        .remembering_in(&state_dir.path().join("state"));
    scene.start_again().await;
    waits(&scene, &new).await;
    scene.finish().await;
}

#[tokio::test]
async fn after_a_clean_stop_nobody_waits() {
    for version in EtcdVersion::ALL {
        let state_dir = Scratch::new();
        let mut scene = remembering(version, &state_dir, &[guarded(&AN_HOUR)]).await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        scene.admits("/", &old).await;
        assert!(scene.fence.terminate().await.success(), "{}", scene.fence.log());
        let new = scene.store.hold(LOCK, "shard-2").await;
        scene.start_again().await;
        scene.admits("/", &new).await;
        assert_refused(&scene.send(Ask::post("/").under(&old)).await, "stale-tenure", LOCK, &new);
        scene.finish().await;
    }
}

/// Such a client was waited for until all was cut, and the next holder then waited for requests that nobody had sent.
#[tokio::test]
async fn a_client_of_http_2_that_has_no_request_and_does_not_leave_makes_no_stop_an_unclean_one() {
    let state_dir = Scratch::new();
    let path = state_dir.path().join("state");
    let mut scene = Scene::with(EtcdVersion::V3_5, &[guarded(&AN_HOUR)], |config| {
        config.limit("drain_delay = \"0s\"\ndrain_timeout = \"10m\"").remembering_in(&path)
    })
    .await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    let mut client = Connection::open(scene.fence.listener.clone()).await.unwrap();
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    client.receive(9).await.unwrap(); // It is spoken to.
    assert!(scene.fence.terminate().await.success(), "{}", scene.fence.log());
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.start_again().await;
    scene.admits("/", &new).await;
    scene.finish().await;
}

/// As a page that listens for events is until it is closed: then every stop was an unclean one.
#[tokio::test]
async fn a_stop_that_cuts_what_no_lock_guards_is_a_clean_one() {
    let state_dir = Scratch::new();
    let events = Route::new("events", "/events", r#"key = "/events""#).with(r#"mode = "off""#);
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[events, guarded(&AN_HOUR)]).await;
    let latch = Latch::new();
    scene.worker.on("/events", Behaviour::Hold(latch.clone(), Answer::ok("events")));
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    let mut line = scene.line().await;
    line.begin(Ask::post("/events").method("GET")).await.unwrap();
    scene.worker.wait_for(2).await;
    assert!(scene.fence.terminate().await.success(), "{}", scene.fence.log());
    assert!(scene.fence.log().contains("step=\"cutting\""), "{}", scene.fence.log());
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.start_again().await;
    scene.admits("/", &new).await;
    latch.open();
    scene.finish().await;
}

#[tokio::test]
async fn a_stop_that_leaves_a_request_at_the_worker_is_no_clean_one() {
    for leaves in ["running", "orphan"] {
        let state_dir = Scratch::new();
        let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&AN_HOUR)]).await;
        let latch = Latch::new();
        scene.worker.on("/held", Behaviour::Hold(latch.clone(), Answer::ok("held")));
        scene.worker.on("/reset", Behaviour::Reset);
        let old = scene.store.hold(LOCK, "shard-1").await;
        let mut line = scene.line().await;
        match leaves {
            "running" => drop(line.begin(Ask::post("/held").under(&old)).await.unwrap()),
            _ => assert_eq!(line.send(Ask::post("/reset").under(&old)).await.unwrap().status, 502),
        }
        scene.worker.wait_for(1).await;
        assert!(scene.fence.terminate().await.success(), "{leaves}: {}", scene.fence.log());
        let new = scene.store.hold(LOCK, "shard-2").await;
        scene.start_again().await;
        waits(&scene, &new).await;
        latch.open();
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_second_process_on_one_state_dir_does_not_start() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&[])]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let (code, said) = Fencepost::end_of(&scene.config).await;
    assert_eq!(code, Some(1), "{said}");
    let path = state_dir.path().join("state");
    let message = format!("the state_dir cannot be used: another fencepost process uses {}: ", path.display());
    assert!(said.contains(&message), "{said}");
    // It was advised to do what the README forbids for one worker.
    assert!(said.contains("stop the other; a directory of its own is for a process before another worker"), "{said}");
    scene.admits("/", &held).await;
    // It is free as soon as the first has gone, however it went.
    scene.fence.kill();
    scene.start_again().await;
    scene.admits("/", &held).await;
    scene.finish().await;
}

const CLEAN: &str = "remembering: no earlier process has left anything at the worker";

/// A process that has let in a tenure and ended cleanly.
async fn ended_cleanly(state_dir: &Scratch) -> Scene {
    let mut scene = remembering(EtcdVersion::V3_5, state_dir, &[guarded(&AN_HOUR)]).await;
    scene.admits("/", &scene.store.hold(LOCK, "shard-1").await).await;
    assert!(scene.fence.terminate().await.success());
    scene
}

/// Its own files lie beside the state.
fn started(state_dir: &Scratch, config: &Config, by: &[&str]) -> Process {
    let file = state_dir.path().join("fencepost.toml");
    std::fs::write(&file, config.toml()).unwrap();
    let mut command = Command::new(by[0]);
    command.args(&by[1..]).arg(BINARY).arg("serve").arg("-c").arg(&file);
    command.env("NO_COLOR", "1").env_remove("FENCEPOST_LOG");
    Process::start(&command, &state_dir.path().join("log"))
}

async fn nobody_waits(mut scene: Scene) {
    let next = scene.store.hold(LOCK, "shard-2").await;
    scene.start_again().await;
    assert!(scene.fence.log().contains(CLEAN), "{}", scene.fence.log());
    scene.admits("/", &next).await;
    scene.finish().await;
}

/// It has served nobody, and the next one waited for an hour.
#[tokio::test]
async fn after_a_start_that_fails_nobody_waits() {
    let state_dir = Scratch::new();
    let scene = ended_cleanly(&state_dir).await;
    // Each source has some descriptors of its own, and so has each thread.
    let sources: String = (0..40).map(|at| format!("[source.more{at}]\nkind = \"memory\"\n")).collect();
    let more = [
        (scene.config.clone().more(&sources), "cannot put the configuration in force"),
        (scene.config.clone().threads(40), "cannot start"),
    ];
    for (config, why) in more {
        let mut process = started(&state_dir, &config, &["prlimit", "--nofile=64"]);
        let (code, said) = (process.end_of_itself().await.code(), process.log());
        assert!(code == Some(1) && said.contains(CLEAN) && said.contains(why), "{said}");
    }
    nobody_waits(scene).await;
}

/// Somebody would have to read what is written. It could not be told to end either, once the signal was listened for.
#[tokio::test]
async fn a_start_whose_disk_hangs_ends_when_it_is_told_to_and_nobody_waits_after_it() {
    let state_dir = Scratch::new();
    let scene = ended_cleanly(&state_dir).await;
    let next = state_dir.path().join("state/journal.next");
    make_fifo(&next);
    let mut process = started(&state_dir, &scene.config, &["env"]);
    let status = format!("/proc/{}/status", process.id());
    let hears = || {
        let status = std::fs::read_to_string(&status).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        (caught & 1 << (15 - 1) != 0).then_some(())
    };
    eventually("it hears SIGTERM", async || hears()).await;
    process.hang_up(); // Who rotates logs or reloads knows of no start.
    process.terminate();
    let (code, log) = (process.end_of_itself().await.code(), process.log());
    assert!(code == Some(1) && log.contains("the disk does not answer: a write to the state_dir"), "{code:?} {log}");
    assert!(log.contains("looking at what an earlier process has left") && !log.contains("listening"), "{log}");
    std::fs::remove_file(&next).unwrap();
    nobody_waits(scene).await;
}

#[tokio::test]
async fn a_damaged_file_stops_the_start_and_the_message_says_what_to_do() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&AN_HOUR)]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &held).await;
    assert!(scene.fence.terminate().await.success());
    let journal = state_dir.path().join("state/journal");
    let whole = std::fs::read(&journal).unwrap();
    for at in [0, whole.len() / 3, whole.len() / 2, whole.len() - 2] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&journal, &damaged).unwrap();
        let (code, said) = Fencepost::end_of(&scene.config).await;
        assert_eq!(code, Some(1), "byte {at}: {said}");
        assert!(said.contains(&format!("{} is damaged (", journal.display())), "byte {at}: {said}");
        assert!(said.contains("restore it; or wait until the longest orphan_timeout has passed"), "byte {at}: {said}");
        assert_eq!(std::fs::read(&journal).unwrap(), damaged, "nothing was made of it");
    }
    std::fs::write(&journal, &whole).unwrap();
    scene.start_again().await;
    scene.admits("/", &held).await;
    scene.finish().await;
}

/// A store that was taken back while no process ran. In it, shard-1 holds the lock again; shard-2 was the last to be let in.
struct Restored {
    scene: Scene,
    old: Tenure,
    lost: Tenure,
    state_dir: Scratch,
}

/// How a process ended.
#[derive(Clone, Copy, Debug)]
enum End {
    Clean,
    /// Right after it had let a tenure in.
    KilledAtOnce,
    /// Once it had written down how far it had seen the store.
    KilledLater,
}

impl Restored {
    /// After this end of the process that had let shard-2 in.
    async fn after(version: EtcdVersion, end: End) -> Restored {
        let state_dir = Scratch::new();
        let mut scene = remembering(version, &state_dir, &[guarded(&AN_HOUR)]).await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        scene.admits("/", &lost).await;
        match end {
            End::Clean => assert!(scene.fence.terminate().await.success()),
            End::KilledAtOnce => scene.fence.kill(),
            End::KilledLater => {
                let noted = format!(r#""highest_seen":{{"source":"main","revision":{},"cluster":"#, lost.revision);
                let journal = state_dir.path().join("state/journal");
                eventually("how far the store was seen is written down", async || {
                    String::from_utf8_lossy(&std::fs::read(&journal).unwrap()).contains(&noted).then_some(())
                })
                .await;
                scene.fence.kill();
            }
        }
        scene.etcd.restore_snapshot(&snapshot).await;
        scene.store = Store::of(&scene.etcd).await;
        // It may never be ready, as things are.
        scene.fence = Fencepost::launch(&scene.config).await;
        Restored { scene, old, lost, state_dir }
    }

    /// Sends under a tenure that must not be let in until it is refused for this reason.
    async fn until_refused(&self, tenure: &Tenure, expected: &str) {
        eventually(&format!("{tenure:?} is refused as {expected}"), async || {
            let answer = self.scene.send(Ask::post("/dead").under(tenure)).await;
            assert!(reason(&answer).is_some(), "{tenure:?}, to be refused as {expected}: {}", answer.text());
            (reason(&answer) == Some(expected)).then(|| assert_refused(&answer, expected, LOCK, &self.old))
        })
        .await;
    }

    async fn accept(&self) {
        let accepted = self.scene.fence.admin("POST", "/sources/main/accept-regression").await;
        assert_eq!(accepted.status, 200, "{}", accepted.text());
        assert!(accepted.text().contains("is accepted"), "{}", accepted.text());
    }

    /// Whoever is told that it could not be written may say it again.
    async fn accept_while_the_disk_fails(&self) {
        let path = |name: &str| self.state_dir.path().join("state").join(name);
        std::fs::remove_file(path("journal")).unwrap();
        std::fs::create_dir(path("journal.next")).unwrap();
        for _ in 0..2 {
            let accepted = self.scene.fence.admin("POST", "/sources/main/accept-regression").await;
            assert_eq!(accepted.status, 503, "{}", accepted.text());
            assert!(accepted.text().contains("a restart may have to be told again"), "{}", accepted.text());
        }
        std::fs::remove_dir(path("journal.next")).unwrap();
    }

    /// Whoever holds the lock in the restored store is let in now, and who held it in the lost one is not.
    async fn is_believed(&self) {
        eventually("the store is believed again", async || {
            let answer = self.scene.send(Ask::post("/accepted").under(&self.old)).await;
            (answer.status == 200).then_some(())
        })
        .await;
        let answer = self.scene.send(Ask::post("/dead").under(&self.lost)).await;
        assert!(matches!(reason(&answer), Some("ahead-of-store" | "unknown-revision")), "{}", answer.text());
    }

    async fn finish(self) {
        assert!(!self.scene.worker.seen().iter().any(|one| one.path == "/dead"), "the dead stay dead");
        self.scene.finish().await;
    }
}

#[tokio::test]
async fn a_store_that_was_restored_after_a_clean_stop_admits_nobody_until_that_is_accepted() {
    for version in EtcdVersion::ALL {
        let mut restored = Restored::after(version, End::Clean).await;
        restored.until_refused(&restored.old, "store-regressed").await;
        restored.until_refused(&restored.lost, "store-regressed").await;
        restored.accept_while_the_disk_fails().await;
        restored.accept().await;
        let again = restored.scene.fence.admin("POST", "/sources/main/accept-regression").await;
        assert!(again.text().contains("nothing is changed"), "{}", again.text());
        restored.is_believed().await;
        // For good: the next process is not told again.
        let scene = &mut restored.scene;
        assert!(scene.fence.terminate().await.success());
        scene.start_again().await;
        let next = scene.store.hold(LOCK, "shard-3").await;
        assert_eq!(next.revision, restored.lost.revision, "it is given out a second time");
        scene.admits("/next", &next).await;
        restored.finish().await;
    }
}

/// What tells that etcd was restored, where it has grown beyond all that was seen by the time that anybody looks.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// It has another id.
    AnotherCluster,
    /// Its log is not the one of before.
    AnotherLog,
}

/// Each lock was judged by it at once, and whoever held one below the last tenure let in was refused as `replayed-tenure`, with nothing for
/// an operator to accept.
async fn what_has_grown_since_it_was_restored_is_not_believed_by(sign: Sign) {
    for version in EtcdVersion::ALL {
        let state_dir = Scratch::new();
        let mut scene = remembering(version, &state_dir, &[guarded(&[])]).await;
        if let Sign::AnotherLog = sign {
            scene.etcd.kill();
            scene.etcd.restart().await; // It has had one election more than it will have when it is restored.
        }
        let old = scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        scene.admits("/", &lost).await;
        assert!(scene.fence.terminate().await.success());
        match sign {
            Sign::AnotherCluster => scene.etcd.restore_snapshot_as_another_cluster(&snapshot).await,
            Sign::AnotherLog => scene.etcd.restore_snapshot(&snapshot).await,
        }
        scene.store = Store::of(&scene.etcd).await;
        while scene.store.put("/elsewhere", "x").await <= lost.revision {}
        let mut restored = Restored { scene, old, lost, state_dir };
        // The second process has it from the first, which was told all that there is to tell.
        for _ in 0..2 {
            restored.scene.fence = Fencepost::launch(&restored.scene.config).await;
            restored.until_refused(&restored.old, "store-regressed").await;
            restored.until_refused(&restored.lost, "store-regressed").await;
            assert!(restored.scene.fence.terminate().await.success());
        }
        restored.scene.fence = Fencepost::launch(&restored.scene.config).await;
        restored.accept().await;
        restored.is_believed().await;
        // For good: it is what is known now.
        let scene = &mut restored.scene;
        assert!(scene.fence.terminate().await.success());
        scene.start_again().await;
        scene.admits("/next", &restored.old).await;
        restored.finish().await;
    }
}

#[tokio::test]
async fn a_store_that_was_restored_as_another_cluster_is_not_believed_though_it_has_grown_before_that_is_accepted() {
    what_has_grown_since_it_was_restored_is_not_believed_by(Sign::AnotherCluster).await;
}

#[tokio::test]
async fn a_store_that_was_restored_with_its_ids_is_not_believed_though_it_has_grown_before_that_is_accepted() {
    what_has_grown_since_it_was_restored_is_not_believed_by(Sign::AnotherLog).await;
}

async fn only_an_operator_helps_after(end: End) {
    for version in EtcdVersion::ALL {
        let restored = Restored::after(version, end).await;
        restored.until_refused(&restored.old, "store-regressed").await;
        restored.until_refused(&restored.lost, "store-regressed").await;
        restored.accept().await;
        // Floors start anew, barriers stay: what the killed process left may still run.
        restored.until_refused(&restored.old, "handoff-timeout").await;
        let cleared = restored.scene.fence.admin("POST", "/locks//k/clear-orphans").await;
        assert_eq!(cleared.status, 200, "{cleared:?}");
        restored.is_believed().await;
        restored.finish().await;
    }
}

#[tokio::test]
async fn a_store_that_was_restored_after_a_kill_admits_nobody_until_that_is_accepted() {
    only_an_operator_helps_after(End::KilledLater).await;
}

/// That a tenure was let in says how far the store had come, even if the process was killed before it wrote that down.
#[tokio::test]
async fn a_store_that_was_restored_after_a_kill_right_after_an_admission_admits_nobody_until_that_is_accepted() {
    only_an_operator_helps_after(End::KilledAtOnce).await;
}

/// The store gives the revision of the lost tenure out a second time: its holder is not the one that may go on at once.
async fn a_second_holder_of_a_revision_waits_after(end: End) {
    for version in EtcdVersion::ALL {
        let restored = Restored::after(version, end).await;
        restored.until_refused(&restored.old, "store-regressed").await;
        let second = restored.scene.store.hold(LOCK, "shard-3").await;
        assert_eq!(second.revision, restored.lost.revision);
        restored.until_refused(&second, "store-regressed").await;
        restored.accept().await;
        restored.until_refused(&second, "handoff-timeout").await;
        let cleared = restored.scene.fence.admin("POST", "/locks//k/clear-orphans").await;
        assert_eq!(cleared.status, 200, "{cleared:?}");
        restored.scene.admits("/next", &second).await;
        restored.finish().await;
    }
}

#[tokio::test]
async fn a_revision_that_was_given_out_twice_is_not_taken_for_the_killed_processs_tenure() {
    a_second_holder_of_a_revision_waits_after(End::KilledLater).await;
}

/// The same, although the process was killed before it wrote down how far it had seen the store.
#[tokio::test]
async fn a_revision_that_was_given_out_twice_right_after_a_kill_is_not_taken_for_the_killed_processs_tenure() {
    a_second_holder_of_a_revision_waits_after(End::KilledAtOnce).await;
}

/// Each request that was refused had a line of its own, with a disk that was full.
#[tokio::test]
async fn a_disk_that_takes_nothing_is_not_complained_of_for_each_request() {
    let state_dir = Scratch::new();
    let mut scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&[])]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    let path = |name: &str| state_dir.path().join("state").join(name);
    std::fs::remove_file(path("journal")).unwrap();
    std::fs::create_dir(path("journal.next")).unwrap();
    let new = scene.store.hold(LOCK, "shard-2").await;
    let begun = Instant::now();
    for answer in join_all((0..50).map(|_| scene.send(Ask::post("/dead").under(&new)))).await {
        assert_refused(&answer, "unverifiable", LOCK, None);
    }
    let lines_max = 1 + begun.elapsed().as_secs() / 10;
    scene.fence.terminate().await; // All is in the log.
    let lines = scene.fence.log().matches("a tenure cannot be recorded").count() as u64;
    assert!((1..=lines_max).contains(&lines), "{}", scene.fence.log());
    scene.finish().await;
}

/// It was in the log alone, and nobody was refused before another holder came.
#[tokio::test]
async fn a_disk_that_takes_nothing_is_told_of_until_it_does() {
    let browser = Browser::start().await;
    let state_dir = Scratch::new();
    let scene = remembering(EtcdVersion::V3_5, &state_dir, &[guarded(&[])]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    assert_eq!(scene.fence.metric("fencepost_state_dir_failing").await, 0.0);
    let path = |name: &str| state_dir.path().join("state").join(name);
    std::fs::remove_file(path("journal")).unwrap();
    std::fs::create_dir(path("journal.next")).unwrap();
    let becomes = async |value: f64| {
        let metric = async || (scene.fence.metric("fencepost_state_dir_failing").await == value).then_some(());
        eventually("the disk is looked at", metric).await;
    };
    // What others write raises the revision that is kept.
    scene.store.hold("/other", "shard-1").await;
    becomes(1.0).await;
    let page = Page::open(browser, scene.fence.admin, "").await;
    page.until_there("#generation .badge.bad").await;
    let told = page.text("#generation").await;
    assert_eq!(told, "configuration 1 the state_dir cannot be written: no new tenure is let in");
    std::fs::remove_dir(path("journal.next")).unwrap();
    becomes(0.0).await;
    page.until_count("#generation .badge", 0).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.admits("/", &new).await;
    scene.finish().await;
}
