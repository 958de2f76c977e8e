//! Watching the tenure of a request that is at the worker.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, timeout_at};

use super::admitted::{TenureState, TenureWatch};
use super::body_state::BodyState;

/// Watches the tenure of a request that is at the worker. It has no task of its own: whoever waits for the end of the request
/// polls it as well.
pub(super) struct Vigil {
    watch: Rc<dyn TenureWatch>,
    /// `None` once the tenure has ended.
    until_sealed: Option<Pin<Box<dyn Future<Output = ()>>>>,
    cut_was_told: bool,
}

impl Vigil {
    /// `inflow` is what the client has not sent yet, if there is anything.
    pub(super) fn new(watch: Rc<dyn TenureWatch>, inflow: Option<Rc<BodyState>>) -> Vigil {
        let until_sealed = Box::pin(until_sealed(watch.clone(), inflow));
        Vigil { watch, until_sealed: Some(until_sealed), cut_was_told: false }
    }

    pub(super) fn watch(&self) -> &Rc<dyn TenureWatch> {
        &self.watch
    }

    /// Ready once the tenure has ended. What the client has not sent by then is cut.
    pub(super) fn poll_sealed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(until_sealed) = &mut self.until_sealed {
            ready!(until_sealed.as_mut().poll(cx));
            self.until_sealed = None;
        }
        Poll::Ready(())
    }

    /// Whether the tenure has ended, though nobody may have been told yet.
    pub(super) fn has_ended(&self) -> bool {
        self.until_sealed.is_none() || self.watch.standing() == TenureState::Ended
    }

    /// Whether somebody has been told that the body has been cut.
    pub(super) fn cut_was_told(&self) -> bool {
        self.cut_was_told
    }

    /// Whether the body has been cut and nobody has been told, until now.
    pub(super) fn has_news_of_cut(&mut self, body: &BodyState, cx: &mut Context<'_>) -> bool {
        if self.cut_was_told || body.poll_cut(cx).is_pending() {
            return false;
        }
        self.cut_was_told = true;
        true
    }
}

/// Waits for the end of the tenure. While the news are too old they are looked for: nobody else may ask for this lock. Meanwhile `inflow`
/// pauses by itself ([`BodyState::way`]); here it is woken after that, or cut if it takes too long.
async fn until_sealed(watch: Rc<dyn TenureWatch>, inflow: Option<Rc<BodyState>>) {
    let mut paused_since = None;
    loop {
        let changed = watch.changed();
        let standing = watch.standing();
        let inflow = inflow.as_ref().filter(|inflow| inflow.is_running());
        let due = match (standing, inflow) {
            (TenureState::Ended, _) => break,
            (TenureState::Good { until }, None) => until,
            (TenureState::Stale, None) => watch.fetch_news(),
            (TenureState::Good { until }, Some(inflow)) => {
                paused_since = None;
                inflow.go_on();
                until
            }
            (TenureState::Stale, Some(inflow)) => {
                let now = Instant::now();
                let due = *paused_since.get_or_insert(now) + watch.pause_max();
                if due <= now {
                    inflow.seal();
                    continue;
                }
                due.min(watch.fetch_news())
            }
        };
        // Whichever it was: look again.
        let _ = timeout_at(due, changed).await;
    }
    if let Some(inflow) = inflow {
        inflow.seal();
    }
}
