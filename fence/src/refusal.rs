//! Writes refusals. A refusal never shows the present owner or revision: a zombie must not learn
//! the token that would let it in.

mod meaning;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::{Action, LockKey, Rejection};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

pub use self::meaning::{explanation, grpc, statuses};
pub use crate::discard::read_out;

/// Why the request was refused, in one word: `Fence-Reason`.
pub const FENCE_REASON: HeaderName = HeaderName::from_static("fence-reason");
/// Under which id the refusal stands in the log: `Fence-Decision`.
pub const FENCE_DECISION: HeaderName = HeaderName::from_static("fence-decision");

/// How much is read of the rest of a refused request's body, and thrown away: clients that write
/// everything before they read see the refusal then, and not a reset.
pub const DISCARD_BYTES_MAX: u64 = 16 << 20;
/// How long that takes at most.
pub const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The fields of an answer of our own: room for them all is made at once.
const HEADERS: usize = 6;
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The form of an answer, as the client wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerForm {
    /// With a status and a problem document (RFC 9457).
    Problem,
    /// With the head of one only: the request was a HEAD.
    HeadOnly,
    /// As gRPC does: HTTP 200, and the status in headers that are trailers at once. With the media
    /// type, which is the request's for gRPC-Web: its clients read no other.
    Grpc(&'static str),
}

impl AnswerForm {
    /// The form that fits a request.
    pub fn of(method: &Method, headers: &HeaderMap) -> AnswerForm {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| grpc_kind(kind.as_bytes()));
        match kind {
            Some(kind) => AnswerForm::Grpc(kind),
            None if method == Method::HEAD => AnswerForm::HeadOnly,
            None => AnswerForm::Problem,
        }
    }
}

/// The media types of gRPC, each before those that begin it. A request's may go on with how
/// messages are written (`application/grpc+proto`).
const GRPC_KINDS: [&str; 5] = [
    "application/grpc-web-text+proto",
    "application/grpc-web-text",
    "application/grpc-web+proto",
    "application/grpc-web",
    "application/grpc",
];

/// The one of [`GRPC_KINDS`] with which a media type begins, if it is gRPC's.
fn grpc_kind(kind: &[u8]) -> Option<&'static str> {
    let begins = |known: &&str| {
        kind.get(..known.len()).is_some_and(|start| start.eq_ignore_ascii_case(known.as_bytes()))
    };
    GRPC_KINDS.into_iter().find(begins)
}

/// A refusal.
#[derive(Debug)]
pub struct Refusal<'a> {
    /// Why.
    pub reason: Rejection,
    /// The lock that guards the request, where one could be told.
    pub lock: Option<&'a LockKey>,
    /// The id it is known by: visible ASCII.
    pub decision: &'a str,
    /// The status of a superseded token on this route: 412, or 409 if the operator wants it.
    pub stale_status: StatusCode,
    /// When to try again, where that helps, in seconds.
    pub retry_after: u64,
    /// A sentence that helps more than the reason's own, where there is one.
    pub detail: Option<&'a str>,
}

impl Refusal<'_> {
    /// The answer. Nothing of the request reached the worker, and the answer says so.
    ///
    /// # Panics
    /// If the decision id is no text for a header.
    pub fn answer(&self, form: AnswerForm) -> Response<Bytes> {
        let (status, grpc_status) = statuses(self.reason, self.stale_status);
        let mut response = match form {
            AnswerForm::Grpc(kind) => grpc_answer(kind, grpc_status, self.reason.code()),
            AnswerForm::HeadOnly => problem_answer(status, Bytes::new()),
            AnswerForm::Problem => problem_answer(status, self.problem(status)),
        };
        let headers = response.headers_mut();
        headers.insert(FENCE_REASON, HeaderValue::from_static(self.reason.code()));
        headers.insert(FENCE_DECISION, decision_value(self.decision));
        if self.reason.action() == Action::Retry {
            headers.insert(RETRY_AFTER, HeaderValue::from(self.retry_after));
        }
        response
    }

    fn problem(&self, status: StatusCode) -> Bytes {
        let code = self.reason.code();
        let (title, explained) = explanation(self.reason);
        let detail = json_text(self.detail.unwrap_or(explained));
        let lock = self.lock.map(|lock| json_text(lock.as_str()));
        // Put together from pieces: `write!` would be a tenth of what a refusal costs.
        let pieces = [
            r#"{"type":"urn:fencepost:reason:"#,
            code,
            r#"","title":""#,
            title,
            r#"","status":"#,
            status.as_str(),
            r#","detail":""#,
            &detail,
            r#"","reason":""#,
            code,
            r#"","action":""#,
            self.reason.action().name(),
            if lock.is_some() { r#"","lock":""# } else { r#"","lock":null"# },
            lock.as_deref().unwrap_or_default(),
            if lock.is_some() { r#"","decision":""# } else { r#","decision":""# },
            self.decision,
            r#"","forwarded":false}"#,
        ];
        Bytes::from(pieces.concat())
    }
}

/// A decision's id as a header's value, never to be indexed by HPACK (RFC 7541, section 6.2.3): it
/// would not be found again, and all that were before it are compared with each new one, which is a
/// tenth of what a refusal costs over HTTP/2. `Debug` does not show it.
///
/// # Panics
/// If it is no text for a header.
pub fn decision_value(id: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(id).expect("a decision id is visible ASCII");
    value.set_sensitive(true);
    value
}

/// An answer of that status with that problem document; no cache is to keep it.
pub fn problem_answer(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().reserve(HEADERS);
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    response
}

/// An answer as gRPC has it: HTTP 200, and the status in headers that are trailers at once.
pub fn grpc_answer(kind: &'static str, status: u8, message: &'static str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(status)));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    headers.insert(CACHE_CONTROL, NO_STORE);
    response
}

/// What stands between the quotes of a JSON string (RFC 8259, section 7).
fn json_text(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            control if control < ' ' => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(control));
            }
            other => escaped.push(other),
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(reason: Rejection, form: AnswerForm) -> Response<Bytes> {
        let lock = LockKey::new("/shards/\"2\"/lock").unwrap();
        Refusal {
            reason,
            lock: Some(&lock),
            decision: "d-1",
            stale_status: StatusCode::PRECONDITION_FAILED,
            retry_after: 1,
            detail: None,
        }
        .answer(form)
    }

    #[test]
    fn every_refusal_has_the_status_and_body_of_the_contract() {
        for (reason, status, action) in [
            ("token-missing", 428, "refresh-token"),
            ("token-malformed", 400, "fix"),
            ("lock-not-allowed", 400, "fix"),
            ("identity-mismatch", 403, "stop"),
            ("not-owner", 412, "stop"),
            ("stale-tenure", 412, "stop"),
            ("replayed-tenure", 412, "refresh-token"),
            ("unknown-revision", 412, "refresh-token"),
            ("ahead-of-store", 412, "refresh-token"),
            ("no-owner", 412, "acquire"),
            ("not-yet-owner", 412, "acquire"),
            ("unverifiable", 503, "retry"),
            ("store-regressed", 503, "retry"),
            ("handoff-timeout", 503, "retry"),
            ("out-of-group", 503, "retry"),
            ("draining", 503, "retry"),
        ] {
            let rejection =
                *Rejection::ALL.iter().find(|rejection| rejection.code() == reason).unwrap();
            let response = refuse(rejection, AnswerForm::Problem);
            assert_eq!(response.status(), status, "{reason}");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            assert_eq!(response.headers()["cache-control"], "no-store");
            assert_eq!(response.headers()["fence-reason"], reason);
            assert_eq!(response.headers()["fence-decision"], "d-1");
            assert!(response.headers()["fence-decision"].is_sensitive(), "HPACK would index it");
            assert_eq!(response.headers().contains_key("retry-after"), status == 503, "{reason}");
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body["type"], format!("urn:fencepost:reason:{reason}"));
            assert_eq!(body["status"], status);
            assert_eq!(body["reason"], reason);
            assert_eq!(body["action"], action);
            assert_eq!(body["lock"], "/shards/\"2\"/lock");
            assert_eq!(body["decision"], "d-1");
            assert_eq!(body["forwarded"], false);
            assert!(body["title"].is_string() && body["detail"].is_string());
            assert_eq!(body.as_object().unwrap().len(), 9, "{body}");
        }
    }

    #[test]
    fn a_more_helpful_sentence_replaces_the_reasons_own() {
        for (detail, told) in [
            (Some("Look \"there\"."), "Look \"there\"."),
            (None, explanation(Rejection::NoOwner).1),
        ] {
            let (reason, stale_status) = (Rejection::NoOwner, StatusCode::CONFLICT);
            let refusal = Refusal {
                reason,
                lock: None,
                decision: "d-1",
                stale_status,
                retry_after: 1,
                detail,
            };
            let body: serde_json::Value =
                serde_json::from_slice(refusal.answer(AnswerForm::Problem).body()).unwrap();
            assert_eq!((&body["detail"], &body["lock"]), (&told.into(), &serde_json::Value::Null));
            assert_eq!((&body["status"], &body["reason"]), (&409.into(), &"no-owner".into()));
        }
    }

    #[test]
    fn a_grpc_request_is_refused_in_headers_alone() {
        for rejection in Rejection::ALL {
            let response = refuse(*rejection, AnswerForm::Grpc("application/grpc"));
            let expected = match statuses(*rejection, StatusCode::PRECONDITION_FAILED).0.as_u16() {
                400 => "3",
                403 => "7",
                503 => "14",
                _ => "9",
            };
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["content-type"], "application/grpc");
            assert_eq!(response.headers()["grpc-status"], expected);
            assert_eq!(response.headers()["fence-reason"], rejection.code());
            assert!(response.body().is_empty());
        }
    }

    #[test]
    fn grpc_is_told_by_its_content_type_in_any_spelling() {
        let form = |method: &Method, kind: &str| {
            AnswerForm::of(
                method,
                &HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap())]),
            )
        };
        for method in [Method::POST, Method::PUT, Method::GET, Method::HEAD] {
            let otherwise =
                if method == Method::HEAD { AnswerForm::HeadOnly } else { AnswerForm::Problem };
            for (kind, answered) in [
                ("application/grpc", "application/grpc"),
                ("application/grpc+proto", "application/grpc"),
                ("Application/gRPC; charset=utf-8", "application/grpc"),
                ("application/grpc-web", "application/grpc-web"),
                ("application/grpc-web+PROTO", "application/grpc-web+proto"),
                ("application/grpc-web+json", "application/grpc-web"),
                ("application/grpc-web-text", "application/grpc-web-text"),
                ("application/grpc-web-text+proto; x", "application/grpc-web-text+proto"),
            ] {
                assert_eq!(form(&method, kind), AnswerForm::Grpc(answered), "{method} {kind}");
            }
            for kind in ["application/json", "application/grp", "text/plain, application/grpc", ""]
            {
                assert_eq!(form(&method, kind), otherwise, "{method} {kind}");
            }
            assert_eq!(AnswerForm::of(&method, &HeaderMap::new()), otherwise);
        }
    }

    #[test]
    fn the_stale_status_may_be_409() {
        let refusal = |reason| Refusal {
            reason,
            lock: None,
            decision: "d-1",
            stale_status: StatusCode::CONFLICT,
            retry_after: 1,
            detail: None,
        };
        assert_eq!(refusal(Rejection::StaleTenure).answer(AnswerForm::Problem).status(), 409);
        assert_eq!(refusal(Rejection::TokenMissing).answer(AnswerForm::Problem).status(), 428);
    }
}
