//! Counts the frames of an HTTP/2 client, and ends the connection of a client that floods us with
//! cheap ones. Looks at their number and kind alone. h2 bounds the memory that frames take, but not
//! their number.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use super::connection::Connection;
use super::limits::{Closing, Limits};
use crate::wire::Socket;

/// How long an allowance lasts.
const WINDOW: Duration = Duration::from_secs(10);
/// Control frames that one request calls for: windows, acknowledgements, a ping.
const PER_REQUEST: f64 = 8.0;
/// Control frames that one piece of a response calls for: grpc-go opens the connection's window for
/// each piece, and sends a PING.
const PER_PIECE: f64 = 2.0;
/// Bytes, either way, that call for one.
const BYTES_PER_FRAME: f64 = 1024.0;
/// With these bytes every connection of a client begins.
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;

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

/// Counts the frames in the bytes that a client sends.
struct Counter {
    /// What is passed over before the next head: the preface, or a frame's payload.
    skip: usize,
    head: [u8; HEAD_BYTES],
    filled: usize,
    resets: Allowance,
    control_frames: Allowance,
    /// Bytes that have moved either way, as far as they have been counted.
    moved: u64,
}

impl Counter {
    fn new(limits: &Limits, now: Instant) -> Counter {
        Counter {
            skip: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            filled: 0,
            resets: Allowance::new(limits.resets_max, now),
            control_frames: Allowance::new(limits.control_frames_max, now),
            moved: 0,
        }
    }

    /// Notes that so many pieces of responses were sent.
    fn add_pieces(&mut self, pieces: u64) {
        self.control_frames.earn(pieces as f64 * PER_PIECE);
    }

    /// Counts what has come; `moved` is all that has moved on the connection, either way.
    fn count(&mut self, mut bytes: &[u8], moved: u64, now: Instant) -> Result<(), Closing> {
        self.resets.fill(now);
        self.control_frames.fill(now);
        self.control_frames.earn(moved.wrapping_sub(self.moved) as f64 / BYTES_PER_FRAME);
        self.moved = moved;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD_BYTES - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == HEAD_BYTES {
                self.filled = 0;
                self.skip = usize::from(self.head[0]) << 16
                    | usize::from(self.head[1]) << 8
                    | usize::from(self.head[2]);
                self.count_frame()?;
            }
        }
        Ok(())
    }

    /// A frame, by its head (RFC 9113, section 6).
    fn count_frame(&mut self) -> Result<(), Closing> {
        const DATA: u8 = 0;
        const HEADERS: u8 = 1;
        const RST_STREAM: u8 = 3;
        const END_STREAM: u8 = 1;
        let (kind, flags) = (self.head[3], self.head[4]);
        match kind {
            HEADERS => self.control_frames.earn(PER_REQUEST),
            DATA if self.skip > 0 || flags & END_STREAM != 0 => {}
            RST_STREAM if self.resets.take() => {}
            RST_STREAM => return Err(Closing::Resets),
            _ if self.control_frames.take() => {}
            _ => return Err(Closing::ControlFrames),
        }
        Ok(())
    }
}

/// An HTTP/2 client's socket whose frames are counted. Beyond an allowance, reading fails.
pub(super) struct Counted {
    socket: Socket,
    counter: Counter,
    connection: Rc<Connection>,
}

impl Counted {
    pub(super) fn new(socket: Socket, connection: Rc<Connection>) -> Counted {
        let counter = Counter::new(&connection.limits, Instant::now());
        Counted { socket, counter, connection }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let (moved, pieces) = (self.socket.bytes_moved(), self.connection.sent.take_pieces());
        self.counter.add_pieces(pieces);
        if let Err(closing) = self.counter.count(&buffer.filled()[before..], moved, Instant::now())
        {
            self.connection.exceeded.set(Some(closing));
            return Poll::Ready(Err(io::Error::other("more frames than a client may send")));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], &vec![b'x'; payload]].concat()
    }

    /// A counter behind the preface, and the time at which it was made.
    fn counter(resets_max: u32, control_frames_max: u32) -> (Counter, Instant) {
        let now = Instant::now();
        let mut counter =
            Counter::new(&Limits { resets_max, control_frames_max, ..Limits::default() }, now);
        counter.count(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, now).unwrap();
        (counter, now)
    }

    #[test]
    fn frames_are_counted_however_their_bytes_arrive() {
        let bytes: Vec<u8> = (0..40)
            .flat_map(|size| [frame(PING, 0, size), frame(DATA, 0, 1 + size)].concat())
            .collect();
        for piece in [1, 2, 7, 9, 10, bytes.len()] {
            let (mut counter, now) = counter(1, 40);
            for piece in bytes.chunks(piece) {
                counter.count(piece, 0, now).unwrap();
            }
            assert_eq!(
                counter.count(&frame(PING, 0, 8), 0, now),
                Err(Closing::ControlFrames),
                "in pieces of {piece}"
            );
        }
    }

    #[test]
    fn requests_pieces_data_and_time_allow_control_frames() {
        let (mut counter, now) = counter(1, 100);
        let pings = |counter: &mut Counter, moved, now| {
            (0..).take_while(|_| counter.count(&frame(PING, 0, 0), moved, now).is_ok()).count()
        };
        assert_eq!(pings(&mut counter, 0, now), 100);
        counter.count(&frame(HEADERS, 5, 30), 0, now).unwrap();
        assert_eq!(pings(&mut counter, 0, now), 8);
        assert_eq!(pings(&mut counter, 5 * 1024, now), 5);
        counter.add_pieces(3);
        assert_eq!(pings(&mut counter, 5 * 1024, now), 6);
        assert_eq!(pings(&mut counter, 5 * 1024, now + Duration::from_millis(1_050)), 10);
        assert_eq!(pings(&mut counter, 5 * 1024, now + 10 * WINDOW), 100);
    }

    #[test]
    fn empty_data_is_counted_unless_it_ends_a_body() {
        let (mut counter, now) = counter(1, 1);
        counter.count(&frame(DATA, 1, 0), 0, now).unwrap();
        counter.count(&frame(DATA, 0, 0), 0, now).unwrap();
        assert_eq!(counter.count(&frame(DATA, 0, 0), 0, now), Err(Closing::ControlFrames));
    }

    #[test]
    fn no_request_calls_for_a_reset() {
        let (mut counter, now) = counter(2, 100);
        let reset = [frame(HEADERS, 5, 30), frame(RST_STREAM, 0, 4)].concat();
        counter.count(&reset, 0, now).unwrap();
        counter.count(&reset, 0, now).unwrap();
        assert_eq!(counter.count(&reset, 0, now), Err(Closing::Resets));
    }
}
