//! Why bytes are rejected.

/// The rule of the grammar that a byte breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A line does not end with CRLF (RFC 9112, section 2.2).
    #[error("a line that does not end with CRLF")]
    LineEnd,
    /// The request line is not a method, a target and HTTP/1.0 or 1.1 with one space between them
    /// (section 3).
    #[error(
        "a request line that is not a method, a target and HTTP/1.0 or 1.1, with one space between them (byte 0x20 in a target has to be percent-encoded)"
    )]
    RequestLine,
    /// A target contains a control byte or `#` (section 3.2).
    #[error("byte {0:#04x} in the target, where it has to be percent-encoded")]
    Target(u8),
    /// A line does not begin with a field name and its colon (section 5). Folded lines (section
    /// 5.2) are such lines.
    #[error("a line that does not begin with a field name and a colon")]
    Name,
    /// A field value contains a control byte (RFC 9110, section 5.5).
    #[error("a control byte in a field value")]
    Value,
    /// `Content-Length` is not a number below 2⁶³ (RFC 9110, section 8.6).
    #[error("a Content-Length that is no number, or too large a one")]
    Length,
    /// A head has two `Content-Length` fields, equal or not (RFC 9112, section 6.3).
    #[error("two Content-Length")]
    TwoLengths,
    /// A head has both `Content-Length` and `Transfer-Encoding` (section 6.1).
    #[error("Content-Length and Transfer-Encoding")]
    LengthAndCoding,
    /// `Transfer-Encoding` is not `chunked`, alone and once (section 6.1).
    #[error("a Transfer-Encoding that is not `chunked` alone")]
    Coding,
    /// A request of HTTP/1.0 has a `Transfer-Encoding` (section 6.1).
    #[error("Transfer-Encoding in HTTP/1.0")]
    CodingInHttp10,
    /// A chunk's size is not 1 to 16 hexadecimal digits (section 7.1).
    #[error("a chunk whose size is not 1 to 16 hexadecimal digits")]
    ChunkSize,
    /// A chunk extension is not a name, or a name and a value (section 7.1.1).
    #[error("a chunk extension that is not a name, or a name and a value")]
    ChunkExtension,
    /// A chunk's data is shorter or longer than its size (section 7.1).
    #[error("a chunk that is not as long as its size")]
    ChunkEnd,
}

/// The first byte that the grammar does not allow, and the rule that this byte breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// Number of bytes before it in the slice that was read last.
    pub offset: usize,
    /// The rule that it breaks.
    pub error: GrammarError,
}
