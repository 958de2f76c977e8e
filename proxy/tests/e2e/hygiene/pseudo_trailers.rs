//! Pseudo-header fields in trailers of HTTP/2, in each spelling that HPACK has for them.

use super::frames::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Http2Client, Outcome, PADDED, block, frame};
use super::http2::honest;
use super::recorder::Message;
use super::{Scene, http2_worker, read_strictly};

const PRIORITY: u8 = 0x20;
const PROTOCOL_ERROR: u32 = 1;

/// Name, value, and index in the static table.
const PSEUDO_FIELDS: &[(&str, &str, Option<u8>)] = &[
    (":authority", "hidden", Some(1)),
    (":method", "DELETE", Some(2)),
    (":path", "/hidden", Some(4)),
    (":scheme", "https", Some(6)),
    (":status", "204", Some(8)),
    (":protocol", "websocket", None),
];

/// `:path: /` with both Huffman-coded.
const HUFFMAN: &[u8] = b"\0\x84\xb9\x58\xd3\x3f\x81\x63";

/// What a pseudo-header field may look like, in the order in which one connection sends them.
fn spellings(name: &str, value: &str, static_index: Option<u8>) -> Vec<Vec<u8>> {
    let literal = block(&[(name.to_owned(), value.to_owned())]);
    let literal_as = |kind: u8| [&[kind], &literal[1..]].concat();
    let text = [&[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    let of_static_table = static_index.map(|index| [vec![0x80 | index], [&[index], &text[..]].concat()]);
    let mut all: Vec<Vec<u8>> = of_static_table.into_iter().flatten().collect();
    // Never indexed; entering the dynamic table; and taken out of this table.
    all.extend([literal.clone(), literal_as(0x10), literal_as(0x40), vec![0x80 | 62]]);
    all
}

/// A block as a trailer section: in one frame, with all that may stand around it, and cut in two.
fn framings(block: &[u8]) -> Vec<Vec<(u8, u8, Vec<u8>)>> {
    let all = END_STREAM | END_HEADERS;
    let mut framings = vec![
        vec![(HEADERS, all, block.to_vec())],
        vec![(HEADERS, all | PADDED | PRIORITY, [&[2, 0, 0, 0, 0, 15], block, &[0; 2]].concat())],
        // Behind a size update of the dynamic table.
        vec![(HEADERS, all, [b"\x3f\xe1\x1f", block].concat())],
    ];
    framings.extend([0, 1, block.len() / 2, block.len() - 1, block.len()].map(|cut| {
        let (first, second) = block.split_at(cut);
        vec![(HEADERS, END_STREAM, first.to_vec()), (CONTINUATION, END_HEADERS, second.to_vec())]
    }));
    framings
}

/// Sends requests with these trailers, in all framings, with and without a length. Returns what goes otherwise than it should.
async fn play(client: &mut Http2Client, scene: &Scene, path: &str, trailers: &[u8], expected: Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, frames) in framings(trailers).into_iter().enumerate() {
        for length in [None, Some(("content-length", "3"))] {
            let mut fields = honest(scene, &format!("{path}/{index}/{}", length.is_some()));
            fields.extend(
                [("trailer", "x-sum")].into_iter().chain(length).map(|(name, value)| (name.into(), value.into())),
            );
            let stream = client.begin(&fields, "abc").await;
            let frames =
                frames.iter().flat_map(|(kind, flags, payload)| frame(*kind, *flags, stream, payload)).collect();
            let outcome = client.finish(stream, frames).await;
            let code = (expected == Outcome::Reset).then_some(PROTOCOL_ERROR);
            if (outcome, client.reset_code) != (expected, code) {
                wrong.push(format!("{path}, {trailers:?} as {index}, {length:?}: {outcome:?} {:?}", client.reset_code));
            }
            assert_ne!(outcome, Outcome::Gone, "{}", wrong.join("\n"));
        }
    }
    wrong
}

async fn play_all(scene: &Scene) -> Vec<String> {
    let sum = &block(&[("x-sum".to_owned(), "1".to_owned())])[..];
    let mut blocks: Vec<(String, Vec<Vec<u8>>)> = PSEUDO_FIELDS
        .iter()
        .map(|(name, value, index)| (name[1..].to_owned(), spellings(name, value, *index)))
        .collect();
    blocks.push(("huffman".to_owned(), vec![HUFFMAN.to_vec()]));
    let mut wrong = Vec::new();
    for (name, spellings) in blocks {
        let mut client = Http2Client::open(scene.fence.listener.clone()).await;
        let beside = client.begin(&honest(scene, &format!("/beside/{name}")), "hon").await;
        for (index, spelling) in spellings.iter().enumerate() {
            let path = format!("/case/{name}/{index}");
            let orders = [spelling.clone(), [spelling, sum].concat(), [sum, spelling].concat()];
            for (order, block) in orders.iter().enumerate() {
                let path = format!("{path}/{order}");
                wrong.extend(play(&mut client, scene, &path, block, Outcome::Reset).await);
            }
        }
        if client.finish(beside, frame(DATA, END_STREAM, beside, b"est")).await != Outcome::Ok {
            wrong.push(format!("{name}: what went on beside it"));
        }
    }
    let mut client = Http2Client::open(scene.fence.listener.clone()).await;
    let honest = [sum, &block(&[("host".to_owned(), "x".to_owned())])].concat();
    wrong.extend(play(&mut client, scene, "/trailers", &honest, Outcome::Ok).await);
    wrong
}

fn audit(whole: &[Message], has_trailers: impl Fn(&Message) -> bool, mut wrong: Vec<String>) {
    for message in whole {
        let sum = [("x-sum".to_owned(), "1".to_owned())];
        let trailers = if has_trailers(message) { &sum[..] } else { &[] };
        let body = if message.target.starts_with("/beside/") { "honest" } else { "abc" };
        let fine = message.body == body && message.trailers == trailers && !message.target.starts_with("/case/");
        if !fine {
            wrong.push(format!("at the worker: {message:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let count = |of: &str| whole.iter().filter(|message| message.target.starts_with(of)).count();
    assert_eq!(count("/beside/"), PSEUDO_FIELDS.len() + 1);
    assert_eq!(count("/trailers/"), 2 * framings(b" ").len());
}

/// The worker got a whole request, and its client an answer, where RFC 9113 has the request malformed (section 8.1).
#[tokio::test]
async fn pseudo_trailers_reset_streams_before_http1_workers() {
    for limit in ["", "buffer_body_max = 0"] {
        let scene = Scene::open(limit).await;
        let mut wrong = play_all(&scene).await;
        let (whole, _) = read_strictly(&scene.recorded().await, &mut wrong);
        // HTTP/1.1 has no place for trailers behind a length.
        audit(&whole, |message| message.target.starts_with("/trailers/") && message.target.ends_with("/false"), wrong);
    }
}

#[tokio::test]
async fn pseudo_trailers_reset_streams_before_http2_workers() {
    for limit in ["", "buffer_body_max = 0"] {
        let (scene, recorder) = http2_worker::open(limit).await;
        let wrong = play_all(&scene).await;
        assert!(scene.recorded().await.is_empty());
        audit(&recorder.whole(), |message| message.target.starts_with("/trailers/"), wrong);
    }
}
