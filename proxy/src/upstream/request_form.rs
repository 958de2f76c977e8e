//! The form that each protocol has for a request.
//!
//! [`outgoing_request`](super::outgoing_request) makes a request as HTTP/1.1 has it, since nobody
//! knows what a worker behind TLS picks before the connection is there. A request that was not sent
//! after all may go out on a connection of the other kind.

use http::header::{HOST, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, Scheme, Uri};
use http::{Request, Version};
use http_body::Body;

use super::request_body::RequestBody;

/// A path, and the host in a field.
pub(super) fn for_http1(request: &mut Request<RequestBody>) {
    if request.version() == Version::HTTP_11 {
        return;
    }
    *request.version_mut() = Version::HTTP_11;
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = None;
    if let Some(host) = parts.authority.take() {
        let host = HeaderValue::from_str(host.as_str()).expect("an authority is a value");
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = Uri::from_parts(parts).expect("a path is a target");
    if is_chunked(request.body()) {
        request.headers_mut().insert(TRANSFER_ENCODING, CHUNKED);
    }
}

/// A URL, which HTTP/2 sends as pseudo-fields. Bodies have frames of their own.
pub(super) fn for_http2(request: &mut Request<RequestBody>, scheme: Scheme) {
    if request.version() == Version::HTTP_2 {
        return;
    }
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(TRANSFER_ENCODING);
    let host = request.headers_mut().remove(HOST).expect("a request that goes out has a host");
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(scheme);
    parts.authority =
        Some(Authority::try_from(host.as_bytes()).expect("the host has been checked"));
    *request.uri_mut() = Uri::from_parts(parts).expect("a scheme, a host and a path are a URL");
}

pub(super) const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

/// Whether HTTP/1.1 sends it in chunks. hyper would send a GET without a body whose length it does
/// not know.
pub(super) fn is_chunked(body: &RequestBody) -> bool {
    match body {
        RequestBody::Empty => false,
        RequestBody::Whole(whole) => whole.is_chunked(),
        RequestBody::Streaming(_) => body.size_hint().exact().is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_of(request: &Request<RequestBody>) -> (String, Version, Option<&str>) {
        let host = request.headers().get(HOST).map(|host| host.to_str().unwrap());
        (request.uri().to_string(), request.version(), host)
    }

    #[test]
    fn a_request_goes_from_one_form_to_the_other_and_back() {
        let mut request = Request::builder()
            .uri("/a?b")
            .header(HOST, "worker:1")
            .body(RequestBody::Empty)
            .unwrap();
        for _ in 0..2 {
            for_http2(&mut request, Scheme::HTTPS);
            assert_eq!(
                parts_of(&request),
                ("https://worker:1/a?b".to_owned(), Version::HTTP_2, None)
            );
            for_http1(&mut request);
            assert_eq!(parts_of(&request), ("/a?b".to_owned(), Version::HTTP_11, Some("worker:1")));
        }
    }
}
