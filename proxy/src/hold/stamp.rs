//! `--stamp`: a local listener for as long as a tenure lasts. What a command sends there goes out with the tenure's headers.
//!
//! For masters that can't be changed. The listener and all its connections are closed when the tenure may be over: what a
//! command sends later reaches nobody, and the next tenure's listener is another. HTTP/1.1, bodies as they come; no upgrades.

mod line;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fencepost_holder::{StampLayer, Tenure};
use http::Uri;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use self::line::Line;

/// How long to leave the system alone when it has no connection to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Where a command's requests are taken, and where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StampRule {
    listen: SocketAddr,
    to: Authority,
}

/// Host and port of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Authority(String);

impl StampRule {
    /// Takes `ADDRESS=URL`, the address on loopback: whoever reaches it speaks in the holder's name.
    pub(super) fn parse(text: &str) -> Result<StampRule, String> {
        let (listen, to) = text.split_once('=').ok_or("must be \"127.0.0.1:8081=http://host:port\"")?;
        let listen: SocketAddr = listen.parse().map_err(|_| format!("{listen:?} is no address and port"))?;
        if !listen.ip().is_loopback() {
            return Err(format!("{listen} is not on loopback: whoever reaches it would speak in the holder's name"));
        }
        let to: Uri = super::settings::http_url(to)?;
        let authority = to.authority().map(ToString::to_string).unwrap_or_default();
        Ok(StampRule { listen, to: Authority(authority) })
    }
}

impl Authority {
    /// Where to connect.
    fn address(&self) -> String {
        let has_port = self.0.parse::<http::uri::Authority>().is_ok_and(|authority| authority.port().is_some());
        if has_port { self.0.clone() } else { format!("{}:80", self.0) }
    }
}

/// The listeners of a tenure. They close with it, or with this value.
#[derive(Debug)]
pub(super) struct Stamping {
    addresses: Vec<SocketAddr>,
    task: JoinHandle<()>,
}

impl Stamping {
    pub(super) async fn open(rules: &[StampRule], tenure: &Tenure) -> io::Result<Stamping> {
        let mut listeners = JoinSet::new();
        let mut addresses = Vec::new();
        for StampRule { listen, to } in rules {
            let failed = |error: io::Error| io::Error::new(error.kind(), format!("--stamp {listen}: {error}"));
            let listener = TcpListener::bind(listen).await.map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.spawn(accept(listener, Arc::new(to.clone()), tenure.stamp().with_lock()));
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
async fn accept(listener: TcpListener, to: Arc<Authority>, stamp: StampLayer) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve(stream, Arc::clone(&to), stamp.clone()))),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, to: Arc<Authority>, stamp: StampLayer) {
    let _ = stream.set_nodelay(true);
    // One connection to the proxy for each of the command's: requests on it follow each other.
    let line = Arc::new(Line::to(to, stamp));
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
        for (text, address) in [
            ("127.0.0.1:8081=http://proxy:8080", "proxy:8080"),
            ("[::1]:0=http://proxy", "proxy:80"),
            ("127.0.0.1:1=http://[::1]", "[::1]:80"),
        ] {
            assert_eq!(StampRule::parse(text).unwrap().to.address(), address, "{text}");
        }
        for wrong in [
            "8081=http://proxy",
            "127.0.0.1:8081",
            "0.0.0.0:8081=http://proxy",
            "127.0.0.1:8081=proxy:8080",
            "127.0.0.1:8081=https://proxy",
            "127.0.0.1:8081=http://proxy/path",
        ] {
            assert!(StampRule::parse(wrong).is_err(), "{wrong}");
        }
    }
}
