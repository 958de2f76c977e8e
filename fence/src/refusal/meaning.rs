//! What the reasons mean to a refused client: the only place that gives them a status.

use fencepost_policy::Rejection;
use http::StatusCode;

/// gRPC's status codes (grpc.io, "Status codes").
pub mod grpc {
    /// The request is wrong, whatever the state of the service.
    pub const INVALID_ARGUMENT: u8 = 3;
    /// It took too long.
    pub const DEADLINE_EXCEEDED: u8 = 4;
    /// The sender may not do this.
    pub const PERMISSION_DENIED: u8 = 7;
    /// Something is too large, or used up.
    pub const RESOURCE_EXHAUSTED: u8 = 8;
    /// The state of the service, or of the sender, does not allow it.
    pub const FAILED_PRECONDITION: u8 = 9;
    /// It cannot be done here.
    pub const UNIMPLEMENTED: u8 = 12;
    /// We failed.
    pub const INTERNAL: u8 = 13;
    /// It may succeed later.
    pub const UNAVAILABLE: u8 = 14;
}

/// The status of a reason, over HTTP and over gRPC.
pub fn statuses(reason: Rejection, stale_status: StatusCode) -> (StatusCode, u8) {
    match reason {
        Rejection::TokenMissing => (StatusCode::PRECONDITION_REQUIRED, grpc::FAILED_PRECONDITION),
        Rejection::TokenMalformed | Rejection::LockNotAllowed => {
            (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT)
        }
        Rejection::IdentityMismatch => (StatusCode::FORBIDDEN, grpc::PERMISSION_DENIED),
        Rejection::NotOwner
        | Rejection::StaleTenure
        | Rejection::ReplayedTenure
        | Rejection::UnknownRevision
        | Rejection::AheadOfStore
        | Rejection::NoOwner
        | Rejection::NotYetOwner => (stale_status, grpc::FAILED_PRECONDITION),
        Rejection::Unverifiable
        | Rejection::StoreRegressed
        | Rejection::HandoffTimeout
        | Rejection::OutOfGroup
        | Rejection::Draining => (StatusCode::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE),
    }
}

/// What a reason means, for a person: one title each, and a sentence that helps.
pub fn explanation(reason: Rejection) -> (&'static str, &'static str) {
    match reason {
        Rejection::TokenMissing => (
            "A fence token is required",
            "Send the owner and the revision of the lock that you hold with every request.",
        ),
        Rejection::TokenMalformed => (
            "The fence token cannot be read",
            "Owner and revision have to be given once each; a revision is a decimal number from 1 to 9223372036854775807 \
             without sign, leading zero or spaces.",
        ),
        Rejection::LockNotAllowed => (
            "The request names no lock of this route",
            "The path, or the lock named in the request, does not name a lock that guards this route.",
        ),
        Rejection::IdentityMismatch => (
            "The sender is not the owner that it claims to be",
            "Stop: the owner has to be the one that the client certificate of the connection names.",
        ),
        Rejection::NotOwner => (
            "The lock is held by another owner",
            "Stop: the revision you sent belongs to another owner.",
        ),
        Rejection::StaleTenure => (
            "The tenure has ended and another owner holds the lock",
            "Stop: another owner took the lock after you.",
        ),
        Rejection::ReplayedTenure => (
            "The revision is of an earlier tenure of the owner",
            "If you hold the lock, send your present revision.",
        ),
        Rejection::UnknownRevision => (
            "No holder of the lock has that revision",
            "Read your own lock record and send the revision found there.",
        ),
        Rejection::AheadOfStore => (
            "The lock store has not reached that revision",
            "The revision is higher than any the store has; was it taken from another store?",
        ),
        Rejection::NoOwner => (
            "Nobody holds the lock",
            "Acquire the lock before you send. If you do hold it, the operator should look whether the right key and layout are read.",
        ),
        Rejection::NotYetOwner => (
            "The sender still waits for the lock",
            "You are in the queue; wait until you hold the lock.",
        ),
        Rejection::Unverifiable => (
            "The lock cannot be verified at present",
            "Nothing was forwarded; send the same request again later.",
        ),
        Rejection::StoreRegressed => (
            "The lock store shows an older state than before",
            "Nothing is admitted until a new tenure begins or the operator accepts the store's state.",
        ),
        Rejection::HandoffTimeout => (
            "Requests of an earlier holder may still be at the worker",
            "Nothing was forwarded; send the same request again later.",
        ),
        Rejection::OutOfGroup => (
            "The proxy has lost touch with the other members of its group",
            "Nothing was forwarded; send the same request again later, or to another of the proxies.",
        ),
        Rejection::Draining => {
            ("The proxy is about to stop", "Nothing was forwarded; send the same request again.")
        }
    }
}
