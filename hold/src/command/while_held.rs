//! A connection on which nothing is written once the tenure may be over.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{BootInstant, Over, Standing};
use rustix::net::connect_unspec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// A connection that writes as long as a tenure is surely held. It lies below TLS, so that it also
/// keeps back bytes that were encrypted earlier and are not yet written.
///
/// Closing connections when the tenure is over may come too late: after a pause of this process,
/// the task that has something to write may be the first to run.
#[derive(Debug)]
pub(super) struct WhileHeld {
    stream: TcpStream,
    standing: watch::Receiver<Standing>,
}

impl WhileHeld {
    pub(super) fn new(stream: TcpStream, standing: watch::Receiver<Standing>) -> WhileHeld {
        WhileHeld { stream, standing }
    }

    fn check(&self) -> io::Result<()> {
        match self.standing.borrow().is_held_at(BootInstant::now()) {
            true => Ok(()),
            false => Err(io::Error::other("the tenure is over")),
        }
    }
}

impl Drop for WhileHeld {
    fn drop(&mut self) {
        let given_back = *self.standing.borrow() == Standing::Over(Over::Released);
        if !given_back && self.check().is_err() {
            // What the kernel has not sent yet is not to be sent any more, whoever else has the
            // socket: a process that is being started has all that is open here until it runs its
            // program, and closing it here alone would change nothing. Dissolving the connection
            // resets it (tcp(7), `AF_UNSPEC`). If that fails, it is gone already.
            let _ = connect_unspec(&self.stream);
        }
    }
}

impl AsyncRead for WhileHeld {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WhileHeld {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The kernel has it already.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // An end that is said may make a whole request of one that was cut.
        self.check()?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use fencepost_tests::{Authority, PATIENCE, WorkerTls};
    use fencepost_tls::{ClientFiles, ClientTls};
    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// Both ends of a connection that takes only little that was not read, and what ends the
    /// tenure.
    async fn pair() -> (WhileHeld, TcpStream, watch::Sender<Standing>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (ours, theirs) = tokio::join!(connecting, listener.accept());
        let ours = ours.unwrap();
        SockRef::from(&ours).set_send_buffer_size(32 * 1024).unwrap();
        let until = BootInstant::now() + Duration::from_secs(3600);
        let (ledger, standing) = watch::channel(Standing::Held { until });
        (WhileHeld::new(ours, standing), theirs.unwrap().0, ledger)
    }

    /// Writes until the other side would have to read. Says how much was taken.
    async fn fill(stream: &mut (impl AsyncWrite + Unpin)) -> usize {
        let mut taken = 0;
        poll_fn(|cx| {
            while let Poll::Ready(count) = Pin::new(&mut *stream).poll_write(cx, &[7; 3000]) {
                taken += count.unwrap();
            }
            Poll::Ready(())
        })
        .await;
        taken
    }

    fn endings() -> [Standing; 3] {
        [
            Standing::Over(Over::KeyDeleted),
            Standing::Over(Over::Released),
            Standing::Held { until: BootInstant::now() },
        ]
    }

    #[tokio::test]
    async fn nothing_is_written_once_the_tenure_may_be_over_also_if_nobody_has_said_so() {
        for ending in endings() {
            let (mut ours, mut theirs, ledger) = pair().await;
            ours.write_all(b"before").await.unwrap();
            ledger.send_replace(ending);
            assert!(ours.write_all(b"after").await.is_err(), "{ending:?}");
            assert!(ours.write_vectored(&[IoSlice::new(b"after")]).await.is_err(), "{ending:?}");
            assert!(ours.shutdown().await.is_err(), "{ending:?}");
            drop(ours);
            let mut arrived = Vec::new();
            let _ = theirs.read_to_end(&mut arrived).await;
            assert_eq!(arrived, b"before", "{ending:?}");
        }
    }

    #[tokio::test]
    async fn what_the_system_has_not_sent_yet_is_sent_no_more_once_the_lock_is_lost() {
        for ending in endings() {
            let (mut ours, mut theirs, ledger) = pair().await;
            let taken = fill(&mut ours).await;
            ledger.send_replace(ending);
            let is_given_back = ending == Standing::Over(Over::Released);
            // As in a process that is being started.
            let copy = (!is_given_back).then(|| SockRef::from(&ours.stream).try_clone().unwrap());
            drop(ours);
            let mut arrived = Vec::new();
            let end = timeout(PATIENCE, theirs.read_to_end(&mut arrived)).await.unwrap();
            if is_given_back {
                // Who gives a lock back has ended what it did under it.
                assert_eq!((end.unwrap(), arrived.len()), (taken, taken));
            } else {
                assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
                assert!(arrived.len() < taken, "{} of {taken}", arrived.len());
            }
            drop(copy);
        }
    }

    #[tokio::test]
    async fn what_tls_has_encrypted_and_not_written_yet_is_not_written_after_the_end() {
        let (ours, theirs, ledger) = pair().await;
        let (authority, files) = (Authority::new("the test's"), tempfile::tempdir().unwrap());
        let ca = files.path().join("ca.pem");
        std::fs::write(&ca, authority.certificate()).unwrap();
        let client = ClientTls::load(ClientFiles { ca, crl: None, identity: None }, &[]).unwrap();
        let identity = authority.issue_for_localhost();
        let server = WorkerTls { identity: &identity, client_ca: None, protocols: &[] }.config();
        let connector = TlsConnector::from(client.config());
        let connecting = connector.connect("localhost".try_into().unwrap(), ours);
        let (ours, theirs) = tokio::join!(connecting, TlsAcceptor::from(server).accept(theirs));
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap());

        let taken = fill(&mut ours).await;
        assert!(ours.get_ref().1.wants_write(), "a part of it waits");
        ledger.send_replace(Standing::Over(Over::NotRenewed));
        // There would be room for it now.
        let mut arrived = vec![0; 16 * 1024];
        theirs.read_exact(&mut arrived).await.unwrap();
        assert!(timeout(PATIENCE, ours.flush()).await.unwrap().is_err());
        assert!(timeout(PATIENCE, ours.shutdown()).await.unwrap().is_err());
        drop(ours);
        assert!(theirs.read_to_end(&mut arrived).await.is_err(), "an end that nobody says");
        assert!(arrived.len() < taken, "{} of {taken}", arrived.len());
    }
}
