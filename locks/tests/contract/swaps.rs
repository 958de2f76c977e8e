//! What a write on a condition does.

use bytes::Bytes;
use fencepost_locks::{LockStore, Swap, Swapped};
use fencepost_policy::Revision;

use crate::world::{World, prefix};

async fn swap(
    world: &impl World,
    key: &str,
    expected: Option<Revision>,
    value: Option<&'static str>,
) -> Swapped {
    let swap = Swap {
        key: key.as_bytes().into(),
        expected,
        value: value.map(Bytes::from),
        read: prefix("m/"),
    };
    world.store().swap(&swap).await.expect("the store answers")
}

fn names(swapped: &Swapped) -> Vec<&[u8]> {
    swapped.names.iter().map(|name| &**name).collect()
}

pub(crate) async fn a_swap_writes_only_what_is_as_expected(world: &impl World) {
    let made = swap(world, "m/a", None, Some("1")).await;
    assert!(made.is_written);
    let found = world.get("m/a").await.expect("it was written");
    assert_eq!((found.value.as_ref(), found.modified), (&b"1"[..], made.revision));
    for expected in [None, made.revision.before()] {
        let refused = swap(world, "m/a", expected, Some("2")).await;
        assert_eq!((refused.is_written, refused.revision), (false, made.revision));
    }
    let changed = swap(world, "m/a", Some(made.revision), Some("2")).await;
    assert!(changed.is_written && changed.revision > made.revision);
    assert!(!swap(world, "m/a", Some(made.revision), None).await.is_written);
    assert!(swap(world, "m/a", Some(changed.revision), None).await.is_written);
    assert_eq!(world.get("m/a").await, None);
}

pub(crate) async fn a_swap_tells_the_keys_of_its_own_revision(world: &impl World) {
    world.put("m/b", "").await;
    world.put("n", "").await;
    let made = swap(world, "m/a", None, Some("1")).await;
    assert_eq!(names(&made), [b"m/a", b"m/b"]);
    let refused = swap(world, "m/a", None, Some("1")).await;
    assert_eq!(names(&refused), [b"m/a", b"m/b"]);
    let gone = swap(world, "m/a", Some(made.revision), None).await;
    assert_eq!(names(&gone), [b"m/b"]);
}

pub(crate) async fn of_swaps_at_a_time_one_is_made(world: &impl World) {
    let swaps = (0..8).map(|_| swap(world, "m/a", None, Some("mine")));
    let made = futures_util::future::join_all(swaps).await;
    assert_eq!(made.iter().filter(|swapped| swapped.is_written).count(), 1);
}
