//! Who may claim to be whom, by the client certificate of the connection.

mod peer;

use fencepost_tests::{Authority, Claim, EtcdVersion, Issued, Response, Scratch, Subject};
use http::HeaderMap;
use rustls::HandshakeKind;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cli::Written;
use crate::fencepost::{Config, Fencepost, Route};
use crate::refusal::{assert_refused, assert_refused_grpc, reason};
use crate::scene::{Scene, assert_has};
use crate::store::Tenure;
use peer::{Http, Peer};

const LOCK: &str = "/k";

const BY_URI: &str = r#"identity = { uri = "spiffe://example.org/shard/{owner}" }"#;
const TAKEN: &str =
    r#"identity = { uri = "spiffe://example.org/shard/{owner}", take_owner = true }"#;

/// An authority, the certificate of a proxy, and both as files.
struct Pki {
    authority: Authority,
    files: Scratch,
}

impl Pki {
    fn new() -> Pki {
        let (authority, files) = (Authority::new("test authority"), Scratch::new());
        authority.issue_for_localhost().write(files.path(), "server");
        std::fs::write(files.path().join("ca.pem"), authority.certificate()).unwrap();
        Pki { authority, files }
    }

    /// A listener's TLS that asks for client certificates.
    fn listener(&self) -> String {
        let file = |name: &str| self.files.path().join(name).to_str().unwrap().to_owned();
        let (certificate, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
        format!(
            "tls = {{ certificate = {certificate:?}, key = {key:?}, client_ca = {ca:?}, client_certificates = \"optional\" }}"
        )
    }

    fn master(&self, shard: &str) -> Issued {
        self.named(&[&format!("spiffe://example.org/shard/{shard}")], None)
    }

    fn named(&self, names: &[&str], common_name: Option<&str>) -> Issued {
        self.authority.issue(&Subject { common_name, names, ..Subject::default() })
    }

    fn peer(&self, certificate: Option<&Issued>, http: Http) -> Peer {
        Peer::new(&self.authority, certificate, http)
    }

    async fn scene(&self, routes: &[Route]) -> Scene {
        Scene::with(EtcdVersion::V3_5, routes, |config| config.listener(&self.listener())).await
    }
}

fn guarded(identity: &str) -> Route {
    Route::k().with(identity)
}

/// Methods, paths and owners of what has reached the worker.
fn seen(scene: &Scene) -> Vec<(String, Option<String>)> {
    let seen = scene.worker.seen();
    seen.iter()
        .map(|one| (one.path.clone(), one.header("fence-owner").map(str::to_owned)))
        .collect()
}

fn token(tenure: &Tenure) -> [(&'static str, String); 2] {
    [("Fence-Owner", tenure.owner.clone()), ("Fence-Revision", tenure.revision.to_string())]
}

async fn post(
    scene: &Scene,
    peer: &Peer,
    path: &str,
    headers: &[(&'static str, String)],
) -> Response {
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    peer.send(&scene.fence.listener, "POST", path, &headers).await
}

/// Such a POST is refused for that reason.
async fn refuses<'a>(
    scene: &Scene,
    peer: &Peer,
    path: &str,
    headers: &[(&'static str, String)],
    reason: &str,
    lock: impl Into<Option<&'a str>>,
    present: impl Into<Option<&'a Tenure>>,
) {
    assert_refused(&post(scene, peer, path, headers).await, reason, lock, present);
}

#[tokio::test]
async fn a_certificate_of_one_shard_never_passes_for_another() {
    let pki = Pki::new();
    for (identity, names, common_names) in [
        (
            BY_URI,
            ["spiffe://example.org/shard/shard-1", "spiffe://example.org/shard/shard-2"],
            [None, None],
        ),
        (
            r#"identity = { dns = "{owner}.masters.example.org" }"#,
            ["shard-1.masters.example.org", "shard-2.masters.example.org"],
            [None, None],
        ),
        (
            r#"identity = { common_name = "{owner}" }"#,
            ["a.example", "b.example"],
            [Some("shard-1"), Some("shard-2")],
        ),
    ] {
        let scene = pki.scene(&[guarded(identity)]).await;
        let held = scene.store.hold(LOCK, "shard-1").await;
        let certificates = [0, 1].map(|index| pki.named(&[names[index]], common_names[index]));
        for http in [Http::One, Http::Two] {
            let [right, wrong] =
                certificates.each_ref().map(|certificate| pki.peer(Some(certificate), http));
            let nobody = pki.peer(None, http);
            let answer = post(&scene, &right, "/right", &token(&held)).await;
            assert_eq!(
                (answer.status, answer.text().as_str()),
                (200, "ok"),
                "{http:?}, {identity}"
            );
            for stranger in [&wrong, &nobody] {
                let answer = post(&scene, stranger, "/wrong", &token(&held)).await;
                assert_refused(&answer, "identity-mismatch", LOCK, &held);
                let mut call = token(&held).to_vec();
                call.push(("content-type", "application/grpc".to_owned()));
                assert_refused_grpc(
                    &post(&scene, stranger, "/wrong", &call).await,
                    "identity-mismatch",
                );
            }
            // Under its own name it is anybody.
            let own = Tenure::new("shard-2", held.revision);
            refuses(&scene, &wrong, "/wrong", &token(&own), "not-owner", LOCK, None).await;
        }
        assert_eq!(seen(&scene), vec![("/right".to_owned(), Some("shard-1".to_owned())); 2]);
        let series = r#"fencepost_requests_total{mode="enforce",reason="identity-mismatch",route="k",verdict="reject"}"#;
        assert_eq!(scene.fence.metric(series).await, 8.0);
        scene.finish().await;
    }
}

#[tokio::test]
async fn pinned_certificate_forging_an_owner_is_refused() {
    let pki = Pki::new();
    let named = |name| Subject { common_name: Some("master"), names: name, ..Subject::default() };
    let [one, two] =
        [&["spiffe://example.org/shard/shard-1"][..], &["spiffe://example.org/shard/shard-2"]];
    let pinned =
        [Claim::EndEntity, Claim::Nothing].map(|claim| Authority::claiming(claim, &named(two)));
    let trusted =
        [pki.authority.certificate(), pinned[0].certificate(), pinned[1].certificate()].concat();
    std::fs::write(pki.files.path().join("ca.pem"), trusted).unwrap();
    let scene = pki.scene(&[guarded(BY_URI)]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let right = pki.peer(Some(&pki.master("shard-1")), Http::One);
    for pinned in &pinned {
        let forger = pki.peer(Some(&pinned.issue(&named(one))), Http::One);
        assert!(forger.gets_nothing(&scene.fence.listener).await, "{}", scene.fence.log());
        // Itself it is, and no more.
        let itself = pki.peer(Some(&pinned.own()), Http::One);
        refuses(&scene, &itself, "/", &token(&held), "identity-mismatch", LOCK, &held).await;
        assert_eq!(post(&scene, &right, "/right", &token(&held)).await.status, 200);
    }
    let held = scene.store.hold(LOCK, "shard-2").await;
    for pinned in &pinned {
        let itself = pki.peer(Some(&pinned.own()), Http::One);
        assert_eq!(post(&scene, &itself, "/itself", &token(&held)).await.status, 200);
    }
    assert_eq!(seen(&scene).len(), 4);
    scene.finish().await;
}

#[tokio::test]
async fn a_wrong_identity_is_told_nothing_of_the_lock() {
    let pki = Pki::new();
    let shards = |identity| {
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#).with(identity)
    };
    for identity in [BY_URI, TAKEN] {
        let scene = pki.scene(&[shards(identity)]).await;
        let before = scene.store.hold("/shards/2/lock", "shard-1").await;
        let other = scene.store.hold("/shards/2/lock", "shard-3").await;
        let held = scene.store.hold("/shards/2/lock", "shard-1").await;
        let master = pki.peer(Some(&pki.master("shard-2")), Http::One);
        let stranger = pki.peer(
            Some(&pki.named(&["spiffe://example.org/other/shard-1"], Some("shard-1"))),
            Http::One,
        );
        let nobody = pki.peer(None, Http::One);
        // Each of them is asked while nothing is known of the lock and again when it has been read.
        let mut told = Vec::new();
        for round in ["unread", "read"] {
            for peer in [&master, &stranger, &nobody] {
                for revision in [
                    &[][..],
                    &[held.revision],
                    &[before.revision],
                    &[other.revision],
                    &[held.revision + 1_000_000],
                    &[0],
                    &[held.revision, held.revision],
                ] {
                    let mut headers = vec![("Fence-Owner", "shard-1".to_owned())];
                    headers.extend(
                        revision.iter().map(|revision| ("Fence-Revision", revision.to_string())),
                    );
                    told.push(post(&scene, peer, "/shards/2/x", &headers).await);
                }
            }
            if round == "unread" {
                assert_eq!(
                    scene.fence.metric(r#"fencepost_tracked_locks{source="main"}"#).await,
                    0.0
                );
                assert_eq!(confirms(&scene).await, 0.0);
                let right = pki.peer(Some(&pki.master("shard-1")), Http::One);
                assert_eq!(post(&scene, &right, "/shards/2/x", &token(&held)).await.status, 200);
            }
        }
        assert_refused(&told[0], "identity-mismatch", "/shards/2/lock", &held);
        for answer in &told {
            assert_eq!(comparable(answer), comparable(&told[0]));
        }
        assert_eq!(seen(&scene).len(), 1);
        scene.finish().await;
    }
}

async fn confirms(scene: &Scene) -> f64 {
    let text = scene.fence.admin("GET", "/metrics").await.text();
    let counts = text.lines().filter(|line| line.starts_with("fencepost_confirms_total{"));
    counts.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// An answer without what is new in each.
fn comparable(answer: &Response) -> (u16, HeaderMap, String) {
    let mut headers = answer.headers.clone();
    headers.remove("date");
    let decision = headers.remove("fence-decision").expect("a refusal has an id");
    let decision = decision.to_str().unwrap();
    // Ids grow longer.
    headers.remove("content-length");
    (answer.status, headers, answer.text().replace(decision, "ID"))
}

#[tokio::test]
async fn an_owner_taken_from_the_certificate_reaches_the_worker() {
    let pki = Pki::new();
    let scene = pki.scene(&[guarded(TAKEN)]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let revision = ("Fence-Revision", held.revision.to_string());
    let [one, two] = ["shard-1", "shard-2"].map(|shard| pki.master(shard));
    let both = pki
        .named(&["spiffe://example.org/shard/shard-1", "spiffe://example.org/shard/shard-2"], None);
    for http in [Http::One, Http::Two] {
        let [one, two, both] =
            [&one, &two, &both].map(|certificate| pki.peer(Some(certificate), http));
        for headers in [&[revision.clone()][..], &token(&held)] {
            assert_eq!(post(&scene, &one, "/right", headers).await.status, 200, "{headers:?}");
            refuses(&scene, &both, "/wrong", headers, "identity-mismatch", LOCK, &held).await;
        }
        refuses(&scene, &two, "/wrong", std::slice::from_ref(&revision), "not-owner", LOCK, None)
            .await;
        refuses(&scene, &two, "/wrong", &token(&held), "identity-mismatch", LOCK, &held).await;
        let other = Tenure::new("shard-2", held.revision);
        refuses(&scene, &one, "/wrong", &token(&other), "identity-mismatch", LOCK, &held).await;
        refuses(&scene, &one, "/wrong", &[], "token-missing", LOCK, &held).await;
        let twice = [&token(&held)[..], &[("fence-owner", "shard-1".to_owned())]].concat();
        refuses(&scene, &one, "/wrong", &twice, "token-malformed", LOCK, &held).await;
        // What a worker behind CGI would take for ours is not beside it.
        let folded = [
            revision.clone(),
            ("Fence_Owner", "shard-2".to_owned()),
            ("fence.owner", "shard-2".to_owned()),
        ];
        assert_eq!(post(&scene, &one, "/right", &folded).await.status, 200);
    }
    assert_eq!(seen(&scene), vec![("/right".to_owned(), Some("shard-1".to_owned())); 6]);
    let folds = |name: &http::HeaderName| name.as_str().contains(['_', '.']);
    assert!(!scene.worker.seen().iter().any(|one| one.headers.keys().any(folds)));
    // The worker may name its own header.
    let named = guarded(TAKEN).with(r#"owner_header = "X-Master""#);
    scene.fence.reloads(&scene.config.clone().routes(&[named])).await;
    let headers = [revision, ("Fence-Owner", "shard-2".to_owned())];
    assert_eq!(
        post(&scene, &pki.peer(Some(&one), Http::One), "/named", &headers).await.status,
        200
    );
    let seen = scene.worker.seen().pop().unwrap();
    assert_eq!((seen.header("x-master"), seen.header("fence-owner")), (Some("shard-1"), None));
    scene.finish().await;
}

#[tokio::test]
async fn the_fence_call_asks_for_the_identity_of_the_named_lock() {
    let pki = Pki::new();
    let call = "/.well-known/fence";
    let taken = Route::new("taken", "/taken/", r#"key = "/taken""#).with(TAKEN);
    let scene = pki.scene(&[guarded(BY_URI), taken]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let taken = scene.store.hold("/taken", "shard-1").await;
    let lock = |name: &str| ("Fence-Lock", name.to_owned());
    for http in [Http::One, Http::Two] {
        let [one, two] =
            ["shard-1", "shard-2"].map(|shard| pki.peer(Some(&pki.master(shard)), http));
        let nobody = pki.peer(None, http);
        let headers = [&token(&held)[..], &[lock(LOCK)]].concat();
        for stranger in [&two, &nobody] {
            refuses(&scene, stranger, call, &headers, "identity-mismatch", LOCK, &held).await;
            // Whatever the token is worth.
            refuses(&scene, stranger, call, &headers[..1], "lock-not-allowed", None, &held).await;
            let revision = ("Fence-Revision", "1".to_owned());
            let stale = [headers[0].clone(), revision, lock(LOCK)];
            refuses(&scene, stranger, call, &stale, "identity-mismatch", LOCK, &held).await;
        }
        assert_eq!(post(&scene, &one, call, &headers).await.status, 204);
        let headers = [("Fence-Revision", taken.revision.to_string()), lock("/taken")];
        assert_eq!(post(&scene, &one, call, &headers).await.status, 204);
        refuses(&scene, &two, call, &headers, "not-owner", "/taken", None).await;
        refuses(&scene, &nobody, call, &headers, "identity-mismatch", "/taken", &taken).await;
    }
    assert!(seen(&scene).is_empty());
    scene.finish().await;
}

#[tokio::test]
async fn what_an_identity_would_refuse_is_recorded_in_shadow_mode() {
    let pki = Pki::new();
    let watching = guarded(BY_URI)
        .with("mode = \"shadow\"\nverdict_header = true\nexempt_methods = [\"GET\"]");
    let scene = pki.scene(&[watching]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    scene.until_known(LOCK, Some("shard-1")).await;
    let [one, two] =
        ["shard-1", "shard-2"].map(|shard| pki.peer(Some(&pki.master(shard)), Http::One));
    let right = post(&scene, &one, "/right", &token(&held)).await;
    assert_eq!((right.status, right.header("fence-verdict")), (200, Some("admit")));
    let wrong = post(&scene, &two, "/wrong", &token(&held)).await;
    assert_eq!((wrong.status, wrong.header("fence-verdict")), (200, Some("reject")));
    assert_eq!(reason(&wrong), Some("identity-mismatch"));
    let exempt = pki.peer(None, Http::One).send(&scene.fence.listener, "GET", "/exempt", &[]).await;
    assert_eq!((exempt.status, exempt.header("fence-verdict")), (200, Some("pass")));
    // What is only watched is forwarded as it came.
    let owners = seen(&scene).into_iter().map(|(_, owner)| owner).collect::<Vec<_>>();
    assert_eq!(owners, [Some("shard-1".to_owned()), Some("shard-1".to_owned()), None]);
    let report = scene.fence.admin_json("/shadow").await;
    let expected = json!({ "reason": "identity-mismatch", "owner": "shard-1", "count": 1 });
    assert_has(&report["routes"][0]["refusals"][0], expected);
    let decision = scene.decision(&wrong).await;
    assert_has(
        &decision,
        json!({ "reason": "identity-mismatch", "forwarded": true, "owner": "shard-1" }),
    );
    let peer = "uri:spiffe://example.org/shard/shard-2";
    assert_has(&decision, json!({ "revision": held.revision, "peer": peer }));
    scene.finish().await;
}

#[tokio::test]
async fn exempt_methods_and_routes_that_are_off_need_no_identity() {
    let pki = Pki::new();
    let off = Route::new("off", "/off/", r#"key = "/off""#).with(BY_URI).with(r#"mode = "off""#);
    let scene = pki.scene(&[off, guarded(BY_URI).with(r#"exempt_methods = ["GET"]"#)]).await;
    scene.store.hold(LOCK, "shard-1").await;
    let nobody = pki.peer(None, Http::One);
    for (method, path, status) in [("POST", "/off/x", 200), ("GET", "/x", 200), ("POST", "/x", 403)]
    {
        let answer = nobody.send(&scene.fence.listener, method, path, &[]).await;
        assert_eq!(answer.status, status, "{method} {path}");
    }
    // What asks for another protocol is never exempt.
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    let answer = nobody.send(&scene.fence.listener, "GET", "/x", &upgrade).await;
    assert_refused(&answer, "identity-mismatch", LOCK, None);
    assert_eq!(seen(&scene).len(), 2);
    scene.finish().await;
}

#[tokio::test]
async fn an_identity_is_its_connections_and_none_is_resumed() {
    let pki = Pki::new();
    let scene = pki.scene(&[guarded(BY_URI)]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let tokens = token(&held);
    let headers: Vec<(&str, &str)> =
        tokens.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let listener = &scene.fence.listener;
    for http in [Http::One, Http::Two] {
        for version in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
            let [one, two] = ["shard-1", "shard-2"].map(|shard| pki.master(shard));
            let [one, two, nobody] = [Some(&one), Some(&two), None]
                .map(|certificate| Peer::speaking(&pki.authority, certificate, http, version));
            for _ in 0..2 {
                let mut lines = Vec::new();
                for (peer, status) in [(&one, 200), (&two, 403), (&nobody, 403), (&one, 200)] {
                    let line = peer.connect(listener).await.unwrap();
                    lines.push((line, status));
                    let (line, status) = lines.last_mut().unwrap();
                    assert_eq!(line.send("POST", "/", &headers).await.status, *status);
                }
                // However their requests come among those of the others.
                for _ in 0..3 {
                    for (line, status) in &mut lines {
                        assert_eq!(
                            line.send("POST", "/", &headers).await.status,
                            *status,
                            "{http:?}"
                        );
                    }
                }
                let all_full = lines.iter().all(|(line, _)| line.handshake == HandshakeKind::Full);
                assert!(all_full, "{http:?} over {version:?}");
            }
        }
    }
    scene.finish().await;
}

#[tokio::test]
async fn a_wrong_identity_is_refused_when_its_route_enforces() {
    let pki = Pki::new();
    let log = Scratch::new();
    let access_log = format!("[access_log]\npath = {:?}", log.path().join("access.log"));
    for lock in [r#"key = "/k""#, r#"key = "/{name}""#] {
        let route = |mode: &str| {
            Route::new("k", "/{name}/", lock).with(BY_URI).with(&format!("mode = {mode:?}"))
        };
        let listener = pki.listener();
        let scene = Scene::with(EtcdVersion::V3_5, &[route("shadow")], |config| {
            config.listener(&listener).section(&access_log)
        })
        .await;
        let held = scene.store.hold(LOCK, "shard-1").await;
        // Each has a body that is not whole yet: nothing of it can have gone out.
        let mut clients = Vec::new();
        for shard in ["shard-1", "shard-2"] {
            let peer = pki.peer(Some(&pki.master(shard)), Http::One);
            let mut client = peer.stream(&scene.fence.listener).await.unwrap();
            let head = format!(
                "POST /k/{shard} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nFence-Owner: shard-1\r\nFence-Revision: {}\r\nContent-Length: 5\r\n\r\nwr",
                held.revision
            );
            client.write_all(head.as_bytes()).await.unwrap();
            clients.push(client);
        }
        scene.until_metric(r#"fencepost_in_flight{route="k"}"#, 2.0).await;
        scene.fence.reloads(&scene.config.clone().routes(&[route("enforce")])).await;
        // Each thread has met the change.
        for _ in 0..8 {
            let nobody = pki.peer(None, Http::One);
            refuses(&scene, &nobody, "/k/nobody", &token(&held), "identity-mismatch", LOCK, &held)
                .await;
        }
        let mut answers = Vec::new();
        for client in &mut clients {
            client.write_all(b"ite").await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answers.push(answer);
        }
        let is_refused = answers[1].starts_with("HTTP/1.1 403 ")
            && answers[1].contains("reason: identity-mismatch");
        assert!(answers[0].starts_with("HTTP/1.1 200 ") && is_refused, "{answers:?}");
        assert_eq!(seen(&scene), [("/k/shard-1".to_owned(), Some("shard-1".to_owned()))]);
        scene.finish().await;
    }
}

#[tokio::test]
async fn an_identity_without_client_certificates_refuses_to_start() {
    let pki = Pki::new();
    let config =
        Config::new(&["http://127.0.0.1:9".to_owned()], "http://127.0.0.1:9", &[guarded(BY_URI)]);
    let without_ca = pki.listener().split(", client_ca").next().unwrap().to_owned() + " }";
    for config in [config.clone(), config.clone().listener(&without_ca)] {
        let (code, said) = Fencepost::end_of(&config).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("route.k.identity: ") && said.contains("127.0.0.1:0"), "{said}");
    }
    let file = Written::new(&config.listener(&pki.listener()).toml());
    assert!(!file.ask("check").await.ended(0).stdout.contains("identity"));
}

#[tokio::test]
async fn a_reload_changes_who_is_asked_for_what() {
    let pki = Pki::new();
    let scene = pki.scene(&[guarded("")]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let [one, two] =
        ["shard-1", "shard-2"].map(|shard| pki.peer(Some(&pki.master(shard)), Http::Two));
    let mut line = two.connect(&scene.fence.listener).await.unwrap();
    let revision = held.revision.to_string();
    let headers = [("fence-owner", "shard-1"), ("fence-revision", revision.as_str())];
    assert_eq!(line.send("POST", "/", &headers).await.status, 200);
    scene.fence.reloads(&scene.config.clone().routes(&[guarded(BY_URI)])).await;
    // On the connection that was open before.
    assert_refused(&line.send("POST", "/", &headers).await, "identity-mismatch", LOCK, &held);
    assert_eq!(post(&scene, &one, "/", &token(&held)).await.status, 200);
    scene.fence.reloads(&scene.config.clone().routes(&[guarded(TAKEN)])).await;
    assert_eq!(one.send(&scene.fence.listener, "POST", "/", &headers[1..]).await.status, 200);
    scene.fence.reloads(&scene.config.clone().routes(&[guarded("")])).await;
    assert_eq!(line.send("POST", "/", &headers).await.status, 200);
    scene.finish().await;
}

#[tokio::test]
async fn what_an_identity_comes_to_is_explained() {
    let pki = Pki::new();
    let scene = pki.scene(&[guarded(TAKEN)]).await;
    let held = scene.store.hold(LOCK, "shard-1").await;
    let (file, revision) = (Written::new(&scene.config.toml()), held.revision);
    let explain = async |more: &str| {
        file.ask(format!("explain --revision {revision} {more}")).await.ended(0).stdout
    };
    let [one, two] = ["shard-1", "shard-2"]
        .map(|shard| format!("--peer-uri spiffe://example.org/shard/{shard}"));
    let said = explain(&one).await;
    assert!(said.starts_with("route k (enforce): admitted\n"), "{said}");
    let proves =
        "certificate, uri:spiffe://example.org/shard/shard-1, names shard-1: uri = \"spiffe://";
    assert!(said.contains(proves), "{said}");
    for refused in
        ["", "--peer-cn shard-1", &format!("{one} --owner shard-2"), &format!("{one} {two}")]
    {
        let said = explain(refused).await;
        assert!(
            said.starts_with("route k (enforce): refused: 403 identity-mismatch\n"),
            "{refused}: {said}"
        );
    }
    let said = serde_json::from_str(&explain(&format!("{two} --json")).await).unwrap();
    assert_has(&said, json!({ "reason": "not-owner", "owner": "shard-2", "proved": ["shard-2"] }));
    scene.finish().await;
}
