use fencepost_tests::{Etcd, EtcdVersion, eventually, request};

use super::*;

#[tokio::test]
async fn the_example_applies_writes_of_the_holder_and_of_nobody_else() {
    let etcd = Etcd::start(EtcdVersion::V3_5).await;
    let fence = Fence::etcd([etcd.endpoint()]).build().unwrap();
    let layer = fence.lock("/lock").layer().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let journal = Journal::default();
    tokio::spawn(serve(listener, fence, layer, Arc::clone(&journal)));
    let ready = async || request(address, "GET", "/readyz", &[], b"").await.unwrap().status;
    eventually("the server is ready", async || (ready().await == 200).then_some(())).await;

    let takes = async |owner: &str| {
        let put = etcd.etcdctl(&["put", "/lock", owner, "-w", "json"]).await;
        let answer: serde_json::Value = serde_json::from_str(&put).unwrap();
        answer["header"]["revision"].to_string()
    };
    let write = async |owner: &str, revision: &str, text: &str| {
        let token = [("Fence-Owner", owner), ("Fence-Revision", revision)];
        request(address, "POST", "/apply", &token, text.as_bytes()).await.unwrap()
    };
    let first = takes("shard-1").await;
    let answered = write("shard-1", &first, "one").await;
    assert_eq!((answered.status, answered.text()), (200, "applied".to_owned()));
    let second = takes("shard-2").await;
    assert_eq!(write("shard-2", &second, "two").await.status, 200);
    let third = takes("shard-1").await;
    assert_eq!(write("shard-1", &third, "three").await.status, 200);
    let late = write("shard-1", &first, "late").await;
    assert_eq!((late.status, late.header("fence-reason")), (412, Some("replayed-tenure")));
    let bare = request(address, "POST", "/apply", &[], b"x").await.unwrap();
    assert_eq!(bare.status, 428);

    let written = journal.lock().unwrap().clone();
    assert_eq!(
        written,
        [format!("{first}: one"), format!("{second}: two"), format!("{third}: three")]
    );
}
