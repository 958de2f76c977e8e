//! Why a worker could not be asked, or did not answer.

use std::fmt;
use std::io;
use std::sync::Arc;

use http::Request;
use rustls::pki_types::ServerName;

use super::permit::Admitted;
use super::request_body::RequestBody;
use super::tls_failure::TlsFailure;
use crate::server::BodyFault;

/// Why there is no connection to a worker. One that could not be opened may be what many have
/// waited for.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UpstreamError {
    /// It can't be reached.
    #[error("the upstream cannot be reached")]
    Unreachable(#[source] Arc<io::Error>),
    /// It is not the worker that it should be, or does not take us for what we are.
    #[error("no TLS with the upstream as {}", server_name.to_str())]
    Tls {
        /// Who it should be.
        server_name: ServerName<'static>,
        /// What is wrong.
        #[source]
        failure: TlsFailure,
    },
    /// It does not speak the protocol.
    #[error("the upstream does not speak HTTP/2")]
    Handshake(#[source] Arc<hyper::Error>),
    /// No connection was open in time.
    #[error("no upstream connection was open in time")]
    Timeout,
    /// All connections that there may be are in use: none got free in time, or too many requests
    /// wait for one already.
    #[error("all upstream connections are in use")]
    Crowded,
}

impl UpstreamError {
    pub(super) fn unreachable(cause: io::Error) -> UpstreamError {
        UpstreamError::Unreachable(Arc::new(cause))
    }

    /// Whether another try may succeed: a worker that restarts refuses connections, or closes them
    /// before it has sent anything.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            UpstreamError::Unreachable(_) => true,
            UpstreamError::Tls { failure, .. } => failure.is_loss(),
            UpstreamError::Handshake(_) | UpstreamError::Timeout | UpstreamError::Crowded => false,
        }
    }

    pub(super) fn handshake(cause: hyper::Error) -> UpstreamError {
        UpstreamError::Handshake(Arc::new(cause))
    }
}

/// Whether the worker may know of a request that was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarded {
    /// It said itself that it has not looked at it.
    No,
    /// It may have.
    Unknown,
}

/// Why a request has no answer.
#[derive(thiserror::Error)]
pub enum SendError<P> {
    /// The worker has not looked at it: it may leave the gate and enter again.
    #[error("the upstream connection was lost before the request was sent")]
    Unsent {
        /// The request and its permit.
        admitted: Box<Admitted<Box<Request<RequestBody>>, P>>,
        /// How the worker refused it. `None` if nothing of it was sent.
        refused: Option<hyper::Error>,
    },
    /// It was sent, and the connection was lost before an answer.
    #[error("{}", match (.forwarded, .source) {
        (Forwarded::No, _) => "the upstream refused the request",
        (Forwarded::Unknown, _) => "the upstream connection was lost",
    })]
    NoAnswer {
        /// Whether the worker may know of it.
        forwarded: Forwarded,
        /// What hyper says. `None` if the worker switched protocols without being asked, or if the
        /// request was cut because its tenure had ended.
        source: Option<hyper::Error>,
    },
    /// It was sent, and the head of the answer cannot be read, for this reason.
    #[error("the upstream's answer cannot be read: {0}")]
    Unreadable(String),
    /// The rest of its body will not come, for what its client did. The worker never has the whole;
    /// the permit learns of it.
    #[error("{}", match .0 {
        BodyFault::Broken => "the client did not send all of the request's body",
        BodyFault::Slow => "the client sends the request's body too slowly",
        BodyFault::Large => "the request's body is larger than it may be",
    })]
    Body(BodyFault),
    /// It was sent, and the body of the answer is in a transfer coding that only the worker's next
    /// hop could undo. It is read to its end for the permit's sake.
    #[error(
        "the upstream's answer has a Transfer-Encoding besides chunked, which was not asked for"
    )]
    Coded,
    /// It was sent, and its connection was reset because this process had lost its standing in its
    /// group.
    #[error("this process has lost its standing in its group")]
    LostStanding,
    /// It was sent, and there was no answer in time. An answer is still waited for; the permit
    /// learns of it.
    #[error("the upstream did not answer in time")]
    Timeout,
}

impl<P> fmt::Debug for SendError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a worker's response did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ResponseBodyError {
    /// The connection was lost. What hyper says is not the `source`: the server side of hyper would
    /// find the worker's reason for a reset there, and pass it on. `REFUSED_STREAM` tells a client
    /// that nothing was processed.
    #[error("the upstream connection was lost in the middle of the response")]
    Lost(Option<hyper::Error>),
    /// The connection was reset because this process had lost its standing in its group.
    #[error("this process has lost its standing in its group")]
    LostStanding,
    /// The worker was silent for too long.
    #[error("the upstream stayed silent in the middle of the response")]
    Silent,
    /// It was cut because the tenure of its request has ended.
    #[error("the tenure of the request has ended")]
    Sealed,
    /// The client did not send all of its request.
    #[error("the client did not send all of its request")]
    Unfinished(BodyFault),
    /// The tenure of its request has ended, and the client did not read it as fast as it came.
    #[error("the client is too slow for a response that is not to wait for it")]
    TooSlow,
    /// The client did not read it, and others waited for its connection.
    #[error("the client does not read its response, and others wait for an upstream connection")]
    Stalled,
}

/// Why a client gets no head that would have got no more of the body.
impl<P> From<ResponseBodyError> for SendError<P> {
    fn from(why: ResponseBodyError) -> SendError<P> {
        let source = match why {
            ResponseBodyError::Silent => return SendError::Timeout,
            ResponseBodyError::Unfinished(fault) => return SendError::Body(fault),
            ResponseBodyError::LostStanding => return SendError::LostStanding,
            ResponseBodyError::Lost(source) => source,
            ResponseBodyError::Sealed | ResponseBodyError::TooSlow | ResponseBodyError::Stalled => {
                None
            }
        };
        SendError::NoAnswer { forwarded: Forwarded::Unknown, source }
    }
}
