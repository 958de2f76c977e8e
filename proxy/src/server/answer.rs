//! What a service answers with: a response body, or a tunnel in place of one.

use std::error::Error;
use std::pin::Pin;

use bytes::Bytes;
use http_body::Body;

use crate::wire::Socket;

/// Takes a client's connection over after a `101 Switching Protocols`: the socket, and what was
/// read of it already.
///
/// A box of its own, since protocols are switched once per connection.
pub type Tunnel = Box<dyn FnOnce(Socket, Bytes) -> Pin<Box<dyn Future<Output = TunnelEnd>>>>;

/// How a tunnel has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEnd {
    /// Both sides have ended theirs.
    Whole,
    /// It was cut, or one side was lost.
    Cut,
}

/// The body of a response.
pub trait AnswerBody:
    Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + 'static
{
    /// Returns what takes the connection over once the head of this response is out. Called for
    /// responses with status 101 only.
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        None
    }

    /// Notes, where that is known, that the client gets so many bytes of it, and not its end.
    fn cut_off(&mut self, _sent: u64) {}
}
