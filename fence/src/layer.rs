//! The layer: the way of a request. A handler is called only with a request that has entered the
//! gate of its lock. It does not know how a request gets in: that is `enter`.

use std::fmt;
use std::future::{poll_fn, ready};
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fencepost_locks::Timing;
use fencepost_policy::{FenceToken, LockKey, Rejection, Verdict};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::claim::{Claim, Guard, NamedLock};
use crate::discard::discard;
use crate::enter::{AtGate, QueuePlace, enter};
use crate::fence_call::{FENCE_PATH, FenceCall};
use crate::permit::WorkerPermit;
use crate::refusal::{AnswerForm, FENCE_DECISION, FENCE_REASON, Refusal};
use crate::request_body::RequestBody;
use crate::response_body::ResponseBody;
use crate::rules::{LockOf, Rules};
use crate::shared::Shared;

/// The verdict, which only a fence may write, as the reason and the decision.
const FENCE_VERDICT: HeaderName = HeaderName::from_static("fence-verdict");

/// Lets requests through only while their sender holds a lock.
/// [`LayerBuilder::layer`](crate::LayerBuilder::layer) makes it; clones are cheap. All layers of
/// one [`Fence`](crate::Fence) that name the same lock share its gate.
#[derive(Clone)]
pub struct FenceLayer(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) fence: Arc<Shared>,
    pub(crate) guard: Guard,
    /// Finds the lock of a request, unless it is the same for all.
    lock_of: Option<LockOf>,
    pub(crate) rules: Rules,
}

/// A service behind a fence: [`FenceLayer`] makes it.
#[derive(Debug, Clone)]
pub struct Fenced<S> {
    layer: FenceLayer,
    service: S,
}

/// In the extensions of each response that is a refusal, for middleware that counts or rewrites
/// refusals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Rejection,
    /// The lock that guards the request, where one could be told.
    pub lock: Option<LockKey>,
}

impl FenceLayer {
    pub(crate) fn new(
        fence: Arc<Shared>,
        guard: Guard,
        lock_of: Option<LockOf>,
        rules: Rules,
    ) -> FenceLayer {
        FenceLayer(Arc::new(Inner { fence, guard, lock_of, rules }))
    }

    /// A service that answers each request as a call of `POST /.well-known/fence`, for routers that
    /// send that path elsewhere.
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
    R: Body<Data: From<Bytes> + Send, Error: Send> + Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<R>>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let arrived = Instant::now();
        let next = self.service.clone(); // `self.service` is the one that is ready.
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
        R: Body<Data: Send, Error: Send> + Send + 'static,
    {
        let (mut head, body) = request.into_parts();
        if self.rules.answers_fence_call
            && head.method == Method::POST
            && head.uri.path() == FENCE_PATH
        {
            return Ok(self.answer_call(head, body, arrived).await.map(ResponseBody::own));
        }
        let (permit, place) = match self.let_in(&head, arrived).await {
            Ok(entered) => entered,
            Err(denial) => {
                return Ok(self.refuse(&head, body, denial, arrived).map(ResponseBody::own));
            }
        };
        head.extensions.insert(permit.clone());
        let body = RequestBody::new(body, permit.clone(), &self.rules);
        // The permit outlives the handler's future, also if this one is dropped halfway: what it
        // awaits is dropped first.
        let answer = service.call(Request::from_parts(head, body));
        let mut response = if self.rules.detached {
            in_turn(place, to_its_end(answer, permit.clone())).await?
        } else {
            in_turn(place, answer).await?
        };
        keep_out_foreign_verdicts(&mut response);
        Ok(ResponseBody::of(response, permit, self.rules.streaming))
    }

    /// Finds out what the request claims, and lets it in as soon as no request of an earlier tenure
    /// runs.
    ///
    /// # Errors
    /// Why the request is not let in.
    async fn let_in(
        &self,
        head: &Parts,
        arrived: Instant,
    ) -> Result<(WorkerPermit, Option<Box<QueuePlace<()>>>), Denial> {
        let lock = self.guard.lock(|| {
            let key = self.lock_of.as_ref().and_then(|lock_of| lock_of(head));
            key.ok_or(Rejection::LockNotAllowed)
        });
        let claim = self.claim(lock, &head.headers, arrived).await?;
        // Most requests that are refused need not come to the gate.
        if let Verdict::Reject(reason) = claim.judge(&self.rules.timing(arrived)) {
            return Err(Denial::of(&claim, reason));
        }
        let at = Arrived { layer: self, claim: &claim, arrived };
        let entered = enter(&at, |_: Option<()>| ready(Ok(()))).await;
        let entered = entered.map_err(|reason: Rejection| Denial::of(&claim, reason))?;
        let outer = head.extensions.get::<WorkerPermit>().cloned();
        let permit = WorkerPermit::new(
            Arc::clone(&self.fence),
            &claim.token,
            entered.entry,
            &self.rules,
            outer,
        );
        Ok((permit, entered.place))
    }

    /// The claim of a request to that lock. The token is looked at first: a request without one
    /// costs no read of the store.
    pub(crate) async fn claim(
        &self,
        lock: Result<NamedLock, Rejection>,
        headers: &HeaderMap,
        arrived: Instant,
    ) -> Result<Claim, Denial> {
        let denied = |reason, lock: Option<&LockKey>, token| Denial {
            reason,
            lock: lock.cloned(),
            token,
            retry_after: 1,
        };
        let lock = lock.map_err(|reason| denied(reason, None, None))?;
        let token = self
            .rules
            .headers
            .token(headers)
            .map_err(|reason| denied(reason, Some(lock.key()), None))?;
        let lock = match lock {
            NamedLock::Tracked(lock) => lock,
            NamedLock::Unread(key) => {
                let loaded = self.guard.load(&key, arrived + self.rules.confirm_timeout).await;
                loaded.map_err(|reason| denied(reason, Some(&key), Some(token.clone())))?
            }
        };
        Ok(Claim { token, lock })
    }

    /// Writes a refusal. What is left of the request's body is read and thrown away behind that.
    pub(crate) fn refuse<B>(
        &self,
        head: &Parts,
        body: B,
        denial: Denial,
        arrived: Instant,
    ) -> Response<Bytes>
    where
        B: Body + Send + 'static,
    {
        discard(head, body);
        let Denial { reason, lock, token, retry_after } = denial;
        let decision = self.fence.next_decision();
        tracing::debug!(
            %decision,
            lock = lock.as_ref().map(LockKey::as_str),
            owner = token.as_ref().map(|token| token.owner.as_bytes().escape_ascii().to_string()),
            revision = token.as_ref().map(|token| token.revision.get()),
            reason = reason.code(),
            waited = ?arrived.elapsed(),
            "request refused"
        );
        let stale_status = StatusCode::PRECONDITION_FAILED;
        let lock_key = lock.as_ref();
        let refusal = Refusal {
            reason,
            lock: lock_key,
            decision: &decision,
            stale_status,
            retry_after,
            detail: None,
        };
        let mut answer = refusal.answer(AnswerForm::of(&head.method, &head.headers));
        answer.extensions_mut().insert(Refused { reason, lock });
        answer
    }
}

/// Why a request, or a call of the fence, is refused.
pub(crate) struct Denial {
    reason: Rejection,
    /// As far as they are known.
    lock: Option<LockKey>,
    token: Option<FenceToken<HeaderValue>>,
    /// When to try again, where that helps, in seconds.
    retry_after: u64,
}

impl Denial {
    pub(crate) fn of(claim: &Claim, reason: Rejection) -> Denial {
        let retry_after = if reason == Rejection::HandoffTimeout { claim.retry_after() } else { 1 };
        Denial {
            reason,
            lock: Some(claim.lock.key().clone()),
            token: Some(claim.token.clone()),
            retry_after,
        }
    }
}

/// A request, or a call of the fence, before the gate of its lock.
pub(crate) struct Arrived<'c> {
    pub(crate) layer: &'c Inner,
    pub(crate) claim: &'c Claim,
    pub(crate) arrived: Instant,
}

impl AtGate for Arrived<'_> {
    type HeldUp = ();

    fn claim(&self) -> &Claim {
        self.claim
    }

    fn timing(&self) -> Timing {
        self.layer.rules.timing(self.arrived)
    }

    fn handoff_timeout(&self) -> Duration {
        self.layer.rules.handoff_timeout
    }

    fn confirm_timeout(&self) -> Duration {
        self.layer.rules.confirm_timeout
    }

    fn waiting_room(&self) -> &Arc<Semaphore> {
        &self.layer.fence.waiting_room
    }

    fn hold_up(&self) {}
}

/// Calls the handler. The next request in the queue enters once this one has begun: in the order of
/// arrival, whatever their threads.
async fn in_turn<F: Future>(mut place: Option<Box<QueuePlace<()>>>, answer: F) -> F::Output {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        let polled = answer.as_mut().poll(cx);
        place = None;
        polled
    })
    .await
}

/// Goes on when its client has left; the request counts until then.
async fn to_its_end<F>(answer: F, permit: WorkerPermit) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let work = tokio::spawn(async move { (answer.await, permit) });
    match work.await {
        Ok((answer, _permit)) => answer,
        Err(error) => match error.try_into_panic() {
            // As if the handler had not been detached.
            Ok(panic) => resume_unwind(panic),
            // The runtime ends, and this with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Takes the headers of a refusal off a handler's response, unless it is the refusal of another
/// fence within.
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
            Guard::Static(lock) => shown.field("lock", lock.key()),
            Guard::Templated(locks) => shown.field("locks", locks),
        };
        shown.field("rules", &self.0.rules).finish_non_exhaustive()
    }
}
