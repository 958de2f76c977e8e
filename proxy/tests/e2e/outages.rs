//! A lock store that stops, breaks, or goes back.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use etcd_client::AlarmType;
use fencepost_tests::{
    Answer, Behaviour, Cluster, Etcd, EtcdOptions, EtcdVersion, FreePort, GrpcProxy, Latch, Relay,
    Scratch, Worker, eventually, request,
};
use tokio::sync::watch;

use crate::cli::{Ran, Written};
use crate::fencepost::{Config, Fencepost, Route};
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Ledger, Line, Scene, send};
use crate::store::{Store, Tenure};

const LOCK: &str = "/k";

fn quick_to_age() -> Route {
    Route::new("k", "/", r#"key = "/k""#).with(r#"max_age = "1s""#)
}

#[tokio::test]
async fn a_stopped_store_admits_nobody_after_max_age() {
    for version in EtcdVersion::ALL {
        let shards = Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#);
        let scene = Scene::open(version, &[shards, quick_to_age()]).await;
        let stale = scene.store.hold(LOCK, "shard-2").await;
        let present = scene.store.hold(LOCK, "shard-1").await;
        scene.admits("/", &present).await;

        scene.etcd.pause().await;
        let stopped = Instant::now();
        let mut unverifiable = 0;
        // Every read that was answered was sent before now.
        while stopped.elapsed() < Duration::from_secs(3) {
            let sent = stopped.elapsed();
            let answer = scene.send(Ask::post("/").under(&present)).await;
            if answer.status == 503 {
                assert_refused(&answer, "unverifiable", LOCK, &present);
                unverifiable += 1;
            } else {
                assert_eq!(answer.status, 200, "{}", answer.text());
                assert!(
                    sent < Duration::from_secs(1),
                    "admitted {sent:?} after etcd {version} had stopped"
                );
            }
            // What is certain needs no store.
            let sent = Instant::now();
            let answer = scene.send(Ask::post("/").under(&stale)).await;
            assert_refused(&answer, "stale-tenure", LOCK, &present);
            // Who waits for the store does so for `confirm_timeout`, 2 s.
            assert!(
                sent.elapsed() < Duration::from_secs(2),
                "refused at once: {:?}",
                sent.elapsed()
            );
        }
        assert!(unverifiable > 0);
        // A balancer that took it out would have nobody left to say why.
        assert_eq!(scene.fence.metric(r#"fencepost_source_up{source="main"}"#).await, 0.0);
        assert_eq!(scene.fence.admin("GET", "/readyz").await.status, 200);

        scene.etcd.resume();
        let resumed = Instant::now();
        eventually("the holder is admitted again", async || {
            let answer = scene.send(Ask::post("/").under(&present)).await;
            assert!(matches!(reason(&answer), None | Some("unverifiable")), "{}", answer.text());
            (answer.status == 200).then_some(())
        })
        .await;
        let back = resumed.elapsed();
        println!("etcd {version}: admitted again {back:?} after it went on");
        assert!(back < Duration::from_secs(5), "{back:?}");
        scene.finish().await;
    }
}

/// Nobody else asks for the lock, and the watch has nothing more to tell of it: the stream went on
/// until somebody did.
#[tokio::test]
async fn an_event_stream_is_cut_after_an_outage_without_history() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let relay = Relay::before(&etcd).await;
    let route =
        Route::new("shards", "/{shard}/", r#"key = "/shards/{shard}""#).with(r#"max_age = "1s""#);
    let scene = Scene::seeing(etcd, &[format!("http://{}", relay.address())], &[route]).await;
    let ended = scene.store.hold("/shards/1", "shard-1").await;
    let events = Answer::ok("data: 1\n\ndata: 2\n\n").header("content-type", "text/event-stream");
    let events = events.halting_after(9, Latch::default());
    scene.worker.when(move |seen| {
        seen.path.ends_with("/events").then(|| Behaviour::Answer(events.clone()))
    });
    let mut client = scene.line().await;
    client.begin(Ask::post("/1/events").under(&ended)).await.unwrap();
    assert_eq!(client.connection().head().await.unwrap().status, 200);

    relay.cut().await;
    scene.store.delete("/shards/1").await;
    scene.store.compact(scene.store.hold("/shards/2", "shard-2").await.revision).await;
    relay.restore().await;
    let seen = client.connection().rest().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&seen), "9\r\ndata: 1\n\n\r\n", "it is cut, and not ended");
    scene.until_metric(r#"fencepost_cut_requests_total{route="shards"}"#, 1.0).await;
    scene.finish().await;
}

/// The log gives operators the reason, without a flood of lines.
#[tokio::test]
async fn an_absent_worker_is_logged_once_for_many_requests() {
    let etcd = fencepost_tests::Etcd::start(EtcdVersion::V3_5).await;
    let (store, nobody) = (Store::of(&etcd).await, FreePort::reserve());
    let upstream = format!("http://{}", nobody.address());
    let config = Config::new(&[etcd.endpoint()], &upstream, &[quick_to_age()]);
    let fence = Fencepost::serve(&config.threads(1).limit("connect_retries = 0")).await;
    let present = store.hold(LOCK, "shard-1").await;
    let token =
        [("Fence-Owner", present.owner.clone()), ("Fence-Revision", present.revision.to_string())];
    let headers: Vec<(&str, &str)> =
        token.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let began = Instant::now();
    for _ in 0..20 {
        let answer = request(fence.listener.clone(), "POST", "/", &headers, b"").await.unwrap();
        assert!(
            answer.status == 502 && answer.text().contains("\"failure\":\"worker-unreachable\""),
            "{}",
            answer.text()
        );
    }
    eventually("it is told", async || {
        fence.log().contains("the worker did not answer").then_some(())
    })
    .await;
    let log = fence.log();
    let told: Vec<&str> =
        log.lines().filter(|line| line.contains("the worker did not answer")).collect();
    let warned: Vec<&&str> = told.iter().filter(|line| line.contains("WARN")).collect();
    let periods = 1 + began.elapsed().as_secs() as usize / 10;
    assert!(
        (1..=periods).contains(&warned.len())
            && warned[0].contains("worker-unreachable")
            && warned[0].contains("refused"),
        "{log}"
    );
}

/// As uwsgi's `--http-socket` and small embedded servers do.
#[tokio::test]
async fn a_worker_that_drops_kept_connections_is_logged() {
    let etcd = fencepost_tests::Etcd::start(EtcdVersion::V3_5).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for answer in ["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""] {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.extend(byte);
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    let route = Route::k().with(r#"mode = "off""#);
    let config = Config::new(&[etcd.endpoint()], &upstream, &[route]).threads(1);
    let fence = Fencepost::serve(&config.limit(r#"upstream_idle_timeout = "1m""#)).await;
    for status in [200, 502, 200, 502] {
        let answer = request(fence.listener.clone(), "GET", "/", &[], b"").await.unwrap();
        assert_eq!(answer.status, status, "{}", answer.text());
    }
    let is_named = async || fence.log().contains("upstream_keepalive = false").then_some(());
    eventually("the log names the setting", is_named).await;
}

#[tokio::test]
async fn a_start_without_a_store_is_not_ready_and_admits_nobody() {
    let mut etcd = fencepost_tests::Etcd::start(EtcdVersion::V3_5).await;
    let store = Store::of(&etcd).await;
    let present = store.hold(LOCK, "shard-1").await;
    etcd.kill();
    let worker = Worker::start().await;
    let config = Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), &[quick_to_age()]);
    let fence = Fencepost::launch(&config).await;
    assert_eq!(fence.admin("GET", "/livez").await.status, 200);
    assert_eq!(fence.admin("GET", "/readyz").await.status, 503);
    let ledger = Ledger::default();
    let ask = || Ask::post("/").under(&present);
    let answer = crate::scene::send(&fence.listener, &ledger, ask()).await;
    assert_refused(&answer, "unverifiable", LOCK, &present);
    etcd.restart().await;
    fence.wait_until_ready().await;
    assert_eq!(crate::scene::send(&fence.listener, &ledger, ask()).await.status, 200);
    ledger.check(&worker);
}

/// Right after `/readyz` had said 200 nothing was watched: a superseded holder was still let in.
#[tokio::test]
async fn start_without_a_watch_is_not_ready() {
    for version in EtcdVersion::ALL {
        for route in [quick_to_age(), Route::new("shards", "/{shard}/", r#"key = "/{shard}""#)] {
            let etcd = Etcd::start(version).await;
            let relay = Relay::before(&etcd).await;
            let store = Store::of(&etcd).await;
            let present = store.hold(LOCK, "shard-1").await;
            let worker = Worker::start().await;
            let seen_at = [format!("http://{}", relay.address())];
            // Reads have the first connection, watches the second.
            relay.freeze_from(1).await;
            let fence =
                Fencepost::launch(&Config::new(&seen_at, &worker.endpoint().to_string(), &[route]))
                    .await;
            eventually("a watch is asked for", async || (relay.accepted() > 1).then_some(())).await;
            assert_eq!(fence.admin("GET", "/readyz").await.status, 503, "etcd {version}");

            relay.restore().await;
            fence.wait_until_ready().await;
            let ledger = Ledger::default();
            let answer =
                crate::scene::send(&fence.listener, &ledger, Ask::post("/k/").under(&present))
                    .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            ledger.check(&worker);
        }
    }
}

#[tokio::test]
async fn a_restored_store_admits_nobody_until_the_operator_accepts_it() {
    for version in EtcdVersion::ALL {
        let mut scene = Scene::open(version, &[quick_to_age()]).await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        for _ in 0..5 {
            scene.store.put("/elsewhere", "").await;
        }
        scene.admits("/", &lost).await;

        scene.etcd.restore_snapshot(&snapshot).await;
        eventually("the store is seen to have gone back", async || {
            let answer = scene.send(Ask::post("/").under(&lost)).await;
            (reason(&answer) == Some("store-regressed")).then(|| {
                assert_refused(&answer, "store-regressed", LOCK, &old);
            })
        })
        .await;
        // It holds the lock as far as the store knows, but the store has said otherwise before.
        let answer = scene.send(Ask::post("/").under(&old)).await;
        assert!(
            matches!(reason(&answer), Some("stale-tenure" | "store-regressed")),
            "{}",
            answer.text()
        );
        let regressed = r#"fencepost_source_regressed{source="main"}"#;
        assert_eq!(scene.fence.metric(regressed).await, 1.0);

        assert_eq!(scene.fence.admin("GET", "/sources/main/accept-regression").await.status, 405);
        assert_eq!(scene.fence.admin("POST", "/sources/other/accept-regression").await.status, 404);
        let accepted = scene.fence.admin("POST", "/sources/main/accept-regression").await;
        assert!(matches!(accepted.status, 200 | 204), "{accepted:?}");
        assert_eq!(scene.fence.metric(regressed).await, 0.0);
        eventually("the store is believed again", async || {
            let answer = scene.send(Ask::post("/").under(&old)).await;
            (answer.status == 200).then_some(())
        })
        .await;
        let answer = scene.send(Ask::post("/").under(&lost)).await;
        assert!(
            matches!(reason(&answer), Some("ahead-of-store" | "unknown-revision")),
            "{}",
            answer.text()
        );
        scene.finish().await;
    }
}

/// The process stood still until it was beyond all that had been seen of it. Its locks were judged
/// by it, and nobody was told.
#[tokio::test]
async fn a_restored_store_that_has_grown_is_told_by_its_log() {
    for version in EtcdVersion::ALL {
        let mut scene = Scene::open(version, &[quick_to_age()]).await;
        scene.etcd.kill();
        scene.etcd.restart().await; // It has had one election more than it will have when it is restored.
        scene.store = Store::of(&scene.etcd).await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        scene.admits("/", &lost).await;
        scene.fence.process().pause().await;
        scene.etcd.restore_snapshot(&snapshot).await;
        scene.store = Store::of(&scene.etcd).await;
        while scene.store.put("/elsewhere", "").await <= lost.revision {}
        scene.fence.process().resume();
        eventually("the store is seen to have gone back", async || {
            let answer = scene.send(Ask::post("/dead").under(&old)).await;
            (reason(&answer) == Some("store-regressed")).then_some(())
        })
        .await;
        let answer = scene.send(Ask::post("/dead").under(&lost)).await;
        assert_refused(&answer, "store-regressed", LOCK, &old);
        assert_eq!(scene.fence.metric(r#"fencepost_source_regressed{source="main"}"#).await, 1.0);
        let next = scene.store.hold(LOCK, "shard-3").await;
        eventually("a tenure that begins above all that was seen is let in", async || {
            (scene.send(Ask::post("/next").under(&next)).await.status == 200).then_some(())
        })
        .await;
        assert!(!scene.worker.seen().iter().any(|one| one.path == "/dead"));
        scene.finish().await;
    }
}

/// That nobody answers is no reason to believe a store that went back.
#[tokio::test]
async fn dangerous_admit_does_not_trust_a_restored_store() {
    let route = quick_to_age().with(r#"on_unavailable = "dangerous_admit""#);
    let mut scene = Scene::open(EtcdVersion::V3_5, &[route]).await;
    let old = scene.store.hold(LOCK, "shard-1").await;
    let snapshot = scene.etcd.save_snapshot().await;
    let lost = scene.store.hold(LOCK, "shard-2").await;
    scene.admits("/", &lost).await;
    scene.etcd.restore_snapshot(&snapshot).await;
    eventually("the store is seen to have gone back", async || {
        (scene.fence.metric(r#"fencepost_source_regressed{source="main"}"#).await == 1.0)
            .then_some(())
    })
    .await;
    let forwarded = scene.worker.seen().len();
    for tenure in [&lost, &old] {
        let answer = scene.send(Ask::post("/").under(tenure)).await;
        if tenure == &old && reason(&answer) == Some("stale-tenure") {
            continue; // That is certain, whatever the store says by now.
        }
        assert_refused(&answer, "store-regressed", LOCK, &old);
    }
    assert_eq!(scene.worker.seen().len(), forwarded);
    scene.finish().await;
}

/// A restart in between let the doubtful tenure in: of the store it knew only that it was beyond
/// all that had been seen.
#[tokio::test]
async fn a_restored_store_is_trusted_above_all_that_was_seen() {
    for version in EtcdVersion::ALL {
        let state_dir = Scratch::new();
        let mut scene = Scene::with(version, &[quick_to_age()], |config| {
            config.remembering_in(&state_dir.path().join("state")).limit(r#"drain_delay = "0s""#)
        })
        .await;
        let old = scene.store.hold(LOCK, "shard-1").await;
        let snapshot = scene.etcd.save_snapshot().await;
        let lost = scene.store.hold(LOCK, "shard-2").await;
        let highest = scene.store.put("/elsewhere", "").await;
        scene.admits("/", &lost).await;
        scene.etcd.restore_snapshot(&snapshot).await;
        let store = Store::of(&scene.etcd).await;
        eventually("the store is seen to have gone back", async || {
            let answer = scene.send(Ask::post("/").under(&lost)).await;
            (reason(&answer) == Some("store-regressed")).then_some(())
        })
        .await;
        // The revision of the lost tenure is given out a second time, to someone else.
        let mut revision = store.hold(LOCK, "shard-3").await.revision;
        let doubtful = Tenure::new("shard-3", revision);
        assert_eq!(revision, lost.revision);
        let answer = scene.send(Ask::post("/").under(&doubtful)).await;
        assert!(reason(&answer).is_some(), "{}", answer.text());
        while revision <= highest + 1 {
            revision = store.put("/elsewhere", "").await;
        }
        eventually("the store is seen to have grown beyond", async || {
            let seen = scene.fence.admin_json("/locks").await["sources"][0]["revision"].as_i64();
            (seen > Some(highest)).then_some(())
        })
        .await;
        assert!(scene.fence.terminate().await.success());
        scene.start_again().await;
        let answer = scene.send(Ask::post("/").under(&doubtful)).await;
        assert_refused(&answer, "store-regressed", LOCK, &doubtful);
        assert_eq!(scene.fence.metric(r#"fencepost_source_regressed{source="main"}"#).await, 1.0);
        let new = store.hold(LOCK, "shard-4").await;
        eventually("a tenure from beyond is admitted", async || {
            for ended in [&lost, &old, &doubtful] {
                let answer = scene.send(Ask::post("/").under(ended)).await;
                assert!(reason(&answer).is_some(), "{ended:?}: {}", answer.text());
            }
            let answer = scene.send(Ask::post("/").under(&new)).await;
            (answer.status == 200).then_some(())
        })
        .await;
        scene.finish().await;
    }
}

/// What a holder that sends at a steady pace sees.
#[derive(Debug, Default)]
struct Experience {
    admitted: usize,
    unverifiable: usize,
    /// The longest time without an admission, as its holder sees it.
    longest_gap: Duration,
    /// The longest time that a request took.
    longest_wait: Duration,
}

impl Experience {
    /// Sends under whatever tenure holds the lock, and under the one before, until told to stop.
    async fn of(
        mut line: Line,
        mut tenures: watch::Receiver<Option<[Tenure; 2]>>,
        mut stop: watch::Receiver<bool>,
    ) -> Experience {
        let mut experience = Experience::default();
        let mut admitted_at = Instant::now();
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        while !*stop.borrow_and_update() {
            pace.tick().await;
            // Between its loss of the lock and the next acquisition nobody sends as a holder.
            let Some([before, now]) = tenures.borrow_and_update().clone() else {
                admitted_at = Instant::now();
                continue;
            };
            let sent = Instant::now();
            let answer = line.send(Ask::post("/").under(&now)).await.unwrap();
            experience.longest_wait = experience.longest_wait.max(sent.elapsed());
            if tenures.has_changed().unwrap_or(false) {
                continue;
            }
            if answer.status == 200 {
                experience.admitted += 1;
                experience.longest_gap = experience.longest_gap.max(admitted_at.elapsed());
                admitted_at = Instant::now();
                // From its successor's first request on.
                let zombie = line.send(Ask::post("/").under(&before)).await.unwrap();
                assert_refused(&zombie, "stale-tenure", LOCK, &now);
            } else {
                assert_refused(&answer, "unverifiable", LOCK, &now);
                experience.unverifiable += 1;
            }
        }
        experience
    }
}

/// In 5 of 24 starts the wrong one was believed: its old holder was let in, and the true one
/// refused.
#[tokio::test]
async fn endpoints_of_two_clusters_admit_nobody_until_one_is_left() {
    let (ours, mut theirs) =
        tokio::join!(Etcd::start(EtcdVersion::V3_5), Etcd::start(EtcdVersion::V3_5));
    let (holder, impostor) =
        tokio::join!(async { Store::of(&ours).await.hold(LOCK, "shard-2").await }, async {
            Store::of(&theirs).await.hold(LOCK, "shard-1").await
        },);
    let worker = Worker::start().await;
    let routes = [Route::new("k", "/", r#"key = "/k""#)];
    let config =
        Config::new(&[theirs.endpoint(), ours.endpoint()], &worker.endpoint().to_string(), &routes);
    let fence = Fencepost::launch(&config).await;
    fence.until_log("set cluster_id to the one that is meant").await;
    for tenure in [&impostor, &holder] {
        let answer = Line::open(&fence.listener, &Ledger::default())
            .await
            .send(Ask::post("/").under(tenure))
            .await;
        assert_refused(&answer.unwrap(), "unverifiable", LOCK, None);
    }
    assert_eq!(fence.admin("GET", "/readyz").await.status, 503);
    assert_eq!(fence.metric("fencepost_source_up{source=\"main\"}").await, 0.0);
    theirs.kill();
    fence.wait_until_ready().await;
    theirs.restart().await;
    fence.until_log("endpoint is not used").await;
    let mut line = Line::open(&fence.listener, &Ledger::default()).await;
    assert_eq!(line.send(Ask::post("/").under(&holder)).await.unwrap().status, 200);
    let answer = line.send(Ask::post("/").under(&impostor)).await.unwrap();
    assert!(reason(&answer).is_some(), "{answer:?}");
}

/// The process was not ready, and nothing said for which lock.
#[tokio::test]
async fn large_queue_is_named_and_holds_up_no_other_lock() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let (store, worker) = (Store::of(&etcd).await, Worker::start().await);
    for number in 0..20 {
        store.put(&format!("/queue/{number:x}"), vec![b'v'; 1 << 20]).await;
    }
    let queue = Route::new("queue", "/queue/", r#"key = "/queue", layout = "election""#);
    let config = Config::of(&etcd, &worker, &[queue, Route::k()]);
    let fence = Fencepost::serve(&config).await;
    let holder = store.hold(LOCK, "shard-1").await;
    for _ in 0..50 {
        let ask = Ask::post("/queue/x").token("shard-1", "2");
        let answer = send(&fence.listener, &Ledger::default(), ask).await;
        assert_eq!(reason(&answer), Some("unverifiable"), "{answer:?}");
        let answer = send(&fence.listener, &Ledger::default(), Ask::post("/").under(&holder)).await;
        assert_eq!(answer.status, 200);
    }
    let says = "what the lock store has at --prefix /queue/ is too large";
    assert_eq!(fence.log().matches(says).count(), 1, "{}", fence.log());
    assert!(!fence.log().contains("answers again"), "{}", fence.log());
    let checked = Written::new(&config.toml()).ask("check --live").await.ended(1);
    assert!(checked.stdout.contains(&format!("lock /queue (election): {says}")), "{checked:?}");
}

/// No read shows either.
#[tokio::test]
async fn alarms_and_dead_members_are_told() {
    let mut cluster = Cluster::start(EtcdVersion::V3_5, 3).await;
    let worker = Worker::start().await;
    Store::of(&cluster.members[0]).await.raise(AlarmType::Nospace).await;
    cluster.members[2].kill();
    let upstream = worker.endpoint().to_string();
    let config = Config::new(&cluster.endpoints(), &upstream, &[Route::k()]);
    let fence = Fencepost::serve(&config).await;
    fence.until_log("has raised the alarm NOSPACE").await;
    for (problem, endpoints) in [("nospace", 2.0), ("corrupt", 0.0), ("no-answer", 1.0)] {
        let labels = format!(r#"{{problem="{problem}",source="main"}}"#);
        let metric = format!("fencepost_source_member_problems{labels}");
        assert_eq!(fence.metric(&metric).await, endpoints, "{problem}");
    }
    let sources = fence.admin("GET", "/sources").await.text();
    let checked = Written::new(&config.toml()).ask("check --live").await.ended(0);
    for told in [&sources, &checked.stdout] {
        assert!(told.contains("has raised the alarm NOSPACE"), "{told}");
        assert!(told.contains(&cluster.members[2].endpoint()), "{told}");
    }
}

/// The old holder was admitted 8 s after the takeover, and the true one refused.
#[tokio::test]
async fn cache_before_etcd_admits_nobody() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let cache = GrpcProxy::start(EtcdVersion::V3_5, &etcd.endpoint(), true);
    let (store, worker) = (Store::of(&etcd).await, Worker::start().await);
    let config = |endpoints: &[String]| {
        Config::new(endpoints, &worker.endpoint().to_string(), &[Route::k()])
    };
    let earlier = store.hold(LOCK, "shard-1").await;
    let alone = config(&[cache.endpoint()]);
    let fence = Fencepost::launch(&alone).await;
    let says = "is no member of an etcd cluster";
    fence.until_log(says).await;
    let holder = store.hold(LOCK, "shard-2").await;
    for tenure in [&earlier, &holder] {
        let answer = send(&fence.listener, &Ledger::default(), Ask::post("/").under(tenure)).await;
        assert_refused(&answer, "unverifiable", LOCK, None);
    }
    eventually("the sources name it", async || {
        fence.admin("GET", "/sources").await.text().contains(says).then_some(())
    })
    .await;
    let Ran { stdout, .. } = Written::new(&alone.toml()).ask("check --live").await.ended(1);
    assert!(stdout.contains(says), "{stdout}");
    drop(fence);

    let fence = Fencepost::serve(&config(&[cache.endpoint(), etcd.endpoint()])).await;
    let answer = send(&fence.listener, &Ledger::default(), Ask::post("/").under(&earlier)).await;
    assert_eq!(reason(&answer), Some("stale-tenure"), "{answer:?}");
    let answer = send(&fence.listener, &Ledger::default(), Ask::post("/").under(&holder)).await;
    assert_eq!(answer.status, 200);
}

/// It was logged about 8 times a second, and what helps was not.
#[tokio::test]
async fn another_cluster_is_logged_once_and_trusted_after_a_restart() {
    // Each request asks it again and again, until it is too late.
    let asking = Route::new("k", "/", r#"key = "/k""#).with(r#"freshness = "linearizable""#);
    let mut scene = Scene::open(EtcdVersion::V3_5, &[asking]).await;
    let tenure = scene.store.hold(LOCK, "shard-1").await;
    scene.admits("/", &tenure).await;
    let snapshot = scene.etcd.save_snapshot().await;
    scene.etcd.restore_snapshot_as_another_cluster(&snapshot).await;
    scene.fence.until_log("endpoint is not used").await;
    for _ in 0..3 {
        let answer = scene.send(Ask::post("/").under(&tenure)).await;
        assert_eq!(reason(&answer), Some("unverifiable"), "{answer:?}");
    }
    let log = scene.fence.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("endpoint is not used")).collect();
    assert!(told.len() == 1 && told[0].contains("restart"), "{told:#?}");
    // Its revision has not gone back, and so there is nothing to accept.
    let accepted = scene.fence.admin("POST", "/sources/main/accept-regression").await;
    let said = accepted.text();
    assert!(said.contains("has not gone back") && said.contains("belongs to cluster"), "{said}");
    assert!(scene.fence.terminate().await.success());
    scene.start_again().await;
    scene.admits("/", &tenure).await;
    scene.finish().await;
}

#[tokio::test]
async fn each_member_of_a_cluster_may_stop_or_die_in_etcd_3_4() {
    members_fail(EtcdVersion::V3_4).await;
}

#[tokio::test]
async fn each_member_of_a_cluster_may_stop_or_die_in_etcd_3_5() {
    members_fail(EtcdVersion::V3_5).await;
}

async fn members_fail(version: EtcdVersion) {
    let timing = EtcdOptions {
        heartbeat: Some(Duration::from_millis(50)),
        election: Some(Duration::from_millis(500)),
        ..EtcdOptions::default()
    };
    let mut cluster = Cluster::start_with(version, 3, &timing).await;
    let worker = Worker::start().await;
    let route = Route::new("k", "/", r#"key = "/k""#).with(r#"max_age = "2s""#);
    let config = Config::new(&cluster.endpoints(), &worker.endpoint().to_string(), &[route]);
    let mut stores = Vec::new();
    for member in &cluster.members {
        stores.push(Store::of(member).await);
    }
    let before = stores[0].hold(LOCK, "shard-0").await;
    let mut now = stores[0].hold(LOCK, "shard-1").await;
    let fence = Fencepost::serve(&config).await;
    let ledger = Ledger::default();
    for member in 0..3 {
        for paused in [true, false] {
            let (tenures, seen) = watch::channel(Some([before.clone(), now.clone()]));
            let (stop, stopped) = watch::channel(false);
            let line = Line::open(&fence.listener, &ledger).await;
            let sending = tokio::spawn(Experience::of(line, seen, stopped));
            if paused {
                cluster.members[member].pause().await;
            } else {
                cluster.members[member].kill();
            }
            let failed = Instant::now();
            // The lock changes hands through a member that is left, as soon as there is a leader
            // again.
            tenures.send_replace(None);
            let survivor = &stores[(member + 1) % 3];
            let owner = format!("shard-{member}-{paused}");
            let revision = eventually("a write through another member", async || {
                survivor.try_put(LOCK, &owner).await
            })
            .await;
            let predecessor = std::mem::replace(&mut now, Tenure::new(&owner, revision));
            tenures.send_replace(Some([predecessor, now.clone()]));
            let writable = failed.elapsed();
            // Longer than what was fresh before the failure can be.
            let stale = failed + Duration::from_secs(4);
            tokio::time::sleep_until(stale.max(Instant::now() + Duration::from_secs(2)).into())
                .await;
            if paused {
                cluster.members[member].resume();
            } else {
                cluster.members[member].restart().await;
            }
            stop.send_replace(true);
            let experience = sending.await.unwrap();
            println!(
                "etcd {version}, member {member} paused={paused}, writable after {writable:?}: {experience:?}"
            );
            assert!(experience.admitted > 20, "{experience:?}");
            // On a machine this busy, there may be one more election as long as the first.
            assert!(experience.longest_gap < writable + Duration::from_secs(3), "{experience:?}");
        }
    }
    ledger.check(&worker);
}
