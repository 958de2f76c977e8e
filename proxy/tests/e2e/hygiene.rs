//! Requests that two readers could read in two ways, and requests that present a token in odd places: whatever reaches the worker
//! is one clean message with the token that was judged.

mod cases;
mod frames;
mod http2_cases;
mod recorder;

use fencepost_testsupport::{Connection, Etcd, EtcdVersion, Response};

use self::cases::{CASES, Fate};
use self::frames::{Http2Client, Outcome};
use self::http2_cases::{HTTP2_CASES, Http2Case, Http2Fate};
use self::recorder::{Message, Recorded, Recorder, Unread, folded, messages};
use crate::fencepost::{Config, Fencepost, Route};
use crate::store::{Store, Tenure};

/// fencepost between a real etcd and a worker that keeps every byte.
struct Scene {
    _etcd: Etcd,
    fence: Fencepost,
    recorder: Recorder,
    tenure: Tenure,
    stale: Tenure,
}

impl Scene {
    async fn open(limit: &str) -> Scene {
        let etcd = Etcd::start(EtcdVersion::V3_5).await;
        let store = Store::of(&etcd).await;
        let stale = store.hold("/k", "shard-0").await;
        let tenure = store.hold("/k", "shard-1").await;
        let recorder = Recorder::start();
        let route = Route::new("k", "/", r#"key = "/k""#);
        let config = Config::new(&[etcd.endpoint()], &format!("http://{}", recorder.address), &[route]);
        let fence = Fencepost::serve(&config.limit(limit)).await;
        Scene { _etcd: etcd, fence, recorder, tenure, stale }
    }

    /// A template's text with its places filled in.
    fn filled(&self, template: &str, path: &str) -> String {
        let Tenure { owner, revision } = &self.tenure;
        template
            .replace("{hidden}", "GET /hidden HTTP/1.1\r\nHost: h\r\n{T}\r\n")
            .replace("{T}", "Fence-Owner: {owner}\r\nFence-Revision: {revision}\r\n")
            .replace("{owner}", owner)
            .replace("{revision}", &revision.to_string())
            .replace("{stale}", &self.stale.revision.to_string())
            .replace("{path}", path)
    }

    fn honest(&self, path: &str) -> String {
        self.filled("POST {path} HTTP/1.1\r\nHost: h\r\n{T}Content-Length: 6\r\n\r\nhonest", path)
    }

    /// Ends fencepost, and returns what came over each connection to the worker.
    async fn recorded(mut self) -> Vec<Recorded> {
        assert!(self.fence.terminate().await.success());
        let log = self.fence.log();
        assert!(!log.contains("panicked"), "{log}");
        self.recorder.ended().await
    }
}

/// Sends a case between two honest requests on one connection, without waiting for its answer, and one more on another
/// connection; returns what went otherwise than it should.
async fn play(scene: &Scene, index: usize) -> Result<(), String> {
    let (_, template, fate) = CASES[index];
    let open = || Connection::open(scene.fence.listener.clone());
    let mut client = open().await.unwrap();
    client.send(scene.honest(&format!("/before/{index}"))).await.unwrap();
    expect(200, &client.final_response().await.unwrap())?;
    let request = scene.filled(template, &format!("/case/{index}"));
    client.send([request, scene.honest(&format!("/after/{index}"))].concat()).await.unwrap();
    let answer = client.final_response().await.map_err(|error| format!("no answer: {error}"))?;
    let (status, goes_on) = match fate {
        Fate::Clean(_) => (200, true),
        Fate::CleanThenClosed(_) => (200, false),
        Fate::Refused(status) => (status, true),
        Fate::RefusedThenClosed(status) => (status, false),
        Fate::CutThenClosed => (502, false),
    };
    expect(status, &answer)?;
    if goes_on {
        let after = client.final_response().await.map_err(|error| format!("nothing afterwards: {error}"))?;
        expect(200, &after)?;
    } else {
        let rest = client.rest().await.map_err(|error| format!("it is not closed: {error}"))?;
        if !rest.is_empty() {
            return Err(format!("more than one answer: {:?}", String::from_utf8_lossy(&rest)));
        }
    }
    let mut other = open().await.unwrap();
    other.send(scene.honest(&format!("/other/{index}"))).await.unwrap();
    expect(200, &other.final_response().await.unwrap())
}

fn expect(status: u16, answer: &Response) -> Result<(), String> {
    if answer.status == status { Ok(()) } else { Err(format!("not {status}: {answer:?}")) }
}

/// The messages at the worker, and the targets of those that were cut.
fn read_strictly(recorded: &[Recorded], wrong: &mut Vec<String>) -> (Vec<Message>, Vec<String>) {
    let mut whole = Vec::new();
    let mut cut = Vec::new();
    for Recorded { bytes, .. } in recorded {
        let (read, rest) = messages(bytes);
        whole.extend(read.iter().cloned());
        match rest {
            None => {}
            Some(Unread::Partial) => {
                let used = String::from_utf8_lossy(bytes);
                let last = used.rmatch_indices("HTTP/1.1\r\n").next().map_or("", |(at, _)| &used[..at]);
                cut.push(last.trim_end().rsplit(' ').next().unwrap_or_default().to_owned());
            }
            Some(Unread::Unclean(what)) => wrong.push(format!("{what}, after {:?}", read.last())),
        }
    }
    (whole, cut)
}

/// What is wrong with the token, or with names that could be taken for ours, in a message at the worker.
fn unclean(message: &Message, tenure: &Tenure) -> Option<String> {
    const OURS: [&str; 9] = [
        "FENCE_OWNER",
        "FENCE_REVISION",
        "CONTENT_LENGTH",
        "TRANSFER_ENCODING",
        "HOST",
        "VIA",
        "X_FORWARDED_FOR",
        "X_FORWARDED_HOST",
        "X_FORWARDED_PROTO",
    ];
    let values = |wanted: &str| -> Vec<&str> {
        let named = message.fields.iter().filter(|(name, _)| folded(name) == wanted);
        named.map(|(_, value)| value.as_str()).collect()
    };
    let revision = tenure.revision.to_string();
    let is_odd = |name: &str| {
        let folded = folded(name);
        let like_fencing = folded.starts_with("FENCE_") && !OURS.contains(&folded.as_str());
        let misspelt = OURS.contains(&folded.as_str()) && folded.replace('_', "-") != name.to_ascii_uppercase();
        like_fencing || misspelt || folded == "HTTP2_SETTINGS"
    };
    let is_late = |name: &str| {
        OURS.contains(&folded(name).as_str())
            || is_odd(name)
            || ["CONNECTION", "UPGRADE"].contains(&folded(name).as_str())
    };
    let switching = [values("CONNECTION"), values("UPGRADE")];
    let only_to_websocket = switching.iter().all(Vec::is_empty) || switching == [["upgrade"], ["websocket"]];
    let fine = only_to_websocket
        && values("FENCE_OWNER") == [tenure.owner.as_str()]
        && values("FENCE_REVISION") == [revision.as_str()]
        && OURS.iter().all(|name| values(name).len() <= 1)
        && values("HOST").len() == 1
        && !message.fields.iter().any(|(name, _)| is_odd(name))
        && !message.trailers.iter().any(|(name, _)| is_late(name));
    (!fine).then(|| format!("{message:?}"))
}

/// Holds what is at the worker against what was to become of the cases: `bodies` has the body of each that is to be there.
fn audit(recorded: &[Recorded], tenure: &Tenure, names: &[&str], bodies: &[Option<&str>], wrong: &mut Vec<String>) {
    let (whole, cut) = read_strictly(recorded, wrong);
    wrong.extend(whole.iter().filter_map(|message| unclean(message, tenure)));
    for (index, (name, body)) in names.iter().zip(bodies).enumerate() {
        let path = format!("/case/{index}");
        let seen: Vec<&str> =
            whole.iter().filter(|one| one.target == path).map(|message| message.body.as_str()).collect();
        if seen != body.iter().copied().collect::<Vec<_>>() {
            wrong.push(format!("{name}: the worker has {seen:?}"));
        }
    }
    let known = ["/case/", "/before/", "/after/", "/other/"];
    for message in &whole {
        let whole = message.target.starts_with("/case/") || message.body == "honest";
        if !whole || !known.iter().any(|known| message.target.starts_with(known)) {
            wrong.push(format!("a request that nobody sent: {message:?}"));
        }
    }
    let mut targets: Vec<&str> = whole.iter().map(|message| message.target.as_str()).collect();
    targets.sort_unstable();
    wrong.extend(targets.windows(2).filter(|two| two[0] == two[1]).map(|two| format!("{} came twice", two[0])));
    wrong.extend(cut.iter().filter(|target| !target.starts_with("/case/")).map(|target| format!("{target} was cut")));
}

async fn all_cases(limit: &str) {
    let scene = Scene::open(limit).await;
    let mut wrong = Vec::new();
    for (index, (name, ..)) in CASES.iter().enumerate() {
        if let Err(what) = play(&scene, index).await {
            wrong.push(format!("{name}: {what}"));
        }
    }
    let tenure = scene.tenure.clone();
    let recorded = scene.recorded().await;
    let bodies: Vec<Option<&str>> = CASES
        .iter()
        .map(|(_, _, fate)| match fate {
            Fate::Clean(body) | Fate::CleanThenClosed(body) => Some(*body),
            Fate::Refused(_) | Fate::RefusedThenClosed(_) | Fate::CutThenClosed => None,
        })
        .collect();
    let names: Vec<&str> = CASES.iter().map(|(name, ..)| *name).collect();
    audit(&recorded, &tenure, &names, &bodies, &mut wrong);
    assert!(recorded.iter().any(|one| messages(&one.bytes).0.len() > 20), "connections to the worker are kept");
    assert!(wrong.is_empty(), "{} wrong of {}:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

#[tokio::test]
async fn no_request_that_could_be_read_in_two_ways_reaches_the_worker_as_anything_but_one_clean_message() {
    all_cases("").await;
}

#[tokio::test]
async fn nor_does_it_where_bodies_are_streamed() {
    all_cases("buffer_body_max = 0").await;
}

#[tokio::test]
async fn over_http_2_neither() {
    let scene = Scene::open("").await;
    let mut wrong = Vec::new();
    for (index, Http2Case { name, fields, body, trailers, fate, .. }) in HTTP2_CASES.iter().enumerate() {
        let filled = |fields: &[(&str, &str)]| -> Vec<(String, String)> {
            let all =
                fields.iter().flat_map(|field| if field.0 == "{T}" { TOKEN } else { std::slice::from_ref(field) });
            let path = format!("/case/{index}");
            all.map(|(name, value)| (scene.filled(name, &path), scene.filled(value, &path))).collect()
        };
        let honest = |path: &str| {
            let mut fields = filled(HONEST);
            fields[1].1 = format!("/{path}/{index}");
            fields
        };
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

const TOKEN: &[(&str, &str)] = &[("fence-owner", "{owner}"), ("fence-revision", "{revision}")];
const HONEST: &[(&str, &str)] =
    &[(":method", "POST"), (":path", "{path}"), (":scheme", "http"), (":authority", "h"), ("{T}", "")];
