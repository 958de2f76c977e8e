//! The worker, played here: a small HTTP/1.1 server that writes down what reaches it.

pub(crate) mod alarms;
mod order;
pub(crate) mod quick;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

pub(crate) use self::order::{AtWorker, Breaches, Event, Moment};

use crate::token::{OWNER, REVISION};

/// A worker that runs as long as this value lives.
#[derive(Debug)]
pub(crate) struct Worker {
    log: Log,
    accepting: JoinHandle<()>,
}

/// All that has happened, in order.
type Log = Arc<Mutex<Vec<Event>>>;

impl Worker {
    /// Starts it.
    pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<Worker> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("the worker cannot listen on {address}"))?;
        let log = Log::default();
        let accepting = tokio::spawn(accept(listener, Arc::clone(&log)));
        Ok(Worker { log, accepting })
    }

    /// What has reached it so far.
    pub(crate) fn log(&self) -> Vec<Event> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, log: Log) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(stream, Arc::clone(&log)));
            }
            // Out of descriptors, or a client that was gone at once: the next one may fare better.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn serve(stream: TcpStream, log: Log) {
    // Only a little latency is lost if it fails.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, &log));
    // A connection that breaks shows at the client.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, log: &Log) -> Result<Response<Full<Bytes>>, Infallible> {
    let (owner, revision) = token(request.headers());
    let write = |moment| {
        let event = Event { moment, at: Instant::now(), owner: owner.clone(), revision };
        log.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    };
    write(Moment::Begins);
    let whole = request.into_body().collect().await.is_ok();
    write(Moment::Ends);
    let mut response = Response::new(Full::new(Bytes::from_static(b"done\n")));
    if !whole {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    Ok(response)
}

/// What the request says. A request without a token must not get here; it counts as older than any other.
fn token(headers: &HeaderMap) -> (String, i64) {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let revision = text(REVISION).and_then(|revision| revision.parse().ok());
    (text(OWNER).unwrap_or_default(), revision.unwrap_or(0))
}
