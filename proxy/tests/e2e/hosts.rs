//! Which host a request is for, where routes tell hosts apart.

use fencepost_tests::{Connection, EtcdVersion};

use crate::fencepost::Route;
use crate::scene::Scene;

/// An enforced route for a host, and one that is off for all others, before the same worker.
async fn scene(host: &str) -> Scene {
    let guarded = Route::new("guarded", "/", r#"key = "/k""#).with(&format!("host = {host:?}"));
    let rest = Route::new("rest", "/", r#"key = "/k""#).with(r#"mode = "off""#);
    Scene::open(EtcdVersion::V3_5, &[guarded, rest]).await
}

/// What a request without a token is answered; 428 by the enforced route.
async fn status(scene: &Scene, head: &str) -> u16 {
    let mut connection = Connection::open(scene.fence.listener.clone()).await.unwrap();
    connection.send(format!("{head}\r\n\r\n")).await.unwrap();
    connection.final_response().await.unwrap().status
}

#[tokio::test]
async fn a_request_without_a_host_goes_past_no_fence() {
    let scene = scene("guarded.example").await;
    for (head, expected) in [
        ("GET / HTTP/1.0", 400),
        ("GET / HTTP/1.1", 400),
        ("GET / HTTP/1.0\r\nHost:", 400),
        ("GET / HTTP/1.1\r\nHost:", 400),
        ("GET / HTTP/1.1\r\nHost: :80", 400),
        ("GET / HTTP/1.0\r\nHost: guarded.example", 428),
        ("GET http://guarded.example/ HTTP/1.0", 428),
        ("GET / HTTP/1.0\r\nHost: other.example", 200),
        ("GET http://other.example/ HTTP/1.0", 200),
    ] {
        assert_eq!(status(&scene, head).await, expected, "{head}");
    }
    scene.finish().await;
}

#[tokio::test]
async fn what_workers_may_take_for_another_host_is_none() {
    let scene = scene("guarded.example").await;
    let unclear = "x:80[] x:[guarded.example] x[]:80 guarded.example,x x,guarded.example \
        x:80,guarded.example guarded.example;x x=guarded.example x:port";
    for (expected, hosts) in [
        (428, "guarded.example:80 guarded.example:80[] guarded.example:[x]"),
        (200, "other.example:80 other.example:"),
        (400, unclear),
    ] {
        for host in hosts.split_whitespace() {
            for target in ["/ HTTP/1.1", &format!("http://{host}/ HTTP/1.1"), "/ HTTP/1.0"] {
                let head = format!("GET {target}\r\nHost: {host}");
                assert_eq!(status(&scene, &head).await, expected, "{head}");
            }
        }
    }
    scene.finish().await;
}

#[tokio::test]
async fn no_field_names_another_host_where_a_fence_goes_by_it() {
    let unfenced = Scene::open(
        EtcdVersion::V3_5,
        &[Route::new("all", "/", r#"key = "/k""#).with(r#"mode = "off""#)],
    )
    .await;
    let fields =
        ["Forwarded", "X-Forwarded-Server", "X-Host", "X_HTTP_Host_Override", "X-Original-Host"];
    let head = fields.map(|field| format!("\r\n{field}: host=guarded.example")).concat();
    for (scene, are_passed_on) in [(scene("guarded.example").await, false), (unfenced, true)] {
        let head = format!(
            "GET / HTTP/1.1\r\nHost: other.example\r\nX-Forwarded-Host: guarded.example{head}"
        );
        assert_eq!(status(&scene, &head).await, 200);
        let seen = scene.worker.seen().pop().unwrap();
        assert_eq!(seen.header("x-forwarded-host"), Some("other.example"));
        for field in fields {
            assert_eq!(seen.header(field).is_some(), are_passed_on, "{field}");
        }
        scene.finish().await;
    }
}

#[tokio::test]
async fn an_address_as_host_is_the_same_however_it_is_written() {
    let scene = scene("[0:0::1]").await;
    for (expected, hosts) in [
        (428, "[::1] [::0001]:80 [0:0:0:0:0:0:0:1] [::0.0.0.1]"),
        (200, "[::2] localhost. localhost.:80 local_host"),
        (400, "[::1]x [::1%25lo] [v1.x] localhost.. a..b a_b..c:80 .a ."),
    ] {
        for host in hosts.split(' ') {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}");
            assert_eq!(status(&scene, &head).await, expected, "{head}");
        }
    }
    scene.finish().await;
}
