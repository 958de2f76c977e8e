//! Which byte may follow what.

use super::bytes::{is_target, is_token, is_value};
use super::requests::Requests;
use super::state::Unclear;

const LINE: &str = "GET / HTTP/1.1\r\n";

/// Whether a byte may follow `before`, all of which is fine.
fn takes(before: &[u8], byte: u8) -> bool {
    let mut requests = Requests::default();
    requests
        .follow(before)
        .unwrap_or_else(|violation| panic!("{violation:?} in {:?}", String::from_utf8_lossy(before)));
    requests.follow(&[byte]).is_ok()
}

/// Exactly the bytes for which `may` holds may follow.
fn check(before: &str, may: impl Fn(u8) -> bool) {
    for byte in 0..=255 {
        assert_eq!(takes(before.as_bytes(), byte), may(byte), "{:?} after {before:?}", char::from(byte));
    }
}

fn one_of(bytes: &'static str) -> impl Fn(u8) -> bool {
    move |byte| bytes.as_bytes().contains(&byte)
}

#[test]
fn in_a_request_line_every_byte_has_one_place() {
    for before in ["", "\r\n", "\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        check(before, |byte| byte == b'\r' || is_token(byte));
    }
    check("\r", one_of("\n"));
    check("GET", |byte| byte == b' ' || is_token(byte));
    check("GET ", is_target);
    check("GET /", |byte| byte == b' ' || is_target(byte));
    for (at, letter) in "HTTP/1.".bytes().enumerate() {
        check(&format!("GET / {}", &"HTTP/1."[..at]), |byte| byte == letter);
    }
    check("GET / HTTP/1.", one_of("01"));
    for version in ["0", "1"] {
        check(&format!("GET / HTTP/1.{version}"), one_of("\r"));
    }
    check("GET / HTTP/1.1\r", one_of("\n"));
}

#[test]
fn in_a_field_every_byte_has_one_place() {
    for before in [LINE, "GET / HTTP/1.1\r\nA: b\r\n", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"] {
        check(before, |byte| byte == b'\r' || is_token(byte));
        check(&format!("{before}A"), |byte| byte == b':' || is_token(byte));
        check(&format!("{before}A:"), |byte| byte == b'\r' || is_value(byte));
        check(&format!("{before}A: b"), |byte| byte == b'\r' || is_value(byte));
        check(&format!("{before}A: b\r"), one_of("\n"));
        check(&format!("{before}\r"), one_of("\n"));
    }
}

#[test]
fn a_length_is_digits_between_spaces_and_a_coding_is_chunked_between_spaces() {
    for name in ["Content-Length", "CONTENT-LENGTH", "content-length"] {
        check(&format!("{LINE}{name}:"), one_of(" \t0123456789"));
        check(&format!("{LINE}{name}: \t"), one_of(" \t0123456789"));
        check(&format!("{LINE}{name}: 1"), one_of(" \t\r0123456789"));
        check(&format!("{LINE}{name}: 1 "), one_of(" \t\r"));
    }
    for name in ["Transfer-Encoding", "TRANSFER-encoding"] {
        check(&format!("{LINE}{name}:"), one_of(" \tcC"));
        for (at, letter) in "chunked".bytes().enumerate().skip(1) {
            check(&format!("{LINE}{name}: {}", &"chunked"[..at]), |byte| byte.to_ascii_lowercase() == letter);
        }
        check(&format!("{LINE}{name}: chunked"), one_of(" \t\r"));
        check(&format!("{LINE}{name}: CHUNKED "), one_of(" \t\r"));
    }
    for name in [
        "Content-Lengt",
        "Content-Lengths",
        "XContent-Length",
        "Content_Length",
        "Transfer-Encodin",
        "Transfer-Encodings",
    ] {
        check(&format!("{LINE}{name}: "), |byte| byte == b'\r' || is_value(byte));
    }
}

#[test]
fn in_chunks_every_byte_has_one_place() {
    let is_hex = |byte: u8| byte.is_ascii_hexdigit();
    let before = |chunks: &str| format!("{LINE}Transfer-Encoding: chunked\r\n\r\n{chunks}");
    check(&before(""), is_hex);
    check(&before("1\r\nx\r\n"), is_hex);
    check(&before("0"), |byte| is_hex(byte) || one_of("\r;")(byte));
    check(&before("000000000000000f"), one_of("\r;"));
    check(&before("1\r"), one_of("\n"));
    check(&before("2\r\n"), |_| true);
    check(&before("2\r\nx"), |_| true);
    check(&before("2\r\nxx"), one_of("\r"));
    check(&before("2\r\nxx\r"), one_of("\n"));
    check(&before("1;"), is_token);
    check(&before("1;a"), |byte| is_token(byte) || one_of("=;\r")(byte));
    check(&before("1;a="), |byte| is_token(byte) || byte == b'"');
    check(&before("1;a=b"), |byte| is_token(byte) || one_of(";\r")(byte));
    check(&before("1;a=\""), is_value);
    check(&before("1;a=\"\\"), is_value);
    check(&before("1;a=\"\\\"b;"), is_value);
    check(&before("1;a=\"b\""), one_of(";\r"));
    check(&before("1;a=\"b\";c"), |byte| is_token(byte) || one_of("=;\r")(byte));
}

#[test]
fn the_body_of_a_request_may_be_anything_and_ends_where_its_head_says() {
    let mut requests = Requests::default();
    requests.follow(b"POST / HTTP/1.0\r\nA: b\r\nContent-Length: 000256 \r\n\r\n").unwrap();
    assert!(requests.is_in_body());
    for byte in 0..=255_u8 {
        assert!(!requests.is_between());
        requests.follow(&[byte]).unwrap();
    }
    assert!(requests.is_between() && !requests.is_in_body());
    assert_eq!(requests.heads(), 1);
}

#[test]
fn what_is_refused_has_a_name() {
    let chunks = |chunks: &str| format!("{LINE}Transfer-Encoding: chunked\r\n\r\n{chunks}");
    let coding = |value: &str| format!("{LINE}Transfer-Encoding: {value}\r\n\r\n");
    let length = |value: &str| format!("{LINE}Content-Length: {value}\r\n\r\n");
    for (bytes, expected) in [
        ("\n".to_owned(), Unclear::LineEnd),
        ("GET / HTTP/1.1\n".to_owned(), Unclear::LineEnd),
        (format!("{LINE}A: b\n"), Unclear::LineEnd),
        (format!("{LINE}A: b\rC: d"), Unclear::LineEnd),
        ("GET  /".to_owned(), Unclear::RequestLine),
        ("GET / HTTP/1.2".to_owned(), Unclear::RequestLine),
        ("GET /a#b".to_owned(), Unclear::RequestLine),
        (format!("{LINE} A: b"), Unclear::Name),
        (format!("{LINE}A : b"), Unclear::Name),
        (format!("{LINE}A: \0"), Unclear::Value),
        (length(""), Unclear::Length),
        (length("+1"), Unclear::Length),
        (length("9223372036854775808"), Unclear::Length),
        (length("18446744073709551617"), Unclear::Length),
        (length("1, 1"), Unclear::Length),
        (format!("{LINE}Content-Length: 1\r\nContent-Length: 1"), Unclear::TwoLengths),
        (format!("{LINE}Content-Length: 0\r\nTransfer-Encoding: chunked"), Unclear::LengthAndCoding),
        (format!("{LINE}Transfer-Encoding: chunked\r\nContent-Length: 0"), Unclear::LengthAndCoding),
        (format!("{LINE}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Unclear::Coding),
        (coding("chunked,"), Unclear::Coding),
        (coding("gzip, chunked"), Unclear::Coding),
        (coding(""), Unclear::Coding),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n".to_owned(), Unclear::CodingInHttp10),
        (chunks("g"), Unclear::ChunkSize),
        (chunks("1 "), Unclear::ChunkSize),
        (chunks("00000000000000001"), Unclear::ChunkSize),
        (chunks("1; a"), Unclear::ChunkExtension),
        (chunks("1;a=\"b\r"), Unclear::ChunkExtension),
        (chunks("1\r\nxx"), Unclear::ChunkEnd),
        (chunks("1\n"), Unclear::LineEnd),
    ] {
        let refused = Requests::default().follow(bytes.as_bytes()).unwrap_err();
        assert_eq!(refused.unclear, expected, "{bytes:?}");
    }
    let largest = length("9223372036854775807");
    assert!(Requests::default().follow(largest.as_bytes()).is_ok());
}
