//! The listener side: bound addresses, worker threads, and one task per client connection that serves it with a
//! tower service.
//!
//! A request reaches the service as `Box<http::Request<ClientBody>>`. What is known of its connection (who the client is,
//! which protocol it speaks) hangs on the body, [`ClientBody::connection`]: a field costs nothing, where an entry in
//! the request's extensions would cost two allocations per request.

mod accept;
mod answer;
mod arrive;
mod awaited_body;
mod client_body;
mod connection;
mod drive;
mod frames;
mod handshake;
mod limits;
mod lingering_close;
mod listener;
mod passed;
mod places;
#[cfg(test)]
mod room;
mod seat;
mod serve;
mod service;
mod serving;
mod sniff;
mod strict_trailers;
mod tally;
mod thread_runtime;
mod unread;
mod unread_head;
mod watch;
mod whole_length;

pub use answer::{AnswerBody, Tunnel, TunnelEnd};
pub use client_body::{BodyError, BodyFault, ClientBody};
pub use connection::{ClientAddress, Connection, Protocol};
pub use handshake::{ALPN, HandshakeFailure, LostHandshake};
pub use limits::Limits;
pub use listener::{BindError, ListenAddress, Listener};
pub use passed::PassedSockets;
pub use seat::UnderWay;
pub use serve::{Drained, OpenConnections, Server, ThreadContext, ThreadService, serve};
pub use tally::Closing;
pub use unread_head::UnreadHead;
