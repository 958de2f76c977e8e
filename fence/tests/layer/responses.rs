//! Responses that go on when their tenure has ended.

use std::convert::Infallible;

use bytes::Bytes;
use fencepost_fence::{BodyError, FenceLayer, LockKey, RequestBody, ResponseBody};
use fencepost_tests::PATIENCE;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tower::service_fn;

use crate::bodies::{Pieces, pieces};
use crate::scene::{LOCK, LONG, SHORT, Scene, request, send, verdict};

type Streamed = (mpsc::UnboundedSender<&'static str>, ResponseBody<Pieces>);

/// A response of that type whose first piece has been read.
async fn streamed(layer: &FenceLayer, revision: u64, content_type: &'static str) -> Streamed {
    let (sender, body) = pieces();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let handler = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
        let body = body.lock().unwrap().take().unwrap();
        async move {
            Ok::<_, Infallible>(
                Response::builder().header("content-type", content_type).body(body).unwrap(),
            )
        }
    });
    let mut body = send(layer, handler, request("a", revision)).await.into_body();
    sender.send("one").unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    (sender, body)
}

#[tokio::test]
async fn an_event_stream_is_cut_when_its_tenure_ends() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG).max_age(LONG));
    let old = scene.takes("a");
    let (_sender, mut body) = streamed(&layer, old, "text/event-stream; charset=utf-8").await;
    let new = scene.takes("b");
    let (cut, let_in) =
        tokio::join!(timeout(PATIENCE, body.frame()), timeout(PATIENCE, verdict(&layer, "b", new)));
    assert!(matches!(cut.unwrap(), Some(Err(BodyError::Cut))));
    assert_eq!(let_in.unwrap(), "200");
    assert!(body.frame().await.is_none());
}

/// Servers poll no body whose client takes nothing: nobody would ever look whether the tenure goes
/// on.
#[tokio::test]
async fn an_event_stream_that_nobody_reads_holds_up_no_tenure() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG).max_age(LONG));
    let old = scene.takes("a");
    let (sender, mut body) = streamed(&layer, old, "Text/Event-Stream").await;
    let new = scene.takes("b");
    assert_eq!(timeout(PATIENCE / 2, verdict(&layer, "b", new)).await.unwrap(), "200");
    assert!(sender.is_closed(), "what the handler made of it is gone");
    assert!(matches!(body.frame().await, Some(Err(BodyError::Cut))));
}

/// Nobody else asks for the lock, and the watch has nothing more to tell of it.
#[tokio::test]
async fn an_event_stream_is_cut_after_an_outage_without_history() {
    let scene = Scene::new();
    let lock_of = |_: &Parts| Some(LockKey::new(LOCK).unwrap());
    let layer = scene.fence.locks_below("/shards/", lock_of).max_age(SHORT).layer().unwrap();
    let old = scene.takes("a");
    let (_sender, mut body) = streamed(&layer, old, "text/event-stream").await;
    scene.store.pause();
    scene.store.end_watches();
    scene.store.delete(LOCK);
    scene.store.compact(scene.store.put("/shards/3/lock", "b"));
    scene.store.resume();
    assert!(matches!(timeout(PATIENCE, body.frame()).await.unwrap(), Some(Err(BodyError::Cut))));
}

#[tokio::test]
async fn an_event_stream_within_its_tenure_ends_when_it_ends() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let old = scene.takes("a");
    let (sender, mut body) = streamed(&layer, old, "text/event-stream").await;
    sender.send("two").unwrap();
    drop(sender);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
    assert!(body.frame().await.is_none());
    let metrics = tokio::runtime::Handle::current().metrics();
    let nobody_is_left_to_cut_it = async {
        while metrics.num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE / 3, nobody_is_left_to_cut_it).await.expect("its task ends with it");
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "200");
}

#[tokio::test]
async fn any_response_is_cut_where_the_layer_says_so() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG).streaming(true));
    let old = scene.takes("a");
    let (_sender, mut body) = streamed(&layer, old, "application/json").await;
    // In a task of its own: whoever waits for it does not look for it.
    let reader =
        tokio::spawn(async move { matches!(body.frame().await, Some(Err(BodyError::Cut))) });
    tokio::task::yield_now().await;
    scene.takes("b");
    assert!(timeout(PATIENCE, reader).await.unwrap().unwrap());
}

#[tokio::test]
async fn any_other_response_goes_on_and_holds_the_next_tenure() {
    let scene = Scene::new();
    let layer = scene.impatient_layer();
    let old = scene.takes("a");
    let (sender, mut body) = streamed(&layer, old, "text/plain").await;
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    sender.send("two").unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
    drop(sender);
    assert!(body.frame().await.is_none());
    assert_eq!(verdict(&layer, "b", new).await, "200");
    drop(body);
}
