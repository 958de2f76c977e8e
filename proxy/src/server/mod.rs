//! The server side: bound addresses, worker threads, and one task per client connection that serves
//! it with a tower service.
//!
//! A request reaches the service as `Box<http::Request<ClientBody>>`. What is known of its
//! connection (who the client is, which protocol it uses) hangs on the body,
//! [`ClientBody::connection`]: a field costs nothing, where an entry in the request's extensions
//! would cost two allocations per request.

mod accept;
mod activity;
mod answer;
mod client;
mod connection;
mod connection_limiter;
mod first_bytes;
mod frames;
mod handshake;
mod idle_connections;
mod limits;
mod lingering_close;
mod listener;
mod passed_sockets;
mod proxy_protocol;
mod request_body;
mod response_body;
#[cfg(test)]
mod room;
mod sending;
mod serve;
mod serve_connection;
mod service;
mod thread;
mod timeouts;
mod whole_length;

pub use activity::UnderWay;
pub use answer::{AnswerBody, Tunnel, TunnelEnd};
pub use client::{ClientAddress, Protocol};
pub use connection::Connection;
pub use connection_limiter::ClientPlace;
pub use handshake::{ALPN, HandshakeFailure, LostHandshake};
pub use limits::{Closing, Limits};
pub use listener::{BindError, ListenAddress, Listener};
pub use passed_sockets::PassedSockets;
pub use proxy_protocol::Unexpected;
pub use request_body::{BodyError, BodyFault, ClientBody};
pub use serve::{OpenConnections, Server, ThreadContext, ThreadService, serve};
pub use thread::UnreadHead;
