//! `POST /.well-known/fence`: a new holder closes the door behind its predecessor.
//! The call forwards nothing.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use fencepost_policy::Rejection;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use tokio::time::Instant;
use tower::Service;

use crate::claim::NamedLock;
use crate::enter::close_door;
use crate::layer::{Arrived, Denial, FenceLayer, Inner};

/// Where a layer answers the call that closes the door behind a predecessor: `POST` to this path.
pub const FENCE_PATH: &str = "/.well-known/fence";

/// Answers the call `POST /.well-known/fence`, wherever it is put: [`FenceLayer::fence_call`] makes
/// it.
///
/// 204 means that no request of an earlier tenure runs or will be let in; a new master calls it
/// before it reads the worker's state. The caller presents its token as with any request, and
/// `Fence-Lock` where the layer finds locks in requests.
#[derive(Debug, Clone)]
pub struct FenceCall {
    layer: FenceLayer,
}

impl FenceCall {
    pub(crate) fn new(layer: FenceLayer) -> FenceCall {
        FenceCall { layer }
    }
}

impl<B: Body + Send + 'static> Service<Request<B>> for FenceCall {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let arrived = Instant::now();
        let layer = Arc::clone(&self.layer.0);
        let (head, body) = request.into_parts();
        Box::pin(async move { Ok(layer.answer_call(head, body, arrived).await.map(Full::new)) })
    }
}

impl Inner {
    /// The lock of a call of the fence: the call names it, unless there is only one.
    fn lock_of_call(&self, headers: &HeaderMap) -> Result<NamedLock, Rejection> {
        let is_named = headers.contains_key(&self.rules.headers.lock);
        let named = if is_named { Some(self.rules.headers.lock(headers)?) } else { None };
        match (self.guard.static_lock(), named) {
            (Some(lock), Some(named)) if !lock.key().is_presented_as(named) => {
                Err(Rejection::LockNotAllowed)
            }
            // As it is: an encoded name may be a key of its own here, because nobody knows
            // beforehand which keys there are.
            (_, named) => self.guard.lock(|| named.ok_or(Rejection::LockNotAllowed)),
        }
    }

    /// Waits until the caller's tenure has the worker to itself, and says so.
    pub(crate) async fn answer_call<B>(
        &self,
        head: Parts,
        body: B,
        arrived: Instant,
    ) -> Response<Bytes>
    where
        B: Body + Send + 'static,
    {
        let closed = async {
            let claim =
                self.claim(self.lock_of_call(&head.headers), &head.headers, arrived).await?;
            let closed = close_door(&Arrived { layer: self, claim: &claim, arrived }).await;
            closed.map_err(|reason| Denial::of(&claim, reason))
        };
        match closed.await {
            Ok(()) => {
                let mut answer = Response::new(Bytes::new());
                *answer.status_mut() = StatusCode::NO_CONTENT;
                answer
            }
            Err(denial) => self.refuse(&head, body, denial, arrived),
        }
    }
}
