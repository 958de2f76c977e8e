//! `--stamp`: a local listener for as long as a tenure lasts. What a command sends there goes out with the tenure's headers.
//!
//! For masters that can't be changed. The listener and all its connections are closed when the tenure may be over: what a
//! command sends later reaches nobody, and the next tenure's listener is another. HTTP/1.1, bodies as they come; no upgrades.

mod line;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencepost_holder::{StampLayer, Standing, Tenure};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use self::line::Line;
use super::header_names::HeaderNames;
use super::proxy_address::{InvalidProxyAddress, ProxyAddress};
use super::proxy_link::{LinkError, ProxyLink};
use super::voice::Voice;

/// How long to leave the system alone when it has no connection to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Where a command's requests are taken, and where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StampRule {
    pub(super) listen: SocketAddr,
    pub(super) to: ProxyAddress,
}

impl StampRule {
    /// Takes `ADDRESS=URL`, the address on loopback: whoever reaches it speaks in the holder's name.
    pub(super) fn parse(text: &str) -> Result<StampRule, String> {
        let (listen, to) = text.split_once('=').ok_or("must be \"127.0.0.1:8081=http://host:port\"")?;
        let listen: SocketAddr = listen.parse().map_err(|_| format!("{listen:?} is no address and port"))?;
        if !listen.ip().is_loopback() {
            return Err(format!("{listen} is not on loopback: whoever reaches it would speak in the holder's name"));
        }
        let to = to.parse().map_err(|error: InvalidProxyAddress| error.to_string())?;
        Ok(StampRule { listen, to })
    }
}

/// How long a proxy may take to show who it is, before a command starts that could do without it.
const INTRODUCED_WITHIN: Duration = Duration::from_secs(1);

/// A rule at work. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Outlet(Arc<Way>);

#[derive(Debug)]
struct Way {
    listen: SocketAddr,
    link: ProxyLink,
    names: HeaderNames,
    voice: Voice,
    /// What was said last of why nothing goes that way.
    said: Mutex<String>,
}

impl Outlet {
    pub(super) fn new(listen: SocketAddr, link: ProxyLink, names: &HeaderNames, voice: Voice) -> Outlet {
        Outlet(Arc::new(Way { listen, link, names: names.clone(), voice, said: Mutex::default() }))
    }

    /// Which proxy it leads to.
    pub(super) fn proxy(&self) -> &ProxyLink {
        &self.0.link
    }

    /// Finds out whether the proxy, if it is there, is the one that is meant.
    ///
    /// # Errors
    /// Says why it is not. One that is away may come later.
    pub(super) async fn introduce(&self, standing: watch::Receiver<Standing>) -> Result<(), String> {
        match timeout(INTRODUCED_WITHIN, self.0.link.connect(standing)).await {
            Ok(Err(LinkError::Tls(refusal))) => Err(format!("{self}: no TLS: {refusal}")),
            Ok(Ok(_) | Err(LinkError::Lost(_))) | Err(_) => Ok(()),
        }
    }

    /// Says why nothing goes that way, each reason once: the command may keep to itself what it is answered.
    fn complain(&self, why: &str) {
        let mut said = self.0.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != why {
            why.clone_into(&mut said);
            self.0.voice.say(format_args!("{self}: {why}"));
        }
    }
}

impl fmt::Display for Outlet {
    /// As on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--stamp {}={}", self.0.listen, self.0.link)
    }
}

/// The listeners of a tenure. They close with it, or with this value.
#[derive(Debug)]
pub(super) struct Stamping {
    addresses: Vec<SocketAddr>,
    task: JoinHandle<()>,
}

impl Stamping {
    pub(super) async fn open(outlets: &[Outlet], tenure: &Tenure) -> io::Result<Stamping> {
        let mut listeners = JoinSet::new();
        let mut addresses = Vec::new();
        for outlet in outlets {
            let listen = outlet.0.listen;
            let failed = |error: io::Error| io::Error::new(error.kind(), format!("--stamp {listen}: {error}"));
            let listener = TcpListener::bind(listen).await.map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            let stamp = outlet.0.names.stamp(tenure);
            listeners.spawn(accept(listener, outlet.clone(), stamp, tenure.standing()));
        }
        let lost = tenure.lost();
        let task = tokio::spawn(async move {
            lost.await;
            listeners.shutdown().await;
        });
        Ok(Stamping { addresses, task })
    }

    /// Closes listeners and connections; returns when that is done.
    pub(super) async fn close(self) {
        self.task.abort();
        // However it has ended: it is gone, and with it all that it held.
        let _ = self.task.await;
    }
}

impl fmt::Display for Stamping {
    /// The addresses, separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        f.write_str(&addresses.join(" "))
    }
}

/// Serves until it is given up; its connections go with it.
async fn accept(listener: TcpListener, outlet: Outlet, stamp: StampLayer, standing: watch::Receiver<Standing>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, Line::to(outlet.clone(), stamp.clone(), standing.clone())));
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection of the command's. It has one to the proxy: requests on it follow each other.
async fn serve(stream: TcpStream, line: Line) {
    let _ = stream.set_nodelay(true);
    let line = Arc::new(line);
    let service = service_fn(move |request| {
        let line = Arc::clone(&line);
        async move { Ok::<_, std::convert::Infallible>(line.forward(request).await) }
    });
    // What goes wrong on a connection concerns its client, which sees it end.
    let _ = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
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
            assert_eq!((rule.listen.to_string().as_str(), rule.to.to_string().as_str()), (listen, to));
        }
        for wrong in [
            "8081=http://proxy",
            "127.0.0.1:8081",
            "0.0.0.0:8081=http://proxy",
            "127.0.0.1:8081=proxy:8080",
            "127.0.0.1:8081=http://proxy/path",
        ] {
            assert!(StampRule::parse(wrong).is_err(), "{wrong}");
        }
    }
}
