//! How far a request body has come that is streamed to the worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use super::permit::TenureWatch;
use crate::server::BodyFault;

/// How far a streamed body has come. Shared by the body, which hyper has, and the request that it
/// belongs to.
pub(super) struct Upload {
    stage: Cell<Stage>,
    /// Whether the client is the one to go on.
    awaits_client: Cell<bool>,
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
            awaits_client: Cell::new(false),
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

    /// A piece has been handed to hyper.
    pub(super) fn piece_went_out(&self) {
        self.awaits_client.set(false);
        self.last_piece.set(Instant::now());
    }

    /// The client is the one to go on, or the worker at least is not to be blamed.
    pub(super) fn awaits_client(&self) {
        self.awaits_client.set(true);
    }

    /// Since when at the earliest the worker may be held to be silent: not before it has what the
    /// client sent.
    pub(super) fn worker_has_its_turn_since(&self) -> Instant {
        if self.is_running() && self.awaits_client.get() {
            Instant::now()
        } else {
            self.last_piece.get()
        }
    }
}
