//! Writes by one call what an HTTP/2 connection says in one turn.
//!
//! h2 writes each DATA frame of 256 bytes or more at once, and flushes. With many streams that is a call for each answer, half of what a
//! refusal costs, where one for all would do. What goes to a worker is not gathered: there it has to be known what the kernel has.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest piece that is copied for it.
const PIECE_BYTES_MAX: usize = 8 * 1024;
/// The most that is held back.
const HELD_BYTES_MAX: usize = 32 * 1024;
/// The most memory that is kept from one turn to the next.
const KEPT_BYTES_MAX: usize = 1024;

/// A connection that is read as `R` reads it, and whose writes are gathered on their way to `W`.
pub(super) struct Gathered<R, W> {
    reader: R,
    writes: Rc<RefCell<Writes<W>>>,
}

/// When the writes of a connection are held back, and when they go out.
pub(super) struct Turns<W> {
    writes: Rc<RefCell<Writes<W>>>,
}

struct Writes<W> {
    writer: W,
    /// What was taken, in its order.
    held: Vec<u8>,
    /// How much of that is written.
    written: usize,
    in_turn: bool,
    /// Why what was held could not be written.
    failed: Option<io::Error>,
}

impl<R, W> Gathered<R, W> {
    /// A connection, and its turns: outside of them it writes at once.
    pub(super) fn new(reader: R, writer: W) -> (Gathered<R, W>, Turns<W>) {
        let writes = Writes { writer, held: Vec::new(), written: 0, in_turn: false, failed: None };
        let writes = Rc::new(RefCell::new(writes));
        (Gathered { reader, writes: Rc::clone(&writes) }, Turns { writes })
    }
}

impl<W: AsyncWrite + Unpin> Turns<W> {
    /// Polls the connection, then writes what it has said. What the kernel does not take now goes out with a later turn, for which `cx` is
    /// woken. A connection that has ended has none: what it said before it failed may be lost, and before its shutdown never is.
    pub(super) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        connection: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.writes.borrow_mut().in_turn = true;
        let polled = connection(cx);
        let mut writes = self.writes.borrow_mut();
        writes.in_turn = false;
        if let Poll::Ready(Err(error)) = writes.poll_held(cx) {
            writes.forget();
            writes.failed = Some(error);
            cx.waker().wake_by_ref(); // The connection hears of it when it writes or flushes.
        }
        polled
    }
}

impl<W: AsyncWrite + Unpin> Writes<W> {
    /// Writes all that is held.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.held.len() {
            let written = ready!(Pin::new(&mut self.writer).poll_write(cx, &self.held[self.written..]))?;
            self.written += nonzero(written)?;
        }
        self.forget();
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    /// Takes as much of `slices` as there is room for, or waits for room.
    fn poll_take(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
        if self.in_turn && length <= PIECE_BYTES_MAX && self.held.len() - self.written + length <= HELD_BYTES_MAX {
            self.hold(slices, length);
            return Poll::Ready(Ok(length));
        }
        // What is held goes first, by the same call.
        let [first, second] = [0, 1].map(|index| slices.get(index).map_or(&[][..], |slice| &**slice));
        while self.written < self.held.len() {
            let held = &self.held[self.written..];
            let all = [held, first, second].map(IoSlice::new);
            let written = nonzero(ready!(Pin::new(&mut self.writer).poll_write_vectored(cx, &all))?)?;
            if let Some(of_slices @ 1..) = written.checked_sub(held.len()) {
                self.forget();
                return Poll::Ready(Ok(of_slices));
            }
            self.written += written;
        }
        self.forget();
        Pin::new(&mut self.writer).poll_write_vectored(cx, slices)
    }

    fn hold(&mut self, slices: &[IoSlice<'_>], length: usize) {
        if self.held.capacity() - self.held.len() < length {
            self.held.drain(..std::mem::take(&mut self.written));
            // At once all that may be needed: growing step by step would copy it again and again.
            let room = if self.held.len() + length <= KEPT_BYTES_MAX { KEPT_BYTES_MAX } else { HELD_BYTES_MAX };
            self.held.reserve_exact(room - self.held.len());
        }
        slices.iter().for_each(|slice| self.held.extend_from_slice(slice));
    }

    /// Holds nothing any more, and gives back what was taken for much.
    fn forget(&mut self) {
        self.written = 0;
        if self.held.capacity() > KEPT_BYTES_MAX {
            self.held = Vec::new();
        } else {
            self.held.clear();
        }
    }
}

/// Whoever takes nothing and does not say when would be asked for ever.
fn nonzero(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

impl<R: AsyncRead + Unpin, W: Unpin> AsyncRead for Gathered<R, W> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buffer)
    }
}

impl<R: Unpin, W: AsyncWrite + Unpin> AsyncWrite for Gathered<R, W> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.borrow_mut().poll_take(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.borrow_mut().poll_take(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writes = self.writes.borrow_mut();
        if let Some(error) = writes.failed.take() {
            return Poll::Ready(Err(error));
        }
        if writes.in_turn {
            return Poll::Ready(Ok(())); // The end of the turn does it.
        }
        writes.poll_held(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writes = self.writes.borrow_mut();
        ready!(writes.poll_held(cx))?;
        Pin::new(&mut writes.writer).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use proptest::prelude::*;

    use super::*;

    /// Takes as much as there is room for, and remembers what came by which call.
    #[derive(Default)]
    struct Calls {
        made: Vec<Vec<u8>>,
        room: usize,
        flushes: usize,
        is_broken: bool,
        takes_nothing: bool,
        is_shut: bool,
    }

    type Shared = Rc<RefCell<Calls>>;

    struct Recorder(Shared);

    impl AsyncWrite for Recorder {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut calls = self.0.borrow_mut();
            if calls.is_broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if calls.takes_nothing {
                return Poll::Ready(Ok(0));
            }
            let mut bytes = slices.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>();
            bytes.truncate(calls.room);
            if bytes.is_empty() {
                return Poll::Pending;
            }
            calls.room -= bytes.len();
            let count = bytes.len();
            calls.made.push(bytes);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.borrow_mut().flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.borrow_mut().is_shut = true;
            Poll::Ready(Ok(()))
        }
    }

    /// Counts how often its task is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn gathered(room: usize) -> (Gathered<tokio::io::Empty, Recorder>, Turns<Recorder>, Shared) {
        let calls = Rc::new(RefCell::new(Calls { room, ..Calls::default() }));
        let (gathered, turns) = Gathered::new(tokio::io::empty(), Recorder(Rc::clone(&calls)));
        (gathered, turns, calls)
    }

    /// Writes a piece as h2 does: a head and a payload, and a flush behind them.
    fn write(
        gathered: &mut Gathered<tokio::io::Empty, Recorder>,
        cx: &mut Context<'_>,
        piece: &[u8],
    ) -> Poll<io::Result<usize>> {
        let (head, payload) = piece.split_at(piece.len().min(9));
        let slices = [IoSlice::new(head), IoSlice::new(payload)];
        let written = ready!(Pin::new(&mut *gathered).poll_write_vectored(cx, &slices))?;
        ready!(Pin::new(gathered).poll_flush(cx))?;
        Poll::Ready(Ok(written))
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn what_is_said_in_a_turn_is_written_by_one_call_at_its_end() {
        let (mut gathered, turns, calls) = gathered(usize::MAX);
        let ended = turns.poll(&mut cx(), |cx| {
            for piece in [b"one", b"two", b"six"] {
                assert!(matches!(write(&mut gathered, cx, piece), Poll::Ready(Ok(3))));
            }
            assert!(calls.borrow().made.is_empty());
            Poll::Ready("ended")
        });
        assert!(matches!(ended, Poll::Ready("ended")));
        assert_eq!(calls.borrow().made, [b"onetwosix"]);
        assert_eq!(calls.borrow().flushes, 1);
        assert!(matches!(write(&mut gathered, &mut cx(), b"ten"), Poll::Ready(Ok(3))), "outside of a turn, at once");
        assert_eq!(calls.borrow().made.last().unwrap(), b"ten");
    }

    #[test]
    fn a_long_piece_takes_what_was_held_along_by_its_own_call() {
        let (mut gathered, turns, calls) = gathered(usize::MAX);
        let long = vec![b'x'; PIECE_BYTES_MAX + 1];
        let _: Poll<()> = turns.poll(&mut cx(), |cx| {
            assert!(write(&mut gathered, cx, b"head").is_ready());
            assert!(matches!(write(&mut gathered, cx, &long), Poll::Ready(Ok(written)) if written == long.len()));
            Poll::Pending
        });
        assert_eq!(calls.borrow().made, [[b"head", &long[..]].concat()]);
    }

    #[test]
    fn no_more_is_held_than_may_be_whoever_does_not_read() {
        let (mut gathered, turns, calls) = gathered(100);
        let piece = [b'x'; 1000];
        let mut taken = 0;
        for _ in 0..100 {
            let _: Poll<()> = turns.poll(&mut cx(), |cx| {
                while let Poll::Ready(written) = write(&mut gathered, cx, &piece) {
                    taken += written.unwrap();
                }
                Poll::Pending
            });
        }
        assert_eq!(calls.borrow().made.concat().len(), 100);
        assert!(taken > HELD_BYTES_MAX - piece.len() && taken <= HELD_BYTES_MAX + 100, "{taken} bytes were taken");
        calls.borrow_mut().room = usize::MAX;
        let _: Poll<()> = turns.poll(&mut cx(), |_| Poll::Pending);
        assert_eq!(calls.borrow().made.concat().len(), taken);
    }

    #[test]
    fn a_connection_that_has_written_all_keeps_little_memory() {
        for length in (1..=HELD_BYTES_MAX).step_by(111).chain([HELD_BYTES_MAX]) {
            let (mut gathered, turns, _) = gathered(usize::MAX);
            let _: Poll<()> = turns.poll(&mut cx(), |cx| {
                for piece in vec![b'x'; length].chunks(PIECE_BYTES_MAX) {
                    assert!(write(&mut gathered, cx, piece).is_ready());
                }
                assert!(turns.writes.borrow().held.capacity() <= HELD_BYTES_MAX);
                Poll::Pending
            });
            assert!(turns.writes.borrow().held.capacity() <= KEPT_BYTES_MAX, "after {length} bytes");
        }
    }

    #[test]
    fn the_end_is_behind_all_that_was_said() {
        let (mut gathered, turns, calls) = gathered(2);
        let mut end = |said: &[u8]| {
            turns.poll(&mut cx(), |cx| {
                if !said.is_empty() {
                    assert!(write(&mut gathered, cx, said).is_ready());
                }
                Pin::new(&mut gathered).poll_shutdown(cx)
            })
        };
        assert!(end(b"last").is_pending());
        assert!(!calls.borrow().is_shut);
        calls.borrow_mut().room = 2;
        assert!(matches!(end(b""), Poll::Ready(Ok(()))));
        assert!(calls.borrow().is_shut);
        assert_eq!(calls.borrow().made.concat(), b"last");
    }

    #[test]
    fn a_connection_hears_once_that_what_it_said_is_lost() {
        for (is_broken, why) in [(true, io::ErrorKind::BrokenPipe), (false, io::ErrorKind::WriteZero)] {
            let (mut gathered, turns, calls) = gathered(usize::MAX);
            (calls.borrow_mut().is_broken, calls.borrow_mut().takes_nothing) = (is_broken, !is_broken);
            let woken = Arc::<Woken>::default();
            let waker = Waker::from(Arc::clone(&woken));
            let mut cx = Context::from_waker(&waker);
            let _: Poll<()> = turns.poll(&mut cx, |cx| {
                assert!(write(&mut gathered, cx, b"lost").is_ready());
                Poll::Pending
            });
            assert_eq!(woken.0.load(Ordering::SeqCst), 1);
            let heard = turns.poll(&mut cx, |cx| Pin::new(&mut gathered).poll_flush(cx));
            assert!(matches!(heard, Poll::Ready(Err(error)) if error.kind() == why));
            assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        }
    }

    proptest! {
        #[test]
        fn what_is_said_arrives_in_its_order(
            pieces in prop::collection::vec((1..3 * PIECE_BYTES_MAX, any::<bool>()), 1..40),
            rooms in prop::collection::vec(0..3 * HELD_BYTES_MAX, 1..20),
        ) {
            let said: Vec<Vec<u8>> =
                pieces.iter().zip(0u8..).map(|((length, _), number)| vec![number; *length]).collect();
            let (mut gathered, turns, calls) = gathered(0);
            let mut rooms = rooms.into_iter().chain([usize::MAX].into_iter().cycle());
            let (mut next, mut from) = (0, 0);
            while next < said.len() {
                calls.borrow_mut().room = rooms.next().unwrap();
                let _: Poll<()> = turns.poll(&mut cx(), |cx| {
                    while next < said.len()
                        && let Poll::Ready(written) = write(&mut gathered, cx, &said[next][from..])
                    {
                        from += written.unwrap();
                        if from == said[next].len() {
                            (next, from) = (next + 1, 0);
                            if pieces[next - 1].1 {
                                break; // The turn ends here.
                            }
                        }
                    }
                    Poll::Pending
                });
            }
            calls.borrow_mut().room = usize::MAX;
            let _: Poll<()> = turns.poll(&mut cx(), |_| Poll::Pending);
            prop_assert_eq!(calls.borrow().made.concat(), said.concat());
        }
    }
}
