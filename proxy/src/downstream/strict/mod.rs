//! What a client sends over HTTP/1, held to the strict grammar before anything reads it.
//!
//! hyper is as generous as most servers: it takes a bare line feed for the end of a line, one length given twice, a length beside
//! chunks. Each of these has a second reading, and whoever stands before us may have gone by that one. [`Requests`] follows the bytes as they
//! arrive and stops at the first that the grammar of RFC 9112 does not have there; [`Strict`] is a socket that gives hyper what comes before
//! that byte and nothing of what follows.
//!
//! Two machines read the same bytes, yet there is one parse: what passes the first has only one reading, so that the second has no other to
//! choose. `agreement.rs` holds them against each other, byte stream by byte stream.

mod bytes;
mod framing;
mod lines;
mod requests;
mod socket;
mod state;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod grammar;

pub(super) use requests::Begun;
pub use requests::{Requests, Violation};
pub(super) use socket::{Course, Strict};
pub use state::Unclear;
