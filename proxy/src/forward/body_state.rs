//! How far what a client sends bit by bit has come: a request body that is streamed to the worker, or its side of a tunnel.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::admitted::{TenureState, TenureWatch};
use super::stalled::Stalls;
use crate::downstream::BodyFault;
use crate::wire::Socket;

/// How far what a client sends bit by bit has come. Shared by the body, which hyper owns, and the request that it belongs to.
pub(super) struct BodyState {
    stage: Cell<Stage>,
    /// Why its client does not send all of it, if it was cut for that.
    client_failed: Cell<Option<BodyFault>>,
    /// Whether it was cut because the worker reads no more of it.
    unwanted: Cell<bool>,
    /// Since when the client is the one to go on. `None` while it is not.
    awaited_since: Cell<Option<Instant>>,
    /// How far the client was behind then.
    behind: Cell<Duration>,
    /// When the last piece went out.
    last_piece: Cell<Instant>,
    /// Where it goes on HTTP/1.1: cutting the body ends our side of that connection.
    socket: RefCell<Option<Socket>>,
    /// The tenure that it depends on.
    watch: RefCell<Option<Rc<dyn TenureWatch>>>,
    /// Whether the worker has all bytes of a body whose length it knows, though perhaps not the word that this is the end.
    has_all_bytes: Cell<bool>,
    /// Whether a piece was held up because nobody knows whether the tenure goes on.
    paused: Cell<bool>,
    /// Who waits for the end of the request.
    request_waker: RefCell<Option<Waker>>,
    body_waker: RefCell<Option<Waker>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Whole,
    Cut,
}

/// Whether the next piece may go to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It may.
    Open,
    /// Not yet: nobody knows whether the tenure goes on. The body hears when that changes.
    Paused,
    /// Never.
    Cut(Cut),
}

/// What a body does that has been cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// It fails, and hyper resets the stream.
    Fails,
    /// It stays pending. The worker reads the end of our side in the middle of the message, and may still answer.
    StaysPending,
}

impl BodyState {
    pub(super) fn new() -> BodyState {
        BodyState {
            stage: Cell::new(Stage::Running),
            client_failed: Cell::new(None),
            unwanted: Cell::new(false),
            awaited_since: Cell::new(None),
            behind: Cell::new(Duration::ZERO),
            last_piece: Cell::new(Instant::now()),
            socket: RefCell::default(),
            watch: RefCell::default(),
            has_all_bytes: Cell::new(false),
            paused: Cell::new(false),
            request_waker: RefCell::default(),
            body_waker: RefCell::default(),
        }
    }

    /// It goes out over HTTP/1.1, on that connection.
    pub(super) fn goes_to(&self, socket: Socket) {
        *self.socket.borrow_mut() = Some(socket);
    }

    /// It goes out over HTTP/2, though it may have been meant for a connection of HTTP/1.1 that was lost.
    pub(super) fn goes_over_http2(&self) {
        *self.socket.borrow_mut() = None;
    }

    pub(super) fn goes_over_http1(&self) -> bool {
        self.socket.borrow().is_some()
    }

    /// From here on it goes to the worker only as long as that tenure goes on.
    pub(super) fn depends_on(&self, watch: Rc<dyn TenureWatch>) {
        *self.watch.borrow_mut() = Some(watch);
    }

    pub(super) fn is_running(&self) -> bool {
        self.stage.get() == Stage::Running
    }

    pub(super) fn is_cut(&self) -> bool {
        self.stage.get() == Stage::Cut
    }

    pub(super) fn is_whole(&self) -> bool {
        self.stage.get() == Stage::Whole
    }

    /// Whether the next piece may go out, asked right before it does: where the tenure has ended by now, it is cut, and the
    /// piece may have been the last. `waker` hears when another answer is to be had.
    pub(super) fn way(&self, waker: &Waker) -> Way {
        let standing =
            if self.is_running() { self.watch.borrow().as_ref().map(|watch| watch.standing()) } else { None };
        if standing == Some(TenureState::Ended) {
            self.seal();
        }
        if self.is_cut() {
            return Way::Cut(if self.goes_over_http1() { Cut::StaysPending } else { Cut::Fails });
        }
        let mut kept = self.body_waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
        if standing == Some(TenureState::Stale) {
            self.paused.set(true);
            self.awaits_client(); // The worker is not to be blamed for what it does not get.
            return Way::Paused;
        }
        Way::Open
    }

    /// Looks at the tenure before more is written of what was handed to hyper and held up. Where it has ended, nothing more is, though it may have
    /// been the last of it.
    pub(super) fn look_before_writing(&self) {
        let Some(watch) = &*self.watch.borrow() else { return };
        if self.is_cut() || watch.standing() != TenureState::Ended {
            return;
        }
        self.has_all_bytes.set(false);
        self.cut();
        watch.cut();
    }

    /// Ends a pause.
    pub(super) fn go_on(&self) {
        if self.paused.take()
            && let Some(waker) = self.body_waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Cuts what has not gone out, because the tenure has ended or nobody knows whether it goes on.
    pub(super) fn seal(&self) {
        if self.cut_off()
            && let Some(watch) = &*self.watch.borrow()
        {
            watch.cut();
        }
    }

    /// Cuts it: the worker never has the whole. False if it has gone out already; on one thread, that and this exclude each
    /// other.
    pub(super) fn cut_off(&self) -> bool {
        if !self.is_running() {
            return false;
        }
        self.cut();
        true
    }

    fn cut(&self) {
        if let Some(socket) = &*self.socket.borrow() {
            socket.cut_write();
        }
        self.end(Stage::Cut);
    }

    /// Cuts it, because the client did not send all of it.
    pub(super) fn client_failed(&self, fault: BodyFault) {
        self.client_failed.set(Some(fault));
        self.cut_off();
    }

    /// Cuts it, because hyper asks for no more of it: the worker has closed, or reset its stream.
    pub(super) fn dropped(&self) {
        let was_running = self.cut_off();
        self.unwanted.set(self.unwanted.get() || was_running);
    }

    /// The last piece has been handed to hyper.
    pub(super) fn went_out(&self) {
        if self.is_running() {
            self.end(Stage::Whole);
        }
    }

    fn end(&self, stage: Stage) {
        self.stage.set(stage);
        self.last_piece.set(Instant::now()); // The word that this is the end is one, though it has no bytes.
        for waker in [&self.request_waker, &self.body_waker] {
            if let Some(waker) = waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    /// The worker has all bytes of a body whose length it knows.
    pub(super) fn all_bytes_went_out(&self) {
        self.has_all_bytes.set(true);
    }

    /// A piece of so many bytes has been handed to hyper.
    pub(super) fn piece_went_out(&self, bytes: usize) {
        let now = Instant::now();
        let awaited = self.awaited_since.take().map_or(Duration::ZERO, |since| now - since);
        self.behind.set((self.behind.get() + awaited).saturating_sub(time_of(bytes)));
        self.last_piece.set(now);
    }

    pub(super) fn awaits_client(&self) {
        if self.awaited_since.get().is_none() {
            self.awaited_since.set(Some(Instant::now()));
        }
    }

    /// Since when at the earliest the worker may be held to be silent: not before it has what the client sent.
    pub(super) fn worker_has_its_turn_since(&self) -> Instant {
        if self.is_running() && self.awaited_since.get().is_some() { Instant::now() } else { self.last_piece.get() }
    }

    /// Ready when nothing more of it will be handed to hyper. One task at a time waits for this, for [`Self::poll_client_failed`] or for
    /// [`Self::poll_cut`].
    pub(super) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_running() {
            return Poll::Ready(());
        }
        *self.request_waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when the client did not send all of it, with why.
    pub(super) fn poll_client_failed(&self, cx: &mut Context<'_>) -> Poll<BodyFault> {
        ready!(self.poll_end(cx));
        self.client_failed.get().map_or(Poll::Pending, Poll::Ready)
    }

    /// Ready when it has been cut.
    pub(super) fn poll_cut(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.poll_end(cx).is_ready() && self.is_partial() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether the worker has let us know that it reads no more of it.
    pub(super) fn is_unwanted(&self) -> bool {
        self.unwanted.get()
    }

    /// Whether the worker has only a part and can know that.
    pub(super) fn is_partial(&self) -> bool {
        self.is_cut() && !self.has_all_bytes.get()
    }
}

/// How long so many bytes make up for. A byte now and then makes up for next to nothing: a few thousand clients that send no more than that would
/// hold as many connections, whoever waits for one.
fn time_of(bytes: usize) -> Duration {
    const BYTES_A_SECOND: u32 = 16 * 1024;
    Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / BYTES_A_SECOND
}

impl Stalls for BodyState {
    fn since(&self) -> Option<Instant> {
        let since = self.awaited_since.get().filter(|_| self.is_running() && self.goes_over_http1())?;
        Some(since.checked_sub(self.behind.get()).unwrap_or(since))
    }

    fn leave_client(&self) {
        self.client_failed(BodyFault::Slow);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;
    use tokio::time::advance;

    use super::*;

    /// Whoever sent a byte each second was never late.
    #[tokio::test(start_paused = true)]
    async fn a_client_has_stalled_for_as_long_as_it_was_waited_for_but_for_what_its_bytes_make_up() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let body = BodyState::new();
        body.goes_to(Socket::upstream(ours.into()));
        let stalled_for = || body.since().map(|since| since.elapsed().as_secs());
        for seconds in 1..=5 {
            assert_eq!(stalled_for(), None, "its worker is the one to go on");
            body.awaits_client();
            advance(Duration::from_millis(1_001)).await;
            body.awaits_client(); // Looked at once more.
            assert_eq!(stalled_for(), Some(seconds));
            body.piece_went_out(1);
            advance(Duration::from_secs(10)).await;
        }
        body.piece_went_out(3 * 16 * 1024);
        body.awaits_client();
        assert_eq!(stalled_for(), Some(2));
        body.piece_went_out(1_000_000);
        advance(Duration::from_secs(1)).await;
        body.awaits_client();
        advance(Duration::from_secs(1)).await;
        assert_eq!(stalled_for(), Some(1), "what came earlier makes up for nothing that comes later");
        body.went_out();
        assert_eq!(stalled_for(), None);
    }

    /// Else its stream would stay open for ever, or until its time is over, with nobody to reset it.
    #[tokio::test]
    async fn a_body_that_goes_over_http_2_after_all_fails_when_it_is_cut() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (body, lost) = (BodyState::new(), Socket::upstream(ours.into()));
        body.goes_to(lost.clone());
        body.goes_over_http2();
        assert!(body.cut_off() && !lost.is_broken());
        assert_eq!(body.way(Waker::noop()), Way::Cut(Cut::Fails));
    }
}
