//! `tokio::sync::Notify`, as far as the cache uses it between threads.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use loom::sync::Mutex;

#[derive(Debug)]
pub(crate) struct Notify(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How often all were notified.
    notified: u64,
    /// Who waits for the next time.
    wakers: Vec<Waker>,
}

/// Ends when all are notified, from its creation on.
#[derive(Debug)]
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    since: u64,
    done: bool,
}

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify(Mutex::new(State::default()))
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified { notify: self, since: self.0.lock().unwrap().notified, done: false }
    }

    pub(crate) fn notify_waiters(&self) {
        let mut state = self.0.lock().unwrap();
        state.notified += 1;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Notified<'_> {
    /// It counts from its creation as it is: nothing to do.
    pub(crate) fn enable(self: Pin<&mut Self>) -> bool {
        self.done
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.done {
            let mut state = self.notify.0.lock().unwrap();
            if state.notified == self.since {
                state.wakers.push(context.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            self.done = true;
        }
        Poll::Ready(())
    }
}
