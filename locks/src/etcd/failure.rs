//! What an error of the client library means for us.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Error;
use fencepost_tls::Called;
use tonic::Status;

use crate::store::StoreError;

/// Why an endpoint did not do what it was asked to.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// It could not, or not in time: another endpoint may.
    Endpoint(Arc<str>),
    /// The connection to it has not come up, or not been logged in, in that time, and goes on
    /// coming up.
    Connecting(Duration),
    /// It did not, in that time. Whether that is the endpoint's failure depends on how much was
    /// asked for.
    TooLate(Duration),
    /// It belongs to another cluster: another endpoint may not.
    AnotherCluster {
        /// The cluster id that it answered with.
        found: u64,
        /// The one that it should have.
        pinned: u64,
    },
    /// It is no member of a cluster, but stands before one: another endpoint may be one.
    NoMember,
    /// It wants a login, or a newer one.
    LoggedOut,
    /// The user that is logged in may not do that.
    Denied,
    /// The answer is larger than what is taken.
    TooLarge,
    /// It has no such lease.
    NoLease,
    /// The store's answer, whichever endpoint is asked.
    Store(StoreError),
}

impl Failure {
    pub(super) fn endpoint(what: impl Into<Arc<str>>) -> Failure {
        Failure::Endpoint(what.into())
    }

    /// Whether it makes the endpoint suspect.
    pub(super) fn is_of_endpoint(&self) -> bool {
        match self {
            Failure::Endpoint(_)
            | Failure::Connecting(_)
            | Failure::TooLate(_)
            | Failure::NoMember
            | Failure::AnotherCluster { .. } => true,
            Failure::LoggedOut
            | Failure::Denied
            | Failure::TooLarge
            | Failure::NoLease
            | Failure::Store(_) => false,
        }
    }

    /// Whether no other endpoint would answer otherwise.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Failure::LoggedOut
            | Failure::Denied
            | Failure::TooLarge
            | Failure::NoLease
            | Failure::Store(_) => true,
            Failure::Endpoint(_)
            | Failure::Connecting(_)
            | Failure::TooLate(_)
            | Failure::NoMember
            | Failure::AnotherCluster { .. } => false,
        }
    }

    /// The error of a call that had no other endpoint to go to.
    pub(super) fn at(self, endpoint: &Arc<str>) -> StoreError {
        match self {
            Failure::Endpoint(what) => {
                StoreError::Unavailable(format!("{endpoint}: {what}").into())
            }
            Failure::Connecting(limit) => StoreError::Unavailable(
                format!("{endpoint}: no connection within {limit:?}").into(),
            ),
            Failure::TooLate(limit) => {
                StoreError::Unavailable(format!("{endpoint}: no answer within {limit:?}").into())
            }
            Failure::AnotherCluster { found, pinned } => {
                StoreError::AnotherCluster { endpoint: Arc::clone(endpoint), found, pinned }
            }
            Failure::NoMember => StoreError::NoMember { endpoint: Arc::clone(endpoint) },
            Failure::LoggedOut => StoreError::NoLogin("it wants one".into()),
            Failure::Denied => StoreError::Refused("permission denied".into()),
            Failure::TooLarge => StoreError::Refused("the answer is too large".into()),
            Failure::NoLease => StoreError::Refused(NO_LEASE.into()),
            Failure::Store(error) => error,
        }
    }

    /// A failure to reach an endpoint for the first time, with what may be wrong with its address: a
    /// server of TLS, or of HTTP/1, only cuts who speaks HTTP/2 in the clear.
    pub(super) fn at_first(self, endpoint: &str) -> Failure {
        const CUT: [&str; 3] = ["broken pipe", "connection reset", "http2 error"];
        const NO_GRPC: [&str; 2] = ["Unexpected EOF decoding stream", "grpc-status header missing"];
        let Failure::Endpoint(what) = self else { return self };
        let is_one_of = |words: &[&str]| words.iter().any(|word| what.contains(word));
        if is_one_of(&NO_GRPC) {
            return Failure::endpoint(format!("it speaks HTTP, but is no etcd ({what})"));
        }
        if endpoint.starts_with("http://") && is_one_of(&CUT) {
            return Failure::endpoint(format!(
                "it does not speak HTTP/2 in the clear, as etcd does: if it takes TLS, write https:// ({what})"
            ));
        }
        if what.contains("tls handshake eof") {
            return Failure::endpoint(
                "it closed the connection in the handshake of TLS: if it takes none, write http://",
            );
        }
        Failure::Endpoint(what)
    }

    /// Of what a watch was canceled for.
    pub(super) fn of_canceled(reason: &str) -> Failure {
        if reason.contains("permission denied") {
            Failure::Denied
        } else if wants_login(reason) {
            Failure::LoggedOut
        } else {
            Failure::endpoint(format!("the watch was canceled: {reason}"))
        }
    }
}

/// Whether etcd says that there is no login, or that it is not to be used any more: because its
/// time is over, or because users or roles were changed since.
fn wants_login(message: &str) -> bool {
    let reasons = [
        "invalid auth token",
        "user name is empty",
        "revision of auth store is old",
        "revision in header is old",
    ];
    reasons.iter().any(|reason| message.contains(reason))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        if let Error::InvalidUri(_) | Error::InvalidArgs(_) = error {
            return Failure::Store(StoreError::Refused(error.to_string().into()));
        }
        // The library's own error has no source.
        let behind: &(dyn std::error::Error + 'static) =
            if let Error::TransportError(cause) = &error {
                cause
            } else if let Error::GRpcStatus(cause) = &error {
                cause
            } else {
                &error
            };
        if let Some(words) = CALLED.explain_behind(behind) {
            return Failure::endpoint(format!("no TLS: {words}"));
        }
        if let Error::TransportError(error) = &error {
            return Failure::endpoint(with_causes("no connection", error.source()));
        }
        if matches!(&error, Error::LeaseKeepAliveError(what) if what == NO_LEASE) {
            return Failure::NoLease;
        }
        let Error::GRpcStatus(status) = &error else {
            return Failure::endpoint(with_causes(&error.to_string(), error.source()));
        };
        let message = status.message();
        // By their words: some have one code in one version and another in the next.
        if wants_login(message) {
            return Failure::LoggedOut;
        }
        // etcd 3.5 says "unavailable" with it, and 3.6 "failed precondition".
        if message.contains("not supported for learner") {
            return Failure::endpoint(message);
        }
        match i32::from(status.code()) {
            UNAUTHENTICATED => Failure::LoggedOut,
            NOT_FOUND if message.contains(NO_LEASE) => Failure::NoLease,
            PERMISSION_DENIED => Failure::Denied,
            INVALID_ARGUMENT | FAILED_PRECONDITION => {
                Failure::Store(StoreError::Refused(message.into()))
            }
            OUT_OF_RANGE if message.contains("required revision has been compacted") => {
                Failure::Store(StoreError::Compacted)
            }
            // The store went back, or the caller asks for what has not happened yet. No endpoint
            // knows more: the read that says so is a quorum's.
            OUT_OF_RANGE if message.contains("required revision is a future revision") => {
                Failure::Store(StoreError::Unavailable(message.into()))
            }
            // Our own limit on the size of an answer.
            OUT_OF_RANGE => Failure::TooLarge,
            // The limit of a client or proxy in between, in the words of gRPC's libraries.
            RESOURCE_EXHAUSTED if message.contains("larger than max") => Failure::TooLarge,
            // Also of a transaction that only reads, by 3.5.1 (etcd-io/etcd#13429). The member does
            // well.
            RESOURCE_EXHAUSTED if message.contains("database space exceeded") => {
                let what = "database space exceeded (alarm NOSPACE: compact and defragment, then etcdctl alarm disarm)";
                Failure::Store(StoreError::Refused(what.into()))
            }
            // Of every member, while there is the alarm CORRUPT.
            DATA_LOSS if message.contains("corrupt cluster") => {
                let what = "corrupt cluster (alarm CORRUPT: see etcdctl alarm list)";
                Failure::Store(StoreError::Refused(what.into()))
            }
            _ => Failure::endpoint(of_status(status)),
        }
    }
}

const CALLED: Called = Called {
    ca: "the file of authorities for etcd",
    crl: "crl",
    certificate: "our certificate, or wants one",
};

/// How etcd, and the client library, say that there is no such lease.
const NO_LEASE: &str = "lease not found";

// Codes of gRPC. The client library has no name for them.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const DATA_LOSS: i32 = 15;
const UNAUTHENTICATED: i32 = 16;

/// What went wrong with a call, with its causes. The library's own text has them as Rust's debug
/// form.
fn of_status(status: &Status) -> String {
    let said = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    with_causes(said, status.source())
}

/// An error's text with those of its causes: the last one is what helps.
fn with_causes(said: &str, mut cause: Option<&(dyn std::error::Error + 'static)>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_learner_refuses_another_member_may_answer() {
        let words = "etcdserver: rpc not supported for learner";
        for status in [Status::unavailable(words), Status::failed_precondition(words)] {
            let failure = Failure::from(Error::GRpcStatus(status));
            assert!(failure.is_of_endpoint(), "{failure:?}");
        }
        let refused = Failure::from(Error::GRpcStatus(Status::failed_precondition(
            "etcdserver: not capable",
        )));
        assert!(matches!(refused, Failure::Store(StoreError::Refused(_))), "{refused:?}");
    }

    #[test]
    fn a_failed_call_is_told_of_in_words_and_each_cause_once() {
        let told = |status| of_status(&status);
        let cause = || std::io::Error::other("Connection refused (os error 111)");
        let with_cause = |message: &str| {
            let mut status = Status::unavailable(message);
            status.set_source(std::sync::Arc::new(cause()));
            told(status)
        };
        assert_eq!(
            with_cause("tcp connect error"),
            "tcp connect error: Connection refused (os error 111)"
        );
        assert_eq!(
            with_cause("Connection refused (os error 111)"),
            "Connection refused (os error 111)"
        );
        assert_eq!(
            with_cause(""),
            "The service is currently unavailable: Connection refused (os error 111)"
        );
        assert_eq!(told(Status::unavailable("etcdserver: no leader")), "etcdserver: no leader");
    }
}
