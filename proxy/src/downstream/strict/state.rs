//! Where in a request the next byte stands, and what may be wrong with it.

use super::bytes::{is_token, is_value};

/// Where in a request the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Behind the last byte of a request, or at the beginning.
    Between,
    /// Behind an empty line between two requests.
    Blank,
    /// Behind the CR of an empty line between two requests.
    BlankLf,
    Method,
    /// The first byte of the target.
    TargetStart,
    Target,
    /// Behind so many bytes of `HTTP/1.`.
    Version(u8),
    VersionDigit,
    VersionCr,
    /// Behind the CR of a line of the head or of the trailers.
    LineLf,
    /// The first byte of a line: a field's, or the CR of the empty line.
    LineStart,
    Name,
    Value,
    /// Before the length.
    LengthStart,
    LengthDigits,
    /// In the spaces behind the length.
    LengthEnd,
    /// Before the transfer coding.
    CodingStart,
    /// Behind so many letters of `chunked`.
    Coding(u8),
    /// In the spaces behind the transfer coding.
    CodingEnd,
    /// Behind the CR of the empty line that ends the head or the trailers.
    LastLf,
    /// In a body of known length, or in a chunk's data.
    Data,
    /// Behind so many digits of a chunk's size.
    Size(u8),
    ExtensionStart,
    Extension,
    ExtensionValueStart,
    ExtensionValue,
    ExtensionQuoted,
    /// Behind a backslash between quotes.
    ExtensionEscape,
    /// Behind the closing quote.
    ExtensionEnd,
    /// Behind the CR of the line with a chunk's size.
    SizeLf,
    /// Behind a chunk's data.
    DataCr,
    DataLf,
}

impl State {
    /// What follows in a chunk extension. They are read for their end only (RFC 9112, section 7.1.1, without its spaces).
    pub(super) fn next_of_extension(self, byte: u8) -> Option<State> {
        use State::{
            Extension, ExtensionEnd, ExtensionEscape, ExtensionQuoted, ExtensionStart, ExtensionValue,
            ExtensionValueStart,
        };
        match (self, byte) {
            (ExtensionStart | Extension, _) if is_token(byte) => Some(Extension),
            (Extension, b'=') => Some(ExtensionValueStart),
            (ExtensionValueStart, b'"') => Some(ExtensionQuoted),
            (ExtensionValueStart | ExtensionValue, _) if is_token(byte) => Some(ExtensionValue),
            (ExtensionQuoted, b'"') => Some(ExtensionEnd),
            (ExtensionQuoted, b'\\') => Some(ExtensionEscape),
            (ExtensionQuoted | ExtensionEscape, _) if is_value(byte) => Some(ExtensionQuoted),
            (Extension | ExtensionValue | ExtensionEnd, b';') => Some(ExtensionStart),
            (Extension | ExtensionValue | ExtensionEnd, b'\r') => Some(State::SizeLf),
            _ => None,
        }
    }

    /// What is wrong with a byte that has no place.
    pub(super) fn unclear(self, byte: u8) -> Unclear {
        if byte == b'\n' {
            return Unclear::LineEnd;
        }
        match self {
            State::Between
            | State::Blank
            | State::Method
            | State::TargetStart
            | State::Target
            | State::Version(_)
            | State::VersionDigit => Unclear::RequestLine,
            State::LineStart | State::Name => Unclear::Name,
            State::Value => Unclear::Value,
            State::LengthStart | State::LengthDigits | State::LengthEnd => Unclear::Length,
            State::CodingStart | State::Coding(_) | State::CodingEnd => Unclear::Coding,
            State::Size(_) => Unclear::ChunkSize,
            State::ExtensionStart
            | State::Extension
            | State::ExtensionValueStart
            | State::ExtensionValue
            | State::ExtensionQuoted
            | State::ExtensionEscape
            | State::ExtensionEnd => Unclear::ChunkExtension,
            State::Data | State::DataCr => Unclear::ChunkEnd,
            State::BlankLf | State::VersionCr | State::LineLf | State::LastLf | State::SizeLf | State::DataLf => {
                Unclear::LineEnd
            }
        }
    }
}

/// Why a request is not read any further: the grammar does not have this byte here, or a second reading would end the request
/// elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unclear {
    /// A line does not end with CRLF.
    #[error("a line that does not end with CRLF")]
    LineEnd,
    /// The request line is another than RFC 9112, section 3 has it.
    #[error("a request line that is not a method, a target and HTTP/1.0 or 1.1, with one space between them")]
    RequestLine,
    /// A line begins with something else than a field name and its colon; a folded one does.
    #[error("a line that does not begin with a field name and a colon")]
    Name,
    /// A field value has a control byte.
    #[error("a control byte in a field value")]
    Value,
    /// `Content-Length` is no number, or too large a one.
    #[error("a Content-Length that is no number, or too large a one")]
    Length,
    /// `Content-Length` comes twice, whatever it says.
    #[error("two Content-Length")]
    TwoLengths,
    /// `Content-Length` stands beside `Transfer-Encoding`.
    #[error("Content-Length and Transfer-Encoding")]
    LengthAndCoding,
    /// `Transfer-Encoding` is not one `chunked`.
    #[error("a Transfer-Encoding that is not `chunked` alone")]
    Coding,
    /// HTTP/1.0 has no `Transfer-Encoding`.
    #[error("Transfer-Encoding in HTTP/1.0")]
    CodingInHttp10,
    /// A chunk's size is not 1 to 16 hexadecimal digits.
    #[error("a chunk whose size is not 1 to 16 hexadecimal digits")]
    ChunkSize,
    /// A chunk extension is no name, and no name and value.
    #[error("a chunk extension that is not a name, or a name and a value")]
    ChunkExtension,
    /// A chunk's data do not end where its size says.
    #[error("a chunk that is not as long as its size")]
    ChunkEnd,
}
