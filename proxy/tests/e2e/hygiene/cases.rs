//! The raw requests. In each, `{path}` stands for a path of its own, `{T}` for the two lines of the good token, `{owner}` and
//! `{revision}` for its parts, `{stale}` for the revision of an ended tenure, and `{hidden}` for a whole request with the good
//! token that nobody must ever take for one.

/// What is to become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// One clean message with this body; the connection goes on.
    Clean(&'static str),
    /// One clean message with this body, after whose answer the connection is closed.
    CleanThenClosed(&'static str),
    /// Answered with this status; nothing of it is at the worker, and the connection goes on.
    Refused(u16),
    /// Answered with this status; nothing of it is at the worker, and the connection is closed.
    RefusedThenClosed(u16),
    /// Cut at the worker and closed when the body goes wrong; answered with 502, since its beginning went out. The worker may have
    /// the beginning, and never a whole message.
    CutThenClosed,
}

use Fate::{Clean, CleanThenClosed, CutThenClosed, Refused, RefusedThenClosed};

const BAD: Fate = RefusedThenClosed(400);

/// A request, and what is to become of it.
pub(super) type Case = (&'static str, &'static str, Fate);

#[rustfmt::skip]
pub(super) const CASES: &[Case] = &[
    // Honest ones, that the others differ from.
    ("no body", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}\r\n", Clean("")),
    ("a length", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3\r\n\r\nabc", Clean("abc")),
    ("chunks", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", Clean("abc")),
    ("empty lines in front", "\r\n\r\nGET {path} HTTP/1.1\r\nHost: h\r\n{T}\r\n", Clean("")),
    ("a request as body", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 4\r\n\r\nGET ", Clean("GET ")),

    // Two lengths.
    ("two lengths that differ", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3\r\nContent-Length: 0\r\n\r\nabc{hidden}", BAD),
    ("two lengths that differ, the shorter first", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 0\r\nContent-Length: 3\r\n\r\nabc{hidden}", BAD),
    ("the same length twice", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", Clean("abc")),
    ("the same length as a list", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3, 3\r\n\r\nabc{hidden}", BAD),
    ("two lengths as a list", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3, 0\r\n\r\nabc{hidden}", BAD),
    ("a length with a plus", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: +3\r\n\r\nabc{hidden}", BAD),
    ("a length with a minus", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: -3\r\n\r\nabc{hidden}", BAD),
    ("a hexadecimal length", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 0x3\r\n\r\nabc{hidden}", BAD),
    ("a length with a fraction", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3.0\r\n\r\nabc{hidden}", BAD),
    ("a length with a space inside", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3 0\r\n\r\nabc{hidden}", BAD),
    ("an empty length", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length:\r\n\r\n{hidden}", BAD),
    ("a length beyond 64 bits", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 18446744073709551619\r\n\r\nabc{hidden}", BAD),
    ("a length with leading zeros", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 003\r\n\r\nabc", Clean("abc")),
    ("a length in other digits", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: ٣\r\n\r\nabc{hidden}", BAD),
    ("a length that CGI folds", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3\r\nContent_Length: 0\r\n\r\nabc", Clean("abc")),

    // A transfer coding with a length, and other codings.
    ("chunks and a length", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n{hidden}", CleanThenClosed("abc")),
    ("a length and chunks", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n{hidden}", CleanThenClosed("abc")),
    ("a length that hides a request behind no chunks", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 300\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}", CleanThenClosed("")),
    ("chunked with a comma", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("chunked after a comma", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("chunked twice in a list", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("chunked twice", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("chunked and identity", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("identity and chunked", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("gzip, then chunked", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("chunked, then gzip", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("only identity", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc{hidden}", BAD),
    ("no known coding", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\nabc{hidden}", BAD),
    ("an empty coding", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc{hidden}", BAD),
    ("chunked in quotes", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("chunked with a parameter", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("chunked in capitals", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: CHUNKED\r\n\r\n3\r\nabc\r\n0\r\n\r\n", Clean("abc")),
    ("chunked after a vertical tab", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("a coding in HTTP/1.0", "POST {path} HTTP/1.0\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}", BAD),
    ("a coding that CGI folds", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3\r\nTransfer_Encoding: chunked\r\n\r\nabc", Clean("abc")),
    ("a coding before a colon with a space", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 3\r\nTransfer-Encoding : chunked\r\n\r\nabc{hidden}", BAD),
    ("a coding on a GET", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", Clean("abc")),
    ("a length that Connection names", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Connection: Content-Length\r\nContent-Length: 3\r\n\r\nabc", Clean("abc")),
    ("a coding that Connection names", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", Clean("abc")),

    // Odd chunking.
    ("a chunk size with 0x", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk size with a plus", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk size with a minus", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk size after a space", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk size and a space", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", Clean("abc")),
    ("a chunk size with leading zeros", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n0003\r\nabc\r\n0000\r\n\r\n", Clean("abc")),
    ("a chunk size beyond 64 bits", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("an empty chunk size", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk size that ends with a line feed", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk size that ends with a carriage return", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\rabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk extension", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3;x=\"y\"\r\nabc\r\n0;z\r\n\r\n", Clean("abc")),
    ("a chunk extension with a line feed", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3;x\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk extension with a carriage return", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3;x\rabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk longer than it says", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk shorter than it says", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n4\r\nabc\r\n0\r\n\r\n{hidden}", CutThenClosed),
    ("a chunk that ends with a line feed", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n{hidden}", CutThenClosed),
    ("chunks that end with a bare line feed", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\n\n{hidden}", CutThenClosed),

    // Trailers.
    ("a harmless trailer", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", Clean("abc")),
    ("a stale revision in trailers", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nFence-Revision: {stale}\r\n\r\n", Clean("abc")),
    ("a token only in trailers", "POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{T}\r\n", Refused(428)),
    ("half a token in trailers", "POST {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nFence-Revision: {revision}\r\n\r\n", Refused(428)),
    ("a folded owner in trailers", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nFence_Owner: x\r\nfence.owner: y\r\n\r\n", Clean("abc")),
    ("framing in trailers", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nContent-Length: 9\r\nTransfer-Encoding: x\r\nContent_Length: 9\r\nTransfer_Encoding: x\r\n\r\n", Clean("abc")),
    ("routing in trailers", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nHost: x\r\nConnection: Fence-Owner\r\nX-Forwarded-For: x\r\nX_Forwarded_Host: x\r\n\r\n", Clean("abc")),
    ("a trailer with a NUL", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: a\0b\r\n\r\n{hidden}", CutThenClosed),
    ("a trailer with a space before the colon", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum : a\r\n\r\n{hidden}", CutThenClosed),
    ("a folded trailer", "POST {path} HTTP/1.1\r\nHost: h\r\n{T}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: a\r\n b: c\r\n\r\n{hidden}", CutThenClosed),

    // Lines and control bytes.
    ("lines that end with line feeds", "GET {path} HTTP/1.1\nHost: h\n{T}\n", Clean("")),
    ("a line feed hides a field", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public: a\nFence-Lock: b\r\n\r\n", Clean("")),
    ("a line feed hides a second revision", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public: a\nFence-Revision: {stale}\r\n\r\n", Refused(400)),
    ("a carriage return in a value", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public: a\rFence-Lock: b\r\n\r\n{hidden}", BAD),
    ("a carriage return in a revision", "GET {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\r1\r\n\r\n{hidden}", BAD),
    ("a carriage return in front of a name", "GET {path} HTTP/1.1\r\nHost: h\r\n\rX: y\r\n{T}\r\n{hidden}", BAD),
    ("a folded line", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public: a\r\n Fence-Lock: b\r\n\r\n{hidden}", BAD),
    ("a folded revision", "GET {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision:\r\n {revision}\r\n\r\n{hidden}", BAD),
    ("a fold with a tab", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public: a\r\n\tb\r\n\r\n{hidden}", BAD),
    ("a fold in front of the first field", "GET {path} HTTP/1.1\r\n Host: h\r\n{T}\r\n{hidden}", BAD),
    ("a space before a colon", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public : a\r\n\r\n{hidden}", BAD),
    ("a space before a revision's colon", "GET {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision : {revision}\r\n\r\n{hidden}", BAD),
    ("a tab before a revision's colon", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Fence-Revision\t: {stale}\r\n\r\n{hidden}", BAD),
    ("a NUL in a value", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public: a\0b\r\n\r\n{hidden}", BAD),
    ("a NUL in a revision", "GET {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}\0\r\n\r\n{hidden}", BAD),
    ("a NUL in an owner", "GET {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\0x\r\nFence-Revision: {revision}\r\n\r\n{hidden}", BAD),
    ("a NUL in a name", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Fence-Revision\0: {stale}\r\n\r\n{hidden}", BAD),
    ("a NUL in the target", "GET {path}\0 HTTP/1.1\r\nHost: h\r\n{T}\r\n{hidden}", BAD),
    ("an escape in a value", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public: \x1b[2J\r\n\r\n{hidden}", BAD),
    ("a DEL in a value", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public: \x7f\r\n\r\n{hidden}", BAD),
    ("a line without a colon", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X-Public\r\n\r\n{hidden}", BAD),
    ("a line without a name", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}: a\r\n\r\n{hidden}", BAD),
    ("two spaces in the request line", "GET  {path} HTTP/1.1\r\nHost: h\r\n{T}\r\n{hidden}", BAD),
    ("a tab in the request line", "GET\t{path} HTTP/1.1\r\nHost: h\r\n{T}\r\n{hidden}", BAD),
    ("a space in the target", "GET {path} x HTTP/1.1\r\nHost: h\r\n{T}\r\n{hidden}", BAD),
    ("another version", "GET {path} HTTP/1.2\r\nHost: h\r\n{T}\r\n{hidden}", BAD),
    ("no version", "GET {path}\r\nHost: h\r\n{T}\r\n{hidden}", BAD),

    // The token.
    ("no token", "GET {path} HTTP/1.1\r\nHost: h\r\n\r\n", Refused(428)),
    ("a stale token", "GET {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision: {stale}\r\n\r\n", Refused(412)),
    ("a folded revision beside the good one", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Fence_Revision: {stale}\r\n\r\n", Clean("")),
    ("folded names in front of the good ones", "GET {path} HTTP/1.1\r\nHost: h\r\nfence_owner: x\r\nFENCE_REVISION: {stale}\r\n{T}\r\n", Clean("")),
    ("a folded token alone", "GET {path} HTTP/1.1\r\nHost: h\r\nFence_Owner: {owner}\r\nFence_Revision: {revision}\r\n\r\n", Refused(428)),
    ("names that only some servers fold", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Fence.Owner: x\r\nFence~Revision: {stale}\r\nFence!Owner: x\r\nfence|revision: {stale}\r\n\r\n", Clean("")),
    ("other names like fencing", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Fence-Lock: x\r\nFence-Verdict: admit\r\nFence_Tenure: 1\r\n\r\n", Clean("")),
    ("a prefix in front of the name", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X_Fence_Revision: {stale}\r\nX-Fence-Revision: {stale}\r\n\r\n", Clean("")),
    ("two revisions", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Fence-Revision: {stale}\r\n\r\n", Refused(400)),
    ("the same revision twice", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}FENCE-REVISION: {revision}\r\n\r\n", Refused(400)),
    ("two owners", "GET {path} HTTP/1.1\r\nHost: h\r\nfence-owner: x\r\n{T}\r\n", Refused(400)),
    ("a list of revisions", "GET {path} HTTP/1.1\r\nHost: h\r\nFence-Owner: {owner}\r\nFence-Revision: {revision}, {stale}\r\n\r\n", Refused(400)),
    ("Connection names the owner", "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: Fence-Owner\r\n{T}\r\n", Refused(400)),
    ("Connection names the revision among others", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Connection: keep-alive\r\nConnection: x, FENCE-revision\r\n\r\n", Refused(400)),
    ("Connection names the host", "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: Host\r\n{T}\r\n", Clean("")),
    ("Connection names a folded revision", "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: fence_revision\r\nFence_Revision: {stale}\r\n{T}\r\n", Clean("")),
    ("Proxy-Connection names the owner", "GET {path} HTTP/1.1\r\nHost: h\r\nProxy-Connection: Fence-Owner\r\n{T}\r\n", Clean("")),
    ("forwarding that CGI folds", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}X_Forwarded_For: x\r\nX-Forwarded_Host: x\r\nx.forwarded.proto: x\r\n\r\n", Clean("")),

    // Targets and hosts.
    ("no host", "GET {path} HTTP/1.1\r\n{T}\r\n", Refused(400)),
    ("no host in HTTP/1.0", "GET {path} HTTP/1.0\r\n{T}\r\n", CleanThenClosed("")),
    ("two hosts", "GET {path} HTTP/1.1\r\nHost: h\r\nHost: x\r\n{T}\r\n", Refused(400)),
    ("the same host twice", "GET {path} HTTP/1.1\r\nHost: h\r\nHost: h\r\n{T}\r\n", Refused(400)),
    ("a host that is none", "GET {path} HTTP/1.1\r\nHost: a b\r\n{T}\r\n", Refused(400)),
    ("a host with a path", "GET {path} HTTP/1.1\r\nHost: h/x\r\n{T}\r\n", Refused(400)),
    ("a host with a user", "GET {path} HTTP/1.1\r\nHost: u@h\r\n{T}\r\n", Refused(400)),
    ("a list of hosts", "GET {path} HTTP/1.1\r\nHost: h, x\r\n{T}\r\n", Refused(400)),
    ("an absolute target", "GET http://h{path} HTTP/1.1\r\nHost: h\r\n{T}\r\n", Clean("")),
    ("an absolute target in capitals", "GET http://H{path} HTTP/1.1\r\nHost: h\r\n{T}\r\n", Clean("")),
    ("an absolute target of another host", "GET http://x{path} HTTP/1.1\r\nHost: h\r\n{T}\r\n", Refused(400)),
    ("an absolute target of another port", "GET http://h:81{path} HTTP/1.1\r\nHost: h\r\n{T}\r\n", Refused(400)),
    ("an absolute target with two hosts", "GET http://h{path} HTTP/1.1\r\nHost: h\r\nHost: x\r\n{T}\r\n", Refused(400)),
    ("an absolute target with a user", "GET http://x@h{path} HTTP/1.1\r\nHost: h\r\n{T}\r\n", Refused(400)),
    ("an authority as target", "GET h:80 HTTP/1.1\r\nHost: h:80\r\n{T}\r\n", Refused(404)),

    // Tunnels.
    ("CONNECT", "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n{T}\r\n{hidden}", RefusedThenClosed(501)),
    ("CONNECT with a length", "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n{T}Content-Length: 0\r\n\r\n{hidden}", RefusedThenClosed(501)),
    ("an upgrade to h2c", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", Clean("")),
    ("an upgrade to h2c and websocket", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n\r\n", Clean("")),
    ("an upgrade to no listed protocol", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Connection: Upgrade\r\nUpgrade: TLS/1.2\r\n\r\n", Clean("")),
    ("an upgrade that Connection does not name", "GET {path} HTTP/1.1\r\nHost: h\r\n{T}Upgrade: websocket\r\n\r\n", Clean("")),
    ("the preface of HTTP/2 in the middle", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{hidden}", BAD),
];
