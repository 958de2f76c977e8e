//! What a panic comes to: nobody knows what it left behind.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::{FenceLayer, RequestBody};
use fencepost_tests::PATIENCE;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tower::service_fn;

use crate::handoff::waits_there;
use crate::scene::{Door, LONG, Log, SHORT, Scene, request, running, send, verdict, waits_by_now};

/// How long the next tenure waits, once whatever panicked has done so.
async fn held_up(scene: &Scene, layer: &FenceLayer, since: Instant) -> Duration {
    let new = scene.takes("b");
    assert_eq!(tokio::time::timeout(PATIENCE, verdict(layer, "b", new)).await.unwrap(), "200");
    since.elapsed()
}

/// Sends a request of `a`, at whose handler there is a panic.
async fn panics_there(layer: &FenceLayer, revision: u64) {
    let layer = layer.clone();
    let panicking = service_fn(
        async |_: Request<RequestBody<Full<Bytes>>>| -> Result<Response<Full<Bytes>>, Infallible> {
            panic!("on purpose")
        },
    );
    let sent =
        tokio::spawn(async move { send(&layer, panicking, request("a", revision)).await.status() });
    assert!(sent.await.unwrap_err().is_panic());
}

/// Long enough to be told from at once on a busy machine.
const ORPHAN_TIMEOUT: Duration = Duration::from_millis(700);

#[tokio::test]
async fn a_panicking_handler_counts_for_orphan_timeout() {
    let scene = Scene::new();
    // No news of the lock wakes whoever waits.
    let layer =
        scene.layer(|lock| lock.orphan_timeout(ORPHAN_TIMEOUT).handoff_timeout(LONG).max_age(LONG));
    let old = scene.takes("a");
    let sending = layer.clone();
    let panicking = service_fn(
        async |_: Request<RequestBody<Full<Bytes>>>| -> Result<Response<Full<Bytes>>, Infallible> {
            tokio::task::yield_now().await;
            panic!("on purpose")
        },
    );
    let since = Instant::now();
    let sent =
        tokio::spawn(async move { send(&sending, panicking, request("a", old)).await.status() });
    assert!(sent.await.unwrap_err().is_panic());
    assert!(held_up(&scene, &layer, since).await >= ORPHAN_TIMEOUT);
}

#[tokio::test]
async fn a_panic_that_an_inner_layer_catches_still_counts() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.orphan_timeout(ORPHAN_TIMEOUT).handoff_timeout(LONG));
    let old = scene.takes("a");
    let caught = service_fn(async |request: Request<RequestBody<Full<Bytes>>>| {
        let work = tokio::spawn(async move {
            let _request = request;
            panic!("on purpose")
        });
        let _: Result<(), _> = work.await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let since = Instant::now();
    drop(send(&layer, caught, request("a", old)).await);
    assert!(held_up(&scene, &layer, since).await >= ORPHAN_TIMEOUT);
}

#[tokio::test]
async fn a_panic_of_what_a_handler_has_begun_counts_like_its_own() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.orphan_timeout(ORPHAN_TIMEOUT).handoff_timeout(LONG));
    let old = scene.takes("a");
    let begins = service_fn(async |request: Request<RequestBody<Full<Bytes>>>| {
        let running = running(&request);
        let work = tokio::task::spawn_blocking(move || {
            let _running = running;
            panic!("on purpose")
        });
        let _: Result<(), _> = work.await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let since = Instant::now();
    drop(send(&layer, begins, request("a", old)).await);
    assert!(held_up(&scene, &layer, since).await >= ORPHAN_TIMEOUT);
}

/// No event ends an orphan whose time has come, so the last request that leaves wakes the waiters.
#[tokio::test]
async fn a_waiter_enters_with_the_last_request_after_a_panic() {
    let scene = Scene::new();
    // Neither news of the lock nor the deadline wakes whoever waits.
    let layer = scene.layer(|lock| lock.orphan_timeout(SHORT).handoff_timeout(LONG).max_age(LONG));
    let (old, door) = (scene.takes("a"), Door::default());
    let runs = waits_there(&layer, &door, &Log::default(), "a", old).await;
    panics_there(&layer, old).await;
    let new = scene.takes("b");
    // That takes longer than the panic counts.
    let impatient = scene.layer(|lock| lock.handoff_timeout(SHORT).max_age(LONG));
    assert_eq!(verdict(&impatient, "b", new).await, "503 handoff-timeout");
    let mut waits = Box::pin(verdict(&layer, "b", new));
    waits_by_now(&mut waits).await;
    door.open.open();
    drop(runs.await.unwrap());
    assert_eq!(waits.await, "200");
}

/// A body that panics when it is read.
struct Broken;

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("on purpose")
    }
}

#[tokio::test]
async fn a_panicking_response_counts_for_orphan_timeout() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.orphan_timeout(ORPHAN_TIMEOUT).handoff_timeout(LONG));
    let old = scene.takes("a");
    let broken = service_fn(async |_: Request<RequestBody<Full<Bytes>>>| {
        Ok::<_, Infallible>(Response::new(Broken))
    });
    let response = send(&layer, broken, request("a", old)).await;
    let since = Instant::now();
    let read = tokio::spawn(async move { response.into_body().collect().await.is_ok() });
    assert!(read.await.unwrap_err().is_panic());
    assert!(held_up(&scene, &layer, since).await >= ORPHAN_TIMEOUT);
}
