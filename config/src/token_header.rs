//! The names of the headers that carry a token.

use http::HeaderName;

use crate::problem::must_be;
use crate::reader::Table;

/// The keys of the headers for owner, revision and lock, with their defaults.
const KEYS: [(&str, &str); 3] = [
    ("owner_header", "Fence-Owner"),
    ("revision_header", "Fence-Revision"),
    ("lock_header", "Fence-Lock"),
];

/// The headers for owner, revision and lock, in this order; `None` if one is wrong.
pub(crate) fn read_token_headers(t: &mut Table<'_>) -> Option<[HeaderName; 3]> {
    let names = KEYS.map(|(key, default)| t.text_or(key, default, parse_token_header));
    for (later, earlier) in [(1, 0), (2, 0), (2, 1)] {
        let (Some(name), Some(other)) = (&names[later], &names[earlier]) else { continue };
        let (key, other_key) = (KEYS[later].0, t.place_of(KEYS[earlier].0).key);
        if folds_alike(name.as_str(), other.as_str()) {
            let folded = format!(", {other:?}, to a worker that folds names");
            let how = if name == other { " too" } else { &folded };
            t.problem(key, format_args!("{name:?} is {other_key}{how}"));
            return None;
        }
    }
    names.into_iter().collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// The header for owner, revision or lock that has this name.
///
/// # Errors
/// If the text is not the name of a header, or if the header has a meaning for proxies already.
pub fn parse_token_header(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text.parse().map_err(|_| must_be("the name of a header", text))?;
    if RESERVED_HEADERS.split(' ').any(|reserved| folds_alike(reserved, name.as_str())) {
        let what = "the connection, the framing or the routing of requests";
        return Err(format!("{text:?} has a meaning of its own for {what}"));
    }
    Ok(name)
}

/// Whether a server that makes one mark of all that is neither letter nor digit, as CGI does of `-`
/// and `_`, takes both for one name.
pub fn folds_alike(one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> bool {
    let (one, other) = (one.as_ref(), other.as_ref());
    let fold = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'_' };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| fold(*one) == fold(*other))
}

/// What a proxy removes, rewrites or goes by, and so cannot pass on as it came.
const RESERVED_HEADERS: &str = "\
    connection content-encoding content-length content-type expect forwarded host http2-settings keep-alive \
    proxy-authorization proxy-connection te trailer transfer-encoding upgrade via x-forwarded-for \
    x-forwarded-host x-forwarded-proto x-request-id";
