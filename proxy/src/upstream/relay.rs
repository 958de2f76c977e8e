//! A response between the task that reads it from the worker and the client that reads it from us.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http_body::Frame;
use tokio::time::Instant;

use super::error::ResponseBodyError;

/// What a worker has sent and a client has not read yet. Both ends are on one thread.
#[derive(Default)]
pub(super) struct Relay(RefCell<Shared>);

#[derive(Default)]
struct Shared {
    pieces: VecDeque<Frame<Bytes>>,
    bytes: usize,
    /// Since when the first piece waits for the client.
    untaken_since: Option<Instant>,
    /// How it ended, after the pieces.
    end: Option<Result<(), ResponseBodyError>>,
    client_has_left: bool,
    client: Option<Waker>,
    reader: Option<Waker>,
}

impl Relay {
    /// What the client reads next.
    pub(super) fn poll_piece(
        &self,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let mut shared = self.0.borrow_mut();
        if let Some(piece) = shared.pieces.pop_front() {
            shared.bytes -= bytes_of(&piece);
            shared.untaken_since = Some(Instant::now()).filter(|_| !shared.pieces.is_empty());
            wake(&mut shared.reader);
            return Poll::Ready(Some(Ok(piece)));
        }
        match shared.end.take() {
            Some(end) => {
                shared.end = Some(Ok(()));
                Poll::Ready(end.err().map(Err))
            }
            None => {
                shared.client = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Whether the client has read it to its end.
    pub(super) fn is_end_stream(&self) -> bool {
        let shared = self.0.borrow();
        shared.pieces.is_empty() && matches!(shared.end, Some(Ok(())))
    }

    /// The client reads no more.
    pub(super) fn client_leaves(&self) {
        let mut shared = self.0.borrow_mut();
        shared.client_has_left = true;
        shared.pieces.clear();
        (shared.bytes, shared.untaken_since) = (0, None);
        wake(&mut shared.reader);
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

fn bytes_of(piece: &Frame<Bytes>) -> usize {
    piece.data_ref().map_or(0, Buf::remaining)
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
