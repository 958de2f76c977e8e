//! How far a request body has come that is streamed to the worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::permit::TenureWatch;
use crate::server::BodyFault;

/// How far a streamed body has come. Shared by the body, which hyper has, and the request that it
/// belongs to.
pub(super) struct Upload {
    stage: Cell<Stage>,
    /// Since when the client is the one to go on. `None` while it is not.
    awaited_since: Cell<Option<Instant>>,
    /// How far the client was behind before that.
    behind: Cell<Duration>,
    /// When the last piece went out.
    last_piece: Cell<Instant>,
    watch: RefCell<Option<Rc<dyn TenureWatch>>>,
    body: RefCell<Option<Waker>>,
    request: RefCell<Option<Waker>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Whole,
    /// The worker reads no more of it.
    Unwanted,
    Broken(Broken),
}

/// Why a body never reaches the worker whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// Its client did not send all of it.
    ByClient(BodyFault),
    /// Its tenure has ended, or may have for too long; or its request was given up.
    Cut,
}

impl Upload {
    pub(super) fn new() -> Upload {
        Upload {
            stage: Cell::new(Stage::Running),
            awaited_since: Cell::new(None),
            behind: Cell::new(Duration::ZERO),
            last_piece: Cell::new(Instant::now()),
            watch: RefCell::default(),
            body: RefCell::default(),
            request: RefCell::default(),
        }
    }

    /// From here on it goes to the worker only as long as that tenure goes on.
    pub(super) fn depends_on(&self, watch: Rc<dyn TenureWatch>) {
        *self.watch.borrow_mut() = Some(watch);
    }

    pub(super) fn watch(&self) -> Option<Rc<dyn TenureWatch>> {
        self.watch.borrow().clone()
    }

    pub(super) fn is_running(&self) -> bool {
        self.stage.get() == Stage::Running
    }

    pub(super) fn is_whole(&self) -> bool {
        self.stage.get() == Stage::Whole
    }

    /// Why it never reaches the worker whole, if that is known.
    pub(super) fn broken(&self) -> Option<Broken> {
        match self.stage.get() {
            Stage::Broken(broken) => Some(broken),
            Stage::Running | Stage::Whole | Stage::Unwanted => None,
        }
    }

    /// Ready when that is known. Only the task of the request polls this.
    pub(super) fn poll_broken(&self, cx: &Context<'_>) -> Poll<Broken> {
        if self.is_running() {
            *self.request.borrow_mut() = Some(cx.waker().clone());
        }
        self.broken().map_or(Poll::Pending, Poll::Ready)
    }

    /// Has the body's task woken when this ends.
    pub(super) fn wake_body(&self, cx: &Context<'_>) {
        let mut body = self.body.borrow_mut();
        if !body.as_ref().is_some_and(|kept| kept.will_wake(cx.waker())) {
            *body = Some(cx.waker().clone());
        }
    }

    /// Its last piece has been handed to hyper.
    pub(super) fn went_out(&self) {
        self.end(Stage::Whole);
    }

    /// hyper asks for no more of it.
    pub(super) fn dropped(&self) {
        self.end(Stage::Unwanted);
    }

    /// It is not passed on any further, unless it has gone out already.
    pub(super) fn break_off(&self, why: Broken) {
        self.end(Stage::Broken(why));
    }

    fn end(&self, stage: Stage) {
        if !self.is_running() {
            return;
        }
        self.stage.set(stage);
        self.last_piece.set(Instant::now()); // The word that this is the end is one, though it has no bytes.
        for waker in [&self.request, &self.body] {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// A piece of so many bytes has been handed to hyper.
    pub(super) fn piece_went_out(&self, bytes: usize) {
        let now = Instant::now();
        let awaited = self.awaited_since.take().map_or(Duration::ZERO, |since| now - since);
        self.behind.set((self.behind.get() + awaited).saturating_sub(time_of(bytes)));
        self.last_piece.set(now);
    }

    /// The client is the one to go on, or the worker at least is not to be blamed.
    pub(super) fn awaits_client(&self) {
        if self.awaited_since.get().is_none() {
            self.awaited_since.set(Some(Instant::now()));
        }
    }

    /// Since when the client has let it wait, if it is the one to go on, less what its bytes make
    /// up for.
    pub(super) fn stalled_since(&self) -> Option<Instant> {
        let since = self.awaited_since.get().filter(|_| self.is_running())?;
        Some(since.checked_sub(self.behind.get()).unwrap_or(since))
    }

    /// Since when at the earliest the worker may be held to be silent: not before it has what the
    /// client sent.
    pub(super) fn worker_has_its_turn_since(&self) -> Instant {
        if self.is_running() && self.awaited_since.get().is_some() {
            Instant::now()
        } else {
            self.last_piece.get()
        }
    }
}

/// How long so many bytes make up for. A byte now and then makes up for next to nothing. Otherwise
/// a few thousand clients that send no more would hold as many connections that other requests
/// need.
fn time_of(bytes: usize) -> Duration {
    const BYTES_A_SECOND: u32 = 16 * 1024;
    Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / BYTES_A_SECOND
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// A client that sent a byte each second was never late.
    #[tokio::test(start_paused = true)]
    async fn bytes_make_up_for_the_time_that_they_take() {
        let upload = Upload::new();
        let stalled_for = || upload.stalled_since().map(|since| since.elapsed().as_secs());
        for seconds in 1..=5 {
            assert_eq!(stalled_for(), None, "its worker is the one to go on");
            upload.awaits_client();
            advance(Duration::from_millis(1_001)).await;
            upload.awaits_client(); // Looked at once more.
            assert_eq!(stalled_for(), Some(seconds));
            upload.piece_went_out(1);
            advance(Duration::from_secs(10)).await;
        }
        upload.piece_went_out(3 * 16 * 1024);
        upload.awaits_client();
        assert_eq!(stalled_for(), Some(2));
        upload.piece_went_out(1_000_000);
        advance(Duration::from_secs(1)).await;
        upload.awaits_client();
        advance(Duration::from_secs(1)).await;
        assert_eq!(
            stalled_for(),
            Some(1),
            "what came earlier makes up for nothing that comes later"
        );
        upload.went_out();
        assert_eq!(stalled_for(), None);
    }
}
