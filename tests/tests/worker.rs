//! A worker that remembers, asked by the small client and by curl.

use fencepost_tests::{Answer, Behaviour, BodyEnd, Connection, Latch, Worker, request};

#[tokio::test]
async fn a_request_is_recorded_and_answered() {
    for worker in [Worker::start().await, Worker::start_unix().await] {
        let endpoint = worker.endpoint().clone();
        let response =
            request(endpoint, "PUT", "/a/b?c=d", &[("x-one", "1")], b"body").await.unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));

        let [seen] = worker.wait_for_answered(1).await.try_into().unwrap();
        assert_eq!(
            (seen.method.as_str(), seen.path.as_str(), seen.query.as_deref()),
            ("PUT", "/a/b", Some("c=d"))
        );
        assert_eq!(
            (seen.header("x-one"), seen.text().as_str(), seen.body_bytes),
            (Some("1"), "body", 4)
        );
        assert_eq!(seen.body_end, Some(BodyEnd::Whole));
        assert!(seen.ended.unwrap() >= seen.began);
    }
}

#[tokio::test]
async fn a_held_request_is_answered_when_it_is_released() {
    let (worker, latch) = (Worker::start().await, Latch::new());
    worker.on("/held", Behaviour::Hold(latch.clone(), Answer::status(201, "late")));
    let mut client = open(&worker).await;
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert!(!worker.wait_for(1).await[0].answered);
    assert_eq!(
        request(worker.endpoint().clone(), "GET", "/", &[], b"").await.unwrap().text(),
        "ok"
    );

    latch.open();

    assert_eq!(client.response().await.unwrap().status, 201);
    let seen = worker.wait_for_answered(2).await;
    assert!(seen[0].ended > seen[1].ended);
}

#[tokio::test]
async fn an_early_answer_comes_before_the_body_is_read() {
    let worker = Worker::start().await;
    worker.on("/early", Behaviour::Early(Answer::status(413, "no")));
    let mut client = open(&worker).await;
    client.send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n").await.unwrap();
    assert_eq!(client.response().await.unwrap().status, 413);
    client.send("body").await.unwrap();
    worker.wait_until("the whole body", |seen| seen[0].body_end == Some(BodyEnd::Whole)).await;
}

#[tokio::test]
async fn a_cut_body_is_recorded_as_cut() {
    let worker = Worker::start().await;
    let mut client = open(&worker).await;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
    worker
        .wait_until("half the body", |seen| seen.first().is_some_and(|seen| seen.body_bytes == 4))
        .await;
    drop(client);
    let seen = worker
        .wait_until("the cut", |seen| seen[0].body_end.is_some() && seen[0].ended.is_some())
        .await;
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

async fn open(worker: &Worker) -> Connection {
    Connection::open(worker.endpoint().clone()).await.unwrap()
}
