//! HTTP/1.1, as cheaply as can be: a generator that takes more time than the proxy cannot measure it.

use std::io::{IoSlice, Write};
use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use httparse::{Response, Status};
use hyper::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::answer::Answer;
use crate::client::Protocol;
use crate::drive::plan::Plan;
use crate::drive::tenures::Presented;
use crate::framing::{Body, HEADERS_MAX};
use crate::stream::Stream;
use crate::token::{OWNER, REVISION};

/// How much is read at a time.
const READ_BYTES: usize = 16 * 1024;

/// A connection.
pub(crate) struct Http1 {
    plan: Rc<Plan>,
    /// `None` if it has to be opened again.
    stream: Option<Stream>,
    /// How many requests it has had.
    requests: u64,
    head: Vec<u8>,
    /// As it is sent.
    body: Bytes,
    bytes: BytesMut,
}

/// The head of an answer.
struct Head {
    answer: Answer,
    body: Body,
    is_last: bool,
}

impl Http1 {
    /// Connects.
    pub(crate) async fn open(plan: &Rc<Plan>) -> anyhow::Result<Http1> {
        let stream = Some(connect(plan).await?);
        let body = if plan.is_chunked { in_a_chunk(&plan.body) } else { plan.body.clone() };
        Ok(Http1 { plan: Rc::clone(plan), stream, requests: 0, head: Vec::new(), body, bytes: BytesMut::new() })
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn exchange(&mut self, presented: &Presented) -> anyhow::Result<Answer> {
        let mut stream = self.take_stream().await?;
        self.write_head(presented)?;
        // Whoever refuses early may close before it has read all; its answer counts, if there is one.
        let written = write(&mut stream, &self.head, &self.body).await;
        let answered = self.read(&mut stream).await;
        let (answer, is_last) = match (answered, written) {
            (Ok(answered), _) => answered,
            (Err(_), Err(unwritten)) => return Err(unwritten).context("the connection broke within the request"),
            (Err(unread), Ok(())) => return Err(unread),
        };
        self.requests += 1;
        let is_full = self.plan.requests_per_connection.is_some_and(|count| self.requests >= count.get());
        if !is_last && !is_full {
            self.stream = Some(stream);
        }
        Ok(answer)
    }

    /// The connection, opened again if need be. It is not put back unless all goes well.
    async fn take_stream(&mut self) -> anyhow::Result<Stream> {
        if let Some(mut stream) = self.stream.take()
            && stream.is_quiet()
        {
            return Ok(stream);
        }
        self.requests = 0;
        self.bytes.clear();
        connect(&self.plan).await
    }

    fn write_head(&mut self, presented: &Presented) -> anyhow::Result<()> {
        let Plan { target, method, path, body, is_chunked, .. } = &*self.plan;
        let Presented { lock, token, .. } = presented;
        let head = &mut self.head;
        head.clear();
        write!(head, "{method} {} HTTP/1.1\r\nhost: {}\r\n{OWNER}: ", path.of(*lock), target.authority())?;
        head.extend_from_slice(token.owner().as_bytes());
        write!(head, "\r\n{REVISION}: {}\r\n", token.revision())?;
        for (name, value) in self.plan.more_headers(*lock)? {
            write!(head, "{name}: {}\r\n", value.to_str()?)?;
        }
        if *is_chunked {
            head.extend_from_slice(b"transfer-encoding: chunked\r\n");
        } else if !body.is_empty() || *method != Method::GET && *method != Method::HEAD {
            write!(head, "content-length: {}\r\n", body.len())?;
        }
        head.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// The answer, and whether the connection ends with it.
    async fn read(&mut self, stream: &mut Stream) -> anyhow::Result<(Answer, bool)> {
        let Head { answer, mut body, is_last } = loop {
            if let Some((head, length)) = parse(&self.bytes, &self.plan.method)? {
                self.bytes.advance(length);
                // Interim answers announce another one.
                if !head.answer.status.is_informational() {
                    break head;
                }
            } else {
                ensure!(self.read_more(stream).await? > 0, "the connection broke before the answer");
            }
        };
        loop {
            let taken = body.skip(&self.bytes)?;
            self.bytes.advance(taken);
            if body.has_ended() {
                return Ok((answer, is_last));
            }
            if self.read_more(stream).await? == 0 {
                ensure!(body == Body::UntilClose, "the connection broke within the answer");
                return Ok((answer, true));
            }
        }
    }

    async fn read_more(&mut self, stream: &mut Stream) -> anyhow::Result<usize> {
        self.bytes.reserve(READ_BYTES);
        stream.read_buf(&mut self.bytes).await.context("the connection broke before the answer was whole")
    }
}

/// A body and its end (RFC 9112, section 7.1). An empty one is its end.
fn in_a_chunk(body: &[u8]) -> Bytes {
    if body.is_empty() {
        return Bytes::from_static(b"0\r\n\r\n");
    }
    [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n0\r\n\r\n"].concat().into()
}

async fn connect(plan: &Plan) -> anyhow::Result<Stream> {
    Stream::open(&plan.target, Protocol::Http1).await
}

async fn write(stream: &mut Stream, head: &[u8], body: &[u8]) -> std::io::Result<()> {
    let mut slices = [IoSlice::new(head), IoSlice::new(body)];
    let mut left = &mut slices[..];
    // Without this, an empty body would look like a connection that takes no bytes.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        let written = stream.write_vectored(left).await?;
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut left, written);
    }
    stream.flush().await
}

/// A head and its length, if it is whole.
fn parse(bytes: &[u8], method: &Method) -> anyhow::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = Response::new(&mut headers);
    let Status::Complete(length) = response.parse(bytes).context("the answer is no HTTP/1.1")? else {
        return Ok(None);
    };
    let (Some(version), Some(code)) = (response.version, response.code) else { bail!("an answer without a status") };
    let status = StatusCode::from_u16(code)?;
    let has_body = *method != Method::HEAD && !status.is_informational() && code != 204 && code != 304;
    let body = if has_body { Body::of(response.headers, Body::UntilClose)? } else { Body::NONE };
    let value = |name: &str| response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    let reason = value("fence-reason").map(|reason| String::from_utf8_lossy(reason.value).into_owned());
    let closes = value("connection").is_some_and(|connection| connection.value.eq_ignore_ascii_case(b"close"));
    Ok(Some((Head { answer: Answer { status, reason }, body, is_last: closes || version == 0 }, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, method: Method, expected: (u16, Body, bool)) {
        let (head, length) = parse(text.as_bytes(), &method).unwrap().expect("the head is whole");
        assert_eq!((head.answer.status.as_u16(), head.body, head.is_last), expected, "{text}");
        assert_eq!(length, text.len());
    }

    #[test]
    fn a_body_in_a_chunk_has_an_end_and_an_empty_one_is_its_end() {
        assert_eq!(in_a_chunk(&[b'x'; 26]), format!("1a\r\n{}\r\n0\r\n\r\n", "x".repeat(26)));
        assert_eq!(in_a_chunk(b""), "0\r\n\r\n");
    }

    #[test]
    fn an_answers_head_says_how_it_goes_on() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", Method::GET, (200, Body::Bytes(7), false));
        check("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", Method::HEAD, (200, Body::NONE, false));
        check("HTTP/1.1 204 No Content\r\n\r\n", Method::GET, (204, Body::NONE, false));
        check("HTTP/1.1 200 OK\r\n\r\n", Method::GET, (200, Body::UntilClose, false));
        check(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            Method::GET,
            (200, Body::NONE, true),
        );
        check("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", Method::GET, (200, Body::NONE, true));
        check("HTTP/1.1 100 Continue\r\n\r\n", Method::POST, (100, Body::NONE, false));
    }

    #[test]
    fn half_a_head_is_none() {
        assert!(parse(b"HTTP/1.1 200 OK\r\ncontent-le", &Method::GET).unwrap().is_none());
        assert!(parse(b"SMTP", &Method::GET).is_err());
    }
}
