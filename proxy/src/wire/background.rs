//! Work that goes on after the request that caused it, on the same thread.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;

/// Counts what a thread still does for requests whose client has left, so that the thread does not
/// end before it.
///
/// Futures run on the thread that has it: nothing here is `Send`.
#[derive(Clone, Default)]
pub struct Background(Rc<Shared>);

#[derive(Default)]
struct Shared {
    counts: Cell<Counts>,
    idle_waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    running: usize,
    /// What is not counted as running, and is waited for all the same.
    held: usize,
}

impl Background {
    /// Runs `work` to its end, on this thread.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(CountedWork { work, _guard: self.guard() });
    }

    /// Keeps the thread from ending as long as this lives.
    pub(crate) fn guard(&self) -> BackgroundGuard {
        BackgroundGuard::new(&self.0, Counts { running: 1, held: 0 })
    }

    /// Keeps the thread from ending as long as this lives, uncounted.
    pub(crate) fn hold(&self) -> BackgroundGuard {
        BackgroundGuard::new(&self.0, Counts { running: 0, held: 1 })
    }

    /// How many futures have not ended yet.
    pub fn running(&self) -> usize {
        self.0.counts.get().running
    }

    /// Waits until nothing runs any more.
    pub async fn idle(&self) {
        poll_fn(|cx| {
            if self.0.is_idle() {
                return Poll::Ready(());
            }
            *self.0.idle_waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

pin_project! {
    /// Work and its guard. An `async` block would hold the work twice: as what it was given and as
    /// what it awaits.
    struct CountedWork<F> {
        #[pin]
        work: F,
        _guard: BackgroundGuard,
    }
}

impl<F: Future<Output = ()>> Future for CountedWork<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().work.poll(cx)
    }
}

/// See [`Background::guard`] and [`Background::hold`].
pub(crate) struct BackgroundGuard {
    shared: Rc<Shared>,
    counts: Counts,
}

impl BackgroundGuard {
    fn new(shared: &Rc<Shared>, counts: Counts) -> BackgroundGuard {
        let Counts { running, held } = shared.counts.get();
        shared.counts.set(Counts { running: running + counts.running, held: held + counts.held });
        BackgroundGuard { shared: Rc::clone(shared), counts }
    }
}

impl Drop for BackgroundGuard {
    fn drop(&mut self) {
        let Counts { running, held } = self.shared.counts.get();
        self.shared
            .counts
            .set(Counts { running: running - self.counts.running, held: held - self.counts.held });
        if self.shared.is_idle()
            && let Some(waker) = self.shared.idle_waker.borrow_mut().take()
        {
            waker.wake();
        }
    }
}

impl Shared {
    fn is_idle(&self) -> bool {
        let Counts { running, held } = self.counts.get();
        running == 0 && held == 0
    }
}
