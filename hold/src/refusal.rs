//! What fencepost says when it refuses a request, and what to do then.

use std::fmt;
use std::time::Duration;

use fencepost_policy::{Action, Rejection};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, StatusCode};

const FENCE_REASON: HeaderName = HeaderName::from_static("fence-reason");
const FENCE_DECISION: HeaderName = HeaderName::from_static("fence-decision");
const FENCE_VERDICT: HeaderName = HeaderName::from_static("fence-verdict");

/// fencepost refused the request: nothing of it has reached the worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("refused: {reason}{}", self.advice())]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// What to do now. [`Action::Stop`] means: stop working under this tenure.
    pub action: Action,
    /// The answer's status; 200 for gRPC.
    pub status: StatusCode,
    /// Under which id the refusal stands in fencepost's log.
    pub decision: Option<String>,
    /// When to send it again, where that may help.
    pub retry_after: Option<Duration>,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// One of the reasons that this version knows.
    Known(Rejection),
    /// Another, by its code: the proxy is newer than this crate.
    Other(String),
}

impl Refusal {
    /// The refusal that an answer is, by its status and headers; `None` if it is the worker's own.
    ///
    /// Only fencepost sets `Fence-Reason`: it drops what a worker sets.
    pub fn of(status: StatusCode, headers: &HeaderMap) -> Option<Refusal> {
        let code = headers.get(FENCE_REASON)?.to_str().ok()?;
        // In shadow mode a request is forwarded whatever the verdict is, and the verdict is told
        // beside the reason.
        if headers.contains_key(FENCE_VERDICT) {
            return None;
        }
        let known = Rejection::ALL.iter().copied().find(|rejection| rejection.code() == code);
        let (reason, action) = match known {
            Some(rejection) => (Reason::Known(rejection), rejection.action()),
            None => (Reason::Other(code.to_owned()), action_of_unknown(status)),
        };
        let text =
            |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let retry_after =
            text(RETRY_AFTER).and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        Some(Refusal {
            reason,
            action,
            status,
            decision: text(FENCE_DECISION).map(str::to_owned),
            retry_after,
        })
    }

    fn advice(&self) -> &'static str {
        match (&self.reason, self.action) {
            // The lock may be the sender's all the same.
            (Reason::Known(Rejection::IdentityMismatch), _) => {
                ": stop, the certificate of the connection is not for this owner"
            }
            (Reason::Other(_), Action::Stop) => ": stop",
            (_, Action::Fix) => ": correct the request",
            (_, Action::RefreshToken) => {
                ": send the revision of the present tenure, if the lock is still held"
            }
            (_, Action::Stop) => ": stop, somebody else holds the lock",
            (_, Action::Acquire) => ": acquire the lock first",
            (_, Action::Retry) => ": nothing was forwarded, send it again later",
        }
    }
}

/// What is surely right: to try again where the proxy says so, else to go on no further.
fn action_of_unknown(status: StatusCode) -> Action {
    match status {
        StatusCode::SERVICE_UNAVAILABLE => Action::Retry,
        StatusCode::BAD_REQUEST => Action::Fix,
        _ => Action::Stop,
    }
}

impl fmt::Display for Reason {
    /// The code, as in `Fence-Reason`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Known(rejection) => rejection.fmt(f),
            Reason::Other(code) => f.write_str(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn refusal(status: u16, headers: &[(&'static str, &'static str)]) -> Option<Refusal> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Refusal::of(StatusCode::from_u16(status).unwrap(), &headers.collect())
    }

    #[test]
    fn every_reason_of_the_proxy_is_known_with_its_action() {
        for rejection in Rejection::ALL {
            let found = refusal(412, &[("fence-reason", rejection.code())]).unwrap();
            assert_eq!(found.reason, Reason::Known(*rejection));
            assert_eq!(found.action, rejection.action());
        }
    }

    #[test]
    fn a_refusal_tells_its_decision_and_when_to_come_back() {
        let headers =
            [("fence-reason", "handoff-timeout"), ("fence-decision", "d-1"), ("retry-after", "3")];
        let found = refusal(503, &headers).unwrap();
        assert_eq!(
            (found.decision.as_deref(), found.retry_after),
            (Some("d-1"), Some(Duration::from_secs(3)))
        );
        assert_eq!(
            found.to_string(),
            "refused: handoff-timeout: nothing was forwarded, send it again later"
        );
    }

    #[test]
    fn a_reason_that_is_not_known_yet_stops_unless_the_status_says_otherwise() {
        for (status, action) in
            [(412, Action::Stop), (403, Action::Stop), (400, Action::Fix), (503, Action::Retry)]
        {
            let found = refusal(status, &[("fence-reason", "new-reason")]).unwrap();
            assert_eq!(
                (&found.reason, found.action),
                (&Reason::Other("new-reason".to_owned()), action)
            );
            assert!(!found.to_string().contains("somebody else"), "{found}");
        }
    }

    /// Who was told that somebody else holds the lock looked for that holder, and the certificate
    /// was another's.
    #[test]
    fn only_who_has_lost_the_lock_is_told_that_somebody_else_holds_it() {
        for rejection in Rejection::ALL {
            let said = refusal(412, &[("fence-reason", rejection.code())]).unwrap().to_string();
            let is_lost = matches!(rejection, Rejection::NotOwner | Rejection::StaleTenure);
            assert_eq!(said.ends_with(": stop, somebody else holds the lock"), is_lost, "{said}");
        }
    }

    #[test]
    fn an_answer_of_the_worker_is_no_refusal_nor_is_one_in_shadow_mode() {
        assert_eq!(refusal(412, &[]), None);
        assert_eq!(
            refusal(200, &[("fence-reason", "stale-tenure"), ("fence-verdict", "reject")]),
            None
        );
    }
}
