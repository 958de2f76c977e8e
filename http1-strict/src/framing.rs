//! The two fields that define where a request ends, and the numbers that they and chunks contain.

use crate::error::GrammarError;

const CONTENT_LENGTH: &[u8] = b"content-length";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding";
const CHUNKED: &[u8] = b"chunked";

/// The longest body. hyper accepts no longer one, and the signed 64-bit numbers of other servers
/// hold none.
const LENGTH_MAX: u64 = i64::MAX as u64;
/// The most digits of a chunk's size. More digits are leading zeros, or a number that other servers
/// may truncate.
const SIZE_DIGITS_MAX: u8 = 16;

/// The field name that is being read, and which of the two fields it may still be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    read: usize,
    may_be_length: bool,
    may_be_coding: bool,
}

/// The field that a whole name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    ContentLength,
    TransferEncoding,
    Other,
}

impl Name {
    pub(crate) const EMPTY: Name = Name { read: 0, may_be_length: true, may_be_coding: true };

    pub(crate) fn read(&mut self, part: &[u8]) {
        self.may_be_length = self.may_be_length && goes_on(CONTENT_LENGTH, self.read, part);
        self.may_be_coding = self.may_be_coding && goes_on(TRANSFER_ENCODING, self.read, part);
        self.read = self.read.saturating_add(part.len());
    }

    pub(crate) fn field(self) -> Field {
        match self.read {
            length if self.may_be_length && length == CONTENT_LENGTH.len() => Field::ContentLength,
            length if self.may_be_coding && length == TRANSFER_ENCODING.len() => {
                Field::TransferEncoding
            }
            _ => Field::Other,
        }
    }
}

/// Whether `name` continues with `part` at `at`. Ignores case.
fn goes_on(name: &[u8], at: usize, part: &[u8]) -> bool {
    let rest = name.get(at..).unwrap_or_default();
    rest.get(..part.len()).is_some_and(|expected| expected.eq_ignore_ascii_case(part))
}

/// Where a request's body ends, by the part of its head that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The request has no body.
    NoBody,
    /// After this many bytes.
    Length(u64),
    /// After the last chunk and the trailers.
    Chunked,
}

impl Framing {
    /// Begins a length, before its first digit.
    pub(crate) fn begin_length(self) -> Result<Framing, GrammarError> {
        match self {
            Framing::NoBody => Ok(Framing::Length(0)),
            Framing::Length(_) => Err(GrammarError::TwoLengths),
            Framing::Chunked => Err(GrammarError::LengthAndCoding),
        }
    }

    /// Appends a digit to the length.
    pub(crate) fn with_digit(self, digit: u8) -> Result<Framing, GrammarError> {
        let Framing::Length(so_far) = self else { return Err(GrammarError::Length) };
        let longer = so_far
            .checked_mul(10)
            .and_then(|tens| tens.checked_add(u64::from(digit.wrapping_sub(b'0'))));
        longer
            .filter(|length| *length <= LENGTH_MAX)
            .map(Framing::Length)
            .ok_or(GrammarError::Length)
    }

    /// Begins a transfer coding. The only one is `chunked`.
    pub(crate) fn begin_coding(self, is_http_1_0: bool) -> Result<Framing, GrammarError> {
        match self {
            Framing::NoBody if is_http_1_0 => Err(GrammarError::CodingInHttp10),
            Framing::NoBody => Ok(Framing::Chunked),
            Framing::Length(_) => Err(GrammarError::LengthAndCoding),
            Framing::Chunked => Err(GrammarError::Coding),
        }
    }
}

/// Counts one more letter of `chunked` after `read` of them. `None` if the letter differs, or is
/// one too many.
pub(crate) fn chunked_goes_on(read: u8, letter: u8) -> Option<u8> {
    let expected = CHUNKED.get(usize::from(read))?;
    (letter.to_ascii_lowercase() == *expected).then(|| read.saturating_add(1))
}

/// Whether this many letters are all of `chunked`.
pub(crate) fn is_all_of_chunked(read: u8) -> bool {
    usize::from(read) == CHUNKED.len()
}

/// Appends a digit to a chunk's size of `digits` digits. `None` if the byte is no digit, or one too
/// many.
pub(crate) fn with_size_digit(so_far: u64, digits: u8, digit: u8) -> Option<u64> {
    let value = char::from(digit).to_digit(16)?;
    (digits < SIZE_DIGITS_MAX).then_some(so_far << 4 | u64::from(value))
}
