//! The upstream side: one pool of connections per upstream and worker thread, and a request's way through it.
//!
//! A request is forwarded in two steps, because the gate decides between them: [`Pool::ready`] waits for a connection,
//! however long that takes, and [`ReadyConnection::send`] sends the request on it, in the first poll of what it
//! returns. Nothing is waited for between that and the first byte but the end of the thread's turn.
//!
//! The permit of a request ([`Permit`]) stays with it as long as it may be running in the worker, whatever the client
//! does: see [`Ending`]. When its tenure ends meanwhile ([`TenureWatch`]), what is not finished of it is cut, or its response is
//! read to the end at the worker's pace.

mod addresses;
mod admitted;
mod awaited_head;
mod body_state;
mod both_ways;
mod by_alpn;
mod connect;
mod error;
mod fields;
mod http1;
mod http2;
mod in_flight;
mod pool;
mod quota;
mod relay;
mod request_body;
mod request_form;
mod request_head;
mod response_body;
mod response_head;
mod rest;
mod stalled;
mod tls_failure;
mod tunnel;
mod unwritten;
mod upstream;
mod vigil;

pub use admitted::{Admitted, Ending, LastBytes, Permit, TenureState, TenureWatch};
pub use awaited_head::AwaitedHead;
pub use connect::{UPSTREAM_PROTOCOLS, connects};
pub use error::{Forwarded, SendError, UpstreamError};
pub use fields::KeptFields;
pub(crate) use fields::METHOD_OVERRIDES;
pub use pool::{Pool, ReadyConnection, Wants};
pub use quota::ConnectionQuota;
pub use request_body::{PreparedBody, RequestBody, prepare_body};
pub(crate) use request_head::names_websocket;
pub use request_head::{InvalidHead, check_host, outgoing_request};
pub use response_body::{ResponseBody, ResponseBodyError};
pub use tls_failure::TlsFailure;
pub use upstream::{Speaks, Timeouts, Upstream, UpstreamAddress, UpstreamTls};
