//! A panic in the middle of a step at a gate.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fencepost_locks::Timing;
use fencepost_policy::{EnterError, FenceToken, Rejection};
use tokio::time::Instant;

use crate::world::{MAX_AGE, ask, options, play, tracked};

/// An owner that cannot be looked at.
struct Unspeakable;

impl AsRef<[u8]> for Unspeakable {
    fn as_ref(&self) -> &[u8] {
        panic!("on purpose")
    }
}

#[tokio::test(start_paused = true)]
async fn gate_after_a_panic_lets_in_nobody_and_can_be_left() {
    play(options(), async |store, source| {
        let held = store.put("lock", "a");
        let (lock, other) = (tracked(source, "lock").await, tracked(source, "other").await);
        let now = Instant::now();
        let timing =
            Timing { arrived: now, not_before: None, now, max_age: MAX_AGE, linearizable: false };
        let Ok(admission) = lock.enter(&FenceToken { owner: "a", revision: held }, &timing) else {
            panic!("the holder is let in")
        };
        let unspeakable = FenceToken { owner: Unspeakable, revision: held };
        assert!(catch_unwind(AssertUnwindSafe(|| lock.enter(&unspeakable, &timing))).is_err());

        let again = lock.enter(&FenceToken { owner: "a", revision: held }, &timing);
        assert!(matches!(again, Err(EnterError::Refused(Rejection::Unverifiable))), "{again:?}");
        assert!(!lock.is_clear(now), "what was let in before counts on");
        lock.leave(admission);
        assert!(lock.is_clear(now));
        let next = store.put("other", "b");
        assert_eq!(ask(&other, "b", next).await, "admit", "other gates are as before");
    })
    .await;
}
