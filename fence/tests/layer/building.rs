//! What there can be no layer of.

use std::time::Duration;

use fencepost_fence::{Fence, InvalidLock, LayerBuilder, Layout};

use crate::scene::{LOCK, Scene};

/// A layer of that lock, or of those below a prefix, which has a star.
fn builder(fence: &Fence, (written, layout): (&str, Layout)) -> LayerBuilder {
    let builder = match written.strip_suffix('*') {
        Some(prefix) => fence.locks_below(prefix, |_| None),
        None => fence.lock(written),
    };
    builder.layout(layout)
}

/// What is wrong with two layers of one fence, in whatever order they are made; `None` if nothing
/// is.
fn at_odds(one: (&str, Layout), other: (&str, Layout)) -> Option<InvalidLock> {
    let [forth, back] = [(one, other), (other, one)].map(|(first, second)| {
        let Scene { fence, .. } = Scene::new();
        builder(&fence, first).layer().unwrap();
        builder(&fence, second).layer().err()
    });
    let kind = |invalid: &Option<InvalidLock>| invalid.as_ref().map(std::mem::discriminant);
    assert_eq!(kind(&forth), kind(&back), "{one:?} {other:?}");
    forth
}

#[tokio::test]
async fn no_two_layers_read_a_lock_in_different_ways() {
    use Layout::{Election, Key, Mutex};
    for (one, other) in [
        (("/a", Key), ("/a", Mutex)),
        (("/shards/*", Key), ("/shards/2/lock", Mutex)),
        (("/shards/*", Mutex), ("/shards/2/lock", Key)),
        (("/shards/*", Key), ("/shards/2/*", Election)),
        (("/shards/*", Key), ("/shards/*", Election)),
        (("*", Key), ("/shards/*", Election)),
    ] {
        let odd = at_odds(one, other);
        assert!(matches!(odd, Some(InvalidLock::Conflict(..))), "{one:?} {other:?}: {odd:?}");
    }
    let named = at_odds(("/shards/*", Key), ("/shards/2/lock", Mutex)).unwrap().to_string();
    assert_eq!(
        named,
        "the record of /shards/2/lock is read in another way by the layer of /shards/…"
    );
}

#[tokio::test]
async fn no_lock_is_among_the_contenders_of_another() {
    use Layout::{Election, Key, Mutex};
    for (one, other) in [
        (("/a", Election), ("/a/b", Key)),
        (("/a", Mutex), ("/a/b/c", Mutex)),
        (("/a", Mutex), ("/a/*", Key)),
        (("/a", Election), ("/a/b/*", Election)),
    ] {
        let odd = at_odds(one, other);
        assert!(matches!(odd, Some(InvalidLock::Nested(..))), "{one:?} {other:?}: {odd:?}");
    }
}

#[tokio::test]
async fn locks_that_are_not_in_each_others_way_may_be_of_one_fence() {
    use Layout::{Election, Key, Mutex};
    for (one, other) in [
        // Nothing contends below a key that is the record itself.
        (("/a", Key), ("/a/b", Mutex)),
        (("/a", Key), ("/a/*", Election)),
        (("/a", Mutex), ("/ab", Key)),
        (("/a", Mutex), ("/ab*", Key)),
        (("/a/*", Key), ("/b/*", Mutex)),
        (("/shards/*", Key), ("/shards/2/lock", Key)),
        (("/shards/*", Mutex), ("/shards/2/*", Mutex)),
        (("/shards/*", Mutex), ("/shards/*", Mutex)),
    ] {
        assert_eq!(at_odds(one, other), None, "{one:?} {other:?}");
    }
}

#[tokio::test]
async fn what_means_nothing_for_a_record_is_refused() {
    let scene = Scene::new();
    type Set = fn(LayerBuilder) -> LayerBuilder;
    let settings: [(&str, Set); 2] = [
        ("owner_field", |lock| lock.owner_field("who")),
        ("free_value", |lock| lock.free_value("nobody")),
    ];
    for (name, set) in settings {
        for layout in [Layout::Election, Layout::Mutex] {
            let refused = set(scene.fence.lock(LOCK).layout(layout)).layer().unwrap_err();
            assert_eq!(refused, InvalidLock::NotOfLayout { setting: name, layout });
        }
    }
    let nameless = scene.fence.lock(LOCK).owner_field("").layer();
    assert!(matches!(nameless, Err(InvalidLock::OwnerField)));
    assert!(scene.fence.lock(LOCK).owner_field("who").free_value("").layer().is_ok());
}

/// A time that no clock reaches would panic wherever it is added to the present: at a barrier, or
/// while a panic is handled.
#[tokio::test]
async fn a_time_of_a_layer_has_bounds() {
    let scene = Scene::new();
    type Set = fn(LayerBuilder, Duration) -> LayerBuilder;
    let of = |millis| Duration::from_millis(millis);
    let times: [(&str, Set, Duration, Duration); 4] = [
        ("max_age", LayerBuilder::max_age, of(10), of(3_600_000)),
        ("confirm_timeout", LayerBuilder::confirm_timeout, of(10), of(60_000)),
        ("handoff_timeout", LayerBuilder::handoff_timeout, of(100), of(3_600_000)),
        ("orphan_timeout", LayerBuilder::orphan_timeout, of(100), of(3_600_000)),
    ];
    for (name, set, min, max) in times {
        let with = |time| set(scene.fence.lock(LOCK), time).layer();
        for time in [min, max] {
            assert!(with(time).is_ok(), "{name} {time:?}");
        }
        for time in [Duration::ZERO, min - of(1), max + of(1), Duration::MAX] {
            let refused = with(time).unwrap_err();
            assert!(
                matches!(refused, InvalidLock::Time { setting, .. } if setting == name),
                "{refused}"
            );
        }
    }
}
