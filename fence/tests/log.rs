//! What a refusal leaves in the log. By itself, since where several threads have events, one's
//! subscriber may miss its own.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fencepost_fence::{Fence, LockKey, MemoryStore, RequestBody};
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Notes the errors of events.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl Subscriber for Errors {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Visit for Errors {
    fn record_error(&mut self, _: &Field, error: &(dyn Error + 'static)) {
        self.0.lock().unwrap().push(error.to_string());
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

#[tokio::test]
async fn why_a_lock_could_not_be_read_is_logged() {
    let errors = Errors::default();
    tracing::subscriber::set_global_default(errors.clone()).unwrap();
    let store = MemoryStore::new();
    store.pause();
    let fence = Fence::in_memory(&store).unwrap();
    let locks = fence.locks_below("/shards/", |_| LockKey::new("/shards/2/lock").ok());
    let layer = locks.confirm_timeout(Duration::from_millis(100)).layer().unwrap();
    let request = Request::post("/").header("fence-owner", "a").header("fence-revision", 1);
    let handler = service_fn(async |_: Request<RequestBody<Full<Bytes>>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let refused =
        layer.layer(handler).oneshot(request.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(refused.headers()["fence-reason"], "unverifiable");
    assert_eq!(*errors.0.lock().unwrap(), ["the lock could not be loaded"]);
}
