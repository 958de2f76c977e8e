//! A client of HTTP/2 that sends whatever it is told to.

use fencepost_testsupport::{Connection, Endpoint};

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was answered with 200.
    Ok,
    /// It was answered with something else.
    Refused,
    /// It was reset.
    Reset,
    /// The connection has ended.
    Gone,
}

/// One connection; one stream after the other.
pub(super) struct Http2Client {
    connection: Connection,
    stream: u32,
}

impl Http2Client {
    pub(super) async fn open(server: Endpoint) -> Http2Client {
        let mut connection = Connection::open(server).await.unwrap();
        connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        connection.send(frame(4, 0, 0, &[])).await.unwrap();
        Http2Client { connection, stream: 1 }
    }

    /// Opens a stream with these fields, a body unless it is `None`, and trailers unless there are none.
    pub(super) async fn ask(
        &mut self,
        fields: &[(String, String)],
        body: Option<&str>,
        trailers: &[(String, String)],
    ) -> Outcome {
        let stream = self.stream;
        self.stream += 2;
        let end = |last: bool| if last { END_STREAM } else { 0 };
        let last = body.is_none() && trailers.is_empty();
        let mut bytes = frame(1, END_HEADERS | end(last), stream, &block(fields));
        if let Some(body) = body {
            bytes.extend(frame(0, end(trailers.is_empty()), stream, body.as_bytes()));
        }
        if !trailers.is_empty() {
            bytes.extend(frame(1, END_HEADERS | END_STREAM, stream, &block(trailers)));
        }
        if self.connection.send(bytes).await.is_err() {
            return Outcome::Gone;
        }
        let mut answered = None;
        loop {
            let Ok(head) = self.connection.receive(9).await else { return Outcome::Gone };
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Ok(payload) = self.connection.receive(length).await else { return Outcome::Gone };
            let (kind, flags) = (head[3], head[4]);
            let of_stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) == stream;
            match kind {
                // 200 and no other status is the eighth entry of the static table.
                1 if of_stream => {
                    answered = answered.or(Some(if payload[0] == 0x88 { Outcome::Ok } else { Outcome::Refused }));
                }
                3 if of_stream => return answered.unwrap_or(Outcome::Reset),
                4 if flags == 0 && self.connection.send(frame(4, 1, 0, &[])).await.is_err() => return Outcome::Gone,
                7 => return Outcome::Gone,
                _ => {}
            }
            if let (0 | 1, true, Some(outcome)) = (kind, of_stream && flags & END_STREAM != 0, answered) {
                return outcome;
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as literals that enter no table and are not Huffman-coded.
fn block(fields: &[(String, String)]) -> Vec<u8> {
    let text = |text: &str| {
        assert!(text.len() < 127, "a length of one byte");
        [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    };
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}
