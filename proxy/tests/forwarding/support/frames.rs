//! HTTP/2 frame by frame.

use h2::Reason;

use super::{Client, Peer};

/// `END_STREAM`.
pub(crate) const END: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// One HTTP/2 frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Headers { stream: u32 },
    Data { stream: u32, ends: bool, bytes: Vec<u8> },
    Reset { stream: u32 },
}

/// A worker's end of an HTTP/2 connection.
pub(crate) struct Frames(Peer);

impl Frames {
    /// A worker whose streams have a window of no bytes.
    pub(crate) fn with_shut_windows(peer: Peer) -> Frames {
        Frames::with_settings(peer, &[0, 4, 0, 0, 0, 0])
    }

    /// A worker that takes whatever comes on any stream, as soon as it reads.
    pub(crate) fn with_wide_windows(peer: Peer) -> Frames {
        let mut frames = Frames::with_settings(peer, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
        frames.open(0, 0x7fff_0000);
        frames
    }

    /// A worker that allows so many streams at a time.
    pub(crate) fn with_streams(peer: Peer, allowed: u8) -> Frames {
        Frames::with_settings(peer, &[0, 3, 0, 0, 0, allowed])
    }

    fn with_settings(mut peer: Peer, settings: &[u8]) -> Frames {
        assert_eq!(peer.exactly(24), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut frames = Frames(peer);
        frames.send(4, 0, 0, settings);
        frames
    }

    /// Its first request is there.
    pub(crate) fn at_stream_1(mut self) -> Frames {
        assert_eq!(self.next(), Frame::Headers { stream: 1 });
        self
    }

    /// Allows so many streams at a time from now on.
    pub(crate) fn allow(&mut self, streams: u8) {
        self.send(4, 0, 0, &[0, 3, 0, 0, 0, streams]);
    }

    /// The next frame of a stream.
    pub(crate) fn next(&mut self) -> Frame {
        self.next_or_end().expect("the connection goes on")
    }

    /// The next frame of a stream, or none if the connection ends instead.
    pub(crate) fn next_or_end(&mut self) -> Option<Frame> {
        loop {
            let head: [u8; 9] = self.0.exactly_or_end(9)?.try_into().unwrap();
            let [_, _, _, kind, flags, ..] = head;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let bytes = self.0.exactly_or_end(usize::try_from(length).unwrap())?;
            match kind {
                0 => return Some(Frame::Data { stream, ends: flags & END != 0, bytes }),
                1 => return Some(Frame::Headers { stream }),
                3 => return Some(Frame::Reset { stream }),
                4 if flags == 0 => self.send(4, 1, 0, &[]),
                _ => {}
            }
        }
    }

    /// Waits until settings have been taken note of.
    pub(crate) fn acknowledged(&mut self) {
        loop {
            let head = self.0.exactly(9);
            self.0.exactly(usize::from(u16::from_be_bytes([head[1], head[2]])));
            if head[3..5] == [4, 1] {
                return;
            }
        }
    }

    /// Answers with 200 and nothing more.
    pub(crate) fn respond(&mut self, stream: u32) {
        self.send(1, END | END_HEADERS, stream, &[0x88]);
    }

    /// Answers with 200 and nothing more, which the client gets.
    pub(crate) fn answers(&mut self, stream: u32, client: &mut Client) {
        self.respond(stream);
        assert!(client.answer().0.starts_with("HTTP/1.1 200 "));
    }

    /// Answers with 200, and a body that is to follow.
    pub(crate) fn begin_response(&mut self, stream: u32) {
        self.send(1, END_HEADERS, stream, &[0x88]);
    }

    /// Resets a stream for that reason.
    pub(crate) fn reset(&mut self, stream: u32, reason: Reason) {
        self.send(3, 0, stream, &u32::from(reason).to_be_bytes());
    }

    /// Opens the window of a stream.
    pub(crate) fn open(&mut self, stream: u32, bytes: u32) {
        self.send(8, 0, stream, &bytes.to_be_bytes());
    }

    /// Takes leave: what was begun is finished, and nothing new is begun. Done when that was heard.
    pub(crate) fn take_leave(&mut self, last: u32) {
        self.take_leave_for(Reason::NO_ERROR, last);
    }

    /// Takes leave for that reason.
    pub(crate) fn take_leave_for(&mut self, reason: Reason, last: u32) {
        self.send(7, 0, 0, &[last, u32::from(reason)].map(u32::to_be_bytes).concat());
        self.allow(100);
        self.acknowledged();
    }

    /// The streams that are begun before the connection ends.
    pub(crate) fn begun_until_end(&mut self) -> Vec<u32> {
        self.heads_until_end().filter(|(kind, ..)| *kind == 1).map(|(.., stream)| stream).collect()
    }

    /// Whether the client's end of that stream is among what comes before the connection ends.
    pub(crate) fn ends_before_end(&mut self, stream: u32) -> bool {
        self.heads_until_end().any(|(kind, flags, of)| kind < 2 && flags & END != 0 && of == stream)
    }

    /// Kind, flags and stream of each frame that comes before the connection ends.
    fn heads_until_end(&mut self) -> impl Iterator<Item = (u8, u8, u32)> {
        let (bytes, mut at) = (self.0.until_end(), 0);
        std::iter::from_fn(move || {
            let (head, _) = bytes.get(at..)?.split_first_chunk::<9>()?;
            at += 9 + usize::try_from(u32::from_be_bytes([0, head[0], head[1], head[2]])).unwrap();
            Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]])))
        })
    }

    /// A second handle on the connection, to write to while another thread reads from the first.
    pub(crate) fn writer(&self) -> Frames {
        Frames(Peer::new(self.0.stream().try_clone().unwrap()))
    }

    /// The connection below.
    pub(crate) fn peer(&mut self) -> &mut Peer {
        &mut self.0
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        // The proxy may have closed.
        let _ = self.0.try_send_bytes(&[&head, bytes].concat());
    }
}
