//! The two ends together: a holder's stamp before the layer.

use std::convert::Infallible;

use bytes::Bytes;
use fencepost_fence::RequestBody;
use fencepost_hold::{Action, Etcd, Lock, Over, Reason, Rejection, StampError};
use http::{Request, Response};
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::cluster::Cluster;
use crate::scene::{LOCK, SHORT, answer};

#[tokio::test]
async fn a_holder_is_let_in_and_learns_what_to_do_when_it_is_not() {
    let cluster = Cluster::start().await;
    let fence = cluster.fence();
    let layer = fence.lock(LOCK).handoff_timeout(SHORT).layer().unwrap();
    let etcd = Etcd::at([cluster.member.endpoint()]).unwrap();
    let acquire = async |owner: &str| {
        Lock::builder(LOCK, owner).build(&etcd).unwrap().acquire().await.unwrap()
    };
    let plain = || Request::new(Full::<Bytes>::default());
    let behind = |tenure: &fencepost_hold::Tenure| {
        ServiceBuilder::new().layer(tenure.stamp()).layer(layer.clone()).service(service_fn(answer))
    };

    let first = acquire("shard-1").await;
    let stamped = behind(&first);
    let running = stamped.clone().oneshot(plain()).await.unwrap();
    first.release().await.unwrap();
    let not_sent = stamped.clone().oneshot(plain()).await.unwrap_err();
    assert!(matches!(not_sent, StampError::TenureOver(Over::Released)), "{not_sent}");

    let second = acquire("shard-2").await;
    let Err(StampError::Refused(waits)) = behind(&second).oneshot(plain()).await else {
        panic!("the first still runs")
    };
    assert_eq!(
        (waits.reason, waits.action),
        (Reason::Known(Rejection::HandoffTimeout), Action::Retry)
    );
    assert!(waits.retry_after.is_some() && waits.decision.is_some());
    drop(running);
    assert!(behind(&second).oneshot(plain()).await.is_ok());
    second.release().await.unwrap();

    // Somebody who goes on with the first revision, though not by a stamp.
    let third = acquire("shard-1").await;
    assert!(behind(&third).oneshot(plain()).await.is_ok());
    let replayed = service_fn(|request: Request<Full<Bytes>>| {
        let (mut request, layer) = (request, layer.clone());
        request
            .headers_mut()
            .insert("fence-revision", http::HeaderValue::from(third.revision().get() - 1));
        async move {
            let fenced = tower::Layer::layer(&layer, service_fn(answer::<Full<Bytes>>));
            fenced.oneshot(request).await
        }
    });
    let stamped = ServiceBuilder::new().layer(third.stamp()).service(replayed);
    let Err(StampError::Refused(refusal)) = stamped.oneshot(plain()).await else {
        panic!("an earlier revision")
    };
    assert_eq!(
        (refusal.reason, refusal.action),
        (Reason::Known(Rejection::ReplayedTenure), Action::RefreshToken)
    );
    assert_eq!(refusal.status, 412);
}

#[tokio::test]
async fn what_a_handler_says_of_itself_is_no_refusal() {
    let cluster = Cluster::start().await;
    let fence = cluster.fence();
    let layer = fence.lock(LOCK).layer().unwrap();
    let etcd = Etcd::at([cluster.member.endpoint()]).unwrap();
    let tenure = Lock::builder(LOCK, "a").build(&etcd).unwrap().acquire().await.unwrap();
    let claims = service_fn(async |_: Request<RequestBody<Full<Bytes>>>| {
        let response = Response::builder().status(412).header("fence-reason", "not-owner");
        Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
    });
    let stamped = ServiceBuilder::new().layer(tenure.stamp()).layer(layer).service(claims);
    let answered = stamped.oneshot(Request::new(Full::<Bytes>::default())).await.unwrap();
    assert_eq!(answered.status(), 412);
}
