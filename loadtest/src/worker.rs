//! The worker, played here: an HTTP/1.1 server that checks the order of what reaches it.

mod order;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

pub(crate) use self::order::{AtWorker, Breaches, Order};

use crate::Conclusion;
use crate::client::{OWNER, REVISION};

/// Names a request's lock by its number; proxies pass it on like any header.
pub(crate) const LOCK_NUMBER: &str = "loadtest-lock";
/// Stands in a request's target before the length of the response that it asks for.
pub(crate) const ASKS_FOR_BYTES: &str = "?bytes=";
const ANSWER_BYTES: usize = 100;
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A worker that runs on a thread of its own until the program ends.
pub(crate) struct Worker {
    orders: Arc<Orders>,
}

impl Worker {
    /// Starts it, if there is an address for it. It takes so long for each request.
    pub(crate) async fn listen(
        address: Option<SocketAddr>,
        takes: Duration,
    ) -> Result<Option<Worker>> {
        let Some(address) = address else { return Ok(None) };
        let listener = bind(address).await?.into_std()?;
        let orders = Arc::new(Orders { takes, by_lock: Mutex::default() });
        let record = Some(Arc::clone(&orders));
        std::thread::Builder::new().name("worker".to_owned()).spawn(move || {
            let runtime = crate::one_thread()?;
            runtime.block_on(async { accept(TcpListener::from_std(listener)?, record).await })
        })?;
        Ok(Some(Worker { orders }))
    }

    pub(crate) fn seen(&self) -> AtWorker {
        let mut all = AtWorker::default();
        self.orders.by_lock().values().for_each(|order| all.add(order.seen()));
        all
    }

    /// The requests so far that named no lock.
    pub(crate) fn order(&self) -> Order {
        self.orders.by_lock().get(&0).cloned().unwrap_or_default()
    }
}

/// Serves without recording anything, until the program ends.
pub(crate) async fn serve(address: SocketAddr) -> Result<Conclusion> {
    accept(bind(address).await?, None).await?;
    Ok(Conclusion::AsExpected)
}

struct Orders {
    takes: Duration,
    by_lock: Mutex<HashMap<usize, Order>>,
}

impl Orders {
    fn by_lock(&self) -> MutexGuard<'_, HashMap<usize, Order>> {
        self.by_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request at the worker. Dropping it ends the request.
struct Visit {
    orders: Arc<Orders>,
    lock: usize,
    revision: i64,
}

impl Visit {
    /// A request without a token must not get here; it counts as older than any other.
    fn begin(orders: &Arc<Orders>, headers: &HeaderMap) -> Visit {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let revision = text(REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0);
        let lock = text(LOCK_NUMBER).and_then(|number| number.parse().ok()).unwrap_or(0);
        let owner = text(OWNER).unwrap_or_default();
        orders.by_lock().entry(lock).or_default().begins(owner, revision, Instant::now());
        Visit { orders: Arc::clone(orders), lock, revision }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.orders.by_lock().entry(self.lock).or_default().ends(self.revision);
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("the worker cannot listen on {address}"))
}

async fn accept(listener: TcpListener, orders: Option<Arc<Orders>>) -> Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(connection(stream, orders.clone()))),
            // Out of descriptors, or the client has left: the next one may fare better.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn connection(stream: TcpStream, orders: Option<Arc<Orders>>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, orders.as_ref()));
    // A connection that breaks shows at the client.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    orders: Option<&Arc<Orders>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let visit = orders.map(|orders| Visit::begin(orders, request.headers()));
    let length = asked_for(request.uri().query());
    let mut body = request.into_body();
    let mut is_whole = true;
    while let Some(frame) = body.frame().await {
        is_whole &= frame.is_ok();
    }
    if let Some(visit) = visit.filter(|visit| !visit.orders.takes.is_zero()) {
        // In a task of its own: the work goes on when the proxy closes its connection.
        let work = tokio::spawn(async move {
            crate::machine::sleep_until(Instant::now() + visit.orders.takes).await;
            drop(visit);
        });
        let _ = work.await; // It fails only if the program ends.
    }
    let mut response = Response::new(Full::new(FILLING.slice(..length)));
    if !is_whole {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    Ok(response)
}

static FILLING: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![b'.'; ANSWER_BYTES_MAX]));

fn asked_for(query: Option<&str>) -> usize {
    let number =
        query.and_then(|query| format!("?{query}").strip_prefix(ASKS_FOR_BYTES)?.parse().ok());
    number.unwrap_or(ANSWER_BYTES).min(ANSWER_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_as_long_as_the_query_asks() {
        for (query, length) in [
            (None, 100),
            (Some("bytes=0"), 0),
            (Some("bytes=4096"), 4096),
            (Some("bytes=many"), 100),
            (Some("bytes=99999999999"), ANSWER_BYTES_MAX),
        ] {
            assert_eq!(asked_for(query), length, "{query:?}");
        }
    }
}
