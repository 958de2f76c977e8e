//! Whole lines at one go. Nearly all heads come in one piece and have nothing odd in them.
//!
//! What is passed here would be passed byte by byte as well; whatever is not is left to that.

use super::bytes::{is_token, run_of, run_of_target, run_of_value};
use super::framing::{CONTENT_LENGTH, says_framing};

/// How long the request line of HTTP/1.1 is that a text begins with.
pub(super) fn request_line(text: &[u8]) -> Option<usize> {
    const END: &[u8] = b" HTTP/1.1\r\n";
    let (method, behind) = text.split_at_checked(run_of(text, is_token))?;
    let behind = behind.strip_prefix(b" ")?;
    let target = run_of_target(behind);
    let is_line = !method.is_empty() && target > 0 && behind.get(target..)?.starts_with(END);
    is_line.then_some(method.len() + 1 + target + END.len())
}

/// How long the field line is that a text begins with, if the field says nothing of framing.
pub(super) fn field(text: &[u8]) -> Option<usize> {
    let (name, behind) = text.split_at_checked(run_of(text, is_token))?;
    let behind = behind.strip_prefix(b":")?;
    let value = run_of_value(behind);
    let is_line = !name.is_empty() && !says_framing(name) && behind.get(value..)?.starts_with(b"\r\n");
    is_line.then_some(name.len() + 1 + value + 2)
}

/// How long the field line is that a text begins with, and the digits in it, if it is a `Content-Length` as nearly all write it.
pub(super) fn content_length(text: &[u8]) -> Option<(usize, &[u8])> {
    let (name, behind) = text.split_at_checked(CONTENT_LENGTH.len())?;
    let behind = behind.strip_prefix(b": ")?;
    let (digits, end) = behind.split_at_checked(run_of(behind, |byte| byte.is_ascii_digit()))?;
    let is_line = name.eq_ignore_ascii_case(CONTENT_LENGTH) && !digits.is_empty() && end.starts_with(b"\r\n");
    is_line.then_some((name.len() + 2 + digits.len() + 2, digits))
}
