//! A panic within the body of a request ends this request only.

use fencepost::upstream::Ending;

use crate::support::{Event, Proxy};

#[test]
fn an_upload_whose_body_panics_is_answered_at_once() {
    let (worker, tenures, proxy) = Proxy::fenced();
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
