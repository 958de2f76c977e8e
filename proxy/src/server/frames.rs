//! Reads the frames of an HTTP/2 client before h2 does, and decodes nothing of their payloads.
//!
//! Ends the connection of a client that floods us with cheap frames: h2 bounds the memory that
//! frames take, but not their number. And makes h2 reset a stream whose trailers hold a
//! pseudo-header field (RFC 9113, section 8.1): h2 by itself drops such fields, but rejects them
//! behind a regular one, and this puts one in front of trailers. Trailers in several frames, padded
//! or with a priority, stay as they are: what h2 drops reaches no worker.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use super::connection::Connection;
use super::limits::{Closing, Limits};

/// How long an allowance lasts.
const WINDOW: Duration = Duration::from_secs(10);
/// Control frames that one request calls for: windows, acknowledgements, a ping.
const PER_REQUEST: f64 = 8.0;
/// Control frames that one piece of a response calls for: grpc-go opens the connection's window for
/// each piece, and sends a PING.
const PER_PIECE: f64 = 2.0;
/// Bytes, either way, that call for one.
const BYTES_PER_FRAME: f64 = 1024.0;

/// Entry 38 of HPACK's static table: `host`, without a value. `upstream/fields.rs` drops `host`
/// from all trailers.
const MARKER: u8 = 0x80 | 38;
/// What the marker adds to the size of a header list (RFC 9113, section 6.5.2).
pub(super) const MARKER_LIST_BYTES: usize = "host".len() + 32;

/// With these bytes every connection of a client begins.
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
/// The largest frame that h2 takes.
const PAYLOAD_BYTES_MAX: usize = 16_384;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The bytes that h2 reads of a client's connection. Beyond an allowance, reading fails.
pub(super) struct FrameReader {
    connection: Rc<Connection>,
    frames: Frames,
    /// What is to be read in place of bytes that have come.
    rewritten: BytesMut,
}

impl FrameReader {
    pub(super) fn new(connection: Rc<Connection>) -> FrameReader {
        let frames = Frames::new(&connection.limits, Instant::now());
        FrameReader { connection, frames, rewritten: BytesMut::new() }
    }
}

impl AsyncRead for FrameReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let FrameReader { connection, frames, rewritten } = &mut *self;
        // Once more if all that has come is held: only the socket wakes this task.
        while rewritten.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut connection.socket.clone()).poll_read(cx, buffer))?;
            let read = &buffer.filled()[before..];
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let moved = connection.socket.bytes_moved();
            let pieces = std::mem::take(&mut connection.state.borrow_mut().sent_pieces);
            frames.earn(moved, pieces, Instant::now());
            let unchanged = frames.take(read, rewritten).map_err(|closing| {
                connection.state.borrow_mut().exceeded = Some(closing);
                io::Error::other("more frames than a client may send")
            })?;
            buffer.set_filled(before + unchanged);
            if unchanged > 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let count = rewritten.len().min(buffer.remaining());
        buffer.put_slice(&rewritten[..count]);
        rewritten.advance(count);
        Poll::Ready(Ok(()))
    }
}

/// How many frames a client may send: used up frame by frame, and filled again as time goes by.
struct Allowance {
    left: f64,
    max: f64,
    filled: Instant,
}

impl Allowance {
    fn new(max: u32, now: Instant) -> Allowance {
        Allowance { left: max.into(), max: max.into(), filled: now }
    }

    fn fill(&mut self, now: Instant) {
        self.earn(self.max * (now - self.filled).as_secs_f64() / WINDOW.as_secs_f64());
        self.filled = now;
    }

    fn earn(&mut self, frames: f64) {
        self.left = (self.left + frames).min(self.max);
    }

    fn take(&mut self) -> bool {
        let is_left = self.left >= 1.0;
        self.left -= if is_left { 1.0 } else { self.left };
        is_left
    }
}

/// The frames in the bytes that a client sends.
struct Frames {
    /// What is passed over before the next head: the preface, or a frame's payload.
    skip: usize,
    /// The beginning of a head, or of trailers, until the rest has come.
    held: Vec<u8>,
    /// The latest stream with a request. HEADERS of that or an earlier one are trailers.
    highest_stream: u32,
    resets: Allowance,
    control_frames: Allowance,
    /// Bytes that have moved either way, as far as they have been counted.
    moved: u64,
}

impl Frames {
    fn new(limits: &Limits, now: Instant) -> Frames {
        Frames {
            skip: PREFACE_BYTES,
            held: Vec::new(),
            highest_stream: 0,
            resets: Allowance::new(limits.h2_resets_max, now),
            control_frames: Allowance::new(limits.h2_control_frames_max, now),
            moved: 0,
        }
    }

    /// Adds to the allowances what time, bytes and pieces of responses call for. `moved` is all that
    /// has moved on the connection, either way; `pieces` were sent since the last call.
    fn earn(&mut self, moved: u64, pieces: u64, now: Instant) {
        self.resets.fill(now);
        self.control_frames.fill(now);
        self.control_frames.earn(moved.wrapping_sub(self.moved) as f64 / BYTES_PER_FRAME);
        self.control_frames.earn(pieces as f64 * PER_PIECE);
        self.moved = moved;
    }

    /// Takes in what has come. Returns how many bytes at its beginning stay as they are; what
    /// follows these goes to `rewritten`.
    ///
    /// # Errors
    /// The limit that the client has exceeded.
    fn take(&mut self, bytes: &[u8], rewritten: &mut BytesMut) -> Result<usize, Closing> {
        let mut held = std::mem::take(&mut self.held);
        let unchanged = if held.is_empty() { self.pass(bytes)? } else { 0 };
        held.extend_from_slice(&bytes[unchanged..]);
        let mut rest = &held[..];
        while !rest.is_empty() {
            let (passed, behind) = rest.split_at(self.pass(rest)?);
            rewritten.put_slice(passed);
            // Trailers, or a head that has not come whole.
            let (Some(mut head), Some(first)) = (Head::parse(behind), behind.get(HEAD_BYTES))
            else {
                self.held = behind.to_vec();
                break;
            };
            self.count(&head)?;
            self.skip = head.length;
            // A size update of the dynamic table comes before all fields (RFC 7541, section 4.2).
            let is_marked = first & 0xe0 != 0x20;
            head.length += usize::from(is_marked);
            head.write(rewritten);
            rewritten.put_slice(if is_marked { &[MARKER] } else { &[] });
            rest = &behind[HEAD_BYTES..];
        }
        Ok(unchanged)
    }

    /// Passes over all frames before trailers and before an incomplete head. Returns the number of
    /// their bytes.
    fn pass(&mut self, bytes: &[u8]) -> Result<usize, Closing> {
        let mut passed = 0;
        loop {
            let skipped = self.skip.min(bytes.len() - passed);
            self.skip -= skipped;
            passed += skipped;
            match Head::parse(&bytes[passed..]) {
                Some(head) if !head.is_of_trailers(self.highest_stream) => {
                    self.count(&head)?;
                    if head.kind == HEADERS {
                        self.highest_stream = self.highest_stream.max(head.stream);
                    }
                    self.skip = HEAD_BYTES + head.length;
                }
                _ => return Ok(passed),
            }
        }
    }

    /// Counts a frame, by its head (RFC 9113, section 6).
    fn count(&mut self, head: &Head) -> Result<(), Closing> {
        match head.kind {
            HEADERS => self.control_frames.earn(PER_REQUEST),
            DATA if head.length > 0 || head.flags & END_STREAM != 0 => {}
            RST_STREAM if self.resets.take() => {}
            RST_STREAM => return Err(Closing::Resets),
            _ if self.control_frames.take() => {}
            _ => return Err(Closing::ControlFrames),
        }
        Ok(())
    }
}

/// The head of a frame (RFC 9113, section 4.1).
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Head> {
        let &[high, middle, low, kind, flags, ref stream @ ..] =
            bytes.first_chunk::<HEAD_BYTES>()?;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Some(Head { length, kind, flags, stream: u32::from_be_bytes(*stream) & 0x7fff_ffff })
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_uint(self.length as u64, 3);
        out.put_slice(&[self.kind, self.flags]);
        out.put_u32(self.stream);
    }

    /// Whether it begins trailers whose payload is fields alone, with room for one more.
    fn is_of_trailers(&self, highest_stream: u32) -> bool {
        self.kind == HEADERS
            && self.stream <= highest_stream
            && self.flags & (END_HEADERS | PADDED | PRIORITY) == END_HEADERS
            && (1..PAYLOAD_BYTES_MAX).contains(&self.length)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, join};
    use tokio::net::UnixStream;

    use super::*;
    use crate::wire::Socket;

    const CONTINUATION: u8 = 9;
    const PING: u8 = 6;
    const SETTINGS: u8 = 4;

    /// `:path: /` of the static table.
    const PATH: &[u8] = &[0x84];
    /// `x-sum: 1`, which enters no table.
    const SUM: &[u8] = b"\0\x05x-sum\x011";

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        Head { length: payload.len(), kind, flags, stream }.write(&mut bytes);
        [&bytes, payload].concat()
    }

    /// The head of a request that has a body.
    fn head(stream: u32) -> Vec<u8> {
        frame(HEADERS, END_HEADERS, stream, b"\x83\x86\x84\x01\x01h")
    }

    fn trailers(stream: u32, block: &[u8]) -> Vec<u8> {
        frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
    }

    /// Frames behind the preface, and the time at which they begin.
    fn frames(h2_resets_max: u32, h2_control_frames_max: u32) -> (Frames, Instant) {
        let now = Instant::now();
        let limits = Limits { h2_resets_max, h2_control_frames_max, ..Limits::default() };
        let mut frames = Frames::new(&limits, now);
        read(&mut frames, PREFACE).unwrap();
        (frames, now)
    }

    /// What h2 reads of a piece.
    fn read(frames: &mut Frames, piece: &[u8]) -> Result<Vec<u8>, Closing> {
        let mut rewritten = BytesMut::new();
        let unchanged = frames.take(piece, &mut rewritten)?;
        Ok([&piece[..unchanged], &rewritten[..]].concat())
    }

    #[test]
    fn frames_are_counted_however_their_bytes_arrive() {
        let bytes: Vec<u8> = (0..40)
            .flat_map(|size| {
                [frame(PING, 0, 1, &vec![b'x'; size]), frame(DATA, 0, 1, &vec![b'x'; 1 + size])]
                    .concat()
            })
            .collect();
        for length in [1, 2, 7, 9, 10, bytes.len()] {
            let (mut frames, _) = frames(1, 40);
            for piece in bytes.chunks(length) {
                read(&mut frames, piece).unwrap();
            }
            let one_more = read(&mut frames, &frame(PING, 0, 1, &[0; 8]));
            assert_eq!(one_more, Err(Closing::ControlFrames), "in pieces of {length}");
        }
    }

    #[test]
    fn requests_pieces_data_and_time_allow_control_frames() {
        let (mut frames, now) = frames(1, 100);
        let pings = |frames: &mut Frames, moved, pieces, now| {
            frames.earn(moved, pieces, now);
            (0..).take_while(|_| read(frames, &frame(PING, 0, 1, &[])).is_ok()).count()
        };
        assert_eq!(pings(&mut frames, 0, 0, now), 100);
        read(&mut frames, &head(1)).unwrap();
        assert_eq!(pings(&mut frames, 0, 0, now), 8);
        assert_eq!(pings(&mut frames, 5 * 1024, 0, now), 5);
        assert_eq!(pings(&mut frames, 5 * 1024, 3, now), 6);
        assert_eq!(pings(&mut frames, 5 * 1024, 0, now + Duration::from_millis(1_050)), 10);
        assert_eq!(pings(&mut frames, 5 * 1024, 0, now + 10 * WINDOW), 100);
    }

    #[test]
    fn empty_data_is_counted_unless_it_ends_a_body() {
        let (mut frames, _) = frames(1, 1);
        read(&mut frames, &frame(DATA, END_STREAM, 1, &[])).unwrap();
        read(&mut frames, &frame(DATA, 0, 1, &[])).unwrap();
        let one_more = read(&mut frames, &frame(DATA, 0, 1, &[]));
        assert_eq!(one_more, Err(Closing::ControlFrames));
    }

    #[test]
    fn no_request_calls_for_a_reset() {
        let (mut frames, _) = frames(2, 100);
        for stream in [1, 3] {
            let reset = [head(stream), frame(RST_STREAM, 0, stream, &[0; 4])].concat();
            read(&mut frames, &reset).unwrap();
        }
        let reset = [head(5), frame(RST_STREAM, 0, 5, &[0; 4])].concat();
        assert_eq!(read(&mut frames, &reset), Err(Closing::Resets));
    }

    /// Trailers of several streams among other frames, and what h2 reads of that.
    fn conversation() -> (Vec<u8>, Vec<u8>) {
        let size_update = [b"\x3f\xe1\x1f", SUM].concat();
        let several =
            [frame(HEADERS, END_STREAM, 3, SUM), frame(CONTINUATION, END_HEADERS, 3, SUM)];
        let around = |first: &[u8]| {
            [
                PREFACE,
                &head(1),
                &head(3),
                &frame(DATA, 0, 1, b"abc"),
                first,
                &several.concat(),
                &frame(PING, 0, 0, b"harmless"),
                &head(5),
                &trailers(5, &size_update),
                &head(7),
                &trailers(7, b""),
            ]
            .concat()
        };
        (around(&trailers(1, SUM)), around(&trailers(1, &[&[MARKER], SUM].concat())))
    }

    #[test]
    fn trailers_in_any_pieces_begin_with_the_marker() {
        let (sent, expected) = conversation();
        let limits = Limits::default();
        for (first, second) in
            (0..sent.len()).flat_map(|first| (first..sent.len()).map(move |second| (first, second)))
        {
            let mut frames = Frames::new(&limits, Instant::now());
            let pieces = [&sent[..first], &sent[first..second], &sent[second..]];
            let whole = pieces.map(|piece| read(&mut frames, piece).unwrap()).concat();
            assert_eq!(whole, expected, "cut at {first} and {second}");
        }
    }

    /// A connection whose client sends these bytes.
    async fn of_client(sent: &[u8]) -> (Rc<Connection>, UnixStream) {
        let (ours, mut client) = UnixStream::pair().unwrap();
        client.write_all(sent).await.unwrap();
        let socket = Socket::downstream(ours.into());
        (Connection::for_tests(Limits::default(), socket).await, client)
    }

    #[tokio::test]
    async fn reader_of_any_room_gets_all_and_the_end() {
        let (sent, expected) = conversation();
        for room in [1, 2, 8, 9, 100, 8192] {
            let (connection, client) = of_client(&sent).await;
            drop(client);
            let mut reader = FrameReader::new(connection);
            let (mut read, mut piece) = (Vec::<u8>::new(), vec![0; room]);
            while let count @ 1.. = reader.read(&mut piece).await.unwrap() {
                read.extend(&piece[..count]);
            }
            assert_eq!(read, expected, "room for {room}");
        }
    }

    /// The trailers that h2 reads, or the code with which it resets the stream.
    async fn at_h2(block: &[u8]) -> Result<HeaderMap, h2::Reason> {
        let settings = frame(SETTINGS, 0, 0, &[]);
        let sent = [PREFACE, &settings, &head(1), &trailers(1, block)].concat();
        let (connection, _client) = of_client(&sent).await;
        let socket = connection.socket.clone();
        let io = join(FrameReader::new(connection), socket);
        let mut connection = h2::server::handshake(io).await.unwrap();
        let (request, _respond) =
            connection.accept().await.unwrap().map_err(|error| error.reason().unwrap())?;
        let mut body = request.into_body();
        let read = async {
            match body.data().await {
                Some(error) => error.map(|_| HeaderMap::new()),
                None => body.trailers().await.map(|trailers| trailers.unwrap()),
            }
        };
        let read = tokio::select! {
            biased;
            read = read => read,
            _ = async { while let Some(Ok(_)) = connection.accept().await {} } => panic!("no end"),
        };
        read.map_err(|error| error.reason().unwrap())
    }

    #[tokio::test]
    async fn pseudo_field_in_trailers_is_rejected() {
        let sum = at_h2(SUM).await.unwrap();
        assert_eq!((sum["x-sum"].as_bytes(), sum["host"].as_bytes()), (&b"1"[..], &b""[..]));
        for block in [&[PATH, SUM].concat(), &[SUM, PATH].concat(), PATH] {
            assert_eq!(at_h2(block).await, Err(h2::Reason::PROTOCOL_ERROR));
        }
    }
}
