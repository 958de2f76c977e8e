//! Plays cases over HTTP/2, which becomes HTTP/1.1 at the worker.

use super::Scene;
use super::audit;
use super::cases::{Http2Case, http2_cases};
use super::frames::{Frame, Http2Client, Outcome};
use super::recorder::messages;

const TOKEN: &[(&str, &str)] = &[("fence-owner", "{owner}"), ("fence-revision", "{revision}")];
const HONEST: &[(&str, &str)] = &[
    (":method", "POST"),
    (":path", "{path}"),
    (":scheme", "http"),
    (":authority", "h"),
    ("{T}", ""),
];

pub(super) fn filled(scene: &Scene, fields: &[(&str, &str)], path: &str) -> Vec<(String, String)> {
    let all = fields
        .iter()
        .flat_map(|field| if field.0 == "{T}" { TOKEN } else { std::slice::from_ref(field) });
    all.map(|(name, value)| (scene.filled(name, path), scene.filled(value, path))).collect()
}

pub(super) fn honest(scene: &Scene, path: &str) -> Vec<(String, String)> {
    filled(scene, HONEST, path)
}

/// Plays a case between two honest requests on one connection, and sends one more on another. Says
/// what went otherwise than it should.
pub(super) async fn played(
    scene: &Scene,
    index: usize,
    arrives: bool,
    play: impl AsyncFnOnce(&mut Http2Client) -> Outcome,
) -> Result<(), String> {
    let honest = |path: &str| honest(scene, &format!("/{path}/{index}"));
    let mut client = Http2Client::open(scene.fence.listener.clone()).await;
    let before = client.ask(&honest("before"), Some("honest"), &[]).await;
    let outcome = play(&mut client).await;
    let after = if outcome == Outcome::Gone {
        Outcome::Ok
    } else {
        client.ask(&honest("after"), Some("honest"), &[]).await
    };
    let mut other = Http2Client::open(scene.fence.listener.clone()).await;
    let around = [before, after, other.ask(&honest("other"), Some("honest"), &[]).await];
    let right = arrives == (outcome == Outcome::Ok) && around == [Outcome::Ok; 3];
    right.then_some(()).ok_or_else(|| format!("{outcome:?}, and around it {around:?}"))
}

/// Plays all cases of HTTP/2; returns what went otherwise than it should.
pub(super) async fn play_cases(scene: &Scene) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, case) in http2_cases().into_iter().enumerate() {
        let Http2Case { name, fields, body, trailers, arrives } = case;
        let filled = |fields: &[(&str, &str)]| filled(scene, fields, &format!("/case/{index}"));
        let played = played(scene, index, arrives.is_some(), async |client| {
            client.ask(&filled(&fields), body, &filled(&trailers)).await
        });
        wrong.extend(played.await.err().map(|what| format!("{name}: {what}")));
    }
    wrong
}

#[tokio::test]
async fn ambiguous_http2_requests_are_clean_or_absent_at_the_worker() {
    let scene = Scene::open("").await;
    let mut wrong = play_cases(&scene).await;
    let (cases, tenure) = (http2_cases(), scene.tenure.clone());
    let recorded = scene.recorded().await;
    let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
    let bodies: Vec<Option<&str>> = cases.iter().map(|case| case.arrives).collect();
    audit(&recorded, &tenure, &names, &bodies, &mut wrong);
    assert!(wrong.is_empty(), "{} wrong of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
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

const fn one(
    name: &'static str,
    length: Option<&'static str>,
    frames: &'static [Frame],
    arrives: Option<&'static str>,
) -> Sequence {
    Sequence { name, length, frames, arrives }
}

use Frame::{
    Cancel, Continued, Data, Flood, Head, HeadUnended, LastData, NoError, Padded, Ping, Trailers,
    TrailersOpen,
};

const REQUEST: &str = "GET / HTTP/1.1\r\n\r\n";
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\n\r\n";
const ABC: Frame = Data("abc");
const DEF: Frame = LastData("def");

const SEQUENCES: &[Sequence] = &[
    one("a body in pieces", Some("6"), &[Head, ABC, Data(""), DEF], Some("abcdef")),
    one("a body in pieces without a length", None, &[Head, ABC, DEF], Some("abcdef")),
    one("a body that ends with nothing", None, &[Head, ABC, LastData("")], Some("abc")),
    one("a padded body", Some("3"), &[Head, Padded("abc"), LastData("")], Some("abc")),
    one("a body with trailers", None, &[Head, ABC, Trailers], Some("abc")),
    one("a head in pieces", Some("3"), &[Continued(40), LastData("abc")], Some("abc")),
    one("a head in too many pieces", Some("3"), &[Continued(1), LastData("abc")], None),
    one("a request as body", Some("18"), &[Head, LastData(REQUEST)], Some(REQUEST)),
    one("chunks as body", Some("5"), &[Head, LastData("0\r\n\r\n")], Some("0\r\n\r\n")),
    one("less than announced", Some("6"), &[Head, ABC, LastData("")], None),
    one("less than announced, in one piece", Some("6"), &[Head, LastData("abc")], None),
    one("less than announced, and trailers", Some("6"), &[Head, ABC, Trailers], None),
    one("more than announced", Some("3"), &[Head, ABC, LastData(HIDDEN)], None),
    one("more than announced, in one piece", Some("3"), &[Head, LastData("abcdef")], None),
    one("a body where none was announced", Some("0"), &[Head, LastData(HIDDEN)], None),
    one("a large length and little", Some("9999999"), &[Head, ABC, LastData("")], None),
    one("a reset in the middle", None, &[Head, ABC, Cancel], None),
    one("a reset without an error in the middle", None, &[Head, ABC, NoError], None),
    one(
        "a reset without an error in the middle of a length",
        Some("6"),
        &[Head, ABC, NoError],
        None,
    ),
    one("a reset at the end of a length", Some("99999"), &[Head, ABC, NoError], None),
    one("trailers that do not end the stream", None, &[Head, ABC, TrailersOpen], None),
    one("trailers, and data behind them", None, &[Head, ABC, TrailersOpen, DEF], None),
    one(
        "a head that goes on behind something else",
        None,
        &[HeadUnended, Ping, LastData("abc")],
        None,
    ),
    one("a head that goes on behind data", None, &[HeadUnended, LastData("abc")], None),
    one("a head that never ends", None, &[HeadUnended, Flood], None),
];

#[tokio::test]
async fn an_http2_stream_is_whole_at_the_worker_or_not_at_all() {
    for limit in ["", "buffer_body_max = 0"] {
        let scene = Scene::open(limit).await;
        let mut wrong = Vec::new();
        for (index, Sequence { name, length, frames, arrives }) in SEQUENCES.iter().enumerate() {
            let mut fields = honest(&scene, &format!("/case/{index}"));
            fields.extend(length.map(|length| ("content-length".to_owned(), length.to_owned())));
            let played = played(&scene, index, arrives.is_some(), async |client| {
                client.play(&fields, frames).await
            });
            wrong.extend(played.await.err().map(|what| format!("{name}: {what}")));
        }
        let tenure = scene.tenure.clone();
        let recorded = scene.recorded().await;
        let names: Vec<&str> = SEQUENCES.iter().map(|sequence| sequence.name).collect();
        let bodies: Vec<Option<&str>> = SEQUENCES.iter().map(|sequence| sequence.arrives).collect();
        audit(&recorded, &tenure, &names, &bodies, &mut wrong);
        let are_kept = recorded.iter().any(|one| messages(&one.bytes).0.len() > 1);
        assert!(are_kept, "connections to the worker are kept");
        assert!(
            wrong.is_empty(),
            "{} wrong of {}:\n{}",
            wrong.len(),
            SEQUENCES.len(),
            wrong.join("\n")
        );
    }
}
