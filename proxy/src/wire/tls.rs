//! A stream by TLS that can be looked at, and whose writes say what the kernel has.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use rustls::{ConnectionCommon, SideData};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;

use super::stream::{News, nothing_or_end};
use super::transport::Transport;

/// What one look, or one turn of whoever reads, takes in. No record is half as long (RFC 8446,
/// section 5.2): who has sent so much, and nothing of HTTP, may go on like that for as long as
/// somebody looks.
const LOOK_BYTES_MAX: usize = 40 * 1024;

/// A stream by TLS, whichever side of it we are.
pub(super) struct Tls {
    stream: TlsStream<Transport>,
    /// The task that waits to read. The runtime does not wake it for what a look takes in.
    reader: Option<Waker>,
    /// Bytes to a worker that are encrypted and not all written yet: the first of those that are
    /// written next.
    taken: usize,
}

impl Tls {
    pub(super) fn new(stream: TlsStream<Transport>) -> Tls {
        Tls { stream, reader: None, taken: 0 }
    }

    pub(super) fn transport(&self) -> &Transport {
        self.stream.get_ref().0
    }

    /// What the other side has done, as far as the kernel knows. Records that carry no bytes of
    /// ours, such as session tickets, are taken in.
    pub(super) fn news(&mut self) -> News {
        let read_before = self.transport().bytes_moved();
        let news = match &mut self.stream {
            TlsStream::Client(client) => {
                let (transport, session) = client.get_mut();
                news(transport, session)
            }
            TlsStream::Server(server) => {
                let (transport, session) = server.get_mut();
                news(transport, session)
            }
        };
        if self.transport().bytes_moved() != read_before
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
        news
    }

    /// Whether something that was written waits for the other side to read.
    pub(super) fn is_behind(&self) -> bool {
        self.stream.get_ref().1.wants_write()
    }

    /// What has ended TLS, if it was not just the connection that was lost: an alert of the other
    /// side's, for one.
    pub(super) fn failure(&mut self) -> Option<rustls::Error> {
        // A session that has failed says so again.
        match &mut self.stream {
            TlsStream::Client(client) => client.get_mut().1.process_new_packets().err(),
            TlsStream::Server(server) => server.get_mut().1.process_new_packets().err(),
        }
    }

    /// Writes the alert that tells an end from a loss, if it can be written at once: a peer that
    /// does not read sees a loss.
    pub(super) fn say_end(&mut self) {
        match &mut self.stream {
            TlsStream::Client(client) => {
                let (transport, session) = client.get_mut();
                say_end(transport, session);
            }
            TlsStream::Server(server) => {
                let (transport, session) = server.get_mut();
                say_end(transport, session);
            }
        }
    }

    /// What a worker is written counts as written when the kernel has all of it, as in the clear:
    /// until then it can be cut. Who is told to wait writes the same bytes once more.
    fn poll_until_written(
        &mut self,
        cx: &mut Context<'_>,
        taken: usize,
    ) -> Poll<io::Result<usize>> {
        if matches!(self.stream, TlsStream::Client(_)) && self.is_behind() {
            self.taken = taken;
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        }
        self.taken = 0;
        Poll::Ready(Ok(taken))
    }
}

fn news<S: SideData>(transport: &Transport, session: &mut ConnectionCommon<S>) -> News {
    let mut taken_in = 0;
    loop {
        let Ok(state) = session.process_new_packets() else { return News::End };
        if state.plaintext_bytes_to_read() > 0 {
            return News::Bytes;
        }
        if state.peer_has_closed() {
            return News::End;
        }
        if taken_in > LOOK_BYTES_MAX {
            return News::Bytes; // The reader takes the rest, a turn at a time.
        }
        match session.read_tls(&mut transport.at_once()) {
            Ok(0) => return News::End,
            Ok(bytes) => taken_in += bytes,
            Err(error) => return nothing_or_end(&error),
        }
    }
}

fn say_end<S: SideData>(transport: &Transport, session: &mut ConnectionCommon<S>) {
    session.send_close_notify();
    while session.wants_write() {
        let Ok(1..) = session.write_tls(&mut transport.at_once()) else { return };
    }
}

impl AsyncRead for Tls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.transport().allow(LOOK_BYTES_MAX);
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_pending()
            && !self.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker()))
        {
            self.reader = Some(cx.waker().clone());
        }
        read
    }
}

impl AsyncWrite for Tls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = match self.taken {
            0 => ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?,
            taken => taken.min(bytes.len()),
        };
        self.poll_until_written(cx, taken)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = match self.taken {
            0 => ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?,
            taken => taken.min(slices.iter().map(|slice| slice.len()).sum()),
        };
        self.poll_until_written(cx, taken)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
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
    use crate::wire::Socket;

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

    /// Else a request would have left its worker by our count while rustls still had a part of it
    /// to write.
    #[tokio::test]
    async fn bytes_that_count_as_written_arrive_though_no_more_follow() {
        let (mut socket, mut worker) = pair().await;
        let piece = [7; 3000];
        let mut written = 0;
        let full = poll_fn(|cx| {
            while let Poll::Ready(count) = Pin::new(&mut socket).poll_write(cx, &piece)? {
                written += count;
            }
            Poll::Ready(io::Result::Ok(socket.is_write_blocked()))
        });
        assert!(full.await.unwrap() && written > 0);
        socket.cut_write();
        let mut arrived = Vec::new();
        let end = worker.read_to_end(&mut arrived).await.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        assert!(arrived.len() >= written, "{} of {written} bytes", arrived.len());
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
        /// For whoever goes on writing on a connection.
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

    /// It was all that the runtime lets a task read: half a megabyte, which takes long where each
    /// record changes keys.
    #[tokio::test]
    async fn a_turn_takes_in_only_so_much_of_what_carries_nothing() {
        let (mut socket, worker) = pair().await;
        let (mut worker, connection) = worker.into_inner();
        let mut records = Records::after(connection);
        let nothing = [(); 6].map(|()| records.next(b"", 16_000)).concat();
        worker.write_all(&nothing).await.unwrap();
        let (mut before, begin) = (socket.bytes_moved(), socket.bytes_moved());
        // Whoever is to have another turn is told.
        poll_fn(|cx| {
            let mut buffer = [0; 16];
            assert!(
                Pin::new(&mut socket).poll_read(cx, &mut ReadBuf::new(&mut buffer)).is_pending()
            );
            let now = socket.bytes_moved();
            assert!(now - before < 50_000, "{} bytes", now - before);
            before = now;
            if now - begin < nothing.len() as u64 { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        worker.write_all(&records.next(b"news", 0)).await.unwrap();
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
