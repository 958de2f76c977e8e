//! Locks as real clients leave them in etcd.

use fencepost_tests::{EtcdVersion, eventually};

use crate::fencepost::Route;
use crate::programs::{Etcdctl, lease_of};
use crate::refusal::{assert_refused, reason};
use crate::scene::{Ask, Scene};
use crate::store::{Layout, Tenure};

fn mutex() -> [Route; 1] {
    [Route::new("mutex", "/", r#"key = "/m", layout = "mutex""#)]
}

fn election() -> [Route; 1] {
    [Route::new("election", "/", r#"key = "/e", layout = "election""#)]
}

/// Waits until so many contend for a lock, and returns the newest: its key and create revision.
async fn queued(scene: &Scene, prefix: &str, count: usize) -> (String, i64) {
    eventually("the contender queues", async || {
        let queue = scene.store.queue(prefix).await;
        (queue.len() == count).then(|| queue.into_iter().next_back().unwrap())
    })
    .await
}

#[tokio::test]
async fn etcdctl_lock_is_admitted_contended_or_not() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &mutex()).await;
        let mut first = Etcdctl::lock(&scene.etcd, "/m");
        let one = first.handed().await;
        scene.admits("/", &one).await;

        let mut second = Etcdctl::lock(&scene.etcd, "/m");
        let (second_key, created) = queued(&scene, "/m/", 2).await;
        // It is no holder yet, whatever it claims.
        for revision in [created, one.revision] {
            scene.refuses("/", &Tenure::new(&second_key, revision), "not-owner", "/m", &one).await;
        }
        first.finish();
        let two = second.handed().await;
        assert_eq!(two.owner, second_key);
        assert!(
            two.revision > created,
            "etcd {version}: contended, so it is told a later revision: {two:?}, {created}"
        );
        scene.admits("/", &two).await;
        scene.admits("/", &Tenure::new(&second_key, created)).await;
        let late = scene.send(Ask::post("/").under(&one)).await;
        assert!(matches!(reason(&late), Some("stale-tenure" | "not-owner")), "{}", late.text());
        // A human name is no owner here.
        scene.refuses("/", &Tenure::new("shard-1", two.revision), "not-owner", "/m", &two).await;
        second.finish();
        let after = eventually("the lock is given back", async || {
            let answer = scene.send(Ask::post("/").under(&two)).await;
            (answer.status != 200).then_some(answer)
        })
        .await;
        assert_refused(&after, "no-owner", "/m", None);
        scene.finish().await;
    }
}

/// X holds; s1 and s2, two sessions of one master, queue in this order. s1 acquires and is told a
/// revision above the create revision of s2's key, stalls and loses its lease; s2 holds. A late
/// request of s1 must not pass.
#[tokio::test]
async fn a_zombie_with_a_higher_revision_is_refused() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &mutex()).await;
        let mut x = Etcdctl::lock(&scene.etcd, "/m");
        let x_holds = x.handed().await;
        let mut s1 = Etcdctl::lock(&scene.etcd, "/m");
        queued(&scene, "/m/", 2).await;
        let mut s2 = Etcdctl::lock(&scene.etcd, "/m");
        let (_, s2_created) = queued(&scene, "/m/", 3).await;
        scene.store.put("/elsewhere", "").await;
        x.finish();
        let zombie = s1.handed().await;
        assert!(zombie.revision > s2_created, "{zombie:?}, {s2_created}");
        scene.admits("/", &zombie).await;

        scene.etcd.etcdctl(&["lease", "revoke", lease_of(&zombie.owner)]).await;
        let holder = s2.handed().await;
        scene.admits("/", &holder).await;
        scene.refuses("/", &zombie, "not-owner", "/m", &holder).await;
        let pretends = Tenure::new("shard-1", zombie.revision);
        scene.refuses("/", &pretends, "not-owner", "/m", &holder).await;
        scene.refuses("/", &x_holds, "stale-tenure", "/m", &holder).await;
        scene.finish().await;
    }
}

#[tokio::test]
async fn etcdctl_elect_is_admitted_under_its_create_revision() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &election()).await;
        let mut first = Etcdctl::elect(&scene.etcd, "/e", "shard-1");
        let key = first.line().await;
        assert_eq!(first.line().await, "shard-1");
        let (_, created) = queued(&scene, "/e/", 1).await;
        let one = Tenure::new("shard-1", created);
        scene.admits("/", &one).await;

        let mut second = Etcdctl::elect(&scene.etcd, "/e", "shard-2");
        let (_, created) = queued(&scene, "/e/", 2).await;
        let two = Tenure::new("shard-2", created);
        scene.refuses("/", &two, "not-yet-owner", "/e", &one).await;
        scene.etcd.etcdctl(&["lease", "revoke", lease_of(&key)]).await;
        second.line().await;
        assert_eq!(second.line().await, "shard-2");
        scene.admits("/", &two).await;
        scene.refuses("/", &one, "stale-tenure", "/e", &two).await;
        scene.finish().await;
    }
}

#[tokio::test]
async fn proclaim_changes_the_name_and_not_the_tenure() {
    for version in EtcdVersion::ALL {
        let scene = Scene::open(version, &election()).await;
        let session = scene.store.session("shard-1").await;
        let held = scene.store.acquire(Layout::Election, "/e", &session).await;
        let old = held.tenure.clone();
        scene.admits("/", &old).await;
        for round in 1..=20 {
            let name = format!("shard-1-v{round}");
            scene.store.proclaim(&held, &name).await;
            let new = Tenure::new(&name, old.revision);
            scene.admits("/", &new).await;
            scene.refuses("/", &old, "not-owner", "/e", &new).await;
            let proclaimed = Tenure::new(&name, scene.store.revision().await);
            scene.refuses("/", &proclaimed, "unknown-revision", "/e", &new).await;
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn an_owner_may_be_a_field_of_a_json_value() {
    for version in EtcdVersion::ALL {
        let lock = r#"key = "/k", owner_field = "holder", free_values = ["", "nobody"]"#;
        let scene = Scene::open(version, &[Route::new("k", "/", lock)]).await;
        let put = async |value: &str| scene.store.put("/k", value).await;
        let first = put(r#"{"holder":"shard-1","until":1}"#).await;
        let renewed =
            put(r#"{ "until": 2, "holder": "shard\u002d1", "more": {"holder": "shard-9"} }"#).await;
        for revision in [first, renewed] {
            scene.admits("/", &Tenure::new("shard-1", revision)).await;
        }
        let two = Tenure::new("shard-2", put(r#"{"holder":"shard-2"}"#).await);
        scene.admits("/", &two).await;
        scene.refuses("/", &Tenure::new("shard-1", renewed), "stale-tenure", "/k", &two).await;
        let again = Tenure::new("shard-1", put(r#"{"holder":"shard-1"}"#).await);
        scene.admits("/", &again).await;
        scene.refuses("/", &Tenure::new("shard-1", renewed), "replayed-tenure", "/k", &again).await;
        for free in [r#"{"holder":"nobody"}"#, r#"{"holder":""}"#] {
            let freed = Tenure::new("nobody", put(free).await);
            scene.refuses("/", &freed, "no-owner", "/k", &again).await;
            scene.refuses("/", &again, "no-owner", "/k", &again).await;
        }
        scene.finish().await;
    }
}
