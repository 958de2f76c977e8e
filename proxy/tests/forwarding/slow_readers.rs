//! Clients that ask for much and read nothing, beside others.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fencepost::server::{Limits, Protocol};
use fencepost::upstream::{ConnectionQuota, Ending, Timeouts};
use http::{Request, Response};

use crate::support::{
    Client, Event, Http2Client, Http2Worker, PATIENCE, Peer, Proxy, Settings, Worker, read,
};

const MIB: usize = 1024 * 1024;
/// More than all buffers on the way hold.
const LARGE: usize = 32 * MIB;

/// A worker that has a large answer at `/large` and small ones elsewhere; at `/last`, the last of a
/// connection.
fn worker() -> std::net::SocketAddr {
    Worker::scripted(|mut peer| {
        while let Some((head, _)) = peer.next_request() {
            if head.starts_with("GET /last ") {
                let close =
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nsmall";
                return peer.send(close);
            }
            if !head.starts_with("GET /large ") {
                peer.respond("small");
                continue;
            }
            peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"));
            if peer.try_send_bytes(&vec![b'x'; LARGE]).is_err() {
                return;
            }
        }
    })
}

/// A client that has read the head of a large answer, and nothing more.
fn stalled(proxy: &Proxy) -> Client {
    let mut client = proxy.client();
    client.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
    client.head();
    client
}

#[test]
fn slow_readers_lose_connection_to_waiting_requests() {
    let proxy = Proxy::with(worker(), Settings { connections_max: 4, ..Settings::default() });
    let mut slow: Vec<Client> = (0..4).map(|_| stalled(&proxy)).collect();
    let mut honest = proxy.client();
    for _ in 0..20 {
        let (head, body) = honest.get("/small");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(body, b"small");
    }
    // One of them has given way, if not more. Whose buffers were full first, nobody can say.
    assert!(!slow.iter_mut().all(|client| client.has(LARGE)));
    drop(slow);
    let events = proxy.wait_for_events(24);
    assert!(events.iter().all(|event| *event == Event::Finished(Ending::Complete)), "{events:?}");
}

/// They made room for those alone who waited for the same worker.
#[test]
fn slow_readers_give_way_to_requests_for_another_worker() {
    let quota = ConnectionQuota::of(4, NonZeroUsize::MIN);
    let sharing = || Settings { quota: quota.clone(), ..Settings::default() };
    let proxy = Proxy::with(worker(), sharing());
    let _slow: Vec<Client> = (0..3).map(|_| stalled(&proxy)).collect();
    let busy = Worker::by_hand();
    let other = Proxy::with(busy.address(), sharing());
    let _last = other.at_worker(&busy, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let third = Proxy::with(worker(), sharing());
    let (head, _) = third.client().get("/small");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[test]
fn a_slow_reader_keeps_its_response_while_nobody_waits() {
    let proxy = Proxy::with(worker(), Settings { connections_max: 2, ..Settings::default() });
    let mut slow = stalled(&proxy);
    let mut honest = proxy.client();
    let began = Instant::now();
    // For longer than a client may stall while somebody waits.
    while began.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(honest.get("/small").1, b"small");
    }
    slow.skip(LARGE);
}

/// Who waits only until there is one more connection takes none from anybody.
#[test]
fn a_slow_reader_keeps_its_response_while_connections_are_opened() {
    let proxy = Proxy::with(worker(), Settings { connections_max: 8, ..Settings::default() });
    let mut slow = stalled(&proxy);
    let mut honest = proxy.client();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(honest.get("/last").1, b"small");
    }
    slow.skip(LARGE);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_hold_up_no_other_stream() {
    let mut worker = Http2Worker::start().await;
    let address = worker.address;
    tokio::spawn(async move {
        loop {
            let (_, mut respond) = worker.next().await;
            let mut body = respond.send_response(Response::new(()), false).unwrap();
            body.send_data(Bytes::from(vec![b'x'; 2 * MIB]), true).unwrap();
        }
    });
    let proxy = Proxy::with(
        address,
        Settings { upstream_protocol: Protocol::Http2, ..Settings::default() },
    );
    let mut slow = Http2Client::connect(proxy.address()).await;
    let mut unread = Vec::new();
    for _ in 0..60 {
        let request = Request::get("http://shard.example/large").body(()).unwrap();
        unread.push(slow.send(request).await.await.unwrap());
    }
    let mut honest = Http2Client::connect(proxy.address()).await;
    for _ in 0..5 {
        let request = Request::get("http://shard.example/").body(()).unwrap();
        let answer = honest.send(request).await.await.unwrap();
        let whole = tokio::time::timeout(PATIENCE, read(answer.into_body()))
            .await
            .expect("it is not held up");
        assert_eq!(whole.unwrap().0.len(), 2 * MIB);
    }
}

/// Takes so much of it, at some 600 KiB a second.
fn read_slowly(reader: &mut Client, length: usize) {
    const PIECE: usize = 64 * 1024;
    for _ in 0..length / PIECE {
        std::thread::sleep(Duration::from_millis(100)); // The pace is what is tested.
        reader.exactly(PIECE);
    }
}

/// That anything was read showed only when a third of all that the kernel takes, 4 MiB, was gone:
/// at 30 KiB a second after most of a minute.
#[test]
fn a_steady_slow_reader_is_not_taken_for_a_stalled_one() {
    const LENGTH: usize = 6 * MIB;
    let second = Duration::from_secs(1);
    let limits = Limits { body_timeout: second, ..Limits::default() };
    // What has come as far as the worker's own kernel, it has yet to read.
    let timeouts =
        Timeouts { silence: 2 * second, stream_idle: Some(2 * second), ..Timeouts::default() };
    let settings = Settings { limits, timeouts, ..Settings::default() };
    let client_reads = || {
        let answer = |mut peer: Peer| {
            peer.next_request();
            peer.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"));
            let _ = peer.try_send_bytes(&vec![0; LENGTH]); // Else its client says what is wrong.
        };
        let proxy = Proxy::with(Worker::scripted(answer), settings.clone());
        let mut client = proxy.client();
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        client.head();
        read_slowly(&mut client, LENGTH);
    };
    let worker_reads = || {
        let worker = Worker::by_hand();
        let proxy = Proxy::with(worker.address(), settings.clone());
        let mut client = proxy.client();
        client.send(&format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {LENGTH}\r\n\r\n"));
        let mut peer = worker.next();
        std::thread::scope(|scope| {
            scope.spawn(|| client.try_send_bytes(&vec![0; LENGTH]));
            peer.head();
            read_slowly(&mut peer, LENGTH);
        });
        peer.respond("read");
        assert_eq!(client.answer().1, b"read");
    };
    std::thread::scope(|scope| {
        scope.spawn(client_reads);
        scope.spawn(worker_reads);
    });
}
