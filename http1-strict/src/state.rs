//! The places that a byte can have in a request, and the error for a byte that may not stand there.

use crate::bytes::{is_token, is_value};
use crate::error::GrammarError;

/// The place of the next byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// After the last byte of a request, or at the start.
    Between,
    /// After an empty line between two requests.
    Blank,
    /// After the CR of an empty line between two requests.
    BlankLf,
    Method,
    /// The first byte of the target.
    TargetStart,
    Target,
    /// After this many bytes of `HTTP/1.`.
    Version(u8),
    VersionDigit,
    VersionCr,
    /// After the CR of a line of the head or of the trailers.
    LineLf,
    /// The first byte of a line: a field's, or the CR of the empty line.
    LineStart,
    Name,
    Value,
    /// Before the length.
    LengthStart,
    LengthDigits,
    /// In the spaces after the length.
    LengthEnd,
    /// Before the transfer coding.
    CodingStart,
    /// After this many letters of `chunked`.
    Coding(u8),
    /// In the spaces after the transfer coding.
    CodingEnd,
    /// After the CR of the empty line that ends the head or the trailers.
    LastLf,
    /// In a body of known length, or in a chunk's data.
    Data,
    /// After this many digits of a chunk's size.
    Size(u8),
    ExtensionStart,
    Extension,
    ExtensionValueStart,
    ExtensionValue,
    ExtensionQuoted,
    /// After a backslash between quotes.
    ExtensionEscape,
    /// After the closing quote.
    ExtensionEnd,
    /// After the CR of the line with a chunk's size.
    SizeLf,
    /// After a chunk's data.
    DataCr,
    DataLf,
}

impl State {
    /// The place after this byte of a chunk extension (RFC 9112, section 7.1.1, without its
    /// spaces). Names and values are ignored.
    pub(crate) fn next_of_extension(self, byte: u8) -> Option<State> {
        use State::{
            Extension, ExtensionEnd, ExtensionEscape, ExtensionQuoted, ExtensionStart,
            ExtensionValue, ExtensionValueStart,
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

    /// The error for a byte that may not stand here.
    pub(crate) fn error(self, byte: u8) -> GrammarError {
        if byte == b'\n' {
            return GrammarError::LineEnd;
        }
        match self {
            State::Between
            | State::Blank
            | State::Method
            | State::Version(_)
            | State::VersionDigit => GrammarError::RequestLine,
            State::TargetStart | State::Target if byte != b' ' => GrammarError::Target(byte),
            State::TargetStart | State::Target => GrammarError::RequestLine,
            State::LineStart | State::Name => GrammarError::Name,
            State::Value => GrammarError::Value,
            State::LengthStart | State::LengthDigits | State::LengthEnd => GrammarError::Length,
            State::CodingStart | State::Coding(_) | State::CodingEnd => GrammarError::Coding,
            State::Size(_) => GrammarError::ChunkSize,
            State::ExtensionStart
            | State::Extension
            | State::ExtensionValueStart
            | State::ExtensionValue
            | State::ExtensionQuoted
            | State::ExtensionEscape
            | State::ExtensionEnd => GrammarError::ChunkExtension,
            State::Data | State::DataCr => GrammarError::ChunkEnd,
            State::BlankLf
            | State::VersionCr
            | State::LineLf
            | State::LastLf
            | State::SizeLf
            | State::DataLf => GrammarError::LineEnd,
        }
    }
}
