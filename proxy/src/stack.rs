//! The way of a request, on one screen.

use std::convert::Infallible;
use std::rc::Rc;

use http::{Request, Response};
use tower::{Service, service_fn};

use crate::access_log::{Logged, Pending, logged};
use crate::active_config::{ThreadInForce, ThreadShare};
use crate::in_place::pinned;
use crate::panics::{Panicked, contained};
use crate::recording::Answer;
use crate::refusal::Failure;
use crate::request_context::{InFlight, RequestContext};
use crate::server::ClientBody;
use crate::upstream::ResponseBody;
use crate::{fencing, gate, routing};

/// The service of one worker thread. Each request goes its way under the configuration that is in
/// force when it arrives.
///
/// Limits on heads, connections and idle time come before it, in [`downstream`](crate::server).
pub fn stack(
    in_force: Rc<ThreadInForce>,
) -> impl Service<
    Box<Request<ClientBody>>,
    Response = Response<Logged<ResponseBody>>,
    Error = Infallible,
    Future: 'static,
> + Clone
+ 'static {
    service_fn(move |request| serve(in_force.share(), request))
}

/// Answers a request, leaves a line in the access log, and contains panics.
async fn serve(
    share: Rc<ThreadShare>,
    request: Box<Request<ClientBody>>,
) -> Result<Response<Logged<ResponseBody>>, Infallible> {
    let context = Rc::new(RequestContext::new(share, &request));
    let pending = Pending::of(&context);
    let answer = match contained(forward(&context, request)).await {
        Ok(Ok(answer) | Err(answer)) => answer,
        Err(Panicked) => context.panicked(),
    };
    Ok(logged(*answer, pending))
}

/// A request takes these steps from top to bottom; each may answer it. What comes out of each is a
/// type that only this step makes, and the upstream side sends nothing without the permit that the
/// last one gets from the lock's gate: a way that leaves one out does not compile.
async fn forward(
    context: &Rc<RequestContext>,
    mut request: Box<Request<ClientBody>>,
) -> Result<Answer, Answer> {
    // Which route takes it, and which lock guards it there?
    let lock = routing::route(context, &mut request).await?;
    let connection = request.body().connection();
    let place = connection.place_of_request(context.client);
    let place = place.ok_or_else(|| context.fail(Failure::TooManyRequests))?;
    let in_flight = InFlight::new(Rc::clone(context.counts()), connection.under_way(), place);
    // Which token does it present, and is that the holder's, as far as we know? Where we can't say,
    // the store is asked.
    let authorization = fencing::authorize(context, lock, &mut request).await?;
    // When all it waits for is there: is it still the holder's, and is the worker free of earlier
    // holders' requests? Boxed: this has room for what comes next otherwise, for a request too that
    // is refused.
    pinned(|| gate::forward(context, in_flight, authorization, request)).await
}
