//! Half of a fence.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A proxy that refuses what is older than anything that it has let through, and waits for nobody:
/// it has a ratchet and no barrier. It serves as long as this lives.
pub(crate) struct Ratchet {
    address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Ratchet {
    pub(crate) async fn start(worker: SocketAddr) -> Ratchet {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the system has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, worker));
        Ratchet { address, _serving: serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn serve(listener: TcpListener, worker: SocketAddr) {
    let (highest, mut connections) = (Arc::new(AtomicI64::new(0)), JoinSet::new());
    while let Ok((stream, _)) = listener.accept().await {
        let highest = Arc::clone(&highest);
        connections.spawn(async move {
            let service = service_fn(|request| pass_on(request, worker, &highest));
            // A connection that breaks shows at the client.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn pass_on(
    request: Request<Incoming>,
    worker: SocketAddr,
    highest: &AtomicI64,
) -> anyhow::Result<Response<BoxBody<Bytes, hyper::Error>>> {
    let revision = request.headers()["fence-revision"].to_str()?.parse()?;
    if highest.fetch_max(revision, Ordering::SeqCst) > revision {
        let refusal = Response::builder().status(412).header("fence-reason", "stale-tenure");
        return Ok(refusal.body(Empty::new().map_err(|never| match never {}).boxed())?);
    }
    let stream = TokioIo::new(TcpStream::connect(worker).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?.map(BodyExt::boxed))
}
