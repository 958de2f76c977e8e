//! The reading half of a connection that ends where the grammar ends.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::error::{GrammarError, Violation};
use crate::grammar::{RequestGrammar, Unfinished};

/// The bytes that a reader returns in place of the first byte outside of a head that the grammar
/// does not allow. hyper accepts a NUL only in a chunk extension, and no line feed there, so it
/// rejects them in every state. The empty lines end a head, so hyper parses at once.
const REJECTED: &[u8] = b"\0\n\r\n\r\n";

/// How far the requests of one connection were read. Clones share one state with the connection's
/// [`StrictReader`].
///
/// Requests count from 1, in the order in which their heads end. Not `Send`: connection and handles
/// stay on one thread.
#[derive(Clone, Default)]
pub struct Progress(Rc<RefCell<Stage>>);

enum Stage {
    Reading(RequestGrammar),
    Rejected {
        why: GrammarError,
        /// The request whose body broke the grammar. `None` if a head did.
        in_body_of: Option<u64>,
        is_in_head: bool,
        /// Whether the reader has returned the error of a head.
        is_returned: bool,
    },
    /// The connection has switched to another protocol.
    Switched,
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::Reading(RequestGrammar::default())
    }
}

impl Progress {
    /// Returns the rule that the connection's bytes broke, if they broke one.
    pub fn rejected(&self) -> Option<GrammarError> {
        match &*self.0.borrow() {
            Stage::Rejected { why, .. } => Some(*why),
            Stage::Reading(_) | Stage::Switched => None,
        }
    }

    /// Whether the [`StrictReader`] has returned its error: the requests before it were read, and its
    /// own has no answer.
    pub fn has_failed(&self) -> bool {
        matches!(&*self.0.borrow(), Stage::Rejected { is_returned: true, .. })
    }

    /// Whether the body of this request broke the grammar.
    pub fn has_rejected_body_of(&self, request: u64) -> bool {
        matches!(&*self.0.borrow(), Stage::Rejected { in_body_of: Some(rejected), .. } if *rejected == request)
    }

    /// Whether the head of this request was read to its end, and its body was not.
    pub fn is_in_body_of(&self, request: u64) -> bool {
        matches!(&*self.0.borrow(), Stage::Reading(grammar) if grammar.heads() == request && grammar.is_in_body())
    }

    /// Whether this request was read to its end, and nothing after it.
    pub fn is_at_end_of(&self, request: u64) -> bool {
        matches!(&*self.0.borrow(), Stage::Reading(grammar) if grammar.heads() == request && grammar.is_between())
    }

    /// Returns the part of a request that was read last and has not ended. A rejected request stays
    /// an unfinished head.
    pub fn unfinished(&self) -> Unfinished {
        match &*self.0.borrow() {
            Stage::Reading(grammar) => grammar.unfinished(),
            Stage::Rejected { .. } => Unfinished::Head,
            Stage::Switched => Unfinished::Nothing,
        }
    }

    /// Ends HTTP on this connection after a request that switched protocols. The [`StrictReader`]
    /// returns nothing from then on, so later bytes stay in the inner reader
    /// ([`StrictReader::into_inner`]).
    pub fn switch_protocol(&self) {
        *self.0.borrow_mut() = Stage::Switched;
    }
}

/// An [`AsyncRead`] that returns the bytes of another one as long as they are requests by the
/// grammar, with some bytes of targets percent-encoded.
///
/// In place of the first byte of a head that the grammar does not allow, it returns an error
/// ([`InvalidData`](io::ErrorKind::InvalidData)). So the server behind answers the requests before
/// that byte, and ends; hyper does so without an answer to the one with that byte. In place of such
/// a byte of a body, or of one that begins no head, it returns the six bytes `\0\n\r\n\r\n`, which
/// hyper rejects in every place, then the end of the stream. [`Progress::rejected`] returns the reason. Errors of the inner reader pass
/// unchanged.
///
/// Writes do not pass through it: join it with the writing half (`tokio::io::join`). One reader
/// serves one connection.
///
/// ```
/// use http1_strict::{GrammarError, Progress, StrictReader};
/// use tokio::io::AsyncReadExt;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let progress = Progress::default();
/// let mut reader = StrictReader::new(&b"GET / HTTP/1.1\nHost: a\n\n"[..], progress.clone());
/// let mut read = Vec::new();
/// assert!(reader.read_to_end(&mut read).await.is_err());
/// assert_eq!(read, b"GET / HTTP/1.1");
/// assert_eq!(progress.rejected(), Some(GrammarError::LineEnd));
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub struct StrictReader<R> {
    inner: R,
    progress: Progress,
    /// Bytes to return before the next ones are read. Mostly none.
    left: Vec<u8>,
}

impl<R> StrictReader<R> {
    /// Reads a new connection through `inner`. `progress` must be new, too.
    pub fn new(inner: R, progress: Progress) -> StrictReader<R> {
        StrictReader { inner, progress, left: Vec::new() }
    }

    /// Returns the inner reader, which continues behind the last byte that this reader read.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for StrictReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let StrictReader { inner, progress, left } = &mut *self;
        if !left.is_empty() {
            put(left, buffer);
            return Poll::Ready(Ok(()));
        }
        let mut stage = progress.0.borrow_mut();
        let grammar = match &mut *stage {
            Stage::Reading(grammar) => grammar,
            Stage::Rejected { is_in_head: false, .. } => return Poll::Ready(Ok(())),
            Stage::Rejected { why, is_returned, .. } => {
                *is_returned = true;
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, *why)));
            }
            Stage::Switched => return Poll::Pending,
        };
        let start = buffer.filled().len();
        ready!(Pin::new(inner).poll_read(cx, buffer))?;
        let before = grammar.clone();
        let bytes = buffer.filled().get(start..).unwrap_or_default();
        let violation = grammar.read(bytes).err();
        if violation.is_none() && grammar.encoded() == before.encoded() {
            return Poll::Ready(Ok(()));
        }
        let fine = violation.map_or(bytes.len(), |violation| violation.offset);
        *left = encoded(before, bytes.get(..fine).unwrap_or_default());
        buffer.set_filled(start);
        if let Some(Violation { error: why, .. }) = violation {
            let in_body_of = grammar.is_in_body().then(|| grammar.heads());
            let is_in_head = grammar.is_in_head();
            // A read that returns nothing would be the end of the stream.
            let is_returned = is_in_head && left.is_empty();
            *stage = Stage::Rejected { why, in_body_of, is_in_head, is_returned };
            if is_returned {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
            }
            if !is_in_head {
                left.extend_from_slice(REJECTED);
            }
        }
        put(left, buffer);
        Poll::Ready(Ok(()))
    }
}

/// These bytes, which the grammar allows here, with some of their targets percent-encoded.
fn encoded(mut grammar: RequestGrammar, bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(bytes.len() + 64);
    for byte in bytes {
        let before = grammar.encoded();
        let _ = grammar.read(std::slice::from_ref(byte)); // It has been read before.
        if grammar.encoded() == before {
            encoded.push(*byte);
        } else {
            encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    encoded
}

/// Moves as much of `left` to the buffer as the buffer has room for.
fn put(left: &mut Vec<u8>, buffer: &mut ReadBuf<'_>) {
    let later = left.split_off(left.len().min(buffer.remaining()));
    buffer.put_slice(left);
    *left = later;
}
