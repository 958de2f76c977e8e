//! How far a request body that is streamed to the worker has come.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use tokio::time::Instant;

use crate::wire::Socket;

/// How far a request body that is streamed to the worker has come. Shared by the body, which hyper owns, and the
/// request that it belongs to.
pub(super) struct BodyState {
    stage: Cell<Stage>,
    /// Whether the client is the one to go on.
    awaits_client: Cell<bool>,
    /// When the last piece went out.
    last_piece: Cell<Instant>,
    /// Where it goes on HTTP/1.1: cutting the body ends our side of that connection.
    socket: RefCell<Option<Socket>>,
    end_waker: RefCell<Option<Waker>>,
    body_waker: RefCell<Option<Waker>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Whole,
    Cut,
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
            awaits_client: Cell::new(false),
            last_piece: Cell::new(Instant::now()),
            socket: RefCell::default(),
            end_waker: RefCell::default(),
            body_waker: RefCell::default(),
        }
    }

    pub(super) fn goes_to(&self, socket: Socket) {
        *self.socket.borrow_mut() = Some(socket);
    }

    pub(super) fn is_running(&self) -> bool {
        self.stage.get() == Stage::Running
    }

    pub(super) fn is_cut(&self) -> bool {
        self.stage.get() == Stage::Cut
    }

    /// What the body is to do if it has been cut. Otherwise `waker` hears of a cut.
    pub(super) fn cut(&self, waker: &Waker) -> Option<Cut> {
        if !self.is_cut() {
            let mut kept = self.body_waker.borrow_mut();
            if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
                *kept = Some(waker.clone());
            }
            return None;
        }
        Some(if self.socket.borrow().is_some() { Cut::StaysPending } else { Cut::Fails })
    }

    /// Cuts the body: the worker never has the whole. False if it has gone out already; on one thread, that and this
    /// exclude each other.
    pub(super) fn cut_off(&self) -> bool {
        if !self.is_running() {
            return false;
        }
        if let Some(socket) = &*self.socket.borrow() {
            socket.shut_write();
        }
        self.end(Stage::Cut);
        true
    }

    /// The last piece has been handed to hyper.
    pub(super) fn went_out(&self) {
        if self.is_running() {
            self.end(Stage::Whole);
        }
    }

    fn end(&self, stage: Stage) {
        self.stage.set(stage);
        for waker in [&self.end_waker, &self.body_waker] {
            if let Some(waker) = waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    pub(super) fn piece_went_out(&self) {
        self.awaits_client.set(false);
        self.last_piece.set(Instant::now());
    }

    pub(super) fn awaits_client(&self) {
        self.awaits_client.set(true);
    }

    /// Since when at the earliest the worker may be held to be silent: not before it has what the client sent.
    pub(super) fn worker_has_its_turn_since(&self) -> Instant {
        if self.is_running() && self.awaits_client.get() { Instant::now() } else { self.last_piece.get() }
    }

    /// Waits until nothing more of the body will be handed to hyper.
    pub(super) async fn ended(&self) {
        poll_fn(|cx| {
            if !self.is_running() {
                return Poll::Ready(());
            }
            *self.end_waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
