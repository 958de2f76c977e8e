//! A response between the task that reads it from the worker and the client that reads it from us.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http_body::Frame;
use tokio::time::Instant;

use super::error::ResponseBodyError;

/// What a worker has sent and a client has not read yet. Both ends are on one thread.
#[derive(Default)]
pub(super) struct Relay(RefCell<Shared>);

/// The client's end of a relay.
pub struct Reading(pub(super) Rc<Relay>);

#[derive(Default)]
struct Shared {
    pieces: VecDeque<Frame<Bytes>>,
    bytes: usize,
    /// How much the client is still to read, where that is known.
    left: Option<u64>,
    /// Since when the first piece waits for the client.
    untaken_since: Option<Instant>,
    /// How it ended, after the pieces.
    end: Option<Result<(), ResponseBodyError>>,
    /// Whether the client has read all pieces before a failure.
    is_failing: bool,
    client_has_left: bool,
    client: Option<Waker>,
    reader: Option<Waker>,
}

impl Relay {
    /// A relay for a response of which so much is to come, where that is known.
    pub(super) fn new(left: Option<u64>) -> Rc<Relay> {
        Rc::new(Relay(RefCell::new(Shared { left, ..Shared::default() })))
    }

    /// What the worker has sent. Nothing is kept for a client that has left.
    pub(super) fn add(&self, piece: Frame<Bytes>) {
        let mut shared = self.0.borrow_mut();
        if !shared.client_has_left {
            shared.bytes += bytes_of(&piece);
            shared.untaken_since.get_or_insert_with(Instant::now);
            shared.pieces.push_back(piece);
            wake(&mut shared.client);
        }
    }

    /// There is no more of it.
    pub(super) fn end(&self, how: Result<(), ResponseBodyError>) {
        let mut shared = self.0.borrow_mut();
        if !shared.client_has_left && shared.end.is_none() {
            shared.end = Some(how);
            wake(&mut shared.client);
        }
    }

    /// Whether the client has left. The task hears when it does, and when it reads.
    pub(super) fn is_left(&self, cx: &Context<'_>) -> bool {
        let mut shared = self.0.borrow_mut();
        if !shared.reader.as_ref().is_some_and(|kept| kept.will_wake(cx.waker())) {
            shared.reader = Some(cx.waker().clone());
        }
        shared.client_has_left
    }

    /// How many bytes the client is behind. `None`: it has read all pieces.
    pub(super) fn behind(&self) -> Option<usize> {
        let shared = self.0.borrow();
        (!shared.pieces.is_empty()).then_some(shared.bytes)
    }

    /// Since when a piece waits for the client.
    pub(super) fn untaken_since(&self) -> Option<Instant> {
        self.0.borrow().untaken_since
    }
}

impl Reading {
    /// What the client reads next.
    pub(super) fn poll_piece(
        &self,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let shared = &mut *self.0.0.borrow_mut();
        if let Some(piece) = shared.pieces.pop_front() {
            let bytes = bytes_of(&piece);
            shared.bytes -= bytes;
            shared.left = shared.left.map(|left| left.saturating_sub(bytes as u64));
            shared.untaken_since = Some(Instant::now()).filter(|_| !shared.pieces.is_empty());
            wake(&mut shared.reader);
            return Poll::Ready(Some(Ok(piece)));
        }
        match &shared.end {
            // hyper drops what it has not written yet when a body fails, the head perhaps. So it
            // fails a little later. It has no end that could be told: what was cut must not look
            // like a whole.
            Some(Err(_)) if !shared.is_failing => {
                (shared.is_failing, shared.left) = (true, None);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(_) => Poll::Ready(shared.end.replace(Ok(())).and_then(Result::err).map(Err)),
            None => {
                shared.client = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Whether the client has read it to its end.
    pub(super) fn is_end_stream(&self) -> bool {
        let shared = self.0.0.borrow();
        shared.pieces.is_empty() && matches!(shared.end, Some(Ok(())))
    }

    /// How much the client is still to read, where that is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.0.0.borrow().left
    }
}

impl Drop for Reading {
    /// The client reads no more.
    fn drop(&mut self) {
        let mut shared = self.0.0.borrow_mut();
        shared.client_has_left = true;
        shared.pieces.clear();
        (shared.bytes, shared.untaken_since) = (0, None);
        wake(&mut shared.reader);
    }
}

fn bytes_of(piece: &Frame<Bytes>) -> usize {
    piece.data_ref().map_or(0, Buf::remaining)
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
