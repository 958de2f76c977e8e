//! A client of HTTP/2 that sends frames as it is told to, and keeps what comes back.

use std::collections::VecDeque;

use fencepost_tests::{Connection, Endpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::store::Tenure;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request without a body.
pub(crate) fn ask(stream: u32, method: &str, path: &str, tenure: &Tenure) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &head(method, path, tenure))
}

/// A request whose body has not ended.
pub(crate) fn begin(stream: u32, path: &str, tenure: &Tenure) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &head("POST", path, tenure))
}

/// The fields of a request.
pub(crate) fn head(method: &str, path: &str, tenure: &Tenure) -> Vec<u8> {
    let revision = tenure.revision.to_string();
    let fields = [
        (":method", method),
        (":path", path),
        (":scheme", "http"),
        (":authority", "test"),
        ("fence-owner", &tenure.owner),
        ("fence-revision", &revision),
    ];
    fields.iter().flat_map(|(name, value)| literal(name, value, 0)).collect()
}

/// A field as a literal that is not Huffman-coded; `kind` says whether it enters the table (0x40)
/// or not (0).
pub(crate) fn literal(name: &str, value: &str, kind: u8) -> Vec<u8> {
    let text = |text: &str| match text.len() {
        short @ ..127 => [&[u8::try_from(short).unwrap()], text.as_bytes()].concat(),
        // RFC 7541, section 5.1.
        long @ 127..16_000 => {
            let rest = long - 127;
            let (low, high) =
                (u8::try_from(rest % 128).unwrap() | 0x80, u8::try_from(rest / 128).unwrap());
            [&[0x7f, low, high], text.as_bytes()].concat()
        }
        _ => panic!("too long for a test"),
    };
    [vec![kind], text(name), text(value)].concat()
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// One connection, read and written in turns.
pub(crate) struct Client {
    connection: Connection,
    /// RST_STREAM frames that came for one stream while the answer to another was read.
    passed_over: VecDeque<Frame>,
    answers_pings: bool,
}

/// A frame that came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
    pub(crate) is_last: bool,
}

impl Client {
    /// Connects and greets with these settings.
    pub(crate) async fn open(server: &Endpoint, settings: &[u8]) -> Client {
        let mut connection = Connection::open(server.clone()).await.unwrap();
        connection.send(greeting(settings)).await.unwrap();
        Client { connection, passed_over: VecDeque::new(), answers_pings: true }
    }

    /// Answers no PING from here on.
    pub(crate) fn ignores_pings(&mut self) {
        self.answers_pings = false;
    }

    pub(crate) async fn send(&mut self, bytes: Vec<u8>) {
        self.connection.send(bytes).await.unwrap();
    }

    /// The next frame of that kind.
    pub(crate) async fn next(&mut self, kind: u8) -> Frame {
        self.next_of(&[kind]).await
    }

    /// The next frame of one of these kinds.
    pub(crate) async fn next_of(&mut self, kinds: &[u8]) -> Frame {
        if kinds.contains(&RST_STREAM)
            && let Some(frame) = self.passed_over.pop_front()
        {
            return frame;
        }
        loop {
            let frame = self
                .read()
                .await
                .unwrap_or_else(|| panic!("the connection ended before a frame of {kinds:?}"));
            if kinds.contains(&frame.kind) {
                return frame;
            }
        }
    }

    /// Whether a stream is answered with 200, and whole.
    pub(crate) async fn is_answered(&mut self, stream: u32) -> bool {
        let mut is_ok = false;
        while let Some(frame) = self.read().await.filter(|frame| frame.kind != GOAWAY) {
            if frame.stream != stream {
                if frame.kind == RST_STREAM {
                    self.passed_over.push_back(frame);
                }
                continue;
            }
            // 200 and no other status is the eighth entry of the static table.
            is_ok |= frame.kind == HEADERS && frame.payload[0] == 0x88;
            if frame.is_last || frame.kind == RST_STREAM {
                return is_ok && frame.is_last;
            }
        }
        false
    }

    /// Reads until the server closes; returns whether a GOAWAY with that code came.
    pub(crate) async fn is_ended_with(&mut self, code: u32) -> bool {
        let mut codes = Vec::new();
        while let Some(frame) = self.read().await {
            if frame.kind == GOAWAY {
                codes.push(self::code(&frame));
            }
        }
        codes.contains(&code)
    }

    async fn read(&mut self) -> Option<Frame> {
        let head = self.connection.receive(9).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = self.connection.receive(length).await.ok()?;
        let (kind, flags) = (head[3], head[4]);
        if kind == SETTINGS && flags == 0 {
            let _ = self.connection.send(frame(SETTINGS, 1, 0, &[])).await; // It may have ended meanwhile.
        }
        if kind == PING && flags == 0 && self.answers_pings {
            let _ = self.connection.send(frame(PING, 1, 0, &payload)).await;
        }
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame {
            kind,
            stream,
            payload,
            is_last: matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0,
        })
    }
}

pub(crate) fn greeting(settings: &[u8]) -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, settings)].concat()
}

/// The error code of a GOAWAY or an RST_STREAM: what comes last in it.
pub(crate) fn code(frame: &Frame) -> u32 {
    let payload = &frame.payload;
    let at = if frame.kind == GOAWAY { 4 } else { 0 };
    u32::from_be_bytes(payload[at..at + 4].try_into().unwrap())
}

/// Sends `first`, and then `again` over and over, until the server ends the connection; reads
/// meanwhile. Returns all that came back.
pub(crate) async fn flood(server: &Endpoint, first: Vec<u8>, again: &[u8]) -> Vec<u8> {
    let Endpoint::Tcp(address) = server else { panic!("floods come over TCP") };
    let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    let read = tokio::spawn(async move {
        let mut all = Vec::new();
        let _ = reader.read_to_end(&mut all).await; // It ends with a reset perhaps.
        all
    });
    let mut taken = writer.write_all(&[greeting(&[]), first].concat()).await;
    let batch = again.repeat(1 + 4_096 / again.len());
    while taken.is_ok() {
        taken = writer.write_all(&batch).await;
    }
    read.await.unwrap()
}

/// Whether a GOAWAY with that code is among these frames.
pub(crate) fn says_goodbye(mut bytes: &[u8], code: u32) -> bool {
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { return false };
        if head[3] == GOAWAY && payload[4..8] == code.to_be_bytes() {
            return true;
        }
        bytes = rest;
    }
    false
}
