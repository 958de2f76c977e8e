//! The same over HTTP/2, which becomes HTTP/1.1 at the worker.

use super::Scene;
use super::audit;
use super::frames::{Frame, Http2Client, Outcome};
use super::http2_cases::{HTTP2_CASES, Http2Case, Http2Fate};
use super::recorder::messages;

const TOKEN: &[(&str, &str)] = &[("fence-owner", "{owner}"), ("fence-revision", "{revision}")];
const HONEST: &[(&str, &str)] =
    &[(":method", "POST"), (":path", "{path}"), (":scheme", "http"), (":authority", "h"), ("{T}", "")];

/// Fields with their places filled in.
pub(super) fn filled(scene: &Scene, fields: &[(&str, &str)], path: &str) -> Vec<(String, String)> {
    let all = fields.iter().flat_map(|field| if field.0 == "{T}" { TOKEN } else { std::slice::from_ref(field) });
    all.map(|(name, value)| (scene.filled(name, path), scene.filled(value, path))).collect()
}

pub(super) fn honest(scene: &Scene, path: &str) -> Vec<(String, String)> {
    filled(scene, HONEST, path)
}

#[tokio::test]
async fn no_request_of_http_2_that_could_be_read_in_two_ways_reaches_the_worker_as_anything_but_one_clean_message() {
    let scene = Scene::open("").await;
    let mut wrong = Vec::new();
    for (index, Http2Case { name, fields, body, trailers, fate, .. }) in HTTP2_CASES.iter().enumerate() {
        let filled = |fields: &[(&str, &str)]| filled(&scene, fields, &format!("/case/{index}"));
        let honest = |path: &str| honest(&scene, &format!("/{path}/{index}"));
        let mut client = Http2Client::open(scene.fence.listener.clone()).await;
        let before = client.ask(&honest("before"), Some("honest"), &[]).await;
        let outcome = client.ask(&filled(fields), *body, &filled(trailers)).await;
        let after = if outcome == Outcome::Gone {
            Outcome::Ok
        } else {
            client.ask(&honest("after"), Some("honest"), &[]).await
        };
        let mut other = Http2Client::open(scene.fence.listener.clone()).await;
        let other = other.ask(&honest("other"), Some("honest"), &[]).await;
        let right = match fate {
            Http2Fate::Clean(_) => outcome == Outcome::Ok,
            Http2Fate::Refused => matches!(outcome, Outcome::Refused | Outcome::Reset | Outcome::Gone),
        };
        if !right || [before, after, other] != [Outcome::Ok; 3] {
            wrong.push(format!("{name}: {outcome:?}, and around it {:?}", [before, after, other]));
        }
    }
    let tenure = scene.tenure.clone();
    let recorded = scene.recorded().await;
    let names: Vec<&str> = HTTP2_CASES.iter().map(|case| case.name).collect();
    let bodies: Vec<Option<&str>> = HTTP2_CASES
        .iter()
        .map(|case| match case.fate {
            Http2Fate::Clean(body) => Some(body),
            Http2Fate::Refused => None,
        })
        .collect();
    audit(&recorded, &tenure, &names, &bodies, &mut wrong);
    assert!(wrong.is_empty(), "{} wrong of {}:\n{}", wrong.len(), HTTP2_CASES.len(), wrong.join("\n"));
}

/// What is sent on one stream beside others, and whether the connection survives it.
struct Sequence {
    name: &'static str,
    /// `POST` to a path of its own with this length, if any.
    length: Option<&'static str>,
    frames: &'static [Frame],
    /// The body that is to arrive; `None` if no whole message may.
    arrives: Option<&'static str>,
}

const fn sequence(
    name: &'static str,
    length: Option<&'static str>,
    frames: &'static [Frame],
    arrives: Option<&'static str>,
) -> Sequence {
    Sequence { name, length, frames, arrives }
}

use Frame::{
    Cancel, Continued, Data, Flood, Head, HeadUnended, LastData, NoError, Padded, Ping, Trailers, TrailersOpen,
};

#[rustfmt::skip]
const SEQUENCES: &[Sequence] = &[
    sequence("a body in pieces", Some("6"), &[Head, Data("abc"), Data(""), LastData("def")], Some("abcdef")),
    sequence("a body in pieces without a length", None, &[Head, Data("abc"), LastData("def")], Some("abcdef")),
    sequence("a body that ends with nothing", None, &[Head, Data("abc"), LastData("")], Some("abc")),
    sequence("a padded body", Some("3"), &[Head, Padded("abc"), LastData("")], Some("abc")),
    sequence("a body with trailers", None, &[Head, Data("abc"), Trailers], Some("abc")),
    sequence("a head in pieces", Some("3"), &[Continued(40), LastData("abc")], Some("abc")),
    sequence("a head in too many pieces", Some("3"), &[Continued(1), LastData("abc")], None),
    sequence("a request as body", Some("18"), &[Head, LastData("GET / HTTP/1.1\r\n\r\n")], Some("GET / HTTP/1.1\r\n\r\n")),
    sequence("chunks as body", Some("5"), &[Head, LastData("0\r\n\r\n")], Some("0\r\n\r\n")),
    sequence("less than announced", Some("6"), &[Head, Data("abc"), LastData("")], None),
    sequence("less than announced, in one piece", Some("6"), &[Head, LastData("abc")], None),
    sequence("less than announced, and trailers", Some("6"), &[Head, Data("abc"), Trailers], None),
    sequence("more than announced", Some("3"), &[Head, Data("abc"), LastData("GET /hidden HTTP/1.1\r\n\r\n")], None),
    sequence("more than announced, in one piece", Some("3"), &[Head, LastData("abcdef")], None),
    sequence("a body where none was announced", Some("0"), &[Head, LastData("GET /hidden HTTP/1.1\r\n\r\n")], None),
    sequence("a large length and little", Some("9999999"), &[Head, Data("abc"), LastData("")], None),
    sequence("a reset in the middle", None, &[Head, Data("abc"), Cancel], None),
    sequence("a reset without an error in the middle", None, &[Head, Data("abc"), NoError], None),
    sequence("a reset without an error in the middle of a length", Some("6"), &[Head, Data("abc"), NoError], None),
    sequence("a reset at the end of a length", Some("99999"), &[Head, Data("abc"), NoError], None),
    sequence("trailers that do not end the stream", None, &[Head, Data("abc"), TrailersOpen], None),
    sequence("trailers, and data behind them", None, &[Head, Data("abc"), TrailersOpen, LastData("def")], None),
    sequence("a head that goes on behind something else", None, &[HeadUnended, Ping, LastData("abc")], None),
    sequence("a head that goes on behind data", None, &[HeadUnended, LastData("abc")], None),
    sequence("a head that never ends", None, &[HeadUnended, Flood], None),
];

#[tokio::test]
async fn a_stream_of_http_2_is_whole_at_the_worker_or_not_at_all() {
    for limit in ["", "buffer_body_max = 0"] {
        let scene = Scene::open(limit).await;
        let mut wrong = Vec::new();
        for (index, Sequence { name, length, frames, arrives }) in SEQUENCES.iter().enumerate() {
            let mut fields = honest(&scene, &format!("/case/{index}"));
            fields.extend(length.map(|length| ("content-length".to_owned(), length.to_owned())));
            let mut client = Http2Client::open(scene.fence.listener.clone()).await;
            let before = client.ask(&honest(&scene, &format!("/before/{index}")), Some("honest"), &[]).await;
            let outcome = client.play(&fields, frames).await;
            let after = if outcome == Outcome::Gone {
                Outcome::Ok
            } else {
                client.ask(&honest(&scene, &format!("/after/{index}")), Some("honest"), &[]).await
            };
            let mut other = Http2Client::open(scene.fence.listener.clone()).await;
            let other = other.ask(&honest(&scene, &format!("/other/{index}")), Some("honest"), &[]).await;
            if arrives.is_some() != (outcome == Outcome::Ok) || [before, after, other] != [Outcome::Ok; 3] {
                wrong.push(format!("{name}: {outcome:?}, and around it {:?}", [before, after, other]));
            }
        }
        let tenure = scene.tenure.clone();
        let recorded = scene.recorded().await;
        let names: Vec<&str> = SEQUENCES.iter().map(|sequence| sequence.name).collect();
        let bodies: Vec<Option<&str>> = SEQUENCES.iter().map(|sequence| sequence.arrives).collect();
        audit(&recorded, &tenure, &names, &bodies, &mut wrong);
        assert!(recorded.iter().any(|one| messages(&one.bytes).0.len() > 1), "connections to the worker are kept");
        assert!(wrong.is_empty(), "{} wrong of {}:\n{}", wrong.len(), SEQUENCES.len(), wrong.join("\n"));
    }
}
