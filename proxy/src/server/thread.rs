//! What the connections of one worker thread share.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use http::Response;
use http1_strict::GrammarError;

use super::client::ClientAddress;
use super::limits::Limits;
use super::proxy_protocol::Unexpected;
use crate::wire::Background;

/// How far the server is on its way to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Accepting nothing yet.
    Ready,
    /// Serving.
    Serving,
    /// Serving, but every response asks the client to go elsewhere with its next request.
    Leaving,
    /// Accepting nothing, finishing what is under way.
    Closing,
    /// Dropping what is left.
    Cut,
}

/// Why the head of a request over HTTP/1 was not read; or why a connection never came so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadHead {
    /// It is longer than a head may be, or has more fields: 431.
    #[error("a head that is too long, or has too many fields")]
    TooLarge,
    /// The grammar does not have a byte of it: 400.
    #[error(transparent)]
    Unclear(GrammarError),
    /// The grammar has it, and hyper does not, as with some targets: 400.
    #[error("a target or a field that cannot be read")]
    Unknown,
    /// The connection does not begin as its listener expects: closed, or 400.
    #[error(transparent)]
    Unexpected(Unexpected),
}

/// Called for each request over HTTP/1 whose head was not read. Returns the answer for clients that
/// hyper has given none.
pub(super) type OnUnreadHead = Box<dyn Fn(ClientAddress, UnreadHead) -> Response<Bytes>>;

/// What the connections of one worker thread share.
pub(super) struct Thread {
    pub(super) limits: Rc<Limits>,
    pub(super) background: Background,
    pub(super) on_unread_head: OnUnreadHead,
    stage: Cell<Stage>,
}

impl Thread {
    pub(super) fn new(
        limits: Limits,
        background: Background,
        on_unread_head: OnUnreadHead,
    ) -> Rc<Thread> {
        Rc::new(Thread {
            limits: Rc::new(limits),
            background,
            on_unread_head,
            stage: Cell::new(Stage::Serving),
        })
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Moves to that stage. The caller wakes the connections.
    pub(super) fn move_to(&self, stage: Stage) {
        self.stage.set(stage);
    }
}

/// Waits until that is so, in the task of a connection. Looks each time that the task is woken.
pub(super) async fn until(is_so: impl Fn() -> bool) {
    poll_fn(|_| if is_so() { Poll::Ready(()) } else { Poll::Pending }).await;
}
