//! The body of a request: whole within its tenure, or cut.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::{BodyError, FenceLayer, LockKey, RequestBody};
use fencepost_tests::{Latch, PATIENCE, eventually};
use http::request::Parts;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tower::service_fn;

use crate::scene::{LOCK, LONG, Log, SHORT, Scene, send, text, verdict, with_body};

/// A body that a test sends piece by piece.
pub(crate) struct Pieces(mpsc::UnboundedReceiver<&'static str>);

pub(crate) fn pieces() -> (mpsc::UnboundedSender<&'static str>, Pieces) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Pieces(receiver))
}

/// A request of "a" that is let in: what its client sends, and what its handler reads, which the
/// test does in its place.
async fn taken(
    layer: &FenceLayer,
    revision: u64,
) -> (mpsc::UnboundedSender<&'static str>, RequestBody<Pieces>) {
    let (sender, body) = pieces();
    let (hand, mut taken) = mpsc::unbounded_channel();
    let handler = service_fn(move |request: Request<RequestBody<Pieces>>| {
        hand.send(request.into_body()).unwrap();
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
    });
    drop(send(layer, handler, with_body("a", revision, body)).await);
    (sender, taken.recv().await.unwrap())
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|piece| piece.map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes())))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_closed() && self.0.is_empty()
    }
}

/// An upload under way, to a handler that notes each piece and how the body ends.
struct Upload {
    pieces: mpsc::UnboundedSender<&'static str>,
    log: Log,
    answered: JoinHandle<String>,
}

impl Upload {
    async fn begin(layer: &FenceLayer, owner: &'static str, revision: u64) -> Upload {
        let (sender, body) = pieces();
        let log = Log::default();
        let (layer, noted, begun) = (layer.clone(), log.clone(), Latch::new());
        let reached = begun.clone();
        let handler = service_fn(move |request: Request<RequestBody<Pieces>>| {
            let (log, reached) = (noted.clone(), reached.clone());
            async move {
                reached.open();
                let mut body = request.into_body();
                while let Some(frame) = body.frame().await {
                    match frame {
                        Ok(frame) => log.add(str::from_utf8(&frame.into_data().unwrap()).unwrap()),
                        Err(BodyError::Cut) => log.add("cut"),
                        Err(BodyError::Body(never)) => match never {},
                    }
                }
                log.add("end");
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("read")))
            }
        });
        let request = with_body(owner, revision, body);
        let answered =
            tokio::spawn(async move { text(send(&layer, handler, request).await).await });
        timeout(PATIENCE, begun.opened()).await.expect("the request is let in");
        Upload { pieces: sender, log, answered }
    }

    /// What the handler has read, once that much is there.
    async fn until(&self, lines: &[&str]) {
        let reads = async {
            while self.log.lines() != lines {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(PATIENCE, reads).await.is_ok(), "{:?}, not {lines:?}", self.log.lines());
    }
}

#[tokio::test]
async fn a_body_is_read_to_its_end_within_its_tenure() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock);
    let revision = scene.takes("a");
    let upload = Upload::begin(&layer, "a", revision).await;
    upload.pieces.send("one").unwrap();
    upload.until(&["one"]).await;
    upload.pieces.send("two").unwrap();
    drop(upload.pieces);
    assert_eq!(upload.answered.await.unwrap(), "read");
    assert_eq!(upload.log.lines(), ["one", "two", "end"]);
}

#[tokio::test]
async fn a_waiting_handler_sees_the_cut_and_the_next_tenure_enters() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(LONG).max_age(LONG));
    let old = scene.takes("a");
    let upload = Upload::begin(&layer, "a", old).await;
    upload.pieces.send("one").unwrap();
    upload.until(&["one"]).await;
    let new = scene.takes("b");
    // Before the upload's own time is over.
    assert_eq!(timeout(PATIENCE / 2, verdict(&layer, "b", new)).await.unwrap(), "200");
    assert_eq!(upload.log.lines(), ["one", "cut", "end"]);
    assert_eq!(upload.answered.await.unwrap(), "read");
}

#[tokio::test]
async fn unread_pieces_are_dropped_when_the_tenure_has_ended() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(SHORT));
    let old = scene.takes("a");
    let (sender, mut body) = taken(&layer, old).await;
    sender.send("one").unwrap();
    sender.send("two").unwrap();
    drop(sender);
    assert!(body.frame().await.unwrap().is_ok());
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    assert!(matches!(body.frame().await, Some(Err(BodyError::Cut))));
    assert!(body.frame().await.is_none());
}

/// Where a body has no length, its end is a piece of it.
#[tokio::test]
async fn the_end_of_a_body_that_comes_after_its_tenure_is_not_told() {
    let scene = Scene::new();
    let layer = scene.layer(|lock| lock.handoff_timeout(SHORT));
    let old = scene.takes("a");
    let (sender, mut body) = taken(&layer, old).await;
    sender.send("all").unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    let new = scene.takes("b");
    assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
    drop(sender);
    assert!(!body.is_end_stream());
    assert!(matches!(body.frame().await, Some(Err(BodyError::Cut))));
}

#[tokio::test]
async fn a_body_that_is_complete_stays_whole_after_its_tenure() {
    for content in ["", "all"] {
        let scene = Scene::new();
        let layer = scene.layer(|lock| lock.handoff_timeout(SHORT));
        let old = scene.takes("a");
        let (hand, mut taken) = mpsc::unbounded_channel();
        let handler = service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
            hand.send(request.into_body()).unwrap();
            async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
        });
        drop(send(&layer, handler, with_body("a", old, Full::from(content))).await);
        let mut body = taken.recv().await.unwrap();
        let length = content.len() as u64;
        assert_eq!((body.is_end_stream(), body.size_hint().exact()), (length == 0, Some(length)));
        if length > 0 {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), content);
        }
        assert!(body.is_end_stream());
        let new = scene.takes("b");
        assert_eq!(verdict(&layer, "b", new).await, "503 handoff-timeout");
        assert!(body.frame().await.is_none(), "it was whole before");
    }
}

#[tokio::test]
async fn a_body_pauses_while_nobody_knows_whether_its_tenure_goes_on() {
    let scene = Scene::new();
    let layer =
        scene.layer(|lock| lock.max_age(SHORT * 2).confirm_timeout(SHORT).handoff_timeout(LONG));
    let revision = scene.takes("a");
    let (sender, mut body) = taken(&layer, revision).await;
    scene.store.pause();
    let paused = Instant::now();
    // A refusal alone may come earlier, where no watch has caught up yet.
    eventually("its news is old", async || {
        let refused = verdict(&layer, "a", revision).await == "503 unverifiable";
        (refused && paused.elapsed() > SHORT * 2).then_some(())
    })
    .await;
    sender.send("one").unwrap();
    let mut piece = body.frame();
    tokio::select! {
        biased;
        _ = &mut piece => panic!("nobody knows whether it may come"),
        () = std::future::ready(()) => {}
    }
    scene.store.resume();
    let piece = timeout(PATIENCE, piece).await.expect("it goes on");
    assert_eq!(piece.unwrap().unwrap().into_data().unwrap(), "one");
}

/// What dates all locks below a prefix together, and began anew, does not speak for one that was
/// read before.
#[tokio::test]
async fn a_body_that_pauses_has_its_lock_read_by_itself() {
    let scene = Scene::new();
    let max_age = Duration::from_millis(200);
    scene.store.put("/shards/3/lock", "a");
    let lock_of = |_: &Parts| LockKey::new(LOCK).ok();
    let below = scene.fence.locks_below("/shards/", lock_of).max_age(max_age).handoff_timeout(LONG);
    let layer = below.layer().unwrap();
    let revision = scene.takes("a");
    let upload = Upload::begin(&layer, "a", revision).await;
    upload.pieces.send("one").unwrap();
    upload.until(&["one"]).await;
    scene.store.hold_watches();
    scene.store.delete("/shards/3/lock"); // Nobody is told what is missing.
    let before = scene.store.calls().ranges_whole;
    eventually("the lock is read", async || {
        (scene.store.calls().ranges_whole > before).then_some(())
    })
    .await;
    upload.pieces.send("two").unwrap();
    upload.until(&["one", "two"]).await;
    drop(upload.pieces);
    assert_eq!(upload.answered.await.unwrap(), "read");
}

/// Its tenure is one that the restored store does not know of. News of the one before it are young
/// again, and nobody believes them.
#[tokio::test]
async fn a_body_does_not_go_on_by_the_news_of_a_store_that_went_back() {
    let scene = Scene::new();
    let max_age = Duration::from_millis(200);
    let layer = scene.layer(|lock| lock.max_age(max_age).handoff_timeout(LONG));
    let kept = scene.store.put(LOCK, "a");
    let lost = scene.takes("b");
    let upload = Upload::begin(&layer, "b", lost).await;
    scene.store.rewind_to(kept);
    eventually("that is found", async || {
        (verdict(&layer, "a", kept.get()).await == "503 store-regressed").then_some(())
    })
    .await;
    for _ in 0..2 {
        scene.store.put("/elsewhere", "x"); // Beyond what was seen.
    }
    upload.pieces.send("one").unwrap();
    let before = scene.store.calls().ranges_whole;
    eventually("there are news of that", async || {
        (scene.store.calls().ranges_whole >= before + 5).then_some(())
    })
    .await;
    assert_eq!(upload.log.lines(), [""; 0]);
    scene.takes("c");
    assert_eq!(upload.answered.await.unwrap(), "read");
    assert_eq!(upload.log.lines(), ["cut", "end"]);
}

#[tokio::test]
async fn a_body_that_pauses_for_too_long_is_cut() {
    let scene = Scene::new();
    let max_age = Duration::from_millis(200);
    let layer = scene.layer(|lock| lock.max_age(max_age).handoff_timeout(max_age));
    let revision = scene.takes("a");
    let upload = Upload::begin(&layer, "a", revision).await;
    let since = Instant::now();
    scene.store.pause();
    assert_eq!(upload.answered.await.unwrap(), "read");
    assert_eq!(upload.log.lines(), ["cut", "end"]);
    assert!(since.elapsed() >= max_age, "{:?}", since.elapsed());
}
