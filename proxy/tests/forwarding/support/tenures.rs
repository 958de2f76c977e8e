//! The tenures of a lock, one after another, and how fresh the news of them are.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::upstream::{TenureState, TenureWatch};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The tenures of a lock. A test ends them, and lets the news of them grow old.
#[derive(Clone)]
pub(crate) struct Tenures(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    pause_max: Duration,
}

#[derive(Default)]
struct State {
    ended: u64,
    /// `None`: for ever.
    good_until: Option<Instant>,
    /// Whether newer news come as soon as they are looked for, and then without a word.
    comes_if_fetched: bool,
    /// How often newer news have still to be looked for until they come, without a word: the tenure
    /// has ended.
    fetches_to_end: Option<usize>,
    cuts: usize,
    fails: bool,
}

impl Tenures {
    pub(crate) fn new() -> Tenures {
        Tenures::with_pause_max(super::PATIENCE)
    }

    /// Tenures whose requests may be held up for that long.
    pub(crate) fn with_pause_max(pause_max: Duration) -> Tenures {
        Tenures(Arc::new(Shared { state: Mutex::default(), changed: Notify::new(), pause_max }))
    }

    /// Ends the present tenure: what is admitted from here on is of the next.
    pub(crate) fn end(&self) {
        self.change(|state| state.ended += 1);
    }

    /// Ends it before anybody who waits for that hears of it.
    pub(crate) fn end_silently(&self) {
        self.0.state.lock().unwrap().ended += 1;
    }

    /// Lets the news be too old that much later.
    pub(crate) fn age(&self, later: Duration) {
        self.change(|state| state.good_until = Some(Instant::now() + later));
    }

    pub(crate) fn renew(&self) {
        self.change(|state| state.good_until = None);
    }

    /// Lets newer news come, without a word, once they are looked for.
    pub(crate) fn renew_if_fetched(&self) {
        self.0.state.lock().unwrap().comes_if_fetched = true;
    }

    /// Ends the present tenure as soon as newer news were looked for so often. Nobody is told.
    pub(crate) fn end_if_fetched(&self, times: usize) {
        self.0.state.lock().unwrap().fetches_to_end = Some(times);
    }

    /// Lets the next look at a tenure from within a body panic.
    pub(crate) fn fail_in_bodies(&self) {
        self.change(|state| state.fails = true);
    }

    /// How often something was cut.
    pub(crate) fn cuts(&self) -> usize {
        self.0.state.lock().unwrap().cuts
    }

    pub(super) fn present(&self) -> Rc<dyn TenureWatch> {
        Rc::new(Tenure {
            number: self.0.state.lock().unwrap().ended,
            task: Cell::new(None),
            of: self.clone(),
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.state.lock().unwrap());
        self.0.changed.notify_waiters();
    }
}

/// One of them.
struct Tenure {
    number: u64,
    /// The request's task, once it waits for changes. Its body runs in another one.
    task: Cell<Option<tokio::task::Id>>,
    of: Tenures,
}

impl TenureWatch for Tenure {
    fn state(&self) -> TenureState {
        let state = self.of.0.state.lock().unwrap();
        if state.fails && self.task.get().is_some_and(|task| task != tokio::task::id()) {
            drop(state);
            panic!("on purpose");
        }
        let now = Instant::now();
        match state.good_until {
            _ if state.ended > self.number => TenureState::Ended,
            None => TenureState::Good { until: now + super::PATIENCE },
            Some(until) if until > now => TenureState::Good { until },
            Some(_) => TenureState::Stale,
        }
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        self.task.set(self.task.get().or(Some(tokio::task::id())));
        let mut changed = Box::pin(self.of.0.changed.notified());
        changed.as_mut().enable();
        changed
    }

    fn fetch_news(&self) -> Instant {
        let mut state = self.of.0.state.lock().unwrap();
        if std::mem::take(&mut state.comes_if_fetched) {
            state.good_until = None;
        }
        state.fetches_to_end = state.fetches_to_end.map(|left| left.saturating_sub(1));
        if state.fetches_to_end.take_if(|left| *left == 0).is_some() {
            state.ended += 1;
        }
        Instant::now() + super::MOMENT
    }

    fn pause_max(&self) -> Duration {
        self.of.0.pause_max
    }

    fn cut(&self) {
        self.of.0.state.lock().unwrap().cuts += 1;
    }
}
