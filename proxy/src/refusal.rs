//! The gateway's own failures and their answers. `fencepost_fence` writes refusals.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};

pub use fencepost_fence::refusal::{AnswerForm, FENCE_DECISION, FENCE_REASON, Refusal};
pub(crate) use fencepost_fence::refusal::{explanation, statuses};
use fencepost_fence::refusal::{grpc, grpc_answer, problem_answer};

/// Why the worker did not answer a request, or did not get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No route is for it.
    NoRoute,
    /// It asks for what a proxy like this does not do, CONNECT above all.
    NotSupported,
    /// Its client may wait for leave to send the body, and does not ask for that as it can be
    /// given.
    Expectation,
    /// Its body ended before its time, or was not of the length it claimed.
    BrokenBody,
    /// As [`BrokenBody`](Failure::BrokenBody), but a part of the body had gone out: the request was
    /// cut.
    CutBody,
    /// Its body came too slowly.
    SlowBody,
    /// As [`SlowBody`](Failure::SlowBody), but a part of the body had gone out: the request was
    /// cut.
    SlowBodyCut,
    /// Its body is larger than a body may be.
    LargeBody,
    /// As [`LargeBody`](Failure::LargeBody), but a part of the body had gone out: the request was
    /// cut.
    LargeBodyCut,
    /// It has more header fields than a request may have, or longer ones.
    LargeHead,
    /// What it is cannot be told: over HTTP/1 its head has no reading, or more than one. The
    /// connection itself answers it.
    Unreadable,
    /// Its target is neither a path nor a URL with a valid host.
    BadTarget,
    /// Its client, as trusted proxies name it, has too many requests under way.
    TooManyRequests,
    /// No connection to the worker could be had.
    Unreachable,
    /// No connection to the worker could be had in time.
    ConnectTimeout,
    /// The worker said that it did not look at it.
    Declined,
    /// There was no free connection to the worker in time.
    Overloaded,
    /// The worker broke the connection after the request was sent.
    NoAnswer,
    /// We have lost our standing in our group, and broke the connection after the request was sent.
    LostStanding,
    /// The worker's answer is in a transfer coding that cannot be passed on.
    CodedAnswer,
    /// The head of the worker's answer has no reading, or is too large.
    UnreadableAnswer,
    /// The worker did not answer in time.
    TimedOut,
    /// We failed before anything of the request went out.
    Internal,
    /// We failed when something of the request may have gone out. The last of all.
    InternalAfterSending,
}

/// What an answer says of a failure.
struct Facts {
    code: &'static str,
    status: u16,
    grpc_status: u8,
    title: &'static str,
    /// What the client can do, where the title does not say it.
    advice: Option<&'static str>,
    may_be_on_a_route: bool,
    /// Whether something of the request may have been forwarded.
    may_be_sent: bool,
}

impl Facts {
    /// A failure on a route, before anything was forwarded.
    const fn new(code: &'static str, status: u16, grpc_status: u8, title: &'static str) -> Facts {
        let (advice, may_be_on_a_route, may_be_sent) = (None, true, false);
        Facts { code, status, grpc_status, title, advice, may_be_on_a_route, may_be_sent }
    }

    const fn advising(self, advice: &'static str) -> Facts {
        Facts { advice: Some(advice), ..self }
    }

    /// A failure before a route is known.
    const fn unrouted(self) -> Facts {
        Facts { may_be_on_a_route: false, ..self }
    }

    /// A failure after something may have been forwarded.
    const fn sent(self) -> Facts {
        Facts { may_be_sent: true, ..self }
    }
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
        Failure::TooManyRequests,
        Failure::Unreachable,
        Failure::ConnectTimeout,
        Failure::Declined,
        Failure::Overloaded,
        Failure::NoAnswer,
        Failure::LostStanding,
        Failure::CodedAnswer,
        Failure::UnreadableAnswer,
        Failure::TimedOut,
        Failure::Internal,
        Failure::InternalAfterSending,
    ];

    /// Whether a route may count it. The others come before a route is known.
    pub fn may_be_on_a_route(self) -> bool {
        self.facts().may_be_on_a_route
    }

    /// The one name of the failure, in metrics, logs and bodies alike.
    pub fn code(self) -> &'static str {
        self.facts().code
    }

    const fn facts(self) -> Facts {
        match self {
            Failure::NoRoute => {
                Facts::new("no-route", 404, grpc::UNIMPLEMENTED, "No route is for this path")
                    .unrouted()
            }
            Failure::NotSupported => Facts::new(
                "not-supported",
                501,
                grpc::UNIMPLEMENTED,
                "This method is not forwarded",
            )
            .unrouted(),
            Failure::Expectation => {
                let title = "What it expects cannot be met";
                Facts::new("expectation-failed", 417, grpc::INVALID_ARGUMENT, title)
                    .unrouted()
                    .advising("Send it without Expect, or with Expect: 100-continue.")
            }
            Failure::LargeHead => {
                let title = "The request has too many header fields";
                Facts::new("large-head", 431, grpc::RESOURCE_EXHAUSTED, title).unrouted()
            }
            Failure::Unreadable => {
                Facts::new("unreadable", 400, grpc::INVALID_ARGUMENT, "The request cannot be read")
                    .unrouted()
            }
            Failure::BrokenBody => {
                let title = "The request's body did not arrive whole";
                Facts::new("broken-body", 400, grpc::INVALID_ARGUMENT, title)
            }
            Failure::CutBody => {
                let title = "The request's body did not arrive whole, and the request was cut at the worker";
                Facts::new("cut-body", 400, grpc::INVALID_ARGUMENT, title).sent()
            }
            Failure::SlowBody => Facts::new(
                "slow-body",
                408,
                grpc::DEADLINE_EXCEEDED,
                "The request's body came too slowly",
            ),
            Failure::SlowBodyCut => {
                let title =
                    "The request's body came too slowly, and the request was cut at the worker";
                Facts::new("slow-body", 408, grpc::DEADLINE_EXCEEDED, title).sent()
            }
            Failure::LargeBody => Facts::new(
                "large-body",
                413,
                grpc::RESOURCE_EXHAUSTED,
                "The request's body is too large",
            ),
            Failure::LargeBodyCut => {
                let title =
                    "The request's body is too large, and the request was cut at the worker";
                Facts::new("large-body", 413, grpc::RESOURCE_EXHAUSTED, title).sent()
            }
            Failure::BadTarget => Facts::new(
                "bad-target",
                400,
                grpc::INVALID_ARGUMENT,
                "The request's target is not a resource",
            )
            .advising(
                "Send a path, or a URL of the host in Host. Send Host once, with a valid name. * is for OPTIONS.",
            ),
            Failure::TooManyRequests => {
                let title = "The client has too many requests under way";
                Facts::new("too-many-requests", 429, grpc::RESOURCE_EXHAUSTED, title)
            }
            Failure::Unreachable => Facts::new(
                "worker-unreachable",
                502,
                grpc::UNAVAILABLE,
                "The worker cannot be reached",
            ),
            Failure::ConnectTimeout => Facts::new(
                "worker-connect-timeout",
                504,
                grpc::UNAVAILABLE,
                "The worker could not be reached in time",
            ),
            Failure::Declined => Facts::new(
                "worker-declined",
                502,
                grpc::UNAVAILABLE,
                "The worker declined the request",
            ),
            Failure::Overloaded => Facts::new(
                "worker-overloaded",
                503,
                grpc::UNAVAILABLE,
                "No connection to the worker is free",
            ),
            Failure::NoAnswer => {
                let title = "The worker broke off without an answer";
                Facts::new("worker-no-answer", 502, grpc::UNAVAILABLE, title).sent()
            }
            Failure::LostStanding => {
                let title = "The proxy has lost touch with its group, and cut the request at the worker";
                Facts::new("lost-standing", 502, grpc::UNAVAILABLE, title).sent()
            }
            Failure::CodedAnswer => {
                let title = "The worker's answer has a Transfer-Encoding that cannot be passed on";
                Facts::new("worker-unreadable", 502, grpc::UNAVAILABLE, title).sent()
            }
            Failure::UnreadableAnswer => {
                let title =
                    "The head of the worker's answer cannot be read: the log has the reason";
                Facts::new("worker-unreadable", 502, grpc::UNAVAILABLE, title).sent()
            }
            Failure::TimedOut => {
                let title = "The worker did not answer in time";
                Facts::new("worker-timeout", 504, grpc::DEADLINE_EXCEEDED, title).sent()
            }
            Failure::Internal => {
                Facts::new("internal-error", 502, grpc::INTERNAL, "The proxy failed")
            }
            Failure::InternalAfterSending => {
                Facts::new("internal-error", 502, grpc::INTERNAL, "The proxy failed").sent()
            }
        }
    }

    /// The answer: a problem document like a refusal's, but without `Fence-Reason`, since it is no
    /// verdict.
    pub fn answer(self, form: AnswerForm) -> Response<Bytes> {
        self.answer_for(form, None)
    }

    /// The answer with a reason, or else with what the client can do.
    pub fn answer_for(self, form: AnswerForm, why: Option<&str>) -> Response<Bytes> {
        let Facts { code, status: number, grpc_status, title, advice, may_be_sent, .. } =
            self.facts();
        let status = StatusCode::from_u16(number).expect("a failure has a status of HTTP");
        let forwarded = if may_be_sent { r#""unknown""# } else { "false" };
        let detail = why.or(advice).map_or_else(String::new, |detail| {
            format!(r#""detail":{},"#, serde_json::Value::from(detail))
        });
        let mut response = match form {
            AnswerForm::Grpc(kind) => grpc_answer(kind, grpc_status, code),
            AnswerForm::HeadOnly => problem_answer(status, Bytes::new()),
            AnswerForm::Problem => problem_answer(
                status,
                Bytes::from(format!(
                    r#"{{"type":"urn:fencepost:failure:{code}","title":"{title}","status":{number},{detail}"failure":"{code}","forwarded":{forwarded}}}"#
                )),
            ),
        };
        if matches!(self, Failure::Overloaded | Failure::TooManyRequests) {
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
