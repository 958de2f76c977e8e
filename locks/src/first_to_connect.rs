//! Connecting to a name that has several addresses.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

/// Connects to the first address that accepts. It tries the addresses in order: the next one as
/// soon as one has failed, or when the last has been silent for `silence_max`. Attempts that are
/// silent go on meanwhile; each further one beside them needs a `leave`. `prepare` sets the options
/// of each socket before it connects.
///
/// # Errors
/// The error of the last attempt that failed, once all have.
pub async fn first_to_connect<L>(
    addresses: impl IntoIterator<Item = SocketAddr>,
    silence_max: Duration,
    leave: impl Fn() -> Option<L>,
    prepare: impl Fn(&TcpSocket) -> io::Result<()>,
) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut addresses = addresses.into_iter().peekable();
    let mut tried = FuturesUnordered::new();
    loop {
        if addresses.peek().is_some()
            && let Some(leave) = if tried.is_empty() { Some(None) } else { leave().map(Some) }
            && let Some(address) = addresses.next()
        {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
            let socket = socket.and_then(|socket| prepare(&socket).map(|()| socket));
            tried.push(async move {
                let _leave = leave;
                socket?.connect(address).await
            });
        }
        tokio::select! {
            connected = tried.next() => match connected {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => failure = error,
                None => return Err(failure),
            },
            () = sleep(silence_max), if addresses.peek().is_some() => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    use super::*;

    const SILENCE_MAX: Duration = Duration::from_millis(100);

    /// Listens without room for another connection, so that connection attempts get no answer.
    pub(crate) async fn silent() -> ((TcpListener, TcpStream), SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let listening = socket.listen(0).unwrap();
        let address = listening.local_addr().unwrap();
        let only = TcpStream::connect(address).await.unwrap();
        ((listening, only), address)
    }

    /// Nobody listens there.
    async fn refusing() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    async fn check(addresses: &[SocketAddr], expected: Result<SocketAddr, io::ErrorKind>) {
        let connected = timeout(
            Duration::from_secs(60),
            first_to_connect(addresses.iter().copied(), SILENCE_MAX, || Some(()), |_| Ok(())),
        );
        let connected = connected.await.expect("one of them is heard of");
        let peer = connected.and_then(|stream| stream.peer_addr()).map_err(|error| error.kind());
        assert_eq!(peer, expected, "{addresses:?}");
    }

    /// A peer with two addresses stays reachable while the first drops what is sent to it.
    #[tokio::test]
    async fn an_address_that_says_nothing_keeps_nobody_from_the_next() {
        let (_silent, nothing) = silent().await;
        let refusing = refusing().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let works = listener.local_addr().unwrap();
        for addresses in
            [&[nothing, works][..], &[nothing, refusing, works], &[refusing, nothing, works]]
        {
            check(addresses, Ok(works)).await;
        }
    }

    /// However many addresses a name had, a connection to it took as many sockets.
    #[tokio::test]
    async fn address_without_leave_is_tried_after_failures() {
        let (_silent, nothing) = silent().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let works = listener.local_addr().unwrap();
        let asked = std::cell::Cell::new(0);
        let leave = || {
            asked.set(asked.get() + 1);
            (asked.get() == 3).then_some(())
        };
        first_to_connect([nothing, works], SILENCE_MAX, leave, |_| Ok(())).await.unwrap();
        assert_eq!(asked.get(), 3);
        let refusing = refusing().await;
        first_to_connect([refusing, works], SILENCE_MAX, || None::<()>, |_| Ok(())).await.unwrap();
    }

    /// The one that is silent for a while goes on, and is as good as those after it.
    #[tokio::test]
    async fn an_address_that_takes_its_time_is_waited_for() {
        let ((listening, _only), slow) = silent().await;
        let refusing = refusing().await;
        let addresses = [slow, refusing];
        let mut connecting = pin!(check(&addresses, Ok(slow)));
        let asked = poll_fn(|cx| Poll::Ready(connecting.as_mut().poll(cx).is_pending())).await;
        assert!(asked, "it has asked in vain");
        // Room for one more. After a second the system asks again.
        drop(listening.accept().await.unwrap());
        connecting.await;
    }

    #[tokio::test]
    async fn name_without_a_working_address_fails_as_its_last_one() {
        let refused = Err(io::ErrorKind::ConnectionRefused);
        check(&[refusing().await], refused).await;
        check(&[refusing().await, refusing().await], refused).await;
        check(&[], Err(io::ErrorKind::NotFound)).await;
    }
}
