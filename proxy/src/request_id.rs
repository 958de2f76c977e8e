//! Names each request, so that its lines in the logs of several servers can be put together.
//! It is no decision's id: most requests have no decision.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::decision::DecisionIds;
use crate::server::Connection;

/// Where proxies and workers have the id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is believed.
const BYTES_MAX: usize = 128;

/// The id that a trusted proxy gave the request, or the next of our own.
pub fn request_id(connection: &Connection, headers: &HeaderMap, own: &DecisionIds) -> HeaderValue {
    let mut given = headers.get_all(X_REQUEST_ID).iter();
    match (given.next(), given.next()) {
        (Some(id), None) if connection.is_trusted() && is_id(id.as_bytes()) => id.clone(),
        _ => own.next().header(),
    }
}

fn is_id(id: &[u8]) -> bool {
    (1..=BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}
