//! A client of HTTP/2 that sends whatever it is told to.

use fencepost_tests::{Connection, Endpoint};

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
    frame, greeting, literal,
};

const ACK: u8 = 0x1;
const PADDED: u8 = 0x8;

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was answered with 200.
    Ok,
    /// It was answered with something else.
    Refused,
    /// It was reset.
    Reset,
    /// We reset it ourselves.
    Left,
    /// The connection has ended.
    Gone,
}

/// What is sent on a stream, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The fields, in one frame.
    Head,
    /// The fields, in frames of so many bytes.
    Continued(usize),
    /// The fields, but for the word that these are all.
    HeadUnended,
    /// Thousands of frames that go on with the fields, none of which is the last.
    Flood,
    /// A piece of the body.
    Data(&'static str),
    /// A piece of the body, and more padding than that.
    Padded(&'static str),
    /// The last piece of the body.
    LastData(&'static str),
    /// A harmless trailer, and the end of the stream.
    Trailers,
    /// A harmless trailer that is not the end of the stream.
    TrailersOpen,
    /// The stream is given up.
    Cancel,
    /// The stream is given up, though with no error.
    NoError,
    /// Something on no stream.
    Ping,
}

/// One connection; one stream after the other.
pub(super) struct Http2Client {
    connection: Connection,
    /// The stream that was opened last, and what has been heard of it.
    stream: u32,
    answered: Option<Outcome>,
    ended: bool,
}

/// What has been read: a frame of that kind, with these flags.
type Read = Option<(u8, u8)>;

impl Http2Client {
    pub(super) async fn open(server: Endpoint) -> Http2Client {
        let mut connection = Connection::open(server).await.unwrap();
        connection.send(greeting(&[])).await.unwrap();
        Http2Client { connection, stream: 0, answered: None, ended: false }
    }

    /// Opens a stream with these fields, a body unless it is `None`, and trailers unless there are
    /// none.
    pub(super) async fn ask(
        &mut self,
        fields: &[(String, String)],
        body: Option<&str>,
        trailers: &[(String, String)],
    ) -> Outcome {
        let stream = self.open_stream();
        let end = |last: bool| if last { END_STREAM } else { 0 };
        let last = body.is_none() && trailers.is_empty();
        let mut bytes = frame(HEADERS, END_HEADERS | end(last), stream, &block(fields));
        if let Some(body) = body {
            bytes.extend(frame(DATA, end(trailers.is_empty()), stream, body.as_bytes()));
        }
        if !trailers.is_empty() {
            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(trailers)));
        }
        if self.connection.send(bytes).await.is_err() {
            return Outcome::Gone;
        }
        self.outcome().await
    }

    /// Opens a stream with these fields and sends these frames on it, each when the one before it
    /// has been read.
    pub(super) async fn play(&mut self, fields: &[(String, String)], frames: &[Frame]) -> Outcome {
        let stream = self.open_stream();
        for one in frames {
            if self.connection.send(one.bytes(stream, fields)).await.is_err() {
                return Outcome::Gone;
            }
            // Between the frames of a head nothing else may come.
            let is_within_head = matches!(one, Frame::HeadUnended | Frame::Flood);
            if !is_within_head && !self.ping().await {
                return Outcome::Gone;
            }
        }
        match frames.last() {
            Some(Frame::Cancel | Frame::NoError) => Outcome::Left,
            _ => self.outcome().await,
        }
    }

    fn open_stream(&mut self) -> u32 {
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        (self.answered, self.ended) = (None, false);
        self.stream
    }

    async fn outcome(&mut self) -> Outcome {
        while !self.ended {
            if self.read().await.is_none() {
                return Outcome::Gone;
            }
        }
        self.answered.unwrap_or(Outcome::Reset)
    }

    /// Waits until all that was sent has been read. False if the connection has ended.
    async fn ping(&mut self) -> bool {
        if self.connection.send(frame(PING, 0, 0, b"hygienic")).await.is_err() {
            return false;
        }
        loop {
            match self.read().await {
                Some((PING, ACK)) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// Reads a frame. `None` if the connection ends.
    async fn read(&mut self) -> Read {
        let head = self.connection.receive(9).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = self.connection.receive(length).await.ok()?;
        let (kind, flags) = (head[3], head[4]);
        let of_stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) == self.stream;
        match kind {
            HEADERS if of_stream => {
                // 200 and no other status is the eighth entry of the static table.
                let outcome = if payload[0] == 0x88 { Outcome::Ok } else { Outcome::Refused };
                self.answered = self.answered.or(Some(outcome));
            }

            SETTINGS if flags & ACK == 0 => {
                self.connection.send(frame(SETTINGS, ACK, 0, &[])).await.ok()?
            }
            GOAWAY => return None,
            _ => {}
        }
        let is_last = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        self.ended |= of_stream && (is_last || kind == RST_STREAM);
        Some((kind, flags))
    }
}

impl Frame {
    fn bytes(self, stream: u32, fields: &[(String, String)]) -> Vec<u8> {
        let trailers = [("x-sum".to_owned(), "1".to_owned())];
        match self {
            Frame::Head => frame(HEADERS, END_HEADERS, stream, &block(fields)),
            Frame::Continued(size) => {
                let block = block(fields);
                let pieces = block.chunks(size);
                let last = pieces.len() - 1;
                let kind = |index| if index == 0 { HEADERS } else { CONTINUATION };
                let flags = |index| if index == last { END_HEADERS } else { 0 };
                pieces
                    .enumerate()
                    .flat_map(|(index, piece)| frame(kind(index), flags(index), stream, piece))
                    .collect()
            }
            Frame::HeadUnended => frame(HEADERS, 0, stream, &block(fields)),
            Frame::Flood => frame(CONTINUATION, 0, stream, &block(&trailers)).repeat(10_000),
            Frame::Data(data) => frame(DATA, 0, stream, data.as_bytes()),
            Frame::Padded(data) => {
                frame(DATA, PADDED, stream, &[&[200], data.as_bytes(), &[0; 200]].concat())
            }
            Frame::LastData(data) => frame(DATA, END_STREAM, stream, data.as_bytes()),
            Frame::Trailers => frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&trailers)),
            Frame::TrailersOpen => frame(HEADERS, END_HEADERS, stream, &block(&trailers)),
            Frame::Cancel => frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()),
            Frame::NoError => frame(RST_STREAM, 0, stream, &0_u32.to_be_bytes()),
            Frame::Ping => frame(PING, 0, 0, b"harmless"),
        }
    }
}

/// Fields as literals that enter no table and are not Huffman-coded.
fn block(fields: &[(String, String)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| literal(name, value, 0)).collect()
}
