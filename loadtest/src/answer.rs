//! What came back.

use std::fmt;

use hyper::HeaderMap;
use hyper::StatusCode;

/// An answer, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answer {
    /// Its status.
    pub(crate) status: StatusCode,
    /// Why the fence refused the request; beside a worker's answer, why it would have if its route did not only look on (`mode = "shadow"`
    /// with `verdict_header`). A worker can't say this: fencepost drops such headers of its answers.
    pub(crate) reason: Option<String>,
}

impl Answer {
    /// Reads an answer's head.
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap) -> Answer {
        let reason = headers.get("fence-reason").map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
        Answer { status, reason }
    }

    /// Whether the request passed the fence and the worker did it, whatever the fence says of it.
    pub(crate) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// Whether the request may have reached the worker: it was done, or at least nothing says that the fence kept it back.
    pub(crate) fn may_have_passed(&self) -> bool {
        self.is_success() || self.reason.is_none()
    }

    /// Whether it says to come again, which is no verdict on the token: who holds the lock could not be told, or the way to the worker was
    /// not free.
    pub(crate) fn is_put_off(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.status.as_str())?;
        self.reason.iter().try_for_each(|reason| write!(f, " {reason}"))
    }
}
