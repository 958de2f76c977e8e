//! What nobody is told: the secrets that pass through.
//!
//! For another one, put `s3cret` into it and have it sent or configured in
//! [`whoever_looks_at_logs_or_the_admin_listener_sees_no_secret`].

use fencepost_tests::{Answer, Behaviour, Connection, EtcdVersion, Scratch};

use crate::fencepost::Route;
use crate::programs::printed;
use crate::scene::{Ask, Scene};

/// What every secret has in it, and nothing else.
const MARK: &str = "s3cret";

const HEADERS: [(&str, &str); 6] = [
    ("Authorization", "Bearer s3cret-authorization"),
    ("Proxy-Authorization", "Basic s3cret-proxy"),
    ("Cookie", "session=s3cret-cookie"),
    ("X-Api-Key", "s3cret-key"),
    ("Referer", "http://h/?token=s3cret-referer"),
    ("X-Odd", "s3cret-\u{fc}"),
];

/// A request with a secret in each of its parts.
fn with_secrets(path: &str) -> Ask {
    let ask = Ask::post(&format!("{path}?token=s3cret-query")).body(b"password=s3cret-body");
    HEADERS.iter().fold(ask, |ask, (name, value)| ask.header(name, value))
}

#[tokio::test]
async fn whoever_looks_at_logs_or_the_admin_listener_sees_no_secret() {
    let scratch = Scratch::new();
    let access_log = scratch.path().join("access.log");
    let section = format!(
        "[decisions]\nadmissions_one_in = 1\n[access_log]\npath = {:?}",
        access_log.to_str().unwrap()
    );
    let routes = [
        Route::new("watched", "/watched/", r#"key = "/watched""#).with("mode = \"shadow\""),
        Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#),
    ];
    let mut scene =
        Scene::with(EtcdVersion::V3_5, &routes, |config| config.section(&section).logging("trace"))
            .await;
    let answer = Answer::ok("s3cret-answer").header("set-cookie", "session=s3cret-set-cookie");
    scene.worker.on("/shards/2/x", Behaviour::Answer(answer));
    scene.worker.on("/shards/2/reset", Behaviour::Reset);
    let held = scene.store.hold("/shards/2/lock", "shard-1").await;
    assert_eq!(scene.fence.admin("POST", "/log?filter=trace").await.status, 200);

    // Admitted, refused, watched, without a route, without an answer, over HTTP/2, and unreadable
    // ones.
    let admitted = scene.send(with_secrets("/shards/2/x").under(&held)).await;
    assert_eq!(admitted.text(), "s3cret-answer", "clients and workers get what is for them");
    let seen = scene.worker.wait_for(1).await;
    assert_eq!(seen[0].header("authorization"), Some("Bearer s3cret-authorization"));
    assert_eq!(scene.send(with_secrets("/shards/2/x").token("shard-1", "1")).await.status, 412);
    assert_eq!(scene.send(with_secrets("/watched/x")).await.status, 200);
    assert_eq!(scene.send(with_secrets("/none")).await.status, 404);
    assert_eq!(scene.send(with_secrets("/shards/2/reset").under(&held)).await.status, 502);
    over_http2(&scene).await;
    for raw in [
        "POST /shards/2/x HTTP/1.1\r\nHost: h\r\nAuthorization: s3cret\0\r\n\r\n",
        "POST /shards/2/x HTTP/1.1\r\nHost: h\r\nAuthorization: s3cret\r\nTransfer-Encoding: chunked\r\n\r\ns3cret\r\n",
        "s3cret\r\n\r\n",
    ] {
        let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
        connection.send(raw).await.unwrap();
        let _ = connection.rest().await; // However it is refused.
    }

    for path in "/config /decisions /timeline /metrics /locks /routes /shadow /log /".split(' ') {
        let shown = scene.fence.admin("GET", path).await;
        assert_eq!(shown.status, 200, "{path}");
        assert!(!shown.text().contains(MARK), "{path}: {}", shown.text());
    }
    scene.fence.terminate().await;
    let (log, access_log) = (scene.fence.log(), std::fs::read_to_string(&access_log).unwrap());
    assert!(
        log.contains("request refused") && log.contains("the worker did not answer"),
        "all is logged: {log}"
    );
    // Whether they show a secret may change with any version of theirs.
    assert!(
        !log.contains("peer=Server") && !log.contains("peer=Client"),
        "libraries follow frames in the log: {log}"
    );
    assert!(access_log.lines().count() >= 6, "{access_log}");
    for (name, text) in [("log", log), ("access log", access_log)] {
        let told: Vec<&str> = text.lines().filter(|line| line.contains(MARK)).collect();
        assert!(told.is_empty(), "the {name} tells {told:#?}");
    }
}

/// Libraries follow each frame of HTTP/2 in the log, if they are let.
async fn over_http2(scene: &Scene) {
    let url = format!("{}/shards/2/x?token=s3cret-query", scene.fence.listener);
    let mut arguments = vec!["-s", "--http2-prior-knowledge", "-d", "s3cret-body", &url];
    let headers: Vec<String> =
        HEADERS.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    headers.iter().for_each(|header| arguments.extend(["-H", header]));
    let answer = printed("curl", &arguments).await;
    assert!(answer.contains("token-missing"), "{answer}");
}
