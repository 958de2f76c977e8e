//! Requests over HTTP/2, as lists of fields. Places are filled in as in the other table; `{T}` as a name stands for the token.

/// What is to become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http2Fate {
    /// One clean message with this body.
    Clean(&'static str),
    /// Answered with another status than 200, reset, or the connection ended; no whole message is at the worker.
    Refused,
}

/// Fields, in the order in which they are sent.
type Fields = &'static [(&'static str, &'static str)];

/// A request, and what is to become of it.
pub(super) struct Http2Case {
    pub(super) name: &'static str,
    pub(super) fields: Fields,
    pub(super) body: Option<&'static str>,
    pub(super) trailers: Fields,
    pub(super) fate: Http2Fate,
}

use Http2Fate::{Clean, Refused};

const M: (&str, &str) = (":method", "POST");
const P: (&str, &str) = (":path", "{path}");
const S: (&str, &str) = (":scheme", "http");
const A: (&str, &str) = (":authority", "h");
const T: (&str, &str) = ("{T}", "");

const fn head(name: &'static str, fields: Fields, fate: Http2Fate) -> Http2Case {
    Http2Case { name, fields, body: None, trailers: &[], fate }
}

const fn with_body(name: &'static str, fields: Fields, body: &'static str, fate: Http2Fate) -> Http2Case {
    Http2Case { name, fields, body: Some(body), trailers: &[], fate }
}

const fn with_trailers(name: &'static str, trailers: Fields, fate: Http2Fate) -> Http2Case {
    Http2Case { name, fields: &[M, P, S, A, T], body: Some("abc"), trailers, fate }
}

#[rustfmt::skip]
pub(super) const HTTP2_CASES: &[Http2Case] = &[
    head("no body", &[M, P, S, A, T], Clean("")),
    with_body("a body", &[M, P, S, A, T], "abc", Clean("abc")),
    with_body("a body and its length", &[M, P, S, A, T, ("content-length", "3")], "abc", Clean("abc")),
    head("no authority but a host", &[M, P, S, T, ("host", "h")], Clean("")),

    // Pseudo-fields.
    head("two methods", &[M, M, P, S, A, T], Refused),
    head("two paths", &[M, P, (":path", "/hidden"), S, A, T], Refused),
    head("two schemes", &[M, P, S, S, A, T], Refused),
    head("two authorities", &[M, P, S, A, A, T], Refused),
    head("no method", &[P, S, A, T], Refused),
    head("no path", &[M, S, A, T], Refused),
    head("no scheme", &[M, P, A, T], Refused),
    head("an empty path", &[M, (":path", ""), S, A, T], Refused),
    head("a path that is a URL", &[M, (":path", "http://x/hidden"), S, A, T], Refused),
    head("a query without a path", &[M, (":path", "?x"), S, A, T], Refused),
    head("a query without a path or an authority", &[M, (":path", "?x"), S, T, ("host", "h")], Refused),
    head("a path that is no path", &[M, (":path", "hidden"), S, A, T], Refused),
    head("a path with a request line", &[M, (":path", "{path} HTTP/1.1\r\nX: y"), S, A, T], Refused),
    head("a path with a space", &[M, (":path", "{path} x"), S, A, T], Refused),
    head("a method with a request line", &[(":method", "GET /hidden HTTP/1.1\r\nX: y\r\n\r\nPOST"), P, S, A, T], Refused),
    head("a method with a space", &[(":method", "GET /hidden"), P, S, A, T], Refused),
    head("a scheme with a host", &[M, P, (":scheme", "http://x/hidden?"), A, T], Refused),
    head("an authority with a line", &[M, P, S, (":authority", "h\r\nX: y"), T], Refused),
    head("an authority with a path", &[M, P, S, (":authority", "h/x"), T], Refused),
    head("an authority with a user", &[M, P, S, (":authority", "x@h"), T], Refused),
    head("an authority and another host", &[M, P, S, A, T, ("host", "x")], Refused),
    head("an authority and two hosts", &[M, P, S, A, T, ("host", "h"), ("host", "x")], Refused),
    head("an authority and the same host", &[M, P, S, A, T, ("host", "h")], Clean("")),
    head("neither authority nor host", &[M, P, S, T], Refused),
    head("a pseudo-field after the others", &[M, P, S, T, A], Refused),
    head("an unknown pseudo-field", &[M, P, S, A, (":fence-owner", "x"), T], Refused),
    head("a pseudo-field of answers", &[M, P, S, A, (":status", "200"), T], Refused),
    head("CONNECT", &[(":method", "CONNECT"), (":authority", "h:80"), T], Refused),
    head("CONNECT to websocket", &[(":method", "CONNECT"), (":protocol", "websocket"), P, S, A, T], Refused),

    // Names and values.
    head("a name in capitals", &[M, P, S, A, T, ("Fence-Revision", "{stale}")], Refused),
    head("a name with a colon", &[M, P, S, A, T, ("x: y\r\nfence-revision", "{stale}")], Refused),
    head("a name with a space", &[M, P, S, A, T, ("fence-revision ", "{stale}")], Refused),
    head("an empty name", &[M, P, S, A, T, ("", "x")], Refused),
    head("a value with a line", &[M, P, S, A, T, ("x-public", "a\r\nfence-revision: {stale}")], Refused),
    head("a value with a line feed", &[M, P, S, A, T, ("x-public", "a\nfence-revision: {stale}")], Refused),
    head("a value with a whole request", &[M, P, S, A, T, ("x-public", "a\r\n\r\nGET /hidden HTTP/1.1\r\nHost: h\r\n\r\n")], Refused),
    head("a value with a NUL", &[M, P, S, A, T, ("x-public", "a\0b")], Refused),
    head("a revision with a NUL", &[M, P, S, A, ("fence-owner", "{owner}"), ("fence-revision", "{revision}\0")], Refused),

    // Fields of one connection of HTTP/1.1.
    with_body("a transfer coding", &[M, P, S, A, T, ("transfer-encoding", "chunked")], "0\r\n\r\n", Refused),
    head("Connection", &[M, P, S, A, T, ("connection", "fence-owner")], Refused),
    head("Keep-Alive", &[M, P, S, A, T, ("keep-alive", "1")], Refused),
    head("Proxy-Connection", &[M, P, S, A, T, ("proxy-connection", "close")], Refused),
    head("Upgrade", &[M, P, S, A, T, ("upgrade", "websocket")], Refused),
    head("TE of more than trailers", &[M, P, S, A, T, ("te", "gzip")], Refused),
    head("TE of trailers", &[M, P, S, A, T, ("te", "trailers")], Clean("")),

    // Lengths.
    with_body("a length too small", &[M, P, S, A, T, ("content-length", "0")], "GET /hidden HTTP/1.1\r\n\r\n", Refused),
    with_body("a length too large", &[M, P, S, A, T, ("content-length", "9")], "abc", Refused),
    with_body("two lengths", &[M, P, S, A, T, ("content-length", "3"), ("content-length", "0")], "abc", Refused),
    with_body("a length that is none", &[M, P, S, A, T, ("content-length", "+3")], "abc", Refused),
    head("a length without a body", &[M, P, S, A, T, ("content-length", "3")], Refused),
    with_body("framing that CGI folds", &[M, P, S, A, T, ("transfer_encoding", "chunked"), ("content_length", "0")], "abc", Clean("abc")),

    // The token.
    head("no token", &[M, P, S, A], Refused),
    head("a stale revision", &[M, P, S, A, ("fence-owner", "{owner}"), ("fence-revision", "{stale}")], Refused),
    head("two revisions", &[M, P, S, A, T, ("fence-revision", "{stale}")], Refused),
    head("two owners", &[M, P, S, A, ("fence-owner", "x"), T], Refused),
    head("a folded revision", &[M, P, S, A, ("fence_revision", "{stale}"), T], Clean("")),
    head("names that only some servers fold", &[M, P, S, A, T, ("fence.owner", "x"), ("fence~revision", "{stale}")], Clean("")),
    with_trailers("a harmless trailer", &[("x-sum", "1")], Clean("abc")),
    with_trailers("a stale revision in trailers", &[("fence-revision", "{stale}"), ("fence_owner", "x")], Clean("abc")),
    with_trailers("framing in trailers", &[("content_length", "9"), ("host", "x")], Clean("abc")),
    with_trailers("a pseudo-field in trailers", &[(":path", "/hidden")], Refused),
    with_trailers("a pseudo-field behind a trailer", &[("x-sum", "1"), (":path", "/hidden")], Refused),

    // Bytes in pseudo-fields.
    head("a path with a NUL", &[M, (":path", "{path}\0"), S, A, T], Refused),
    head("a path with a tab", &[M, (":path", "{path}\t"), S, A, T], Refused),
    head("a path with a line feed", &[M, (":path", "{path}\nX: y"), S, A, T], Refused),
    head("a path with a carriage return", &[M, (":path", "{path}\rX"), S, A, T], Refused),
    head("a path with a DEL", &[M, (":path", "{path}\u{7f}"), S, A, T], Refused),
    head("a path with a fragment", &[M, (":path", "{path}#/../hidden"), S, A, T], Clean("")),
    head("a path with dots", &[M, (":path", "{path}/../x"), S, A, T], Refused),
    head("a path with encoded dots", &[M, (":path", "{path}/%2e%2e/x"), S, A, T], Refused),
    head("a path with backslashes", &[M, (":path", "{path}\\..\\x"), S, A, T], Refused),
    head("a path with an encoded NUL", &[M, (":path", "{path}%00"), S, A, T], Refused),
    head("a path with a broken escape", &[M, (":path", "{path}%zz"), S, A, T], Refused),
    head("an asterisk", &[(":method", "OPTIONS"), (":path", "*"), S, A, T], Refused),
    head("a method with a line feed", &[(":method", "GET\n"), P, S, A, T], Refused),
    head("a method with a NUL", &[(":method", "GET\0"), P, S, A, T], Refused),
    head("an empty method", &[(":method", ""), P, S, A, T], Refused),
    head("a method in small letters", &[(":method", "get"), P, S, A, T], Clean("")),
    head("a scheme with a line", &[M, P, (":scheme", "http\r\nX: y"), A, T], Refused),
    head("an empty scheme", &[M, P, (":scheme", ""), A, T], Clean("")),
    head("an authority with a space", &[M, P, S, (":authority", "h x"), T], Refused),
    head("an authority with a comma", &[M, P, S, (":authority", "h,x"), T], Refused),
    head("an authority with brackets behind its port", &[M, P, S, (":authority", "h:80[]"), T], Refused),
    head("an authority with a port of letters", &[M, P, S, (":authority", "h:x"), T], Refused),
    head("an authority with a port", &[M, P, S, (":authority", "h:80"), T], Clean("")),
    head("an authority with a NUL", &[M, P, S, (":authority", "h\0"), T], Refused),
    head("an authority with a query", &[M, P, S, (":authority", "h?x"), T], Refused),
    head("an authority with a fragment", &[M, P, S, (":authority", "h#x"), T], Refused),
    head("an authority in capitals and the host in small letters", &[M, P, S, (":authority", "H"), T, ("host", "h")], Clean("")),
    head("a host with a path", &[M, P, S, T, ("host", "h/x")], Refused),
    head("two hosts and no authority", &[M, P, S, T, ("host", "h"), ("host", "h")], Refused),
    head("a protocol without CONNECT", &[M, (":protocol", "websocket"), P, S, A, T], Refused),
    head("CONNECT with a path", &[(":method", "CONNECT"), P, S, A, T], Refused),

    // More names and values.
    head("a name with a line feed", &[M, P, S, A, T, ("x\ny", "z")], Refused),
    head("a name with a NUL", &[M, P, S, A, T, ("x\0", "z")], Refused),
    head("a name that is no ASCII", &[M, P, S, A, T, ("fence-r\u{e9}vision", "{stale}")], Refused),
    head("a name that begins with a colon", &[M, P, S, A, T, (":fence-revision", "{stale}")], Refused),
    head("a name that is a colon", &[M, P, S, A, T, (":", "{stale}")], Refused),
    head("a value with a carriage return", &[M, P, S, A, T, ("x-public", "a\rfence-revision: {stale}")], Refused),
    head("a value with an escape", &[M, P, S, A, T, ("x-public", "\u{1b}[2J")], Refused),
    head("a value with a DEL", &[M, P, S, A, T, ("x-public", "\u{7f}")], Refused),
    head("a value that is no ASCII", &[M, P, S, A, T, ("x-public", "\u{e9}")], Clean("")),
    head("an empty value", &[M, P, S, A, T, ("x-public", "")], Clean("")),
    head("cookies in crumbs", &[M, P, S, A, T, ("cookie", "a=b"), ("cookie", "c=d")], Clean("")),
    head("a cookie with a line", &[M, P, S, A, T, ("cookie", "a=b\r\nx: y"), ("cookie", "c=d")], Refused),

    // More fields of HTTP/1.1.
    with_body("a coding in capitals as value", &[M, P, S, A, T, ("transfer-encoding", "CHUNKED"), ("content-length", "3")], "abc", Refused),
    head("an upgrade to h2c", &[M, P, S, A, T, ("connection", "upgrade, http2-settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")], Refused),
    head("settings of an upgrade", &[M, P, S, A, T, ("http2-settings", "AAMAAABk")], Clean("")),
    head("TE of trailers and more", &[M, P, S, A, T, ("te", "trailers, chunked")], Refused),
    head("Connection that closes", &[M, P, S, A, T, ("connection", "close")], Refused),
    with_body("a list of lengths", &[M, P, S, A, T, ("content-length", "3, 3")], "abc", Refused),
    with_body("the same length twice", &[M, P, S, A, T, ("content-length", "3"), ("content-length", "3")], "abc", Refused),
    with_body("an empty length", &[M, P, S, A, T, ("content-length", "")], "abc", Refused),
    with_body("a length beyond 64 bits", &[M, P, S, A, T, ("content-length", "18446744073709551619")], "abc", Refused),
    with_body("a hexadecimal length", &[M, P, S, A, T, ("content-length", "0x3")], "abc", Refused),
    with_body("an expectation", &[M, P, S, A, T, ("expect", "100-continue")], "abc", Clean("abc")),

    // More of the token.
    head("a revision with a space inside", &[M, P, S, A, ("fence-owner", "{owner}"), ("fence-revision", "{revision} {stale}")], Refused),
    head("a list of revisions", &[M, P, S, A, ("fence-owner", "{owner}"), ("fence-revision", "{revision}, {stale}")], Refused),
    head("a revision in two fields", &[M, P, S, A, T, ("fence-revision", "{revision}")], Refused),
    head("a revision with a line", &[M, P, S, A, ("fence-owner", "{owner}"), ("fence-revision", "{revision}\r\nx: y")], Refused),
    head("only a folded token", &[M, P, S, A, ("fence_owner", "{owner}"), ("fence_revision", "{revision}")], Refused),
    head("a prefixed name that folds", &[M, P, S, A, T, ("x_fence_revision", "{stale}")], Clean("")),
    head("forwarding that CGI folds", &[M, P, S, A, T, ("x_forwarded_for", "x"), ("x-forwarded_host", "x"), ("ho_st", "x")], Clean("")),
    with_trailers("a token in trailers", &[("fence-owner", "x"), ("fence.revision", "{stale}"), ("trailer", "x")], Clean("abc")),
    with_trailers("a transfer coding in trailers", &[("transfer-encoding", "chunked")], Refused),
    with_trailers("a trailer in capitals", &[("X-Sum", "1")], Refused),
    with_trailers("a trailer with a line", &[("x-sum", "1\r\nfence-revision: {stale}")], Refused),
    with_trailers("a trailer with a NUL", &[("x-sum", "1\0")], Refused),
];
