//! A worker that remembers, asked by the small client and by curl.

use std::time::Duration;

use fencepost_tests::{Answer, Behaviour, BodyEnd, Connection, Latch, Worker, request};

#[tokio::test]
async fn a_request_is_recorded_and_answered() {
    for worker in [Worker::start().await, Worker::start_unix().await] {
        let endpoint = worker.endpoint().clone();
        let response = request(endpoint, "PUT", "/a/b?c=d", &[("x-one", "1")], b"body").await.unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));

        let [seen] = worker.wait_for_answered(1).await.try_into().unwrap();
        assert_eq!((seen.method.as_str(), seen.path.as_str(), seen.query.as_deref()), ("PUT", "/a/b", Some("c=d")));
        assert_eq!((seen.header("x-one"), seen.text().as_str(), seen.body_bytes), (Some("1"), "body", 4));
        assert_eq!(seen.body_end, Some(BodyEnd::Whole));
        assert!(seen.ended.unwrap() >= seen.began);
    }
}

#[tokio::test]
async fn requests_on_one_connection_are_told_from_those_on_two() {
    let worker = Worker::start().await;
    let mut first = open(&worker).await;
    let mut second = open(&worker).await;
    for client in [&mut first, &mut second] {
        for _ in 0..2 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            assert_eq!(client.response().await.unwrap().text(), "ok");
        }
    }
    let seen = worker.seen();
    assert_eq!(seen.iter().map(|seen| seen.order).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(seen[0].connection, seen[1].connection);
    assert_eq!(seen[2].connection, seen[3].connection);
    assert_ne!(seen[0].connection, seen[2].connection);
}

#[tokio::test]
async fn a_held_request_is_answered_when_it_is_released() {
    let (worker, latch) = (Worker::start().await, Latch::new());
    worker.on("/held", Behaviour::Hold(latch.clone(), Answer::status(201, "late")));
    let mut client = open(&worker).await;
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert!(!worker.wait_for(1).await[0].answered);
    assert_eq!(request(worker.endpoint().clone(), "GET", "/", &[], b"").await.unwrap().text(), "ok");

    latch.open();

    assert_eq!(client.response().await.unwrap().status, 201);
    let seen = worker.wait_for_answered(2).await;
    assert!(seen[0].ended > seen[1].ended);
}

#[tokio::test]
async fn an_early_answer_comes_before_the_body_which_is_read_all_the_same() {
    let worker = Worker::start().await;
    worker.on("/early", Behaviour::Early(Answer::status(413, "no")));
    let mut client = open(&worker).await;
    client.send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n").await.unwrap();
    assert_eq!(client.response().await.unwrap().status, 413);
    client.send("body").await.unwrap();
    worker.wait_until("the whole body", |seen| seen[0].body_end == Some(BodyEnd::Whole)).await;
}

#[tokio::test]
async fn an_early_answer_without_reading_ends_the_connection() {
    let worker = Worker::start().await;
    worker.on("/early", Behaviour::EarlyUnread(Answer::status(413, "no")));
    let mut client = open(&worker).await;
    client.send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n").await.unwrap();
    assert_eq!(client.response().await.unwrap().status, 413);
    assert_eq!(client.rest().await.unwrap(), b"");
    assert_eq!(worker.seen()[0].body_bytes, 0);
}

#[tokio::test]
async fn a_cut_body_is_recorded_as_cut() {
    let worker = Worker::start().await;
    let mut client = open(&worker).await;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
    worker.wait_until("half the body", |seen| seen.first().is_some_and(|seen| seen.body_bytes == 4)).await;
    drop(client);
    let seen = worker.wait_until("the cut", |seen| seen[0].body_end.is_some() && seen[0].ended.is_some()).await;
    assert_eq!((seen[0].body_end, seen[0].answered), (Some(BodyEnd::Cut), false));
}

#[tokio::test]
async fn a_reset_is_a_reset() {
    let worker = Worker::start().await;
    worker.on("/", Behaviour::Reset);
    worker.on("/early", Behaviour::ResetEarly);
    for path in ["/", "/early"] {
        let error = request(worker.endpoint().clone(), "GET", path, &[], b"").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{path}: {error}");
    }
}

#[tokio::test]
async fn a_reset_in_the_middle_of_an_answer_leaves_what_came_before() {
    let worker = Worker::start().await;
    worker.on("/", Behaviour::Answer(Answer::ok("some").then_reset()));
    let mut client = open(&worker).await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(client.head().await.unwrap().status, 200);
    assert_eq!(client.receive(9).await.unwrap(), b"4\r\nsome\r\n");
    client.receive(1).await.unwrap_err();
    let seen = worker.wait_until("its end", |seen| seen[0].ended.is_some()).await;
    assert!(!seen[0].answered);
}

#[tokio::test]
async fn a_trickled_answer_arrives_whole_with_its_trailers() {
    let worker = Worker::start().await;
    let answer = Answer::ok("abcdef").trickling(2, Duration::from_millis(1)).header("trailer", "x-sum");
    worker.on("/", Behaviour::Answer(answer.trailer("x-sum", "7")));
    let response = request(worker.endpoint().clone(), "GET", "/", &[("te", "trailers")], b"").await.unwrap();
    assert_eq!(response.text(), "abcdef");
    assert_eq!(response.trailers["x-sum"], "7");
    assert!(worker.wait_for_answered(1).await[0].answered);
}

#[tokio::test]
async fn a_halting_answer_goes_on_when_it_is_let() {
    let (worker, latch) = (Worker::start().await, Latch::new());
    worker.on("/", Behaviour::Answer(Answer::ok("abcdef").halting_after(2, latch.clone())));
    let mut client = open(&worker).await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    client.head().await.unwrap();
    assert_eq!(client.receive(7).await.unwrap(), b"2\r\nab\r\n");
    assert_eq!(worker.seen()[0].ended, None);
    latch.open();
    assert_eq!(client.receive(14).await.unwrap(), b"4\r\ncdef\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_connection_can_be_closed_after_an_answer_that_does_not_say_so() {
    let worker = Worker::start().await;
    for body in ["", "ok"] {
        worker.on("/", Behaviour::Answer(Answer::ok(body).then_close()));
        let mut client = open(&worker).await;
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let response = client.response().await.unwrap();
        assert_eq!((response.text().as_str(), response.header("connection")), (body, None));
        assert_eq!(client.rest().await.unwrap(), b"");
    }
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_finish() {
    let (worker, latch) = (Worker::start().await, Latch::new());
    worker.on("/held", Behaviour::Hold(latch.clone(), Answer::ok("late")));
    let (mut idle, mut busy) = (open(&worker).await, open(&worker).await);
    idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    idle.response().await.unwrap();
    busy.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    worker.wait_for(2).await;

    worker.close_idle_connections();

    assert_eq!(idle.rest().await.unwrap(), b"");
    latch.open();
    assert_eq!(busy.response().await.unwrap().text(), "late");
}

#[tokio::test]
async fn a_body_is_echoed_with_its_trailers() {
    let worker = Worker::start().await;
    worker.when(|seen| seen.path.starts_with("/echo").then_some(Behaviour::Echo));
    let mut client = open(&worker).await;
    client
        .send("POST /echo/1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n")
        .await
        .unwrap();
    client.send("3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n").await.unwrap();
    assert_eq!(client.response().await.unwrap().text(), "abc");
    let seen = worker.wait_for_answered(1).await;
    assert_eq!((seen[0].text().as_str(), &seen[0].trailers["x-sum"]), ("abc", &"7".parse().unwrap()));
}

#[tokio::test]
async fn an_upgraded_connection_echoes() {
    let worker = Worker::start().await;
    worker.on("/", Behaviour::UpgradeAndEcho);
    let mut client = open(&worker).await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: made-up\r\n\r\n").await.unwrap();
    let response = client.head().await.unwrap();
    assert_eq!((response.status, response.header("upgrade")), (101, Some("made-up")));
    client.send("ping").await.unwrap();
    assert_eq!(client.receive(4).await.unwrap(), b"ping");
    assert_eq!(worker.seen()[0].ended, None);
    client.finish_sending().await.unwrap();
    assert_eq!(client.rest().await.unwrap(), b"");
    assert!(worker.wait_for_answered(1).await[0].answered);
}

#[tokio::test]
async fn curl_is_served_over_http_2_without_an_upgrade() {
    let worker = Worker::start().await;
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["--silent", "--show-error", "--http2-prior-knowledge", "--data", "body"]);
    let output = curl.arg(format!("{}/a", worker.endpoint())).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok", "{output:?}");
    let seen = worker.wait_for_answered(1).await;
    assert_eq!((seen[0].version, seen[0].text().as_str()), (http::Version::HTTP_2, "body"));
}

async fn open(worker: &Worker) -> Connection {
    Connection::open(worker.endpoint().clone()).await.unwrap()
}
