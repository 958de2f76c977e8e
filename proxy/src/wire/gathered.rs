//! Writes by one call what a connection says in one turn, and of all the connections of a thread in a row.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::outbox::{Leaves, Outbox};

/// The longest piece that is copied for it.
const PIECE_BYTES_MAX: usize = 8 * 1024;
/// The most that is held back.
const HELD_BYTES_MAX: usize = 32 * 1024;
/// The least memory that is taken for what is held back.
const ROOM_BYTES_MIN: usize = 1024;

/// A connection that is read as `R` reads it, and whose writes are gathered on their way to `W`.
pub(crate) struct Gathered<R, W> {
    reader: R,
    writes: Rc<RefCell<Writes<W>>>,
}

/// When the writes of a connection are held back, and when they go out. Clones are of the same connection.
pub(crate) struct Turns<W> {
    writes: Rc<RefCell<Writes<W>>>,
}

struct Writes<W> {
    writer: W,
    /// What was taken, in its order.
    held: Vec<u8>,
    /// How much of that is written.
    written: usize,
    /// Whether the connection itself waits for the kernel: what is held goes out with what it tries next.
    waits: bool,
    /// Whether the kernel did not take all that was held: its connection's task goes on with that.
    is_held_up: bool,
    in_turn: bool,
    /// Whether it is in the outbox.
    is_posted: bool,
    /// The connection's.
    task: Waker,
    /// Whether something was taken in the last turn, or since its end began.
    has_spoken: bool,
    is_ending: bool,
    /// Why what was held could not be written.
    failed: Option<io::Error>,
}

impl<W> Turns<W> {
    /// The turns of a connection that is written to `writer`: outside of them it writes at once.
    pub(crate) fn new(writer: W) -> Turns<W> {
        let writes = Writes {
            writer,
            held: Vec::new(),
            written: 0,
            waits: false,
            is_held_up: false,
            in_turn: false,
            is_posted: false,
            task: Waker::noop().clone(),
            has_spoken: false,
            is_ending: false,
            failed: None,
        };
        Turns { writes: Rc::new(RefCell::new(writes)) }
    }

    /// The connection as whoever speaks on it is to have it.
    pub(crate) fn gather<R>(&self, reader: R) -> Gathered<R, W> {
        Gathered { reader, writes: Rc::clone(&self.writes) }
    }

    /// Whether the connection said anything in its last turn, or since the one in which it began to end.
    pub(crate) fn has_spoken(&self) -> bool {
        self.writes.borrow().has_spoken
    }

    /// Whether all that was said is written.
    pub(crate) fn is_all_written(&self) -> bool {
        let writes = self.writes.borrow();
        writes.held.is_empty() && !writes.is_held_up && !writes.waits
    }
}

impl<W> Clone for Turns<W> {
    fn clone(&self) -> Turns<W> {
        Turns { writes: Rc::clone(&self.writes) }
    }
}

impl<W: AsyncWrite + Unpin> Turns<W> {
    /// Polls the connection. What it has said by then is written by `outbox`, when the connections that have their turn now have had it;
    /// at once, as far as possible, where the kernel did not take all that was said before. Where it has ended, nothing is written.
    pub(crate) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        outbox: &Outbox,
        connection: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T>
    where
        W: 'static,
    {
        let polled = self.poll_in_turn(cx, connection);
        if polled.is_pending() && self.ends_turn(cx) {
            outbox.post(Rc::clone(&self.writes) as Rc<dyn Leaves>);
        }
        polled
    }

    fn poll_in_turn<T>(&self, cx: &mut Context<'_>, connection: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        {
            let mut writes = self.writes.borrow_mut();
            writes.in_turn = true;
            writes.has_spoken &= writes.is_ending;
        }
        let polled = connection(cx);
        self.writes.borrow_mut().in_turn = false;
        polled
    }

    /// Whether what was said is to be posted.
    fn ends_turn(&self, cx: &mut Context<'_>) -> bool {
        let mut writes = self.writes.borrow_mut();
        if writes.waits || writes.held.is_empty() && !writes.is_held_up {
            return false;
        }
        if writes.is_held_up {
            writes.write_now(cx);
            return false;
        }
        if !writes.task.will_wake(cx.waker()) {
            writes.task.clone_from(cx.waker());
        }
        !std::mem::replace(&mut writes.is_posted, true)
    }

    /// Ready when all that was said is written.
    pub(crate) fn poll_written(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writes.borrow_mut().poll_held(cx)
    }

    /// Writes what is held, as much of it as the kernel takes now.
    pub(crate) fn write_out(&self, cx: &mut Context<'_>) {
        self.writes.borrow_mut().write_now(cx);
    }
}

impl<W: AsyncWrite + Unpin> Leaves for RefCell<Writes<W>> {
    fn leave(&self) {
        let mut writes = self.borrow_mut();
        writes.is_posted = false;
        if writes.held.is_empty() {
            return; // It went out with what was said later.
        }
        if writes.waits || writes.is_held_up {
            return; // Its task waits until the kernel takes more, and would not hear of it by another's waker.
        }
        writes.write_now(&mut Context::from_waker(Waker::noop()));
        if writes.is_held_up || writes.failed.is_some() {
            writes.task.wake_by_ref(); // It goes on from here.
        }
    }

    fn lose(&self) {
        let mut writes = self.borrow_mut();
        writes.fail(io::Error::other("writing it has panicked"));
        writes.task.wake_by_ref();
    }
}

impl<W: AsyncWrite + Unpin> Writes<W> {
    /// Writes what is held. The connection hears of a failure when it writes or flushes.
    fn write_now(&mut self, cx: &mut Context<'_>) {
        match self.poll_held(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                self.fail(error);
                cx.waker().wake_by_ref();
            }
            Poll::Pending => self.is_held_up = true,
        }
    }

    /// What is held is lost.
    fn fail(&mut self, error: io::Error) {
        self.forget();
        self.is_held_up = false;
        self.failed = Some(error);
    }

    /// Writes all that is held.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.held.len() {
            let written = ready!(Pin::new(&mut self.writer).poll_write(cx, &self.held[self.written..]))?;
            self.written += nonzero(written)?;
        }
        self.forget();
        ready!(Pin::new(&mut self.writer).poll_flush(cx))?;
        (self.is_held_up, self.waits) = (false, false);
        Poll::Ready(Ok(()))
    }

    /// Takes as much of `slices` as there is room for, or waits for room.
    fn poll_take(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let is_free = self.in_turn && !self.is_held_up && !self.waits;
        let taken = if is_free && length <= PIECE_BYTES_MAX && self.held.len() + length <= HELD_BYTES_MAX {
            self.hold(slices, length);
            length
        } else {
            let polled = self.poll_write_behind_held(cx, slices);
            self.waits = polled.is_pending();
            ready!(polled)?
        };
        self.has_spoken = true;
        Poll::Ready(Ok(taken))
    }

    /// Writes `slices` behind what is held, by the same call.
    fn poll_write_behind_held(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
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
            // The second time at once all that may be needed: growing step by step would copy it again and again.
            let room = if self.held.is_empty() { length.max(ROOM_BYTES_MIN) } else { HELD_BYTES_MAX };
            self.held.reserve_exact(room - self.held.len());
        }
        slices.iter().for_each(|slice| self.held.extend_from_slice(slice));
    }

    /// Holds nothing any more. Its memory is of more use to the next that says something.
    fn forget(&mut self) {
        self.written = 0;
        self.held = Vec::new();
    }
}

/// Whoever takes nothing and does not say when would be asked for ever.
fn nonzero(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

impl<R, W> Gathered<R, W> {
    /// What it reads.
    pub(crate) fn into_reader(self) -> R {
        self.reader
    }
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
        if writes.in_turn && !writes.held.is_empty() && !writes.is_held_up && !writes.waits {
            return Poll::Ready(Ok(())); // The end of the turn does it.
        }
        let flushed = writes.poll_held(cx);
        writes.waits = flushed.is_pending();
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writes = self.writes.borrow_mut();
        writes.is_ending = true;
        let flushed = writes.poll_held(cx);
        writes.waits = flushed.is_pending();
        ready!(flushed)?;
        Pin::new(&mut writes.writer).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "gathered_tests.rs"]
mod tests;
