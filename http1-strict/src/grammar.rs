//! The state machine that reads the requests of one connection.

use crate::bytes::{is_encoded_in_target, is_target, is_token, is_value, run_of};
use crate::error::{GrammarError, Violation};
use crate::framing::{Field, Framing, Name, chunked_goes_on, is_all_of_chunked, with_size_digit};
use crate::state::State;

const VERSION: &[u8] = b"HTTP/1.";

/// Reads the requests of one connection, byte by byte or piece by piece, and finds where each
/// begins and ends.
///
/// Keeps no bytes. HTTP/1.0 and 1.1, and empty lines before a request (RFC 9112, section 2.2), are
/// allowed.
#[derive(Debug, Clone)]
pub struct RequestGrammar {
    state: State,
    /// The number of heads that have ended.
    heads: u64,
    /// The number of bytes in targets that have to be percent-encoded.
    encoded: u64,
    is_http_1_0: bool,
    name: Name,
    framing: Framing,
    /// Whether a head has ended and its body has not. Lines are trailers then.
    in_body: bool,
    /// The bytes of the body or chunk that are yet to come. In the line before a chunk: its size so
    /// far.
    left: u64,
}

/// The part of a request that has begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// Nothing.
    Nothing,
    /// A request's head, or an empty line before it.
    Head,
    /// The body of the request whose head ended last.
    Body,
}

impl Default for RequestGrammar {
    fn default() -> RequestGrammar {
        RequestGrammar {
            state: State::Between,
            heads: 0,
            encoded: 0,
            is_http_1_0: false,
            name: Name::EMPTY,
            framing: Framing::NoBody,
            in_body: false,
            left: 0,
        }
    }
}

impl RequestGrammar {
    /// Reads the next bytes of the connection.
    ///
    /// # Errors
    /// The first byte that the grammar does not allow in its place. Read nothing after it: where
    /// the next request begins is unknown.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut rest = bytes;
        loop {
            let run = self.run(rest);
            let Some((byte, after)) = rest.get(run..).and_then(<[u8]>::split_first) else {
                return Ok(());
            };
            match self.next(*byte) {
                Ok(state) => self.state = state,
                Err(error) => {
                    return Err(Violation { offset: bytes.len() - after.len() - 1, error });
                }
            }
            rest = after;
        }
    }

    /// Whether the last request has ended and nothing follows it, not even an empty line.
    pub fn is_between(&self) -> bool {
        self.state == State::Between
    }

    /// The number of heads that have ended.
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// The number of bytes so far in targets for which [`StrictReader`](crate::StrictReader) returns
    /// a percent-encoding.
    pub(crate) fn encoded(&self) -> u64 {
        self.encoded
    }

    /// Whether the next byte belongs to the body, chunk lines or trailers of the request whose head
    /// ended last.
    pub fn is_in_body(&self) -> bool {
        self.in_body
    }

    /// Returns the part of a request that has begun and not ended.
    pub fn unfinished(&self) -> Unfinished {
        match (self.in_body, self.state) {
            (true, _) => Unfinished::Body,
            (false, State::Between) => Unfinished::Nothing,
            (false, _) => Unfinished::Head,
        }
    }

    /// Whether the head of a request has begun, and not only empty lines before it.
    pub(crate) fn is_in_head(&self) -> bool {
        !self.in_body && !matches!(self.state, State::Between | State::Blank | State::BlankLf)
    }

    /// Whether the next byte is a body's own, rather than part of a chunk line or of trailers.
    #[cfg(test)]
    pub(crate) fn is_in_data(&self) -> bool {
        self.state == State::Data
    }

    /// Reads the bytes that do not change the state, and returns their number.
    fn run(&mut self, rest: &[u8]) -> usize {
        if self.state == State::Value {
            return run_of(rest, is_value);
        }
        if self.state == State::Name {
            let run = run_of(rest, is_token);
            self.name.read(rest.get(..run).unwrap_or_default());
            return run;
        }
        if self.state == State::Target {
            return run_of(rest, is_target);
        }
        if self.state == State::Data {
            let run = usize::try_from(self.left).map_or(rest.len(), |left| left.min(rest.len()));
            self.left = self.left.saturating_sub(run as u64);
            if self.left == 0 {
                self.state =
                    if self.framing == Framing::Chunked { State::DataCr } else { self.ended() };
            }
            return run;
        }
        0
    }

    /// The place of the byte after this one.
    fn next(&mut self, byte: u8) -> Result<State, GrammarError> {
        let next = match self.state {
            State::Between | State::Blank if byte == b'\r' => Some(State::BlankLf),
            State::Between | State::Blank => is_token(byte).then_some(State::Method),
            State::BlankLf => (byte == b'\n').then_some(State::Blank),

            State::Method if byte == b' ' => Some(State::TargetStart),
            State::Method => is_token(byte).then_some(State::Method),
            State::Target if byte == b' ' => Some(State::Version(0)),
            State::TargetStart | State::Target => self.in_target(byte).then_some(State::Target),
            State::Version(at) => {
                (VERSION.get(usize::from(at)) == Some(&byte)).then(|| after_version(at))
            }
            State::VersionDigit => {
                matches!(byte, b'0' | b'1').then(|| self.begin_head(byte == b'0'))
            }
            State::VersionCr => (byte == b'\r').then_some(State::LineLf),

            State::LineLf => (byte == b'\n').then_some(State::LineStart),
            State::LineStart if byte == b'\r' => Some(State::LastLf),
            State::LineStart => is_token(byte).then(|| self.begin_name(byte)),
            State::Name if byte == b':' => Some(self.value()?),
            State::Name => None,
            State::Value => (byte == b'\r').then_some(State::LineLf),
            State::LastLf => (byte == b'\n').then(|| self.lines_end()),

            State::LengthStart | State::LengthDigits | State::LengthEnd => {
                self.next_of_length(byte)?
            }
            State::CodingStart | State::Coding(_) | State::CodingEnd => self.next_of_coding(byte),

            State::Size(digits) => self.next_of_size(digits, byte),
            State::SizeLf => (byte == b'\n').then(|| self.chunk()),
            State::Data => None,
            State::DataCr => (byte == b'\r').then_some(State::DataLf),
            State::DataLf => (byte == b'\n').then(|| self.size_line()),

            State::ExtensionStart
            | State::Extension
            | State::ExtensionValueStart
            | State::ExtensionValue
            | State::ExtensionQuoted
            | State::ExtensionEscape
            | State::ExtensionEnd => self.state.next_of_extension(byte),
        };
        next.ok_or_else(|| self.state.error(byte))
    }

    fn in_target(&mut self, byte: u8) -> bool {
        let is_encoded = is_encoded_in_target(byte);
        self.encoded = self.encoded.wrapping_add(u64::from(is_encoded));
        is_encoded || is_target(byte)
    }

    fn next_of_length(&mut self, byte: u8) -> Result<Option<State>, GrammarError> {
        Ok(match (self.state, byte) {
            (State::LengthStart | State::LengthDigits, b'0'..=b'9') => {
                self.framing = self.framing.with_digit(byte)?;
                Some(State::LengthDigits)
            }
            (State::LengthStart, b' ' | b'\t') => Some(State::LengthStart),
            (State::LengthDigits | State::LengthEnd, b' ' | b'\t') => Some(State::LengthEnd),
            (State::LengthDigits | State::LengthEnd, b'\r') => Some(State::LineLf),
            _ => None,
        })
    }

    fn next_of_coding(&self, byte: u8) -> Option<State> {
        match (self.state, byte) {
            (State::CodingStart, b' ' | b'\t') => Some(State::CodingStart),
            (State::CodingStart, _) => chunked_goes_on(0, byte).map(State::Coding),
            (State::Coding(read), b' ' | b'\t') if is_all_of_chunked(read) => {
                Some(State::CodingEnd)
            }
            (State::Coding(read), b'\r') if is_all_of_chunked(read) => Some(State::LineLf),
            (State::Coding(read), _) => chunked_goes_on(read, byte).map(State::Coding),
            (State::CodingEnd, b' ' | b'\t') => Some(State::CodingEnd),
            (State::CodingEnd, b'\r') => Some(State::LineLf),
            _ => None,
        }
    }

    fn next_of_size(&mut self, digits: u8, byte: u8) -> Option<State> {
        match byte {
            b'\r' if digits > 0 => Some(State::SizeLf),
            b';' if digits > 0 => Some(State::ExtensionStart),
            _ => {
                self.left = with_size_digit(self.left, digits, byte)?;
                Some(State::Size(digits.saturating_add(1)))
            }
        }
    }

    fn begin_head(&mut self, is_http_1_0: bool) -> State {
        self.is_http_1_0 = is_http_1_0;
        self.framing = Framing::NoBody;
        State::VersionCr
    }

    fn begin_name(&mut self, first: u8) -> State {
        self.name = Name::EMPTY;
        self.name.read(&[first]);
        State::Name
    }

    /// The place after a field's colon.
    fn value(&mut self) -> Result<State, GrammarError> {
        if self.in_body {
            return Ok(State::Value); // Trailers do not define framing, whatever their names.
        }
        match self.name.field() {
            Field::Other => Ok(State::Value),
            Field::ContentLength => {
                self.framing = self.framing.begin_length()?;
                Ok(State::LengthStart)
            }
            Field::TransferEncoding => {
                self.framing = self.framing.begin_coding(self.is_http_1_0)?;
                Ok(State::CodingStart)
            }
        }
    }

    /// The place after the empty line of a head or of trailers.
    fn lines_end(&mut self) -> State {
        if self.in_body {
            return self.ended();
        }
        self.heads = self.heads.saturating_add(1);
        match self.framing {
            Framing::NoBody | Framing::Length(0) => State::Between,
            Framing::Length(length) => {
                self.in_body = true;
                self.left = length;
                State::Data
            }
            Framing::Chunked => {
                self.in_body = true;
                self.size_line()
            }
        }
    }

    fn size_line(&mut self) -> State {
        self.left = 0;
        State::Size(0)
    }

    /// The place after the line with a chunk's size. Trailers follow the last chunk.
    fn chunk(&self) -> State {
        if self.left == 0 { State::LineStart } else { State::Data }
    }

    /// The place after the last byte of a request with a body.
    fn ended(&mut self) -> State {
        self.in_body = false;
        State::Between
    }
}

/// The place after `at + 1` bytes of the version.
fn after_version(at: u8) -> State {
    let read = at.saturating_add(1);
    if usize::from(read) == VERSION.len() { State::VersionDigit } else { State::Version(read) }
}
