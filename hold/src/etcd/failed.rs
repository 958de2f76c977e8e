//! What etcd's errors, and the client library's, mean for us.

use std::error::Error as _;
use std::time::Duration;

use etcd_client::Error;
use tonic::Status;

use crate::error::StoreError;

/// In what words etcd denies a user something.
pub(super) const DENIED: &str = "permission denied";

/// In what words etcd says that nobody has logged in.
pub(super) const NOBODY: &str = "user name is empty";

/// Why a call did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    /// It named a lease that etcd does not have, or has no more.
    NoLease,
    /// Anything else.
    Store(StoreError),
}

impl Failed {
    /// Whether etcd has answered, and does not want to: it is of no use to ask again.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Failed::Store(StoreError::Refused(_) | StoreError::NoLogin | StoreError::Denied { .. }) => true,
            Failed::Store(StoreError::Unavailable(_)) | Failed::NoLease => false,
        }
    }

    pub(super) fn late(limit: Duration) -> Failed {
        Failed::Store(StoreError::Unavailable(format!("no answer within {limit:.1?}")))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        // gRPC's status codes; the client library has no names for them.
        const INVALID_ARGUMENT: i32 = 3;
        const NOT_FOUND: i32 = 5;
        const PERMISSION_DENIED: i32 = 7;
        const FAILED_PRECONDITION: i32 = 9;
        const UNAUTHENTICATED: i32 = 16;
        if let Error::InvalidArgs(what) = error {
            return Failed::Store(StoreError::Refused(what));
        }
        if matches!(&error, Error::LeaseKeepAliveError(what) if what == "lease not found") {
            return Failed::NoLease;
        }
        let Error::GRpcStatus(status) = &error else {
            return Failed::Store(StoreError::Unavailable(with_causes(&error.to_string(), error.source())));
        };
        match i32::from(status.code()) {
            NOT_FOUND if status.message().contains("lease not found") => Failed::NoLease,
            INVALID_ARGUMENT | PERMISSION_DENIED | FAILED_PRECONDITION | UNAUTHENTICATED => {
                Failed::Store(StoreError::Refused(status.message().to_owned()))
            }
            _ => Failed::Store(StoreError::Unavailable(of_status(status))),
        }
    }
}

/// What went wrong with a call, with its causes. The library's own text has them as Rust's debug form.
fn of_status(status: &Status) -> String {
    let said = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    with_causes(said, status.source())
}

/// An error's text with those of its causes: the last one is what helps.
pub(super) fn with_causes(said: &str, mut cause: Option<&(dyn std::error::Error + 'static)>) -> String {
    let mut text = said.to_owned();
    while let Some(error) = cause {
        let addition = error.to_string();
        // The latter is how the library calls whatever is beneath it.
        if !text.contains(&addition) && addition != "transport error" {
            text.push_str(": ");
            text.push_str(&addition);
        }
        cause = error.source();
    }
    text
}

/// Whether etcd says that there is no login, or that it is not to be used any more: because its time is over, or because
/// users or roles were changed since. By its words: the codes differ from version to version.
pub(super) fn wants_login(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    let reasons = ["invalid auth token", NOBODY, "revision of auth store is old", "revision in header is old"];
    reasons.iter().any(|reason| status.message().contains(reason))
}

/// Whether etcd says that the user may not do that.
pub(super) fn denies(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains(DENIED))
}
