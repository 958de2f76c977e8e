//! What a route changes of its requests and responses, over HTTP/1.1, HTTP/2 and in a tunnel.

use fencepost_tests::{Answer, Behaviour, Connection, EtcdVersion, Seen};

use crate::fencepost::Route;
use crate::frames::{Client, ask};
use crate::scene::{Ask, Scene};
use crate::store::Tenure;

/// A worker's shards behind `/api`, and what lies beside them.
async fn scene(more: &str) -> (Scene, Tenure) {
    let key = r#"key = "/shards/{shard}/lock""#;
    let shards = Route::new("shards", "/api/shards/{shard}/", key).with(more);
    let rest = Route::new("rest", "/api/", r#"key = "/k""#).with(more).with(r#"mode = "off""#);
    let scene = Scene::open(EtcdVersion::V3_5, &[shards, rest]).await;
    let tenure = scene.store.hold("/shards/2/lock", "shard-1").await;
    (scene, tenure)
}

/// The last request at the worker, once it has had so many.
async fn last(scene: &Scene, count: usize) -> Seen {
    scene.worker.wait_for(count).await.pop().unwrap()
}

fn target(seen: &Seen) -> String {
    let query = seen.query.as_ref().map(|query| format!("?{query}"));
    format!("{}{}", seen.path, query.unwrap_or_default())
}

#[tokio::test]
async fn stripped_path_is_judged_as_it_came() {
    let (scene, tenure) = scene("strip_prefix = \"/api\"").await;
    let Tenure { owner, revision } = &tenure;
    let token = format!("Fence-Owner: {owner}\r\nFence-Revision: {revision}");
    let mut count = 0;
    // `Some`: what the worker gets. A status: what the client gets in place of that.
    for (target, status, sent) in [
        ("/api/shards/2/", 200, "/shards/2/"),
        ("/api/shards/2/x?y=/api/&z", 200, "/shards/2/x?y=/api/&z"),
        ("/%61pi/%73hards/%32/x", 200, "/%73hards/%32/x"),
        ("http://test/api/shards/2/x", 200, "/shards/2/x"),
        ("/api/shards/2//x", 200, "/shards/2//x"),
        ("/api", 404, ""),
        ("/api/", 200, "/"),
        ("/api/?q", 200, "/?q"),
        ("/api/x//y", 200, "/x//y"),
        ("/apix", 404, ""),
        ("/shards/2/", 404, ""),
        ("/api/shards/3/", 412, ""),
        ("/API/shards/2/", 400, ""),
        ("/api%2fshards/2/", 400, ""),
        ("/api/shards%2f2/", 400, ""),
        ("/api//shards/2/", 400, ""),
        ("//api/shards/2/", 400, ""),
        ("/api/%2fshards/2/", 400, ""),
        ("/api/\\test/x", 400, ""),
        ("/api/%252fx", 400, ""),
        ("/api/x/../shards/3/", 400, ""),
        ("/api/%2e%2e/shards/3/", 400, ""),
        ("/api/..;/shards/3/", 400, ""),
    ] {
        let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
        let head = format!("GET {target} HTTP/1.1\r\nHost: test\r\n{token}\r\n\r\n");
        connection.send(head).await.unwrap();
        let answer = connection.response().await.unwrap();
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
        let over_http1 = !target.starts_with('h');
        let mut client = Client::open(&scene.fence.listener, &[]).await;
        if over_http1 {
            client.send(ask(1, "GET", target, &tenure)).await;
            assert_eq!(client.is_answered(1).await, status == 200, "{target} over HTTP/2");
        }
        if status == 200 {
            for _ in 0..1 + usize::from(over_http1) {
                count += 1;
                assert_eq!(self::target(&scene.worker.wait_for(count).await[count - 1]), sent);
            }
        }
        assert_eq!(scene.worker.seen().len(), count, "{target}");
    }
    scene.worker.on("/shards/2/tunnel", Behaviour::UpgradeAndEcho);
    let mut tunnel = Connection::open(scene.fence.listener.clone()).await.unwrap();
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket";
    let head =
        format!("GET /api/shards/2/tunnel HTTP/1.1\r\nHost: test\r\n{token}\r\n{upgrade}\r\n\r\n");
    tunnel.send(head).await.unwrap();
    assert_eq!(tunnel.head().await.unwrap().status, 101);
    drop(tunnel);
    scene.finish().await;
}

#[tokio::test]
async fn route_changes_fields_both_ways() {
    let (scene, tenure) = scene(
        r#"
        request_headers.set = { X-Role = "reader", Accept = "text/plain" }
        request_headers.add = { X-Tag = "b" }
        request_headers.remove = ["Cookie", "X-Script-Name"]
        response_headers.set = { Server = "hidden", X-Frame-Options = "DENY" }
        response_headers.add = { Vary = "Accept" }
        response_headers.remove = ["X-Powered-By"]
        upstream_host = "App.example:81"
        via = false
        "#,
    )
    .await;
    let told = Answer::ok("ok").header("server", "php").header("x-powered-by", "PHP");
    let told = told.header("vary", "Cookie").header("via", "1.1 worker");
    scene.worker.on("/api/shards/2/", Behaviour::Answer(told));
    let sent = Ask::post("/api/shards/2/").under(&tenure).header("X-Role", "admin");
    let sent = sent.header("X_Role", "admin").header("X-Tag", "a").header("Cookie", "c=1");
    let sent = sent.header("Connection", "x-role").header("Via", "1.1 before");
    let answer = scene.send(sent).await;
    let seen = last(&scene, 1).await;
    let field = |name| seen.header(name);
    assert_eq!(
        [field("x-role"), field("x_role"), field("cookie"), field("accept"), field("via")],
        [Some("reader"), None, None, Some("text/plain"), Some("1.1 before")]
    );
    assert_eq!(seen.headers.get_all("x-tag").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        [field("host"), field("x-forwarded-host")],
        [Some("app.example:81"), Some("localhost")]
    );
    let field = |name| answer.header(name);
    assert_eq!(
        [field("server"), field("x-frame-options"), field("x-powered-by"), field("via")],
        [Some("hidden"), Some("DENY"), None, Some("1.1 worker")]
    );
    assert_eq!(answer.headers.get_all("vary").iter().collect::<Vec<_>>(), ["Cookie", "Accept"]);
    let refused = scene.send(Ask::post("/api/shards/2/")).await;
    assert_eq!((refused.status, refused.header("x-frame-options")), (428, None));
    // Behind a body, too.
    let head = format!(
        "POST /api/shards/2/ HTTP/1.1\r\nHost: test\r\nFence-Owner: {}\r\nFence-Revision: {}\r\n\
         Transfer-Encoding: chunked\r\nTrailer: X-Role, X-Other\r\n\r\n",
        tenure.owner, tenure.revision
    );
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    connection.send(head + "1\r\nx\r\n0\r\nX-Role: admin\r\nX-Other: 1\r\n\r\n").await.unwrap();
    assert_eq!(connection.response().await.unwrap().status, 200);
    let trailers = last(&scene, 2).await.trailers;
    assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-other"]);
    scene.finish().await;
}

#[tokio::test]
async fn worker_may_get_its_own_name_as_host() {
    let (scene, tenure) = scene("upstream_host = \"upstream\"").await;
    scene.admits("/api/shards/2/", &tenure).await;
    let seen = last(&scene, 1).await;
    let worker = scene.worker.endpoint().to_string();
    assert_eq!(seen.header("host"), worker.strip_prefix("http://"));
    scene.finish().await;
}
