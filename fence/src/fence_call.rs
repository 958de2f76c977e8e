//! `POST /.well-known/fence`: a holder's way to say "close the door behind my predecessor".

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tokio::time::Instant;
use tower::Service;

use crate::layer::FenceLayer;

/// Where a layer answers the call that closes the door behind a predecessor: `POST` to this path.
pub const FENCE_PATH: &str = "/.well-known/fence";

/// Answers the call `POST /.well-known/fence`, wherever it is put: [`FenceLayer::fence_call`] makes it.
///
/// 204 means that no request of an earlier tenure runs or will be let in; a new master calls it before it reads the worker's
/// state. The caller presents its token as with any request, and `Fence-Lock` where the layer finds locks in requests.
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
