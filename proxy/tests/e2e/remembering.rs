//! What a process with a `state_dir` knows of the one before it.

use std::process::Command;
use std::time::{Duration, Instant};

use fencepost_tests::{Behaviour, EtcdVersion, Process, Scratch, eventually, until};
use futures_util::future::join_all;

use crate::access_log::make_fifo;
use crate::fence_call::call;
use crate::fencepost::{BINARY, Config, Fencepost, Route};
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Scene};
use crate::store::{Store, Tenure};

const LOCK: &str = "/k";
const AN_HOUR: [&str; 2] = [r#"orphan_timeout = "1h""#, r#"handoff_timeout = "200ms""#];

fn guarded(lines: &[&str]) -> Route {
    lines.iter().fold(Route::k(), |route, line| route.with(line))
}

/// A process with a `state_dir` that does not pause before it stops, and the directory above.
async fn remembering(version: EtcdVersion, routes: &[Route]) -> (Scene, Scratch) {
    let scratch = Scratch::new();
    let path = scratch.path().join("state");
    let scene = Scene::with(version, routes, |config| {
        config.remembering_in(&path).limit(r#"drain_delay = "0s""#).limit(r#"drain_timeout = "1s""#)
    });
    (scene.await, scratch)
}

/// Such a process that has let in shard-1.
async fn let_in(version: EtcdVersion, route: Route) -> (Scene, Scratch, Tenure) {
    let (scene, scratch) = remembering(version, &[route]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &old).await;
    (scene, scratch, old)
}

/// The barrier stands: the request waits for as long as its route says, and what remains is about
/// an hour.
async fn waits(scene: &Scene, tenure: &Tenure) {
    let answer = scene.send(Ask::post("/waits").under(tenure)).await;
    assert_refused(&answer, "handoff-timeout", LOCK, tenure);
    let remains: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&remains), "{remains}");
}

const CLEARED: &str = "0 orphans of lock \"/k\" no longer count, nor does what an earlier process left at the worker\n";

async fn clear(scene: &Scene, lock: &str) -> (u16, String) {
    let answer = scene.fence.admin("POST", &format!("/locks/{lock}/clear-orphans")).await;
    (answer.status, answer.text())
}

async fn stop(scene: &mut Scene) {
    assert!(scene.fence.terminate().await.success(), "{}", scene.fence.log());
}

#[tokio::test]
async fn after_a_kill_the_same_tenure_goes_on_and_the_next_waits() {
    for version in EtcdVersion::ALL {
        let fresh =
            Route::new("fresh", "/fresh/", r#"key = "/fresh""#).with(AN_HOUR[0]).with(AN_HOUR[1]);
        let (mut scene, _state_dir) = remembering(version, &[fresh, guarded(&AN_HOUR)]).await;
        let latch = scene.worker.holds("/held");
        let dead = scene.store.hold(LOCK, "shard-0").await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        let mut line = scene.line().await;
        line.begin(Ask::post("/held").under(&old)).await.unwrap();
        scene.worker.wait_for(1).await;
        scene.fence.kill();

        scene.start_again().await;
        scene.refuses("/", &dead, "stale-tenure", LOCK, &old).await;
        scene.admits("/", &old).await;
        let new = scene.store.hold(LOCK, "shard-2").await;
        waits(&scene, &new).await;
        scene.refuses("/", &old, "stale-tenure", LOCK, &new).await;
        // The killed process let nobody in under this lock.
        let other = scene.store.hold("/fresh", "shard-1").await;
        scene.admits("/fresh/", &other).await;

        // Killed again: the time begins anew, and it is still that tenure's.
        scene.fence.kill();
        scene.start_again().await;
        waits(&scene, &new).await;
        let left = async || {
            let lock = scene.fence.admin_json("/locks//k").await;
            lock["gate"]["left_behind_seconds"].as_f64()
        };
        assert!((3_000.0..=3_600.0).contains(&left().await.unwrap()));
        assert_eq!(clear(&scene, LOCK).await, (200, CLEARED.to_owned()));
        assert_eq!(left().await, None);
        scene.admits("/after", &new).await;
        // Nor do they count again where the gate is made anew.
        scene.take_source_out().await;
        scene.fence.reloads(&scene.config).await;
        scene.admits("/again", &new).await;
        latch.open();
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_killed_process_is_ended_by_hand_before_its_lock_is_used() {
    let templated =
        Route::new("each", "/{each}/", r#"key = "/{each}""#).with(AN_HOUR[0]).with(AN_HOUR[1]);
    let (mut scene, _state_dir) = remembering(EtcdVersion::V3_5, &[templated]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/k/", &old).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    scene.fence.kill();
    scene.start_again().await;
    assert_eq!(clear(&scene, "/other").await.0, 404);
    assert_eq!(clear(&scene, LOCK).await, (200, CLEARED.to_owned()));
    assert_eq!(clear(&scene, LOCK).await.0, 404, "there is nothing left to end");
    scene.admits("/k/", &new).await;
    scene.finish().await;
}

/// The fence call says that the tenure has the worker to itself, so the tenure counts as the last
/// that was let in.
#[tokio::test]
async fn after_a_kill_a_tenure_with_only_a_fence_call_goes_on() {
    let (mut scene, _state_dir, old) = let_in(EtcdVersion::V3_5, guarded(&AN_HOUR)).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    let closed = call(&scene, &new, None).await;
    assert_eq!(closed.status, 204, "{closed:?}");
    scene.fence.kill();
    scene.start_again().await;
    scene.admits("/after", &new).await;
    scene.refuses("/", &old, "stale-tenure", LOCK, &new).await;
    scene.finish().await;
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Clean,
}

/// Who asks the next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Holder,
    Successor,
}

#[tokio::test]
async fn a_restart_waits_for_what_the_last_process_let_past() {
    let route = |mode: &str, orphan_timeout: &str| {
        guarded(&[AN_HOUR[1], &format!("mode = {mode:?}\norphan_timeout = {orphan_timeout:?}")])
    };
    let (enforce, shadow) =
        (|timeout| route("enforce", timeout), |timeout| route("shadow", timeout));
    let as_it_is: fn(String) -> String = |file| file;
    let renamed: fn(String) -> String =
        |file| file.replace("[source.main]", "[source.renamed]").replace("\"main\"", "\"renamed\"");
    let turned = vec![enforce("1h"), shadow("1h")];
    let longest = vec![shadow("100ms"), shadow("1h"), shadow("200ms")];
    for (before, end, after, edit, asks, must_wait) in [
        (vec![enforce("1h")], End::Clean, enforce("1h"), as_it_is, Asks::Successor, false),
        (vec![enforce("1h")], End::Killed, enforce("1h"), renamed, Asks::Successor, true),
        // The time counts that was in force when the request went out.
        (vec![enforce("1h")], End::Killed, enforce("100ms"), as_it_is, Asks::Successor, true),
        (vec![shadow("1h")], End::Clean, enforce("1h"), as_it_is, Asks::Holder, false),
        // What a watching route let past may be anybody's, so the holder waits too, for the longest
        // time in force.
        (vec![shadow("1h")], End::Killed, enforce("1h"), as_it_is, Asks::Holder, true),
        (turned, End::Killed, enforce("1h"), as_it_is, Asks::Holder, true),
        (longest, End::Killed, enforce("100ms"), as_it_is, Asks::Holder, true),
    ] {
        println!("{before:?}, then {end:?}, then {after:?}: {asks:?}");
        let (mut scene, _state_dir, holder) = let_in(EtcdVersion::V3_5, before[0].clone()).await;
        for reloaded in &before[1..] {
            scene.fence.reloads(&scene.config.clone().routes(std::slice::from_ref(reloaded))).await;
            scene.admits("/", &holder).await;
        }
        match end {
            End::Killed => scene.fence.kill(),
            End::Clean => stop(&mut scene).await,
        }
        let next =
            if asks == Asks::Holder { holder } else { scene.store.hold(LOCK, "shard-2").await };
        let file = edit(scene.config.clone().routes(&[after]).toml());
        scene.start_again_as(&file).await;
        if must_wait {
            waits(&scene, &next).await;
            assert_eq!(clear(&scene, LOCK).await.0, 200);
        }
        scene.admits("/after", &next).await;
        if !must_wait {
            scene.fence.kill();
            scene.start_again_as(&file).await;
            scene.admits("/again", &next).await;
        }
        scene.finish().await;
    }
}

/// Which of two sources has let somebody in last is not remembered.
#[tokio::test]
async fn after_a_kill_all_wait_for_what_another_source_let_in() {
    let (mut scene, _state_dir, old) = let_in(EtcdVersion::V3_5, guarded(&AN_HOUR)).await;
    stop(&mut scene).await;
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

/// A request that was let past may run on: one that named no lock, or one that came while the
/// process drained.
#[tokio::test]
async fn a_stop_is_unclean_while_a_watched_request_may_run_on() {
    let by_name = |mode: &str| {
        let route = Route::new("k", "/", r#"key = "/{name}", from_header = true"#);
        AN_HOUR.iter().fold(route.with(&format!("mode = {mode:?}")), |route, line| route.with(line))
    };
    for draining in [false, true] {
        let state_dir = Scratch::new();
        let path = state_dir.path().join("state");
        let delay = if draining { r#"drain_delay = "10m""# } else { r#"drain_delay = "0s""# };
        let mut scene = Scene::with(EtcdVersion::V3_5, &[by_name("shadow")], |config| {
            config.remembering_in(&path).limit(delay)
        })
        .await;
        let holder = scene.store.hold(LOCK, "shard-1").await;
        scene.worker.on("/reset", Behaviour::Reset);
        let mut request = Ask::post("/reset");
        if draining {
            scene.fence.process().terminate();
            scene.fence.until_log("step=\"leaving\"").await;
            request = request.header("Fence-Lock", LOCK);
        }
        assert_eq!(scene.send(request).await.status, 502);
        scene.until_metric("fencepost_connections", 0.0).await;
        stop(&mut scene).await;
        let enforcing = scene.config.clone().routes(&[by_name("enforce")]).toml();
        scene.start_again_as(&enforcing).await;
        let next = scene.send(Ask::post("/next").header("Fence-Lock", LOCK).under(&holder)).await;
        assert_refused(&next, "handoff-timeout", LOCK, &holder);
        scene.finish().await;
    }
}

#[tokio::test]
async fn after_a_kill_the_next_waits_orphan_timeout_from_the_start() {
    let (mut scene, _state_dir) =
        remembering(EtcdVersion::V3_5, &[guarded(&[r#"orphan_timeout = "2s""#])]).await;
    let latch = scene.worker.holds("/held");
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

#[tokio::test]
async fn a_stop_that_leaves_a_request_at_the_worker_is_unclean() {
    for leaves in ["running", "orphan"] {
        let (mut scene, _state_dir) = remembering(EtcdVersion::V3_5, &[guarded(&AN_HOUR)]).await;
        let latch = scene.worker.holds("/held");
        scene.worker.on("/reset", Behaviour::Reset);
        let old = scene.store.hold(LOCK, "shard-1").await;
        let mut line = scene.line().await;
        match leaves {
            "running" => drop(line.begin(Ask::post("/held").under(&old)).await.unwrap()),
            _ => assert_eq!(line.send(Ask::post("/reset").under(&old)).await.unwrap().status, 502),
        }
        scene.worker.wait_for(1).await;
        stop(&mut scene).await;
        let new = scene.store.hold(LOCK, "shard-2").await;
        scene.start_again().await;
        waits(&scene, &new).await;
        latch.open();
        scene.finish().await;
    }
}

const CLEAN: &str = "state_dir: no earlier process has left anything at the worker";

/// Starts another process. Its configuration lies beside the state.
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
    scene.fence.has_logged(CLEAN);
    scene.admits("/", &next).await;
    scene.finish().await;
}

#[tokio::test]
async fn after_a_start_that_fails_nobody_waits() {
    let (mut scene, state_dir, _) = let_in(EtcdVersion::V3_5, guarded(&AN_HOUR)).await;
    stop(&mut scene).await;
    // Each source has some descriptors of its own, and so has each thread.
    let sources: String =
        (0..40).map(|at| format!("[source.more{at}]\nkind = \"memory\"\n")).collect();
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

#[tokio::test]
async fn a_start_whose_disk_hangs_can_be_ended_and_leaves_nothing() {
    let (mut scene, state_dir, _) = let_in(EtcdVersion::V3_5, guarded(&AN_HOUR)).await;
    stop(&mut scene).await;
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
    assert_eq!(code, Some(1), "{log}");
    let told = [
        "the disk does not answer: a write to the state_dir",
        "reading what an earlier process left in the state_dir",
    ];
    assert!(told.iter().all(|text| log.contains(text)) && !log.contains("listening"), "{log}");
    std::fs::remove_file(&next).unwrap();
    nobody_waits(scene).await;
}

/// No journal can be written until the directory in its place is gone.
struct BrokenDisk(std::path::PathBuf);

impl BrokenDisk {
    fn below(state_dir: &Scratch) -> BrokenDisk {
        std::fs::remove_file(state_dir.path().join("state/journal")).unwrap();
        let next = state_dir.path().join("state/journal.next");
        std::fs::create_dir(&next).unwrap();
        BrokenDisk(next)
    }

    fn mend(self) {
        std::fs::remove_dir(self.0).unwrap();
    }
}

/// A store that was restored while no process ran. Its record names shard-1; shard-2 was the last
/// to be let in.
struct Restored {
    scene: Scene,
    holder: Tenure,
    lost: Tenure,
    state_dir: Scratch,
}

/// When the process ended that had let shard-2 in.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Cleanly,
    KilledAtOnce,
    /// Killed after it had written down how far it had seen the store.
    KilledLater,
}

impl Restored {
    async fn after(version: EtcdVersion, end: Ended) -> Restored {
        let (mut scene, state_dir) = remembering(version, &[guarded(&AN_HOUR)]).await;
        let holder = scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        scene.admits("/", &lost).await;
        match end {
            Ended::Cleanly => stop(&mut scene).await,
            Ended::KilledAtOnce => scene.fence.kill(),
            Ended::KilledLater => {
                let noted = format!(
                    r#""highest_seen":{{"source":"main","revision":{},"cluster":"#,
                    lost.revision
                );
                let journal = state_dir.path().join("state/journal");
                until("how far the store was seen is written down", async || {
                    String::from_utf8_lossy(&std::fs::read(&journal).unwrap()).contains(&noted)
                })
                .await;
                scene.fence.kill();
            }
        }
        scene.etcd.restore_snapshot(&snapshot).await;
        scene.store = Store::of(&scene.etcd).await;
        let mut restored = Restored { scene, holder, lost, state_dir };
        restored.launch().await;
        restored
    }

    /// Starts the process again, which may never be ready.
    async fn launch(&mut self) {
        self.scene.fence = Fencepost::launch(&self.scene.config).await;
    }

    /// Sends under a tenure that must not be let in until it is refused for this reason.
    async fn until_refused(&self, tenure: &Tenure, expected: &str) {
        eventually(&format!("{tenure:?} is refused as {expected}"), async || {
            let answer = self.scene.send(Ask::post("/dead").under(tenure)).await;
            assert!(
                reason(&answer).is_some(),
                "{tenure:?}, to be refused as {expected}: {}",
                answer.text()
            );
            (reason(&answer) == Some(expected))
                .then(|| assert_refused(&answer, expected, LOCK, &self.holder))
        })
        .await;
    }

    async fn until_all_are_refused(&self) {
        self.until_refused(&self.holder, "store-regressed").await;
        self.until_refused(&self.lost, "store-regressed").await;
    }

    async fn accepts(&self, status: u16, says: &str) {
        let accepted = self.scene.fence.admin("POST", "/sources/main/accept-regression").await;
        assert!(accepted.status == status && accepted.text().contains(says), "{}", accepted.text());
    }

    /// The restored store's holder is let in now, and the lost tenure is not.
    async fn is_believed(&self) {
        eventually("the store is believed again", async || {
            let answer = self.scene.send(Ask::post("/accepted").under(&self.holder)).await;
            (answer.status == 200).then_some(())
        })
        .await;
        let answer = self.scene.send(Ask::post("/dead").under(&self.lost)).await;
        assert!(
            matches!(reason(&answer), Some("ahead-of-store" | "unknown-revision" | "not-owner")),
            "{answer:?}"
        );
    }

    async fn finish(self) {
        assert!(
            !self.scene.worker.seen().iter().any(|one| one.path == "/dead"),
            "the dead stay dead"
        );
        self.scene.finish().await;
    }
}

#[tokio::test]
async fn a_restore_after_a_clean_stop_has_to_be_accepted() {
    for version in EtcdVersion::ALL {
        let mut restored = Restored::after(version, Ended::Cleanly).await;
        restored.until_all_are_refused().await;
        let disk = BrokenDisk::below(&restored.state_dir);
        for _ in 0..2 {
            restored.accepts(503, "a restart may have to be told again").await;
        }
        disk.mend();
        restored.accepts(200, "is accepted").await;
        restored.accepts(200, "nothing is changed").await;
        restored.is_believed().await;
        // For good: the next process is not told again.
        let scene = &mut restored.scene;
        stop(scene).await;
        scene.start_again().await;
        let next = scene.store.hold(LOCK, "shard-3").await;
        assert_eq!(next.revision, restored.lost.revision, "it is given out a second time");
        scene.admits("/next", &next).await;
        restored.finish().await;
    }
}

/// A restored etcd that has grown beyond all that was seen is told by another cluster id, or by its
/// log.
#[tokio::test]
async fn a_restore_that_has_grown_since_has_to_be_accepted() {
    for (version, as_another_cluster) in
        EtcdVersion::ALL.into_iter().flat_map(|version| [(version, false), (version, true)])
    {
        let (mut scene, state_dir) = remembering(version, &[guarded(&[])]).await;
        if !as_another_cluster {
            scene.etcd.kill();
            scene.etcd.restart().await; // It has had one election more than it will have when it is restored.
        }
        let holder = scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        scene.admits("/", &lost).await;
        stop(&mut scene).await;
        if as_another_cluster {
            scene.etcd.restore_snapshot_as_another_cluster(&snapshot).await;
        } else {
            scene.etcd.restore_snapshot(&snapshot).await;
        }
        scene.store = Store::of(&scene.etcd).await;
        while scene.store.put("/elsewhere", "x").await <= lost.revision {}
        let mut restored = Restored { scene, holder, lost, state_dir };
        // The second process knows it from the first.
        for _ in 0..2 {
            restored.launch().await;
            restored.until_all_are_refused().await;
            stop(&mut restored.scene).await;
        }
        restored.launch().await;
        restored.accepts(200, "is accepted").await;
        restored.is_believed().await;
        // For good.
        let scene = &mut restored.scene;
        stop(scene).await;
        scene.start_again().await;
        scene.admits("/next", &restored.holder).await;
        restored.finish().await;
    }
}

/// Floors start anew, barriers stay: what the killed process left may still run. The restored store
/// may give the lost tenure's revision to another owner, who waits as well.
#[tokio::test]
async fn a_restore_after_a_kill_has_to_be_accepted_and_waited_for() {
    for (version, end, is_given_out_twice) in [
        (EtcdVersion::V3_4, Ended::KilledLater, false),
        (EtcdVersion::V3_5, Ended::KilledLater, true),
        (EtcdVersion::V3_5, Ended::KilledAtOnce, false),
        (EtcdVersion::V3_4, Ended::KilledAtOnce, true),
    ] {
        let mut restored = Restored::after(version, end).await;
        restored.until_all_are_refused().await;
        if is_given_out_twice {
            restored.holder = restored.scene.store.hold(LOCK, "shard-3").await;
            assert_eq!(restored.holder.revision, restored.lost.revision);
            restored.until_refused(&restored.holder, "store-regressed").await;
        }
        restored.accepts(200, "is accepted").await;
        restored.until_refused(&restored.holder, "handoff-timeout").await;
        assert_eq!(clear(&restored.scene, LOCK).await.0, 200);
        restored.is_believed().await;
        restored.finish().await;
    }
}

#[tokio::test]
async fn a_failing_disk_is_told_of_until_it_is_well_and_logged_once() {
    let (mut scene, state_dir, _) = let_in(EtcdVersion::V3_5, guarded(&[])).await;
    assert_eq!(scene.fence.metric("fencepost_state_dir_failing").await, 0.0);
    let disk = BrokenDisk::below(&state_dir);
    let begun = Instant::now();
    // Another key's write raises the revision that is kept.
    scene.store.hold("/other", "shard-1").await;
    scene.until_metric("fencepost_state_dir_failing", 1.0).await;
    let new = scene.store.hold(LOCK, "shard-2").await;
    for answer in join_all((0..50).map(|_| scene.send(Ask::post("/dead").under(&new)))).await {
        assert_refused(&answer, "unverifiable", LOCK, None);
    }
    let lines_max = 1 + begun.elapsed().as_secs() / 10;
    disk.mend();
    scene.until_metric("fencepost_state_dir_failing", 0.0).await;
    scene.admits("/", &new).await;
    stop(&mut scene).await; // All is in the log.
    let lines = scene.fence.log().matches("a tenure cannot be recorded").count() as u64;
    assert!((1..=lines_max).contains(&lines), "{}", scene.fence.log());
    scene.finish().await;
}
