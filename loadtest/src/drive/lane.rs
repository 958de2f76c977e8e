//! One request after the other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::plan::Plan;
use super::recorder::Recorder;
use super::schedule::{Due, Schedule};
use super::stop::Stop;
use super::tenures::Tenures;
use super::verdict::{Finding, Standing};
use super::wire::Wire;
use crate::retry::pause_after;

/// What the lanes of a thread share.
pub(crate) struct Shared {
    pub(crate) plan: Rc<Plan>,
    pub(crate) tenures: Arc<Tenures>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) recorder: RefCell<Recorder>,
    /// For the bar that shows how far the run is: answers of all threads.
    pub(crate) answered: Arc<AtomicU64>,
    /// Since when the request of each lane has been due that has no answer yet, and what its sender was.
    pub(crate) under_way: RefCell<Vec<Option<(Instant, Standing)>>>,
    /// How many requests this thread has begun; it begins with some number of its own.
    pub(crate) begun: Cell<u64>,
}

/// When a lane sends its next request.
#[derive(Clone)]
pub(crate) enum Pace {
    /// As soon as the last one is answered.
    Closed { until: Instant },
    /// When one is due, whatever becomes of the earlier ones.
    Open(Arc<Schedule>),
}

impl Pace {
    async fn next(&self, stop: &Stop) -> Option<Due> {
        match self {
            Pace::Open(schedule) => schedule.next().await,
            Pace::Closed { until } => {
                let now = Instant::now();
                (now < *until && !stop.is_stopped()).then_some(Due { at: now, was_awaited: false })
            }
        }
    }
}

impl Shared {
    /// Sends until there are no more requests.
    pub(crate) async fn drive(self: Rc<Shared>, lane: usize, mut wire: Wire, pace: Pace) {
        let mut errors_in_a_row: u32 = 0;
        while let Some(due) = pace.next(&self.stop).await {
            match (&pace, due.was_awaited) {
                (Pace::Closed { .. }, _) => {}
                (Pace::Open(_), true) => self.recorder.borrow_mut().lag.add(due.at.elapsed()),
                (Pace::Open(_), false) => self.recorder.borrow_mut().queued.add(due.at.elapsed()),
            }
            let is_answered = self.send(lane, &mut wire, due.at).await;
            self.under_way.borrow_mut()[lane] = None;
            if is_answered {
                errors_in_a_row = 0;
                continue;
            }
            errors_in_a_row = errors_in_a_row.saturating_add(1);
            tokio::select! {
                () = tokio::time::sleep(pause_after(errors_in_a_row)) => {}
                () = self.stop.stopped() => {}
            }
        }
    }

    async fn send(&self, lane: usize, wire: &mut Wire, due: Instant) -> bool {
        let number = self.begun.replace(self.begun.get() + 1);
        let lock = (spread(number) % self.tenures.count() as u64) as usize;
        let presented = self.tenures.presented(lock, self.plan.stale.takes(number));
        self.under_way.borrow_mut()[lane] = Some((due, presented.standing()));
        match wire.exchange(&presented).await {
            Ok(answer) => {
                let standing = presented.standing();
                let finding = Finding::of(standing, &answer, self.plan.expected);
                if finding == Finding::Served {
                    presented.note_served();
                }
                self.recorder.borrow_mut().answered(due, standing, answer, finding);
                self.answered.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(error) => {
                self.recorder.borrow_mut().failed(due, format!("{error:#}"));
                false
            }
        }
    }
}

/// A number that looks random (splitmix64), so that which lock a request is for has nothing to do with whether it is stale.
fn spread(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
