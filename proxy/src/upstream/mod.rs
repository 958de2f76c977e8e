//! The upstream side: one pool of connections per worker and thread, and a request's way through
//! it.
//!
//! A request is forwarded in two steps, since the gate decides between them: [`Pool::ready`] waits
//! for a connection, and [`ReadyConnection::send`] hands the request to hyper, with nothing in
//! between.
//!
//! From there on the request has a task of its own (`at_worker`), which reads the response whether
//! or not a client is left, and holds the permit ([`Permit`]) until the worker is done with the
//! request.

mod addresses;
mod at_worker;
mod connect;
mod error;
mod fields;
mod handed_over;
mod here;
mod http1;
mod http2;
mod in_group;
mod link;
mod origin;
mod permit;
mod pool;
mod quota;
mod relay;
mod request_body;
mod request_form;
mod request_head;
mod response_body;
mod response_head;
mod rewrite;
mod service;
mod target;
mod tenure;
mod tls_failure;
mod turns;
mod unread_response;
mod upload;
mod websocket;

pub(crate) use connect::connect;
pub use connect::{UPSTREAM_PROTOCOLS, connects};
pub use error::{Forwarded, ResponseBodyError, SendError, UpstreamError};
pub use fields::KeptFields;
pub(crate) use fields::METHOD_OVERRIDES;
pub use origin::Origin;
pub use permit::{Admitted, Ending, LastBytes, Permit, TenureState, TenureWatch};
pub use pool::{Pool, ReadyConnection};
pub use quota::ConnectionQuota;
pub use request_body::{RequestBody, prepare_body};
pub(crate) use request_head::names_websocket;
pub use request_head::{InvalidHead, check_host, outgoing_request};
pub use response_body::ResponseBody;
pub use rewrite::{rewrite_request, rewrite_response};
pub use service::AwaitedHead;
pub use target::{Speaks, Timeouts, Upstream, UpstreamTls, Wants};
pub use tls_failure::TlsFailure;
