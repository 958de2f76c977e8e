//! Bytes both ways between two ends of a tunnel.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that is under way in one direction.
const BUFFER_BYTES: usize = 16 * 1024;

/// Passes bytes both ways until both ends have ended theirs.
///
/// As `tokio::io::copy_bidirectional`, but for the room that it keeps for what may come next: of
/// ten thousand websockets nearly all wait, and theirs would be up to 320 MB. Here only what an end
/// does not take at once is kept.
///
/// # Errors
/// The first of either end.
pub(super) async fn pass_both_ways<A, B>(one: &mut A, other: &mut B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut there, mut back) = (Way::default(), Way::default());
    poll_fn(|cx| {
        let there = there.poll(cx, one, other)?;
        let back = back.poll(cx, other, one)?;
        if there.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    /// What was read and has not been taken.
    left: Option<Bytes>,
    has_to_flush: bool,
    end: End,
}

/// How far the end of a direction has come.
#[derive(Debug, Default, Clone, Copy)]
enum End {
    /// It was not seen yet.
    #[default]
    Ahead,
    /// It is to be passed on.
    Read,
    /// It was passed on.
    PassedOn,
}

impl Way {
    fn poll<A, B>(&mut self, cx: &mut Context<'_>, from: &mut A, to: &mut B) -> Poll<io::Result<()>>
    where
        A: AsyncRead + Unpin,
        B: AsyncWrite + Unpin,
    {
        loop {
            if let Some(left) = &mut self.left {
                let taken = ready!(write_some(cx, to, left))?;
                left.advance(taken);
                if left.is_empty() {
                    self.left = None;
                }
                continue;
            }
            match self.end {
                End::Ahead => {}
                End::Read => {
                    ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                    self.end = End::PassedOn;
                    continue;
                }
                End::PassedOn => return Poll::Ready(Ok(())),
            }
            let mut room = [MaybeUninit::uninit(); BUFFER_BYTES];
            let mut room = ReadBuf::uninit(&mut room);
            if Pin::new(&mut *from).poll_read(cx, &mut room)?.is_pending() {
                if self.has_to_flush {
                    ready!(Pin::new(&mut *to).poll_flush(cx))?;
                    self.has_to_flush = false;
                }
                return Poll::Pending;
            }
            let read = room.filled();
            if read.is_empty() {
                self.end = End::Read;
                continue;
            }
            self.has_to_flush = true;
            let taken = match write_some(cx, to, read)? {
                Poll::Ready(taken) => taken,
                Poll::Pending => 0,
            };
            if taken < read.len() {
                self.left = Some(Bytes::copy_from_slice(&read[taken..]));
            }
        }
    }
}

/// Writes as much as goes, but something.
fn write_some(
    cx: &mut Context<'_>,
    to: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(to).poll_write(cx, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        taken => Poll::Ready(Ok(taken)),
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const BYTES: usize = 10 * BUFFER_BYTES + 7;

    fn some_bytes() -> Vec<u8> {
        (0..BYTES).map(|byte| (byte % 251) as u8).collect()
    }

    /// An end that takes little at once makes the other wait, whatever the sizes.
    #[tokio::test]
    async fn all_bytes_pass_both_ways_in_their_order_and_so_do_ends() {
        for room in [1, 100, BUFFER_BYTES, 3 * BUFFER_BYTES] {
            let ((client, mut one), (mut other, worker)) = (duplex(room), duplex(BUFFER_BYTES));
            let speak = |end| async move {
                let (mut read, mut write) = tokio::io::split(end);
                let (mut heard, bytes) = (Vec::new(), some_bytes());
                let says = async {
                    write.write_all(&bytes).await?;
                    write.shutdown().await
                };
                tokio::try_join!(says, read.read_to_end(&mut heard)).unwrap();
                heard
            };
            let (passed, by_worker, by_client) =
                tokio::join!(pass_both_ways(&mut one, &mut other), speak(client), speak(worker));
            passed.unwrap();
            assert!(by_worker == some_bytes() && by_client == some_bytes(), "room for {room}");
        }
    }

    #[tokio::test]
    async fn one_end_may_go_on_when_the_other_has_ended() {
        let ((mut client, mut one), (mut other, mut worker)) = (duplex(64), duplex(64));
        let passes = tokio::spawn(async move { pass_both_ways(&mut one, &mut other).await });
        client.shutdown().await.unwrap();
        assert_eq!(worker.read(&mut [0]).await.unwrap(), 0);
        worker.write_all(b"more").await.unwrap();
        let mut more = [0; 4];
        client.read_exact(&mut more).await.unwrap();
        assert_eq!(&more, b"more");
        drop(worker);
        passes.await.unwrap().unwrap();
    }

    /// An end that has been reached, whether that was read. By TLS, a read behind that waits for
    /// ever.
    #[derive(Default)]
    struct Ended(bool);

    impl AsyncRead for Ended {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            assert!(!std::mem::replace(&mut self.0, true), "it was read");
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn nothing_is_read_behind_an_end() {
        let (mut from, (mut to, _hears)) = (Ended::default(), duplex(1));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut way = Way::default();
        for _ in 0..2 {
            assert!(matches!(way.poll(cx, &mut from, &mut to), Poll::Ready(Ok(()))));
        }
    }

    #[test]
    fn only_what_was_not_taken_is_kept_and_not_for_longer() {
        let (mut says, mut from) = duplex(1000);
        let (mut to, mut hears) = duplex(10);
        let cx = &mut Context::from_waker(Waker::noop());
        let mut way = Way::default();
        assert!(way.poll(cx, &mut from, &mut to).is_pending());
        assert!(way.left.is_none());
        assert!(Pin::new(&mut says).poll_write(cx, &[7; 25]).is_ready());
        for left in [15, 5, 0] {
            assert!(way.poll(cx, &mut from, &mut to).is_pending());
            assert_eq!(way.left.as_ref().map_or(0, Bytes::len), left);
            assert!(Pin::new(&mut hears).poll_read(cx, &mut ReadBuf::new(&mut [0; 10])).is_ready());
        }
        assert!(way.left.is_none());
    }
}
