//! What an error of the client library means for us.

use std::sync::Arc;

use etcd_client::Error;

use crate::store::StoreError;

/// Why an endpoint did not do what it was asked to.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// It could not, or not in time: another endpoint may.
    Endpoint(Arc<str>),
    /// It belongs to another cluster: another endpoint may not.
    AnotherCluster {
        /// The cluster id that it answered with.
        found: u64,
        /// The one that it should have.
        pinned: u64,
    },
    /// The store's answer, whichever endpoint is asked.
    Store(StoreError),
}

impl Failure {
    pub(super) fn endpoint(what: impl Into<Arc<str>>) -> Failure {
        Failure::Endpoint(what.into())
    }

    /// The error of a call that had no other endpoint to go to.
    pub(super) fn at(self, endpoint: &Arc<str>) -> StoreError {
        match self {
            Failure::Endpoint(what) => StoreError::Unavailable(format!("{endpoint}: {what}").into()),
            Failure::AnotherCluster { found, pinned } => {
                StoreError::AnotherCluster { endpoint: Arc::clone(endpoint), found, pinned }
            }
            Failure::Store(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        if let Error::InvalidUri(_) | Error::InvalidArgs(_) = error {
            return Failure::Store(StoreError::Refused(error.to_string().into()));
        }
        let Error::GRpcStatus(status) = &error else {
            return Failure::endpoint(with_causes(&error));
        };
        let message = status.message();
        match i32::from(status.code()) {
            INVALID_ARGUMENT | PERMISSION_DENIED | FAILED_PRECONDITION | UNAUTHENTICATED => {
                Failure::Store(StoreError::Refused(message.into()))
            }
            OUT_OF_RANGE if message.contains("required revision has been compacted") => {
                Failure::Store(StoreError::Compacted)
            }
            // The store went back, or the caller asks for what has not happened yet. No endpoint knows more: the read
            // that says so is a quorum's.
            OUT_OF_RANGE if message.contains("required revision is a future revision") => {
                Failure::Store(StoreError::Unavailable(message.into()))
            }
            // Our own limit on the size of an answer.
            OUT_OF_RANGE => Failure::Store(StoreError::Refused(message.into())),
            _ => Failure::endpoint(with_causes(status)),
        }
    }
}

// Codes of gRPC. The client library has no name for them.
const INVALID_ARGUMENT: i32 = 3;
const PERMISSION_DENIED: i32 = 7;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNAUTHENTICATED: i32 = 16;

/// An error's text with those of its causes: the last one is what helps.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let addition = error.to_string();
        if !text.contains(&addition) {
            text.push_str(": ");
            text.push_str(&addition);
        }
        cause = error.source();
    }
    text
}
