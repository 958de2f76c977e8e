//! What becomes of a request when something of it panics on the way.

use fencepost::upstream::Ending;

use crate::support::{Event, Proxy, Settings, Tenures, Worker};

#[test]
fn an_upload_whose_body_panics_is_answered_at_once_and_its_thread_goes_on() {
    let (worker, tenures) = (Worker::by_hand(), Tenures::new());
    let settings = Settings { tenures: vec![("/", tenures.clone())], ..Settings::default() };
    let proxy = Proxy::with(worker.address(), settings);
    let mut client = proxy.client();
    client
        .send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n");
    let mut peer = worker.next();
    peer.head();
    tenures.fail_in_bodies();
    client.send("5\r\nagain\r\n");
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert_eq!(
        proxy.wait_for_events(1),
        [Event::Finished(Ending::BodyCut)],
        "the worker has a part"
    );

    let mut another = proxy.client();
    another.send("GET /other HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut peer = worker.next();
    peer.head();
    peer.respond("well");
    assert_eq!(another.answer().1, b"well");
}
