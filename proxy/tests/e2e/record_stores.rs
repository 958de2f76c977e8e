//! Stores whose records name their own tenures, through the whole program.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use fencepost_tests::{ApiServer, Consul, Worker, Zookeeper};

use crate::fencepost::Fencepost;
use crate::programs::{python_binary, workspace};
use crate::refusal::reason;
use crate::scene::{Ask, Ledger, send};
use crate::store::Tenure;

const TAKEOVERS: usize = 300;

/// The delayed write, and takeovers, of a lock that `take` takes for an owner.
async fn tells_tenures_apart(
    source: &str,
    lock: &str,
    mut take: impl AsyncFnMut(&str) -> Tenure,
) -> Fencepost {
    let worker = Worker::start().await;
    let first = take("shard-1").await;
    let fence = Fencepost::launch_text(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[source.store]\n{source}\n\
         [[route]]\nname = \"one\"\npath = \"/\"\nupstream = \"{}\"\nlock = {{ source = \"store\", {lock} }}\n",
        worker.endpoint()
    ))
    .await;
    fence.wait_until_ready().await;
    let ledger = Ledger::default();
    let ask = async |path: &str, tenure: &Tenure| {
        send(&fence.listener, &ledger, Ask::post(path).under(tenure)).await
    };
    assert_eq!(ask("/first", &first).await.status, 200);
    let second = take("shard-2").await;
    assert_eq!(ask("/second", &second).await.status, 200);
    let third = take("shard-1").await;
    assert_eq!(ask("/third", &third).await.status, 200);
    let delayed = ask("/delayed", &first).await;
    assert_eq!(delayed.status, 412, "{}", delayed.text());
    assert!(matches!(reason(&delayed), Some("replayed-tenure" | "stale-tenure")));
    let mut before = third;
    for round in 1..=TAKEOVERS {
        let now = take(&format!("shard-{}", round % 3)).await;
        let answer = ask("/new", &now).await;
        assert_eq!(answer.status, 200, "takeover {round}, {now:?}: {}", answer.text());
        let late = ask("/delayed", &before).await;
        assert_eq!(late.status, 412, "takeover {round}, {before:?}: {}", late.text());
        before = now;
    }
    let seen = worker.seen();
    assert_eq!(seen.iter().filter(|seen| seen.path == "/new").count(), TAKEOVERS);
    assert!(!seen.iter().any(|seen| seen.path == "/delayed"), "{seen:?}");
    fence
}

#[tokio::test]
async fn consul_locks_are_told_apart() {
    let Some(consul) = Consul::start().await else { return };
    let source = format!("kind = \"consul\"\nurl = \"http://{}\"", consul.address());
    let mut holder: Option<String> = None;
    let take = async |_: &str| {
        if let Some(before) = holder.take() {
            consul.ask("PUT", &format!("/v1/session/destroy/{before}"), b"").await.unwrap();
        }
        let session = consul.session().await;
        assert!(consul.acquire("locks/orders", &session, b"").await);
        holder = Some(session.clone());
        let (index, _) = consul.key("locks/orders").await.unwrap();
        Tenure::new(&session, index.try_into().unwrap())
    };
    tells_tenures_apart(&source, r#"key = "locks/orders""#, take).await;
}

#[tokio::test]
async fn leases_of_kubernetes_are_told_apart() {
    let Some(server) = ApiServer::start().await else { return };
    server.permit_reader().await;
    let source = format!(
        "kind = \"kubernetes\"\nurl = \"https://{}\"\ntls = {{ ca = {:?} }}\ntoken_file = {:?}",
        server.address(),
        server.authority_file(),
        server.token_file("reader")
    );
    let take = async |owner: &str| {
        // What the holder writes to its own Lease begins no tenure: it gives it back first.
        server.hold("orders", "").await;
        let lease = server.hold("orders", owner).await;
        Tenure::new(owner, lease.resource_version.try_into().unwrap())
    };
    tells_tenures_apart(&source, r#"key = "default/orders""#, take).await;
}

/// kazoo takes the locks, which are queues: the next holder waits for the one before it.
#[tokio::test]
async fn zookeeper_locks_are_told_apart() {
    let zookeeper = Zookeeper::start().await;
    let source = format!("kind = \"zookeeper\"\nservers = [\"{}\"]", zookeeper.address());
    let mut masters = Command::new(python_binary())
        .arg(workspace().join("locks/tests/records/kazoo_masters.py"))
        .arg(zookeeper.address().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut orders = masters.stdin.take().unwrap();
    let mut answers = BufReader::new(masters.stdout.take().unwrap()).lines();
    let take = async |owner: &str| {
        writeln!(orders, "take /locks/orders {owner}").unwrap();
        let answer = answers.next().expect("kazoo answers each order").unwrap();
        let (_, czxid) = answer.split_once(' ').unwrap();
        Tenure::new(owner, czxid.parse().unwrap())
    };
    let lock = r#"key = "/locks/orders", layout = "election""#;
    tells_tenures_apart(&source, lock, take).await;
    masters.kill().unwrap();
    masters.wait().unwrap();
}
