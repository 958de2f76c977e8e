//! A tower layer that puts a tenure on requests, and refuses to send them once it is over.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use fencepost_policy::{LockKey, Owner, Revision, percent_encoded};
use futures_util::future::{Either, FutureExt, Map};
use http::{HeaderName, HeaderValue, Request, Response};
use tokio::sync::watch;
use tower::{Layer, Service};

use crate::clock::BootInstant;
use crate::refusal::Refusal;
use crate::standing::{Over, Standing};

const FENCE_OWNER: HeaderName = HeaderName::from_static("fence-owner");
const FENCE_REVISION: HeaderName = HeaderName::from_static("fence-revision");
const FENCE_LOCK: HeaderName = HeaderName::from_static("fence-lock");

/// Puts the headers of a tenure on each request ([`Tenure::stamp`](crate::Tenure::stamp)). Cheap to
/// clone.
///
/// ```no_run
/// use std::time::Duration;
///
/// use fencepost_hold::{Action, Etcd, Lock, StampError};
/// use http::{Request, Response};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let etcd = Etcd::at(["http://127.0.0.1:2379"])?;
/// let lock = Lock::builder("/shards/2/lock", "shard-1").build(&etcd)?;
/// let tenure = lock.acquire().await?;
/// // Any HTTP client that is a tower service.
/// let client = service_fn(|_: Request<String>| async { Ok::<_, std::io::Error>(Response::new(String::new())) });
/// let mut worker = ServiceBuilder::new().layer(tenure.stamp()).service(client);
///
/// match worker.ready().await?.call(Request::post("/shards/2/apply").body("write".to_owned())?).await {
///     Ok(answer) => println!("the worker says {}", answer.status()),
///     // Not sent at all: take the lock again.
///     Err(StampError::TenureOver(over)) => println!("stop: {over}"),
///     Err(StampError::Refused(refusal)) => match refusal.action {
///         Action::Retry => tokio::time::sleep(refusal.retry_after.unwrap_or(Duration::from_secs(1))).await,
///         _ => println!("stop: {refusal}"),
///     },
///     // Whether the worker got it is not known.
///     Err(StampError::Service(error)) => println!("no answer: {error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StampLayer {
    headers: [(HeaderName, HeaderValue); 2],
    /// Only on routes that let the caller choose the lock.
    lock: Option<(HeaderName, HeaderValue)>,
    key: LockKey,
    standing: watch::Receiver<Standing>,
}

/// A service whose requests carry a tenure: [`StampLayer`] makes it.
#[derive(Debug, Clone)]
pub struct Stamp<S> {
    layer: StampLayer,
    service: S,
}

/// Why a stamped request has no answer of the worker.
#[derive(Debug, thiserror::Error)]
pub enum StampError<E> {
    /// The tenure is over: the request was not sent.
    #[error("not sent, since the tenure is over")]
    TenureOver(#[source] Over),
    /// fencepost refused it: nothing of it has reached the worker.
    #[error(transparent)]
    Refused(Refusal),
    /// The service's own error.
    #[error(transparent)]
    Service(E),
}

impl StampLayer {
    pub(crate) fn new(
        key: LockKey,
        owner: &Owner,
        revision: Revision,
        standing: watch::Receiver<Standing>,
    ) -> StampLayer {
        let visible =
            |text: String| HeaderValue::try_from(text).expect("visible ASCII is a header's value");
        let headers = [
            (FENCE_OWNER, visible(owner.to_string())),
            (FENCE_REVISION, HeaderValue::from(revision.get())),
        ];
        StampLayer { headers, lock: None, key, standing }
    }

    /// With other names of the headers, as the route's `owner_header` and `revision_header` have
    /// them.
    #[must_use]
    pub fn named(mut self, owner: HeaderName, revision: HeaderName) -> StampLayer {
        self.headers[0].0 = owner;
        self.headers[1].0 = revision;
        self
    }

    /// With `Fence-Lock` as well, for routes that let the caller choose the lock, and for `POST
    /// /.well-known/fence`. A key that is no header's value (control characters, a space at an end)
    /// is percent-encoded.
    #[must_use]
    pub fn with_lock(self) -> StampLayer {
        self.with_lock_in(FENCE_LOCK)
    }

    /// Adds the lock in the given header, for routes with another `lock_header`. See
    /// [`with_lock`](Self::with_lock).
    #[must_use]
    pub fn with_lock_in(mut self, lock: HeaderName) -> StampLayer {
        self.lock = Some((lock, presented(self.key.as_str())));
        self
    }

    /// Puts the headers on a request, in place of any that it has, unless the tenure is over.
    ///
    /// # Errors
    /// Why it is over.
    pub fn stamp<B>(&self, request: &mut Request<B>) -> Result<(), Over> {
        match *self.standing.borrow() {
            Standing::Held { until } if BootInstant::now() < until => {}
            // The keeper is about to say so.
            Standing::Held { .. } => return Err(Over::NotRenewed),
            Standing::Over(over) => return Err(over),
        }
        for (name, value) in self.headers.iter().chain(&self.lock) {
            request.headers_mut().insert(name, value.clone());
        }
        Ok(())
    }
}

/// A lock's name as it goes into a header: as it is if it gets there unchanged, which names it
/// wherever it is looked at.
fn presented(key: &str) -> HeaderValue {
    let has_blank_end = key.starts_with([' ', '\t']) || key.ends_with([' ', '\t']);
    HeaderValue::try_from(key).ok().filter(|_| !has_blank_end).unwrap_or_else(|| {
        let encoded: String = percent_encoded(key.as_bytes()).map(char::from).collect();
        HeaderValue::try_from(encoded).expect("visible ASCII is a header's value")
    })
}

impl<S> Layer<S> for StampLayer {
    type Service = Stamp<S>;

    fn layer(&self, service: S) -> Stamp<S> {
        Stamp { layer: self.clone(), service }
    }
}

impl<S, B, R> Service<Request<B>> for Stamp<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = StampError<S::Error>;
    type Future = Answer<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context).map_err(StampError::Service)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.layer.stamp(&mut request) {
            Ok(()) => {
                Either::Left(self.service.call(request).map(without_refusal as Judge<R, S::Error>))
            }
            Err(over) => Either::Right(ready(Err(StampError::TenureOver(over)))),
        }
    }
}

/// The answer to a stamped request.
pub type Answer<F, R, E> = Either<Map<F, Judge<R, E>>, Ready<Stamped<R, E>>>;

type Stamped<R, E> = Result<Response<R>, StampError<E>>;
type Judge<R, E> = fn(Result<Response<R>, E>) -> Stamped<R, E>;

fn without_refusal<R, E>(answer: Result<Response<R>, E>) -> Stamped<R, E> {
    let answer = answer.map_err(StampError::Service)?;
    match Refusal::of(answer.status(), answer.headers()) {
        Some(refusal) => Err(StampError::Refused(refusal)),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::standing::Ledger;

    fn layer(owner: &str, ledger: &Ledger) -> StampLayer {
        let key = LockKey::new("/shards/2/lock").unwrap();
        StampLayer::new(
            key,
            &Owner::new(owner.as_bytes()),
            Revision::new(7).unwrap(),
            ledger.subscribe(),
        )
    }

    fn held() -> Ledger {
        Ledger::held_until(BootInstant::now() + Duration::from_secs(3600))
    }

    /// Sends a request through the layer to a service that answers with the headers it got;
    /// `answer` is more of them.
    async fn send(
        layer: StampLayer,
        request: Request<()>,
        answer: &[(&'static str, &'static str)],
    ) -> Result<Response<()>, StampError<Infallible>> {
        let echo = service_fn(|request: Request<()>| async move {
            let mut response = Response::new(());
            *response.headers_mut() = request.headers().clone();
            for (name, value) in answer {
                response.headers_mut().insert(*name, HeaderValue::from_static(value));
            }
            Ok::<_, Infallible>(response)
        });
        layer.layer(echo).oneshot(request).await
    }

    #[tokio::test]
    async fn a_request_goes_out_with_its_tenure_whatever_it_said_before() {
        let request = Request::get("/")
            .header("fence-owner", "x")
            .header("fence-owner", "y")
            .header("fence-revision", "1");
        let sent = send(layer("shärd", &held()).with_lock(), request.body(()).unwrap(), &[])
            .await
            .unwrap();
        let values = |name| {
            sent.headers()
                .get_all(name)
                .iter()
                .map(|value| value.to_str().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(values("fence-owner"), ["sh%C3%A4rd"]);
        assert_eq!(values("fence-revision"), ["7"]);
        assert_eq!(values("fence-lock"), ["/shards/2/lock"]);
    }

    #[tokio::test]
    async fn the_headers_may_have_other_names() {
        let named = layer("a", &held())
            .named(HeaderName::from_static("x-owner"), HeaderName::from_static("x-revision"));
        let sent = send(named, Request::new(()), &[]).await.unwrap();
        assert_eq!(sent.headers()["x-owner"], "a");
        assert_eq!(sent.headers()["x-revision"], "7");
        assert_eq!(sent.headers().len(), 2);
        let named = layer("a", &held()).with_lock_in(HeaderName::from_static("x-lock"));
        let sent = send(named, Request::new(()), &[]).await.unwrap();
        assert_eq!(sent.headers()["x-lock"], "/shards/2/lock");
        assert_eq!(sent.headers().len(), 3);
    }

    #[test]
    fn a_lock_is_named_as_it_is_where_a_header_has_it_unchanged() {
        for (key, value) in [
            ("/shards/2/lock", "/shards/2/lock"),
            ("/ü x/lock", "/ü x/lock"),
            ("/a%20b", "/a%20b"),
            (" a", "%20a"),
            ("ü ", "%C3%BC%20"),
            ("\tü", "%09%C3%BC"),
            ("a\nb", "a%0Ab"),
        ] {
            assert_eq!(presented(key).as_bytes(), value.as_bytes(), "{key:?}");
        }
    }

    #[tokio::test]
    async fn nothing_is_sent_once_the_tenure_is_over_or_may_be() {
        let over = held();
        over.end(Over::KeyDeleted);
        for (ledger, why) in
            [(over, Over::KeyDeleted), (Ledger::held_until(BootInstant::now()), Over::NotRenewed)]
        {
            let sent = send(layer("a", &ledger), Request::new(()), &[]).await;
            assert!(matches!(sent, Err(StampError::TenureOver(found)) if found == why), "{sent:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_an_error_that_says_what_to_do() {
        let sent =
            send(layer("a", &held()), Request::new(()), &[("fence-reason", "replayed-tenure")])
                .await;
        let Err(StampError::Refused(refusal)) = sent else { panic!("{sent:?}") };
        assert_eq!(refusal.action, fencepost_policy::Action::RefreshToken);
    }
}
