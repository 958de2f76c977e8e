//! What a route changes of a request that is ready for its worker, and of the worker's response.
//! Does not check the changes: the configuration has.

use fencepost_config::{Rewrite, UpstreamHost};
use http::header::{HOST, HeaderMap, HeaderValue, VIA};
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response};

use super::request_body::RequestBody;
use super::target::Upstream;

/// Changes a request that [`outgoing_request`](super::outgoing_request) has made.
pub fn rewrite_request(request: &mut Request<RequestBody>, rewrite: &Rewrite, upstream: &Upstream) {
    if let Some(prefix) = &rewrite.strip_prefix
        && let Some(path) = prefix.strip(request.uri().path())
    {
        *request.uri_mut() = with_path(request.uri(), path);
    }
    let headers = request.headers_mut();
    match &rewrite.host {
        UpstreamHost::Kept => None,
        UpstreamHost::Upstream => headers.insert(HOST, upstream.authority.clone()),
        UpstreamHost::Named(name) => headers.insert(HOST, name.clone()),
    };
    if rewrite.without_via {
        remove_last_hop(headers);
    }
    rewrite.request_headers.apply(headers);
}

/// Changes a worker's response.
pub fn rewrite_response<B>(response: &mut Response<B>, rewrite: &Rewrite) {
    if rewrite.without_via {
        remove_last_hop(response.headers_mut());
    }
    rewrite.response_headers.apply(response.headers_mut());
}

/// A target with a part of its path; an empty one is `/`.
fn with_path(uri: &Uri, path: &str) -> Uri {
    let path = if path.is_empty() { "/" } else { path };
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let target = PathAndQuery::from_maybe_shared(target);
    Uri::from(target.expect("a path that ends as a path does is one"))
}

/// Removes the last field of `Via`, which is our own.
fn remove_last_hop(headers: &mut HeaderMap) {
    let mut hops: Vec<HeaderValue> = headers.get_all(VIA).iter().cloned().collect();
    hops.pop();
    headers.remove(VIA);
    for hop in hops {
        headers.append(VIA, hop);
    }
}
