//! A real etcd, what stands in it, and a server with the layer before it.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Client, LockOptions};
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

    /// Has that candidate elected; returns its key and create revision.
    pub(crate) async fn elect(&self, name: &str, candidate: &str) -> (Vec<u8>, u64) {
        let mut client = self.client.clone();
        let lease = client.lease_grant(600, None).await.unwrap().id();
        let elected = client.campaign(name, candidate, lease).await.unwrap();
        let leader = elected.leader().unwrap();
        (leader.key().to_vec(), leader.rev() as u64)
    }

    /// Takes etcd's own mutex; returns its key and the revision that its holder is told.
    pub(crate) async fn lock(&self, name: &str) -> (String, u64) {
        let mut client = self.client.clone();
        let lease = client.lease_grant(600, None).await.unwrap().id();
        let locked = client.lock(name, Some(LockOptions::new().with_lease(lease))).await.unwrap();
        let revision = locked.header().unwrap().revision() as u64;
        (String::from_utf8(locked.key().to_vec()).unwrap(), revision)
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

/// The same for whatever answers requests.
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
