//! Compares the reader with hyper. From any bytes, in any pieces, hyper reads the requests that
//! were whole before the first byte that the grammar does not allow, each with its body by the
//! grammar, and no other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf, join, sink};

use crate::grammar::RequestGrammar;
use crate::reader::{Progress, StrictReader};

/// A request as one of the two read it: the first line of its head without the method, and its
/// body.
type Read = (String, Vec<u8>);

/// The requests that are whole by the grammar before the first byte that is not allowed, and the
/// number of bytes before it.
fn by_the_grammar(bytes: &[u8]) -> (Vec<Read>, usize) {
    let mut grammar = RequestGrammar::default();
    let (mut whole, mut head, mut body) = (Vec::new(), Vec::new(), Vec::new());
    for (at, byte) in bytes.iter().enumerate() {
        let (was_in_body, encoded) = (grammar.is_in_body(), grammar.encoded());
        if grammar.is_in_data() {
            body.push(*byte);
        } else if !was_in_body {
            head.push(*byte);
        }
        if grammar.read(&[*byte]).is_err() {
            return (whole, at);
        }
        if grammar.encoded() != encoded {
            head.pop();
            head.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
        if grammar.is_between() {
            let head = String::from_utf8_lossy(&std::mem::take(&mut head)).into_owned();
            let line = head.trim_start().lines().next().unwrap().split_once(' ').unwrap().1;
            whole.push((line.to_owned(), std::mem::take(&mut body)));
        }
    }
    (whole, bytes.len())
}

/// A client that sends these pieces.
struct Script(VecDeque<Vec<u8>>);

impl Script {
    /// Splits the bytes into pieces of these lengths, over and over.
    fn new(mut bytes: &[u8], lengths: &[usize]) -> Script {
        let mut pieces = VecDeque::new();
        for length in lengths.iter().cycle() {
            if bytes.is_empty() {
                break;
            }
            let (piece, rest) = bytes.split_at(bytes.len().min(*length));
            pieces.push_back(piece.to_vec());
            bytes = rest;
        }
        Script(pieces)
    }
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(piece) = self.0.front_mut() {
            let count = piece.len().min(buffer.remaining());
            buffer.put_slice(&piece.drain(..count).collect::<Vec<_>>());
            if piece.is_empty() {
                self.0.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The requests that hyper reads to their end.
fn by_hyper(reader: impl AsyncRead + Unpin + 'static) -> Vec<Read> {
    let whole = Rc::new(RefCell::new(Vec::new()));
    let kept = Rc::clone(&whole);
    let service = service_fn(move |request: Request<Incoming>| {
        let kept = Rc::clone(&kept);
        async move {
            let line = format!("{} {:?}", request.uri(), request.version());
            if let Ok(body) = request.into_body().collect().await {
                kept.borrow_mut().push((line, body.to_bytes().to_vec()));
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    // Answers the requests before the end of the script.
    let serving = http1::Builder::new()
        .half_close(true)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(join(reader, sink())), service);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _ = runtime.block_on(serving); // A rejected request ends in an error.
    Rc::try_unwrap(whole).unwrap().into_inner()
}

fn check(bytes: &[u8], lengths: &[usize]) {
    let (whole, fine) = by_the_grammar(bytes);
    let progress = Progress::default();
    let read = by_hyper(StrictReader::new(Script::new(bytes, lengths), progress.clone()));
    let shown = String::from_utf8_lossy(bytes);
    // hyper reads nothing after an invalid target, or after a request of HTTP/1.0.
    let is_invalid_target = |target: &str| target.parse::<Uri>().is_err();
    let ends = |(line, _): &Read| {
        line.ends_with("1.0") || is_invalid_target(line.split(' ').next().unwrap())
    };
    let known = whole.iter().position(ends).unwrap_or(whole.len());
    assert!(
        read.len() >= known && whole.starts_with(&read),
        "{shown:?} in pieces of {lengths:?}: {read:?} of {whole:?}"
    );
    assert!(
        progress.rejected().is_none() || fine < bytes.len(),
        "{shown:?} in pieces of {lengths:?}"
    );
}

/// Valid requests that together use every rule of the grammar.
const VALID: [&str; 13] = [
    "GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "\r\n\r\nGET /b?c=%00 HTTP/1.1\r\n\r\n",
    "DELETE /c HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    "POST /d HTTP/1.1\r\nContent-Length:\t007 \r\nX: \t\r\n\r\nGET / H",
    "POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n\r\n\r",
    "PUT /f HTTP/1.1\r\ntransfer-encoding: CHUNKED\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "PUT /g HTTP/1.1\r\nTransfer-Encoding:chunked\t\r\n\r\n0005;a=\"b;\\\"\";c=d;e\r\n\r\n0\r\n\r\n00;f\r\n\r\n",
    "PUT /h HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-Content-Length: 9\r\n\r\n0\r\nContent-Length: 9\r\nX:\r\n\r\n",
    "PUT /i HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n0\r\n1\r\n\r\r\n1\r\n\n\r\n0\r\n\r\n",
    "GET /j HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n",
    "HEAD /k HTTP/1.1\r\n!#$%&'*+-.^_`|~: \"(),/:;<=>?@[\\]{}\u{e9}\r\n\r\n",
    "GET /\"<>`\u{e9}?\"<>`\u{e9} HTTP/1.1\r\nX: <\u{e9}>\r\n\r\n",
    "POST /l HTTP/1.1\r\nContent-Length: 40\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n0",
];

/// Bytes to insert into valid requests, or to replace a part of them.
const ODD: [&str; 36] = [
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\n\n",
    "\0",
    " ",
    "\t",
    ":",
    ";",
    ",",
    "\"",
    "\\",
    "=",
    "0",
    "1",
    "f",
    "+",
    "-",
    "0x",
    "#",
    "\u{7f}",
    "\u{e9}",
    "<",
    "`",
    "Content-Length: 3\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    " Transfer-Encoding: chunked\r\n",
    "Content-Length : 3\r\n",
    "3\r\nabc\r\n",
    "0\r\n\r\n",
    "1;\r\n",
    "HTTP/1.0",
    "GET /hidden HTTP/1.1\r\n\r\n",
];

/// Replaces `replaced` bytes at `at` by `odd`.
fn damage(bytes: &mut Vec<u8>, at: &Index, replaced: usize, odd: &str) {
    let at = at.index(bytes.len() + 1);
    let end = bytes.len().min(at + replaced);
    bytes.splice(at..end, odd.bytes());
}

#[test]
fn valid_requests_pass_alone_and_in_a_row() {
    for request in VALID {
        let (whole, fine) = by_the_grammar(request.as_bytes());
        assert_eq!((whole.len(), fine), (1, request.len()), "{request:?}");
    }
    for length in 1..=80 {
        check(VALID.concat().as_bytes(), &[length]);
    }
}

#[test]
fn reader_returns_all_bytes_before_the_first_violation_only() {
    let bytes = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n\r\n";
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for at in 0..bytes.len() {
        let mut bytes = bytes.to_vec();
        bytes.insert(at, b'\n');
        let (_, fine) = by_the_grammar(&bytes);
        for room in [1, 2, 7, 200] {
            let mut reader = StrictReader::new(Script::new(&bytes, &[3]), Progress::default());
            let mut read = Vec::new();
            let mut buffer = vec![0; room];
            let ended = loop {
                match runtime.block_on(reader.read(&mut buffer)) {
                    Ok(count @ 1..) => read.extend_from_slice(&buffer[..count]),
                    ended => break ended,
                }
            };
            let mut grammar = RequestGrammar::default();
            grammar.read(&bytes[..fine]).unwrap();
            let is_whole = fine == bytes.len();
            let is_error = !is_whole && grammar.is_in_head();
            let end: &[u8] = if is_whole || is_error { b"" } else { b"\0\n\r\n\r\n" };
            assert_eq!(read, [&bytes[..fine], end].concat(), "a line feed at {at}");
            assert_eq!(ended.is_err(), is_error, "a line feed at {at}");
        }
    }
}

#[test]
fn odd_bytes_of_targets_are_percent_encoded() {
    let bytes = b"GET /a<\xff?\"> HTTP/1.1\r\nX: <\xff>\r\nContent-Length: 2\r\n\r\n<\xffGET `{|}^\\ HTTP/1.0\r\n\r\n";
    let read = b"GET /a%3C%FF?%22%3E HTTP/1.1\r\nX: <\xff>\r\nContent-Length: 2\r\n\r\n<\xffGET %60{|}^\\ HTTP/1.0\r\n\r\n";
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (length, room) in [(1, 1), (1, 200), (200, 1), (7, 5), (200, 200)] {
        let mut reader = StrictReader::new(Script::new(bytes, &[length]), Progress::default());
        let (mut returned, mut buffer) = (Vec::new(), vec![0; room]);
        while let count @ 1.. = runtime.block_on(reader.read(&mut buffer)).unwrap() {
            returned.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(returned, read, "in pieces of {length}, read by {room}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn damaged_requests_are_the_same_to_hyper_and_to_the_grammar(
        requests in vec(select(&VALID[..]), 1..4),
        damages in vec((any::<Index>(), 0..4_usize, select(&ODD[..])), 0..3),
        lengths in vec(1..60_usize, 1..5),
    ) {
        let mut bytes = requests.concat().into_bytes();
        for (at, replaced, odd) in &damages {
            damage(&mut bytes, at, *replaced, odd);
        }
        check(&bytes, &lengths);
    }

    #[test]
    fn pieces_of_any_length_have_the_same_first_violation(
        requests in vec(select(&VALID[..]), 1..4),
        at in any::<Index>(),
        odd in select(&ODD[..]),
        lengths in vec(1..60_usize, 1..5),
    ) {
        let mut bytes = requests.concat().into_bytes();
        damage(&mut bytes, &at, 0, odd);
        let (_, fine) = by_the_grammar(&bytes);
        let mut grammar = RequestGrammar::default();
        let mut passed = 0;
        for piece in Script::new(&bytes, &lengths).0 {
            if let Err(violation) = grammar.read(&piece) {
                passed += violation.offset;
                break;
            }
            passed += piece.len();
        }
        prop_assert_eq!(passed, fine);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = RequestGrammar::default().read(&bytes);
    }
}
