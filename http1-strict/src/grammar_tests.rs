//! Checks, for each place in a request, exactly which bytes may stand there.

use crate::bytes::{is_encoded_in_target, is_target, is_token, is_value};
use crate::error::GrammarError;
use crate::grammar::RequestGrammar;

const LINE: &str = "GET / HTTP/1.1\r\n";

/// Whether a byte may follow `before`, which is allowed as a whole.
fn takes(before: &[u8], byte: u8) -> bool {
    let mut grammar = RequestGrammar::default();
    grammar.read(before).unwrap_or_else(|violation| {
        panic!("{violation:?} in {:?}", String::from_utf8_lossy(before))
    });
    grammar.read(&[byte]).is_ok()
}

/// Checks that exactly the bytes for which `may` holds may follow.
fn check(before: &str, may: impl Fn(u8) -> bool) {
    for byte in 0..=255 {
        assert_eq!(
            takes(before.as_bytes(), byte),
            may(byte),
            "{:?} after {before:?}",
            char::from(byte)
        );
    }
}

fn one_of(bytes: &'static str) -> impl Fn(u8) -> bool {
    move |byte| bytes.as_bytes().contains(&byte)
}

#[test]
fn request_line_allows_one_class_of_bytes_in_each_place() {
    for before in ["", "\r\n", "\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        check(before, |byte| byte == b'\r' || is_token(byte));
    }
    check("\r", one_of("\n"));
    check("GET", |byte| byte == b' ' || is_token(byte));
    let in_target = |byte| is_target(byte) || is_encoded_in_target(byte);
    check("GET ", in_target);
    check("GET /", |byte| byte == b' ' || in_target(byte));
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
fn field_allows_one_class_of_bytes_in_each_place() {
    for before in [
        LINE,
        "GET / HTTP/1.1\r\nA: b\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ] {
        check(before, |byte| byte == b'\r' || is_token(byte));
        check(&format!("{before}A"), |byte| byte == b':' || is_token(byte));
        check(&format!("{before}A:"), |byte| byte == b'\r' || is_value(byte));
        check(&format!("{before}A: b"), |byte| byte == b'\r' || is_value(byte));
        check(&format!("{before}A: b\r"), one_of("\n"));
        check(&format!("{before}\r"), one_of("\n"));
    }
}

#[test]
fn framing_fields_allow_digits_or_chunked_between_spaces() {
    for name in ["Content-Length", "CONTENT-LENGTH", "content-length"] {
        check(&format!("{LINE}{name}:"), one_of(" \t0123456789"));
        check(&format!("{LINE}{name}: \t"), one_of(" \t0123456789"));
        check(&format!("{LINE}{name}: 1"), one_of(" \t\r0123456789"));
        check(&format!("{LINE}{name}: 1 "), one_of(" \t\r"));
    }
    for name in ["Transfer-Encoding", "TRANSFER-encoding"] {
        check(&format!("{LINE}{name}:"), one_of(" \tcC"));
        for (at, letter) in "chunked".bytes().enumerate().skip(1) {
            check(&format!("{LINE}{name}: {}", &"chunked"[..at]), |byte| {
                byte.to_ascii_lowercase() == letter
            });
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
fn chunks_allow_one_class_of_bytes_in_each_place() {
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
fn body_of_any_bytes_ends_at_its_length() {
    let mut grammar = RequestGrammar::default();
    grammar.read(b"POST / HTTP/1.0\r\nA: b\r\nContent-Length: 000256 \r\n\r\n").unwrap();
    assert!(grammar.is_in_body());
    for byte in 0..=255_u8 {
        assert!(!grammar.is_between());
        grammar.read(&[byte]).unwrap();
    }
    assert!(grammar.is_between() && !grammar.is_in_body());
    assert_eq!(grammar.heads(), 1);
}

#[test]
fn each_violation_has_its_error() {
    let chunks = |chunks: &str| format!("{LINE}Transfer-Encoding: chunked\r\n\r\n{chunks}");
    let coding = |value: &str| format!("{LINE}Transfer-Encoding: {value}\r\n\r\n");
    let length = |value: &str| format!("{LINE}Content-Length: {value}\r\n\r\n");
    for (bytes, expected) in [
        ("\n".to_owned(), GrammarError::LineEnd),
        ("GET / HTTP/1.1\n".to_owned(), GrammarError::LineEnd),
        (format!("{LINE}A: b\n"), GrammarError::LineEnd),
        (format!("{LINE}A: b\rC: d"), GrammarError::LineEnd),
        ("GET  /".to_owned(), GrammarError::RequestLine),
        ("GET /\t".to_owned(), GrammarError::Target(b'\t')),
        ("GET / HTTP/1.2".to_owned(), GrammarError::RequestLine),
        ("GET /a#b".to_owned(), GrammarError::Target(b'#')),
        (format!("{LINE} A: b"), GrammarError::Name),
        (format!("{LINE}A : b"), GrammarError::Name),
        (format!("{LINE}A: \0"), GrammarError::Value),
        (length(""), GrammarError::Length),
        (length("+1"), GrammarError::Length),
        (length("9223372036854775808"), GrammarError::Length),
        (length("18446744073709551617"), GrammarError::Length),
        (length("1, 1"), GrammarError::Length),
        (format!("{LINE}Content-Length: 1\r\nContent-Length: 1"), GrammarError::TwoLengths),
        (
            format!("{LINE}Content-Length: 0\r\nTransfer-Encoding: chunked"),
            GrammarError::LengthAndCoding,
        ),
        (
            format!("{LINE}Transfer-Encoding: chunked\r\nContent-Length: 0"),
            GrammarError::LengthAndCoding,
        ),
        (
            format!("{LINE}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
            GrammarError::Coding,
        ),
        (coding("chunked,"), GrammarError::Coding),
        (coding("gzip, chunked"), GrammarError::Coding),
        (coding(""), GrammarError::Coding),
        (
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n".to_owned(),
            GrammarError::CodingInHttp10,
        ),
        (chunks("g"), GrammarError::ChunkSize),
        (chunks("1 "), GrammarError::ChunkSize),
        (chunks("00000000000000001"), GrammarError::ChunkSize),
        (chunks("1; a"), GrammarError::ChunkExtension),
        (chunks("1;a=\"b\r"), GrammarError::ChunkExtension),
        (chunks("1\r\nxx"), GrammarError::ChunkEnd),
        (chunks("1\n"), GrammarError::LineEnd),
    ] {
        let rejected = RequestGrammar::default().read(bytes.as_bytes()).unwrap_err();
        assert_eq!(rejected.error, expected, "{bytes:?}");
    }
    let largest = length("9223372036854775807");
    assert!(RequestGrammar::default().read(largest.as_bytes()).is_ok());
}
