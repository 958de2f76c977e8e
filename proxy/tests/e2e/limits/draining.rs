//! A process that ends: what comes before its client has heard of that.

use super::limited;
use crate::frames::{Client, DATA, HEADERS, RST_STREAM, ask};

/// What the answer to a stream says: its body, if it has one.
async fn said(client: &mut Client, stream: u32) -> String {
    loop {
        let frame = client.next_of(&[HEADERS, DATA, RST_STREAM]).await;
        if frame.stream == stream && (frame.kind != HEADERS || frame.is_last) {
            return String::from_utf8_lossy(&frame.payload).into_owned();
        }
    }
}

/// A client that does not answer the PING behind the first GOAWAY is not told yet which was its
/// last request.
#[tokio::test]
async fn a_process_that_drains_closes_no_door_behind_a_predecessor() {
    let (mut scene, tenure) = limited("drain_delay = \"0s\"\ndrain_timeout = \"10m\"").await;
    let latch = scene.worker.holds("/held");
    let mut client = Client::open(&scene.fence.listener, &[]).await;
    client.ignores_pings();
    client.send(ask(1, "GET", "/held", &tenure)).await;
    scene.worker.wait_for(2).await;
    scene.fence.process().terminate();
    scene.fence.until_log("step=\"closing\"").await;
    let mut stream = 3;
    loop {
        client.send(ask(stream, "GET", "/", &tenure)).await;
        let said = said(&mut client, stream).await;
        stream += 2;
        if said != "ok" {
            assert!(said.contains(r#""reason":"draining""#), "{said:?}");
            break; // It drains.
        }
    }
    client.send(ask(stream, "POST", "/.well-known/fence", &tenure)).await;
    let said = said(&mut client, stream).await;
    assert!(said.contains(r#""reason":"draining""#), "{said:?}");
    latch.open();
    scene.finish().await;
}
