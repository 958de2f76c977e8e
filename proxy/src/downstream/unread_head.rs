//! Requests over HTTP/1 that never become one: their heads were not read.

use http1_strict::GrammarError;

/// Why the head of a request over HTTP/1 was not read. Its client was answered by the connection, which then ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadHead {
    /// It is longer than a head may be, or has more fields: 431.
    #[error("a head that is too long, or has too many fields")]
    TooLarge,
    /// The grammar does not have a byte of it: 400.
    #[error(transparent)]
    Unclear(GrammarError),
    /// The grammar has it, and hyper does not, as with some targets: 400.
    #[error("a target or a field that cannot be read")]
    Unknown,
}
