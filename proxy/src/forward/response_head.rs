//! The head of a response as the client gets it.

use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, Version};

use super::fields;
use crate::downstream::Protocol;

/// Removes what concerns the worker's connection only and whatever is named `Fence-*`, and adds our hop to `Via`.
pub(super) fn clean(headers: &mut HeaderMap, status: StatusCode, received: Protocol) {
    let found = fields::scan(headers, &[]);
    let upgrade = if status == StatusCode::SWITCHING_PROTOCOLS { headers.get(header::UPGRADE).cloned() } else { None };
    fields::remove_hop_by_hop(headers, &found, &[]);
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
    if found.te {
        headers.remove(header::TE);
    }
    // A length that stands beside `Transfer-Encoding` was not the body's. One that stands alone has been checked by
    // hyper, and is all that the answer to a HEAD says about the length.
    if found.transfer_encoding {
        headers.remove(header::TRANSFER_ENCODING);
        headers.remove(header::CONTENT_LENGTH);
    } else if found.content_length {
        say_length_once(headers);
    }
    let hop = match received {
        Protocol::Http1 => HeaderValue::from_static("1.1 fencepost"),
        Protocol::Http2 => HeaderValue::from_static("2 fencepost"),
    };
    fields::add_via(headers, &found, hop);
}

/// A length may be given several times, if it is always the same.
fn say_length_once(headers: &mut HeaderMap) {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    if let (Some(first), Some(_)) = (lengths.next().cloned(), lengths.next()) {
        headers.insert(header::CONTENT_LENGTH, first);
    }
}

/// What hyper is told of an answer's version: it writes the client's own anyway, and knows only this one here.
pub(super) const ANSWER_VERSION: Version = Version::HTTP_11;
