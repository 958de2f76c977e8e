//! A lock in memory, a fence over it, and handlers that do what a test says.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::{
    Fence, FenceLayer, LayerBuilder, MemoryStore, RequestBody, ResponseBody, WorkerPermit,
};
use fencepost_tests::{Latch, PATIENCE};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt};

/// The lock of these tests.
pub(crate) const LOCK: &str = "/shards/2/lock";

/// A time that no test waits for.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Long enough for what must happen at once, short enough to wait for.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

pub(crate) struct Scene {
    pub(crate) store: MemoryStore,
    pub(crate) fence: Fence,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let store = MemoryStore::new();
        let fence = Fence::in_memory(&store).unwrap();
        Scene { store, fence }
    }

    /// Has that owner take the lock from its holder; returns the revision of the tenure.
    pub(crate) fn takes(&self, owner: &'static str) -> u64 {
        self.store.put(LOCK, owner).get()
    }

    /// Works like [`Scene::takes`], behind a request that runs; returns when the fence knows of it.
    pub(crate) async fn is_known_to_take(&self, owner: &'static str) -> u64 {
        let revision = self.takes(owner);
        let waited = verdict(&self.impatient_layer(), owner, revision).await;
        assert_eq!(waited, "503 handoff-timeout");
        revision
    }

    /// Works like [`Scene::takes`], for another lock.
    pub(crate) fn takes_key(&self, key: &'static str, owner: &'static str) -> u64 {
        self.store.put(key, owner).get()
    }

    pub(crate) fn layer(&self, rules: impl FnOnce(LayerBuilder) -> LayerBuilder) -> FenceLayer {
        rules(self.fence.lock(LOCK)).layer().unwrap()
    }

    /// A layer whose requests don't wait long for earlier tenures.
    pub(crate) fn impatient_layer(&self) -> FenceLayer {
        self.layer(|lock| lock.handoff_timeout(SHORT))
    }
}

/// Brings a request to its place at the barrier.
pub(crate) async fn waits_by_now<F: Future<Output: fmt::Debug> + Unpin>(request: &mut F) {
    let answered =
        std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *request).poll(context)));
    assert!(answered.await.is_pending(), "it does not wait");
}

/// What a handler has done, in order.
#[derive(Clone, Default, Debug)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, line: impl fmt::Display) {
        self.0.lock().unwrap().push(line.to_string());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A door before which a handler waits.
#[derive(Clone, Default, Debug)]
pub(crate) struct Door {
    pub(crate) reached: Latch,
    pub(crate) open: Latch,
}

impl Door {
    pub(crate) async fn pass(&self) {
        self.reached.open();
        self.open.opened().await;
    }
}

/// The head of a request under that token, without a body.
pub(crate) fn request(owner: &str, revision: u64) -> Request<Full<Bytes>> {
    with_body(owner, revision, Full::default())
}

pub(crate) fn with_body<B>(owner: &str, revision: u64, body: B) -> Request<B> {
    Request::post("/apply")
        .header("fence-owner", owner)
        .header("fence-revision", revision)
        .body(body)
        .unwrap()
}

/// The guard that a handler gets.
pub(crate) fn running<B>(request: &Request<B>) -> WorkerPermit {
    request.extensions().get::<WorkerPermit>().expect("the layer puts it there").clone()
}

/// Answers at once.
pub(crate) async fn answer<B>(
    _: Request<RequestBody<B>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("done")))
}

/// Sends one request through the layer to that handler, and waits for the head of the response.
pub(crate) async fn send<S, B, R>(
    layer: &FenceLayer,
    handler: S,
    request: Request<B>,
) -> Response<ResponseBody<R>>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    R: Body<Data = Bytes, Error: Send> + Send + 'static,
{
    timeout(PATIENCE, layer.layer(handler).oneshot(request))
        .await
        .expect("an answer in time")
        .unwrap()
}

/// The status of what is answered and why, if it is refused.
pub(crate) fn outcome<R>(response: &Response<R>) -> String {
    let status = response.status().as_u16();
    match response.headers().get("fence-reason") {
        Some(reason) => format!("{status} {}", reason.to_str().unwrap()),
        None => status.to_string(),
    }
}

/// What becomes of a request under that token, which is answered at once if it is let in.
pub(crate) async fn verdict(layer: &FenceLayer, owner: &str, revision: u64) -> String {
    let handler = tower::service_fn(answer);
    outcome(&send(layer, handler, request(owner, revision)).await)
}

/// The text of a body.
pub(crate) async fn text<R>(response: Response<R>) -> String
where
    R: Body<Data = Bytes>,
    R::Error: fmt::Debug,
{
    let bytes = timeout(PATIENCE, response.into_body().collect())
        .await
        .expect("the body in time")
        .unwrap()
        .to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}
