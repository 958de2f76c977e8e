//! What a refused request is told, as `fencepost_fence` writes it, and the gateway's own failures.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};

pub use fencepost_fence::refusal::{AnswerForm, FENCE_DECISION, FENCE_REASON, Refusal};
pub(crate) use fencepost_fence::refusal::{explanation, statuses};
use fencepost_fence::refusal::{grpc, grpc_answer, problem_answer};

/// What became of a request that the worker did not answer, or that went nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No route is for it.
    NoRoute,
    /// It asks for what a proxy like this does not do, CONNECT above all.
    NotSupported,
    /// Its client may wait for leave to send the body, and does not ask for that as it can be given.
    Expectation,
    /// Its body ended before its time, or was not of the length it claimed.
    BrokenBody,
    /// The same, when a part of it had gone out: the request was cut.
    CutBody,
    /// Its body came too slowly.
    SlowBody,
    /// The same, when a part of it had gone out: the request was cut.
    SlowBodyCut,
    /// Its body is larger than a body may be.
    LargeBody,
    /// The same, when a part of it had gone out: the request was cut.
    LargeBodyCut,
    /// It has more header fields than a request may have, or longer ones.
    LargeHead,
    /// What it is cannot be told: over HTTP/1 its head has no reading, or more than one. The connection itself answers it.
    Unreadable,
    /// Its target is neither a path nor a URL with a valid host.
    BadTarget,
    /// No connection to the worker could be had.
    Unreachable,
    /// No connection to the worker could be had in time.
    ConnectTimeout,
    /// The worker said that it did not look at it.
    Declined,
    /// There was no free connection to the worker in time.
    Overloaded,
    /// The worker broke the connection after the request was sent, or its answer can't be passed on.
    NoAnswer,
    /// The worker did not answer in time.
    TimedOut,
    /// We failed before anything of the request went out.
    Internal,
    /// We failed when something of the request may have gone out. The last of all.
    InternalAfterSending,
}

impl Failure {
    /// All of them.
    pub const ALL: [Failure; Failure::InternalAfterSending as usize + 1] = [
        Failure::NoRoute,
        Failure::NotSupported,
        Failure::Expectation,
        Failure::BrokenBody,
        Failure::CutBody,
        Failure::SlowBody,
        Failure::SlowBodyCut,
        Failure::LargeBody,
        Failure::LargeBodyCut,
        Failure::LargeHead,
        Failure::Unreadable,
        Failure::BadTarget,
        Failure::Unreachable,
        Failure::ConnectTimeout,
        Failure::Declined,
        Failure::Overloaded,
        Failure::NoAnswer,
        Failure::TimedOut,
        Failure::Internal,
        Failure::InternalAfterSending,
    ];

    /// Whether a route may count it. The others come before a route is known.
    pub fn may_be_on_a_route(self) -> bool {
        match self {
            Failure::NoRoute
            | Failure::NotSupported
            | Failure::Expectation
            | Failure::LargeHead
            | Failure::Unreadable => false,
            Failure::BrokenBody
            | Failure::CutBody
            | Failure::SlowBody
            | Failure::SlowBodyCut
            | Failure::LargeBody
            | Failure::LargeBodyCut
            | Failure::BadTarget
            | Failure::Unreachable
            | Failure::ConnectTimeout
            | Failure::Declined
            | Failure::Overloaded
            | Failure::NoAnswer
            | Failure::TimedOut
            | Failure::Internal
            | Failure::InternalAfterSending => true,
        }
    }

    /// The one name of the failure, in metrics, logs and bodies alike.
    pub fn code(self) -> &'static str {
        match self {
            Failure::NoRoute => "no-route",
            Failure::NotSupported => "not-supported",
            Failure::Expectation => "expectation-failed",
            Failure::BrokenBody => "broken-body",
            Failure::CutBody => "cut-body",
            Failure::SlowBody | Failure::SlowBodyCut => "slow-body",
            Failure::LargeBody | Failure::LargeBodyCut => "large-body",
            Failure::LargeHead => "large-head",
            Failure::Unreadable => "unreadable",
            Failure::BadTarget => "bad-target",
            Failure::Unreachable => "worker-unreachable",
            Failure::ConnectTimeout => "worker-connect-timeout",
            Failure::Declined => "worker-declined",
            Failure::Overloaded => "worker-overloaded",
            Failure::NoAnswer => "worker-no-answer",
            Failure::TimedOut => "worker-timeout",
            Failure::Internal | Failure::InternalAfterSending => "internal-error",
        }
    }

    /// What its answer says: the status, that of gRPC, a title, and whether something of the request was forwarded, in JSON.
    fn parts(self) -> (StatusCode, u8, &'static str, &'static str) {
        match self {
            Failure::NoRoute => (StatusCode::NOT_FOUND, grpc::UNIMPLEMENTED, "No route is for this path", "false"),
            Failure::NotSupported => {
                (StatusCode::NOT_IMPLEMENTED, grpc::UNIMPLEMENTED, "This method is not forwarded", "false")
            }
            Failure::Expectation => {
                (StatusCode::EXPECTATION_FAILED, grpc::INVALID_ARGUMENT, "What it expects cannot be met", "false")
            }
            Failure::BrokenBody => {
                (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT, "The request's body did not arrive whole", "false")
            }
            Failure::CutBody => (
                StatusCode::BAD_REQUEST,
                grpc::INVALID_ARGUMENT,
                "The request's body did not arrive whole, and the request was cut at the worker",
                "\"unknown\"",
            ),
            Failure::SlowBody => {
                (StatusCode::REQUEST_TIMEOUT, grpc::DEADLINE_EXCEEDED, "The request's body came too slowly", "false")
            }
            Failure::SlowBodyCut => (
                StatusCode::REQUEST_TIMEOUT,
                grpc::DEADLINE_EXCEEDED,
                "The request's body came too slowly, and the request was cut at the worker",
                "\"unknown\"",
            ),
            Failure::LargeBody => {
                (StatusCode::PAYLOAD_TOO_LARGE, grpc::RESOURCE_EXHAUSTED, "The request's body is too large", "false")
            }
            Failure::LargeBodyCut => (
                StatusCode::PAYLOAD_TOO_LARGE,
                grpc::RESOURCE_EXHAUSTED,
                "The request's body is too large, and the request was cut at the worker",
                "\"unknown\"",
            ),
            Failure::LargeHead => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                grpc::RESOURCE_EXHAUSTED,
                "The request has too many header fields",
                "false",
            ),
            Failure::Unreadable => {
                (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT, "The request cannot be read", "false")
            }
            Failure::BadTarget => {
                (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT, "The request's target is not a resource", "false")
            }
            Failure::Unreachable => {
                (StatusCode::BAD_GATEWAY, grpc::UNAVAILABLE, "The worker cannot be reached", "false")
            }
            Failure::ConnectTimeout => {
                (StatusCode::GATEWAY_TIMEOUT, grpc::UNAVAILABLE, "The worker could not be reached in time", "false")
            }
            Failure::Declined => {
                (StatusCode::BAD_GATEWAY, grpc::UNAVAILABLE, "The worker declined the request", "false")
            }
            Failure::Overloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE, "No connection to the worker is free", "false")
            }
            Failure::NoAnswer => {
                (StatusCode::BAD_GATEWAY, grpc::UNAVAILABLE, "The worker broke off without an answer", "\"unknown\"")
            }
            Failure::TimedOut => (
                StatusCode::GATEWAY_TIMEOUT,
                grpc::DEADLINE_EXCEEDED,
                "The worker did not answer in time",
                "\"unknown\"",
            ),
            Failure::Internal => (StatusCode::BAD_GATEWAY, grpc::INTERNAL, "The proxy failed", "false"),
            Failure::InternalAfterSending => {
                (StatusCode::BAD_GATEWAY, grpc::INTERNAL, "The proxy failed", "\"unknown\"")
            }
        }
    }

    /// The answer: a problem document like a refusal's, but without `Fence-Reason`, since it is no verdict.
    pub fn answer(self, form: AnswerForm) -> Response<Bytes> {
        let (status, grpc_status, title, forwarded) = self.parts();
        let (code, number) = (self.code(), status.as_u16());
        let mut response = match form {
            AnswerForm::Grpc => grpc_answer(grpc_status, code),
            AnswerForm::HeadOnly => problem_answer(status, Bytes::new()),
            AnswerForm::Problem => problem_answer(
                status,
                Bytes::from(format!(
                    r#"{{"type":"urn:fencepost:failure:{code}","title":"{title}","status":{number},"failure":"{code}","forwarded":{forwarded}}}"#
                )),
            ),
        };
        if self == Failure::Overloaded {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_failures_are_all_there_are() {
        for (number, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, number, "{failure:?}");
        }
    }

    #[test]
    fn failures_of_the_worker_are_no_verdicts() {
        for (failure, status, forwarded) in [
            (Failure::BrokenBody, 400, serde_json::json!(false)),
            (Failure::CutBody, 400, serde_json::json!("unknown")),
            (Failure::SlowBody, 408, serde_json::json!(false)),
            (Failure::SlowBodyCut, 408, serde_json::json!("unknown")),
            (Failure::LargeBody, 413, serde_json::json!(false)),
            (Failure::LargeBodyCut, 413, serde_json::json!("unknown")),
            (Failure::Unreachable, 502, serde_json::json!(false)),
            (Failure::NoAnswer, 502, serde_json::json!("unknown")),
            (Failure::TimedOut, 504, serde_json::json!("unknown")),
            (Failure::Internal, 502, serde_json::json!(false)),
            (Failure::InternalAfterSending, 502, serde_json::json!("unknown")),
        ] {
            let response = failure.answer(AnswerForm::Problem);
            assert_eq!(response.status(), status);
            assert!(!response.headers().contains_key("fence-reason"));
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body["forwarded"], forwarded);
        }
    }
}
