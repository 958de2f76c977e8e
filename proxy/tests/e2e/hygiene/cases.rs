//! The raw requests, one per line of `cases.jsonl` and `http2_cases.jsonl`: name, request, expected
//! outcome.
//!
//! Each request may contain placeholders:
//!
//! - `{path}`: a path of its own
//! - `{T}`: the two lines of the good token
//! - `{owner}` and `{revision}`: the parts of the good token
//! - `{stale}`: the revision of an ended tenure
//! - `{hidden}`: a whole request with the good token, which no server may ever take for one
//!
//! Over HTTP/2 a request is a list of fields, a body and trailers. The letters M, P, S and A stand
//! for the usual pseudo-fields there. The last item is the body that arrives, or `null`.

use serde_json::Value;

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
    /// Answered with 400 and closed when its body goes wrong. Sent at once, nothing of it is at the
    /// worker; where its beginning went out before, the worker has that, and never a whole message.
    Cut,
}

impl Fate {
    pub(super) fn status(self) -> u16 {
        match self {
            Fate::Clean(_) | Fate::CleanThenClosed(_) => 200,
            Fate::Refused(status) | Fate::RefusedThenClosed(status) => status,
            Fate::Cut => 400,
        }
    }

    /// The body of the message that is to be at the worker, if any.
    pub(super) fn body(self) -> Option<&'static str> {
        match self {
            Fate::Clean(body) | Fate::CleanThenClosed(body) => Some(body),
            Fate::Refused(_) | Fate::RefusedThenClosed(_) | Fate::Cut => None,
        }
    }
}

/// A request: what it is called, what it is, and what is to become of it.
pub(super) type Case<'a> = (&'a str, &'a str, Fate);

pub(super) type Fields = Vec<(&'static str, &'static str)>;

/// A request of HTTP/2.
pub(super) struct Http2Case {
    pub(super) name: &'static str,
    pub(super) fields: Fields,
    pub(super) body: Option<&'static str>,
    pub(super) trailers: Fields,
    /// The body of the one clean message at the worker. `None` if the request is answered with
    /// another status than 200, reset, or the connection ended, without a whole message at the
    /// worker.
    pub(super) arrives: Option<&'static str>,
}

fn lines(text: &str) -> impl Iterator<Item = Value> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
}

fn text(value: &Value) -> Option<&'static str> {
    value.as_str().map(|text| &*text.to_owned().leak())
}

pub(super) fn cases() -> Vec<Case<'static>> {
    let case = |line: Value| {
        let body = || text(&line[3]).expect("a body");
        let status = || line[3].as_u64().expect("a status").try_into().unwrap();
        let fate = match line[2].as_str().unwrap() {
            "clean" => Fate::Clean(body()),
            "clean-then-closed" => Fate::CleanThenClosed(body()),
            "refused" => Fate::Refused(status()),
            "refused-then-closed" => Fate::RefusedThenClosed(status()),
            "cut" => Fate::Cut,
            other => panic!("{other} is no fate"),
        };
        (text(&line[0]).unwrap(), text(&line[1]).unwrap(), fate)
    };
    lines(include_str!("cases.jsonl")).map(case).collect()
}

pub(super) fn http2_cases() -> Vec<Http2Case> {
    let field = |field: &Value| match field.as_str() {
        Some("M") => (":method", "POST"),
        Some("P") => (":path", "{path}"),
        Some("S") => (":scheme", "http"),
        Some("A") => (":authority", "h"),
        Some("T") => ("{T}", ""),
        _ => (text(&field[0]).unwrap(), text(&field[1]).unwrap()),
    };
    let fields = |fields: &Value| fields.as_array().unwrap().iter().map(field).collect::<Fields>();
    let case = |line: Value| Http2Case {
        name: text(&line[0]).unwrap(),
        fields: fields(&line[1]),
        body: text(&line[2]),
        trailers: fields(&line[3]),
        arrives: text(&line[4]),
    };
    lines(include_str!("http2_cases.jsonl")).map(case).collect()
}
