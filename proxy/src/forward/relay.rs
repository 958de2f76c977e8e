//! What a worker has sent and a client has not read yet, once the worker no longer waits for the client.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::Frame;
use tokio::time::{Instant, timeout};

use super::admitted::Permit;
use super::response_body::ResponseBodyError;
use super::rest::Rest;

/// How far a client may be behind.
const BEHIND_BYTES_MAX: usize = 256 * 1024;
/// How long a response waits for a client that is as far behind as it may be, in all: long enough for the client of a fast
/// worker to be given its turn by the system, too short for a tenure to be held up.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

/// What a worker has sent and a client has not read yet.
#[derive(Default)]
pub(super) struct Relay {
    shared: RefCell<Shared>,
}

#[derive(Default)]
struct Shared {
    pieces: VecDeque<Frame<Bytes>>,
    bytes: usize,
    /// How it ended, after the pieces.
    end: Option<Result<(), ResponseBodyError>>,
    client_has_left: bool,
    client: Option<Waker>,
    reader: Option<Waker>,
}

impl Relay {
    /// What the client reads next.
    pub(super) fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let mut shared = self.shared.borrow_mut();
        if let Some(piece) = shared.pieces.pop_front() {
            shared.bytes -= bytes_of(&piece);
            wake(&mut shared.reader);
            return Poll::Ready(Some(Ok(piece)));
        }
        match shared.end.take() {
            Some(Err(error)) => {
                shared.end = Some(Ok(()));
                Poll::Ready(Some(Err(error)))
            }
            Some(Ok(())) => {
                shared.end = Some(Ok(()));
                Poll::Ready(None)
            }
            None => {
                shared.client = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Whether the client has read it to its end.
    pub(super) fn is_end_stream(&self) -> bool {
        let shared = self.shared.borrow();
        shared.pieces.is_empty() && matches!(shared.end, Some(Ok(())))
    }

    /// The client reads no more.
    pub(super) fn client_leaves(&self) {
        let mut shared = self.shared.borrow_mut();
        shared.client_has_left = true;
        shared.forget_pieces();
        wake(&mut shared.reader);
    }

    fn add(&self, piece: Frame<Bytes>) {
        let mut shared = self.shared.borrow_mut();
        if !shared.client_has_left {
            shared.bytes += bytes_of(&piece);
            shared.pieces.push_back(piece);
            wake(&mut shared.client);
        }
    }

    fn end(&self, how: Result<(), ResponseBodyError>) {
        let mut shared = self.shared.borrow_mut();
        if !shared.client_has_left {
            shared.end = Some(how);
            wake(&mut shared.client);
        }
    }

    /// Breaks the response off for the client.
    fn leave_client(&self) {
        self.end(Err(ResponseBodyError::TooSlow));
        self.client_leaves();
    }

    /// Whether the client has left. `reader` hears when it does, and when it reads.
    fn is_left(&self, reader: &Waker) -> bool {
        let mut shared = self.shared.borrow_mut();
        if !shared.reader.as_ref().is_some_and(|kept| kept.will_wake(reader)) {
            shared.reader = Some(reader.clone());
        }
        shared.client_has_left
    }

    /// Waits until the client is not too far behind.
    async fn has_room(&self) {
        poll_fn(|cx| {
            let left = self.is_left(cx.waker());
            if left || self.shared.borrow().bytes < BEHIND_BYTES_MAX { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Shared {
    fn forget_pieces(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
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

/// Reads a response to its end at the worker's pace, for a client that may keep up or not.
pub(super) async fn read_ahead<P: Permit>(rest: Rest<P>, relay: Rc<Relay>) {
    let mut rest = Some(rest);
    let mut catch_up = CATCH_UP_MAX;
    loop {
        let piece = poll_fn(|cx| {
            if relay.is_left(cx.waker())
                && let Some(rest) = &mut rest
            {
                rest.in_flight.detach();
            }
            Rest::poll_alone(&mut rest, cx)
        });
        match piece.await {
            Some(Ok(piece)) => relay.add(piece),
            Some(Err(error)) => return relay.end(Err(error)),
            None => return relay.end(Ok(())),
        }
        if let Some(rest) = &mut rest {
            let before = Instant::now();
            if timeout(catch_up, relay.has_room()).await.is_err() {
                relay.leave_client();
                rest.in_flight.leave_client();
            }
            catch_up = catch_up.saturating_sub(before.elapsed());
        }
    }
}
