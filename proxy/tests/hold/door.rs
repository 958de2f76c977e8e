//! `--fence`: the door is closed behind the predecessor before the command starts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fencepost_tests::{Answer, Behaviour, Latch, Relay, Worker, request, until};
use rustix::process::Signal;

use crate::holder::Holder;
use crate::proxy::Proxy;
use crate::stage::{LOCK, Stage};

/// Does the rest while a request of an earlier holder is at the worker, until the latch opens. The
/// lock is free by then.
async fn behind_an_earlier_request(stage: &Stage, rest: impl AsyncFnOnce(&str, Latch)) {
    let worker = Worker::start().await;
    let latch = worker.holds("/slow");
    let proxy = Proxy::serve(stage, &worker).await;
    let put = stage.client().put(LOCK, "earlier", None).await.unwrap();
    let revision = put.header().unwrap().revision().to_string();
    let headers = [("fence-owner", "earlier"), ("fence-revision", revision.as_str())];
    let slow = request(proxy.listener, "POST", "/slow", &headers, b"");
    let rest = async {
        worker.wait_for(1).await;
        stage.client().delete(LOCK, None).await.unwrap();
        rest(&proxy.url(), latch).await;
    };
    let (answer, ()) = tokio::join!(slow, rest);
    assert_eq!(answer.unwrap().status, 200);
    stage.is_left_clean().await;
}

#[tokio::test]
async fn the_command_starts_when_no_earlier_holder_is_at_the_worker() {
    let stage = Stage::set().await;
    behind_an_earlier_request(&stage, async |proxy, latch| {
        let mut holder =
            Holder::start(&stage, "a", &["--fence", proxy, "--verbose"], "touch $stage/started");
        holder.until_log("asking http://").await;
        assert!(!stage.file("started").exists());
        latch.open();
        assert_eq!(holder.code().await, 0);
        assert!(stage.file("started").exists());
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_lost_while_the_door_is_closing_is_taken_again() {
    let stage = Stage::set().await;
    let way = Relay::before(&stage.etcd).await;
    let etcd = format!("http://{}", way.address());
    behind_an_earlier_request(&stage, async |proxy, latch| {
        let arguments = ["--fence", proxy, "--verbose"];
        let mut holder =
            Holder::start_at(&etcd, &stage.file(""), "a", &arguments, "echo ran >> $stage/log");
        holder.until_log("asking http://").await;
        way.delay(Duration::from_millis(200)).await;
        stage.client().delete(LOCK, None).await.unwrap();
        until("it waits for the lock again", async || {
            holder.log().matches("waiting for /shards/2/lock").count() == 2
        })
        .await;
        way.delay(Duration::ZERO).await;
        latch.open();
        assert_eq!(holder.code().await, 0, "{}", holder.log());
        assert_eq!(stage.read("log"), "ran\n");
    })
    .await;
}

#[tokio::test]
async fn a_stand_in_of_an_absent_proxy_is_asked_again() {
    let stage = Stage::set().await;
    let worker = Worker::start().await;
    let calls = AtomicUsize::new(0);
    worker.when(move |_| {
        let answers = [(503, "2"), (502, "0"), (504, "0"), (204, "0")];
        let (status, retry_after) = answers[calls.fetch_add(1, Ordering::Relaxed)];
        Some(Behaviour::Answer(Answer::status(status, "").header("retry-after", retry_after)))
    });
    let url = worker.endpoint().to_string();
    let began = Instant::now();
    let mut holder = Holder::start(&stage, "a", &["--fence", &url], "touch $stage/started");
    assert_eq!(holder.code().await, 0, "{}", holder.log());
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(stage.file("started").exists());
    let answers = [
        ("503 Service Unavailable", "2s"),
        ("502 Bad Gateway", "100ms"),
        ("504 Gateway Timeout", "100ms"),
    ];
    let said = answers.map(|(status, pause)| {
        format!(
            "fencepost hold: waiting for {url}: it answered {status}; asking again in {pause}\n"
        )
    });
    assert_eq!(holder.log(), said.concat());
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_refusal_is_believed_when_no_loss_shows_in_time() {
    let stage = Stage::set().await;
    let worker = Worker::start().await;
    let refusal = Answer::status(412, "").header("fence-reason", "unknown-revision");
    worker.when(move |_| Some(Behaviour::Answer(refusal.clone())));
    let url = worker.endpoint().to_string();
    let mut holder =
        Holder::start(&stage, "a", &["--ttl", "2s", "--fence", &url], "touch $stage/started");
    assert_eq!(holder.code().await, 1);
    holder.says("does not fence for this lock: refused: unknown-revision");
    assert!(!stage.file("started").exists());
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_lock_may_have_any_characters() {
    let stage = Stage::set().await;
    let worker = Worker::start().await;
    // A space at an end would be lost on the way, and the lock another one.
    for lock in ["/ü x/lock", "/ü x/lock "] {
        let proxy = Proxy::serve_lock(&stage, &worker, lock).await;
        let mut holder = Holder::of_lock(lock, &stage, "a", &["--fence", &proxy.url()], &["true"]);
        assert_eq!(holder.code().await, 0, "{lock:?}: {}", holder.log());
    }
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_proxy_of_another_lock_is_refused_an_absent_one_awaited() {
    let stage = Stage::set().await;
    let worker = Worker::start().await;
    let proxy = Proxy::serve_lock(&stage, &worker, "/another").await;
    let mut holder = Holder::start(&stage, "a", &["--fence", &proxy.url()], "touch $stage/started");
    assert_eq!(holder.code().await, 1);
    holder.says("does not fence for this lock: refused: lock-not-allowed");

    // One that only watches says so: the key is right, and it is not the command line that is
    // wrong.
    let watching = Proxy::serve_watching(&stage, &worker).await;
    let mut holder =
        Holder::start(&stage, "a", &["--fence", &watching.url()], "touch $stage/started");
    assert_eq!(holder.code().await, 1);
    let said = "lock-not-allowed: correct the request (it says: The routes of this lock are in shadow mode: they only watch";
    holder.says(said);

    // It was asked again for ever.
    let json = Proxy::serve_json(&stage, &worker).await;
    let mut holder = Holder::start(&stage, "a", &["--fence", &json.url()], "touch $stage/started");
    assert_eq!(holder.code().await, 1);
    holder.says("lock-not-allowed: correct the request (it says: the record of /shards/2/lock is not JSON (line 1, column 1): write it as the route's lock says (owner_field)");

    let not_fencepost =
        format!("http://{}", worker.endpoint().to_string().trim_start_matches("http://"));
    let mut holder =
        Holder::start(&stage, "a", &["--fence", &not_fencepost], "touch $stage/started");
    assert_eq!(holder.code().await, 1);
    holder.says("does not fence: it answered 200 OK");

    let nobody = fencepost_tests::FreePort::reserve();
    let url = format!("http://{}", nobody.address());
    let mut holder = Holder::start(&stage, "a", &["--fence", &url], "touch $stage/started");
    holder.until_log("waiting for http://").await;
    holder.signal(Signal::TERM);
    assert_eq!(holder.code().await, 143);
    assert!(!stage.file("started").exists());
    stage.is_left_clean().await;
}
