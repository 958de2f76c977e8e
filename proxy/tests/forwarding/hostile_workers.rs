//! Workers whose answers two readers could read in two ways: a client gets one clean answer or
//! none, and nobody else anything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost::upstream::Ending;

use crate::support::{Client, Event, Peer, Proxy, Scene, Settings, Worker};

/// What a worker may say to the one request that it was asked, and whether another may be asked on
/// that connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is passed on with this body, and the connection is kept.
    Kept(&'static str),
    /// It is passed on with this body, and the connection is used no more.
    Left(&'static str),
    /// It is passed on as far as it could be read: the client sees that something is missing.
    CutShort,
    /// The client is told 502.
    Refused,
}

use Fate::{CutShort, Kept, Left, Refused};

/// An answer to nobody, behind one that has ended.
const FORGED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";

/// `{F}` stands for [`FORGED`].
#[rustfmt::skip]
const CASES: &[(&str, &str, Fate)] = &[
    ("a length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Kept("hello")),
    ("chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Kept("hello")),
    ("a length with a zero", "HTTP/1.1 200 OK\r\nContent-Length: 05\r\n\r\nhello", Kept("hello")),
    ("a length twice", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", Left("hello")),
    ("a length twice in a list", "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", Left("hello")),
    ("an answer behind it", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello{F}", Left("hello")),
    ("an answer behind chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n{F}", Left("hello")),
    ("an answer behind 204", "HTTP/1.1 204 No Content\r\n\r\n{F}", Left("")),
    ("a length with 204", "HTTP/1.1 204 No Content\r\nContent-Length: 60\r\n\r\n", Left("")),
    ("chunks with 204", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", Left("")),
    ("an answer as the body of 304", "HTTP/1.1 304 Not Modified\r\nContent-Length: 44\r\n\r\n{F}", Left("")),

    ("an old version that stays", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", Left("hello")),

    // Lines that end otherwise.
    ("a value with a CR", "HTTP/1.1 200 OK\r\nX: a\rForged: b\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("a value with a NUL", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("a folded value", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 5\r\n\r\nhello", Kept("hello")),
    ("a folded value with a tab", "HTTP/1.1 200 OK\r\nX: a\r\n\tb\r\n  c\r\nContent-Length: 5\r\n\r\nhello{F}", Left("hello")),
    ("a fold before any field", "HTTP/1.1 200 OK\r\n Forged: b\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("a folded length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n 5\r\n\r\nhello{F}", Left("hello")),
    ("a space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello{F}", Refused),
    ("a line without a colon", "HTTP/1.1 200 OK\r\nforged\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("a field without a name", "HTTP/1.1 200 OK\r\n: forged\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("a reason with a CR", "HTTP/1.1 200 O\rK\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("another version", "HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("no version", "hello{F}", Refused),
    ("a status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("a status below 100", "HTTP/1.1 099 OK\r\nContent-Length: 5\r\n\r\nhello{F}", Refused),
    ("another protocol that nobody asked for", "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n{F}", Refused),

    // Lengths.
    ("lengths that differ", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nhello{F}", Refused),
    ("lengths that differ in a list", "HTTP/1.1 200 OK\r\nContent-Length: 5, 0\r\n\r\nhello{F}", Refused),
    ("a length with a plus", "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello{F}", Refused),
    ("a length with a minus", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello{F}", Refused),
    ("a length beyond 64 bits", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551621\r\n\r\nhello{F}", Refused),

    // Chunks.
    ("a chunk's size in other digits", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n{F}", CutShort),
    ("a chunk's size with a plus", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n{F}", CutShort),
    ("a chunk's size with a minus", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n{F}", CutShort),
    ("a chunk's size beyond 64 bits", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n{F}", CutShort),
    ("a chunk without a size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n{F}", CutShort),
    ("a chunk that ends with LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n{F}", CutShort),
    ("a chunk's size that ends with LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n{F}", CutShort),
    ("a chunk longer than it says", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n{F}", CutShort),
    ("an extension with LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n{F}", CutShort),
    ("trailers like framing", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 0\r\nSet-Cookie: forged\r\n\r\n", Kept("hello")),
    ("a trailer with a CR", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: a\rForged: b\r\n\r\n{F}", CutShort),

    // Codings that only the worker's next hop could undo.
    ("gzip in chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Refused),
    ("gzip in chunks, in two lines", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Refused),
    ("gzip to the end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: GZIP\r\n\r\nhello{F}", Refused),
    ("chunks within no coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Refused),
    ("chunks named in two lines", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Left("hello")),
    ("no coding and a length", "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello{F}", Left("hello")),
    ("a coding without a name and a length", "HTTP/1.1 200 OK\r\nTransfer-Encoding: \r\nContent-Length: 5\r\n\r\nhello{F}", Left("hello")),
    ("no coding and no body", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: identity\r\n\r\n{F}", Left("")),
    ("no coding and less than the length", "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 500\r\n\r\nhello", CutShort),
    ("chunks of an old version", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Refused),
    ("a version to come", "HTTP/1.2 200 OK\r\nContent-Length: 5\r\n\r\nhello", Refused),
    ("chunks named twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Left("hello")),
    ("gzip in chunks with 304", "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Left("")),
    ("no coding, in chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Identity,, Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Left("hello")),

    // Both.
    ("chunks and a length", "HTTP/1.1 200 OK\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Left("hello")),
];

/// A worker that answers `/case/N` by the table, and anything else with the number of the
/// connection.
fn worker() -> SocketAddr {
    let connections = Arc::new(AtomicUsize::new(0));
    Worker::scripted(move |mut peer: Peer| {
        let number = connections.fetch_add(1, Ordering::Relaxed);
        while let Some((head, _)) = peer.next_request() {
            let target = head.split(' ').nth(1).unwrap();
            match target.strip_prefix("/case/") {
                Some(case) => {
                    let (_, answer, fate) = CASES[case.parse::<usize>().unwrap()];
                    if peer.try_send_bytes(answer.replace("{F}", FORGED).as_bytes()).is_err()
                        || fate == CutShort
                    {
                        return;
                    }
                }
                None => peer.respond(&format!("honest {number}")),
            }
        }
    })
}

#[test]
fn an_ambiguous_response_is_one_clean_response_or_none() {
    let mut wrong = Vec::new();
    for (index, (name, _, fate)) in CASES.iter().enumerate() {
        let proxy = Proxy::before(worker());
        let first = honest(&proxy);
        let mut client = proxy.client();
        client.send(&format!(
            "GET /case/{index} HTTP/1.1\r\nHost: t\r\nTE: trailers\r\nConnection: close, te\r\n\r\n"
        ));
        let got = String::from_utf8(client.until_end()).unwrap();
        let (next, last) = (honest(&proxy), honest(&proxy));
        let is_kept = next == first;
        let read = read_strictly(&got);
        let right = match (fate, read) {
            (Kept(body), Ok((status, got))) => is_kept && status != "502" && got == *body,
            (Left(body), Ok((status, got))) => !is_kept && status != "502" && got == *body,
            (CutShort, Err(Unread::Partial)) => !is_kept,
            (Refused | CutShort, Ok((status, _))) => !is_kept && status == "502",
            _ => false,
        };
        if !right || next != last || got.to_ascii_lowercase().contains("forged:") {
            wrong.push(format!("{name}: {got:?}, then {first}, {next}, {last}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong of {}:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

/// Asks on a connection of its own. Says which of the worker's answered.
fn honest(proxy: &Proxy) -> String {
    let body = String::from_utf8(proxy.client().get("/honest").1).unwrap();
    assert!(body.starts_with("honest "), "{body}");
    body
}

#[derive(Debug)]
enum Unread {
    Partial,
    Unclean,
}

/// The status and the body of the one answer that these bytes are.
fn read_strictly(bytes: &str) -> Result<(&str, String), Unread> {
    let (head, mut rest) = bytes.split_once("\r\n\r\n").ok_or(Unread::Unclean)?;
    if head.replace("\r\n", "").contains(|byte: char| byte.is_ascii_control() && byte != '\t') {
        return Err(Unread::Unclean);
    }
    let mut lines = head.split("\r\n");
    let status =
        lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).ok_or(Unread::Unclean)?;
    let fields: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
    let is_framing = |name: &str| {
        ["content-length", "transfer-encoding"].contains(&name.to_ascii_lowercase().as_str())
    };
    let framing: Vec<_> =
        fields.iter().filter(|(name, _)| is_framing(name)).map(|(_, value)| *value).collect();
    let has_body = !["204", "304"].contains(&&status[..3]);
    let body = match framing[..] {
        ["chunked"] if has_body => {
            let mut body = String::new();
            loop {
                let (size, chunk) = rest.split_once("\r\n").ok_or(Unread::Partial)?;
                let size = usize::from_str_radix(size, 16).map_err(|_| Unread::Unclean)?;
                if size == 0 {
                    rest = chunk;
                    break;
                }
                body.push_str(chunk.get(..size).ok_or(Unread::Partial)?);
                rest = chunk[size..].strip_prefix("\r\n").ok_or(Unread::Unclean)?;
            }
            rest = rest.strip_prefix("\r\n").ok_or(Unread::Unclean)?; // No trailer is left.
            body
        }
        [length] if has_body => {
            let length = length.parse().map_err(|_| Unread::Unclean)?;
            let body = rest.get(..length).ok_or(Unread::Partial)?;
            rest = &rest[length..];
            body.to_owned()
        }
        [] | [_] if !has_body => String::new(),
        _ => return Err(Unread::Unclean),
    };
    if rest.is_empty() { Ok((&status[..3], body)) } else { Err(Unread::Unclean) }
}

#[test]
fn a_worker_that_only_announces_holds_up_nobody() {
    let address = Worker::scripted(|mut peer: Peer| {
        while let Some((head, _)) = peer.next_request() {
            let flood =
                format!("HTTP/1.1 103 Early Hints\r\nX: {}\r\n\r\n", "x".repeat(4_000)).repeat(100);
            match head.split(' ').nth(1).unwrap() {
                "/endless" => {
                    while peer.try_send_bytes(flood.as_bytes()).is_ok() {}
                    return;
                }
                "/many" => peer.send(&flood),
                _ => {}
            }
            peer.respond("hello");
        }
    });
    let proxy = Proxy::before(address);
    assert_eq!(proxy.client().get("/many").1, b"hello");
    let mut endless: Vec<Client> = (0..3).map(|_| proxy.client()).collect();
    for client in &mut endless {
        client.send("GET /endless HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    for _ in 0..10 {
        assert_eq!(proxy.client().get("/").1, b"hello");
    }
    for mut client in endless {
        assert!(client.head().starts_with("HTTP/1.1 502 "));
    }
    let events = proxy.wait_for_events(14);
    assert_eq!(
        events.iter().filter(|event| **event == Event::Finished(Ending::Reset)).count(),
        3,
        "{events:?}"
    );
}

#[test]
fn many_fields_pass_up_to_the_limit_of_the_upstream() {
    let address = Worker::scripted(|mut peer: Peer| {
        while let Some((head, _)) = peer.next_request() {
            let count: usize = head.split(' ').nth(1).unwrap()[1..].parse().unwrap();
            let fields: String = (1..count).map(|number| format!("X-{number}: x\r\n")).collect();
            peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n"));
        }
    });
    for headers_max in [100, 300] {
        let proxy = Proxy::with(address, Settings { headers_max, ..Settings::default() });
        for (count, status) in [(headers_max, "200"), (headers_max + 1, "502")] {
            let (head, _) = proxy.client().get(&format!("/{count}"));
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{count}: {head}");
        }
    }
}

#[test]
fn an_unreadable_answer_is_refused_at_once_with_its_field() {
    let scene = Scene::with("");
    let token = scene.hold("a");
    for (answer, named) in [
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "Transfer-Encoding"),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "transfer-encoding"),
        ("HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.2 200 OK"),
        ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "content-length"),
        ("HTTP/1.1 200 OK\r\nX Y: b\r\nContent-Length: 0\r\n\r\n", "the field name \\\"X Y"),
        ("HTTP/1.1 200 OK\r\nX-A: b\x01\r\nContent-Length: 0\r\n\r\n", "the field \\\"X-A"),
    ] {
        let mut client = scene.get(&token);
        let mut peer = scene.worker.next();
        peer.head();
        peer.send(answer);
        let (head, body) = client.answer();
        let body = String::from_utf8(body).unwrap();
        assert!(head.starts_with("HTTP/1.1 502 ") && body.contains("worker-unreadable"), "{body}");
        assert!(body.contains(named), "{answer}: {body}");
    }
}

/// The answer has ended where its connection has, and where its length has come.
#[test]
fn an_unreadable_answer_that_has_ended_is_no_orphan() {
    let many: String = (0..150).map(|number| format!("X-{number}: x\r\n")).collect();
    let framed = |length| format!("HTTP/1.1 200 OK\r\n{many}Content-Length: {length}\r\n\r\nhello");
    for (answer, closes, ending) in [
        (
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            true,
            Ending::Complete,
        ),
        ("HTTP/1.1 200 OK\r\nX Y: b\r\n\r\nhello".to_owned(), true, Ending::Complete),
        ("HTTP/1.2 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(), false, Ending::Complete),
        (framed(5), false, Ending::Complete),
        (framed(6), false, Ending::Reset),
        ("HTTP/1.1 200 OK\r\nX Y: b\r\n\r\nhello".to_owned(), false, Ending::Reset),
    ] {
        let said = answer.clone();
        let address = Worker::scripted(move |mut peer: Peer| {
            while peer.next_request().is_some() {
                peer.send(&said);
                if closes {
                    return;
                }
            }
        });
        let proxy = Proxy::before(address);
        let (head, _) = proxy.client().get("/");
        assert!(head.starts_with("HTTP/1.1 502 "), "{answer}: {head}");
        let events = proxy.wait_for_events(2);
        assert_eq!(events, [Event::Overdue, Event::Finished(ending)], "{answer}");
    }
}
