//! What a route changes of its requests and responses: header fields, `Host`, the path's prefix.
//! Refuses changes that would touch the fence, the framing, or which resource is meant.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::address::host_name;
use crate::path_template::PathTemplate;
use crate::problem::must_be;
use crate::reader::Table;
use crate::token_header::folds_alike;

/// What a route changes of a message on its way. The default changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Fields of the request, as the worker gets it.
    pub request_headers: HeaderEdits,
    /// Fields of the worker's response, as the client gets it.
    pub response_headers: HeaderEdits,
    /// The `Host` that the worker gets.
    pub host: UpstreamHost,
    /// The segments that the path loses, with which the route's path begins.
    pub strip_prefix: Option<PathTemplate>,
    /// Whether fencepost leaves itself out of `Via`, both ways.
    pub without_via: bool,
}

/// The `Host` that a worker gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum UpstreamHost {
    /// The client's.
    #[default]
    Kept,
    /// Host and port of the route's `upstream`.
    Upstream,
    /// This one.
    Named(HeaderValue),
}

/// Changes of header fields: first those that are removed, then those that are set, then those that
/// are added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    remove: Vec<HeaderName>,
    set: Vec<(HeaderName, HeaderValue)>,
    add: Vec<(HeaderName, HeaderValue)>,
}

impl HeaderEdits {
    /// The largest number of fields that are removed, set or added.
    const FIELDS_MAX: usize = 64;
    /// The longest value.
    const VALUE_BYTES_MAX: usize = 4096;

    /// Changes these fields.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }

    /// The fields of which nothing is left that came.
    pub fn replaced(&self) -> impl Iterator<Item = &HeaderName> {
        self.remove.iter().chain(self.set.iter().map(|(name, _)| name))
    }

    fn read(t: &mut Table<'_>, token: &[HeaderName]) -> HeaderEdits {
        let field = |name: &str, value: &str| {
            Ok((parse_name(name, token, &MISLEADING)?, parse_value(name, value)?))
        };
        let set = t.strings("set", field);
        let add = t.strings("add", field);
        let remove = t.list("remove", |name| parse_name(name, token, &[]));
        let remove: Vec<HeaderName> = remove.into_iter().map(|(_, name)| name).collect();
        for (key, count) in [("set", set.len()), ("add", add.len()), ("remove", remove.len())] {
            if count > HeaderEdits::FIELDS_MAX {
                t.problem(key, format_args!("has at most 64 fields, not {count}"));
            }
        }
        HeaderEdits { remove, set, add }
    }
}

impl Rewrite {
    /// Of a route that takes these paths, and whose tokens stand in these fields.
    pub(crate) fn read(
        t: &mut Table<'_>,
        path: Option<&PathTemplate>,
        token: &[HeaderName],
    ) -> Rewrite {
        let edits = |t: &mut Table<'_>| Some(HeaderEdits::read(t, token));
        let request_headers = t.table("request_headers", edits).unwrap_or_default();
        let response_headers = t.table("response_headers", edits).unwrap_or_default();
        let host = t.text_or("upstream_host", "keep", parse_host).unwrap_or_default();
        let strip_prefix = t.text("strip_prefix", parse_prefix);
        if let (Some(prefix), Some(path)) = (&strip_prefix, path)
            && path.without(prefix).is_none()
        {
            let text = must_be("what the route's path begins with", prefix.as_str());
            let text = format!("{text}: the path is {:?}", path.as_str());
            t.problem("strip_prefix", text);
        }
        let without_via = !t.flag_or("via", true);
        Rewrite { request_headers, response_headers, host, strip_prefix, without_via }
    }
}

/// What no route changes, however a server folds the names, and why.
const UNTOUCHED: [(&str, &str); 3] = [
    ("host", "names the host: write upstream_host"),
    (
        "content-length expect trailer transfer-encoding",
        "says how a message is framed, which fencepost alone does",
    ),
    (
        "connection http2-settings keep-alive proxy-authenticate proxy-authorization proxy-connection te upgrade",
        "concerns one connection only, and is not passed on",
    ),
];

/// What may be removed and not given: a worker that goes by it would do something else than what was
/// judged.
const MISLEADING: [(&str, &str); 2] = [
    (
        "path-info script-name x-original-url x-rewrite-url x-script-name",
        "names another path than the one that is judged: write strip_prefix",
    ),
    (
        "x-http-method x-http-method-override x-method-override",
        "names another method than the one that is judged",
    ),
];

fn parse_name(
    text: &str,
    token: &[HeaderName],
    more: &[(&str, &str)],
) -> Result<HeaderName, String> {
    let name: HeaderName =
        text.parse().map_err(|_| must_be("the name of a header field, like \"X-Team\"", text))?;
    let is_fence = name
        .as_str()
        .strip_prefix("fence")
        .is_some_and(|rest| rest.bytes().next().is_some_and(|byte| !byte.is_ascii_alphanumeric()));
    if is_fence || token.iter().any(|own| folds_alike(own, &name)) {
        return Err(format!("{text:?} is the fence's own: only fencepost sets and removes it"));
    }
    for (names, why) in UNTOUCHED.iter().chain(more) {
        if names.split(' ').any(|own| folds_alike(own, &name)) {
            return Err(format!("{text:?} {why}"));
        }
    }
    Ok(name)
}

fn parse_value(name: &str, text: &str) -> Result<HeaderValue, String> {
    let bytes = text.len();
    if bytes > HeaderEdits::VALUE_BYTES_MAX {
        return Err(format!("the value of {name:?} has at most 4096 bytes, not {bytes}"));
    }
    let what = "visible ASCII, with spaces and tabs only inside";
    let value = HeaderValue::from_str(text).ok().filter(|_| text.trim_ascii() == text);
    value.ok_or_else(|| format!("the value of {name:?} {}", must_be(what, text)))
}

fn parse_host(text: &str) -> Result<UpstreamHost, String> {
    match text {
        "keep" => return Ok(UpstreamHost::Kept),
        "upstream" => return Ok(UpstreamHost::Upstream),
        _ => {}
    }
    let end = text.rfind(':').filter(|at| !text[*at..].contains(']')).unwrap_or(text.len());
    let (host, port) = text.split_at(end);
    let is_port = port.is_empty() || port[1..].parse().is_ok_and(|port: u16| port > 0);
    let named = host_name(host).filter(|_| is_port).map(|host| host + port);
    let value = named.and_then(|named| HeaderValue::try_from(named).ok());
    let what = r#""keep", "upstream" or a host, like "app.example" or "app.example:8080""#;
    value.map(UpstreamHost::Named).ok_or_else(|| must_be(what, text))
}

fn parse_prefix(text: &str) -> Result<PathTemplate, String> {
    let prefix = PathTemplate::parse(text)?;
    if text.ends_with('/') || prefix.capture_names().next().is_some() {
        return Err(must_be(r#"whole segments without a slash at the end, like "/api""#, text));
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn problems(lines: &str) -> String {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[route]]\nname = \"a\"\npath = \"/api/\"\n\
             upstream = \"http://127.0.0.1:9\"\nmode = \"off\"\nowner_header = \"X-Owner\"\n{lines}\n"
        );
        Config::from_toml("f.toml", &text)
            .map_or_else(|problems| problems.to_string(), |_| String::new())
    }

    #[test]
    fn what_no_route_may_change_is_told_with_its_line() {
        for (lines, told) in [
            (
                r#"request_headers.set = { Fence-Owner = "a" }"#,
                "f.toml:9: route.a.request_headers.set.Fence-Owner: \"Fence-Owner\" is the fence's own",
            ),
            (r#"request_headers.add = { fence_x = "a" }"#, "fence's own"),
            (
                r#"request_headers.remove = ["X_Owner"]"#,
                "route.a.request_headers.remove[0]: \"X_Owner\" is the fence's own",
            ),
            (r#"response_headers.remove = ["Fence-Reason"]"#, "fence's own"),
            (r#"request_headers.set = { content_length = "1" }"#, "is framed"),
            (r#"response_headers.set = { Transfer-Encoding = "chunked" }"#, "is framed"),
            (r#"request_headers.set = { Host = "a" }"#, "write upstream_host"),
            (r#"request_headers.remove = ["Connection"]"#, "one connection only"),
            (r#"request_headers.set = { X-Original-URL = "/a" }"#, "write strip_prefix"),
            (r#"request_headers.set = { X-HTTP-Method-Override = "PUT" }"#, "another method"),
            (r#"request_headers.set = { "a b" = "1" }"#, "the name of a header field"),
            (r#"request_headers.set = { "" = "1" }"#, "the name of a header field"),
            (r#"request_headers.set = { A = "1\r\nB: 2" }"#, "visible ASCII"),
            (r#"request_headers.set = { A = " 1" }"#, "visible ASCII"),
            (
                r#"request_headers.set = { A = 1 }"#,
                "request_headers.set.A: must be a string, not an integer",
            ),
            (r#"request_headers.set = { A = "1", a = "2" }"#, "\"a\" is in the table already"),
            (r#"request_headers.sets = { A = "1" }"#, "did you mean \"set\"?"),
            (r#"upstream_host = "a b""#, "upstream_host: must be \"keep\", \"upstream\" or a host"),
            (r#"upstream_host = "a:0""#, "upstream_host: must be"),
            (r#"upstream_host = "[::1]x""#, "upstream_host: must be"),
            (r#"strip_prefix = "/api/""#, "without a slash at the end"),
            (r#"strip_prefix = "/{x}""#, "without a slash at the end"),
            (r#"strip_prefix = "/""#, "without a slash at the end"),
            (
                r#"strip_prefix = "/a""#,
                "must be what the route's path begins with, not \"/a\": the path is \"/api/\"",
            ),
            (r#"strip_prefix = "/API""#, "not \"/API\": the path is"),
        ] {
            let problems = problems(lines);
            assert!(problems.contains(told), "{lines}: {problems}");
        }
    }

    #[test]
    fn changes_that_are_harmless_are_taken() {
        for lines in [
            r#"request_headers = { set = { X-Team = "a b", Authorization = "Basic x" }, add = { Via = "1.1 x" }, remove = ["Cookie", "X-Script-Name"] }"#,
            r#"response_headers = { set = { Strict-Transport-Security = "max-age=1" }, remove = ["Server", "Via"] }"#,
            "upstream_host = \"app.example:8080\"\nstrip_prefix = \"/api\"\nvia = false",
            r#"upstream_host = "[::1]:80""#,
        ] {
            assert_eq!(problems(lines), "", "{lines}");
        }
    }
}
