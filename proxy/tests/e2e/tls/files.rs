//! Files that change while connections go on.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use fencepost_tests::{Authority, Connection, Endpoint, Scratch, Subject, replace_file, until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::{Scene, clients_required, connect, get, paths, pki, text, tls, toml};
use crate::fencepost::BINARY;
use crate::programs::run;

/// Clients that send one request after the other until they are told to stop. A request that fails,
/// fails the test.
struct Load {
    goes_on: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: JoinSet<()>,
}

impl Load {
    fn on(scene: &Scene) -> Load {
        let mut load = Load {
            goes_on: Arc::new(AtomicBool::new(true)),
            answered: Arc::default(),
            clients: JoinSet::new(),
        };
        let address = scene.address();
        for keeps_connection in [true, false] {
            let client = scene.client(None, &[b"http/1.1"]);
            let (goes_on, answered) = (Arc::clone(&load.goes_on), Arc::clone(&load.answered));
            load.clients.spawn(async move {
                let mut connection = Connection::over(connect(address, &client).await.unwrap());
                while goes_on.load(Ordering::Relaxed) {
                    assert_eq!(get(&mut connection).await.unwrap().status, 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                    if !keeps_connection {
                        connection = Connection::over(connect(address, &client).await.unwrap());
                    }
                }
            });
        }
        let (client, url) = (scene.client(None, &[b"h2"]), scene.url("/"));
        let (goes_on, answered) = (Arc::clone(&load.goes_on), Arc::clone(&load.answered));
        load.clients.spawn(async move {
            let stream = connect(address, &client).await.unwrap();
            let (sender, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            while goes_on.load(Ordering::Relaxed) {
                let mut sender = sender.clone().ready().await.unwrap();
                let request = http::Request::get(&url).body(()).unwrap();
                let response = sender.send_request(request, true).unwrap().0.await.unwrap();
                assert_eq!(response.status(), 200);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        load
    }

    async fn until_answered(&self, more: usize) {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        until("requests go on", async || self.answered.load(Ordering::Relaxed) >= goal).await;
    }

    async fn stop(mut self) {
        self.goes_on.store(false, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
    }
}

#[tokio::test]
async fn certificates_that_are_swapped_under_load_fail_no_request() {
    let scene = Scene::open(|files| tls(files, "")).await;
    let load = Load::on(&scene);
    for round in 1..=3 {
        load.until_answered(50).await;
        let next = scene.authority.issue_for_localhost();
        next.write(scene.files.path(), "server");
        let expected = CertificateDer::from_pem_slice(next.certificate.as_bytes()).unwrap();
        until("new connections get the new certificate", async || scene.shown().await == expected)
            .await;
        // A look at the one file before the other has come counts as failed.
        until("it is counted", async || scene.reloads("reloaded").await == f64::from(round)).await;
    }
    load.until_answered(50).await;
    load.stop().await;
    scene.fence.until_log("TLS files reloaded").await;
}

#[tokio::test]
async fn a_bad_new_file_keeps_the_old_and_is_said_once() {
    let mut scene = Scene::open(|files| tls(files, "")).await;
    let before = scene.shown().await;
    let next = scene.authority.issue_for_localhost();
    // A certificate whose key never comes.
    replace_file(scene.path("server.pem").as_ref(), &next.certificate);
    until("it is counted", async || scene.reloads("failed").await == 1.0).await;
    scene.fence.admin("POST", "/reload").await;
    scene.fence.process().hang_up();
    scene.fence.until_log("cause=\"SIGHUP\"").await;
    assert_eq!(scene.shown().await, before);
    let log = scene.fence.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("what was in force stays")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    let key = scene.path("server.key");
    let expected = format!("{key}: its private key does not belong to the (first) certificate in");
    assert!(lines[0].contains("ERROR") && lines[0].contains(&expected), "{lines:?}");

    replace_file(key.as_ref(), &next.key);
    scene.fence.admin("POST", "/reload").await;
    assert_ne!(scene.shown().await, before);
    assert_eq!((scene.reloads("reloaded").await, scene.reloads("failed").await), (1.0, 1.0));
}

#[tokio::test]
async fn the_end_of_each_file_is_a_metric_that_follows_it() {
    let scene = Scene::open(clients_required).await;
    let address = scene.address();
    let end = async |what: &str| {
        let of = "fencepost_certificate_expiry_timestamp_seconds";
        scene
            .fence
            .metric(&format!("{of}{{name=\"{address}\",use=\"listener\",what=\"{what}\"}}"))
            .await
    };
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let subject =
        Subject { names: &["127.0.0.1"], not_after: Some(at(4_000_000_000)), ..Subject::default() };
    scene.authority.issue(&subject).write(scene.files.path(), "server");
    fs::write(scene.path("crl.pem"), scene.authority.crl_until(&[], at(3_000_000_000))).unwrap();
    let ended = Authority::until("ended", at(1_000_000_000)).certificate();
    fs::write(scene.path("ca.pem"), ended.clone() + &scene.authority.certificate()).unwrap();
    scene.fence.admin("POST", "/reload").await;
    assert_eq!((end("certificate").await, end("crl").await), (4e9, 3e9));
    assert!(end("authority").await > 4e9);
    scene.fence.has_not_logged("has ended");
    fs::write(scene.path("ca.pem"), ended).unwrap();
    scene.fence.admin("POST", "/reload").await;
    assert_eq!(end("authority").await, 1e9);
    scene.fence.until_log(r#"the authority of "CN=ended" has ended"#).await;
}

#[tokio::test]
async fn certificate_is_chosen_by_the_name_that_is_asked_for() {
    let others = Authority::new("others");
    let subject = Subject { names: &["b.example", "*.c.example"], ..Subject::default() };
    let scene = Scene::open(|files| {
        let (certificate, key) = others.issue(&subject).write(files.path(), "b");
        let ca = files.path().join("ca.pem");
        replace_file(&ca, &(fs::read_to_string(&ca).unwrap() + &others.certificate()));
        let more = format!("{{ certificate = {certificate:?}, key = {key:?} }}");
        tls(files, &format!(", more_certificates = [{more}]"))
    })
    .await;
    let shown_for = async |name: &str| {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let stream = TcpStream::connect(scene.address()).await.unwrap();
        let stream = TlsConnector::from(scene.client(None, &[])).connect(name, stream).await?;
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
        Ok::<_, std::io::Error>(shown)
    };
    let in_file = |name| CertificateDer::from_pem_file(scene.path(name)).unwrap();
    for (name, file) in [
        ("b.example", "b.pem"),
        ("B.Example", "b.pem"),
        ("x.c.example", "b.pem"),
        ("localhost", "server.pem"),
        ("127.0.0.1", "server.pem"),
    ] {
        assert_eq!(shown_for(name).await.unwrap(), in_file(file), "{name}");
    }
    let unknown = shown_for("x.example").await.unwrap_err().to_string();
    assert!(unknown.contains("localhost"), "the first is the default: {unknown}");
    others.issue(&subject).write(scene.files.path(), "b");
    let renewed =
        async || shown_for("b.example").await.is_ok_and(|shown| shown == in_file("b.pem"));
    until("its successor is shown", renewed).await;
}

const NOT_YET_VALID: &str =
    r#"the certificate of "CN=later" is not valid before 2096-10-02T07:06:40Z"#;

fn not_yet_valid() -> Subject<'static> {
    let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    Subject {
        common_name: Some("later"),
        names: &["127.0.0.1"],
        not_before: Some(begin),
        not_after: None,
    }
}

#[tokio::test]
async fn check_warns_of_files_that_end_soon_or_have_not_begun() {
    let (authority, files) = pki();
    let file = paths(&files)("fencepost.toml");
    let upstream = Endpoint::Tcp("127.0.0.1:9".parse().unwrap());
    fs::write(&file, toml(&clients_required(&files), "", "", &upstream)).unwrap();
    let arguments =
        |command: &'static str| [command, "-c", file.to_str().unwrap()].map(str::to_owned);
    let fencepost = async |command| {
        let arguments = arguments(command);
        run(BINARY, &arguments.each_ref().map(String::as_str)).await
    };
    let right = fencepost("check").await;
    assert!(right.status.success() && !text(&right).contains("warning"), "{}", text(&right));

    let soon = SystemTime::now() + Duration::from_secs(10 * 86_400 + 3600);
    let subject =
        Subject { common_name: Some("soon"), not_after: Some(soon), ..Subject::default() };
    authority.issue(&subject).write(files.path(), "server");
    let warned = fencepost("check").await;
    assert!(warned.status.success(), "{}", text(&warned));
    assert!(
        text(&warned).contains("the certificate of \"CN=soon\" ends in 10 days"),
        "{}",
        text(&warned)
    );

    authority.issue(&not_yet_valid()).write(files.path(), "server");
    let warned = fencepost("check").await;
    assert!(warned.status.success(), "{}", text(&warned));
    assert!(text(&warned).contains(NOT_YET_VALID), "{}", text(&warned));

    fs::write(paths(&files)("server.key"), "").unwrap();
    fs::remove_file(paths(&files)("crl.pem")).unwrap();
    for (command, code) in [("check", 64), ("serve", 64)] {
        let wrong = fencepost(command).await;
        assert_eq!(wrong.status.code(), Some(code), "{}", text(&wrong));
        assert!(
            text(&wrong).contains("server.key: is not PEM: nothing in it begins with -----BEGIN"),
            "{}",
            text(&wrong)
        );
    }
    // Those of what connects are read as well, and all that is wrong with any is said.
    let connecting = "[[listener]]\naddress = \"127.0.0.1:0\"\n[source.main]\nkind = \"etcd\"\nendpoints = [\"https://127.0.0.1:9\"]\n\
        tls = { ca = \"/nowhere/etcd.pem\" }\n[[route]]\nname = \"jobs\"\npath = \"/\"\nupstream = \"https://127.0.0.1:9\"\n\
        upstream_tls = { ca = \"/nowhere/worker.pem\" }\nlock = { source = \"main\", key = \"/l\" }\n";
    fs::write(&file, connecting).unwrap();
    let wrong = text(&fencepost("check").await);
    assert!(
        wrong.contains("toml:6: source.main.tls.ca: /nowhere/etcd.pem: cannot be read: No such file or directory"),
        "{wrong}"
    );
    assert!(
        wrong.contains("toml:11: route.jobs.upstream_tls.ca: /nowhere/worker.pem: cannot be read"),
        "{wrong}"
    );
    let _keep: Scratch = files;
}
