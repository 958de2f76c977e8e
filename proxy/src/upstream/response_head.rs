//! The head of a response as the client gets it.

use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, Version};

use super::fields::{self, KeptFields};
use crate::server::Protocol;

/// Removes what concerns the worker's connection only and whatever is named `Fence-*`, and adds our
/// hop to `Via`.
pub(super) fn clean(headers: &mut HeaderMap, status: StatusCode, received: Protocol) {
    let upgrade = if status == StatusCode::SWITCHING_PROTOCOLS {
        headers.get(header::UPGRADE).cloned()
    } else {
        None
    };
    fields::remove_hop_by_hop(headers, &KeptFields::NONE);
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
    headers.remove(header::TE);
    // A length that stands beside `Transfer-Encoding` was not the body's. One that stands alone has
    // been checked by hyper, and is all that the answer to a HEAD says about the length.
    if headers.remove(header::TRANSFER_ENCODING).is_some() {
        headers.remove(header::CONTENT_LENGTH);
    } else {
        say_length_once(headers);
    }
    let hop = match received {
        Protocol::Http1 => HeaderValue::from_static("1.1 fencepost"),
        Protocol::Http2 => HeaderValue::from_static("2 fencepost"),
    };
    headers.append(header::VIA, hop);
}

/// Whether the worker may hold its response to end elsewhere than we do: what it sends behind our
/// end would be taken for the answer to the next request. hyper reads one length of several, chunks
/// before a length, and no body after a HEAD or with a 204 or 304; workers that treat HEAD like GET
/// send one all the same, and it may be late.
pub(super) fn is_ambiguous(headers: &HeaderMap, status: StatusCode, to_head: bool) -> bool {
    let has_no_body =
        to_head || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    match (codings.next(), codings.next(), lengths.next(), lengths.next()) {
        (None, _, None, _) => false,
        (None, _, Some(length), None) => {
            !is_number(length.as_bytes()) || has_no_body && length != "0"
        }
        (Some(coding), None, None, _) => {
            !coding.as_bytes().eq_ignore_ascii_case(b"chunked") || has_no_body
        }
        (Some(_), _, _, _) | (None, _, Some(_), Some(_)) => true,
    }
}

/// Whether the body is in a transfer coding besides the chunks that hyper undoes: passed on without
/// the field that says so, it would be taken for what it is not. RFC 9112, section 7.4, has a
/// worker use none that was not asked for, and we ask for none.
pub(super) fn is_coded(headers: &HeaderMap) -> bool {
    // hyper undoes chunks where they are what was done last. A worker that names them twice has made
    // them once: RFC 9112, section 6.1, allows no more.
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let ends_in_chunks = codings(headers).last().is_some_and(is_chunked);
    !codings(headers).all(|coding| is_identity(coding) || is_chunked(coding) && ends_in_chunks)
}

/// The length of a body beside which `Transfer-Encoding` names no coding but `identity`, or none.
/// hyper would read such a body to the end of its connection.
pub(super) fn length_beside_identity(headers: &HeaderMap) -> Option<u64> {
    let is_plain =
        headers.contains_key(header::TRANSFER_ENCODING) && codings(headers).all(is_identity);
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let length = lengths.next().filter(|length| is_plain && is_number(length.as_bytes()))?;
    if lengths.next().is_some() {
        return None;
    }
    length.to_str().ok()?.parse().ok()
}

fn is_identity(coding: &[u8]) -> bool {
    coding.eq_ignore_ascii_case(b"identity")
}

/// What `Transfer-Encoding` names, in all of its lines.
fn codings(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lists = headers.get_all(header::TRANSFER_ENCODING).iter();
    let codings = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    codings.map(<[u8]>::trim_ascii).filter(|coding| !coding.is_empty())
}

/// A length may be given several times, if it is always the same. Others, which hyper lets pass
/// where there is no body, say nothing.
fn say_length_once(headers: &mut HeaderMap) {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => return,
        (Some(length), None) if is_number(length.as_bytes()) => return,
        (Some(_), _) => {}
    }
    let lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut lengths = lengths
        .flat_map(|length| length.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii);
    let first =
        lengths.next().filter(|first| is_number(first) && lengths.all(|other| other == *first));
    match first.and_then(|first| HeaderValue::from_bytes(first).ok()) {
        Some(length) => headers.insert(header::CONTENT_LENGTH, length),
        None => headers.remove(header::CONTENT_LENGTH),
    };
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// The version of each response that hyper gets. hyper writes the client's own version anyway, and
/// knows only this one here.
pub(super) const ANSWER_VERSION: Version = Version::HTTP_11;
