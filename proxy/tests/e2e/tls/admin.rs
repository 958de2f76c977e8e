//! The admin listener by TLS, and the end of a process whose clients speak it.

use fencepost_tests::{Connection, Endpoint, Process, Scratch, Subject, eventually};

use super::{Scene, clients_required, paths, pki, text, tls, toml};
use crate::fencepost::{BINARY, addresses};
use crate::programs::run;

#[tokio::test]
async fn the_admin_listener_answers_those_who_have_a_certificate() {
    let (authority, files) = pki();
    authority
        .issue(&Subject { common_name: Some("operator"), ..Subject::default() })
        .write(files.path(), "operator");
    let path = |name: &str| paths(&files)(name).to_str().unwrap().to_owned();
    let upstream = Endpoint::Tcp("127.0.0.1:9".parse().unwrap());
    // On every address: without required certificates this is refused.
    let everywhere =
        toml("", &clients_required(&files), "", &upstream).replacen("127.0.0.1:0", "0.0.0.0:0", 1);
    std::fs::write(path("fencepost.toml"), &everywhere).unwrap();
    let scratch = Scratch::new();
    let mut command = std::process::Command::new(BINARY);
    command
        .args(["serve", "-c", &path("fencepost.toml")])
        .env("NO_COLOR", "1")
        .env_remove("FENCEPOST_LOG");
    let process = Process::start(&command, &scratch.path().join("log"));
    let (_, admin) = eventually("it listens", async || addresses(&process.log())).await;

    let url = |path: &str| format!("https://localhost:{}{path}", admin.port());
    let (ca, pem, key) = (path("ca.pem"), path("operator.pem"), path("operator.key"));
    let without = ["-sS", "--cacert", &ca];
    let with = [&without[..], &["--cert", &pem, "--key", &key]].concat();
    let (livez, reload) = (url("/livez"), url("/reload"));
    let answered = run("curl", &[&with[..], &[&livez]].concat()).await;
    assert_eq!(text(&answered), "alive\n");
    let answered = run("curl", &[&with[..], &["-X", "POST", &reload]].concat()).await;
    assert!(text(&answered).contains("unchanged"), "{}", text(&answered));
    let refused = run("curl", &[&without[..], &[&livez]].concat()).await;
    assert!(
        !refused.status.success() && text(&refused).contains("certificate required"),
        "{}",
        text(&refused)
    );
    let plain = run("curl", &["-sS", &format!("http://localhost:{}/livez", admin.port())]).await;
    assert!(!plain.status.success(), "{}", text(&plain));
    let metrics = text(&run("curl", &[&with[..], &[&url("/metrics")]].concat()).await);
    assert!(metrics.contains("use=\"admin\",what=\"certificate\""), "{metrics}");
}

#[tokio::test]
async fn off_loopback_the_admin_listener_does_not_start_unprotected() {
    let (_, files) = pki();
    let path = |name: &str| paths(&files)(name).to_str().unwrap().to_owned();
    let upstream = Endpoint::Tcp("127.0.0.1:9".parse().unwrap());
    for (admin, code) in
        [("", 64), (tls(&files, "").as_str(), 64), ("dangerous_unprotected = true", 0)]
    {
        let everywhere = toml("", admin, "", &upstream).replacen("127.0.0.1:0", "0.0.0.0:0", 1);
        std::fs::write(path("fencepost.toml"), everywhere).unwrap();
        let checked = run(BINARY, &["check", "-c", &path("fencepost.toml")]).await;
        assert_eq!(checked.status.code(), Some(code), "{admin}: {}", text(&checked));
        let said = if code == 0 { "warning: " } else { "it needs tls with client_ca" };
        assert!(text(&checked).contains(said), "{admin}: {}", text(&checked));
    }
}

#[tokio::test]
async fn a_process_that_ends_answers_what_is_under_way() {
    let mut scene = Scene::with_limits(|files| tls(files, ""), "drain_delay = \"0s\"").await;
    let latch = scene.worker.holds("/");
    let mut http1 =
        Connection::over(scene.connect(&scene.client(None, &[b"http/1.1"])).await.unwrap());
    http1.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let stream = scene.connect(&scene.client(None, &[b"h2"])).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::get(scene.url("/")).body(()).unwrap();
    let http2 = sender.send_request(request, true).unwrap().0;
    scene.worker.wait_for(2).await;
    scene.fence.process().terminate();
    scene.fence.until_log("step=\"closing\"").await;
    latch.open();
    let answer = http1.response().await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(http1.rest().await.unwrap().is_empty(), "closed by TLS's own rules");
    assert_eq!(http2.await.unwrap().status(), 200);
    // GOAWAY without an error. What is said in return may find nobody there any more.
    let ended = connection.await.unwrap();
    assert!(ended.as_ref().is_ok() || ended.as_ref().is_err_and(h2::Error::is_io), "{ended:?}");
    assert!(scene.fence.process().end_of_itself().await.success());
}
