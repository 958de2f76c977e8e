//! HTTP clients that others wrote.

use fencepost_tests::{Etcd, EtcdVersion, Scratch};

use crate::fencepost::{Config, Fencepost, Route};
use crate::programs::{PythonServer, printed, python};
use crate::scene::Scene;
use crate::store::{Store, Tenure};

struct Headers {
    owner: String,
    revision: String,
}

fn headers(tenure: &Tenure) -> Headers {
    Headers {
        owner: format!("Fence-Owner: {}", tenure.owner),
        revision: format!("Fence-Revision: {}", tenure.revision),
    }
}

async fn held() -> (Scene, Tenure, Tenure) {
    let scene = Scene::open(EtcdVersion::V3_5, &[Route::k()]).await;
    let stale = scene.store.hold("/k", "shard-2").await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &tenure).await;
    (scene, tenure, stale)
}

#[tokio::test]
async fn curl_speaks_both_versions_and_gets_a_status_mid_upload() {
    let (scene, tenure, stale) = held().await;
    let scratch = Scratch::new();
    let file = scratch.path().join("upload");
    std::fs::write(&file, vec![b'x'; 3_000_000]).unwrap();
    let (file, base) = (file.display().to_string(), scene.fence.listener.to_string());
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for (tenure, path, expected) in
            [(&tenure, "/curl-admitted", "200"), (&stale, "/curl-refused", "412")]
        {
            let Headers { owner, revision } = headers(tenure);
            let url = format!("{base}{path}");
            let fenced =
                ["-sS", "-w", "\n%{http_code}", version, "-H", &owner, "-H", &revision, &url];
            let uploaded = format!("@{file}");
            for more in [
                &[][..],
                &["-X", "POST", "-d", "small"],
                &["-I"],
                &["-T", &file],
                &["-T", &file, "-H", "Expect:"],
                &["-T", &file, "-H", "Transfer-Encoding: chunked"],
                &["--data-binary", &uploaded, "-H", "Expect: 100-continue"],
                &["--data-binary", &uploaded, "-H", "Expect:"],
            ] {
                let said = printed("curl", &[&fenced[..], more].concat()).await;
                assert_eq!(
                    said.lines().next_back(),
                    Some(expected),
                    "{version} {path} {more:?}: {said}"
                );
            }
        }
    }
    let seen = scene.worker.seen();
    assert!(!seen.iter().any(|seen| seen.path == "/curl-refused"), "{seen:#?}");
    let admitted: Vec<u64> = seen
        .iter()
        .filter(|seen| seen.path == "/curl-admitted")
        .map(|seen| seen.body_bytes)
        .collect();
    let one_version = [0, 5, 0, 3_000_000, 3_000_000, 3_000_000, 3_000_000, 3_000_000];
    assert_eq!(admitted, [one_version, one_version].concat());
    scene.finish().await;
}

#[tokio::test]
async fn pythons_http_client_gets_a_status_mid_upload() {
    let (scene, tenure, stale) = held().await;
    let base = scene.fence.listener.to_string();
    let address = base.trim_start_matches("http://");
    for (tenure, expected) in [(&tenure, "200 None"), (&stale, "412 stale-tenure")] {
        let said =
            python("upload.py", &[address, &tenure.owner, &tenure.revision.to_string(), "3000000"])
                .await;
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines, [expected; 4], "{said}");
    }
    scene.finish().await;
}

/// A worker of its own kind behind fencepost.
async fn before(upstream: &str) -> (Etcd, Store, Tenure, Tenure, Fencepost) {
    let etcd = Etcd::start(EtcdVersion::V3_4).await;
    let store = Store::of(&etcd).await;
    let stale = store.hold("/k", "shard-2").await;
    let tenure = store.hold("/k", "shard-1").await;
    let fence = Fencepost::serve(&Config::new(&[etcd.endpoint()], upstream, &[Route::k()])).await;
    (etcd, store, tenure, stale, fence)
}

#[tokio::test]
async fn grpc_calls_pass_and_a_refused_one_fails_with_its_status() {
    let server = PythonServer::start("grpc_server.py").await;
    let (_etcd, _store, tenure, stale, fence) =
        before(&format!("h2c://127.0.0.1:{}", server.port)).await;
    let base = fence.listener.to_string();
    let address = base.trim_start_matches("http://");
    let said =
        python("grpc_client.py", &[address, &tenure.owner, &tenure.revision.to_string()]).await;
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "unary ok: echo:hello trailing=unary-done",
            "unary 1000000 bytes ok",
            "server stream ok: 0 1 2 3 4 5 6 7 8 9 trailing=stream-done",
            "client stream ok: 100",
            "bidi ok: 20",
            "error from the worker: RESOURCE_EXHAUSTED no more",
            "deadline: DEADLINE_EXCEEDED",
        ]
    );
    let served = server.log().matches("call ").count();
    for (owner, revision, expected) in [
        (
            stale.owner.as_str(),
            stale.revision.to_string(),
            "FAILED_PRECONDITION stale-tenure stale-tenure",
        ),
        (stale.owner.as_str(), "x".to_owned(), "INVALID_ARGUMENT token-malformed token-malformed"),
    ] {
        let said = python("grpc_client.py", &[address, owner, &revision, "--refused"]).await;
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            [expected; 3],
            "unary, server stream, bidi stream"
        );
    }
    assert_eq!(server.log().matches("call ").count(), served, "{}", server.log());
}

#[tokio::test]
async fn a_websocket_works_through_it_and_a_refused_one_is_not_opened() {
    let server = PythonServer::start("websocket_server.py").await;
    let (_etcd, _store, tenure, stale, fence) =
        before(&format!("http://127.0.0.1:{}", server.port)).await;
    let base = fence.listener.to_string();
    let address = base.trim_start_matches("http://");
    let said =
        python("websocket_client.py", &[address, &tenure.owner, &tenure.revision.to_string()])
            .await;
    let sizes = ["0", "125", "126", "65535", "65536", "1000000"];
    let expected = sizes.map(|size| format!("text {size} ok\nbinary {size} ok\n")).concat();
    assert_eq!(said.trim_end(), format!("{expected}closed 1000 done"));
    let opened = server.log().matches("opened").count();
    assert_eq!(opened, 1);
    let said =
        python("websocket_client.py", &[address, &stale.owner, &stale.revision.to_string()]).await;
    assert_eq!(said.trim(), "refused 412 stale-tenure");
    assert_eq!(server.log().matches("opened").count(), opened, "{}", server.log());
}
