//! What a refusal looks like, to the letter.

use std::collections::BTreeSet;

use fencepost_tests::Response;
use serde_json::Value;

use crate::store::Tenure;

/// Reason, status, gRPC status, action.
const REASONS: [(&str, u16, u16, &str); 16] = [
    ("token-missing", 428, 9, "refresh-token"),
    ("token-malformed", 400, 3, "fix"),
    ("lock-not-allowed", 400, 3, "fix"),
    ("identity-mismatch", 403, 7, "stop"),
    ("not-owner", 412, 9, "stop"),
    ("stale-tenure", 412, 9, "stop"),
    ("replayed-tenure", 412, 9, "refresh-token"),
    ("unknown-revision", 412, 9, "refresh-token"),
    ("ahead-of-store", 412, 9, "refresh-token"),
    ("no-owner", 412, 9, "acquire"),
    ("not-yet-owner", 412, 9, "acquire"),
    ("unverifiable", 503, 14, "retry"),
    ("store-regressed", 503, 14, "retry"),
    ("handoff-timeout", 503, 14, "retry"),
    ("out-of-group", 503, 14, "retry"),
    ("draining", 503, 14, "retry"),
];

/// Headers that a refusal may have.
const HEADERS: &str = "content-type content-length cache-control date connection fence-reason \
    fence-decision retry-after grpc-status grpc-message";

const FIELDS: [&str; 9] =
    ["type", "title", "status", "detail", "reason", "action", "lock", "decision", "forwarded"];

/// Why a request was refused; `None` if it was not.
pub(crate) fn reason(response: &Response) -> Option<&str> {
    response.header("fence-reason")
}

/// The request was refused for that reason, and the refusal is what the contract says: status,
/// headers, body, and nothing of the tenure that holds the lock at `present`.
#[track_caller]
pub(crate) fn assert_refused<'a>(
    response: &Response,
    reason: &str,
    lock: impl Into<Option<&'a str>>,
    present: impl Into<Option<&'a Tenure>>,
) {
    let (_, status, _, action) = expected(response, reason);
    assert_eq!(response.status, status, "{reason}: {response:?}");
    assert_eq!(response.header("content-type"), Some("application/problem+json"), "{response:?}");
    let decision = assert_head(response, reason, action);
    let body: Value = serde_json::from_slice(&response.body)
        .unwrap_or_else(|error| panic!("{reason}: {error} in {}", response.text()));
    let fields: BTreeSet<&str> =
        body.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(fields, BTreeSet::from(FIELDS), "{body}");
    assert_eq!(body["type"], format!("urn:fencepost:reason:{reason}"));
    assert_eq!(body["status"], status);
    assert_eq!(body["reason"], reason);
    assert_eq!(body["action"], action);
    assert_eq!(body["lock"], lock.into().map_or(Value::Null, Value::from), "{body}");
    assert_eq!(body["decision"], decision);
    assert_eq!(body["forwarded"], false);
    for text in ["title", "detail"] {
        assert!(body[text].as_str().is_some_and(|text| !text.is_empty()), "{text}: {body}");
    }
    if let Some(present) = present.into() {
        assert_hidden(response, &body, present);
    }
}

/// The worker did not answer: a failure, and no verdict.
#[track_caller]
pub(crate) fn assert_failed(answer: &Response, status: u16, failure: &str) {
    assert_eq!((answer.status, reason(answer)), (status, None), "{answer:?} {}", answer.text());
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(
        (&body["failure"], &body["forwarded"]),
        (&failure.into(), &"unknown".into()),
        "{body}"
    );
}

/// The gRPC request was refused for that reason, and the refusal is what the contract says.
#[track_caller]
pub(crate) fn assert_refused_grpc(response: &Response, reason: &str) {
    let (_, _, grpc_status, action) = expected(response, reason);
    assert_eq!(response.status, 200, "{reason}: {response:?}");
    assert_eq!(response.header("content-type"), Some("application/grpc"), "{response:?}");
    assert_eq!(
        response.header("grpc-status"),
        Some(grpc_status.to_string().as_str()),
        "{response:?}"
    );
    assert_eq!(response.header("grpc-message"), Some(reason), "{response:?}");
    assert_head(response, reason, action);
    assert!(response.body.is_empty(), "{response:?}");
}

/// The HEAD request was refused for that reason, and the refusal is what the contract says.
#[track_caller]
pub(crate) fn assert_refused_head(response: &Response, reason: &str) {
    let (_, status, _, action) = expected(response, reason);
    assert_eq!(response.status, status, "{response:?}");
    assert_head(response, reason, action);
    assert!(response.body.is_empty(), "{response:?}");
}

#[track_caller]
fn expected(response: &Response, reason: &str) -> (&'static str, u16, u16, &'static str) {
    let known =
        REASONS.into_iter().find(|(name, ..)| *name == reason).expect("a reason of the contract");
    assert_eq!(response.header("fence-reason"), Some(reason), "{response:?} {}", response.text());
    known
}

#[track_caller]
fn assert_head(response: &Response, reason: &str, action: &str) -> String {
    assert_eq!(response.header("cache-control"), Some("no-store"), "{reason}: {response:?}");
    let retry = response.header("retry-after").map(str::parse::<u64>);
    match action {
        "retry" => assert!(matches!(retry, Some(Ok(1..))), "{reason}: {response:?}"),
        _ => assert_eq!(retry, None, "{reason}: {response:?}"),
    }
    for name in response.headers.keys() {
        assert!(
            HEADERS.split_whitespace().any(|known| known == name),
            "{reason}: {name} in {response:?}"
        );
    }
    assert!(response.trailers.is_empty(), "{response:?}");
    let decision = response.header("fence-decision").expect("a refusal has an id");
    assert!(!decision.is_empty(), "{response:?}");
    decision.to_owned()
}

/// A zombie must not learn the token that would let it in.
#[track_caller]
fn assert_hidden(response: &Response, body: &Value, present: &Tenure) {
    let revision = present.revision.to_string();
    let headers = response.headers.iter().filter(|(name, _)| {
        // These have numbers of their own.
        !["date", "content-length", "fence-decision", "retry-after"].contains(&name.as_str())
    });
    let headers =
        headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let fields = body
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| !["status", "decision", "lock"].contains(&name.as_str()));
    let fields = fields.map(|(name, value)| (name.clone(), value.to_string()));
    for (name, text) in headers.chain(fields) {
        assert!(!text.contains(&present.owner), "{name} names the owner: {text}");
        // "%2e", which the client has written itself, is no number.
        let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        let tells = words.any(|word| word == revision);
        assert!(!tells, "{name} tells the revision {revision}: {text}");
    }
}
