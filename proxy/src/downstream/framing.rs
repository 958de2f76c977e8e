//! Which requests leave it unclear where the next one begins.

use http::header::TRANSFER_ENCODING;
use http::{HeaderMap, Method};

/// Whether the body is in chunks and nothing else. hyper also takes a list that ends with `chunked`, and undoes only that.
pub(crate) fn is_chunked_only(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    encodings.next().is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        && encodings.next().is_none()
}

/// Whether what comes after a request may be none: a client that asks for a tunnel may write into it at once, and one
/// that encodes its body in more than chunks may see its end elsewhere.
pub(super) fn may_be_misread(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::CONNECT || headers.contains_key(TRANSFER_ENCODING) && !is_chunked_only(headers)
}
