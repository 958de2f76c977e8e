//! Work that goes on after the request that caused it, on the same thread.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;

/// Counts what a thread still does for requests whose client has left, so that the thread does not end before it.
///
/// Futures run on the thread that has it: nothing here is `Send`.
#[derive(Clone, Default)]
pub struct Background {
    shared: Rc<Shared>,
}

#[derive(Default)]
struct Shared {
    running: Cell<usize>,
    /// What is not counted as running, and is waited for all the same.
    held: Cell<usize>,
    idle_waker: RefCell<Option<Waker>>,
}

impl Background {
    /// Runs `work` to its end, whoever started it.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(CountedWork { work, _counted: Counted::new(self.shared.clone()) });
    }

    /// Keeps the thread from ending as long as this lives.
    pub(crate) fn guard(&self) -> BackgroundGuard {
        Counted::new(self.shared.clone())
    }

    /// Keeps the thread from ending as long as this lives, uncounted.
    pub(crate) fn hold(&self) -> BackgroundHold {
        self.shared.held.set(self.shared.held.get() + 1);
        BackgroundHold(self.shared.clone())
    }

    /// How many futures have not ended yet.
    pub fn running(&self) -> usize {
        self.shared.running.get()
    }

    /// Waits until nothing runs any more.
    pub async fn idle(&self) {
        poll_fn(|cx| {
            if self.shared.is_idle() {
                return Poll::Ready(());
            }
            *self.shared.idle_waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

pin_project! {
    /// Work and its count. An `async` block would hold the work twice: as what it was given and as what it awaits.
    struct CountedWork<F> {
        #[pin]
        work: F,
        _counted: Counted,
    }
}

impl<F: Future<Output = ()>> Future for CountedWork<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().work.poll(cx)
    }
}

/// See [`Background::guard`].
pub(crate) type BackgroundGuard = Counted;

pub(crate) struct Counted(Rc<Shared>);

impl Counted {
    fn new(shared: Rc<Shared>) -> Counted {
        shared.running.set(shared.running.get() + 1);
        Counted(shared)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
        self.0.wake_if_idle();
    }
}

/// See [`Background::hold`].
pub(crate) struct BackgroundHold(Rc<Shared>);

impl Drop for BackgroundHold {
    fn drop(&mut self) {
        self.0.held.set(self.0.held.get() - 1);
        self.0.wake_if_idle();
    }
}

impl Shared {
    fn is_idle(&self) -> bool {
        self.running.get() == 0 && self.held.get() == 0
    }

    fn wake_if_idle(&self) {
        if self.is_idle()
            && let Some(waker) = self.idle_waker.borrow_mut().take()
        {
            waker.wake();
        }
    }
}
