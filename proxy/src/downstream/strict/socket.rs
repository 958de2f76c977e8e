//! A client's socket as hyper sees it: it ends where the grammar does.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::requests::{Begun, Requests};
use super::state::Unclear;

/// What hyper reads in place of the first byte that has no place, and of all that follows. hyper takes a NUL nowhere but in a chunk
/// extension, and no line feed there; the empty lines make it look at once. So it refuses the same request, in its turn behind those
/// before it.
const REFUSED: &[u8] = b"\0\n\r\n\r\n";

/// How far the requests of a connection have come, for whoever asks beside hyper.
#[derive(Clone, Default)]
pub(in crate::downstream) struct Course(Rc<RefCell<Stage>>);

enum Stage {
    Following(Requests),
    Refused {
        why: Unclear,
        /// The request whose body was refused; `None` if it was a head.
        in_body_of: Option<u64>,
        /// What is left of [`REFUSED`].
        left: &'static [u8],
    },
    /// Nothing more is HTTP.
    Switched,
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::Following(Requests::default())
    }
}

impl Course {
    /// Why the connection is read no further, if it is not.
    pub(in crate::downstream) fn refused(&self) -> Option<Unclear> {
        match &*self.0.borrow() {
            Stage::Refused { why, .. } => Some(*why),
            Stage::Following(_) | Stage::Switched => None,
        }
    }

    /// Whether the body of this request, counted from 1, has been refused by now.
    pub(in crate::downstream) fn refused_body_of(&self, request: u64) -> bool {
        matches!(&*self.0.borrow(), Stage::Refused { in_body_of: Some(refused), .. } if *refused == request)
    }

    /// Whether the body of this request, counted from 1, has not been read to its end.
    pub(in crate::downstream) fn is_amid_body_of(&self, request: u64) -> bool {
        matches!(&*self.0.borrow(), Stage::Following(requests) if requests.heads() == request && requests.is_in_body())
    }

    /// What the client has begun and not ended, as far as it has been read. A request that is refused never ends.
    pub(in crate::downstream) fn begun(&self) -> Begun {
        match &*self.0.borrow() {
            Stage::Following(requests) => requests.begun(),
            Stage::Refused { .. } => Begun::Head,
            Stage::Switched => Begun::Nothing,
        }
    }

    /// Whether this request, counted from 1, has been read to its end, and nothing behind it.
    pub(in crate::downstream) fn is_last(&self, request: u64) -> bool {
        matches!(&*self.0.borrow(), Stage::Following(requests) if requests.heads() == request && requests.is_between())
    }

    /// Leaves HTTP behind the last request: hyper reads nothing more, and what the client sends from here on is read by whoever
    /// takes the socket.
    pub(in crate::downstream) fn switch(&self) {
        *self.0.borrow_mut() = Stage::Switched;
    }
}

/// A socket from which only requests of the strict grammar are read.
pub(in crate::downstream) struct Strict<S> {
    socket: S,
    course: Course,
}

impl<S> Strict<S> {
    pub(in crate::downstream) fn new(socket: S, course: Course) -> Strict<S> {
        Strict { socket, course }
    }

    pub(in crate::downstream) fn into_inner(self) -> S {
        self.socket
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Strict<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Strict { socket, course } = &mut *self;
        let mut stage = course.0.borrow_mut();
        let requests = match &mut *stage {
            Stage::Following(requests) => requests,
            Stage::Refused { left, .. } => {
                give(left, buffer);
                return Poll::Ready(Ok(()));
            }
            Stage::Switched => return Poll::Pending,
        };
        let before = buffer.filled().len();
        ready!(Pin::new(socket).poll_read(cx, buffer))?;
        if let Err(violation) = requests.follow(buffer.filled().get(before..).unwrap_or_default()) {
            let in_body_of = requests.is_in_body().then(|| requests.heads());
            let mut left = REFUSED;
            buffer.set_filled(before.saturating_add(violation.offset));
            give(&mut left, buffer);
            *stage = Stage::Refused { why: violation.unclear, in_body_of, left };
        }
        Poll::Ready(Ok(()))
    }
}

/// Gives as much as there is room for. In the end nothing is left, and the reader sees the end.
fn give(left: &mut &'static [u8], buffer: &mut ReadBuf<'_>) {
    let (given, rest) = left.split_at(left.len().min(buffer.remaining()));
    buffer.put_slice(given);
    *left = rest;
}
