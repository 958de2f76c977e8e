//! What a new user meets: the first lines of the log, whether it is ready, what mistakes are told.

use fencepost_tests::{EtcdVersion, Response};
use serde_json::Value;

use crate::fencepost::Route;
use crate::refusal::assert_refused;
use crate::scene::{Ask, Scene};

const VERSION: EtcdVersion = EtcdVersion::V3_5;

#[tokio::test]
async fn lock_not_allowed_says_which_segment_and_route() {
    let route = Route::new("shards", "/shards/{shard}/", r#"key = "/shards/{shard}/lock""#);
    let scene = Scene::open(VERSION, &[route]).await;
    let answer = scene.send(Ask::post("/shards/a%20b/x").token("shard-1", "7")).await;
    assert_refused(&answer, "lock-not-allowed", None, None);
    let told = detail(&answer);
    let says = "The segment \"a%20b\" of the path stands for {shard}: write it with A-Z, a-z, 0-9, \".\", \"_\", \"~\" and \"-\" alone. \
                Route \"shards\" takes paths like \"/shards/{shard}/\".";
    assert_eq!(told, says);
    scene.finish().await;
}

fn detail(answer: &Response) -> String {
    let body: Value = serde_json::from_str(&answer.text()).unwrap();
    body["detail"].as_str().unwrap().to_owned()
}
