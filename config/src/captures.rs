//! What a path template captures of one path.

use std::fmt;

use crate::path_template::PathTemplate;
use crate::percent::decoded;

/// What a path template captured of one path, in the order of its captures.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Captures<'p> {
    written: [&'p str; PathTemplate::CAPTURES_MAX],
    count: usize,
}

impl<'p> Captures<'p> {
    pub(crate) fn push(&mut self, written: &'p str) {
        self.written[self.count] = written;
        self.count += 1;
    }

    /// The capture of this number, counted from 0.
    pub fn get(&self, index: usize) -> Option<Capture<'p>> {
        self.written[..self.count].get(index).map(|written| Capture { written })
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Capture<'p>> {
        self.written[..self.count].iter().map(|written| Capture { written })
    }
}

impl fmt::Debug for Captures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One captured segment. It is shown, and compared, as it reads decoded: `[A-Za-z0-9._~-]+`, not `.` or `..`.
#[derive(Clone, Copy)]
pub struct Capture<'p> {
    written: &'p str,
}

impl PartialEq<str> for Capture<'_> {
    fn eq(&self, text: &str) -> bool {
        decoded(self.written).eq(text.bytes())
    }
}

impl fmt::Display for Capture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.written.contains('%') {
            return f.write_str(self.written);
        }
        decoded(self.written).try_for_each(|byte| fmt::Write::write_char(f, char::from(byte)))
    }
}

impl fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Whether these (decoded) bytes may stand for a placeholder in a lock key.
pub(crate) fn is_capture(mut bytes: impl Iterator<Item = u8> + Clone) -> bool {
    let dots = bytes.clone().all(|byte| byte == b'.') && bytes.clone().count() <= 2;
    !dots && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-'))
}

/// A name in braces: `[a-z_][a-z0-9_]*`.
pub(crate) fn is_placeholder_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}
