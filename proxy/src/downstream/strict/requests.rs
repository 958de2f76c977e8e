//! Follows the requests of one connection.

use super::bytes::{is_target, is_token, is_value, run_of, run_of_value};
use super::framing::{Field, Framing, Name, chunked_goes_on, is_all_of_chunked, with_size_digit};
use super::state::{State, Unclear};

const VERSION: &[u8] = b"HTTP/1.";

/// Where the requests of one connection begin and end, as far as its bytes have been seen. It keeps none of them.
#[derive(Debug, Clone)]
pub struct Requests {
    state: State,
    /// Heads that have ended.
    heads: u64,
    is_http_1_0: bool,
    name: Name,
    framing: Framing,
    /// Whether a head has ended and its body has not: lines are trailers then.
    in_body: bool,
    /// Bytes of the body, or of the chunk, that have not come. In the line before a chunk: its size so far.
    left: u64,
}

/// The first byte that is not taken, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// How many bytes of those shown last come before it.
    pub offset: usize,
    /// What is wrong with it.
    pub unclear: Unclear,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests {
            state: State::Between,
            heads: 0,
            is_http_1_0: false,
            name: Name::EMPTY,
            framing: Framing::NoBody,
            in_body: false,
            left: 0,
        }
    }
}

impl Requests {
    /// Reads on.
    ///
    /// # Errors
    /// The first byte that has no place where it stands. Nothing may be read after it: where the next request begins is not known.
    pub fn follow(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut rest = bytes;
        loop {
            let run = self.run(rest);
            let Some((byte, behind)) = rest.get(run..).and_then(<[u8]>::split_first) else { return Ok(()) };
            match self.next(*byte) {
                Ok(state) => self.state = state,
                Err(unclear) => return Err(Violation { offset: bytes.len() - behind.len() - 1, unclear }),
            }
            rest = behind;
        }
    }

    /// Whether the last request has ended and nothing has come since, not even an empty line.
    pub fn is_between(&self) -> bool {
        self.state == State::Between
    }

    /// How many heads have ended so far.
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// Whether what comes next belongs to the request whose head ended last.
    pub fn is_in_body(&self) -> bool {
        self.in_body
    }

    /// Whether the next byte is one of a body's own, and not of what stands around it.
    #[cfg(test)]
    pub(super) fn is_in_data(&self) -> bool {
        self.state == State::Data
    }

    /// Passes what changes nothing, and returns how many bytes that are.
    fn run(&mut self, rest: &[u8]) -> usize {
        if self.state == State::Value {
            return run_of_value(rest);
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
                self.state = if self.framing == Framing::Chunked { State::DataCr } else { self.ended() };
            }
            return run;
        }
        0
    }

    /// Where the byte after this one stands.
    fn next(&mut self, byte: u8) -> Result<State, Unclear> {
        match (self.state, byte) {
            (State::Between | State::Blank, b'\r') => Ok(State::BlankLf),
            (State::Between | State::Blank, _) if is_token(byte) => Ok(State::Method),
            (State::BlankLf, b'\n') => Ok(State::Blank),

            (State::Method, b' ') => Ok(State::TargetStart),
            (State::Method, _) if is_token(byte) => Ok(State::Method),
            (State::TargetStart, _) if is_target(byte) => Ok(State::Target),
            (State::Target, b' ') => Ok(State::Version(0)),
            (State::Version(at), _) if VERSION.get(usize::from(at)) == Some(&byte) => Ok(self.version(at)),
            (State::VersionDigit, b'0' | b'1') => {
                self.is_http_1_0 = byte == b'0';
                self.framing = Framing::NoBody;
                Ok(State::VersionCr)
            }
            (State::VersionCr, b'\r') => Ok(State::LineLf),

            (State::LineLf, b'\n') => Ok(State::LineStart),
            (State::LineStart, b'\r') => Ok(State::LastLf),
            (State::LineStart, _) if is_token(byte) => {
                self.name = Name::EMPTY;
                self.name.read(&[byte]);
                Ok(State::Name)
            }
            (State::Name, b':') => self.value(),
            (State::Value, b'\r') => Ok(State::LineLf),
            (State::LastLf, b'\n') => Ok(self.lines_end()),
            _ => self.next_of_framing(byte),
        }
    }

    /// The same for what says where the body ends, and for chunks.
    fn next_of_framing(&mut self, byte: u8) -> Result<State, Unclear> {
        match (self.state, byte) {
            (State::LengthStart | State::LengthEnd | State::CodingStart | State::CodingEnd, b' ' | b'\t') => {
                Ok(self.state)
            }
            (State::LengthStart | State::LengthDigits, b'0'..=b'9') => {
                self.framing = self.framing.with_digit(byte)?;
                Ok(State::LengthDigits)
            }
            (State::LengthDigits, b' ' | b'\t') => Ok(State::LengthEnd),
            (State::LengthDigits | State::LengthEnd | State::CodingEnd, b'\r') => Ok(State::LineLf),
            (State::Coding(read), b' ' | b'\t') if is_all_of_chunked(read) => Ok(State::CodingEnd),
            (State::Coding(read), b'\r') if is_all_of_chunked(read) => Ok(State::LineLf),
            (State::CodingStart, _) => chunked_goes_on(0, byte).map(State::Coding).ok_or(Unclear::Coding),
            (State::Coding(read), _) => chunked_goes_on(read, byte).map(State::Coding).ok_or(Unclear::Coding),

            (State::Size(1..), b'\r') => Ok(State::SizeLf),
            (State::Size(1..), b';') => Ok(State::ExtensionStart),
            (State::Size(digits), _) => {
                self.left = with_size_digit(self.left, digits, byte).ok_or(Unclear::ChunkSize)?;
                Ok(State::Size(digits.saturating_add(1)))
            }
            (State::SizeLf, b'\n') => Ok(self.chunk()),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(self.size_line()),
            _ => self.next_of_extension(byte),
        }
    }

    /// The same for chunk extensions, which are read for their end only (RFC 9112, section 7.1.1, without its spaces).
    fn next_of_extension(&mut self, byte: u8) -> Result<State, Unclear> {
        use State::{
            Extension, ExtensionEnd, ExtensionEscape, ExtensionQuoted, ExtensionStart, ExtensionValue,
            ExtensionValueStart,
        };
        match (self.state, byte) {
            (ExtensionStart | Extension, _) if is_token(byte) => Ok(Extension),
            (Extension, b'=') => Ok(ExtensionValueStart),
            (ExtensionValueStart, b'"') => Ok(ExtensionQuoted),
            (ExtensionValueStart | ExtensionValue, _) if is_token(byte) => Ok(ExtensionValue),
            (ExtensionQuoted, b'"') => Ok(ExtensionEnd),
            (ExtensionQuoted, b'\\') => Ok(ExtensionEscape),
            (ExtensionQuoted | ExtensionEscape, _) if is_value(byte) => Ok(ExtensionQuoted),
            (Extension | ExtensionValue | ExtensionEnd, b';') => Ok(ExtensionStart),
            (Extension | ExtensionValue | ExtensionEnd, b'\r') => Ok(State::SizeLf),
            _ => Err(self.unclear(byte)),
        }
    }

    /// Behind `at + 1` bytes of the version.
    fn version(&self, at: u8) -> State {
        let read = at.saturating_add(1);
        if usize::from(read) == VERSION.len() { State::VersionDigit } else { State::Version(read) }
    }

    /// Behind a field's colon.
    fn value(&mut self) -> Result<State, Unclear> {
        if self.in_body {
            return Ok(State::Value); // Framing is not said in trailers; whatever a trailer is named, it says nothing.
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

    /// Behind the empty line of a head or of trailers.
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

    /// Behind the line with a chunk's size. Trailers follow the last chunk.
    fn chunk(&self) -> State {
        if self.left == 0 { State::LineStart } else { State::Data }
    }

    /// Behind the last byte of a request with a body.
    fn ended(&mut self) -> State {
        self.in_body = false;
        State::Between
    }

    /// What is wrong with a byte that has no place.
    fn unclear(&self, byte: u8) -> Unclear {
        if byte == b'\n' {
            return Unclear::LineEnd;
        }
        match self.state {
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
