//! Makes h2 reset a stream whose trailers hold a pseudo-header field (RFC 9113, section 8.1). h2 by
//! itself drops such fields. Does not decode fields: h2 rejects a pseudo-header field behind a
//! regular one, and this puts one in front of all trailers. Trailers that do not fit in one frame
//! end the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

/// Entry 38 of HPACK's static table: `host`, without a value. `upstream/fields.rs` drops `host`
/// from all trailers.
const MARKER: u8 = 0x80 | 38;
/// What the marker adds to the size of a header list (RFC 9113, section 6.5.2).
pub(super) const MARKER_LIST_BYTES: usize = "host".len() + 32;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const PRIORITY_BYTES: usize = 5;
/// The largest frame that h2 takes.
const PAYLOAD_BYTES_MAX: usize = 16_384;
/// The largest header block of trailers: with the marker it has to fit in one frame.
const BLOCK_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - PRIORITY_BYTES - 1;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// An HTTP/2 client's bytes, with the marker in front of all trailers.
pub(super) struct StrictTrailers<R> {
    reader: R,
    rewriter: Rewriter,
    /// Bytes that the rewriter has returned, to be read.
    rewritten: BytesMut,
}

impl<R> StrictTrailers<R> {
    pub(super) fn new(reader: R) -> StrictTrailers<R> {
        StrictTrailers { reader, rewriter: Rewriter::new(), rewritten: BytesMut::new() }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for StrictTrailers<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let StrictTrailers { reader, rewriter, rewritten } = &mut *self;
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        // Another turn if the rewriter holds all that was read: only the reader can wake this task.
        while rewritten.is_empty() {
            ready!(Pin::new(&mut *reader).poll_read(cx, buffer))?;
            let read = &buffer.filled()[before..];
            if read.is_empty() {
                rewritten.put_slice(&rewriter.end());
                break;
            }
            let unchanged = rewriter.take(read, rewritten);
            buffer.set_filled(before + unchanged);
            if unchanged > 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let count = rewritten.len().min(buffer.remaining());
        buffer.put_slice(&rewritten[..count]);
        rewritten.advance(count);
        if rewritten.is_empty() {
            *rewritten = BytesMut::new(); // An idle connection keeps no room for trailers.
        }
        Poll::Ready(Ok(()))
    }
}

/// Follows the frames that a client sends, and rewrites trailers.
struct Rewriter {
    /// Bytes before the next frame: the rest of the preface or of a payload.
    skip: usize,
    /// The highest stream with a HEADERS frame. One more of this or a lower stream carries
    /// trailers.
    highest_stream: u32,
    /// An incomplete frame: its head is incomplete, or it carries trailers.
    held: Vec<u8>,
    /// Trailers whose last frame is still to come.
    section: Option<Section>,
}

impl Rewriter {
    fn new() -> Rewriter {
        Rewriter { skip: PREFACE_BYTES, highest_stream: 0, held: Vec::new(), section: None }
    }

    /// Takes what the client has sent. Returns how many of these bytes stay as they are; what
    /// follows these goes to `rewritten`.
    fn take(&mut self, bytes: &[u8], rewritten: &mut BytesMut) -> usize {
        let unchanged = if self.held.is_empty() { self.pass(bytes) } else { 0 };
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(&bytes[unchanged..]);
        let rest = self.rewrite(&held, rewritten).len();
        if rest > 0 {
            held.drain(..held.len() - rest);
            self.held = held;
        }
        unchanged
    }

    /// Returns what is held when the client has ended.
    fn end(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Passes over all frames before trailers and before an incomplete head. Returns the number of
    /// their bytes.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        loop {
            let skipped = self.skip.min(bytes.len() - passed);
            self.skip -= skipped;
            passed += skipped;
            match Head::parse(&bytes[passed..]) {
                Some((head, _)) if self.section.is_none() && !self.begins_trailers(&head) => {
                    if head.kind == HEADERS {
                        self.highest_stream = self.highest_stream.max(head.stream);
                    }
                    self.skip = HEAD_BYTES + head.length;
                }
                _ => return passed,
            }
        }
    }

    fn begins_trailers(&self, head: &Head) -> bool {
        // For a longer frame h2 ends the connection.
        head.kind == HEADERS
            && head.stream <= self.highest_stream
            && head.length <= PAYLOAD_BYTES_MAX
    }

    /// Rewrites all complete frames. Returns the bytes of the incomplete one.
    fn rewrite<'b>(&mut self, mut bytes: &'b [u8], rewritten: &mut BytesMut) -> &'b [u8] {
        loop {
            let (passed, rest) = bytes.split_at(self.pass(bytes));
            rewritten.put_slice(passed);
            let Some((head, payload)) = Head::parse(rest) else { return rest };
            if self.section.as_ref().is_some_and(|section| !section.goes_on_with(&head)) {
                self.section = None;
                end_connection(rewritten);
                bytes = rest;
                continue;
            }
            let Some((payload, behind)) = payload.split_at_checked(head.length) else {
                return rest;
            };
            bytes = behind;
            let section = match self.section.take() {
                Some(section) => Some(section.and(payload)),
                None => Section::begin(&head, payload),
            };
            match section {
                // For a payload that is too short h2 ends the connection.
                None => rewritten.put_slice(&rest[..HEAD_BYTES + head.length]),
                Some(section) if head.flags & END_HEADERS != 0 => section.write(rewritten),
                Some(section) => self.section = Some(section),
            }
        }
    }
}

/// The head of a frame (RFC 9113, section 4.1).
#[derive(Clone, Copy)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    /// A frame's head, and what follows it.
    fn parse(bytes: &[u8]) -> Option<(Head, &[u8])> {
        let (&[high, middle, low, kind, flags, stream @ ..], rest) =
            bytes.split_first_chunk::<HEAD_BYTES>()?;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Some((Head { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff }, rest))
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_uint(self.length as u64, 3);
        out.put_slice(&[self.kind, self.flags]);
        out.put_u32(self.stream);
    }
}

/// Writes a frame for which h2 ends the connection with `PROTOCOL_ERROR`: HEADERS of stream 0.
fn end_connection(out: &mut BytesMut) {
    Head { length: 0, kind: HEADERS, flags: END_HEADERS, stream: 0 }.write(out);
}

/// A trailer section as far as it has come.
struct Section {
    head: Head,
    priority: Vec<u8>,
    /// The header block: the fragments of all frames, without padding.
    block: Vec<u8>,
}

impl Section {
    /// `None` if the payload is shorter than its flags call for.
    fn begin(head: &Head, payload: &[u8]) -> Option<Section> {
        let (padding, rest) =
            if head.flags & PADDED == 0 { (&0, payload) } else { payload.split_first()? };
        let priority_bytes = if head.flags & PRIORITY == 0 { 0 } else { PRIORITY_BYTES };
        let (priority, rest) = rest.split_at_checked(priority_bytes)?;
        let block = &rest[..rest.len().checked_sub(usize::from(*padding))?];
        Some(Section { head: *head, priority: priority.to_vec(), block: block.to_vec() })
    }

    fn goes_on_with(&self, head: &Head) -> bool {
        head.kind == CONTINUATION
            && head.stream == self.head.stream
            && self.block.len() + head.length <= BLOCK_BYTES_MAX
    }

    fn and(mut self, fragment: &[u8]) -> Section {
        self.block.extend_from_slice(fragment);
        self
    }

    /// Writes the section as one frame, with the marker in front of its fields.
    fn write(mut self, out: &mut BytesMut) {
        if self.block.len() > BLOCK_BYTES_MAX {
            return end_connection(out);
        }
        self.block.insert(size_updates(&self.block), MARKER);
        let (length, kept) =
            (self.priority.len() + self.block.len(), self.head.flags & (END_STREAM | PRIORITY));
        Head { length, flags: kept | END_HEADERS, ..self.head }.write(out);
        out.put_slice(&self.priority);
        out.put_slice(&self.block);
    }
}

/// The length of the dynamic table size updates, which come before all fields of a block (RFC 7541,
/// section 4.2).
fn size_updates(block: &[u8]) -> usize {
    let mut end = 0;
    while let Some(first) = block.get(end).filter(|first| **first & 0xe0 == 0x20) {
        // An integer that does not fit in five bits goes on to the first byte below 0x80 (section
        // 5.1).
        let last =
            block[end + 1..].iter().take(4).position(|byte| byte & 0x80 == 0).map(|last| last + 1);
        // h2 ends the connection for an update that is longer, or incomplete.
        let Some(more) = (if first & 0x1f < 0x1f { Some(0) } else { last }) else { break };
        end += 1 + more;
    }
    end
}

#[cfg(test)]
#[path = "strict_trailers_tests.rs"]
mod tests;
