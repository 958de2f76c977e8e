//! Takes connections from the kernel and hands each to the worker thread with the fewest.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_config::Proxies;
use socket2::Socket;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};

use super::client::{ClientAddress, is_trusted};
use super::connection_limiter::{ConnectionLimiter, Slot};
use super::listener::{ListenAddress, Listener, ListenerTls};
use super::thread::Stage;

/// How long a listener is left alone that can't accept.
const RETRY_PERIOD: Duration = Duration::from_millis(500);

/// A connection on its way to a worker thread.
pub(super) struct Accepted {
    pub(super) socket: Socket,
    pub(super) client: ClientAddress,
    pub(super) tls: Option<ListenerTls>,
    pub(super) proxies: Option<Arc<Proxies>>,
    /// Whether it is a proxy that is trusted.
    pub(super) is_trusted: bool,
    pub(super) counted: CountedIn,
    pub(super) slot: Slot,
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
    let Listener { address, socket, file: _file, tls, proxies } = listener;
    let listening = match address {
        ListenAddress::Tcp(_) => Listening::Tcp(TcpListener::from_std(socket.into())?),
        ListenAddress::Unix(_) => Listening::Unix(UnixListener::from_std(socket.into())?),
    };
    let mut begun = stage.clone();
    let accepting = async {
        if begun.wait_for(|stage| *stage >= Stage::Serving).await.is_err() {
            return; // The server is gone.
        }
        loop {
            let (socket, client) = match listening.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    if !is_of_one_connection(&error) {
                        tracing::warn!(%error, "cannot accept connections, trying again in {RETRY_PERIOD:?}");
                        tokio::time::sleep(RETRY_PERIOD).await;
                    }
                    continue;
                }
            };
            let is_trusted = is_trusted(proxies.as_deref(), client);
            let Some(slot) = limiter.slot(client, is_trusted).await else { continue };
            let least = workers.iter().min_by_key(|worker| worker.load.load(Ordering::Relaxed));
            let worker = least.expect("there is a worker thread");
            let (tls, proxies) = (tls.clone(), proxies.clone());
            let counted = CountedIn::new(&worker.load);
            let accepted = Accepted { socket, client, tls, proxies, is_trusted, counted, slot };
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
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listening {
    /// The next connection, registered with no runtime yet: it goes to another thread's.
    async fn accept(&self) -> io::Result<(Socket, ClientAddress)> {
        match self {
            Listening::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((stream.into_std()?.into(), ClientAddress::Tcp(peer)))
            }
            Listening::Unix(listener) => {
                Ok((listener.accept().await?.0.into_std()?.into(), ClientAddress::Unix))
            }
        }
    }
}

/// Whether it is no reason to keep the next connection waiting.
fn is_of_one_connection(error: &io::Error) -> bool {
    let of_one_connection = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::Interrupted,
        io::ErrorKind::NotConnected,
        io::ErrorKind::InvalidInput, // Setting an option of a socket whose client has left.
    ];
    of_one_connection.contains(&error.kind())
}
