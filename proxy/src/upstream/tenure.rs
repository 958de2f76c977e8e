//! Looking after the tenure that a request was admitted under.

use std::pin::Pin;
use std::rc::Rc;
use std::task::Context;

use tokio::time::{Instant, timeout_at};

use super::permit::{TenureState, TenureWatch};

/// Whether the next piece of what a client sends bit by bit may go to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It may.
    Open,
    /// Not yet: nobody knows whether the tenure goes on.
    Paused,
    /// Never: it has ended.
    Cut,
}

/// Looks at the tenure before each piece of a streamed body or of a tunnel.
#[derive(Default)]
pub(super) struct PieceCheck {
    /// Ready when it is time to look again, while it pauses.
    next_look: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl PieceCheck {
    /// Whether the next piece may go out now. `cx` hears when a pause may be over.
    pub(super) fn way(&mut self, watch: &Rc<dyn TenureWatch>, cx: &mut Context<'_>) -> Way {
        loop {
            // Before the tenure is looked at, so that no change is missed.
            self.next_look.take_if(|look| look.as_mut().poll(cx).is_ready());
            match watch.state() {
                TenureState::Ended => return Way::Cut,
                TenureState::Good { .. } => {
                    self.next_look = None;
                    return Way::Open;
                }
                TenureState::Stale if self.next_look.is_some() => return Way::Paused,
                TenureState::Stale => {}
            }
            let watch = Rc::clone(watch);
            self.next_look = Some(Box::pin(async move {
                let changed = watch.changed();
                let _ = timeout_at(watch.fetch_news(), changed).await;
            }));
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
