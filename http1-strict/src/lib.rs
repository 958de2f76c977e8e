//! The request grammar of HTTP/1.1 (RFC 9112), for servers whose HTTP library accepts more than
//! that. Does not parse: it builds no request and decodes no body.
//!
//! One thing is changed: a target has `"`, `<`, `>`, a backtick and bytes above 0x7F
//! percent-encoded. Parsers of URIs refuse some of these, or disagree on them.
//!
//! Most servers, hyper among them, accept a bare line feed as the end of a line, a `Content-Length`
//! that is given twice, or one beside `Transfer-Encoding`. A proxy in front of such a server may
//! read the same bytes as other requests: that is how requests are smuggled. [`StrictReader`] wraps
//! the reading half of a connection. It passes bytes up to the first that the grammar does not
//! allow in its place, and nothing after it. What passes has one reading, so every correct server
//! finds the same requests in it.
//!
//! [`Progress`] shows how far the requests of a connection were read, and why reading stopped.
//! [`RequestGrammar`] is the state machine alone, for bytes that come from elsewhere.
//!
//! # Stricter than RFC 9112
//!
//! The RFC lets servers accept some of these bytes. This grammar allows none of them:
//!
//! | bytes | RFC 9112 |
//! |---|---|
//! | a line that ends with a bare LF | section 2.2: may be accepted |
//! | two `Content-Length`, even if equal, or a list | section 6.3: may be accepted when equal |
//! | `Content-Length` beside `Transfer-Encoding` | section 6.1: may be accepted without the length |
//! | a transfer coding other than `chunked` alone | section 6.1: may be accepted, or 501 |
//! | `Transfer-Encoding` in HTTP/1.0 | section 6.1: the connection must close |
//! | spaces in a chunk extension | section 7.1.1: must be accepted |
//! | `#` in a target | section 3.2: not allowed, often accepted |
//! | a version other than 1.0 and 1.1 | section 2.3: 1.2 may be read as 1.1 |
//!
//! Bytes above 0x7F may stand in a target and in a field value. Which target forms and which fields
//! make sense is left to the server behind.
//!
//! # Limits
//!
//! A body has at most 2⁶³ − 1 bytes, and a chunk's size at most 16 digits. The length of heads, of
//! trailers and of chunk extensions has no limit here: the server behind has one.

mod bytes;
mod error;
mod framing;
mod grammar;
mod reader;
mod state;

#[cfg(test)]
mod agreement_tests;
#[cfg(test)]
mod grammar_tests;

pub use error::{GrammarError, Violation};
pub use grammar::{RequestGrammar, Unfinished};
pub use reader::{Progress, StrictReader};
