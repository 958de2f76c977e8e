//! A real etcd, what stands in it, and a server with the layer before it.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::Client;
use fencepost_fence::{Fence, FenceBuilder, FenceLayer, RequestBody};
use fencepost_tests::{Etcd, EtcdOptions, EtcdVersion};
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::{Layer, Service};

pub(crate) struct Cluster {
    pub(crate) member: Etcd,
    client: Client,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        // Elections so short that it grants leases of one second.
        let election = Some(Duration::from_millis(200));
        let options = EtcdOptions {
            heartbeat: Some(Duration::from_millis(20)),
            election,
            ..EtcdOptions::default()
        };
        let member = Etcd::start_with(EtcdVersion::V3_5, &options).await;
        let client = Client::connect([member.endpoint()], None).await.unwrap();
        Cluster { member, client }
    }

    pub(crate) fn builder(&self) -> FenceBuilder {
        Fence::etcd([self.member.endpoint()])
    }

    pub(crate) fn fence(&self) -> Fence {
        self.builder().build().unwrap()
    }

    /// Writes a key; returns the revision.
    pub(crate) async fn put(&self, key: &str, value: &str) -> u64 {
        let answer = self.client.clone().put(key, value, None).await.unwrap();
        answer.header().unwrap().revision() as u64
    }

    pub(crate) async fn delete(&self, key: impl Into<Vec<u8>>) {
        self.client.clone().delete(key, None).await.unwrap();
    }
}

/// Serves a handler behind the layer over HTTP/1.1 and HTTP/2, for as long as the runtime goes on.
pub(crate) async fn serve<S>(layer: &FenceLayer, handler: S) -> SocketAddr
where
    S: Service<
            Request<RequestBody<Incoming>>,
            Response = Response<Full<Bytes>>,
            Error = Infallible,
        > + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    listen(layer.layer(handler)).await
}

/// Serves a service over HTTP/1.1 and HTTP/2, for as long as the runtime goes on.
pub(crate) async fn listen<S, R>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<R>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    R: Body<Data = Bytes, Error: Error + Send + Sync> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = TowerToHyperService::new(service);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service.clone();
            tokio::spawn(async move {
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    address
}
