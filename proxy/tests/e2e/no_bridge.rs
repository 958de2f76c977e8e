//! A tenure is never extended over writes that were not seen.

use std::cell::Cell;
use std::fmt;

use fencepost_tests::{Etcd, EtcdVersion, Relay, eventually, until};

use crate::fencepost::{Config, Fencepost, Route};
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Dice, Ledger, Scene, send};
use crate::store::{Layout, Store, Tenure};

const LOCK: &str = "/k";

fn routes() -> [Route; 1] {
    [Route::new("k", "/", r#"key = "/k", free_values = ["unlocked"]"#)]
}

/// A proxy whose way to etcd can be cut.
async fn behind_a_relay(version: EtcdVersion, routes: &[Route]) -> (Scene, Relay) {
    let etcd = Etcd::start(version).await;
    let relay = Relay::before(&etcd).await;
    let scene = Scene::seeing(etcd, &[format!("http://{}", relay.address())], routes).await;
    (scene, relay)
}

/// After an outage: the ended tenures are never admitted, the present one is before long.
async fn comes_back_to(scene: &Scene, present: &Tenure, ended: &[Tenure]) {
    eventually("the holder is admitted again", async || {
        for tenure in ended {
            let answer = scene.send(Ask::post("/").under(tenure)).await;
            assert!(
                reason(&answer).is_some(),
                "{tenure:?} was forwarded, {present:?} holds the lock"
            );
        }
        let answer = scene.send(Ask::post("/").under(present)).await;
        if answer.status != 200 {
            assert_refused(&answer, "unverifiable", LOCK, present);
        }
        (answer.status == 200).then_some(())
    })
    .await;
}

async fn refused(scene: &Scene, tenure: &Tenure, reason: &str, present: &Tenure) {
    scene.refuses("/", tenure, reason, LOCK, present).await;
}

/// shard-1, shard-2, shard-1, and nothing known of what came between.
async fn three_takeovers(store: &Store) -> [Tenure; 3] {
    [
        store.hold(LOCK, "shard-1").await,
        store.hold(LOCK, "shard-2").await,
        store.hold(LOCK, "shard-1").await,
    ]
}

#[tokio::test]
async fn a_cold_start_sees_takeovers_that_are_over() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start(version).await;
        let [one, two, three] = three_takeovers(&Store::of(&etcd).await).await;
        let scene = Scene::around(etcd, &routes()).await;
        refused(&scene, &one, "replayed-tenure", &three).await;
        refused(&scene, &two, "stale-tenure", &three).await;
        refused(&scene, &Tenure::new("shard-1", two.revision), "replayed-tenure", &three).await;
        scene.admits("/", &three).await;
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_watch_that_was_frozen_bridges_no_takeover() {
    for version in EtcdVersion::ALL {
        let (scene, relay) = behind_a_relay(version, &routes()).await;
        let before = scene.store.hold(LOCK, "shard-1").await;
        scene.admits("/", &before).await;
        relay.freeze().await;
        let [one, two, three] = three_takeovers(&scene.store).await;
        // Nothing can be known now: what began after the freeze is not admitted, and nobody is
        // called stale.
        scene.refuses("/", &three, "unverifiable", LOCK, &three).await;
        relay.restore().await;
        comes_back_to(&scene, &three, std::slice::from_ref(&two)).await;
        for earlier in [&before, &one] {
            refused(&scene, earlier, "replayed-tenure", &three).await;
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn after_a_compaction_a_tenure_is_what_can_be_shown() {
    for version in EtcdVersion::ALL {
        let etcd = Etcd::start(version).await;
        let store = Store::of(&etcd).await;
        let mut renewals = Vec::new();
        for _ in 0..4 {
            renewals.push(store.hold(LOCK, "shard-1").await);
        }
        store.compact(renewals[2].revision).await;
        // So old that what is known of a renewal without a request is known by the watch.
        let routes = routes().map(|route| route.with(r#"max_age = "1m""#));
        let scene = Scene::around(etcd, &routes).await;
        for renewal in &renewals[..2] {
            refused(&scene, renewal, "replayed-tenure", &renewals[3]).await;
        }
        for renewal in &renewals[2..] {
            scene.admits("/", renewal).await;
        }
        let latest = store.hold(LOCK, "shard-1").await;
        until("the watch has told of a renewal", async || {
            scene.fence.admin_json("/locks//k").await["last"] == latest.revision
        })
        .await;
        // What a running proxy has seen, it need not ask for again.
        let latest = store.hold(LOCK, "shard-1").await;
        store.compact(latest.revision).await;
        for renewal in &renewals[2..] {
            scene.admits("/", renewal).await;
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_compaction_while_the_watch_was_cut_bridges_no_takeover() {
    for version in EtcdVersion::ALL {
        let (scene, relay) = behind_a_relay(version, &routes()).await;
        let before = scene.store.hold(LOCK, "shard-1").await;
        scene.admits("/", &before).await;
        relay.cut().await;
        let [one, two, three] = three_takeovers(&scene.store).await;
        let newest = scene.store.hold(LOCK, "shard-1").await;
        scene.store.put("/elsewhere", "").await;
        scene.store.compact(newest.revision).await;
        relay.restore().await;
        comes_back_to(&scene, &newest, &[one.clone(), two.clone()]).await;
        for earlier in [&before, &one, &three] {
            refused(&scene, earlier, "replayed-tenure", &newest).await;
        }
        refused(&scene, &two, "stale-tenure", &newest).await;
        let next = scene.store.hold(LOCK, "shard-2").await;
        scene.admits("/", &next).await;
        refused(&scene, &newest, "stale-tenure", &next).await;
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_queue_that_moved_while_the_watch_was_cut_is_read_anew() {
    for layout in [Layout::Election, Layout::Mutex] {
        let lock = format!("key = {LOCK:?}, layout = {:?}", layout.name());
        let (scene, relay) =
            behind_a_relay(EtcdVersion::V3_5, &[Route::new("k", "/", &lock)]).await;
        let [one, two] =
            [scene.store.session("shard-1").await, scene.store.session("shard-2").await];
        let held = scene.store.acquire(layout, LOCK, &one).await;
        let before = held.tenure.clone();
        scene.admits("/", &before).await;
        relay.cut().await;
        scene.store.release(held).await;
        let between = scene.store.acquire(layout, LOCK, &two).await;
        let second = between.tenure.clone();
        scene.store.release(between).await;
        let now = scene.store.acquire(layout, LOCK, &one).await;
        relay.restore().await;
        comes_back_to(&scene, &now.tenure, std::slice::from_ref(&second)).await;
        refused(&scene, &before, "replayed-tenure", &now.tenure).await;
        refused(&scene, &second, "stale-tenure", &now.tenure).await;
        scene.finish().await;
    }
}

/// What a lock went through, as a master and as a judge of its own would write it down.
#[derive(Default)]
struct Chronicle {
    /// Each write of an owner, with its revision.
    written: Vec<Tenure>,
    /// The tenure that holds the lock now, and its first revision.
    present: Option<(String, i64)>,
}

impl Chronicle {
    /// Takes a step: one of two owners writes or rewrites the key, or it is freed in one of two
    /// ways.
    async fn step(&mut self, store: &Store, dice: &mut Dice) {
        match dice.roll(8) {
            0 => {
                store.delete(LOCK).await;
                self.present = None;
            }
            1 => {
                store.put(LOCK, "unlocked").await;
                self.present = None;
            }
            roll => {
                self.hold(store, if roll < 5 { "shard-1" } else { "shard-2" }).await;
            }
        }
    }

    /// An owner writes the key: a takeover, or a renewal if it holds the lock already.
    async fn hold(&mut self, store: &Store, owner: &str) -> Tenure {
        let tenure = store.hold(LOCK, owner).await;
        if self.present.as_ref().is_none_or(|(present, _)| present != owner) {
            self.present = Some((owner.to_owned(), tenure.revision));
        }
        self.written.push(tenure.clone());
        tenure
    }

    /// What becomes of a token that was once right; `None` if it still is.
    fn refused(&self, token: &Tenure) -> Option<&'static str> {
        match &self.present {
            None => Some("no-owner"),
            Some((_, first)) if token.revision >= *first => None,
            Some((owner, _)) if *owner == token.owner => Some("replayed-tenure"),
            Some(_) => Some("stale-tenure"),
        }
    }
}

impl fmt::Debug for Chronicle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, now {:?}", self.written, self.present)
    }
}

#[tokio::test]
async fn every_token_ever_held_is_judged_as_its_history_says() {
    for (version, seed) in EtcdVersion::ALL.into_iter().zip(1..) {
        let mut dice = Dice(seed);
        let (scene, relay) = behind_a_relay(version, &routes()).await;
        let mut chronicle = Chronicle::default();
        for round in 0..12 {
            // The watch is there, or was away for the whole of it.
            let cut = round % 2 == 1;
            if cut {
                relay.cut().await;
            }
            for _ in 0..=dice.roll(6) {
                chronicle.step(&scene.store, &mut dice).await;
            }
            let newest = chronicle.hold(&scene.store, "shard-1").await;
            if cut {
                relay.restore().await;
            }
            // From its first request on.
            comes_back_to(&scene, &newest, &[]).await;
            for token in &chronicle.written {
                let answer = scene.send(Ask::post("/").under(token)).await;
                assert_eq!(
                    reason(&answer),
                    chronicle.refused(token),
                    "round {round}, {token:?} of {chronicle:?}"
                );
            }
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_start_in_the_middle_of_takeovers_bridges_none() {
    for (version, seed) in EtcdVersion::ALL.into_iter().zip(10..) {
        let mut dice = Dice(seed);
        let scene = Scene::open(version, &routes()).await;
        let config =
            Config::new(&[scene.etcd.endpoint()], &scene.worker.endpoint().to_string(), &routes());
        let mut chronicle = Chronicle::default();
        for round in 0..4 {
            let up = Cell::new(false);
            let start = async {
                let second = Fencepost::serve(&config).await;
                up.set(true);
                second
            };
            let takeovers = async {
                while !up.get() {
                    chronicle.step(&scene.store, &mut dice).await;
                }
            };
            let (second, ()) = tokio::join!(start, takeovers);
            let newest = chronicle.hold(&scene.store, "shard-2").await;
            let ledger = Ledger::default();
            let first = send(&second.listener, &ledger, Ask::post("/").under(&newest)).await;
            assert_eq!(first.status, 200, "round {round}: {}", first.text());
            for token in chronicle.written.iter().rev().take(200) {
                let answer = send(&second.listener, &ledger, Ask::post("/").under(token)).await;
                assert_eq!(reason(&answer), chronicle.refused(token), "round {round}: {token:?}");
            }
        }
    }
}
