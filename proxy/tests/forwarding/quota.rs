//! Connections of which there may be so many in all, whatever the upstream.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::pin;

use fencepost::server::Protocol;
use fencepost::upstream::{ConnectionQuota, Pool, Speaks, Upstream, Wants};
use fencepost::wire::Background;
use fencepost_config::{HostPort, UpstreamAddress};
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, timeout};

use crate::support::PATIENCE;

/// A worker that takes connections and answers nothing.
async fn worker(protocol: Protocol) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        let mut taken = Vec::new();
        loop {
            let stream = listener.accept().await.unwrap().0;
            match protocol {
                Protocol::Http1 => taken.push(stream),
                Protocol::Http2 => drop(spawn_local(async {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while connection.accept().await.is_some() {}
                })),
            }
        }
    });
    address
}

/// A pool that has of these connections as many as it wants, keeps each for as long as it may, and
/// has one request at a time on it.
async fn pool(protocol: Protocol, quota: &ConnectionQuota) -> Pool {
    let worker = worker(protocol).await;
    let address =
        UpstreamAddress::Tcp(HostPort { host: worker.ip().to_string(), port: worker.port() });
    let upstream = Upstream::new(address, Speaks::Cleartext(protocol));
    let upstream =
        Upstream { quota: quota.clone(), idle_timeout: 10 * PATIENCE, streams_max: 1, ..upstream };
    Pool::new(upstream, Background::default())
}

/// An idle connection kept it from others for as long as it might be idle.
#[tokio::test]
async fn a_waiter_gets_the_idle_connection_of_another_pool() {
    use Protocol::{Http1, Http2};
    for (first, second) in [(Http1, Http1), (Http1, Http2), (Http2, Http1), (Http2, Http2)] {
        LocalSet::new()
            .run_until(async {
                let quota = ConnectionQuota::of(1, NonZeroUsize::MIN);
                let (first, second) = (pool(first, &quota).await, pool(second, &quota).await);
                let used = first.ready(Wants::Either, Instant::now() + PATIENCE).await.unwrap();
                let mut waits = pin!(second.ready(Wants::Either, Instant::now() + PATIENCE));
                assert!(waits.as_mut().now_or_never().is_none());
                drop(used);
                timeout(PATIENCE, waits)
                    .await
                    .expect("it waits no longer than it wants to")
                    .unwrap();
            })
            .await;
    }
}

/// A pool that always had somebody waiting kept all that it had.
#[tokio::test]
async fn pools_with_few_connections_are_served_first() {
    LocalSet::new()
        .run_until(async {
            let quota = ConnectionQuota::of(4, NonZeroUsize::MIN);
            let deadline = Instant::now() + 2 * PATIENCE;
            let [many, one, none] = [(); 3].map(|()| pool(Protocol::Http1, &quota));
            let (many, one, none) = (many.await, one.await, none.await);
            let mut used = Vec::new();
            for _ in 0..3 {
                used.push(many.ready(Wants::Either, deadline).await.unwrap());
            }
            let _last = one.ready(Wants::Either, deadline).await.unwrap();
            let mut waits = pin!(many.ready(Wants::Either, deadline));
            let mut comes_later = pin!(none.ready(Wants::Either, deadline));
            assert!(
                waits.as_mut().now_or_never().is_none()
                    && comes_later.as_mut().now_or_never().is_none()
            );
            yield_now().await; // Whoever looks after those who wait says so.
            used.pop();
            timeout(PATIENCE, comes_later)
                .await
                .expect("it waits no longer than it wants to")
                .unwrap();
            assert!(waits.as_mut().now_or_never().is_none());
        })
        .await;
}
