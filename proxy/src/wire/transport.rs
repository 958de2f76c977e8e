//! A TCP or unix connection that counts what moves over it.

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fencepost_policy::group::Standing;
use rustix::net::{RecvFlags, connect_unspec, recv};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either::{self, Left as Tcp, Right as Unix};

use super::group_writes::GroupWrites;

/// How much the kernel takes of a TCP connection before it has sent it. It says that there is room
/// when half of that is sent.
///
/// Without a limit it takes what the send buffer holds (4 MiB, `tcp_wmem`), and says that there is
/// room when a third of that is read: for minutes it is not to be seen that the other side reads
/// on, if slowly.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Has the kernel probe a silent peer after a minute. A peer that answers no probe is lost half a
/// minute later (tcp(7), `SO_KEEPALIVE`). Where the socket has a `TCP_USER_TIMEOUT`, that decides
/// when the peer is lost, and the first probe is not sent before.
pub(crate) fn keep_alive(socket: &SockRef<'_>) {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    let user_timeout = socket
        .tcp_user_timeout()
        .ok()
        .flatten()
        .filter(|timeout| *timeout > Duration::from_secs(60));
    let keepalive = user_timeout.map_or(keepalive.clone(), |timeout| keepalive.with_time(timeout));
    let _ = socket.set_tcp_keepalive(&keepalive); // Not on a unix socket, where the kernel sees the peer's end.
}

/// Has the kernel take little ahead ([`UNSENT_BYTES_MAX`]; tcp(7), `TCP_NOTSENT_LOWAT`).
pub(crate) fn write_little_ahead(socket: &SockRef<'_>) {
    let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX); // It goes without.
}

/// A TCP or unix connection that counts the bytes that move over it, and can be asked for what the
/// kernel knows of it.
pub struct Transport {
    stream: Stream,
    moved: Cell<u64>,
    /// Empty unless writes depend on the standing of this process in a group. Boxed, because most
    /// connections have none.
    group: OnceCell<Box<GroupWrites>>,
}

type Stream = Either<TcpStream, UnixStream>;

impl Transport {
    fn new(stream: Stream) -> Transport {
        Transport { stream, moved: Cell::new(0), group: OnceCell::new() }
    }

    /// Bytes moved either way so far; it wraps around.
    pub(crate) fn bytes_moved(&self) -> u64 {
        self.moved.get()
    }

    /// How much could be read at once, one byte at most; `Ok(0)`: the other side has ended.
    pub(super) fn peek(&self) -> io::Result<usize> {
        self.socket().peek(&mut [MaybeUninit::uninit()])
    }

    /// Waits for the first bytes, and returns as many of them as there are. They stay to be read.
    pub(crate) async fn first_bytes(&self) -> [u8; 12] {
        let mut first = [0; 12];
        poll_fn(|cx| self.poll_readable(cx)).await;
        let _ = recv(&*self.socket(), &mut first, RecvFlags::PEEK); // What is wrong, reading shows.
        first
    }

    /// Ready when there may be something to read, or the end.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let readable = match &self.stream {
            Tcp(stream) => stream.poll_read_ready(cx),
            Unix(stream) => stream.poll_read_ready(cx),
        };
        readable.map(|_| ()) // A look shows what is wrong.
    }

    /// Notes that there is nothing to read, so that [`poll_readable`](Self::poll_readable) waits for more.
    pub(super) fn is_drained(&self) {
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = match &self.stream {
            Tcp(stream) => stream.try_io(Interest::READABLE, nothing),
            Unix(stream) => stream.try_io(Interest::READABLE, nothing),
        };
    }

    pub(super) fn shut(&self, side: Shutdown) {
        let _ = self.socket().shutdown(side); // An error means that the connection is gone already.
    }

    pub(super) fn reset_when_closed(&self) {
        let _ = self.socket().set_linger(Some(Duration::ZERO)); // An error means that the connection is gone already.
    }

    pub(super) fn deliver_when_closed(&self) {
        let _ = self.socket().set_linger(None); // An error means that the connection is gone already.
    }

    /// Resets a TCP connection now, whatever other handles there are: the kernel delivers nothing
    /// more of what was written. Ends both sides of a unix socket, where all that was written is
    /// delivered already.
    pub(super) fn reset(&self) {
        let is_reset = match &self.stream {
            Tcp(stream) => connect_unspec(stream).is_ok(),
            Unix(_) => false,
        };
        if !is_reset {
            self.shut(Shutdown::Both);
        }
        self.resume(); // Nothing is written any more.
    }

    /// From now on it writes only while this process stands in its group. A second call changes
    /// nothing.
    pub(super) fn write_while_standing(&self, group: GroupWrites) {
        let _ = self.group.set(Box::new(group));
    }

    /// What this process may do on it now.
    pub(super) fn standing(&self) -> Standing {
        self.group.get().map_or(Standing::Stands, |group| group.standing())
    }

    /// Wakes the task whose write has been paused.
    pub(super) fn resume(&self) {
        self.group.get().into_iter().for_each(|group| group.resume());
    }

    /// Writes while this process stands. A write that ends later resets the connection.
    fn poll_standing<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Some(group) = self.group.get() else { return write(Pin::new(&mut self.stream), cx) };
        match group.standing() {
            Standing::Stands => {}
            Standing::Lapsed => {
                group.pause(cx);
                return Poll::Pending;
            }
            Standing::Cut => return self.cut(),
        }
        let written = write(Pin::new(&mut self.stream), cx);
        if matches!(written, Poll::Ready(Ok(_))) && group.standing() != Standing::Stands {
            group.wrote_late();
            return self.cut();
        }
        written
    }

    fn cut<T>(&self) -> Poll<io::Result<T>> {
        self.reset_by_group();
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    /// Resets it, because this process stands no more.
    pub(super) fn reset_by_group(&self) {
        self.group.get().into_iter().for_each(|group| group.note_cut());
        self.reset();
    }

    /// Whether it was reset because this process stands no more.
    pub(super) fn was_reset_by_group(&self) -> bool {
        self.group.get().is_some_and(|group| group.has_cut())
    }

    /// Whether the kernel may hold what was written for longer than a moment.
    pub(super) fn may_deliver_late(&self) -> bool {
        matches!(self.stream, Tcp(_))
    }

    pub(super) fn keep_alive(&self) {
        keep_alive(&self.socket());
    }

    fn socket(&self) -> SockRef<'_> {
        match &self.stream {
            Tcp(stream) => SockRef::from(stream),
            Unix(stream) => SockRef::from(stream),
        }
    }

    fn count(&self, bytes: usize) {
        self.moved.set(self.moved.get().wrapping_add(bytes as u64));
    }

    fn counted(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.count(bytes);
        }
        written
    }
}

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Transport {
        Transport::new(Tcp(stream))
    }
}

impl From<UnixStream> for Transport {
    fn from(stream: UnixStream) -> Transport {
        Transport::new(Unix(stream))
    }
}

/// Reads what can be read at once, by asking the kernel: its answer is newer than the runtime's.
/// Tasks that wait for the runtime are woken all the same.
impl Read for &Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.socket()).read(buffer).inspect(|bytes| self.count(*bytes))
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.count(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_standing(cx, |stream, cx| stream.poll_write(cx, bytes));
        self.counted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_standing(cx, |stream, cx| stream.poll_write_vectored(cx, slices));
        self.counted(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // The kernel has it already.
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_standing(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::super::group_writes::tests::Member;
    use super::*;

    /// The process stood still between its look and its write.
    #[tokio::test]
    async fn write_that_is_held_up_is_counted_and_resets() {
        let member = Member::joined().await;
        let membership = Arc::clone(member.membership());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut worker, _) = listener.accept().await.unwrap();
        let mut transport = Transport::from(stream);
        transport.write_while_standing(GroupWrites::new(Arc::clone(&membership), "worker".into()));
        let written = poll_fn(|cx| {
            transport.poll_standing(cx, |stream, cx| {
                member.lapse();
                stream.poll_write(cx, b"late")
            })
        });
        assert_eq!(written.await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(membership.counts().late_writes.load(Ordering::Relaxed), 1);
        let read = worker.read_to_end(&mut Vec::new()).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    /// A probe before that time would not be waited for, and one behind it never sent.
    #[tokio::test]
    async fn keepalive_starts_no_sooner_than_the_user_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let idle = async |user_timeout| {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let socket = SockRef::from(&stream);
            socket.set_tcp_user_timeout(user_timeout).unwrap();
            keep_alive(&socket);
            socket.tcp_keepalive_time().unwrap()
        };
        assert_eq!(idle(None).await, Duration::from_secs(60));
        assert_eq!(idle(Some(Duration::from_secs(15))).await, Duration::from_secs(60));
        assert_eq!(idle(Some(Duration::from_secs(300))).await, Duration::from_secs(300));
    }
}
