//! How a tenure is kept, and how it is lost.

use std::time::Duration;

use etcd_client::PutOptions;
use fencepost_hold::{BootInstant, Etcd, Lock, Over, Standing, Tenure};
use fencepost_tests::{Relay, eventually};

use crate::store::{KEY, Store, over};

const SECOND: Duration = Duration::from_secs(1);

/// Long enough for a busy machine to renew in time.
const TTL: Duration = Duration::from_secs(3);

fn until(tenure: &Tenure) -> BootInstant {
    match *tenure.standing().borrow() {
        Standing::Held { until } => until,
        Standing::Over(over) => panic!("{over}"),
    }
}

#[tokio::test]
async fn each_renewal_secures_three_quarters_of_the_ttl() {
    let store = Store::start().await;
    let before = BootInstant::now();
    let tenure = store.lock_with("a", |lock| lock.ttl(TTL)).acquire().await.unwrap();
    assert_eq!(tenure.ttl(), TTL);
    assert!(until(&tenure) <= BootInstant::now() + TTL / 4 * 3);
    assert!(until(&tenure) >= before + TTL / 4 * 3);
    let mut standing = tenure.standing();
    for _ in 0..4 {
        let sure = until(&tenure);
        standing.changed().await.unwrap();
        assert!(until(&tenure) > sure && until(&tenure) <= BootInstant::now() + TTL / 4 * 3);
        assert!(tenure.is_held());
    }
    assert!(BootInstant::now().since(before) > TTL);
    tenure.release().await.unwrap();
    store.is_clean().await;
}

#[tokio::test]
async fn a_renewal_counts_from_its_sending_not_its_answer() {
    let store = Store::start().await;
    let relay = Relay::before(&store.member).await;
    let etcd = Etcd::at([format!("http://{}", relay.address())]).unwrap();
    let ttl = TTL * 2;
    let delay = Duration::from_millis(120);
    relay.delay(delay).await;
    let tenure = Lock::builder(KEY, "a").ttl(ttl).build(&etcd).unwrap().acquire().await.unwrap();
    // At least two ways there and back: to take the lock, and later to renew and to read it.
    assert!(until(&tenure) + delay * 4 <= BootInstant::now() + ttl / 4 * 3);
    tenure.standing().changed().await.unwrap();
    assert!(until(&tenure) + delay * 4 <= BootInstant::now() + ttl / 4 * 3);
}

#[tokio::test]
async fn a_tenure_is_over_as_soon_as_its_key_or_its_lease_is_gone() {
    let store = Store::start().await;
    for what in ["key deleted", "lease revoked", "key overwritten", "key taken by another"] {
        let tenure = store.lock("a").acquire().await.unwrap();
        let mut client = store.client();
        match what {
            "key deleted" => drop(client.delete(KEY, None).await.unwrap()),
            "lease revoked" => drop(client.lease_revoke(store.leases().await[0]).await.unwrap()),
            "key overwritten" => drop(client.put(KEY, "b", None).await.unwrap()),
            _ => {
                client.delete(KEY, None).await.unwrap();
                client.put(KEY, "a", None).await.unwrap();
            }
        }
        let why = over(&tenure).await;
        assert!(!tenure.is_held(), "{what}");
        let expected = if what == "key overwritten" { Over::KeyChanged } else { Over::KeyDeleted };
        assert_eq!(why, expected, "{what}");
        // Whoever has written the key meanwhile keeps it.
        tenure.release().await.unwrap();
        let left = store.keys("/").await.len();
        assert_eq!(
            left,
            usize::from(matches!(what, "key overwritten" | "key taken by another")),
            "{what}"
        );
        client.delete(KEY, None).await.unwrap();
    }
    store.is_clean().await;
}

/// A watch may be silent, and etcd goes on renewing a lease whose key is gone: only the quorum read
/// after a renewal shows it.
#[tokio::test]
async fn a_renewal_does_not_count_when_the_key_is_gone() {
    let store = Store::start().await;
    for what in ["deleted", "taken by another"] {
        let relay = Relay::before(&store.member).await;
        let etcd = Etcd::at([format!("http://{}", relay.address())]).unwrap();
        let tenure =
            Lock::builder(KEY, "a").ttl(TTL).build(&etcd).unwrap().acquire().await.unwrap();
        // The first connection is for calls, the second for watches.
        eventually("the key is watched", async || (relay.accepted() >= 2).then_some(())).await;
        tenure.standing().changed().await.unwrap();
        relay.freeze_connection(1).await;
        store.client().delete(KEY, None).await.unwrap();
        if what == "taken by another" {
            store.client().put(KEY, "a", None).await.unwrap();
        }
        let gone = BootInstant::now();
        let expected = if what == "deleted" { Over::KeyDeleted } else { Over::KeyChanged };
        assert_eq!(over(&tenure).await, expected, "{what}");
        // Far less than it takes to find out that the watch's connection is dead.
        assert!(BootInstant::now().since(gone) < TTL, "{what}");
        relay.restore().await;
        tenure.release().await.unwrap();
        store.client().delete(KEY, None).await.unwrap();
    }
    store.is_clean().await;
}

#[tokio::test]
async fn a_holder_may_write_its_key_again_as_long_as_it_says_the_same() {
    let store = Store::start().await;
    let ttl = TTL * 3;
    let tenure = store.lock_with("a", |lock| lock.ttl(ttl)).acquire().await.unwrap();
    let lease = store.leases().await[0];
    store.client().put(KEY, "a", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    let mut standing = tenure.standing();
    standing.changed().await.unwrap();
    assert!(tenure.is_held());
    // The watch went on behind that write.
    let deleted = BootInstant::now();
    store.client().delete(KEY, None).await.unwrap();
    assert_eq!(over(&tenure).await, Over::KeyDeleted);
    assert!(
        BootInstant::now().since(deleted) < ttl / 3,
        "the watch is faster than the next renewal"
    );
}

#[tokio::test]
async fn who_gives_a_tenure_back_or_drops_it_ends_it_for_all_who_ask() {
    let store = Store::start().await;
    for dropped in [false, true] {
        let tenure = store.lock("a").acquire().await.unwrap();
        let lost = tenure.lost();
        match dropped {
            true => drop(tenure),
            false => tenure.release().await.unwrap(),
        }
        assert_eq!(lost.await, Over::Released);
        store.is_clean().await;
    }
}

#[tokio::test]
async fn a_compacted_history_ends_no_tenure_and_hides_no_deletion() {
    let mut store = Store::start().await;
    let tenure = store.lock_with("a", |lock| lock.ttl(SECOND * 12)).acquire().await.unwrap();
    let mut revision = 0;
    for _ in 0..5 {
        revision =
            store.client().put("/other", "x", None).await.unwrap().header().unwrap().revision();
    }
    store.client().compact(revision, None).await.unwrap();
    // Whatever watches the key has to begin anew, at a revision that is no more.
    store.member.kill();
    store.member.restart().await;
    tenure.standing().changed().await.unwrap();
    assert!(tenure.is_held());
    store.client().delete(KEY, None).await.unwrap();
    assert_eq!(over(&tenure).await, Over::KeyDeleted);
}
