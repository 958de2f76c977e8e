//! HTTP/2: answers that are read slowly, and those that are not read.

use std::time::Duration;

use fencepost_tests::{Answer, Behaviour, EtcdVersion, PATIENCE, Scratch, eventually};
use serde_json::json;

use super::{closed, connect, head, limited};
use crate::fencepost::Route;
use crate::frames::{Client, DATA, HEADERS, NO_ERROR, RST_STREAM, WINDOW_UPDATE, ask, frame};
use crate::observed::lines_of;
use crate::scene::Scene;
use crate::store::Tenure;

/// Room for 500 bytes of each answer.
const NARROW: &[u8] = &[0, 4, 0, 0, 0x01, 0xf4];
/// What goes to h2 with its end, and what does not.
const SIZES: [usize; 2] = [3_000, 20_000];

/// A client that has asked for so many bytes, and has room for 500.
async fn asks_for(bytes: usize, scene: &Scene, tenure: &Tenure) -> Client {
    scene.worker.on("/large", Behaviour::Answer(Answer::ok(vec![b'x'; bytes])));
    let mut client = Client::open(&scene.fence.listener, NARROW).await;
    client.send(ask(1, "GET", "/large", tenure)).await;
    client.next(HEADERS).await;
    client
}

/// Reads what there is room for, and makes as much room again after a pause, until the answer ends.
/// Returns how much it was, if it is whole.
async fn read(client: &mut Client, pause: Duration) -> Option<usize> {
    let mut read = 0;
    loop {
        let piece = client.next_of(&[DATA, RST_STREAM]).await;
        if piece.kind == RST_STREAM {
            return None;
        }
        read += piece.payload.len();
        if piece.is_last {
            return Some(read);
        }
        tokio::time::sleep(pause).await; // The pace is what is tested.
        let room = u32::try_from(piece.payload.len()).unwrap().to_be_bytes();
        client
            .send([frame(WINDOW_UPDATE, 0, 0, &room), frame(WINDOW_UPDATE, 0, 1, &room)].concat())
            .await;
    }
}

/// Time in which a response waits for the shared window does not count against a client that reads.
#[tokio::test]
async fn a_steady_reader_may_ask_for_small_answers_meanwhile() {
    let (scene, tenure) = limited("body_timeout = \"500ms\"").await;
    scene.worker.on("/large", Behaviour::Answer(Answer::ok(vec![b'x'; 200_000])));
    scene.worker.on("/small", Behaviour::Answer(Answer::ok(b"ok".to_vec())));
    let mut client = Client::open(&scene.fence.listener, &[0, 4, 0x10, 0, 0, 0]).await;
    client.send(ask(1, "GET", "/large", &tenure)).await;
    let (mut ended, mut unread) = (0, 65_535);
    let pieces = 100; // Four times as long as it may be silent.
    for stream in (3..).step_by(2).take(pieces) {
        while unread > 0 {
            let piece = client.next(DATA).await;
            unread -= piece.payload.len();
            ended += usize::from(piece.is_last);
        }
        client.send(ask(stream, "GET", "/small", &tenure)).await;
        tokio::time::sleep(Duration::from_millis(20)).await; // The pace is what is tested.
        client.send(frame(WINDOW_UPDATE, 0, 0, &400_u32.to_be_bytes())).await;
        unread = 400;
    }
    client.send(frame(WINDOW_UPDATE, 0, 0, &1_000_000_u32.to_be_bytes())).await;
    while ended < pieces + 1 {
        ended += usize::from(client.next(DATA).await.is_last);
    }
    scene.finish().await;
}

/// The time that a piece of an answer took to drain was taken for a silence: of 20,000 bytes at 140
/// B/s, a client got 5,200.
#[tokio::test]
async fn a_client_that_reads_slowly_gets_its_whole_response() {
    let (scene, tenure) = limited("body_timeout = \"2s\"").await; // 20,000 bytes take twice as long.
    for bytes in SIZES {
        let mut client = asks_for(bytes, &scene, &tenure).await;
        assert_eq!(read(&mut client, Duration::from_millis(100)).await, Some(bytes));
    }
    scene.finish().await;
}

/// An answer had ended once h2 had it: its connection was idle then, made room for others, and the
/// access log called the answer complete.
#[tokio::test]
async fn a_connection_with_an_unread_response_makes_no_room() {
    let lines = "connections_max = 2\nconnections_per_client_max = 3\nidle_timeout = \"1s\"";
    let (scene, tenure) = limited(lines).await;
    for bytes in SIZES {
        let mut slow = asks_for(bytes, &scene, &tenure).await;
        let mut idle = connect(&scene).await;
        idle.send(head("GET", "/idle", &tenure, "")).await.unwrap();
        assert_eq!(idle.response().await.unwrap().status, 200);
        scene.admits("/new", &tenure).await;
        assert_eq!(idle.rest().await.unwrap(), b"", "it made room");
        let mut later = connect(&scene).await;
        later.send(head("GET", "/later", &tenure, "")).await.unwrap();
        assert_eq!(later.response().await.unwrap().status, 200);
        assert_eq!(
            later.rest().await.unwrap(),
            b"",
            "it was idle for too long, and not for as long as the slow one has been there"
        );
        assert_eq!(read(&mut slow, Duration::ZERO).await, Some(bytes));
    }
    scene.finish().await;
}

#[tokio::test]
async fn an_unread_stream_is_reset_and_its_log_line_says_how_far() {
    let scratch = Scratch::new();
    let file = scratch.path().join("access.log");
    let log = format!("[access_log]\npath = {file:?}");
    let routes = [Route::new("k", "/", r#"key = "/k""#)];
    let scene = Scene::with(EtcdVersion::V3_5, &routes, |config| {
        config.limit("body_timeout = \"500ms\"").section(&log)
    })
    .await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    let mut client = asks_for(20_000, &scene, &tenure).await;
    let reset = tokio::time::timeout(PATIENCE, client.next(RST_STREAM)).await.expect("it is reset");
    assert_eq!(reset.stream, 1);
    client.send(ask(3, "HEAD", "/", &tenure)).await;
    assert!(client.is_answered(3).await);
    let line = eventually("its line is written", async || {
        lines_of(&file).into_iter().find(|line| line["target"] == "/large")
    })
    .await;
    assert_eq!([&line["sent_bytes"], &line["complete"]], [&json!(500), &json!(false)], "{line}");
    scene.finish().await;
}

/// h2 has its end by then, so that its stream can't be reset any more.
#[tokio::test]
async fn an_unread_rest_of_a_short_response_ends_the_connection() {
    let (scene, tenure) = limited("body_timeout = \"500ms\"").await;
    let mut client = asks_for(3_000, &scene, &tenure).await;
    let ended = tokio::time::timeout(PATIENCE, client.is_ended_with(NO_ERROR)).await;
    assert!(ended.is_ok(), "it hangs");
    assert_eq!(closed(&scene, "body_timeout").await, 1.0);
    scene.finish().await;
}
