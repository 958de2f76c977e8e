//! What becomes of requests at the worker when this process ceases to stand in its group.

use std::sync::Arc;
use std::time::Duration;

use fencepost::server::Protocol;
use fencepost::upstream::Ending;
use fencepost_locks::{GroupOptions, LockSource, Membership, MemoryStore, SourceOptions};
use fencepost_policy::group::{Standing, Timing};
use fencepost_tests::until;

use crate::support::{
    Certificates, Event, Http2Worker, MOMENT, Proxy, Settings, TlsWorker, Worker, read, some,
};

const UPLOAD: &str = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nbegin";
const CHUNKED: &str =
    "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n";
const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Long enough for a machine that stands still. The standing ends by the clock of the tests.
const MEMBER_TTL: Duration = Duration::from_secs(300);

/// A member of a group that has joined.
struct Member {
    source: LockSource,
}

impl Member {
    async fn joined() -> Member {
        let timing = Timing { member_ttl: MEMBER_TTL, orphan_timeout: Duration::from_secs(1) };
        let (host, version) = ("h".into(), "v".into());
        let group = GroupOptions { name: "g".into(), prefix: "/g/".into(), timing, host, version };
        let options = SourceOptions { group: Some(group), ..SourceOptions::default() };
        let source = LockSource::spawn("main", options, MemoryStore::new).unwrap();
        let member = Member { source };
        until("it stands", async || member.membership().stands()).await;
        member
    }

    fn membership(&self) -> &Arc<Membership> {
        self.source.group().unwrap()
    }

    fn lapse(&self) {
        self.membership().set_clock_ahead(MEMBER_TTL * 2 / 3);
        assert_eq!(self.membership().standing(), Standing::Lapsed);
    }

    fn cut(&self) {
        self.membership().set_clock_ahead(MEMBER_TTL);
    }

    fn stand_again(&self) {
        self.membership().set_clock_ahead(Duration::ZERO);
    }

    /// Those of a proxy that streams all bodies.
    fn settings(&self) -> Settings {
        let group = Some(Arc::clone(self.membership()));
        Settings { group, whole_bytes_max: 0, ..Settings::default() }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_pauses_until_its_process_stands_again() {
    let (member, certificates) = (Member::joined().await, Certificates::new());
    let (worker, tls_worker) =
        (Worker::by_hand(), TlsWorker::start(certificates.server(&["http/1.1"])));
    let proxy = Proxy::with(worker.address(), member.settings());
    let tls = Settings { upstream_tls: Some(certificates.client()), ..member.settings() };
    let tls_proxy = Proxy::with(tls_worker.address(), tls);
    let (mut client, mut tls_client) = (proxy.client(), tls_proxy.client());
    client.send(UPLOAD);
    tls_client.send(UPLOAD);
    let (mut peer, mut tls_peer) = (worker.next(), tls_worker.next());
    peer.head();
    assert_eq!(peer.exactly(5), b"begin");
    assert!(tls_peer.next_request().is_some());
    assert_eq!(tls_peer.exactly(5), b"begin");

    member.lapse();
    client.send("more");
    tls_client.send("more");
    assert_eq!(peer.within(MOMENT), b"");
    member.stand_again();
    assert_eq!(peer.exactly(4), b"more");
    assert_eq!(tls_peer.exactly(4), b"more");
    peer.respond("done");
    tls_peer.respond("done");
    assert_eq!((client.answer().1, tls_client.answer().1), (b"done".to_vec(), b"done".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_unfinished_ends_with_the_standing() {
    let member = Member::joined().await;
    let worker = Worker::by_hand();
    let proxy = Proxy::with(worker.address(), member.settings());
    let (mut uploading, mut asking, mut switched) =
        (proxy.client(), proxy.client(), proxy.client());
    uploading.send(&UPLOAD.replace("9", "100"));
    let mut upload = worker.next();
    upload.head();
    assert_eq!(upload.exactly(5), b"begin");
    asking.send(GET);
    let mut request = worker.next();
    request.head();
    switched.send(UPGRADE);
    let mut tunnel = worker.next();
    tunnel.head();
    tunnel.send(SWITCH);
    switched.head();

    member.lapse();
    uploading.send("more");
    switched.send("more");
    assert_eq!(upload.within(MOMENT), b"");
    member.cut();
    for peer in [&mut upload, &mut request, &mut tunnel] {
        assert_eq!(peer.until_end(), b"");
    }
    let events = proxy.wait_for_events(3);
    assert!(events.contains(&Event::Finished(Ending::BodyCut)), "{events:?}");
    assert_eq!(
        events.iter().filter(|event| **event == Event::Finished(Ending::Reset)).count(),
        2,
        "{events:?}"
    );
    for client in [&mut uploading, &mut asking] {
        assert!(client.head().starts_with("HTTP/1.1 502 "));
    }
    assert_eq!(switched.until_end(), b"");

    member.stand_again();
    let mut client = proxy.client();
    client.send(GET);
    let mut peer = worker.next();
    peer.next_request();
    peer.respond("done");
    assert_eq!(client.answer().1, b"done");
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_requests_end_with_the_standing() {
    let member = Member::joined().await;
    let mut worker = Http2Worker::start().await;
    let proxy = Proxy::with(
        worker.address,
        Settings { upstream_protocol: Protocol::Http2, ..member.settings() },
    );
    let (mut uploading, mut asking) = (proxy.client(), proxy.client());
    uploading.send(CHUNKED);
    let (request, _respond) = worker.next().await;
    let mut body = request.into_body();
    assert_eq!(some(&mut body, 5).await, b"begin");
    asking.send(GET);
    let (_request, _respond) = worker.next().await;

    member.lapse();
    uploading.send("4\r\nmore\r\n");
    member.cut();
    assert!(read(body).await.is_err(), "neither more nor an end");
    let events = tokio::task::block_in_place(|| proxy.wait_for_events(2));
    assert!(events.contains(&Event::Finished(Ending::BodyCut)), "{events:?}");
    assert!(events.contains(&Event::Finished(Ending::Reset)), "{events:?}");
}
