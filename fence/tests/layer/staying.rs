//! What a request is that runs: the handler, its response, its body, and whatever holds a guard.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use fencepost_fence::{FenceLayer, RequestBody, WorkerPermit};
use fencepost_tests::{PATIENCE, eventually};
use http::{Request, Response};
use http_body_util::Full;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower::service_fn;

use crate::scene::{Door, Log, SHORT, Scene, answer, request, running, send, text, verdict};

#[tokio::test]
async fn a_request_runs_until_its_response_has_been_read_or_dropped() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let old = scene.takes("a");
    let response = send(&layer, service_fn(answer), request("a", old)).await;
    let dropped = send(&layer, service_fn(answer), request("a", old)).await;
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    drop(dropped);
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    assert_eq!(text(response).await, "done");
    assert_eq!(verdict(&layer, "b", new).await, "200");
}

#[tokio::test]
async fn a_request_runs_until_every_clone_of_its_guard_is_gone() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let old = scene.takes("a");
    let (go, waits) = std::sync::mpsc::channel::<()>();
    let waits = Arc::new(Mutex::new(Some(waits)));
    let blocking = Arc::new(Mutex::new(None));
    let (begun, handler) = (Arc::clone(&blocking), {
        let blocking = Arc::clone(&blocking);
        service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
            let (running, waits) = (running(&request), waits.lock().unwrap().take().unwrap());
            *blocking.lock().unwrap() = Some(tokio::task::spawn_blocking(move || {
                let _ = waits.recv();
                running.has_ended()
            }));
            answer(request)
        })
    });
    assert_eq!(text(send(&layer, handler, request("a", old)).await).await, "done");
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    drop(go);
    let work = begun.lock().unwrap().take().unwrap();
    assert!(work.await.unwrap(), "it can know that its tenure has ended");
    eventually("the next tenure is let in", async || {
        (verdict(&layer, "b", new).await == "200").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_request_body_that_a_handler_keeps_keeps_the_request() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let old = scene.takes("a");
    let (keep, kept) = oneshot::channel();
    let keep = Arc::new(Mutex::new(Some(keep)));
    let handler = service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
        let keep = keep.lock().unwrap().take().unwrap();
        async move {
            keep.send(request.into_body()).unwrap();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    drop(send(&layer, handler, request("a", old)).await);
    let body = kept.await.unwrap();
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    drop(body);
    assert_eq!(verdict(&layer, "b", new).await, "200");
}

#[tokio::test]
async fn a_leaving_client_ends_the_handler_but_not_its_guards() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let old = scene.takes("a");
    let (sender, guard) = oneshot::channel::<WorkerPermit>();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let handler = service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
        let sender = sender.lock().unwrap().take().unwrap();
        async move {
            sender.send(running(&request)).unwrap();
            std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
        }
    });
    let leaves = layer.clone();
    let sent = tokio::spawn(async move { send(&leaves, handler, request("a", old)).await });
    let guard = timeout(PATIENCE, guard).await.unwrap().unwrap();
    sent.abort();
    assert!(sent.await.unwrap_err().is_cancelled());
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    timeout(PATIENCE, guard.ended()).await.expect("whoever has a guard learns of the end");
    drop(guard);
    assert_eq!(verdict(&layer, "b", new).await, "200");
}

#[tokio::test]
async fn a_detached_handler_counts_to_its_end_without_its_client() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.detached(true).handoff_timeout(SHORT));
    let (old, door) = (scene.takes("a"), Door::default());
    let inside = door.clone();
    let handler = service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
        let door = inside.clone();
        async move {
            drop(request); // Nothing else of it holds a guard.
            door.pass().await;
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
        }
    });
    let (leaves, leaving) = (layer.clone(), handler.clone());
    let sent = tokio::spawn(async move { send(&leaves, leaving, request("a", old)).await });
    timeout(PATIENCE, door.reached.opened()).await.expect("the request is let in");
    sent.abort();
    assert!(sent.await.unwrap_err().is_cancelled());
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    door.open.open();
    eventually("the next tenure is let in", async || {
        (verdict(&layer, "b", new).await == "200").then_some(())
    })
    .await;
    assert_eq!(
        text(send(&layer, handler, request("b", new)).await).await,
        "done",
        "who stays has the answer"
    );
}

/// Says when it is dropped whether its request was still counted: the next tenure must not be in
/// yet.
struct Leaving {
    log: Log,
    layer: FenceLayer,
    next: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let (layer, next) = (self.layer.clone(), self.next);
        // On another thread, since this one is in the middle of a runtime.
        let called = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { verdict(&layer, "b", next).await })
        });
        self.log.add(called.join().unwrap());
    }
}

#[tokio::test]
async fn what_a_request_holds_is_dropped_before_it_leaves_the_gate() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let log = Log::default();
    for response_is_reached in [false, true] {
        let old = scene.takes("a");
        let next = Arc::new(std::sync::OnceLock::<Leaving>::new());
        let (in_handler, door) = (Arc::new(Mutex::new(Some(Arc::clone(&next)))), Door::default());
        let inside = door.clone();
        let handler = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
            // Only the one request has it, not the handler.
            let (leaving, door) = (in_handler.lock().unwrap().take().unwrap(), inside.clone());
            async move {
                if !response_is_reached {
                    door.pass().await;
                }
                door.reached.open();
                Ok::<_, Infallible>(Response::new(Held { _leaving: leaving }))
            }
        });
        let of_old = layer.clone();
        let mut sent = Box::pin(async move { send(&of_old, handler, request("a", old)).await });
        let response = tokio::select! {
            biased;
            response = &mut sent => Some(response),
            () = door.reached.opened() => None,
        };
        assert_eq!(response.is_some(), response_is_reached);
        let new = scene.takes("b");
        let _ = next.set(Leaving { log: log.clone(), layer: layer.clone(), next: new });
        drop(next);
        drop((sent, response));
        assert_eq!(verdict(&layer, "b", new).await, "200");
    }
    assert_eq!(log.lines(), ["503 handoff-timeout", "503 handoff-timeout"]);
}

/// A response that holds something.
struct Held {
    _leaving: Arc<std::sync::OnceLock<Leaving>>,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn a_handler_that_fails_leaves_the_gate() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let old = scene.takes("a");
    let fails = service_fn(async |_: Request<RequestBody<Full<Bytes>>>| {
        Err::<Response<Full<Bytes>>, _>("on purpose")
    });
    let fenced = tower::Layer::layer(&layer, fails);
    let failed = tower::ServiceExt::oneshot(fenced, request("a", old)).await;
    assert_eq!(failed.map(|_| ()), Err("on purpose"));
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "200");
}
