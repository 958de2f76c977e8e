//! The body of a request over HTTP/1 that somebody waits for.

use std::cell::Cell;
use std::task::{Context, Poll, Waker};

/// The body of a request over HTTP/1 that somebody waits for. A connection has one at a time.
///
/// Who watches the connection sees that its client has fallen silent: of what a client sends, a body is told only what is a piece of it. A
/// request of which nothing has been answered yet can be told why it goes no further.
#[derive(Default)]
pub(super) struct AwaitedBody {
    is_awaited: Cell<bool>,
    is_given_up: Cell<bool>,
    waiting: Cell<Option<Waker>>,
}

impl AwaitedBody {
    /// Whether somebody waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.get()
    }

    /// Ready when it has been given up. Until then, or until [`rest`](Self::rest), it is awaited.
    pub(super) fn poll_given_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_given_up.get() {
            return Poll::Ready(());
        }
        self.is_awaited.set(true);
        self.waiting.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Nobody waits for it now: it goes on, or has ended.
    pub(super) fn rest(&self) {
        self.is_awaited.set(false);
        self.is_given_up.set(false);
        self.waiting.set(None);
    }

    /// Tells who waits for it that it will not come. False if nobody does, or that was told and has not been heard.
    pub(super) fn give_up(&self) -> bool {
        let Some(waiting) = self.waiting.take() else { return false };
        self.is_given_up.set(true);
        waiting.wake();
        true
    }
}
