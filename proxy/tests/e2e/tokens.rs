//! Requests whose token, or whose lock, can't be told.

use fencepost_tests::{Answer, Behaviour, EtcdVersion};

use crate::fence_call::call;
use crate::fencepost::Route;
use crate::refusal::assert_refused;
use crate::scene::{Ask, Scene};

fn one_lock() -> [Route; 1] {
    [Route::new("one", "/", r#"key = "/one/lock""#)]
}

#[tokio::test]
async fn half_a_token_is_none() {
    let scene = Scene::open(EtcdVersion::V3_4, &one_lock()).await;
    let held = scene.store.hold("/one/lock", "shard-1").await;
    let revision = held.revision.to_string();
    for ask in [
        Ask::post("/"),
        Ask::post("/").header("Fence-Owner", "shard-1"),
        Ask::post("/").header("Fence-Revision", &revision),
        Ask::post("/").header("Owner", "shard-1").header("Revision", &revision),
        Ask::post("/").method("GET"),
    ] {
        assert_refused(&scene.send(ask).await, "token-missing", "/one/lock", &held);
    }
    scene.admits("/", &held).await;
    scene.finish().await;
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_malformed() {
    let scene = Scene::open(EtcdVersion::V3_5, &one_lock()).await;
    let held = scene.store.hold("/one/lock", "shard-1").await;
    let revision = held.revision.to_string();
    let spellings = "0|0R|+R|-R|R.0|R,R|R R|0xR|Re0|\"R\"||x|9223372036854775808|99999999999999999999999999999999";
    for spelling in spellings.split('|') {
        let spelling = spelling.replace('R', &revision);
        let answer = scene.send(Ask::post("/").token("shard-1", &spelling)).await;
        assert_refused(&answer, "token-malformed", "/one/lock", &held);
    }
    let good = || Ask::post("/").token("shard-1", &revision);
    for (name, value) in [
        ("Fence-Owner", "shard-1"),
        ("Fence-Owner", "shard-2"),
        ("fence-revision", revision.as_str()),
        ("fence-revision", "1"),
        ("Connection", "Fence-Owner"),
        ("Connection", "keep-alive, fence-REVISION"),
    ] {
        assert_refused(
            &scene.send(good().header(name, value)).await,
            "token-malformed",
            "/one/lock",
            &held,
        );
    }
    assert_eq!(scene.send(good()).await.status, 200);
    scene.finish().await;
}

#[tokio::test]
async fn a_path_that_names_no_lock_goes_nowhere() {
    let routes = [
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
        Route::new("rest", "/", r#"key = "/rest/lock""#),
    ];
    let scene = Scene::open(EtcdVersion::V3_4, &routes).await;
    let held = scene.store.hold("/shards/2/lock", "shard-1").await;
    let rest = scene.store.hold("/rest/lock", "shard-1").await;
    let long = format!("/shards/{}/", "x".repeat(1100));
    let paths = "/shards/../records /shards/./records /shards/%2e%2e/records /shards/%2E/records \
        /shards/a%2fb/records /shards/a%2Fb/records /shards/a%5cb/records \
        /shards/a%00/records /shards/a%zz/records /shards/a%252fb/records \
        /shards/a;b/records /shards/a%20b/records /shards/a,b/records \
        /shards/%C3%BC/records /shards//records /shards/2/../3/records /SHARDS/2/records";
    for path in paths.split(' ').chain([long.as_str()]) {
        scene.refuses(path, &held, "lock-not-allowed", None, &held).await;
        scene.refuses(path, &rest, "lock-not-allowed", None, &rest).await;
    }
    // One spelling of the same segment is another lock, or the same: never the wrong one.
    scene.admits("/shards/2/records", &held).await;
    scene.admits("/shards/%32/records", &held).await;
    scene.admits("/shards/2/", &held).await;
    scene.admits("/shards/2/a%2Fb//c;d", &held).await;
    scene.refuses("/shards/3/", &held, "no-owner", "/shards/3/lock", &held).await;
    scene.admits("/anything", &rest).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_lock_of_other_characters_may_be_percent_encoded() {
    let routes = [
        Route::new(
            "named",
            "/named/{shard}/",
            r#"key = "/ü x/{shard}/{name}", from_header = true"#,
        ),
        Route::new("other", "/other/", r#"key = "/ä/lock""#),
    ];
    let scene = Scene::open(EtcdVersion::V3_5, &routes).await;
    let held = scene.store.hold("/ü x/2/a", "shard-1").await;
    let other = scene.store.hold("/ä/lock", "shard-1").await;
    let named = |lock: &str| Ask::post("/named/2/x").under(&held).header("Fence-Lock", lock);
    for lock in ["/ü x/2/a", "/%C3%BC%20x/2/a"] {
        assert_eq!(scene.send(named(lock)).await.status, 200, "{lock}");
        assert_eq!(call(&scene, &held, Some(lock)).await.status, 204, "{lock}");
    }
    for lock in ["/ä/lock", "/%C3%A4/lock"] {
        assert_eq!(call(&scene, &other, Some(lock)).await.status, 204, "{lock}");
    }
    for lock in
        ["/%c3%bc%20x/2/a", "/ü%20x/2/a", "/%C3%BC%20x/3/a", "/%C3%BC%20x/2/%61", "/%C3%BC+x/2/a"]
    {
        assert_refused(&scene.send(named(lock)).await, "lock-not-allowed", None, &held);
    }
    scene.finish().await;
}

#[tokio::test]
async fn a_caller_may_name_only_locks_of_the_route() {
    let routes = [
        Route::new("named", "/named/", r#"key = "/named/{name}/lock", from_header = true"#),
        Route::new(
            "bound",
            "/bound/{shard}/",
            r#"key = "/bound/{shard}/{part}", from_header = true"#,
        ),
    ];
    let scene = Scene::open(EtcdVersion::V3_5, &routes).await;
    let held = scene.store.hold("/named/a/lock", "shard-1").await;
    let foreign = scene.store.hold("/foreign/lock", "shard-1").await;
    let named = |lock: &str| Ask::post("/named/x").under(&held).header("Fence-Lock", lock);
    assert_eq!(scene.send(named("/named/a/lock")).await.status, 200);
    let unnamed = scene.send(Ask::post("/named/x").under(&held)).await;
    assert_refused(&unnamed, "token-missing", None, &held);
    assert!(
        unnamed.text().contains("Name the lock that you hold in Fence-Lock"),
        "{}",
        unnamed.text()
    );
    let tokenless = scene.send(Ask::post("/named/x").header("Fence-Lock", "/named/a/lock")).await;
    assert_refused(&tokenless, "token-missing", "/named/a/lock", None);
    assert!(tokenless.text().contains("in fence-owner and fence-revision"), "{}", tokenless.text());
    let half =
        Ask::post("/named/x").header("Fence-Lock", "/named/a/lock").header("Fence-Owner", "a");
    let half = scene.send(half).await;
    assert!(half.text().contains("fence-revision is missing: send"), "{}", half.text());
    let foreign_locks = "|/foreign/lock|/named//lock|/named/a/b/lock|/named/../lock|/named/a/lock/|named/a/lock|\
        /named/a%2flock/lock|/named/a b/lock|/named/ü/lock";
    for lock in foreign_locks.split('|') {
        assert_refused(&scene.send(named(lock)).await, "lock-not-allowed", None, &held);
    }
    let foreign = Ask::post("/named/x").under(&foreign).header("Fence-Lock", "/foreign/lock");
    assert_refused(&scene.send(foreign).await, "lock-not-allowed", None, None);
    let twice = named("/named/a/lock").header("Fence-Lock", "/named/a/lock");
    assert_refused(&scene.send(twice).await, "token-malformed", None, &held);
    let nominated = named("/named/a/lock").header("Connection", "fence-lock");
    assert_refused(&scene.send(nominated).await, "token-malformed", None, &held);
    let other = named("/named/b/lock");
    assert_refused(&scene.send(other).await, "no-owner", "/named/b/lock", &held);

    // What the path says binds what the caller may name.
    let part = scene.store.hold("/bound/2/p", "shard-1").await;
    let bound = |path: &str| Ask::post(path).under(&part).header("Fence-Lock", "/bound/2/p");
    assert_eq!(scene.send(bound("/bound/2/")).await.status, 200);
    assert_refused(&scene.send(bound("/bound/3/")).await, "lock-not-allowed", None, &part);
    scene.finish().await;
}

#[tokio::test]
async fn owners_are_bytes_and_may_be_presented_percent_encoded() {
    let scene = Scene::open(EtcdVersion::V3_4, &one_lock()).await;
    for (stored, presented, not) in [
        (&b"shard 1"[..], &["shard 1", "shard%201"][..], &["shard+1", "shard1", "shard"][..]),
        ("schärd".as_bytes(), &["sch%C3%A4rd", "schärd", "sch%c3%a4rd"], &["sch\u{e4}"]),
        (&[0, 255, b'\n'], &["%00%FF%0A", "%00%ff%0a"], &["%00%FF"]),
        (b"100%", &["100%", "100%25"], &["100%2525"]),
        (b"", &[""], &["-"]),
    ] {
        let revision = scene.store.put("/one/lock", stored).await.to_string();
        for owner in presented {
            let answer = scene.send(Ask::post("/").token(owner, &revision)).await;
            assert_eq!(answer.status, 200, "{stored:?} as {owner:?}: {}", answer.text());
        }
        for owner in not {
            let answer = scene.send(Ask::post("/").token(owner, &revision)).await;
            assert_refused(&answer, "not-owner", "/one/lock", None);
        }
    }
    scene.finish().await;
}

#[tokio::test]
async fn a_route_may_have_its_own_headers_status_and_exempt_methods() {
    let route = Route::new("one", "/", r#"key = "/one/lock""#)
        .with(r#"owner_header = "X-Master""#)
        .with(r#"revision_header = "X-Term""#)
        .with("stale_status = 409")
        .with(r#"exempt_methods = ["GET"]"#);
    let scene = Scene::open(EtcdVersion::V3_5, &[route]).await;
    let held = scene.store.hold("/one/lock", "shard-1").await;
    let mine = |owner: &str, revision: i64| {
        Ask::post("/").header("X-Master", owner).header("x-term", &revision.to_string())
    };
    assert_eq!(scene.send(mine("shard-1", held.revision)).await.status, 200);
    assert_eq!(scene.send(Ask::post("/").method("GET")).await.status, 200);
    scene.refuses("/", &held, "token-missing", "/one/lock", &held).await;
    let stale = scene.send(mine("shard-2", held.revision - 1)).await;
    assert_eq!((stale.status, stale.header("fence-reason")), (409, Some("stale-tenure")));
    scene.finish().await;
}

#[tokio::test]
async fn an_unjudged_token_does_not_reach_an_enforced_worker() {
    let locks = [r#"key = "/one/lock""#, r#"key = "/one/{name}", from_header = true"#];
    let names = r#"owner_header = "X-Master""#;
    for lock in locks {
        let route = Route::new("one", "/", lock).with(names).with(r#"exempt_methods = ["GET"]"#);
        let scene = Scene::open(EtcdVersion::V3_5, &[route]).await;
        scene.store.hold("/one/lock", "shard-1").await;
        let more = [("X_Master", "shard-3"), ("Fence-Revision", "999999999"), ("X-Kept", "1")];
        let forged = [("X-Master", "shard-1"), ("X-Master", "shard-2")].into_iter().chain(more);
        let get = Ask::post("/").method("GET");
        let forged = forged.fold(get, |ask, (name, value)| ask.header(name, value));
        assert_eq!(scene.send(forged.header("Fence-Lock", "/one/lock")).await.status, 200);
        let seen = scene.worker.seen().pop().unwrap();
        for name in ["x-master", "x_master", "fence-revision", "fence-lock"] {
            assert_eq!(seen.header(name), None, "{name}");
        }
        assert_eq!(seen.header("x-kept"), Some("1"));
        scene.finish().await;
    }
}

#[tokio::test]
async fn a_request_that_may_mean_another_method_is_not_exempt() {
    let route =
        Route::new("one", "/", r#"key = "/one/lock""#).with(r#"exempt_methods = ["GET", "HEAD"]"#);
    let scene = Scene::open(EtcdVersion::V3_5, &[route]).await;
    let held = scene.store.hold("/one/lock", "shard-1").await;
    for name in
        ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X_HTTP_Method_Override"]
    {
        for method in ["GET", "HEAD"] {
            let overridden = || Ask::post("/").method(method).header(name, "DELETE");
            let answer = scene.send(overridden()).await;
            assert_eq!(
                (answer.status, answer.header("fence-reason")),
                (428, Some("token-missing")),
                "{method} {name}"
            );
            assert_eq!(scene.send(overridden().under(&held)).await.status, 200, "{method} {name}");
            assert_eq!(
                scene.worker.seen().pop().unwrap().header(&name.to_lowercase()),
                Some("DELETE")
            );
        }
    }
    assert_eq!(
        scene.send(Ask::post("/").method("GET").header("X-HTTP-Methods", "DELETE")).await.status,
        200
    );
    // Some workers leave a body unread that has no meaning, and take it for the next request.
    for method in ["GET", "HEAD"] {
        let hiding = || Ask::post("/").method(method).body(b"DELETE / HTTP/1.1\r\n\r\n");
        let answer = scene.send(hiding()).await;
        assert_eq!(
            (answer.status, answer.header("fence-reason")),
            (428, Some("token-missing")),
            "{method}"
        );
        assert_eq!(scene.send(hiding().under(&held)).await.status, 200, "{method}");
    }
    for (protocol, expected) in
        [("websocket", 428), ("h2c, WebSocket", 428), ("h2c", 200), ("websocket2", 200)]
    {
        let read = Ask::post("/")
            .method("GET")
            .header("Connection", "Upgrade")
            .header("Upgrade", protocol);
        assert_eq!(scene.send(read).await.status, expected, "{protocol}");
        if expected == 200 {
            assert_eq!(scene.worker.seen().pop().unwrap().header("upgrade"), None, "{protocol}");
        }
    }
    let overriding = "_method=DELETE a=1&%5Fmethod=DELETE a=1;_METHOD=DELETE +.method%00x[]=DELETE \
        x-http-method-override=PUT X%2dHTTP%2dMethod";
    for (expected, queries) in [(428, overriding), (200, "payment_method=x&method=y a=_method")] {
        for query in queries.split_whitespace() {
            let answer = scene.send(Ask::post(&format!("/?{query}")).method("GET")).await;
            assert_eq!(answer.status, expected, "{query}");
        }
    }
    scene.finish().await;
}

#[tokio::test]
async fn the_worker_gets_the_token_and_nothing_else_like_fencing() {
    let open = Route::new("open", "/open/", r#"key = "/one/lock""#).with(r#"mode = "off""#);
    let [locked] = one_lock();
    let scene = Scene::open(EtcdVersion::V3_4, &[open, locked]).await;
    let held = scene.store.hold("/one/lock", "shard-1").await;
    let answer = Answer::ok("done")
        .header("fence-reason", "stale-tenure")
        .header("fence-floor", "7")
        .header("x-kept", "1");
    scene.worker.on("/fenced", Behaviour::Answer(answer));
    let headers =
        "Fence-Verdict:admit Fence-Lock:/other Connection:x-private X-Private:1 X-Public:2";
    let headers = headers.split(' ').map(|header| header.split_once(':').unwrap());
    let ask = headers
        .fold(Ask::post("/fenced?q=1").under(&held), |ask, (name, value)| ask.header(name, value));
    let elsewhere = "x-original-url x_rewrite_url script_name script-name x-script-name path.info";
    let elsewhere = elsewhere.split(' ').collect::<Vec<_>>();
    let leading_past =
        |ask: Ask| elsewhere.iter().fold(ask, |ask, name| ask.header(name, "/fenced"));
    let answer = scene.send(leading_past(ask)).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "done"));
    assert_eq!(answer.header("x-kept"), Some("1"));
    assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("fence-")), "{answer:?}");

    let seen = scene.worker.seen().pop().unwrap();
    assert_eq!((seen.path.as_str(), seen.query.as_deref()), ("/fenced", Some("q=1")));
    assert_eq!(seen.header("fence-owner"), Some("shard-1"));
    assert_eq!(seen.header("fence-revision"), Some(held.revision.to_string().as_str()));
    assert_eq!((seen.header("fence-verdict"), seen.header("x-private")), (None, None));
    assert_eq!(seen.header("x-public"), Some("2"));
    assert_eq!(seen.header("via"), Some("1.1 fencepost"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("localhost"));
    assert_eq!(seen.text(), "write");

    // Nor by a route without a lock to the worker of one that has.
    assert_eq!(scene.send(leading_past(Ask::post("/open/"))).await.status, 200);
    for seen in [seen, scene.worker.seen().pop().unwrap()] {
        for name in &elsewhere {
            assert_eq!(seen.header(name), None, "{name}");
        }
    }
    scene.finish().await;
}
