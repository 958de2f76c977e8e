//! A connection that can be looked at and shut while hyper owns it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use fencepost_locks::Membership;
use fencepost_policy::group::Standing;
use futures_util::FutureExt;
use rustls::{ConnectionCommon, SideData};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tokio_rustls::{TlsStream, client, server};
use tokio_util::either::Either::{self, Left as Clear, Right as Tls};

use super::group_writes::GroupWrites;
use super::transport::Transport;

/// What one look takes in of TLS. No record is half as long (RFC 8446, section 5.2): who has sent so
/// much, and nothing of HTTP, may go on like that for as long as somebody looks.
const LOOK_BYTES_MAX: usize = 40 * 1024;

/// A TCP or unix socket, in the clear or by TLS, with several handles on one thread: hyper reads
/// and writes through one, the others look at it or shut it.
///
/// The file is closed with the last handle.
#[derive(Clone)]
pub struct Socket(Rc<RefCell<Connection>>);

/// Finds a socket again for as long as it has a handle.
pub(crate) struct WeakSocket(Weak<RefCell<Connection>>);

impl WeakSocket {
    /// The socket, unless it has been closed.
    pub(crate) fn upgrade(&self) -> Option<Socket> {
        self.0.upgrade().map(Socket)
    }
}

struct Connection {
    /// Boxed: one by TLS is many times larger.
    stream: Either<Transport, Box<TlsStream<Transport>>>,
    /// Bytes that were read before hyper got the socket, and are to be read first.
    unread: Bytes,
    /// The task that waits to read. The runtime does not wake it for what a look takes in.
    reader: Option<Waker>,
    /// Whether a failed write is no error; see [`Socket::upstream`].
    is_lenient: bool,
    /// Since when the other side's reading holds up our writing, if it does.
    write_blocked_since: Option<Instant>,
    /// Bytes written.
    written: u64,
    /// When the kernel last took any of those to a worker.
    last_write: Option<Instant>,
    /// Bytes read.
    read: u64,
    /// Whether nothing that is written arrives any more.
    is_broken: bool,
}

/// What the other side has done that was not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    Nothing,
    Bytes,
    /// It has ended its side, or the connection is lost.
    End,
}

impl Socket {
    /// A client's connection in the clear.
    pub fn downstream(transport: Transport) -> Socket {
        Socket::new(Clear(transport), false)
    }

    /// A connection to a worker.
    ///
    /// A worker may answer before it has read the whole request, and close. What is written after
    /// that fails, while its answer waits to be read. So here a failed write is no error: the rest
    /// of the request goes nowhere, and the reading side tells whether there is an answer.
    pub fn upstream(transport: Transport) -> Socket {
        Socket::new(Clear(transport), true)
    }

    /// A client's connection whose handshake is done.
    pub fn downstream_tls(stream: server::TlsStream<Transport>) -> Socket {
        Socket::new(Tls(Box::new(stream.into())), false)
    }

    /// A connection to a worker whose handshake is done; see [`Socket::upstream`].
    pub fn upstream_tls(stream: client::TlsStream<Transport>) -> Socket {
        Socket::new(Tls(Box::new(stream.into())), true)
    }

    fn new(stream: Either<Transport, Box<TlsStream<Transport>>>, is_lenient: bool) -> Socket {
        Socket(Rc::new(RefCell::new(Connection {
            stream,
            unread: Bytes::new(),
            reader: None,
            is_lenient,
            write_blocked_since: None,
            written: 0,
            last_write: None,
            read: 0,
            is_broken: false,
        })))
    }

    /// Another way to find it, which does not keep it open.
    pub(crate) fn downgrade(&self) -> WeakSocket {
        WeakSocket(Rc::downgrade(&self.0))
    }

    /// From now on it writes only while this process stands in its group. Writes pause when the
    /// standing has lapsed, and reset the connection later.
    ///
    /// # Contract
    ///
    /// [`follow_standing`](Self::follow_standing) is called whenever the standing has changed.
    pub(crate) fn write_while_standing(&self, membership: Arc<Membership>, upstream: Arc<str>) {
        let group = GroupWrites::new(membership, upstream);
        self.0.borrow().transport().write_while_standing(group);
    }

    /// Resets the connection if this process may not finish what is on it, or wakes a paused write
    /// that may go on. Returns whether it has reset a connection that was well.
    pub(crate) fn follow_standing(&self) -> bool {
        let mut connection = self.0.borrow_mut();
        match connection.transport().standing() {
            Standing::Stands => connection.transport().resume(),
            Standing::Lapsed => {}
            Standing::Cut => {
                connection.transport().reset_by_group();
                return !std::mem::replace(&mut connection.is_broken, true);
            }
        }
        false
    }

    /// Whether the connection was reset because this process had lost its standing in its group.
    pub(crate) fn was_reset_by_group(&self) -> bool {
        self.0.borrow().transport().was_reset_by_group()
    }

    /// Gives back bytes that were read: they are read again, first.
    pub fn unread(&self, bytes: Bytes) {
        self.0.borrow_mut().unread = bytes;
    }

    /// Whether the other side has neither sent anything nor closed. Asks the kernel: what it says
    /// is newer than what the runtime has heard.
    pub fn is_quiet(&self) -> bool {
        self.news() == News::Nothing
    }

    /// Whether the other side has sent something that was not read. Asks the kernel.
    pub fn has_sent(&self) -> bool {
        self.news() == News::Bytes
    }

    /// Whether the other side has not closed, as far as can be seen before what it sent is read.
    pub fn is_open(&self) -> bool {
        self.news() != News::End
    }

    /// What has ended TLS, if it is TLS and has ended by a fault. hyper and h2 do not always pass
    /// it on.
    pub fn tls_failure(&self) -> Option<rustls::Error> {
        self.0.borrow_mut().look().err()
    }

    /// Ready when the other side has ended. Does not look behind bytes that are unread.
    pub fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.0.borrow().transport().poll_readable(cx));
            match self.news() {
                News::End => return Poll::Ready(()),
                News::Bytes => return Poll::Pending,
                News::Nothing => self.0.borrow().transport().is_drained(),
            }
        }
    }

    fn news(&self) -> News {
        self.0.borrow_mut().look().unwrap_or(News::End)
    }

    /// Ends our side: the other side reads the end after what was flushed, and nothing more is ever
    /// written. By TLS, a peer that does not read sees a loss instead.
    pub fn shut_write(&self) {
        let mut connection = self.0.borrow_mut();
        connection.is_broken = true;
        if let Tls(tls) = &mut connection.stream {
            // Writes the alert that tells an end from a loss, if the kernel takes it at once.
            let shut = poll_fn(|cx| Pin::new(&mut **tls).poll_shutdown(cx));
            let _ = unconstrained(shut).now_or_never();
        }
        connection.transport().shut(Shutdown::Write);
    }

    /// Resets the connection, whatever other handles there are: the kernel delivers nothing more of
    /// what was written. A unix socket is shut down both ways.
    pub fn reset(&self) {
        let mut connection = self.0.borrow_mut();
        connection.is_broken = true;
        connection.transport().reset();
    }

    /// Ends a worker's connection in order: the kernel delivers all that was written, and the end
    /// behind it, after the socket is closed. Any other connection to a worker is reset when it is
    /// closed.
    ///
    /// # Contract
    ///
    /// Only for a connection on which all that was begun has ended: no request, no orphan, nothing
    /// cut, and nothing unwritten.
    pub fn end_in_order(&self) {
        self.deliver_when_closed();
        self.shut_write();
    }

    /// Like [`end_in_order`](Self::end_in_order), where somebody else writes the end.
    pub fn deliver_when_closed(&self) {
        self.0.borrow().transport().deliver_when_closed();
    }

    /// When the kernel last took bytes that it may deliver late. `None` if it took none, or
    /// delivers at once, as on a unix socket.
    pub fn last_write(&self) -> Option<Instant> {
        let last_write = self.0.borrow().last_write;
        // By TLS, a write that is not finished may have begun: the kernel has a part of it.
        let last_write = if self.is_write_blocked() { Some(Instant::now()) } else { last_write };
        last_write.filter(|_| self.0.borrow().transport().may_deliver_late())
    }

    /// Has the other side see a reset when this is closed, not an end. Unix sockets know no
    /// difference.
    pub fn end_by_reset(&self) {
        self.0.borrow().transport().reset_when_closed();
    }

    /// Has the kernel ask the other side, when nothing has moved for some time, whether it is still
    /// there. Without an answer the connection is lost. On a unix socket it does nothing.
    pub fn keep_alive(&self) {
        self.0.borrow().transport().keep_alive();
    }

    /// Whether the last write could not be finished because the other side does not read.
    pub fn is_write_blocked(&self) -> bool {
        self.write_blocked_since().is_some()
    }

    /// Since when no write could be finished because the other side does not read.
    pub fn write_blocked_since(&self) -> Option<Instant> {
        self.0.borrow().write_blocked_since
    }

    /// Whether nothing that is written arrives any more.
    pub fn is_broken(&self) -> bool {
        self.0.borrow().is_broken
    }

    /// Bytes moved either way over the wire so far, those of TLS itself among them: a change shows
    /// that the connection goes on.
    pub fn bytes_moved(&self) -> u64 {
        self.0.borrow().transport().bytes_moved()
    }

    /// Bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.0.borrow().written
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.0.borrow().read
    }
}

impl Connection {
    fn transport(&self) -> &Transport {
        match &self.stream {
            Clear(transport) => transport,
            Tls(tls) => tls.get_ref().0,
        }
    }

    /// What the other side has done, as far as the kernel knows. Of TLS, records that carry no
    /// bytes of ours, such as session tickets, are taken in.
    ///
    /// # Errors
    /// What has ended TLS: an alert of the other side's, for one. A session that has failed says so
    /// again.
    fn look(&mut self) -> Result<News, rustls::Error> {
        let tls = match &mut self.stream {
            Clear(transport) => {
                return Ok(match transport.peek() {
                    Ok(0) => News::End,
                    Ok(_) => News::Bytes,
                    Err(error) => nothing_or_end(&error),
                });
            }
            Tls(tls) => &mut **tls,
        };
        let read_before = tls.get_ref().0.bytes_moved();
        let news = match tls {
            TlsStream::Client(client) => {
                let (transport, session) = client.get_mut();
                take_in(transport, session)
            }
            TlsStream::Server(server) => {
                let (transport, session) = server.get_mut();
                take_in(transport, session)
            }
        };
        if tls.get_ref().0.bytes_moved() != read_before
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
        news
    }

    /// Whether something that was written waits for the other side to read.
    fn is_behind(&self) -> bool {
        match &self.stream {
            Clear(_) => false, // The kernel has it.
            Tls(tls) => tls.get_ref().1.wants_write(),
        }
    }

    /// Takes down what a write came to, and what the writer is to believe.
    fn wrote(&mut self, wanted: usize, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match result {
            Poll::Ready(Ok(written)) => {
                self.block_writes(self.is_behind());
                self.written = self.written.wrapping_add(written as u64);
                if self.is_lenient {
                    self.last_write = Some(Instant::now());
                }
                Poll::Ready(Ok(written))
            }
            Poll::Ready(Err(_)) if self.is_lenient => {
                self.block_writes(false);
                self.is_broken = true;
                Poll::Ready(Ok(wanted))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.block_writes(true);
                Poll::Pending
            }
        }
    }

    fn block_writes(&mut self, is_blocked: bool) {
        if is_blocked != self.write_blocked_since.is_some() {
            self.write_blocked_since = is_blocked.then(Instant::now);
        }
    }

    fn swallows_writes(&self) -> bool {
        self.is_broken && self.is_lenient
    }
}

fn take_in<S: SideData>(
    transport: &Transport,
    session: &mut ConnectionCommon<S>,
) -> Result<News, rustls::Error> {
    let mut taken_in = 0;
    loop {
        let state = session.process_new_packets()?;
        if state.plaintext_bytes_to_read() > 0 {
            return Ok(News::Bytes);
        }
        if state.peer_has_closed() {
            return Ok(News::End);
        }
        if taken_in > LOOK_BYTES_MAX {
            return Ok(News::Bytes); // The reader takes the rest.
        }
        match session.read_tls(&mut &*transport) {
            Ok(0) => return Ok(News::End),
            Ok(bytes) => taken_in += bytes,
            Err(error) => return Ok(nothing_or_end(&error)),
        }
    }
}

fn nothing_or_end(error: &io::Error) -> News {
    if error.kind() == io::ErrorKind::WouldBlock { News::Nothing } else { News::End }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = &mut *self.0.borrow_mut();
        let before = buffer.filled().len();
        let unread = &mut connection.unread;
        if unread.is_empty() {
            let read = Pin::new(&mut connection.stream).poll_read(cx, buffer);
            if read.is_pending() {
                match &mut connection.reader {
                    Some(reader) => reader.clone_from(cx.waker()),
                    reader => *reader = Some(cx.waker().clone()),
                }
            }
            ready!(read)?;
        } else {
            let count = unread.len().min(buffer.remaining());
            buffer.put_slice(&unread[..count]);
            unread.advance(count);
            if unread.is_empty() {
                *unread = Bytes::new(); // Gives the memory back: most connections have read this once and for all.
            }
        }
        let count = (buffer.filled().len() - before) as u64;
        connection.read = connection.read.wrapping_add(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut connection = self.0.borrow_mut();
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        if connection.swallows_writes() {
            return Poll::Ready(Ok(wanted));
        }
        let result = Pin::new(&mut connection.stream).poll_write_vectored(cx, slices);
        connection.wrote(wanted, result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut connection = self.0.borrow_mut();
        // Otherwise the kernel has it already.
        if connection.is_behind() && !connection.swallows_writes() {
            let flushed = Pin::new(&mut connection.stream).poll_flush(cx);
            ready!(connection.wrote(0, flushed.map_ok(|()| 0)))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut connection = self.0.borrow_mut();
        let ended = ready!(Pin::new(&mut connection.stream).poll_shutdown(cx));
        Poll::Ready(if connection.is_lenient { Ok(()) } else { ended })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use fencepost_tests::{Authority, WorkerTls};
    use fencepost_tls::{ClientFiles, ClientTls};
    use rustls::crypto::cipher::{MessageEncrypter, OutboundPlainMessage};
    use rustls::crypto::ring::cipher_suite::TLS13_AES_256_GCM_SHA384;
    use rustls::{
        ConnectionTrafficSecrets, ContentType, ProtocolVersion, ServerConfig, ServerConnection,
        SupportedCipherSuite,
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio_rustls::{TlsAcceptor, TlsConnector, server};

    use super::*;

    /// Both ends of a connection; ours takes only little that the other has not read.
    async fn pair() -> (Socket, server::TlsStream<UnixStream>) {
        let authority = Authority::new("the test's");
        let files = tempfile::tempdir().unwrap();
        let ca = files.path().join("ca.pem");
        std::fs::write(&ca, authority.certificate()).unwrap();
        let client = ClientTls::load(ClientFiles { ca, crl: None, identity: None }, &[]).unwrap();
        let identity = authority.issue_for_localhost();
        let server = WorkerTls { identity: &identity, client_ca: None, protocols: &[] }.config();
        let mut server = ServerConfig::clone(&server);
        server.enable_secret_extraction = true;
        let (ours, theirs) = UnixStream::pair().unwrap();
        socket2::SockRef::from(&ours).set_send_buffer_size(32 * 1024).unwrap();
        let name = "localhost".try_into().unwrap();
        let connector = TlsConnector::from(client.config());
        let connected = connector.connect(name, Transport::from(ours));
        let (ours, theirs) =
            tokio::join!(connected, TlsAcceptor::from(Arc::new(server)).accept(theirs));
        (Socket::upstream_tls(ours.unwrap()), theirs.unwrap())
    }

    #[tokio::test]
    async fn bytes_arrive_once_and_in_order_at_the_pace_of_the_worker() {
        let (mut socket, mut worker) = pair().await;
        let sent: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        let all = sent.clone();
        let writing = async move {
            socket.write_all(&all).await.unwrap();
            socket.shutdown().await.unwrap();
        };
        let mut arrived = Vec::new();
        let (_, read) = tokio::join!(writing, worker.read_to_end(&mut arrived));
        assert_eq!(read.unwrap(), sent.len(), "to an end that is said");
        assert!(arrived == sent);
    }

    /// Records of TLS 1.3, encrypted by hand: none of padding alone is written by a library.
    struct Records {
        encrypter: Box<dyn MessageEncrypter>,
        number: u64,
    }

    impl Records {
        /// Continues the records that this connection has sent.
        fn after(connection: ServerConnection) -> Records {
            let (number, secrets) = connection.dangerous_extract_secrets().unwrap().tx;
            let (
                ConnectionTrafficSecrets::Aes256Gcm { key, iv },
                SupportedCipherSuite::Tls13(suite),
            ) = (secrets, TLS13_AES_256_GCM_SHA384)
            else {
                panic!("both sides like this cipher best");
            };
            Records { encrypter: suite.aead_alg.encrypter(key, iv), number }
        }

        /// One with these bytes, and so many of padding (RFC 8446, section 5.4).
        fn next(&mut self, bytes: &[u8], padding: usize) -> Vec<u8> {
            const APPLICATION_DATA: u8 = 23;
            let inner = [bytes, &[APPLICATION_DATA], &vec![0; padding]].concat();
            let (version, payload) = (ProtocolVersion::TLSv1_2, inner.as_slice().into());
            let message = OutboundPlainMessage { typ: ContentType::from(0), version, payload };
            let record = self.encrypter.encrypt(message, self.number).unwrap();
            self.number += 1;
            record.encode()
        }
    }

    /// A thread looked for as long as more came, and nobody else on it had a turn.
    #[tokio::test]
    async fn a_look_takes_in_only_so_much_of_what_carries_nothing() {
        let (mut socket, worker) = pair().await;
        let (mut worker, connection) = worker.into_inner();
        let mut records = Records::after(connection);
        let nothing = [(); 6].map(|()| records.next(b"", 16_000)).concat();
        worker.write_all(&nothing).await.unwrap();
        worker.write_all(&records.next(b"news", 0)).await.unwrap();
        let before = socket.bytes_moved();
        assert!(!socket.is_quiet(), "there is more to be read");
        let taken_in = socket.bytes_moved() - before;
        assert!(taken_in < 50_000, "{taken_in} bytes of {}", nothing.len());
        let mut news = [0; 4];
        socket.read_exact(&mut news).await.unwrap();
        assert_eq!(&news, b"news");
    }

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The runtime hears of nothing that was taken in before it looked.
    #[tokio::test]
    async fn look_that_takes_bytes_in_wakes_the_waiting_reader() {
        let (mut socket, mut worker) = pair().await;
        assert!(socket.is_quiet(), "tickets are no news");
        let calls = Arc::new(Calls::default());
        let waker = Arc::clone(&calls).into();
        let mut cx = Context::from_waker(&waker);
        let mut buffer = [0; 16];
        let mut buffer = ReadBuf::new(&mut buffer);
        assert!(Pin::new(&mut socket).poll_read(&mut cx, &mut buffer).is_pending());
        assert!(Pin::new(&mut worker).poll_write(&mut cx, b"news").is_ready());
        assert!(!socket.is_quiet() && socket.is_open());
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert!(Pin::new(&mut socket).poll_read(&mut cx, &mut buffer).is_ready());
        assert_eq!(buffer.filled(), b"news");
    }
}
