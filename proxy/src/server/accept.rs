//! Takes connections from the kernel and hands each to the worker thread with the fewest.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::client::ClientAddress;
use super::connection_limiter::{ConnectionLimiter, Slot};
use super::listener::{ListenAddress, Listener, ListenerTls};
use super::thread::Stage;

/// A connection on its way to a worker thread.
pub(super) struct Accepted {
    pub(super) stream: AcceptedStream,
    pub(super) tls: Option<ListenerTls>,
    pub(super) counted: CountedIn,
    pub(super) slot: Slot,
}

pub(super) enum AcceptedStream {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl AcceptedStream {
    fn client(&self) -> ClientAddress {
        match self {
            AcceptedStream::Tcp(_, peer) => ClientAddress::Tcp(*peer),
            AcceptedStream::Unix(_) => ClientAddress::Unix,
        }
    }
}

/// One connection in its thread's load.
pub(super) struct CountedIn {
    load: Arc<AtomicUsize>,
}

impl CountedIn {
    fn new(load: &Arc<AtomicUsize>) -> CountedIn {
        load.fetch_add(1, Ordering::Relaxed);
        CountedIn { load: Arc::clone(load) }
    }
}

impl Drop for CountedIn {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker thread as the acceptor sees it.
#[derive(Clone)]
pub(super) struct ThreadHandle {
    pub(super) load: Arc<AtomicUsize>,
    pub(super) connections: mpsc::UnboundedSender<Box<Accepted>>,
}

/// Accepts connections of `listener` from when the server begins until it closes.
///
/// When all slots are taken by connections with requests, or the system is out of descriptors,
/// clients wait in the kernel's queue, the first of them in our hand.
pub(super) async fn accept_loop(
    listener: Listener,
    workers: Vec<ThreadHandle>,
    limiter: Arc<ConnectionLimiter>,
    mut stage: watch::Receiver<Stage>,
) -> io::Result<()> {
    let Listener { address, socket, file: _file, tls } = listener;
    let listening = match address {
        ListenAddress::Tcp(_) => Listening::Tcp(tokio::net::TcpListener::from_std(socket.into())?),
        ListenAddress::Unix(_) => {
            Listening::Unix(tokio::net::UnixListener::from_std(socket.into())?)
        }
    };
    let mut begun = stage.clone();
    let accepting = async {
        if begun.wait_for(|stage| *stage >= Stage::Serving).await.is_err() {
            return; // The server is gone.
        }
        let mut backoff = Backoff::default();
        loop {
            let stream = match listening.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    backoff.wait(&error).await;
                    continue;
                }
            };
            backoff = Backoff::default();
            let Some(share) = limiter.admit(stream.client()) else { continue };
            let slot = limiter.slot(share).await;
            let least = workers.iter().min_by_key(|worker| worker.load.load(Ordering::Relaxed));
            let worker = least.expect("there is a worker thread");
            let accepted =
                Accepted { stream, tls: tls.clone(), counted: CountedIn::new(&worker.load), slot };
            let _ = worker.connections.send(Box::new(accepted)); // A thread that has ended closes it by dropping it.
        }
    };
    tokio::select! {
        () = accepting => {}
        // An error means that the server is gone.
        _ = stage.wait_for(|stage| *stage >= Stage::Closing) => {}
    }
    Ok(())
}

enum Listening {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Listening {
    /// The next connection, registered with no runtime yet: it goes to another thread's.
    async fn accept(&self) -> io::Result<AcceptedStream> {
        match self {
            Listening::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(AcceptedStream::Tcp(stream.into_std()?, peer))
            }
            Listening::Unix(listener) => {
                Ok(AcceptedStream::Unix(listener.accept().await?.0.into_std()?))
            }
        }
    }
}

/// How long to leave a listener alone that can't accept.
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff(Duration::from_millis(10))
    }
}

impl Backoff {
    async fn wait(&mut self, error: &io::Error) {
        // What goes wrong with one connection is no reason to keep the next waiting.
        let of_one_connection = [
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::Interrupted,
            io::ErrorKind::NotConnected,
            io::ErrorKind::InvalidInput, // Setting an option of a socket whose client has left.
        ];
        if of_one_connection.contains(&error.kind()) {
            return;
        }
        tracing::warn!(%error, "cannot accept connections, trying again in {:?}", self.0);
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
    }
}
