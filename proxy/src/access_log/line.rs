//! One line of the access log, in either of its forms.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};
use std::time::{Duration, SystemTime};

use fencepost_tls::PeerNames;
use http::{HeaderValue, StatusCode};
use humantime::Rfc3339Timestamp;
use serde::{Serialize, Serializer};
use smol_str::SmolStr;

use crate::about::About;
use crate::decision::DecisionId;
use crate::observe::text::shown_peer;
use crate::refusal::Failure;
use crate::server::ClientAddress;

/// What a line says.
pub(super) struct Line<'a> {
    /// When the answer ended, or the request without one.
    pub(super) at: SystemTime,
    pub(super) client: ClientAddress,
    /// The names of its certificate.
    pub(super) peer: Option<&'a PeerNames>,
    pub(super) about: &'a About,
    /// Whether the queries of target and referer are written.
    pub(super) queries: bool,
    pub(super) route: &'a str,
    pub(super) mode: &'static str,
    /// `None` if the client left before there was an answer.
    pub(super) status: Option<StatusCode>,
    /// Bytes of the answer's body.
    pub(super) sent: u64,
    /// Whether that was all of it.
    pub(super) complete: bool,
    /// From the request's arrival to the end of the answer.
    pub(super) duration: Duration,
}

/// A line in JSON, ordered by name. No tree is made of it: its sixty allocations would be a large
/// part of what a GET costs.
#[derive(Serialize)]
struct Object<'a> {
    client: Shown<ClientAddress>,
    complete: bool,
    decision: Option<Shown<DecisionId>>,
    duration_ms: f64,
    failure: Option<&'static str>,
    lock: Option<&'a str>,
    method: &'a str,
    mode: &'static str,
    owner: Option<SmolStr>,
    peer: Option<SmolStr>,
    protocol: fmt::Arguments<'a>,
    reason: &'static str,
    referer: Option<Cow<'a, str>>,
    request_id: Option<&'a str>,
    revision: Option<u64>,
    route: &'a str,
    sent_bytes: u64,
    status: Option<u16>,
    target: Cow<'a, str>,
    time: Shown<Rfc3339Timestamp>,
    traceparent: Option<&'a str>,
    user_agent: Option<Cow<'a, str>>,
    verdict: &'static str,
}

/// As it is shown, without a text of its own.
struct Shown<T>(T);

impl<T: Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// What stands in the combined form in place of a status where the client left before the answer:
/// as in nginx's.
const LEFT: u16 = 499;

impl Line<'_> {
    /// One JSON object.
    pub(super) fn json(&self) -> String {
        let About { method, version, .. } = self.about;
        let object = Object {
            client: Shown(self.client),
            complete: self.complete,
            decision: self.about.decision().map(Shown),
            duration_ms: (self.duration.as_secs_f64() * 1e6).round() / 1e3,
            failure: self.about.failure().map(Failure::code),
            lock: self.about.lock(),
            method: method.as_str(),
            mode: self.mode,
            owner: self.about.owner(),
            peer: self.peer.map(shown_peer),
            protocol: format_args!("{version:?}"),
            reason: self.about.reason(),
            referer: self.referer().map(cut),
            request_id: self.about.request_id(),
            revision: self.about.revision(),
            route: self.route,
            sent_bytes: self.sent,
            status: self.status.map(|status| status.as_u16()),
            target: cut(self.target()),
            time: Shown(humantime::format_rfc3339_millis(self.at)),
            traceparent: self.about.traceparent(),
            user_agent: self.about.user_agent.as_ref().map(|value| cut(value.as_bytes())),
            verdict: self.about.verdict(),
        };
        visible(serde_json::to_string(&object).unwrap_or_default()) // It has only text for keys.
    }

    /// The combined log format of Apache's `mod_log_config`, as nginx has it too, and what is ours
    /// behind it.
    pub(super) fn combined(&self) -> String {
        let About { method, version, user_agent, .. } = self.about;
        let mut line = self.client.ip().map_or("unix".to_owned(), |address| address.to_string());
        let (time, status, sent) =
            (clf_time(self.at), self.status.map_or(LEFT, |status| status.as_u16()), self.sent);
        let _ = write!(line, " - - [{time}] \"{method} ");
        escape_into(&mut line, self.target());
        let _ = write!(line, " {version:?}\" {status} {sent}");
        for header in [self.referer(), user_agent.as_ref().map(HeaderValue::as_bytes)] {
            line.push_str(" \"");
            escape_into(&mut line, header.unwrap_or(b"-"));
            line.push('"');
        }
        let (verdict, reason) = (self.about.verdict(), self.about.reason());
        let _ = write!(line, " route={} verdict={verdict} reason={reason} decision=", self.route);
        match self.about.decision() {
            Some(decision) => _ = write!(line, "{decision}"),
            None => line.push('-'),
        }
        line + " request_id=" + self.about.request_id().unwrap_or("-")
    }

    fn target(&self) -> &[u8] {
        self.shown(self.about.target().as_bytes())
    }

    fn referer(&self) -> Option<&[u8]> {
        self.about.referer.as_ref().map(|referer| self.shown(referer.as_bytes()))
    }

    /// As much of a URL as is to be in the log: a query is left out, though not its `?`.
    fn shown<'u>(&self, url: &'u [u8]) -> &'u [u8] {
        let query = url.iter().position(|byte| *byte == b'?').filter(|_| !self.queries);
        query.map_or(url, |query| &url[..=query])
    }
}

/// The longest target, referer or user agent that is written, in bytes.
const TEXT_MAX: usize = 4096;

/// Text of a client's, as far as a line has room for it: what waits to be written is bounded in
/// bytes too.
fn cut(text: &[u8]) -> Cow<'_, str> {
    match text.get(..TEXT_MAX) {
        Some(begin) if begin.len() < text.len() => String::from_utf8_lossy(begin) + "…",
        _ => String::from_utf8_lossy(text),
    }
}

/// Escapes the characters of the JSON that a terminal would obey or hide. RFC 8259 allows them in
/// JSON: C1 controls, DEL, line ends, and characters that turn text around.
fn visible(json: String) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !json.contains(is_hidden) {
        return json;
    }
    json.chars().fold(String::with_capacity(json.len() + 64), |mut line, c| {
        // Outside of texts there is nothing but ASCII that can be seen.
        if is_hidden(c) {
            _ = write!(line, "\\u{:04x}", u32::from(c))
        } else {
            line.push(c)
        }
        line
    })
}

/// Like `10/Oct/2000:13:55:36 +0000`.
fn clf_time(at: SystemTime) -> String {
    // "Tue, 10 Oct 2000 13:55:36 GMT" has the same parts.
    let date = httpdate::fmt_http_date(at);
    let mut parts = date.split(' ').skip(1);
    let mut next = || parts.next().unwrap_or_default();
    format!("{}/{}/{}:{} +0000", next(), next(), next(), next())
}

/// Quotes, backslashes and what is not visible as `\xHH`, as Apache does since 2.0.46: no text ends
/// its field, or the line.
fn escape_into(line: &mut String, bytes: &[u8]) {
    for &byte in &bytes[..bytes.len().min(TEXT_MAX)] {
        match byte {
            b'"' | b'\\' => line.extend(['\\', char::from(byte)]),
            b' '..=b'~' => line.push(char::from(byte)),
            _ => _ = write!(line, "\\x{byte:02x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use fencepost_policy::{FenceToken, LockKey, Rejection, Revision};
    use http::{Request, Version};
    use serde_json::json;

    use super::*;
    use crate::observe::Outcome;
    use crate::observe::text::shown_owner;

    fn written(form: impl FnOnce(&Line<'_>) -> String, refused: bool) -> String {
        let request = Request::post("/shards/2/jobs?q=%22")
            .header("referer", "http://a/\"b\\")
            .header("user-agent", http::HeaderValue::from_bytes(b"x\xff\ty").unwrap())
            .body(())
            .unwrap();
        let about = About::of(&request, true);
        about.note_lock(&LockKey::new("/shards/2/lock").unwrap());
        if refused {
            about.note(Outcome::Refused(Rejection::StaleTenure), &DecisionId::for_tests("d-1"));
        }
        form(&Line {
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(951_782_400_123),
            client: ClientAddress::Tcp("127.0.0.1:5".parse().unwrap()),
            peer: Some(&PeerNames {
                common_names: vec!["shard 1".to_owned()],
                ..PeerNames::default()
            }),
            about: &about,
            queries: true,
            route: "shards",
            mode: "enforce",
            status: Some(StatusCode::OK),
            sent: 5,
            complete: true,
            duration: Duration::from_micros(1_500),
        })
    }

    #[test]
    fn a_line_in_the_combined_form_is_one_that_every_tool_reads() {
        let expected = r#"127.0.0.1 - - [29/Feb/2000:00:00:00 +0000] "POST /shards/2/jobs?q=%22 HTTP/1.1" 200 5 "http://a/\"b\\" "x\xff\x09y" route=shards verdict=reject reason=stale-tenure decision=d-1 request_id=-"#;
        assert_eq!(written(|line| line.combined(), true), expected);
        assert!(
            written(|line| line.combined(), false)
                .ends_with("verdict=none reason=none decision=- request_id=-")
        );
    }

    #[test]
    fn who_left_before_the_answer_has_no_status() {
        let json = written(|line| Line { status: None, ..*line }.json(), false);
        assert!(json.contains(r#""status":null"#), "{json}");
        let combined = written(|line| Line { status: None, ..*line }.combined(), false);
        assert!(combined.contains("HTTP/1.1\" 499 5 "), "{combined}");
    }

    #[test]
    fn what_a_client_sends_is_cut_in_either_form() {
        let request = Request::get(format!("/{}", "x".repeat(60_000)))
            .header("user-agent", "y".repeat(60_000));
        let about = About::of(&request.body(()).unwrap(), true);
        let client = ClientAddress::Unix;
        let (at, status, duration) = (SystemTime::UNIX_EPOCH, Some(StatusCode::OK), Duration::ZERO);
        let (route, mode, sent, complete, queries) = ("shards", "enforce", 0, true, true);
        let names = PeerNames { uris: vec!["z".repeat(60_000); 9], ..PeerNames::default() };
        let peer = Some(&names);
        let line = Line {
            at,
            client,
            peer,
            about: &about,
            queries,
            route,
            mode,
            status,
            sent,
            complete,
            duration,
        };
        for text in [line.json(), line.combined()] {
            assert!((2 * TEXT_MAX..2 * TEXT_MAX + 1_000).contains(&text.len()), "{}", text.len());
        }
    }

    #[test]
    fn a_query_is_in_neither_form_unless_it_is_wanted() {
        let request = Request::get("/a?token=s3cret")
            .header("referer", "http://a/b?token=s3cret")
            .body(())
            .unwrap();
        let about = About::of(&request, true);
        let (client, at, status) =
            (ClientAddress::Unix, SystemTime::UNIX_EPOCH, Some(StatusCode::OK));
        let (duration, route, mode, sent, complete) =
            (Duration::ZERO, "shards", "enforce", 0, true);
        let line = |queries| Line {
            at,
            client,
            peer: None,
            about: &about,
            queries,
            route,
            mode,
            status,
            sent,
            complete,
            duration,
        };
        for text in [line(false).json(), line(false).combined()] {
            assert!(
                !text.contains("s3cret") && text.contains("/a?") && text.contains("http://a/b?"),
                "{text}"
            );
        }
        for text in [line(true).json(), line(true).combined()] {
            assert_eq!(text.matches("?token=s3cret").count(), 2, "{text}");
        }
    }

    /// It was the tree of it, written.
    #[test]
    fn a_line_in_json_is_what_a_tree_of_it_would_be_whatever_its_texts_are() {
        let long = [&[b'x'; TEXT_MAX - 1][..], "é".as_bytes()].concat();
        for odd in [
            &b""[..],
            b"\"\\/'</b>",
            b"a\tb",
            b"\xff",
            b"\xe2\x80",
            "\u{e9}\u{2028}😀".as_bytes(),
            &long,
        ] {
            for (key, version) in [
                ("k\"\\\0\u{1}\u{8}\n\u{c}\r\u{1f}\u{7f}é", Version::HTTP_10),
                ("/k", Version::HTTP_2),
            ] {
                let request = Request::options("*")
                    .version(version)
                    .header("user-agent", odd)
                    .header("referer", odd);
                let about =
                    About::of(&request.header("traceparent", "a\"\\b").body(()).unwrap(), true);
                about.note_lock(&LockKey::new(key).unwrap());
                let owner = HeaderValue::from_bytes(odd).unwrap();
                about.note_presented(&FenceToken {
                    owner,
                    revision: Revision::new(i64::MAX as u64).unwrap(),
                });
                about.note_failure(Failure::Internal);
                let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(951_782_400_123_456_789);
                let line = Line {
                    at,
                    client: ClientAddress::Tcp("[::1]:5".parse().unwrap()),
                    peer: None,
                    about: &about,
                    queries: true,
                    route: key,
                    mode: "shadow",
                    status: None,
                    sent: u64::MAX,
                    complete: false,
                    duration: Duration::from_nanos(1_234_567_890),
                };
                let expected = json!({
                    "time": "2000-02-29T00:00:00.123Z", "client": "[::1]:5", "peer": null, "method": "OPTIONS",
                    "target": "*", "protocol": format!("{version:?}"), "status": null, "sent_bytes": u64::MAX,
                    "complete": false, "duration_ms": 1_234.568, "route": key, "mode": "shadow", "lock": key,
                    "verdict": "none", "reason": "none", "decision": null, "failure": "internal-error",
                    "owner": shown_owner(odd), "revision": i64::MAX, "traceparent": "a\"\\b",
                    "referer": cut(odd), "request_id": null, "user_agent": cut(odd),
                });
                assert_eq!(line.json(), visible(expected.to_string()));
            }
        }
    }

    #[test]
    fn text_is_cut_where_a_line_has_no_room_for_more_of_it() {
        for (length, shown) in [(0, 0), (TEXT_MAX - 1, TEXT_MAX - 1), (TEXT_MAX, TEXT_MAX)] {
            assert_eq!(cut(&vec![b'x'; length]), "x".repeat(shown));
        }
        assert_eq!(cut(&[b'x'; TEXT_MAX + 1]), "x".repeat(TEXT_MAX) + "…");
        assert_eq!(cut(b"a\xffb"), "a\u{fffd}b");
    }

    #[test]
    fn a_line_in_json_has_nothing_that_a_terminal_would_obey_or_hide() {
        let said = "a\u{9b}31m\u{202e}b\u{2028}\u{2066}é…";
        let request = Request::post("/")
            .header("user-agent", http::HeaderValue::from_bytes(said.as_bytes()).unwrap());
        let about = About::of(&request.body(()).unwrap(), true);
        let line = Line {
            at: SystemTime::UNIX_EPOCH,
            client: ClientAddress::Unix,
            peer: None,
            about: &about,
            queries: true,
            route: "k",
            mode: "off",
            status: None,
            sent: 0,
            complete: false,
            duration: Duration::ZERO,
        };
        let json = line.json();
        assert!(json.contains(r#""user_agent":"a\u009b31m\u202eb\u2028\u2066é…""#), "{json}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["user_agent"], said, "it is the same text");
    }

    #[test]
    fn a_line_in_json_is_one_object() {
        let line = written(|line| line.json(), true);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = json!({
            "time": "2000-02-29T00:00:00.123Z", "client": "127.0.0.1:5", "peer": "cn:shard%201", "method": "POST", "target": "/shards/2/jobs?q=%22",
            "protocol": "HTTP/1.1", "status": 200, "sent_bytes": 5, "complete": true, "duration_ms": 1.5, "route": "shards", "mode": "enforce",
            "lock": "/shards/2/lock", "verdict": "reject", "reason": "stale-tenure", "decision": "d-1", "failure": null, "owner": null,
            "revision": null,
            "traceparent": null, "referer": "http://a/\"b\\", "request_id": null, "user_agent": "x\u{fffd}\ty",
        });
        assert_eq!(line, expected);
    }
}
