//! The two fields that say where a request ends, found among all others.

use super::state::Unclear;

pub(super) const CONTENT_LENGTH: &[u8] = b"content-length";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding";
const CHUNKED: &[u8] = b"chunked";

/// The longest body: what hyper takes for one, and every language's signed 64-bit number holds.
const LENGTH_MAX: u64 = i64::MAX as u64;
/// The most digits of a chunk's size. More could be zeros in front, or a number that some readers cut off.
const SIZE_DIGITS_MAX: u8 = 16;

/// A field name that is being read: which of the two it may still become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    read: usize,
    may_be_length: bool,
    may_be_coding: bool,
}

/// Which field a name turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    ContentLength,
    TransferEncoding,
    Other,
}

impl Name {
    pub(super) const EMPTY: Name = Name { read: 0, may_be_length: true, may_be_coding: true };

    pub(super) fn read(&mut self, part: &[u8]) {
        self.may_be_length = self.may_be_length && goes_on(CONTENT_LENGTH, self.read, part);
        self.may_be_coding = self.may_be_coding && goes_on(TRANSFER_ENCODING, self.read, part);
        self.read = self.read.saturating_add(part.len());
    }

    pub(super) fn field(self) -> Field {
        match self.read {
            length if self.may_be_length && length == CONTENT_LENGTH.len() => Field::ContentLength,
            length if self.may_be_coding && length == TRANSFER_ENCODING.len() => Field::TransferEncoding,
            _ => Field::Other,
        }
    }
}

/// Whether this is the name of one of the two.
pub(super) fn says_framing(name: &[u8]) -> bool {
    let begins_like_one = matches!(name.first(), Some(b'C' | b'c' | b'T' | b't'));
    begins_like_one && [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// Whether `part` is what `name` has from `at` on, in any case.
fn goes_on(name: &[u8], at: usize, part: &[u8]) -> bool {
    let rest = name.get(at..).unwrap_or_default();
    rest.get(..part.len()).is_some_and(|expected| expected.eq_ignore_ascii_case(part))
}

/// Where a request's body ends, as far as its head has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// It has none.
    NoBody,
    /// After so many bytes.
    Length(u64),
    /// With the last chunk.
    Chunked,
}

impl Framing {
    /// Begins a length of which no digit has been read.
    pub(super) fn begin_length(self) -> Result<Framing, Unclear> {
        match self {
            Framing::NoBody => Ok(Framing::Length(0)),
            Framing::Length(_) => Err(Unclear::TwoLengths),
            Framing::Chunked => Err(Unclear::LengthAndCoding),
        }
    }

    /// The same with one more digit.
    pub(super) fn with_digit(self, digit: u8) -> Result<Framing, Unclear> {
        let Framing::Length(so_far) = self else { return Err(Unclear::Length) };
        let longer = so_far.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit.wrapping_sub(b'0'))));
        longer.filter(|length| *length <= LENGTH_MAX).map(Framing::Length).ok_or(Unclear::Length)
    }

    /// Begins a transfer coding, which has to be `chunked`.
    pub(super) fn begin_coding(self, is_http_1_0: bool) -> Result<Framing, Unclear> {
        match self {
            Framing::NoBody if is_http_1_0 => Err(Unclear::CodingInHttp10),
            Framing::NoBody => Ok(Framing::Chunked),
            Framing::Length(_) => Err(Unclear::LengthAndCoding),
            Framing::Chunked => Err(Unclear::Coding),
        }
    }
}

/// The next letter of `chunked` of which `read` have been read. `None` if it is another, or one too many.
pub(super) fn chunked_goes_on(read: u8, letter: u8) -> Option<u8> {
    let expected = CHUNKED.get(usize::from(read))?;
    (letter.to_ascii_lowercase() == *expected).then(|| read.saturating_add(1))
}

/// Whether that is all of `chunked`.
pub(super) fn is_all_of_chunked(read: u8) -> bool {
    usize::from(read) == CHUNKED.len()
}

/// A chunk's size with one more digit, after `digits` of them. `None` if that is no digit, or one too many.
pub(super) fn with_size_digit(so_far: u64, digits: u8, digit: u8) -> Option<u64> {
    let value = char::from(digit).to_digit(16)?;
    (digits < SIZE_DIGITS_MAX).then_some(so_far << 4 | u64::from(value))
}
