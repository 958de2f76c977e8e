//! Requests that two readers could read in two ways, and requests that present a token in odd
//! places: whatever reaches the worker is one clean message with the token that was judged.

mod cases;
mod frames;
mod http2;
mod http2_worker;
mod odd_bytes;
mod recorder;

use fencepost_tests::{Connection, Etcd, EtcdVersion, Response};

use self::cases::{Case, Fate, cases};
use self::recorder::{Message, Recorded, Recorder, Unread, folded, messages};
use crate::fencepost::{Config, Fencepost, Route};
use crate::store::{Store, Tenure};

/// fencepost between a real etcd and a worker that keeps every byte.
struct Scene {
    etcd: Etcd,
    fence: Fencepost,
    recorder: Recorder,
    tenure: Tenure,
    stale: Tenure,
}

impl Scene {
    async fn open(limit: &str) -> Scene {
        Scene::with(Route::k(), limit).await
    }

    async fn with(route: Route, limit: &str) -> Scene {
        Scene::before(None, route, limit).await
    }

    /// Before another worker than the recorder, if there is one.
    async fn before(worker: Option<String>, route: Route, limit: &str) -> Scene {
        let etcd = Etcd::start(EtcdVersion::V3_5).await;
        let store = Store::of(&etcd).await;
        let stale = store.hold("/k", "shard-0").await;
        let tenure = store.hold("/k", "shard-1").await;
        let recorder = Recorder::start();
        let worker = worker.unwrap_or_else(|| format!("http://{}", recorder.address));
        let config = Config::new(&[etcd.endpoint()], &worker, &[route]);
        let fence = Fencepost::serve(&config.limit(limit)).await;
        Scene { etcd, fence, recorder, tenure, stale }
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

/// How a case is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    AtOnce,
    /// The rest follows when the worker has the head.
    HeadFirst,
}

/// Sends a case between two honest requests on one connection, without waiting for its answer, and
/// one more on another connection; returns what went otherwise than it should.
async fn play(
    scene: &Scene,
    index: usize,
    &(_, template, fate): &Case<'_>,
    sending: Sending,
) -> Result<(), String> {
    let open = || Connection::open(scene.fence.listener.clone());
    let mut client = open().await.unwrap();
    client.send(scene.honest(&format!("/before/{index}"))).await.unwrap();
    expect(200, &client.final_response().await.unwrap())?;
    let request = scene.filled(template, &format!("/case/{index}"));
    let bytes = [request, scene.honest(&format!("/after/{index}"))].concat();
    let (head, rest) = match sending {
        Sending::AtOnce => bytes.split_at(0),
        Sending::HeadFirst => bytes.split_at(bytes.find("\r\n\r\n").unwrap() + 4),
    };
    if sending == Sending::HeadFirst {
        client.send(head).await.unwrap();
        scene.recorder.gets(&format!("POST /case/{index} ")).await;
    }
    client.send(rest).await.unwrap();
    let answer = client.final_response().await.map_err(|error| format!("no answer: {error}"))?;
    expect(fate.status(), &answer)?;
    let said = String::from_utf8_lossy(&answer.body);
    let failure = if sending == Sending::AtOnce { "broken-body" } else { "cut-body" };
    if fate == Fate::Cut && !said.contains(&format!(r#""failure":"{failure}""#)) {
        return Err(format!("not {failure}: {said}"));
    }
    if matches!(fate, Fate::Clean(_) | Fate::Refused(_)) {
        let after = client
            .final_response()
            .await
            .map_err(|error| format!("nothing afterwards: {error}"))?;
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
                let last =
                    used.rmatch_indices("HTTP/1.1\r\n").next().map_or("", |(at, _)| &used[..at]);
                cut.push(last.trim_end().rsplit(' ').next().unwrap_or_default().to_owned());
            }
            Some(Unread::Unclean(what)) => wrong.push(format!("{what}, after {:?}", read.last())),
        }
    }
    (whole, cut)
}

/// What is wrong with the token, or with names that could be taken for ours, in a message at the
/// worker.
fn unclean(message: &Message, tenure: &Tenure) -> Option<String> {
    const OURS: &str = "FENCE_OWNER FENCE_REVISION CONTENT_LENGTH TRANSFER_ENCODING HOST VIA \
        X_FORWARDED_FOR X_FORWARDED_HOST X_FORWARDED_PROTO";
    let ours: Vec<&str> = OURS.split_whitespace().collect();
    let values = |wanted: &str| -> Vec<&str> {
        let named = message.fields.iter().filter(|(name, _)| folded(name) == wanted);
        named.map(|(_, value)| value.as_str()).collect()
    };
    let revision = tenure.revision.to_string();
    let is_odd = |name: &str| {
        let folded = folded(name);
        let like_fencing = folded.starts_with("FENCE_") && !ours.contains(&folded.as_str());
        let misspelt = ours.contains(&folded.as_str())
            && folded.replace('_', "-") != name.to_ascii_uppercase();
        like_fencing || misspelt || folded == "HTTP2_SETTINGS"
    };
    let is_late = |name: &str| {
        ours.contains(&folded(name).as_str())
            || is_odd(name)
            || ["CONNECTION", "UPGRADE"].contains(&folded(name).as_str())
    };
    let switching = [values("CONNECTION"), values("UPGRADE")];
    let only_to_websocket =
        switching.iter().all(Vec::is_empty) || switching == [["upgrade"], ["websocket"]];
    let fine = only_to_websocket
        && values("FENCE_OWNER") == [tenure.owner.as_str()]
        && values("FENCE_REVISION") == [revision.as_str()]
        && ours.iter().all(|name| values(name).len() <= 1)
        && values("HOST").len() == 1
        && !message.fields.iter().any(|(name, _)| is_odd(name))
        && !message.trailers.iter().any(|(name, _)| is_late(name));
    (!fine).then(|| format!("{message:?}"))
}

/// Holds what is at the worker against what was to become of the cases: `bodies` has the body of
/// each that is to be there. Returns the targets of messages that were cut.
fn audit(
    recorded: &[Recorded],
    tenure: &Tenure,
    names: &[&str],
    bodies: &[Option<&str>],
    wrong: &mut Vec<String>,
) -> Vec<String> {
    let (whole, cut) = read_strictly(recorded, wrong);
    audit_messages(&whole, &cut, tenure, names, bodies, wrong);
    cut
}

/// Audits messages that have been read, and the targets of those that were cut, like [`audit`].
fn audit_messages(
    whole: &[Message],
    cut: &[String],
    tenure: &Tenure,
    names: &[&str],
    bodies: &[Option<&str>],
    wrong: &mut Vec<String>,
) {
    wrong.extend(whole.iter().filter_map(|message| unclean(message, tenure)));
    for (index, (name, body)) in names.iter().zip(bodies).enumerate() {
        let path = format!("/case/{index}");
        let seen: Vec<&str> = whole
            .iter()
            .filter(|one| one.target == path)
            .map(|message| message.body.as_str())
            .collect();
        if seen != body.iter().copied().collect::<Vec<_>>() {
            wrong.push(format!("{name}: the worker has {seen:?}"));
        }
    }
    let known = ["/case/", "/before/", "/after/", "/other/"];
    for message in whole {
        let whole = message.target.starts_with("/case/") || message.body == "honest";
        if !whole || !known.iter().any(|known| message.target.starts_with(known)) {
            wrong.push(format!("a request that nobody sent: {message:?}"));
        }
    }
    let mut targets: Vec<&str> = whole.iter().map(|message| message.target.as_str()).collect();
    targets.sort_unstable();
    let twice = targets.windows(2).filter(|two| two[0] == two[1]);
    wrong.extend(twice.map(|two| format!("{} came twice", two[0])));
    let others = cut.iter().filter(|target| !target.starts_with("/case/"));
    wrong.extend(others.map(|target| format!("{target} was cut")));
}

/// Plays these cases one after the other. Returns which were cut at the worker.
async fn play_all(cases: &[Case<'_>], limit: &str, sending: Sending) -> Vec<String> {
    let scene = Scene::open(limit).await;
    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        if let Err(what) = play(&scene, index, case, sending).await {
            wrong.push(format!("{}: {what}", case.0));
        }
    }
    let tenure = scene.tenure.clone();
    let recorded = scene.recorded().await;
    let bodies: Vec<Option<&str>> = cases.iter().map(|(_, _, fate)| fate.body()).collect();
    let names: Vec<&str> = cases.iter().map(|(name, ..)| *name).collect();
    let cut = audit(&recorded, &tenure, &names, &bodies, &mut wrong);
    let are_kept = recorded.iter().any(|one| messages(&one.bytes).0.len() > 20);
    assert!(are_kept || !cut.is_empty(), "connections to the worker are kept");
    assert!(wrong.is_empty(), "{} wrong of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    cut
}

#[tokio::test]
async fn ambiguous_requests_reach_the_worker_clean_or_not_at_all() {
    let cut = play_all(&cases(), "", Sending::AtOnce).await;
    assert!(cut.is_empty(), "known to be broken before anything went out: {cut:?}");
}

#[tokio::test]
async fn ambiguous_streamed_requests_are_clean_or_absent() {
    play_all(&cases(), "buffer_body_max = 0", Sending::AtOnce).await;
}

#[tokio::test]
async fn a_body_that_goes_wrong_under_way_is_cut_and_answered_400() {
    let cases: Vec<Case<'_>> =
        cases().into_iter().filter(|(_, _, fate)| *fate == Fate::Cut).collect();
    let cut = play_all(&cases, "", Sending::HeadFirst).await;
    assert_eq!(cut.len(), cases.len(), "{cut:?}");
}

#[tokio::test]
async fn no_control_byte_has_a_place_anywhere() {
    let cases = odd_bytes::cases();
    let cases: Vec<Case<'_>> = cases
        .iter()
        .map(|(name, template, fate)| (name.as_str(), template.as_str(), *fate))
        .collect();
    play_all(&cases, "", Sending::AtOnce).await;
}

#[tokio::test]
async fn names_that_fold_into_a_routes_headers_are_dropped() {
    let route = Route::k().with(r#"owner_header = "X-Fence-Owner""#);
    let scene = Scene::with(route.with(r#"revision_header = "X-Fence-Revision""#), "").await;
    let token = scene.filled("X-Fence-Owner: {owner}\r\nX-Fence-Revision: {revision}\r\n", "");
    let stale = scene.stale.revision;
    let mut client = Connection::open(scene.fence.listener.clone()).await.unwrap();
    let mut ask = async |fields: &str, trailers: &str, status: u16| {
        let head = format!(
            "POST /case/0 HTTP/1.1\r\nHost: h\r\n{fields}Transfer-Encoding: chunked\r\n\r\n"
        );
        client.send(format!("{head}0\r\n{trailers}\r\n")).await.unwrap();
        let answer = client.final_response().await.unwrap();
        assert_eq!(answer.status, status, "{fields:?}");
    };
    let names = [
        "X_Fence_Revision",
        "x-fence_revision",
        "X.Fence.Revision",
        "x~fence!revision",
        "Fence-Revision",
        "fence_owner",
    ];
    for name in names {
        let other = format!("{name}: {stale}\r\n");
        ask(&format!("{other}{token}"), "", 200).await;
        ask(&token, &other, 200).await;
        ask(&other, "", 428).await;
        ask(&format!("{token}Connection: {name}\r\n{other}"), "", 200).await;
    }
    ask(&token, &format!("X-Fence-Revision: {stale}\r\n"), 200).await;
    ask(&format!("{token}X-FENCE-REVISION: {stale}\r\n"), "", 400).await;
    ask(&format!("{token}Connection: x-fence-revision\r\n"), "", 400).await;
    drop(client);
    let Tenure { owner, revision } = scene.tenure.clone();
    let expected = [("x-fence-owner", owner), ("x-fence-revision", revision.to_string())];
    let recorded = scene.recorded().await;
    let got: Vec<Message> = recorded.iter().flat_map(|one| messages(&one.bytes).0).collect();
    assert_eq!(got.len(), 3 * names.len() + 1);
    for message in got {
        let fields = message.fields.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let mut like_fencing: Vec<_> =
            fields.filter(|(name, _)| folded(name).contains("FENCE_")).collect();
        like_fencing.sort_unstable();
        assert_eq!(like_fencing, expected, "{message:?}");
        assert!(message.trailers.is_empty(), "{message:?}");
    }
}

#[tokio::test]
async fn names_that_fold_with_other_marks_are_dropped() {
    let route = Route::k().with(r#"owner_header = "user_agent""#);
    let scene = Scene::with(route.with(r#"revision_header = "shard_revision""#), "").await;
    let token = scene.filled("User_Agent: {owner}\r\nShard_Revision: {revision}\r\n", "");
    let stale = scene.stale.revision;
    let mut client = Connection::open(scene.fence.listener.clone()).await.unwrap();
    for (fields, trailers, status) in [
        (format!("{token}Shard-Revision: {stale}\r\nUser-Agent: zombie\r\n"), String::new(), 200),
        (
            format!("{token}X-Shard-Revision: kept\r\n"),
            format!("Shard-Revision: {stale}\r\nUser-Agent: zombie\r\n"),
            200,
        ),
        (format!("User-Agent: zombie\r\nShard-Revision: {stale}\r\n"), String::new(), 428),
    ] {
        let head = format!(
            "POST /case/0 HTTP/1.1\r\nHost: h\r\n{fields}Transfer-Encoding: chunked\r\n\r\n"
        );
        client.send(format!("{head}0\r\n{trailers}\r\n")).await.unwrap();
        assert_eq!(client.final_response().await.unwrap().status, status, "{fields:?}");
    }
    drop(client);
    let Tenure { owner, revision } = scene.tenure.clone();
    let expected = [("shard_revision", revision.to_string()), ("user_agent", owner)];
    let recorded = scene.recorded().await;
    let got: Vec<Message> = recorded.iter().flat_map(|one| messages(&one.bytes).0).collect();
    assert_eq!(got.len(), 2);
    assert!(got[1].fields.iter().any(|(name, _)| name == "x-shard-revision"), "{got:?}");
    for message in got {
        let fields = message.fields.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let ours = |name: &str| ["SHARD_REVISION", "USER_AGENT"].contains(&folded(name).as_str());
        let mut like_the_token: Vec<_> = fields.filter(|(name, _)| ours(name)).collect();
        like_the_token.sort_unstable();
        assert_eq!(like_the_token, expected, "{message:?}");
        assert!(message.trailers.is_empty(), "{message:?}");
    }
}

/// Spellings of paths under another shard, or under none, that some worker could take for paths of
/// shard 3.
const SPELLINGS: &str = "\
    /shards/2/../3/x /shards/2/..%2f3/x /shards/2%2f..%2f3/x /shards/2/%2e%2e/3/x \
    /shards/2/.%2e/3/x /shards/2/%252e%252e/3/x /shards/2/..;/3/x /shards/2/..\\3/x \
    /shards/2\\..\\3/x /shards/%33/../2/x /shards/2%00/../3/x /shards/2;3/x /shards/2%2f3/x \
    /shards//3/x //shards/3/x /%2fshards/3/x /Shards/3/x /shards/3%20/x /shards/3%/x \
    /shards/%zz/x /shards/./3/x /open/../shards/3/x /open/%2e%2e/shards/3/x \
    /open/..%5cshards%5c3/x /open/..;x/shards/3/x /shards/2/..%3fx /shards/2/..%23 \
    /open/.%00./shards/3/x";

#[tokio::test]
async fn no_spelling_of_a_path_leads_past_its_lock() {
    let shards = Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#);
    let scene = Scene::with(shards, "").await;
    let held = Store::of(&scene.etcd).await.hold("/shards/2/lock", "shard-2").await;
    let token = format!("Fence-Owner: {}\r\nFence-Revision: {}\r\n", held.owner, held.revision);
    let mut client = Connection::open(scene.fence.listener.clone()).await.unwrap();
    let mut ask = async |path: &str, token: &str| {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{token}\r\n")).await.unwrap();
        client.final_response().await.unwrap().status
    };
    for path in SPELLINGS.split(' ') {
        let status = ask(path, &token).await;
        assert!([400, 404].contains(&status), "{path}: {status}");
    }
    for path in ["/shards/2/x", "/shards/%32/x", "/shards/2/a%2fb", "/shards/2//x"] {
        assert_eq!(ask(path, &token).await, 200, "{path}");
    }
    for path in ["/shards/3/x", "/shards/%33/x", "http://h/shards/3/x"] {
        assert_eq!(ask(path, &token).await, 412, "{path}");
    }
    drop(client);
    for recorded in scene.recorded().await {
        for message in messages(&recorded.bytes).0 {
            assert!(
                message.target.starts_with("/shards/2/") || message.target == "/shards/%32/x",
                "{message:?}"
            );
        }
    }
}
