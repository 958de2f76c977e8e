use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, join, split};

use super::*;

const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

/// `:path: /` of the static table.
const PATH: &[u8] = &[0x84];

fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(SETTINGS, 0, 0, &[])].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    Head { length: payload.len(), kind, flags, stream }.write(&mut bytes);
    [&bytes, payload].concat()
}

/// The head of a request that has a body.
fn head(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, b"\x83\x86\x84\x01\x01h")
}

fn trailers(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
}

/// A literal field that enters no table.
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        match text.len() {
            short @ ..127 => bytes.push(u8::try_from(short).unwrap()),
            long => {
                let [low, middle, high] =
                    [0, 7, 14].map(|shift| u8::try_from(((long - 127) >> shift) & 0x7f).unwrap());
                bytes.extend([127, low | 0x80, middle | 0x80, high]);
            }
        }
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// What h2 reads when these pieces arrive one by one.
fn rewritten<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Vec<u8> {
    let mut rewriter = Rewriter::new();
    let mut all = Vec::new();
    for piece in pieces {
        let mut rewritten = BytesMut::new();
        let unchanged = rewriter.take(piece, &mut rewritten);
        all.extend(&piece[..unchanged]);
        all.extend(rewritten);
    }
    all.extend(rewriter.end());
    all
}

fn check(sent: &[Vec<u8>], read: &[Vec<u8>]) {
    let (sent, read) =
        ([&preface(), &sent.concat()[..]].concat(), [&preface(), &read.concat()[..]].concat());
    assert_eq!(rewritten([&sent[..]]), read);
}

#[test]
fn trailers_of_all_shapes_begin_with_the_marker() {
    let sum = &field("x-sum", "1")[..];
    let all = END_HEADERS | END_STREAM;
    let after = |block: &[u8]| [&[MARKER], block].concat();
    let shapes: &[(Vec<u8>, Vec<u8>)] = &[
        (trailers(1, sum), trailers(1, &after(sum))),
        (trailers(1, b""), trailers(1, &[MARKER])),
        // Trailers that do not end the stream, for which h2 resets it.
        (frame(HEADERS, END_HEADERS, 1, sum), frame(HEADERS, END_HEADERS, 1, &after(sum))),
        // The reserved bit of the stream.
        (trailers(0x8000_0001, sum), trailers(1, &after(sum))),
        (frame(HEADERS, all | PADDED, 1, &[&[3], sum, &[0; 3]].concat()), trailers(1, &after(sum))),
        (
            frame(HEADERS, all | PRIORITY, 1, &[b"prior", sum].concat()),
            frame(HEADERS, all | PRIORITY, 1, &[b"prior", &after(sum)[..]].concat()),
        ),
        (
            frame(HEADERS, all | PADDED | PRIORITY, 1, &[b"\x02prior", sum, &[0; 2]].concat()),
            frame(HEADERS, all | PRIORITY, 1, &[b"prior", &after(sum)[..]].concat()),
        ),
        // Size updates to 0 and 4096.
        (
            trailers(1, &[b"\x20\x3f\xe1\x1f", sum].concat()),
            trailers(1, &[b"\x20\x3f\xe1\x1f", &after(sum)[..]].concat()),
        ),
        (
            [
                frame(HEADERS, END_STREAM | PADDED, 1, b"\x01\x20\x3f\0"),
                frame(CONTINUATION, 0, 1, b""),
                frame(CONTINUATION, 0, 1, b"\xe1\x1f"),
                frame(CONTINUATION, END_HEADERS, 1, sum),
            ]
            .concat(),
            trailers(1, &[b"\x20\x3f\xe1\x1f", &after(sum)[..]].concat()),
        ),
    ];
    for (sent, read) in shapes {
        let around =
            |middle: &Vec<u8>| [head(1), frame(DATA, 0, 1, b"abc"), middle.clone(), head(3)];
        check(&around(sent), &around(read));
    }
}

#[test]
fn trailers_against_the_rules_end_the_connection() {
    let sum = &field("x-sum", "1")[..];
    let mut end = BytesMut::new();
    end_connection(&mut end);
    // h2 ends the connection for each of these as they are.
    for sent in [
        frame(HEADERS, END_HEADERS | PADDED, 1, b""),
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\x02\0"),
        frame(HEADERS, END_HEADERS | PRIORITY, 1, b"prio"),
        frame(HEADERS, END_HEADERS, 1, &[0; PAYLOAD_BYTES_MAX + 1]),
    ] {
        check(&[head(1), sent.clone()], &[head(1), sent]);
    }
    let unended = frame(HEADERS, END_STREAM, 1, sum);
    for next in [
        frame(PING, 0, 0, b"harmless"),
        frame(CONTINUATION, END_HEADERS, 3, sum),
        frame(CONTINUATION, END_HEADERS, 1, &[0; PAYLOAD_BYTES_MAX + 1]),
    ] {
        check(&[head(1), unended.clone(), next.clone()], &[head(1), end.to_vec(), next]);
    }
    // More than fits in one frame with the marker.
    let more = frame(CONTINUATION, 0, 1, &[0; BLOCK_BYTES_MAX]);
    check(&[head(1), unended, more.clone()], &[head(1), end.to_vec(), more]);
    check(&[head(1), trailers(1, &[0; BLOCK_BYTES_MAX + 1])], &[head(1), end.to_vec()]);
}

#[test]
fn frames_other_than_trailers_stay_in_place() {
    let all = [
        preface(),
        head(1),
        frame(DATA, 0, 1, &[b'x'; 300]),
        frame(PING, 0, 0, b"harmless"),
        head(5),
        frame(DATA, END_STREAM, 5, b""),
        frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]),
        frame(HEADERS, END_STREAM, 7, &field("x-sum", "1")),
        frame(CONTINUATION, END_HEADERS, 7, &field("x-sum", "1")),
    ]
    .concat();
    let mut rewritten = BytesMut::new();
    assert_eq!(Rewriter::new().take(&all, &mut rewritten), all.len());
    assert!(rewritten.is_empty());
}

/// All that the rewriter knows, on several streams.
fn conversation() -> Vec<u8> {
    let sum = field("x-sum", "1");
    let (first, second) = sum.split_at(4);
    [
        preface(),
        head(1),
        head(3),
        frame(DATA, 0, 1, b"abc"),
        trailers(1, &[b"\x3f\xe1\x1f", &sum[..]].concat()),
        head(5),
        frame(HEADERS, END_STREAM | PADDED | PRIORITY, 3, &[b"\x02prior", first, &[0; 2]].concat()),
        frame(CONTINUATION, END_HEADERS, 3, second),
        frame(PING, 0, 0, b"harmless"),
        trailers(5, b""),
        head(7),
    ]
    .concat()
}

#[test]
fn frames_in_any_pieces_are_rewritten_alike() {
    let all = conversation();
    let whole = rewritten([&all[..]]);
    assert_eq!(
        whole.len(),
        all.len() + 3 - 3 - HEAD_BYTES,
        "three markers, and neither padding nor CONTINUATION"
    );
    for size in 1..all.len() {
        assert_eq!(rewritten(all.chunks(size)), whole, "in pieces of {size}");
    }
    for (first, second) in
        (0..all.len()).flat_map(|first| (first..all.len()).map(move |second| (first, second)))
    {
        let pieces = [&all[..first], &all[first..second], &all[second..]];
        assert_eq!(rewritten(pieces), whole, "cut at {first} and {second}");
    }
}

#[tokio::test]
async fn reader_of_any_room_gets_all_and_the_end() {
    let all = conversation();
    let whole = rewritten([&all[..]]);
    // An end amid a head, and amid trailers.
    for cut in [all.len(), all.len() - 10, all.len() - 24] {
        for room in [1, 2, 8, 9, 100, 8192] {
            let (client, mut writer) = duplex(7);
            let sent = all[..cut].to_vec();
            let sending = tokio::spawn(async move { writer.write_all(&sent).await.unwrap() });
            let mut strict = StrictTrailers::new(client);
            let (mut read, mut piece) = (Vec::<u8>::new(), vec![0; room]);
            while let count @ 1.. = strict.read(&mut piece).await.unwrap() {
                read.extend(&piece[..count]);
            }
            sending.await.unwrap();
            let expected = if cut == all.len() { whole.clone() } else { rewritten([&all[..cut]]) };
            assert_eq!(read, expected, "cut at {cut}, room for {room}");
        }
    }
}

/// The trailers that h2 reads, or the code with which it resets the stream or ends the connection.
async fn at_h2(frames: Vec<u8>) -> Result<HeaderMap, h2::Reason> {
    let (server, mut client) = duplex(1 << 20);
    client.write_all(&[preface(), head(1), frames].concat()).await.unwrap();
    let (reader, writer) = split(server);
    let strict = StrictTrailers::new(reader);
    let mut connection = h2::server::handshake(join(strict, writer)).await.unwrap();
    let (request, _respond) =
        connection.accept().await.unwrap().map_err(|error| error.reason().unwrap())?;
    let serving = tokio::spawn(async move { while let Some(Ok(_)) = connection.accept().await {} });
    let mut body = request.into_body();
    let trailers = match body.data().await {
        Some(error) => error.map(|_| HeaderMap::new()),
        None => body.trailers().await.map(|trailers| trailers.unwrap()),
    };
    serving.abort();
    trailers.map_err(|error| error.reason().unwrap())
}

/// Trailers in several frames.
fn in_frames(block: &[u8], length: usize) -> Vec<u8> {
    let fragments: Vec<&[u8]> = block.chunks(length).collect();
    let frames = fragments.iter().enumerate().map(|(index, fragment)| {
        let (kind, kept) = if index == 0 { (HEADERS, END_STREAM) } else { (CONTINUATION, 0) };
        frame(kind, kept | if index + 1 == fragments.len() { END_HEADERS } else { 0 }, 1, fragment)
    });
    frames.collect::<Vec<_>>().concat()
}

#[tokio::test]
async fn trailers_in_several_frames_reach_h2_whole() {
    for (value, fits) in [(100, true), (BLOCK_BYTES_MAX - 7, true), (BLOCK_BYTES_MAX - 6, false)] {
        let value = "y".repeat(value);
        let block = field("x", &value);
        let mut expected =
            HeaderMap::from_iter([(http::header::HOST, http::HeaderValue::from_static(""))]);
        expected.append("x", value.parse().unwrap());
        let expected = if fits { Ok(expected) } else { Err(h2::Reason::PROTOCOL_ERROR) };
        for length in [40, 10_001] {
            assert_eq!(
                at_h2(in_frames(&block, length)).await,
                expected,
                "{} bytes in frames of {length}",
                block.len()
            );
        }
    }
}

#[tokio::test]
async fn pseudo_field_amid_long_trailers_is_rejected() {
    let long = |size| field("x", &"y".repeat(size));
    for (before, after) in
        [(0, 16_000), (0, 40_000), (100, 16_000), (9_000, 7_000), (16_000, 100), (40_000, 0)]
    {
        let block = [&long(before), PATH, &long(after), &field("x-sum", "1")].concat();
        for length in [PAYLOAD_BYTES_MAX, 10_001] {
            let outcome = at_h2(in_frames(&block, length)).await;
            assert_eq!(outcome, Err(h2::Reason::PROTOCOL_ERROR), "{before} {after} {length}");
        }
    }
}

/// h2 read these trailers as if they were honest: it forgets the pseudo-header field of a fragment
/// that ends within a field.
#[tokio::test]
async fn pseudo_field_before_a_divided_field_is_rejected() {
    let (first, second) = (b"\0\x05x-s", b"um\x011");
    let frames = [
        frame(HEADERS, END_STREAM, 1, &[PATH, first].concat()),
        frame(CONTINUATION, END_HEADERS, 1, second),
    ];
    assert_eq!(at_h2(frames.concat()).await, Err(h2::Reason::PROTOCOL_ERROR));
}
