//! Targets with bytes that a URI has percent-encoded, and the target of `OPTIONS *`.

use fencepost_tests::{Connection, EtcdVersion, request};

use crate::fencepost::Route;
use crate::frames::{Client, ask};
use crate::scene::Scene;

/// The status for a request of this line, under the token of shard 2.
async fn status(scene: &Scene, revision: i64, line: &[u8]) -> u16 {
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    let token = format!("Fence-Owner: shard-1\r\nFence-Revision: {revision}");
    let head = format!(" HTTP/1.1\r\nHost: h\r\n{token}\r\n\r\n");
    connection.send([line, head.as_bytes()].concat()).await.unwrap();
    connection.final_response().await.unwrap().status
}

#[tokio::test]
async fn odd_bytes_of_a_target_reach_the_worker_encoded() {
    let key = r#"key = "/shards/{shard}/lock""#;
    let routes = [
        Route::new("shards", "/shards/{shard}/", key),
        Route::new("open", "/open\u{e9}/", r#"key = "/k""#).with(r#"mode = "off""#),
    ];
    let scene = Scene::open(EtcdVersion::V3_5, &routes).await;
    let tenure = scene.store.hold("/shards/2/lock", "shard-1").await;
    let mut count = 0;
    for (target, expected, sent) in [
        (&b"/shards/2/\"<>`"[..], 200, "/shards/2/%22%3C%3E%60"),
        (b"/shards/2/?\"<>`", 200, "/shards/2/?%22%3C%3E%60"),
        (b"/shards/2/{|}^\\?{|}^\\", 200, "/shards/2/{|}^\\?{|}^\\"),
        (b"/shards/2/\xc3\xa9?\xc3\xa9", 200, "/shards/2/%C3%A9?%C3%A9"),
        (b"/shards/2/\xe9\x80\xff?\xa0", 200, "/shards/2/%E9%80%FF?%A0"),
        (b"http://h/shards/2/<", 200, "/shards/2/%3C"),
        (b"/open\xc3\xa9/>", 200, "/open%C3%A9/%3E"),
        // Of a lock that nobody holds; what stands for it is not ASCII; what none can read.
        (b"/shards/3/<", 412, ""),
        (b"/shards/<2/", 400, ""),
        (b"/shards/2\xc3\xa9/", 400, ""),
        (b"/shards/2/\xc0\xae\xc0\xae/", 400, ""),
        (b"/shards/2/%\xe9", 400, ""),
        (b"/shards/2/..\\<", 400, ""),
        (b"<", 400, ""),
        (b"http://h<", 400, ""),
        (b"/shards/2/\x09", 400, ""),
        (b"/shards/2/\x7f", 400, ""),
        (b"/shards/2/ x", 400, ""),
        (b"/shards/2/#x", 400, ""),
    ] {
        let shown = target.escape_ascii();
        let answered = status(&scene, tenure.revision, &[b"GET ", target].concat()).await;
        assert_eq!(answered, expected, "{shown}");
        count += usize::from(expected == 200);
        let seen = scene.worker.seen();
        assert_eq!(seen.len(), count, "{shown}");
        if let Some(last) = seen.last().filter(|_| expected == 200) {
            let query = last.query.as_ref().map_or(String::new(), |query| format!("?{query}"));
            assert_eq!(format!("{}{query}", last.path), sent);
        }
    }
    // h2 resets the stream, and the connection goes on.
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    for (stream, path, is_answered) in
        [(1, "/shards/2/<", false), (3, "/shards/2/?\"", false), (5, "/shards/2/{\u{e9}}", true)]
    {
        client.send(ask(stream, "GET", path, &tenure)).await;
        assert_eq!(client.is_answered(stream).await, is_answered, "{path}");
    }
    scene.finish().await;
}

#[tokio::test]
async fn options_of_the_server_go_to_the_route_of_all_paths() {
    let routes = [
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
        Route::new("rest", "/", r#"key = "/k""#).with(r#"mode = "off""#),
    ];
    let scene = Scene::open(EtcdVersion::V3_5, &routes).await;
    assert_eq!(status(&scene, 1, b"OPTIONS *").await, 200);
    assert_eq!(status(&scene, 1, b"GET *").await, 400);
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    client.send(ask(1, "OPTIONS", "*", &tenure)).await;
    assert!(client.is_answered(1).await);
    let seen = scene.worker.seen();
    let seen: Vec<_> = seen.iter().map(|seen| (&*seen.method, &*seen.path)).collect();
    assert_eq!(seen, [("OPTIONS", "*"); 2]);
    scene.finish().await;
}

#[tokio::test]
async fn grpc_web_refusal_has_the_requests_media_type() {
    let scene = Scene::open(EtcdVersion::V3_5, &[Route::k()]).await;
    for kind in ["application/grpc-web+proto", "application/grpc-web-text", "application/grpc"] {
        let headers = [("Content-Type", kind)];
        let server = scene.fence.listener.clone();
        let answer = request(server, "POST", "/a.B/C", &headers, b"").await.unwrap();
        let told = ["content-type", "grpc-status", "grpc-message"].map(|name| answer.header(name));
        assert_eq!((answer.status, told), (200, [Some(kind), Some("9"), Some("token-missing")]));
    }
    scene.finish().await;
}
