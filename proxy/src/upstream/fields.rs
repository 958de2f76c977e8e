//! Which header fields are not passed on.

use fencepost_config::folds_alike;
use http::header::{self, HeaderMap, HeaderName};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// The fields of a route's token: they are passed on although they look like fencing, and nothing
/// that a server could take for one of them is.
#[derive(Debug)]
pub struct KeptFields {
    names: Vec<HeaderName>,
    /// Whether all of them are plain. Then no other plain name folds into one of them, and most
    /// fields of a head need no closer look.
    are_plain: bool,
    /// Whether a request may name another path beside its own.
    other_paths: bool,
    /// Whether it may name another host.
    other_hosts: bool,
}

impl KeptFields {
    /// None: nothing that looks like fencing is passed on.
    pub(super) const NONE: KeptFields =
        KeptFields { names: Vec::new(), are_plain: true, other_paths: true, other_hosts: true };

    /// The fields of these names.
    pub fn new(names: impl IntoIterator<Item = HeaderName>) -> KeptFields {
        let names: Vec<HeaderName> = names.into_iter().collect();
        KeptFields { are_plain: names.iter().all(is_plain), names, ..KeptFields::NONE }
    }

    /// Also drops fields that name another path, because the request was judged by its own.
    pub fn and_one_path(self) -> KeptFields {
        KeptFields { other_paths: false, ..self }
    }

    /// Also drops fields that name a host other than the request's.
    pub fn and_one_host(self) -> KeptFields {
        KeptFields { other_hosts: false, ..self }
    }

    /// Whether a request may name no host other than its own.
    pub(super) fn has_one_host(&self) -> bool {
        !self.other_hosts
    }

    fn contains(&self, name: &HeaderName) -> bool {
        self.names.contains(name)
    }
}

/// Whether a field is dropped whatever it says.
fn is_dropped(name: &HeaderName, kept: &KeptFields) -> bool {
    match *name {
        // Most heads have these, which are nothing of ours however they are read.
        header::HOST | header::ACCEPT | header::CONTENT_TYPE | header::DATE | header::SERVER => {
            false
        }
        header::USER_AGENT if kept.are_plain => false,
        _ => {
            [KEEP_ALIVE, PROXY_CONNECTION, HTTP2_SETTINGS].contains(name)
                || imitates_ours(name, kept)
        }
    }
}

/// What the head says of framing and of the way of a request, or we add to it: servers that fold
/// names must not find it twice.
const SAID_ONCE: [&str; 10] = [
    "connection",
    "content-length",
    "host",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

/// Fields that name the intended path, or the part of the path before the application's:
///
/// - IIS has rewritten requests by the URLs. What ran behind IIS still trusts them (older Symfony
///   and Zend).
/// - gunicorn takes a `SCRIPT_NAME` off the path, and a `PATH_INFO` passes there, too.
/// - WSGI applications have a wrapper that takes off an `X-Script-Name`.
const OTHER_PATHS: [&str; 5] =
    ["path-info", "script-name", "x-original-url", "x-rewrite-url", "x-script-name"];

/// Fields that name the host that is meant, beside `X-Forwarded-Host`, which is written anew: RFC
/// 7239 (section 5.3) has one, and servers and frameworks know the others.
const OTHER_HOSTS: [&str; 5] =
    ["forwarded", "x-forwarded-server", "x-host", "x-http-host-override", "x-original-host"];

/// Fields that name the method that is meant. Most servers that go by them do so for POST only, but
/// some for any method. They pass in a head, by which a request is judged, and not behind a body.
pub(crate) const METHOD_OVERRIDES: [&str; 3] =
    ["x-http-method", "x-http-method-override", "x-method-override"];

/// Letters, digits and `-`, by which no server mistakes one name for another. A table: this is
/// asked of each byte of each name.
static IS_PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        plain[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'-';
        byte += 1;
    }
    plain
};

fn is_plain(name: &HeaderName) -> bool {
    name.as_str().bytes().all(|byte| IS_PLAIN[usize::from(byte)])
}

/// Whether a field that is not in `kept` is named like fencing, or like a field of ours once a
/// server has folded names, or names a path or a host that nobody has judged. CGI makes `_` of
/// every `-`, and some servers of whatever is neither letter nor digit.
fn imitates_ours(name: &HeaderName, kept: &KeptFields) -> bool {
    let name_bytes = name.as_str().as_bytes();
    let like_fence = name_bytes.starts_with(b"fence")
        && name_bytes.get(5).is_some_and(|byte| !byte.is_ascii_alphanumeric());
    let is_plain = is_plain(name);
    let folds_into = |ours: &str| folds_alike(ours, name_bytes);
    let names_another = !kept.other_paths && OTHER_PATHS.into_iter().any(folds_into)
        || !kept.other_hosts && OTHER_HOSTS.into_iter().any(folds_into);
    if !like_fence && !names_another && is_plain && kept.are_plain || kept.contains(name) {
        return false;
    }
    like_fence
        || names_another
        || kept.names.iter().any(|ours| folds_into(ours.as_str()))
        || !is_plain && SAID_ONCE.into_iter().any(folds_into)
}

/// Removes what concerns one connection only (RFC 9110, section 7.6.1) and what imitates fencing.
/// `kept` fields and those that frame or route the message stay even if `Connection` names them.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap, kept: &KeptFields) {
    const PROTECTED: [HeaderName; 5] = [
        header::HOST,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::TE,
        header::UPGRADE,
    ];
    let is_ours = |name: &HeaderName| PROTECTED.contains(name) || kept.contains(name);
    let dropped = headers.keys().filter(|name| is_dropped(name, kept)).cloned();
    let dropped: Vec<HeaderName> =
        nominated(headers).filter(|name| !is_ours(name)).chain(dropped).collect();
    for name in [header::CONNECTION, header::UPGRADE].into_iter().chain(dropped) {
        headers.remove(name);
    }
}

/// The field names in `Connection`. What is no name is no field either.
fn nominated(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    tokens(headers, &header::CONNECTION).filter_map(|token| HeaderName::from_bytes(token).ok())
}

/// Whether a field that is a list has that element, in any case.
pub(super) fn has_token(headers: &HeaderMap, name: &HeaderName, wanted: &[u8]) -> bool {
    tokens(headers, name).any(|token| token.eq_ignore_ascii_case(wanted))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let values = headers.get_all(name).iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Removes trailers that could change what the head has said: who sent it, how it is framed, where
/// it goes.
pub(super) fn retain_harmless_trailers(trailers: &mut HeaderMap, kept: &KeptFields) {
    let harmful: Vec<HeaderName> =
        trailers.keys().filter(|name| is_harmful_trailer(name, kept)).cloned().collect();
    for name in harmful {
        trailers.remove(name);
    }
}

fn is_harmful_trailer(name: &HeaderName, kept: &KeptFields) -> bool {
    const HEAD_ONLY: [HeaderName; 20] = [
        header::AUTHORIZATION,
        header::CONNECTION,
        header::CONTENT_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_RANGE,
        header::CONTENT_TYPE,
        header::COOKIE,
        header::EXPECT,
        header::FORWARDED,
        header::HOST,
        header::MAX_FORWARDS,
        header::PROXY_AUTHORIZATION,
        header::RANGE,
        header::SET_COOKIE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::VIA,
        KEEP_ALIVE,
    ];
    let text = name.as_str();
    HEAD_ONLY.contains(name)
        || kept.contains(name)
        || imitates_ours(name, kept)
        || METHOD_OVERRIDES.into_iter().any(|field| folds_alike(field, text))
        || text.starts_with("x-forwarded")
        || text.starts_with("x_forwarded")
}
