//! Makes h2 reset a stream whose trailers hold a pseudo-header field (RFC 9113, section 8.1). h2 by itself drops such fields.
//! Does not decode fields: h2 rejects a pseudo-header field behind a regular one, and this puts one in front of all trailers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

/// Entry 38 of HPACK's static table: `host`, without a value. `forward/fields.rs` drops `host` from all trailers.
const MARKER: u8 = 0x80 | 38;
/// What the marker adds to the size of a header list (RFC 9113, section 6.5.2).
pub(super) const MARKER_LIST_BYTES: usize = "host".len() + 32;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const PRIORITY_BYTES: usize = 5;
/// The largest frame that h2 takes.
const PAYLOAD_BYTES_MAX: usize = 16_384;

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
    /// Bytes that the rewriter has returned and nobody has read.
    rewritten: BytesMut,
}

impl<R> StrictTrailers<R> {
    /// A section of trailers that takes several frames may have `block_bytes_max` bytes. A larger one ends the connection.
    pub(super) fn new(reader: R, block_bytes_max: usize) -> StrictTrailers<R> {
        StrictTrailers { reader, rewriter: Rewriter::new(block_bytes_max), rewritten: BytesMut::new() }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for StrictTrailers<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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
    /// The highest stream with a HEADERS frame. One more of this or a lower stream carries trailers.
    highest_stream: u32,
    /// An incomplete frame: its head is incomplete, or it carries trailers.
    held: Vec<u8>,
    /// Trailers whose last frame is still to come.
    section: Option<Section>,
    block_bytes_max: usize,
}

impl Rewriter {
    fn new(block_bytes_max: usize) -> Rewriter {
        Rewriter { skip: PREFACE_BYTES, highest_stream: 0, held: Vec::new(), section: None, block_bytes_max }
    }

    /// Takes what the client has sent. Returns how many of these bytes stay as they are; what follows these goes to `rewritten`.
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

    /// Passes over all frames before trailers and before an incomplete head. Returns the number of their bytes.
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
        head.kind == HEADERS && head.stream <= self.highest_stream && head.length <= PAYLOAD_BYTES_MAX
    }

    /// Rewrites all complete frames. Returns the bytes of the incomplete one.
    fn rewrite<'b>(&mut self, mut bytes: &'b [u8], rewritten: &mut BytesMut) -> &'b [u8] {
        loop {
            let (passed, rest) = bytes.split_at(self.pass(bytes));
            rewritten.put_slice(passed);
            let Some((head, payload)) = Head::parse(rest) else { return rest };
            if self.section.as_ref().is_some_and(|section| !section.goes_on_with(&head, self.block_bytes_max)) {
                self.section = None;
                end_connection(rewritten);
                bytes = rest;
                continue;
            }
            let Some((payload, behind)) = payload.split_at_checked(head.length) else { return rest };
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
        let (&[high, middle, low, kind, flags, stream @ ..], rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
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
        let (padding, rest) = if head.flags & PADDED == 0 { (&0, payload) } else { payload.split_first()? };
        let priority_bytes = if head.flags & PRIORITY == 0 { 0 } else { PRIORITY_BYTES };
        let (priority, rest) = rest.split_at_checked(priority_bytes)?;
        let block = &rest[..rest.len().checked_sub(usize::from(*padding))?];
        Some(Section { head: *head, priority: priority.to_vec(), block: block.to_vec() })
    }

    fn goes_on_with(&self, head: &Head, block_bytes_max: usize) -> bool {
        head.kind == CONTINUATION
            && head.stream == self.head.stream
            && head.length <= PAYLOAD_BYTES_MAX
            && self.block.len() + head.length <= block_bytes_max
    }

    fn and(mut self, fragment: &[u8]) -> Section {
        self.block.extend_from_slice(fragment);
        self
    }

    /// Writes the section with the marker in front of its fields.
    fn write(mut self, out: &mut BytesMut) {
        let updates = size_updates(&self.block);
        self.block.insert(updates, MARKER);
        let Some(fragments) = fragments(&self.block) else { return end_connection(out) };
        for (index, fragment) in fragments.iter().enumerate() {
            let (kind, priority) = if index == 0 { (HEADERS, &self.priority[..]) } else { (CONTINUATION, &[][..]) };
            let kept = if index == 0 { END_STREAM | PRIORITY } else { 0 };
            let end = if index + 1 == fragments.len() { END_HEADERS } else { 0 };
            let length = priority.len() + fragment.len();
            Head { length, kind, flags: self.head.flags & kept | end, stream: self.head.stream }.write(out);
            out.put_slice(priority);
            out.put_slice(fragment);
        }
    }
}

/// The length of the dynamic table size updates, which come before all fields of a block (RFC 7541, section 4.2).
fn size_updates(block: &[u8]) -> usize {
    let mut end = 0;
    while block.get(end).is_some_and(|first| first & 0xe0 == 0x20) {
        // h2 ends the connection for an update that is invalid.
        let Some(length) = field_length(&block[end..]) else { break };
        end += length;
    }
    end
}

/// Divides a block into fragments, one for each frame. `None` if an invalid block would have to be divided.
///
/// h2 forgets a pseudo-header field if the fragment with it ends within another field. So a fragment either ends with a
/// field or holds a part of one field only.
fn fragments(block: &[u8]) -> Option<Vec<&[u8]>> {
    const FRAGMENT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - PRIORITY_BYTES;
    if block.len() <= FRAGMENT_BYTES_MAX {
        return Some(vec![block]);
    }
    let mut fragments = Vec::new();
    let (mut start, mut field) = (0, 0);
    while field < block.len() {
        let end = field + field_length(&block[field..])?;
        if start < field && end - start > FRAGMENT_BYTES_MAX {
            fragments.push(&block[start..field]);
            start = field;
        }
        while end - start > FRAGMENT_BYTES_MAX {
            fragments.push(&block[start..start + FRAGMENT_BYTES_MAX]);
            start += FRAGMENT_BYTES_MAX;
        }
        field = end;
    }
    fragments.push(&block[start..]);
    Some(fragments)
}

/// The length of a block's first field or size update (RFC 7541, section 6). `None` if it is incomplete or invalid.
fn field_length(block: &[u8]) -> Option<usize> {
    let mut rest = block;
    let (prefix_bits, is_literal) = match block.first()? {
        0x80.. => (7, false),
        0x40.. => (6, true),
        0x20.. => (5, false),
        _ => (4, true),
    };
    let name_index = integer(&mut rest, prefix_bits)?;
    if is_literal {
        // Without a name, Huffman-coded or not. h2 would take such a field for an incomplete one.
        if name_index == 0 && string(&mut rest)?.iter().all(|byte| *byte == 0xff) {
            return None;
        }
        string(&mut rest)?;
    }
    Some(block.len() - rest.len())
}

fn string<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = integer(rest, 7)?;
    let (string, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(string)
}

/// An integer behind a prefix of so many bits (RFC 7541, section 5.1). `None` beyond five bytes, as in h2.
fn integer(rest: &mut &[u8], prefix_bits: u8) -> Option<usize> {
    let mask = (1 << prefix_bits) - 1;
    let mut next = || {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        Some(usize::from(*byte))
    };
    let mut value = next()? & mask;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
#[path = "strict_trailers_tests.rs"]
mod tests;
