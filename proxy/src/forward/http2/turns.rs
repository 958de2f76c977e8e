//! The turns of an HTTP/2 connection's task.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The turns of an HTTP/2 connection's task, which hyper spawns and nobody else sees. In each it reads and writes what it can.
#[derive(Default)]
pub(in crate::forward) struct Turns {
    has_begun: Cell<bool>,
    has_ended: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    after_each: RefCell<Option<Box<dyn Fn()>>>,
}

impl Turns {
    /// Waits until `done`, looked at now and after each turn.
    pub(in crate::forward) async fn until(&self, mut done: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if done() {
                return Poll::Ready(());
            }
            self.wake_after_next(cx);
            Poll::Pending
        })
        .await;
    }

    /// Has the task woken after the next turn.
    pub(super) fn wake_after_next(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waiter| waiter.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Whether there are no more: nothing is read or written any more.
    pub(in crate::forward) fn have_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Has `look` called after each turn.
    pub(super) fn after_each(&self, look: Box<dyn Fn()>) {
        *self.after_each.borrow_mut() = Some(look);
    }

    fn end_one(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        if let Some(look) = &*self.after_each.borrow() {
            look();
        }
    }
}

/// Spawns what hyper does for one connection.
#[derive(Clone)]
pub(super) struct Executor {
    turns: Rc<Turns>,
}

impl Executor {
    pub(super) fn new(turns: Rc<Turns>) -> Executor {
        Executor { turns }
    }
}

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        // The first is the connection itself; those that follow belong to single requests.
        if self.turns.has_begun.replace(true) {
            tokio::task::spawn_local(future);
            return;
        }
        let turns = Rc::clone(&self.turns);
        tokio::task::spawn_local(async move {
            let mut connection = Box::pin(future);
            poll_fn(|cx| {
                let polled = connection.as_mut().poll(cx);
                turns.has_ended.set(polled.is_ready());
                turns.end_one();
                polled
            })
            .await;
        });
    }
}
