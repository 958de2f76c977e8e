//! A server that applies writes only from the holder of a lock in etcd:
//! `server http://127.0.0.1:2379 /shards/2/lock 127.0.0.1:8080`.
//!
//! `GET /readyz` returns whether the lock has been read. Every other request needs `Fence-Owner`
//! and `Fence-Revision`.

use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use fencepost_fence::{Fence, FenceLayer, RequestBody, WorkerPermit};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt, service_fn};

type Failure = Box<dyn Error + Send + Sync>;
type Answer = Response<BoxBody<Bytes, Failure>>;

/// What this server is there to protect.
type Journal = Arc<Mutex<Vec<String>>>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [etcd, lock, listen] = arguments.as_slice() else {
        return Err("usage: server http://ETCD:PORT LOCK ADDRESS:PORT".into());
    };
    let fence = Fence::etcd([etcd]).build()?;
    let layer = fence.lock(lock).layer()?;
    serve(TcpListener::bind(listen).await?, fence, layer, Journal::default()).await
}

/// Serves HTTP/1.1 and HTTP/2 until the listener fails.
async fn serve(
    listener: TcpListener,
    fence: Fence,
    layer: FenceLayer,
    journal: Journal,
) -> Result<(), Failure> {
    let fenced = ServiceBuilder::new().layer(layer).service(service_fn(
        move |request: Request<RequestBody<Incoming>>| apply(Arc::clone(&journal), request),
    ));
    let service = service_fn(move |request: Request<Incoming>| {
        let (fence, fenced) = (fence.clone(), fenced.clone());
        async move {
            if request.uri().path() == "/readyz" {
                return Ok(readiness(&fence));
            }
            fenced
                .oneshot(request)
                .await
                .map(|answer| answer.map(|body| body.map_err(Failure::from).boxed()))
        }
    });
    let service = TowerToHyperService::new(service);
    loop {
        let (stream, _) = listener.accept().await?;
        let service = service.clone();
        tokio::spawn(async move {
            // What goes wrong with a connection is its client's business.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn readiness(fence: &Fence) -> Answer {
    let status = if fence.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut answer = Response::new(Full::default().map_err(Failure::from).boxed());
    *answer.status_mut() = status;
    answer
}

/// Writes the body of a request to the journal.
async fn apply(
    journal: Journal,
    request: Request<RequestBody<Incoming>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let permit =
        request.extensions().get::<WorkerPermit>().expect("the layer has put it there").clone();
    let Ok(body) = request.into_body().collect().await else {
        // The client broke off, or the tenure has ended: this is a part, and not to be used.
        return Ok(answer(StatusCode::BAD_REQUEST, "the body is not whole"));
    };
    let line = format!("{}: {}", permit.revision(), String::from_utf8_lossy(&body.to_bytes()));
    // Work that goes on when the client leaves. The next holder's requests wait for it, since it
    // has the guard.
    let written = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        journal.lock().expect("nothing panics while it writes").push(line);
    });
    match written.await {
        Ok(()) => Ok(answer(StatusCode::OK, "applied")),
        Err(_) => Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, "not applied")),
    }
}

fn answer(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests;
