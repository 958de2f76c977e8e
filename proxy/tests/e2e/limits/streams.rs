//! HTTP/2: streams that are reset, frames that cost nothing to send.

use std::time::Duration;

use fencepost_tests::{Answer, Behaviour, BodyEnd, EtcdVersion, Latch, PATIENCE, Seen, eventually};

use super::{MIB, closed, limited};
use crate::fencepost::{Config, Route};
use crate::frames::{
    CONTINUATION, Client, DATA, ENHANCE_YOUR_CALM, GOAWAY, HEADERS, NO_ERROR, PING, PRIORITY,
    REFUSED_STREAM, RST_STREAM, SETTINGS, WINDOW_UPDATE, ask, begin, code, flood, frame, literal,
    reset, says_goodbye,
};
use crate::scene::{Ask, Scene};

#[tokio::test]
async fn a_reset_request_keeps_its_stream_until_it_has_ended() {
    let (scene, tenure) = limited("h2_streams_max = 3").await;
    let latch = scene.worker.holds("/held");
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    let mut stream = 1;
    for count in 1..=3 {
        client.send(ask(stream, "GET", "/held", &tenure)).await;
        let at_worker = |seen: &[_]| seen.len() == 1 + count;
        scene.worker.wait_until("it is at the worker", at_worker).await;
        client.send(reset(stream)).await;
        stream += 2;
    }
    client.send(ask(stream, "GET", "/", &tenure)).await;
    let refused = client.next(RST_STREAM).await;
    assert_eq!((refused.stream, code(&refused)), (stream, REFUSED_STREAM));
    latch.open();
    scene.worker.wait_for_answered(4).await;
    eventually("there is a stream again", async || {
        stream += 2;
        client.send(ask(stream, "GET", "/", &tenure)).await;
        client.is_answered(stream).await.then_some(())
    })
    .await;
    scene.finish().await;
}

#[tokio::test]
async fn rapid_resets_end_the_connection_and_others_are_answered() {
    let (scene, tenure) = limited("h2_resets_max = 50").await;
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    let mut resets = 0;
    // Time allows a few more.
    let goodbye = loop {
        let stream = 1 + 2 * resets;
        client.send(ask(stream, "GET", "/", &tenure)).await;
        let back = client.next_of(&[HEADERS, GOAWAY]).await;
        if back.kind == GOAWAY {
            break back;
        }
        client.send(reset(stream)).await;
        resets += 1;
        assert!(resets < 1_000, "nobody minds");
    };
    assert_eq!(code(&goodbye), ENHANCE_YOUR_CALM);
    assert!(resets > 50, "ended after {resets} resets");
    assert_eq!(closed(&scene, "h2_resets_max").await, 1.0);
    scene.admits("/", &tenure).await;
    // As fast as it can, by the defaults: most are reset before anybody looks at them.
    let (scene, tenure) = limited("").await;
    let latch = scene.worker.holds("/held");
    let before = scene.fence.memory_peak();
    let attack = |first: u32| {
        let server = scene.fence.listener.clone();
        let rapid: Vec<u8> = (0..20_000)
            .map(|number| first + 2 * number)
            .flat_map(|stream| [ask(stream, "GET", "/held", &tenure), reset(stream)].concat())
            .collect();
        tokio::spawn(async move { flood(&server, rapid, &frame(PING, 0, 0, &[0; 8])).await })
    };
    let attacks: Vec<_> = (0..20).map(|_| attack(1)).collect();
    for _ in 0..50 {
        scene.admits("/", &tenure).await;
    }
    for attack in attacks {
        attack.await.unwrap();
    }
    let held = scene.worker.seen().iter().filter(|one| one.path == "/held").count();
    println!("20 connections with 20,000 resets each: {held} requests at the worker");
    assert!(held <= 20 * 128, "{held} requests at the worker");
    let grown = scene.fence.memory_peak() - before;
    assert!(grown < 64 * MIB, "{grown} bytes");
    latch.open();
    scene.admits("/", &tenure).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_flood_of_frames_ends_its_connection_alone() {
    let (scene, tenure) = limited("").await;
    let first = ask(1, "GET", "/", &tenure);
    let open = begin(1, "/", &tenure);
    let floods = [
        ("PING", Vec::new(), frame(PING, 0, 0, &[0; 8])),
        ("acknowledged PING", Vec::new(), frame(PING, 1, 0, &[0; 8])),
        ("SETTINGS", Vec::new(), frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        ("empty SETTINGS", Vec::new(), frame(SETTINGS, 0, 0, &[])),
        ("PRIORITY", first.clone(), frame(PRIORITY, 0, 3, &[0, 0, 0, 1, 7])),
        ("WINDOW_UPDATE", Vec::new(), frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        ("empty DATA", open.clone(), frame(DATA, 0, 1, &[])),
        ("an unknown kind", first.clone(), frame(0xbe, 0, 0, &[1])),
        ("CONTINUATION", frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, 0, 1, &[])),
        (
            "long CONTINUATION",
            frame(HEADERS, 0, 1, &[]),
            frame(CONTINUATION, 0, 1, &literal("x-long", &"x".repeat(9_000), 0)),
        ),
    ];
    let before = scene.fence.memory_peak();
    for (name, first, again) in floods {
        let server = scene.fence.listener.clone();
        let flooding = tokio::spawn(async move { flood(&server, first, &again).await });
        while !flooding.is_finished() {
            scene.admits("/", &tenure).await;
        }
        let back = flooding.await.unwrap();
        let calm = says_goodbye(&back, ENHANCE_YOUR_CALM);
        println!("{name}: {} bytes came back; told to calm down: {calm}", back.len());
    }
    assert!(closed(&scene, "h2_control_frames_max").await >= 7.0);
    let grown = scene.fence.memory_peak() - before;
    println!("floods: the peak of memory grew by {} KiB", grown / 1024);
    assert!(grown < 32 * MIB, "{grown} bytes");
    scene.finish().await;
}

/// grpc-go sends both for each piece that it reads.
#[tokio::test]
async fn a_client_may_ping_and_open_its_window_for_each_piece() {
    const PIECES: usize = 500;
    let (scene, tenure) = limited("h2_control_frames_max = 100").await;
    let pieces = Answer::ok("x".repeat(PIECES)).trickling(1, Duration::from_millis(1));
    scene.worker.on("/pieces", Behaviour::Answer(pieces));
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    client.send(ask(1, "GET", "/pieces", &tenure)).await;
    let (mut read, mut count) = (0, 0);
    // On a busy machine some of them come together. Of more than 55, two frames for each were too
    // many.
    loop {
        let piece = client.next_of(&[DATA, RST_STREAM, GOAWAY]).await;
        assert_eq!(piece.kind, DATA, "after {count} pieces");
        (read, count) = (read + piece.payload.len(), count + 1);
        if piece.is_last {
            break;
        }
        let room = u32::try_from(piece.payload.len()).unwrap().max(1).to_be_bytes();
        client.send([frame(WINDOW_UPDATE, 0, 0, &room), frame(PING, 0, 0, &[0; 8])].concat()).await;
    }
    assert_eq!(read, PIECES);
    assert_eq!(closed(&scene, "h2_control_frames_max").await, 0.0);
    scene.finish().await;
}

#[tokio::test]
async fn header_bombs_are_refused_and_take_no_memory() {
    let (scene, tenure) = limited("headers_max = 50").await;
    let before = scene.fence.memory_peak();
    for _ in 0..20 {
        let mut client = Client::open(&scene.fence.listener, &[]).await;
        let entry = literal("x", &"x".repeat(4_000), 0x40);
        // The newest entry of the table, again and again.
        let bomb = [entry, vec![0x80 | 62; 12_000]].concat();
        client.send(frame(HEADERS, 0x5, 1, &bomb)).await;
        assert!(!client.is_answered(1).await);
    }
    let mut many = Client::open(&scene.fence.listener, &[]).await;
    let mut fields = ask(1, "GET", "/many", &tenure)[9..].to_vec();
    fields.extend((0..60).flat_map(|number| literal(&format!("x-{number}"), "x", 0)));
    many.send(frame(HEADERS, 0x5, 1, &fields)).await;
    assert!(!many.is_answered(1).await);
    assert!(scene.worker.seen().iter().all(|one| one.path != "/many"));
    let grown = scene.fence.memory_peak() - before;
    assert!(grown < 32 * MIB, "{grown} bytes");
    scene.finish().await;
}

#[tokio::test]
async fn a_connection_with_pings_and_no_requests_is_idle() {
    let (scene, tenure) = limited("idle_timeout = \"2s\"").await;
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    client.send(ask(1, "GET", "/", &tenure)).await;
    assert!(client.is_answered(1).await);
    let pinging = async {
        loop {
            client.send(frame(PING, 0, 0, &[0; 8])).await;
            tokio::time::sleep(Duration::from_millis(10)).await; // Not a flood.
            let back = client.next_of(&[PING, GOAWAY]).await;
            if back.kind == GOAWAY {
                break code(&back);
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, pinging).await, Ok(NO_ERROR));
    assert_eq!(closed(&scene, "idle_timeout").await, 1.0);
}

/// A PING lies behind everything that the client has yet to read.
#[tokio::test]
async fn a_client_that_answers_no_ping_keeps_its_connection() {
    let (scene, tenure) = limited("body_timeout = \"500ms\"\nheader_timeout = \"500ms\"").await;
    let latch = scene.worker.holds("/held");
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    client.ignores_pings();
    client.send(ask(1, "GET", "/held", &tenure)).await;
    scene.worker.wait_for(2).await;
    // Nothing can be waited for here: the point is that nothing happens.
    tokio::time::sleep(Duration::from_secs(2)).await;
    latch.open();
    assert!(client.is_answered(1).await);
    scene.finish().await;
}

#[tokio::test]
async fn after_the_last_request_of_an_http_2_connection_comes_goaway() {
    let (scene, tenure) = limited("requests_per_connection_max = 2").await;
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    for stream in [1, 3] {
        client.send(ask(stream, "GET", "/", &tenure)).await;
        if stream == 1 {
            assert!(client.is_answered(1).await);
        }
    }
    assert!(client.is_ended_with(NO_ERROR).await);
    assert_eq!(scene.worker.seen().len(), 3, "the last is answered all the same");
    assert_eq!(closed(&scene, "requests_per_connection_max").await, 1.0);
}

/// A client that never answers the PING behind the first GOAWAY is never told which was its last.
#[tokio::test]
async fn a_client_that_ignores_goaway_gets_no_more_requests() {
    let (scene, tenure) = limited("requests_per_connection_max = 2\nh2_streams_max = 3").await;
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    client.ignores_pings();
    for number in 0..20 {
        let stream = 1 + 2 * number;
        client.send(ask(stream, "GET", "/", &tenure)).await;
        loop {
            let frame = client.next_of(&[HEADERS, RST_STREAM]).await;
            if frame.stream == stream {
                assert_eq!(frame.kind == HEADERS, number < 2 + 3, "request {number}");
                break;
            }
        }
    }
    scene.finish().await;
}

#[tokio::test]
async fn a_stream_whose_answer_is_not_read_is_reset_and_others_go_on() {
    let (scene, tenure) = limited("body_timeout = \"500ms\"").await;
    scene.worker.on("/large", Behaviour::Answer(Answer::ok(vec![b'x'; MIB as usize])));
    // No window for any stream.
    let mut client = Client::open(&scene.fence.listener, &[0, 4, 0, 0, 0, 0]).await;
    client.send(ask(1, "GET", "/large", &tenure)).await;
    client.next(HEADERS).await;
    for number in 1..=4 {
        client.send(ask(1 + 2 * number, "HEAD", "/", &tenure)).await;
        assert!(client.is_answered(1 + 2 * number).await);
    }
    let reset = tokio::time::timeout(PATIENCE, client.next(RST_STREAM)).await.expect("it is reset");
    assert_eq!(reset.stream, 1);
    client.send(ask(11, "HEAD", "/", &tenure)).await;
    assert!(client.is_answered(11).await);
    scene.until_at_worker("/k", 0, 0).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_silent_upload_stream_gets_408_and_others_go_on() {
    let (scene, tenure) = limited("body_timeout = \"500ms\"").await;
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    client.send([begin(1, "/silent", &tenure), frame(DATA, 0, 1, b"half")].concat()).await;
    let problem = String::from_utf8(client.next(DATA).await.payload).unwrap();
    assert!(
        problem.contains(r#""status":408,"failure":"slow-body","forwarded":"unknown""#),
        "{problem}"
    );
    client.send(ask(3, "HEAD", "/", &tenure)).await;
    assert!(client.is_answered(3).await);
    let is_cut = |seen: &[Seen]| {
        seen.iter().any(|one| one.path == "/silent" && one.body_end == Some(BodyEnd::Cut))
    };
    scene.worker.wait_until("it is cut", is_cut).await;
    scene.finish().await;
}

/// Four of them used up what a connection may send ahead, and another upload of it was told after
/// `body_timeout` that it had not come.
#[tokio::test]
async fn waiting_uploads_hold_up_no_other_upload() {
    let routes = [
        Route::new("k", "/k/", r#"key = "/k""#).with(r#"handoff_timeout = "60s""#),
        Route::new("open", "/open/", r#"key = "/k""#).with(r#"mode = "off""#),
    ];
    let limits = |config: Config| config.limit("h2_streams_max = 40");
    let scene = Scene::with(EtcdVersion::V3_5, &routes, limits).await;
    let latch = Latch::new();
    scene.worker.on("/k/held", Behaviour::Hold(latch.clone(), Answer::ok("ok")));
    let before = scene.store.hold("/k", "shard-1").await;
    let held = scene.start_at_worker(Ask::post("/k/held").under(&before)).await;
    let tenure = scene.store.hold("/k", "shard-2").await;
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    let settings = client.next(SETTINGS).await.payload;
    let of_stream =
        settings.chunks(6).find_map(|one| one.strip_prefix(&[0, 4])).expect("a window of its own");
    let of_stream = number(of_stream);
    let mut left = 65_535 + number(&client.next(WINDOW_UPDATE).await.payload);
    let waiting = (0..39).map(|number| 1 + 2 * number);
    for stream in waiting.clone() {
        client.send(begin(stream, "/k/waits", &tenure)).await;
        let room = of_stream.min(left);
        for piece in vec![b'x'; room].chunks(16 * 1024) {
            client.send(frame(DATA, 0, stream, piece)).await;
        }
        left -= room;
    }
    assert!(left >= 5, "there is no room for any other");
    client.send([begin(79, "/open/", &tenure), frame(DATA, 1, 79, b"other")].concat()).await;
    assert!(client.is_answered(79).await);
    latch.open();
    assert_eq!(held.await.unwrap().status, 200);
    for stream in waiting {
        client.send(frame(DATA, 1, stream, b"")).await;
    }
    let are_there = |seen: &[Seen]| seen.iter().filter(|one| one.path == "/k/waits").count() == 39;
    scene.worker.wait_until("all are there", are_there).await;
    scene.until_at_worker("/k", 0, 0).await;
    scene.finish().await;
}

fn number(bytes: &[u8]) -> usize {
    usize::try_from(u32::from_be_bytes(bytes.try_into().unwrap())).unwrap()
}
