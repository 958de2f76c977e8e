//! The layer: the way of a request, on one screen.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use fencepost_policy::{LockKey, Rejection};
use http::request::Parts;
use http::{HeaderName, Method, Request, Response, StatusCode};
use http_body::Body;
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::claim::{Claim, Denial};
use crate::discard::discard;
use crate::enter::Entry;
use crate::fence_call::{FENCE_PATH, FenceCall};
use crate::handoff::Turn;
use crate::refusal::{AnswerForm, FENCE_DECISION, FENCE_REASON, Refusal};
use crate::request_body::RequestBody;
use crate::response_body::ResponseBody;
use crate::rules::{Guard, Rules};
use crate::running::Running;
use crate::shared::{Shared, Waiting};

/// What only a fence says, beside the reason and the decision.
const FENCE_VERDICT: HeaderName = HeaderName::from_static("fence-verdict");

/// Lets requests through only while their sender holds a lock. Made by [`LayerBuilder::layer`](crate::LayerBuilder::layer);
/// cheap to clone. All layers of one [`Fence`](crate::Fence) that name the same lock share its gate.
#[derive(Clone)]
pub struct FenceLayer(pub(crate) Arc<Inner>);

/// Holds up the requests behind one that has entered, until it has begun.
type HeldTurn = Box<Turn<Waiting>>;

pub(crate) struct Inner {
    fence: Arc<Shared>,
    guard: Guard,
    rules: Rules,
}

/// A service behind a fence: [`FenceLayer`] makes it.
#[derive(Debug, Clone)]
pub struct Fenced<S> {
    layer: FenceLayer,
    service: S,
}

/// In the extensions of each response that is a refusal: for whoever counts them, or words them otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Rejection,
    /// The lock that guards the request, where one could be told.
    pub lock: Option<LockKey>,
}

impl FenceLayer {
    pub(crate) fn new(fence: Arc<Shared>, guard: Guard, rules: Rules) -> FenceLayer {
        FenceLayer(Arc::new(Inner { fence, guard, rules }))
    }

    /// A service that answers each request as a call of `POST /.well-known/fence`, for routers that bring that path elsewhere
    /// than to this layer.
    pub fn fence_call(&self) -> FenceCall {
        FenceCall::new(self.clone())
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, service: S) -> Fenced<S> {
        Fenced { layer: self.clone(), service }
    }
}

impl<S, B, R> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body + Send + 'static,
    R: Body + Send + 'static,
    R::Data: From<Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<R>>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let arrived = Instant::now();
        // The one that is ready is this.
        let next = self.service.clone();
        let service = std::mem::replace(&mut self.service, next);
        let layer = Arc::clone(&self.layer.0);
        Box::pin(async move { layer.serve(service, request, arrived).await })
    }
}

impl Inner {
    async fn serve<S, B, R>(
        &self,
        mut service: S,
        request: Request<B>,
        arrived: Instant,
    ) -> Result<Response<ResponseBody<R>>, S::Error>
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>>,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Body + Send + 'static,
        R: Body + Send + 'static,
    {
        let (mut head, body) = request.into_parts();
        if self.rules.answers_fence_call && head.method == Method::POST && head.uri.path() == FENCE_PATH {
            return Ok(self.answer_call(head, body, arrived).await.map(ResponseBody::own));
        }
        let (running, turn) = match self.let_in(&head, arrived).await {
            Ok(entered) => entered,
            Err(denial) => return Ok(self.refuse(&head, body, denial, arrived).map(ResponseBody::own)),
        };
        head.extensions.insert(running.clone());
        let body = RequestBody::new(body, running.clone(), &self.rules);
        // Until the end of this, `running` is here too: also when it is dropped halfway, since what is awaited is dropped first.
        let answer = service.call(Request::from_parts(head, body));
        let mut response = if self.rules.detached {
            in_turn(turn, to_its_end(answer, running.clone())).await?
        } else {
            in_turn(turn, answer).await?
        };
        keep_out_foreign_verdicts(&mut response);
        Ok(ResponseBody::of(response, running, self.rules.streaming))
    }

    /// Finds out what the request claims, and lets it in as soon as nothing of an earlier tenure runs.
    ///
    /// # Errors
    /// Why it is not let in.
    async fn let_in(&self, head: &Parts, arrived: Instant) -> Result<(Running, Option<HeldTurn>), Denial> {
        let claim = Claim::of(head, &self.guard, &self.rules, arrived).await?;
        let entered = self.entry(&claim).enter().await;
        let (admission, turn) = entered.map_err(|reason| claim.denied(reason))?;
        // From here on it is given back, whatever happens.
        let Claim { token, lock, .. } = claim;
        let outer = head.extensions.get::<Running>().cloned();
        let fence = Arc::clone(&self.fence);
        Ok((Running::new(fence, lock, &token, admission, &self.rules, outer), turn))
    }

    fn entry<'c>(&'c self, claim: &'c Claim) -> Entry<'c> {
        Entry { fence: &self.fence, claim, rules: &self.rules }
    }

    /// Waits until the caller's tenure has the worker to itself, and says so.
    pub(crate) async fn answer_call<B>(&self, head: Parts, body: B, arrived: Instant) -> Response<Bytes>
    where
        B: Body + Send + 'static,
    {
        let closed = async {
            let claim = Claim::of_call(&head.headers, &self.guard, &self.rules, arrived).await?;
            let closed = self.entry(&claim).close_door().await;
            closed.map_err(|reason| claim.denied(reason))
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

    /// Says why a request is not let in. What is left of its body is read and thrown away behind that.
    fn refuse<B>(&self, head: &Parts, body: B, denial: Denial, arrived: Instant) -> Response<Bytes>
    where
        B: Body + Send + 'static,
    {
        discard(head, body);
        let Denial { reason, lock, token, retry_after, error } = denial;
        let decision = self.fence.next_decision();
        tracing::debug!(
            %decision,
            lock = lock.as_ref().map(LockKey::as_str),
            owner = token.as_ref().map(|token| token.owner.as_bytes().escape_ascii().to_string()),
            revision = token.as_ref().map(|token| token.revision.get()),
            reason = reason.code(),
            error = error.as_ref().map(|error| error as &dyn Error),
            waited = ?arrived.elapsed(),
            "request refused"
        );
        let stale_status = StatusCode::PRECONDITION_FAILED;
        let lock_key = lock.as_ref();
        let refusal = Refusal { reason, lock: lock_key, decision: &decision, stale_status, retry_after, detail: None };
        let mut answer = refusal.answer(AnswerForm::of(&head.method, &head.headers));
        answer.extensions_mut().insert(Refused { reason, lock });
        answer
    }
}

/// Calls the handler. Who waits for its turn is next when it has been called and has begun: in the order of arrival, whatever their threads.
async fn in_turn<F: Future>(mut turn: Option<HeldTurn>, answer: F) -> F::Output {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        let polled = answer.as_mut().poll(cx);
        turn = None;
        polled
    })
    .await
}

/// Goes on when nobody waits for it any more; its request counts until then.
async fn to_its_end<F>(answer: F, running: Running) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let work = tokio::spawn(async move { (answer.await, running) });
    match work.await {
        Ok((answer, _running)) => answer,
        Err(error) => match error.try_into_panic() {
            // It is for whoever would have had it otherwise.
            Ok(panic) => resume_unwind(panic),
            // The runtime ends, and this with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// What a client takes for a refusal is one: a handler does not get to say it, another fence within does.
fn keep_out_foreign_verdicts<R>(response: &mut Response<R>) {
    if response.extensions().get::<Refused>().is_none() {
        for name in [FENCE_REASON, FENCE_DECISION, FENCE_VERDICT] {
            response.headers_mut().remove(name);
        }
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("FenceLayer");
        match &self.0.guard {
            Guard::One(lock) => shown.field("lock", lock.key()),
            Guard::Below { locks, .. } => shown.field("locks", locks),
        };
        shown.field("rules", &self.0.rules).finish_non_exhaustive()
    }
}
