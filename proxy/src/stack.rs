//! The way of a request, on one screen.

use std::convert::Infallible;
use std::rc::Rc;

use http::{Request, Response};
use tower::{Service, ServiceBuilder, service_fn};

use crate::access_log::Logged;
use crate::active_config::ThreadInForce;
use crate::downstream::ClientBody;
use crate::in_place::pinned;
use crate::upstream::ResponseBody;
use crate::worker_permit::WorkerPermit;
use crate::{fencing, gate, routing};

/// The service of one worker thread. A request meets the layers from top to bottom, under the configuration that is in force
/// when it arrives.
///
/// Limits on heads, connections and idle time come before it, in [`downstream`](crate::downstream). What comes out of each layer
/// is a type that only this layer makes, and the upstream side sends nothing without the permit that the last one gets
/// from the lock's gate: a stack that leaves one out does not compile.
pub fn stack(
    in_force: Rc<ThreadInForce>,
) -> impl Service<
    Box<Request<ClientBody>>,
    Response = Response<Logged<ResponseBody<WorkerPermit>>>,
    Error = Infallible,
    Future: 'static,
> + Clone
+ 'static {
    ServiceBuilder::new()
        // Which route takes it, and which lock guards it there? Its answer leaves a line in the access log.
        .layer_fn(|next| {
            let in_force = Rc::clone(&in_force);
            layer(next, move |request, next| routing::route(in_force.share(), request, next))
        })
        // Which token does it present, and is that the holder's, as far as we know? Where we can't say, the store is asked.
        .layer_fn(|next| layer(next, fencing::authorize))
        // When all it waits for is there: is it still the holder's, and is the worker free of earlier holders' requests?
        // Boxed: each layer moves what comes next into its own room, which is as large then as all of it.
        .service(service_fn(|exchange| pinned(|| gate::forward(exchange))))
}

/// A layer that is an async function of the request and of what comes next.
fn layer<S, F, R, A, Fut>(next: S, call: F) -> impl Service<R, Response = A, Error = Infallible, Future = Fut> + Clone
where
    S: Clone,
    F: Fn(R, S) -> Fut + Clone,
    Fut: Future<Output = Result<A, Infallible>>,
{
    service_fn(move |request| call(request, next.clone()))
}
