//! The body of a request over HTTP/1 that somebody waits for.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

/// The body of a request over HTTP/1 that somebody waits for. A connection has one at a time.
///
/// Who watches the connection sees that its client has fallen silent: of what a client sends, a body is told only what is a piece of it. A
/// request of which nothing has been answered yet can be told why it goes no further.
#[derive(Default)]
pub(super) struct AwaitedBody(RefCell<Wait>);

#[derive(Default)]
enum Wait {
    /// Nobody waits.
    #[default]
    None,
    /// This task does.
    Waiting(Waker),
    /// It was told that nothing will come, and has not heard of it yet.
    GivenUp,
}

impl AwaitedBody {
    /// Whether somebody waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(*self.0.borrow(), Wait::None)
    }

    /// Ready when it has been given up. Until then, or until [`rest`](Self::rest), it is awaited.
    pub(super) fn poll_given_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut wait = self.0.borrow_mut();
        if matches!(*wait, Wait::GivenUp) {
            return Poll::Ready(());
        }
        *wait = Wait::Waiting(cx.waker().clone());
        Poll::Pending
    }

    /// Nobody waits for it now: it goes on, or has ended.
    pub(super) fn rest(&self) {
        self.0.take();
    }

    /// Tells who waits for it that it will not come. False if nobody does, or that was told and has not been heard.
    pub(super) fn give_up(&self) -> bool {
        let mut wait = self.0.borrow_mut();
        let Wait::Waiting(task) = &*wait else { return false };
        task.wake_by_ref();
        *wait = Wait::GivenUp;
        true
    }
}
