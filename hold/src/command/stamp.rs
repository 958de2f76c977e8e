//! `--stamp`: a local listener for as long as a tenure lasts. What a command sends there goes out
//! with the tenure's headers.
//!
//! For masters that can't be changed. When the tenure may be over all connections are closed, and
//! so is each that still comes: what a command sends later reaches nobody, and nobody else gets its
//! address before it has ended. HTTP/1.1, bodies as they come; no upgrades.

mod forward;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{Over, StampLayer, Standing, Tenure};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::forward::Forwarder;
use super::console::Console;
use super::header_names::HeaderNames;
use super::proxy_address::{InvalidProxyAddress, ProxyAddress};
use super::proxy_link::{HEADERS_MAX, ProxyLink, TlsRefusal};

/// How long to leave the system alone when it has no connection to give, or an address not yet.
const PAUSE: Duration = Duration::from_millis(20);

/// What this process has open beside the command's connections and those to the proxy: lists of
/// processes, etcd, files of TLS.
const DESCRIPTORS_ASIDE: usize = 64;

/// How many connections a command may have, if this process may have so many descriptors: each
/// takes one, and one to the proxy. More of them wait. Without a descriptor it could not be seen
/// what of a command is left.
pub(super) fn connections_max(descriptors: Option<u64>) -> usize {
    let descriptors =
        descriptors.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    (descriptors.saturating_sub(DESCRIPTORS_ASIDE) / 2).clamp(1, Semaphore::MAX_PERMITS)
}

/// Where a command's requests are taken, and where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StampRule {
    pub(super) listen: SocketAddr,
    pub(super) to: ProxyAddress,
}

impl StampRule {
    /// Takes `ADDRESS=URL`. The address must be on loopback, because every client that reaches it
    /// sends requests in the holder's name.
    pub(super) fn parse(text: &str) -> Result<StampRule, String> {
        let (listen, to) =
            text.split_once('=').ok_or("must be \"127.0.0.1:8081=http://host:port\"")?;
        let listen: SocketAddr =
            listen.parse().map_err(|_| format!("{listen:?} is no address and port"))?;
        if !listen.ip().is_loopback() {
            return Err(format!(
                "{listen} is not on loopback: whoever reaches it would speak in the holder's name"
            ));
        }
        let to = to.parse().map_err(|error: InvalidProxyAddress| error.to_string())?;
        Ok(StampRule { listen, to })
    }
}

/// How long a proxy may take to show who it is, before a command starts that could do without it.
const INTRODUCED_WITHIN: Duration = Duration::from_secs(1);

/// A rule at work.
#[derive(Debug)]
pub(super) struct Outlet {
    listen: SocketAddr,
    pub(super) link: ProxyLink,
    names: HeaderNames,
    console: Console,
    /// What was said last of why nothing goes that way.
    said: Mutex<String>,
}

impl Outlet {
    pub(super) fn new(
        listen: SocketAddr,
        link: ProxyLink,
        names: &HeaderNames,
        console: Console,
    ) -> Arc<Outlet> {
        Arc::new(Outlet { listen, link, names: names.clone(), console, said: Mutex::default() })
    }

    /// Finds out whether the proxy, if it is there, is the one that is meant.
    ///
    /// # Errors
    /// Says why it is not. One that is away may come later.
    pub(super) async fn introduce(
        &self,
        standing: watch::Receiver<Standing>,
    ) -> Result<(), String> {
        match timeout(INTRODUCED_WITHIN, self.link.connect(standing)).await {
            Ok(Err(error)) => match TlsRefusal::behind(&error) {
                Some(refusal) => Err(format!("{self}: no TLS: {refusal}")),
                None => Ok(()),
            },
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
    }

    /// Says why nothing goes that way, each reason once: the command may keep to itself what it is
    /// answered.
    fn complain(&self, why: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != why {
            why.clone_into(&mut said);
            self.console.print(format_args!("{self}: {why}"));
        }
    }
}

impl fmt::Display for Outlet {
    /// As on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--stamp {}={}", self.listen, self.link)
    }
}

/// The listeners of a tenure. They serve as long as it lasts, and keep their addresses as long as
/// this value does.
#[derive(Debug)]
pub(super) struct Stamping {
    addresses: Vec<SocketAddr>,
    listeners: JoinSet<()>,
}

impl Stamping {
    /// An address that is in use is waited for, for so long: it may be that of a command on this
    /// machine whose tenure is over, as long as that command has not ended.
    pub(super) async fn open(
        outlets: &[Arc<Outlet>],
        tenure: &Tenure,
        patience: Duration,
        connections_max: usize,
    ) -> io::Result<Stamping> {
        let places = Arc::new(Semaphore::new(connections_max));
        let until = Instant::now() + patience;
        let mut stamping = Stamping { addresses: Vec::new(), listeners: JoinSet::new() };
        for outlet in outlets {
            let listen = outlet.listen;
            let failed = |error: io::Error| {
                io::Error::new(error.kind(), format!("--stamp {listen}: {error}"))
            };
            let listener = bind(listen, until).await.map_err(failed)?;
            stamping.addresses.push(listener.local_addr().map_err(failed)?);
            let (stamp, standing) = (outlet.names.stamp(tenure), tenure.standing());
            let accepting = Accepting {
                listener,
                outlet: Arc::clone(outlet),
                stamp,
                standing,
                places: Arc::clone(&places),
            };
            stamping.listeners.spawn(accepting.until(tenure.lost()));
        }
        Ok(stamping)
    }

    /// Closes listeners and connections; returns when that is done.
    pub(super) async fn close(mut self) {
        self.listeners.shutdown().await;
    }
}

impl fmt::Display for Stamping {
    /// The addresses, separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        f.write_str(&addresses.join(" "))
    }
}

async fn bind(listen: SocketAddr, until: Instant) -> io::Result<TcpListener> {
    loop {
        match TcpListener::bind(listen).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                sleep(PAUSE).await
            }
            bound => return bound,
        }
    }
}

/// A listener of a tenure.
struct Accepting {
    listener: TcpListener,
    outlet: Arc<Outlet>,
    stamp: StampLayer,
    standing: watch::Receiver<Standing>,
    /// One for each connection, of this and the tenure's other listeners.
    places: Arc<Semaphore>,
}

impl Accepting {
    /// Serves until the tenure is lost. Returns never: from then on, whatever comes is closed at
    /// once. Were the address let go with the tenure, the next holder on this machine could have it
    /// before this command has ended, and send on what this one writes as its own.
    async fn until(self, lost: impl Future<Output = Over>) {
        tokio::select! {
            biased;
            _ = lost => {}
            never = self.serve() => match never {},
        }
        loop {
            self.accept().await;
        }
    }

    /// Its connections go with it.
    async fn serve(&self) -> Infallible {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                (stream, place) = self.accept_to_a_place() => {
                    let serving = serve(stream, Forwarder::new(&self.outlet, self.stamp.clone(), self.standing.clone()));
                    connections.spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn accept_to_a_place(&self) -> (TcpStream, OwnedSemaphorePermit) {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("nobody closes it");
        (self.accept().await, place)
    }

    async fn accept(&self) -> TcpStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

/// Serves one connection of the command's. It has its own connections to the proxy, so that a
/// renewed certificate counts for it.
async fn serve(stream: TcpStream, forwarder: Forwarder) {
    let _ = stream.set_nodelay(true);
    let forwarder = Arc::new(forwarder);
    let service = service_fn(move |request| {
        let forwarder = Arc::clone(&forwarder);
        async move { Ok::<_, Infallible>(forwarder.forward(request).await) }
    });
    let mut server = http1::Builder::new();
    // It is the command's own: it may leave a connection idle, or begin a request, for as long as
    // it likes.
    server.header_read_timeout(None).max_headers(HEADERS_MAX);
    // What goes wrong on a connection concerns its client, which sees it end.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_loopback_address_and_a_proxy() {
        for (text, listen, to) in [
            ("127.0.0.1:8081=http://proxy:8080", "127.0.0.1:8081", "http://proxy:8080"),
            ("[::1]:0=https://proxy", "[::1]:0", "https://proxy"),
        ] {
            let rule = StampRule::parse(text).unwrap();
            assert_eq!(
                (rule.listen.to_string().as_str(), rule.to.to_string().as_str()),
                (listen, to)
            );
        }
        for wrong in [
            "8081=http://proxy",
            "127.0.0.1:8081",
            "0.0.0.0:8081=http://proxy",
            "127.0.0.1:8081=proxy",
            "127.0.0.1:8081=http://proxy/path",
        ] {
            assert!(StampRule::parse(wrong).is_err(), "{wrong}");
        }
    }
}
