//! `--stamp`: what a command sends to its local listener goes out under its tenure.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use fencepost_tests::{Answer, Behaviour, Connection, Endpoint, Worker, WorkerTls, request, until};
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::holder::Holder;
use crate::proxy::{Proxy, ProxyFiles};
use crate::stage::{LOCK, Stage};

/// A command that says where its listener is, and runs on whatever it is asked.
const LISTENED: &str =
    "trap '' TERM; echo $FENCE_STAMP >> $stage/stamp; while :; do sleep 0.02; done";

/// Where the listener of the n-th tenure is.
async fn listener(stage: &Stage, number: usize) -> SocketAddr {
    stage.until_lines("stamp", number).await[number - 1].parse().unwrap()
}

fn rule(proxy: &Proxy) -> String {
    format!("127.0.0.1:0={}", proxy.url())
}

#[tokio::test]
async fn a_commands_requests_carry_its_tenure_whatever_they_say() {
    let stage = Stage::set().await;
    let worker = Worker::start().await;
    let proxy = Proxy::serve(&stage, &worker).await;
    worker.on("/answer", Behaviour::Answer(Answer::status(201, "made").header("x-worker", "w")));
    let script = r#"echo $FENCE_REVISION > $stage/revision; curl -s -D $stage/head -o $stage/body -X PUT -H 'Fence-Owner: b' -H 'Fence-Owner: c' -H 'Fence-Revision: 1' \
            -H 'Connection: fence-revision, x-hop' -H 'x-hop: 1' -H 'Transfer-Encoding: chunked' \
            --data-binary @$stage/data "http://$FENCE_STAMP/answer?x=1" || exit 99
        curl -s -o /dev/null -o /dev/null "http://$FENCE_STAMP/one" "http://$FENCE_STAMP/two" || exit 98
        curl -s -o /dev/null -X GET -H 'Transfer-Encoding: chunked' --data-binary @$stage/data "http://$FENCE_STAMP/asked" || exit 97
        curl -s -o /dev/null --request-target 'http://shards?x=2' "http://$FENCE_STAMP/""#;
    let data = "0123456789".repeat(50_000);
    std::fs::write(stage.file("data"), &data).unwrap();
    let mut holder = Holder::start(&stage, "shard-1", &["--stamp", &rule(&proxy)], script);
    assert_eq!(holder.code().await, 0, "{}", holder.log());

    let head = stage.read("head").to_lowercase();
    assert!(head.starts_with("http/1.1 201") && head.contains("x-worker: w"), "{head}");
    assert_eq!(stage.read("body"), "made");
    let seen = worker.seen();
    let paths: Vec<&str> = seen.iter().map(|seen| seen.path.as_str()).collect();
    assert_eq!(paths, ["/answer", "/one", "/two", "/asked", "/"]);
    for seen in &seen {
        assert_eq!(seen.header("fence-owner"), Some("shard-1"));
        assert_eq!(seen.header("fence-revision"), Some(stage.read("revision").trim_end()));
        assert_eq!(seen.header("x-hop"), None);
    }
    assert_eq!((seen[0].method.as_str(), seen[0].query.as_deref()), ("PUT", Some("x=1")));
    assert_eq!(seen[0].body_bytes, data.len() as u64);
    assert_eq!((seen[3].method.as_str(), seen[3].body_bytes), ("GET", data.len() as u64));
    assert_eq!(seen[4].query.as_deref(), Some("x=2"));
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_tenure_goes_out_in_the_headers_of_its_route() {
    let (stage, worker) = (Stage::set().await, Worker::start().await);
    let proxy = Proxy::serve_renamed(&stage, &worker).await;
    let (url, rule) = (proxy.url(), rule(&proxy));
    let names =
        ["--owner-header", "X-Owner", "--revision-header", "X-Revision", "--lock-header", "X-Lock"];
    let script = r#"curl -s -o /dev/null -w '%{http_code}\n' -H 'X-Owner: b' "http://$FENCE_STAMP/" > $stage/status"#;
    let arguments = [&["--fence", &url, "--stamp", &rule][..], &names].concat();
    let mut holder = Holder::start(&stage, "shard-1", &arguments, script);
    assert_eq!(holder.code().await, 0, "{}", holder.log());
    assert_eq!(stage.read("status"), "200\n");
    let seen = worker.seen();
    assert_eq!((seen[0].header("x-owner"), seen[0].header("fence-owner")), (Some("shard-1"), None));
    stage.is_left_clean().await;

    for (wrong, says) in [
        (
            ["--owner-header", "X-Owner"],
            "required arguments were not provided:\n  <--fence <URL>|--stamp",
        ),
        (["--owner-header", "X Owner"], "must be the name of a header, not \"X Owner\""),
        (["--lock-header", "Host"], "\"Host\" has a meaning of its own"),
        (
            ["--revision-header", "fence_owner"],
            "--revision-header: \"fence_owner\" is --owner-header, \"fence-owner\"",
        ),
    ] {
        let sends: &[&str] = if wrong[1] == "X-Owner" { &[] } else { &["--fence", &url] };
        let mut holder =
            Holder::start(&stage, "shard-1", &[sends, &wrong].concat(), "touch $stage/started");
        assert_eq!(holder.code().await, 64, "{wrong:?}: {}", holder.log());
        holder.says(says);
    }
    assert!(!stage.file("started").exists());
}

#[tokio::test]
async fn connections_close_with_the_tenure_and_the_next_has_others() {
    for secure in [false, true] {
        closes_in_time(secure).await;
    }
}

async fn closes_in_time(secure: bool) {
    let (stage, worker, files) = (Stage::set().await, Worker::start().await, ProxyFiles::new());
    files.issue_master("shard-1");
    let (proxy, rule, tls) = match secure {
        false => {
            let proxy = Proxy::serve(&stage, &worker).await;
            let rule = rule(&proxy);
            (proxy, rule, Vec::new())
        }
        true => {
            let certificate = files.authority.issue_for_localhost();
            let proxy = Proxy::serve_secure(&stage, &worker, &files, &certificate).await;
            let rule = format!("127.0.0.1:0={}", proxy.secure_url());
            (proxy, rule, files.arguments())
        }
    };
    let mut arguments = vec!["--stamp", &rule, "--ttl", "20s"];
    arguments.extend(tls.iter().map(String::as_str));
    let mut holder = Holder::start(&stage, "shard-1", &arguments, LISTENED);
    let mut revisions = Vec::new();
    for number in 1..=2 {
        let address = listener(&stage, number).await;
        let mut line = Connection::open(Endpoint::from(address)).await.unwrap();
        line.send(b"POST /write HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n".to_vec())
            .await
            .unwrap();
        assert_eq!(line.final_response().await.unwrap().status, 200);
        let seen = worker.seen();
        revisions
            .push(seen.last().unwrap().header("fence-revision").unwrap().parse::<i64>().unwrap());

        stage.client().delete(LOCK, None).await.unwrap();
        assert!(line.final_response().await.is_err(), "the connection is closed");
        assert!(
            request(address, "POST", "/write", &[], b"").await.is_err(),
            "the listener is closed"
        );
        // It does not end when asked to, and has four seconds.
        let commands =
            stage.processes().into_iter().filter(|arguments| arguments.starts_with("sh\0"));
        assert_ne!(commands.count(), 0, "the command runs on meanwhile"); // What it has just forked looks like another.
    }
    listener(&stage, 3).await;
    assert!(revisions.is_sorted_by(|one, other| one < other), "{revisions:?}");
    assert_eq!(worker.seen().len(), 2);
    holder.signal(Signal::KILL);
    holder.status().await;
    until("its command has ended", async || stage.processes().is_empty()).await;
    drop(proxy);
}

/// Takes connections, by TLS if it has some, and keeps what comes over them. Ends with the runtime.
async fn recorder(tls: Option<TlsAcceptor>) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, record) = (listener.local_addr().unwrap(), Arc::default());
    let kept = Arc::clone(&record);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (kept, tls) = (Arc::clone(&kept), tls.clone());
            tokio::spawn(async move {
                match tls {
                    Some(tls) => keep(tls.accept(stream).await.unwrap(), &kept).await,
                    None => keep(stream, &kept).await,
                }
            });
        }
    });
    (address, record)
}

async fn keep(mut stream: impl AsyncRead + Unpin, record: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        record.lock().unwrap().extend_from_slice(&bytes[..count]);
    }
    record.lock().unwrap().extend_from_slice(b"<end>");
}

#[tokio::test]
async fn requests_of_a_holder_that_stood_still_go_nowhere() {
    for secure in [false, true] {
        let (stage, files) = (Stage::set().await, ProxyFiles::new());
        let certificate = files.authority.issue_for_localhost();
        let server =
            WorkerTls { identity: &certificate, client_ca: None, protocols: &["http/1.1"] };
        let (address, record) = recorder(secure.then(|| server.config().into())).await;
        let rule = format!("127.0.0.1:0={}://{address}", if secure { "https" } else { "http" });
        let mut arguments = vec!["--stamp", &rule, "--ttl", "2s", "--once"];
        let trust = files.trust();
        arguments.extend(trust.iter().filter(|_| secure).map(String::as_str));
        let mut holder = Holder::start(&stage, "a", &arguments, LISTENED);

        let mut line = TcpStream::connect(listener(&stage, 1).await).await.unwrap();
        line.write_all(b"PUT / HTTP/1.1\r\nHost: here\r\nContent-Length: 10000\r\n\r\nbefore")
            .await
            .unwrap();
        let text = || String::from_utf8(record.lock().unwrap().clone()).unwrap();
        until("the request is under way", async || text().ends_with("before")).await;
        holder.pause().await;
        line.write_all(&[b'x'; 5000]).await.unwrap();
        until("its lock has run out", async || stage.keys().await.is_empty()).await;
        holder.resume();
        until("its connection has ended", async || text().ends_with("<end>")).await;
        let text = text();
        let (_, body) = text.rsplit_once("\r\n\r\n").unwrap();
        assert_eq!(body, "before<end>", "secure: {secure}");
        assert_eq!(holder.code().await, 76, "{}", holder.log());
        stage.is_left_clean().await;
    }
}

#[tokio::test]
async fn who_sends_while_the_proxy_is_away_is_told_so() {
    let stage = Stage::set().await;
    let nobody = fencepost_tests::FreePort::reserve();
    let rule = format!("127.0.0.1:0=http://{}", nobody.address());
    let script =
        r#"curl -s -o $stage/body -w '%{http_code}\n' "http://$FENCE_STAMP/" > $stage/status"#;
    let mut holder = Holder::start(&stage, "a", &["--stamp", &rule], script);
    assert_eq!(holder.code().await, 0);
    assert_eq!(stage.read("status"), "502\n");
    assert!(stage.read("body").contains("cannot be reached"), "{}", stage.read("body"));

    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let rule = format!("{}=http://{}", taken.local_addr().unwrap(), nobody.address());
    let mut holder = Holder::start(&stage, "a", &["--stamp", &rule], "touch $stage/started");
    assert_eq!(holder.code().await, 1);
    assert!(
        holder.log().contains("--stamp 127.0.0.1:") && holder.log().contains("in use"),
        "{}",
        holder.log()
    );
    assert!(!stage.file("started").exists());
    stage.is_left_clean().await;
}

#[tokio::test]
async fn nothing_sent_after_a_tenure_goes_out_as_its_successors() {
    let (stage, worker) = (Stage::set().await, Worker::start().await);
    let proxy = Proxy::serve(&stage, &worker).await;
    let address = fencepost_tests::FreePort::reserve().address();
    let rule = format!("{address}={}", proxy.url());
    let arguments = ["--stamp", &rule, "--ttl", "10s", "--once"];
    let sends = |path: &str| format!("curl -s -o /dev/null -X POST http://{address}{path}");
    let stubborn = format!(
        "trap '' TERM; while :; do {}; echo >> $stage/tried; sleep 0.02; done",
        sends("/by-a")
    );
    let mut first = Holder::start(&stage, "a", &arguments, &stubborn);
    stage.until_lines("tried", 1).await;
    let waits = format!("{}; until [ -e $stage/go ]; do sleep 0.02; done", sends("/by-b"));
    let mut second = Holder::start(&stage, "b", &arguments, &waits);
    until("b waits", async || stage.leases().await == 2).await;

    stage.client().delete(LOCK, None).await.unwrap();
    stage.until_held_by("b").await;
    assert_eq!(first.code().await, 76, "{}", first.log());
    std::fs::write(stage.file("go"), "").unwrap();
    assert_eq!(second.code().await, 0, "{}", second.log());
    let sent: Vec<_> = worker.seen();
    for seen in &sent {
        let owner = seen.path.strip_prefix("/by-").unwrap();
        assert_eq!(seen.header("fence-owner"), Some(owner), "{}", seen.path);
    }
    assert!(sent.iter().any(|seen| seen.path == "/by-b"));
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_command_without_descriptors_leaves_nothing_behind() {
    let (stage, worker) = (Stage::set().await, Worker::start().await);
    let proxy = Proxy::serve(&stage, &worker).await;
    let script = r#"echo $FENCE_STAMP >> $stage/stamp; until [ -e $stage/go ]; do sleep 0.02; done
        (setsid sh -c 'trap "" TERM; while :; do sleep 0.02; : $1; done' left $stage &)"#;
    let few_descriptors = ["sh", "-c", "ulimit -n 100; exec \"$0\" \"$@\""];
    let mut holder =
        Holder::start_by(&few_descriptors, &stage, "a", &["--stamp", &rule(&proxy)], script);
    let address = listener(&stage, 1).await;
    let mut lines = Vec::new();
    // Fewer than the system keeps for a listener that takes none.
    for _ in 0..100 {
        lines.push(Connection::open(Endpoint::from(address)).await.unwrap());
    }
    // Those that have a place are served.
    lines[0]
        .send(b"POST /write HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n".to_vec())
        .await
        .unwrap();
    assert_eq!(lines[0].final_response().await.unwrap().status, 200);
    std::fs::write(stage.file("go"), "").unwrap();
    assert_eq!(holder.code().await, 0, "{}", holder.log());
    holder.says("left processes behind: ending them");
    stage.is_left_clean().await;
}
