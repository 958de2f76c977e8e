//! `POST /.well-known/fence`: has the proxy wait until nothing of an earlier holder can reach the
//! worker any more.

use std::fmt;
use std::time::Duration;

use crate::{Action, Over, Refusal, Tenure};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use tokio::time::{sleep, timeout};

use super::console::Console;
use super::exit::with_causes;
use super::header_names::HeaderNames;
use super::proxy_address::ProxyAddress;
use super::proxy_link::{ProxyLink, TlsRefusal};

/// Where a proxy takes the call.
const PATH: &str = "/.well-known/fence";

/// How long one answer may take: longer than the proxy itself waits unless it was configured to
/// wait for longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// How long to wait before the next call, unless the proxy says how long.
const PAUSE: Duration = Duration::from_secs(1);

/// What it may say: the lock is in our hands meanwhile, and nobody is to be asked without a pause.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How long it may take to tell more than its reason, and how much of that is read.
const DETAIL_WITHIN: Duration = Duration::from_secs(1);
const DETAIL_BYTES_MAX: usize = 4096;

/// The proxy before the worker.
#[derive(Debug)]
pub(super) struct FenceCall {
    link: ProxyLink,
    names: HeaderNames,
}

/// Why the proxy does not fence for this tenure, and will not.
#[derive(Debug, thiserror::Error)]
pub(super) enum FenceCallError {
    /// The proxy refuses this tenure, and would refuse it again.
    #[error("--fence {proxy} does not fence for this lock: {refusal}{detail}")]
    Refused { proxy: String, refusal: Refusal, detail: String },
    /// The answer is not one of fencepost: something else may listen there.
    #[error("--fence {proxy} does not fence: it answered {status} to POST {PATH}")]
    Unexpected { proxy: String, status: StatusCode },
    /// The peer is not the proxy that is meant, or does not accept our certificate.
    #[error("--fence {proxy}: no TLS: {refusal}")]
    Tls { proxy: String, refusal: TlsRefusal },
    /// The tenure is over.
    #[error("the lock was lost: {0}")]
    Over(Over),
}

impl FenceCall {
    pub(super) fn at(link: ProxyLink, names: &HeaderNames) -> FenceCall {
        FenceCall { link, names: names.clone() }
    }

    /// Which proxy it is.
    pub(super) fn address(&self) -> &ProxyAddress {
        &self.link.address
    }

    /// Asks for it until it is done: for as long as the proxy can't do it yet, or does not answer.
    ///
    /// # Cancel safety
    /// May be given up at any time: the call changes nothing but what the proxy knows.
    pub(super) async fn close(
        &self,
        tenure: &Tenure,
        console: &Console,
    ) -> Result<(), FenceCallError> {
        let mut said = String::new();
        loop {
            let (why, pause) = match timeout(ANSWER_WITHIN, self.ask(tenure)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Asked::Final(error))) => return Err(after_a_loss(error, tenure).await),
                Ok(Err(Asked::Again { why, pause })) => (why, pause),
                Err(_) => (format!("no answer within {ANSWER_WITHIN:?}"), PAUSE),
            };
            // Each reason once.
            if why != said {
                console.print(format_args!("waiting for {self}: {why}; asking again in {pause:?}"));
                said = why;
            }
            sleep(pause).await;
        }
    }

    async fn ask(&self, tenure: &Tenure) -> Result<(), Asked> {
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.link.address.uri(PATH).expect("it is a path");
        let stamped = self.names.stamp(tenure).stamp(&mut request);
        stamped.map_err(|over| Asked::Final(FenceCallError::Over(over)))?;
        let answered = self.link.client(tenure.standing()).request(request).await;
        let (head, body) = match answered {
            Ok(answer) => answer.into_parts(),
            Err(error) => {
                return Err(match TlsRefusal::behind(&error) {
                    Some(refusal) => {
                        Asked::Final(FenceCallError::Tls { proxy: self.to_string(), refusal })
                    }
                    None => Asked::Again { why: with_causes(&error), pause: PAUSE },
                });
            }
        };
        let (status, pause) = (head.status, pause_after(&head.headers));
        let refusal = Refusal::of(status, &head.headers);
        let detail = if refusal.is_some() { detail_of(body).await } else { None };
        match (status, refusal, detail) {
            (StatusCode::NO_CONTENT, None, _) => Ok(()),
            (status, None, _) if speaks_for_another(status) => {
                Err(Asked::Again { why: format!("it answered {status}"), pause })
            }
            (status, None, _) => {
                Err(Asked::Final(FenceCallError::Unexpected { proxy: self.to_string(), status }))
            }
            (_, Some(refusal), _) if refusal.action == Action::Retry => {
                Err(Asked::Again { why: refusal.reason.to_string(), pause })
            }
            (_, Some(refusal), detail) => {
                let detail =
                    detail.map(|detail| format!(" (it says: {detail})")).unwrap_or_default();
                Err(Asked::Final(FenceCallError::Refused {
                    proxy: self.to_string(),
                    refusal,
                    detail,
                }))
            }
        }
    }
}

/// Whether an answer that is not fencepost's is one for a proxy that is not there, by what stands
/// before it.
fn speaks_for_another(status: StatusCode) -> bool {
    [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT]
        .contains(&status)
}

/// How long to wait before the next call, as an answer says it.
fn pause_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.map_or(PAUSE, |seconds| Duration::from_secs(seconds).clamp(PAUSE_MIN, PAUSE_MAX))
}

/// Why it is not closed, if the tenure is over: the proxy may have heard of that first, and has
/// refused what was a holder's no more. If this side hears nothing of it in the time of a renewal,
/// there is another reason.
async fn after_a_loss(error: FenceCallError, tenure: &Tenure) -> FenceCallError {
    let FenceCallError::Refused { refusal, .. } = &error else { return error };
    match refusal.action {
        Action::Stop | Action::Acquire | Action::RefreshToken => {
            timeout(tenure.ttl() / 2, tenure.lost()).await.map_or(error, FenceCallError::Over)
        }
        Action::Fix | Action::Retry => error,
    }
}

/// The sentence that helps in the problem document of a refusal, as far as it is text for a
/// terminal.
async fn detail_of(body: Incoming) -> Option<String> {
    let whole =
        timeout(DETAIL_WITHIN, Limited::new(body, DETAIL_BYTES_MAX).collect()).await.ok()?.ok()?;
    let problem: serde_json::Value = serde_json::from_slice(&whole.to_bytes()).ok()?;
    let detail = problem.get("detail")?.as_str()?;
    Some(detail.chars().filter(|character| !character.is_control()).collect())
}

/// What becomes of one call that did not do it.
enum Asked {
    Again { why: String, pause: Duration },
    Final(FenceCallError),
}

impl fmt::Display for FenceCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_how_long_to_wait_within_bounds() {
        let pause = |said: &'static str| {
            pause_after(&HeaderMap::from_iter([(RETRY_AFTER, said.parse().unwrap())]))
        };
        assert_eq!(pause_after(&HeaderMap::new()), PAUSE);
        for (said, expected) in [
            ("7", Duration::from_secs(7)),
            ("0", PAUSE_MIN),
            ("3600", PAUSE_MAX),
            ("18446744073709551615", PAUSE_MAX),
            ("Wed, 21 Oct 2026 07:28:00 GMT", PAUSE),
        ] {
            assert_eq!(pause(said), expected, "{said}");
        }
    }
}
