//! Follows the tenure that a request was admitted under.
//! It does not cut anything.

use std::future::pending;
use std::rc::Rc;

use tokio::time::{Instant, timeout_at};

use super::permit::{TenureState, TenureWatch};

/// Waits until the next piece of what a client sends bit by bit may go to the worker: not while
/// nobody knows whether the tenure goes on, and never once it has ended.
pub(super) async fn goes_on(watch: &dyn TenureWatch) {
    loop {
        let changed = watch.changed(); // Before the look, so that no change is missed.
        match watch.state() {
            TenureState::Good { .. } => return,
            TenureState::Stale => _ = timeout_at(watch.fetch_news(), changed).await,
            TenureState::Ended => pending().await, // Whoever waits for the end cuts the request.
        }
    }
}

/// Waits for the end of the tenure. While news is too old it is looked for: nobody else may ask for
/// this lock. While something is coming from the client, that is a pause, and one that is too long
/// is an end as well.
pub(super) async fn ended(watch: Rc<dyn TenureWatch>, is_coming: impl Fn() -> bool) {
    let mut paused_since = None;
    loop {
        let changed = watch.changed();
        let look_at = match watch.state() {
            TenureState::Ended => return,
            TenureState::Good { until } => {
                paused_since = None;
                until
            }
            TenureState::Stale if is_coming() => {
                let cut_at = *paused_since.get_or_insert_with(Instant::now) + watch.pause_max();
                if cut_at <= Instant::now() {
                    return;
                }
                watch.fetch_news().min(cut_at)
            }
            TenureState::Stale => watch.fetch_news(),
        };
        let _ = timeout_at(look_at, changed).await; // Whichever it was: look again.
    }
}
