//! The segments that a path template captures of one path.

use std::fmt;

use crate::path_template::PathTemplate;
use crate::percent::decoded;

/// What a path template captured of one path, in the order of its captures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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

/// One captured segment. It is shown, and compared, as it reads decoded: `[A-Za-z0-9._~-]+`, not
/// `.` or `..`.
#[derive(Debug, Clone, Copy)]
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

/// Whether these (decoded) bytes may stand for a placeholder in a lock key.
pub(crate) fn is_capture(mut bytes: impl Iterator<Item = u8> + Clone) -> bool {
    let dots = bytes.clone().all(|byte| byte == b'.') && bytes.clone().count() <= 2;
    !dots && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte))
}

/// A name in braces: `[a-z_][a-z0-9_]*`.
pub(crate) fn is_placeholder_name(name: &str) -> bool {
    let is_part = |byte: u8| matches!(byte, b'a'..=b'z' | b'_' | b'0'..=b'9');
    name.bytes().all(is_part) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}
