//! Recognizes whole lines at once, since most heads arrive in one piece. Accepts no line that
//! `grammar.rs` would not accept byte by byte, and leaves every other line to it.

use crate::bytes::{is_token, run_of, run_of_target, run_of_value};
use crate::framing::{CONTENT_LENGTH, is_framing};

/// The length of the request line of HTTP/1.1 at the start of a text, with its CRLF.
pub(crate) fn request_line(text: &[u8]) -> Option<usize> {
    const END: &[u8] = b" HTTP/1.1\r\n";
    let (method, after) = text.split_at_checked(run_of(text, is_token))?;
    let after = after.strip_prefix(b" ")?;
    let target = run_of_target(after);
    let is_line = !method.is_empty() && target > 0 && after.get(target..)?.starts_with(END);
    is_line.then_some(method.len() + 1 + target + END.len())
}

/// The length of the field line at the start of a text, with its CRLF, unless the field is one of
/// framing.
pub(crate) fn field(text: &[u8]) -> Option<usize> {
    let (name, after) = text.split_at_checked(run_of(text, is_token))?;
    let after = after.strip_prefix(b":")?;
    let value = run_of_value(after);
    let is_line = !name.is_empty() && !is_framing(name) && after.get(value..)?.starts_with(b"\r\n");
    is_line.then_some(name.len() + 1 + value + 2)
}

/// The length of the `Content-Length` line at the start of a text, with its CRLF, and its digits.
/// Requires one space.
pub(crate) fn content_length(text: &[u8]) -> Option<(usize, &[u8])> {
    let (name, after) = text.split_at_checked(CONTENT_LENGTH.len())?;
    let after = after.strip_prefix(b": ")?;
    let (digits, end) = after.split_at_checked(run_of(after, |byte| byte.is_ascii_digit()))?;
    let is_line =
        name.eq_ignore_ascii_case(CONTENT_LENGTH) && !digits.is_empty() && end.starts_with(b"\r\n");
    is_line.then_some((name.len() + 2 + digits.len() + 2, digits))
}
