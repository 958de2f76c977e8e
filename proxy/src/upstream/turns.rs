//! The turns of a connection's task: in each, hyper reads and writes what it can.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

/// The turns of a connection's task.
///
/// hyper does not say when it has written what it was given. A turn shows it. hyper, h2 and TLS
/// write all that they have before a turn ends, unless the socket takes no more. After a turn that
/// ends with a free socket (a *clean* turn), the kernel has all that was handed over before that
/// turn.
#[derive(Default)]
pub(super) struct Turns {
    /// What is to be dated when it is with the kernel.
    let_go: RefCell<Vec<Rc<Cell<Option<Instant>>>>>,
    have_ended: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Turns {
    /// Whether there are no more turns: nothing is read or written any more.
    pub(super) fn have_ended(&self) -> bool {
        self.have_ended.get()
    }

    /// hyper has let go of something: it is dated after the first clean turn from now on.
    pub(super) fn date_when_written(&self, written: &Rc<Cell<Option<Instant>>>) {
        self.let_go.borrow_mut().push(Rc::clone(written));
    }

    /// One has ended.
    pub(super) fn end_one(&self, is_clean: bool) {
        if is_clean && !self.let_go.borrow().is_empty() {
            let now = Instant::now();
            self.let_go.take().iter().for_each(|written| written.set(Some(now)));
        }
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// The last one has ended.
    pub(super) fn end(&self) {
        self.have_ended.set(true);
        self.end_one(false);
    }

    /// Has the task woken after the next turn.
    pub(super) fn wake_after_next(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waiter| waiter.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Waits until `done`, looked at now and after each turn.
    pub(super) async fn until(&self, mut done: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if done() {
                return Poll::Ready(());
            }
            self.wake_after_next(cx);
            Poll::Pending
        })
        .await;
    }
}
