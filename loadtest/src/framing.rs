//! Where a message's body ends, for readers that throw the body away (RFC 9112, section 6).
//!
//! The generator and its worker share a machine with what they measure, so they read messages as cheaply as they can: the
//! head by `httparse`, the body by counting.

use anyhow::{Context, bail, ensure};
use httparse::Header;

/// How many headers a message may have.
pub(crate) const HEADERS_MAX: usize = 64;
/// How long the line before a chunk, or a trailer, may be.
const LINE_BYTES_MAX: usize = 8192;

/// What is left of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes, none if it has ended.
    Bytes(u64),
    /// Chunks.
    Chunks(Chunk),
    /// Whatever comes before the connection is closed.
    UntilClose,
}

/// Where in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// Before the line that has its size.
    Size,
    /// In its data, with so many bytes to come, the line's end after them included.
    Data(u64),
    /// After the last chunk, where trailers are.
    Trailers,
}

impl Body {
    /// None.
    pub(crate) const NONE: Body = Body::Bytes(0);

    /// As the headers of a message say; `otherwise` if they don't.
    pub(crate) fn of(headers: &[Header<'_>], otherwise: Body) -> anyhow::Result<Body> {
        let value = |name: &str| headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        if let Some(coding) = value("transfer-encoding") {
            ensure!(coding.value.eq_ignore_ascii_case(b"chunked"), "a transfer coding other than chunked");
            return Ok(Body::Chunks(Chunk::Size));
        }
        let Some(length) = value("content-length") else { return Ok(otherwise) };
        let length = std::str::from_utf8(length.value)?.parse();
        Ok(Body::Bytes(length.context("a content length that is no number")?))
    }

    /// Whether there is no more of it.
    pub(crate) fn has_ended(self) -> bool {
        self == Body::NONE
    }

    /// Takes what these bytes have of it, and says how many those were. None, if it takes more bytes to know.
    pub(crate) fn skip(&mut self, bytes: &[u8]) -> anyhow::Result<usize> {
        let mut taken = 0;
        loop {
            let step = self.step(&bytes[taken..])?;
            taken += step;
            if step == 0 || self.has_ended() {
                return Ok(taken);
            }
        }
    }

    fn step(&mut self, bytes: &[u8]) -> anyhow::Result<usize> {
        match self {
            Body::UntilClose => Ok(bytes.len()),
            Body::Bytes(left) => Ok(count_down(left, bytes)),
            Body::Chunks(Chunk::Data(left)) => {
                let taken = count_down(left, bytes);
                if *left == 0 {
                    *self = Body::Chunks(Chunk::Size);
                }
                Ok(taken)
            }
            Body::Chunks(Chunk::Size) => {
                let Some(line) = line(bytes)? else { return Ok(0) };
                *self = Body::Chunks(match size(line)? {
                    0 => Chunk::Trailers,
                    size => Chunk::Data(size + 2),
                });
                Ok(line.len())
            }
            Body::Chunks(Chunk::Trailers) => {
                let Some(line) = line(bytes)? else { return Ok(0) };
                if line.trim_ascii().is_empty() {
                    *self = Body::NONE;
                }
                Ok(line.len())
            }
        }
    }
}

fn count_down(left: &mut u64, bytes: &[u8]) -> usize {
    let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= taken as u64;
    taken
}

/// The first line with its end, if it is whole.
fn line(bytes: &[u8]) -> anyhow::Result<Option<&[u8]>> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    ensure!(end.is_some() || bytes.len() < LINE_BYTES_MAX, "a line of a chunked body does not end");
    Ok(end.map(|end| &bytes[..=end]))
}

fn size(line: &[u8]) -> anyhow::Result<u64> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    match u64::from_str_radix(std::str::from_utf8(digits)?, 16) {
        Ok(size) if size < u64::MAX - 2 => Ok(size),
        Ok(_) | Err(_) => bail!("a chunk without a size"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &'static str, value: &'static str) -> Header<'static> {
        Header { name, value: value.as_bytes() }
    }

    /// How much of the bytes belongs to the body, given in pieces of each length in turn.
    fn taken(body: Body, bytes: &[u8]) -> usize {
        let lengths = (1..=bytes.len()).map(|piece| {
            let (mut body, mut start, mut end) = (body, 0, 0);
            while !body.has_ended() && end < bytes.len() {
                end = (end + piece).min(bytes.len());
                start += body.skip(&bytes[start..end]).unwrap();
            }
            assert!(body.has_ended(), "in pieces of {piece}");
            start
        });
        let lengths: Vec<usize> = lengths.collect();
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
        lengths[0]
    }

    #[test]
    fn a_body_ends_where_its_headers_say() {
        let of = |headers: &[Header<'_>]| Body::of(headers, Body::UntilClose).unwrap();
        assert_eq!(of(&[]), Body::UntilClose);
        assert_eq!(of(&[header("Content-Length", "7")]), Body::Bytes(7));
        assert_eq!(
            of(&[header("content-length", "7"), header("transfer-encoding", "chunked")]),
            Body::Chunks(Chunk::Size)
        );
        for wrong in [header("content-length", "x"), header("transfer-encoding", "gzip")] {
            assert!(Body::of(&[wrong], Body::NONE).is_err());
        }
    }

    #[test]
    fn what_follows_a_body_is_left_alone() {
        assert_eq!(taken(Body::Bytes(3), b"abcHTTP"), 3);
        let chunks = b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\na: b\r\n\r\n";
        assert_eq!(taken(Body::Chunks(Chunk::Size), &[&chunks[..], b"HTTP/1.1"].concat()), chunks.len());
    }

    #[test]
    fn a_chunk_without_a_size_is_an_error() {
        for wrong in ["x\r\n", "\r\n", "-1\r\n", "ffffffffffffffff\r\n"] {
            assert!(Body::Chunks(Chunk::Size).skip(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        assert!(Body::Chunks(Chunk::Size).skip(&[b'1'; LINE_BYTES_MAX]).is_err());
    }
}
