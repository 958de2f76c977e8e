//! A worker's response over HTTP/1 whose head hyper cannot read: what is wrong with it, for the log
//! and the client, and where it ends. Passes nothing of it on.

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;

use crate::wire::{HTTP1_BUFFER_BYTES, Socket};

/// How much of a name or of a line is shown.
const SHOWN_BYTES_MAX: usize = 64;

/// What there is of the response.
pub(super) struct UnreadResponse {
    /// The beginning: of the head, or of what follows it if hyper has taken that apart.
    bytes: BytesMut,
    /// How much came, with what is not kept.
    count: u64,
    /// What is wrong.
    why: String,
    begins_with_head: bool,
}

impl UnreadResponse {
    /// `read` is what hyper had read of it when it gave up.
    pub(super) fn new(error: &hyper::Error, read: Bytes) -> UnreadResponse {
        let told = error.to_string();
        // After these, hyper no longer has the head.
        let is_of_framing = told.contains("content-length") || told.contains("transfer-encoding");
        let why = if error.is_parse_too_large() {
            "more than limits.upstream_headers_max fields, or too long ones".to_owned()
        } else if is_of_framing {
            told
        } else {
            fault_of(&read).unwrap_or(told)
        };
        let count = read.len() as u64;
        UnreadResponse { bytes: read.into(), count, why, begins_with_head: !is_of_framing }
    }

    /// What is wrong with its head. Has no value of a field.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// Reads until it has ended: by the length that it names, or with its connection. Returns
    /// whether it has, and was not lost.
    ///
    /// # Cancel safety
    /// What was read is lost.
    pub(super) async fn has_ended(mut self, mut socket: Socket) -> bool {
        self.bytes.reserve(4096);
        while self.length().is_none_or(|length| self.count < length) {
            self.bytes.truncate(HTTP1_BUFFER_BYTES);
            let kept = self.bytes.len();
            match socket.read_buf(&mut self.bytes).await {
                Ok(0) => return true,
                Ok(count) => self.count += count as u64,
                Err(_) => return false,
            }
            if !self.begins_with_head {
                self.bytes.truncate(kept);
            }
        }
        true
    }

    /// The length of head and body, if the head names one, and nothing else of the kind.
    fn length(&self) -> Option<u64> {
        if !self.begins_with_head || !self.bytes.starts_with(b"HTTP/1.") {
            return None;
        }
        let end = self.bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let mut lengths = self.bytes[..end].split(|byte| *byte == b'\n').filter_map(|line| {
            let (name, value) = split_field(line)?;
            let frames = name.eq_ignore_ascii_case(b"content-length")
                || name.eq_ignore_ascii_case(b"transfer-encoding");
            frames.then_some((name, value))
        });
        let (name, length) = lengths.next()?;
        let is_one = lengths.next().is_none() && name.eq_ignore_ascii_case(b"content-length");
        let is_number = length.iter().all(u8::is_ascii_digit);
        let length: u64 = std::str::from_utf8(length).ok()?.parse().ok()?;
        (is_one && is_number).then(|| (end as u64 + 4).saturating_add(length))
    }
}

fn split_field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

/// The first line of a head that hyper does not take.
fn fault_of(head: &[u8]) -> Option<String> {
    let mut lines = head.trim_ascii_start().split(|byte| *byte == b'\n');
    let first = without_cr(lines.next()?);
    let is_status = |rest: &[u8]| {
        rest.len() >= 3
            && rest[..3].iter().all(u8::is_ascii_digit)
            && matches!(rest.get(3), None | Some(b' '))
    };
    let rest = first.strip_prefix(b"HTTP/1.1 ").or_else(|| first.strip_prefix(b"HTTP/1.0 "));
    if !rest.is_some_and(is_status) {
        return Some(format!(
            "the line \"{}\", which is no status of HTTP/1.0 or 1.1",
            shown(first)
        ));
    }
    if first.iter().any(|byte| is_control(*byte)) {
        return Some("a control byte in the status line".to_owned());
    }
    let mut name = None;
    for line in lines.map(without_cr).take_while(|line| !line.is_empty()) {
        let goes_on = line.starts_with(b" ") || line.starts_with(b"\t");
        if !goes_on {
            let Some((of_line, _)) = split_field(line) else {
                return Some(format!("a line without a colon: \"{}\"", shown(line)));
            };
            if http::HeaderName::from_bytes(of_line).is_err() {
                return Some(format!("the field name \"{}\"", shown(of_line)));
            }
            name = Some(of_line);
        }
        let Some(name) = name else {
            return Some("a line that begins with a blank, before any field".to_owned());
        };
        if line.iter().any(|byte| is_control(*byte)) {
            return Some(format!("a control byte in the field \"{}\"", shown(name)));
        }
    }
    None
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && byte != b'\t'
}

fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN_BYTES_MAX { "…" } else { "" };
    format!("{}{more}", bytes[..bytes.len().min(SHOWN_BYTES_MAX)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_the_line_or_the_field() {
        for (head, told) in [
            ("HTTP/1.2 200 OK\r\n", "the line \"HTTP/1.2 200 OK\", which is no status"),
            ("-ERR what\r\n", "the line \"-ERR what\""),
            ("\x15\x03\x01", "the line \"\\x15\\x03\\x01\""),
            ("HTTP/1.1 20 OK\r\n", "the line \"HTTP/1.1 20 OK\""),
            ("HTTP/1.1 200 O\rK\r\n", "a control byte in the status line"),
            ("HTTP/1.1 200 OK\r\nA: b\r\nX Y: b\r\n\r\n", "the field name \"X Y\""),
            ("HTTP/1.1 200 OK\r\nX-A : b\r\n\r\n", "the field name \"X-A \""),
            ("HTTP/1.1 200 OK\r\n: b\r\n\r\n", "the field name \"\""),
            ("HTTP/1.1 200\r\nno colon\r\n\r\n", "a line without a colon: \"no colon\""),
            ("HTTP/1.1 200\r\n A: b\r\n\r\n", "a line that begins with a blank"),
            ("HTTP/1.1 200\r\nA: b\r\n c\0d\r\n\r\n", "a control byte in the field \"A\""),
        ] {
            let fault = fault_of(head.as_bytes()).unwrap_or_default();
            assert!(fault.starts_with(told), "{head:?}: {fault}");
        }
        assert_eq!(fault_of(b"HTTP/1.1 200 OK\r\nA: \xe9\r\n\tb\r\n\r\nX Y: Z"), None);
    }
}
