//! Requests with each control byte in each place of a request.

use super::cases::Fate;

/// Bytes that stand in no text of a message. Tabs do in some places; carriage returns and line
/// feeds end lines.
fn odd_bytes() -> impl Iterator<Item = char> {
    (0..=0x1F_u8).chain([0x7F]).filter(|byte| !b"\t\r\n".contains(byte)).map(char::from)
}

/// The requests, each with its name and with what is to become of it.
pub(super) fn cases() -> Vec<(String, String, Fate)> {
    const PLACES: [(&str, &str, Fate); 9] = [
        ("a method", "GE?T {path} HTTP/1.1\r\nHost: h\r\n{T}\r\n{hidden}", BAD),
        ("a target", "GET {path}? HTTP/1.1\r\nHost: h\r\n{T}\r\n{hidden}", BAD),
        ("a version", "GET {path} HTTP/?1.1\r\nHost: h\r\n{T}\r\n{hidden}", BAD),
        (
            "a name",
            "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Fence?Revision: {stale}\r\n\r\n{hidden}",
            BAD,
        ),
        ("a value", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X: a?b\r\n\r\n{hidden}", BAD),
        (
            "a length",
            "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: ?3\r\n\r\nabc{hidden}",
            BAD,
        ),
        (
            "a chunk size",
            "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3?\r\nabc\r\n0\r\n\r\n{hidden}",
            Fate::Cut,
        ),
        (
            "an extension",
            "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3;x=\"?\"\r\nabc\r\n0\r\n\r\n{hidden}",
            Fate::Cut,
        ),
        (
            "a trailer",
            "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n0\r\nX: ?\r\n\r\n{hidden}",
            Fate::Cut,
        ),
    ];
    const BAD: Fate = Fate::RefusedThenClosed(400);
    let places = PLACES.iter();
    let every = places.flat_map(|(place, template, fate)| {
        odd_bytes().map(move |odd| (*place, odd, *template, *fate))
    });
    every
        .map(|(place, odd, template, fate)| {
            let request = template.replacen('?', &odd.to_string(), 1);
            (format!("{odd:?} in {place}"), request, fate)
        })
        .collect()
}
