//! What `deploy/group` has for several fenceposts before one worker.

use std::cell::Cell;
use std::process::Command;

use fencepost_tests::{
    Endpoint, Etcd, EtcdVersion, FreePort, Process, Scratch, Worker, eventually, until,
};
use tokio::net::TcpStream;

use crate::fencepost::{BINARY, Fencepost};
use crate::programs::{manifest, printed, workspace, yaml};
use crate::refusal::assert_refused;
use crate::scene::{Ask, Ledger, send};
use crate::store::Store;

fn file(name: &str) -> String {
    std::fs::read_to_string(workspace().join("deploy/group").join(name)).unwrap()
}

/// A text, with the addresses as they are here.
fn here(text: &str, addresses: &[(&str, String)]) -> String {
    addresses.iter().fold(text.to_owned(), |text, (written, here)| {
        assert!(text.contains(written), "{written}");
        text.replace(written, here)
    })
}

/// A member, and the port of its admin listener, which its file names twice.
struct Member {
    fence: Fencepost,
    _admin: FreePort,
}

impl Member {
    async fn start(etcd: &Etcd, worker: &Worker) -> Member {
        let admin = FreePort::reserve();
        let endpoints = r#"["http://etcd-0:2379", "http://etcd-1:2379", "http://etcd-2:2379"]"#;
        let addresses = [
            (endpoints, format!("[{:?}]", etcd.endpoint())),
            ("http://worker:9000", worker.endpoint().to_string()),
            ("0.0.0.0:8080", "127.0.0.1:0".to_owned()),
            ("127.0.0.1:9901", admin.address().to_string()),
        ];
        let fence = Fencepost::launch_text(&here(&file("fencepost.toml"), &addresses)).await;
        fence.wait_until_ready().await;
        Member { fence, _admin: admin }
    }

    async fn until_live(&self, members: f64) {
        self.fence.until_metric("fencepost_group_members{state=\"live\"}", members).await;
    }

    fn address(&self) -> String {
        let Endpoint::Tcp(address) = &self.fence.listener else { panic!("it listens on TCP") };
        address.to_string()
    }
}

/// HAProxy with its file, before these members.
async fn balance(members: [&Member; 2]) -> (Process, Scratch, FreePort) {
    let (port, scratch) = (FreePort::reserve(), Scratch::new());
    let [one, other] = members.map(Member::address);
    let addresses = [
        ("0.0.0.0:8000", port.address().to_string()),
        ("fencepost-2:8080", other),
        ("fencepost:8080", one),
    ];
    let config = scratch.path().join("haproxy.cfg");
    std::fs::write(&config, here(&file("haproxy.cfg"), &addresses)).unwrap();
    let mut command = Command::new("/usr/sbin/haproxy");
    command.arg("-db").arg("-f").arg(&config);
    let process = Process::start(&command, &scratch.path().join("log"));
    eventually("HAProxy listens", async || TcpStream::connect(port.address()).await.ok()).await;
    (process, scratch, port)
}

#[tokio::test]
async fn holders_go_on_when_either_member_ends() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let (store, ledger) = (Store::of(&etcd).await, Ledger::default());
    let mut killed = Member::start(&etcd, &worker).await;
    let mut left = Member::start(&etcd, &worker).await;
    for member in [&killed, &left] {
        member.until_live(2.0).await;
    }
    let (_haproxy, _scratch, port) = balance([&killed, &left]).await;
    let balancer = Endpoint::Tcp(port.address());
    let tenure = store.hold("/shards/2/lock", "shard-1").await;
    let write = async || {
        let ask = Ask::post("/shards/2/jobs").under(&tenure);
        let answer = send(&balancer, &ledger, ask).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    let admitted = "fencepost_requests_total{mode=\"enforce\",reason=\"none\",route=\"shards\",verdict=\"admit\"}";
    for member in [&killed, &left] {
        until("requests come through each member", async || {
            write().await;
            member.fence.metric(admitted).await > 0.0
        })
        .await;
    }

    killed.fence.kill();
    for _ in 0..20 {
        write().await;
    }
    // A second process with the same file is another member, on the same machine too.
    let again = Member::start(&etcd, &worker).await;
    let (_haproxy, _scratch, port) = balance([&again, &left]).await;
    let balancer = Endpoint::Tcp(port.address());
    let has_ended = Cell::new(false);
    let writes = async {
        while !has_ended.get() {
            let ask = Ask::post("/shards/2/jobs").under(&tenure);
            let answer = send(&balancer, &ledger, ask).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    };
    let ends = async {
        let status = left.fence.terminate().await;
        has_ended.set(true);
        status
    };
    let ((), status) = tokio::join!(writes, ends);
    assert!(status.success(), "{status}");
    again.fence.until_metric("fencepost_group_members{state=\"left\"}", 1.0).await;
    ledger.check(&worker);
}

/// The balancer closed connections where no member was ready, and the masters did not learn why.
#[tokio::test]
async fn without_etcd_the_balancer_passes_refusals_on() {
    let (etcd, worker) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await);
    let (store, ledger) = (Store::of(&etcd).await, Ledger::default());
    let members = [Member::start(&etcd, &worker).await, Member::start(&etcd, &worker).await];
    let (_haproxy, scratch, port) = balance(members.each_ref()).await;
    let tenure = store.hold("/shards/2/lock", "shard-1").await;
    etcd.pause().await;
    until("the balancer has no member", async || {
        let log = std::fs::read_to_string(scratch.path().join("log")).unwrap();
        log.contains("'members' has no server available")
    })
    .await;
    let ask = Ask::post("/shards/2/jobs").under(&tenure);
    let refused = send(&Endpoint::Tcp(port.address()), &ledger, ask).await;
    assert_refused(&refused, "out-of-group", "/shards/2/lock", &tenure);
    ledger.check(&worker);
}

#[tokio::test]
async fn the_compose_file_of_a_group_is_valid() {
    let [base, group] = ["docker-compose.yml", "deploy/group/docker-compose.yml"];
    let path = |file: &str| workspace().join(file).to_str().unwrap().to_owned();
    let files = ["--file", &path(base), "--file", &path(group)];
    printed("docker-compose", &[&files[..], &["config", "--quiet"]].concat()).await;
    let compose = yaml(group).await;
    for (name, service) in compose["services"].as_object().unwrap() {
        if let Some(image) = service["image"].as_str() {
            let tag = image.rsplit_once(':').unwrap_or_else(|| panic!("{image} has a tag")).1;
            assert!(
                image == "fencepost:demo" || tag.matches('.').count() == 2,
                "{image} is pinned"
            );
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port}");
        }
    }
    for name in ["fencepost", "fencepost-2"] {
        let command = &compose["services"][name]["command"];
        assert_eq!(command[2], "/files/group/fencepost.toml", "{name}");
        assert!(file("haproxy.cfg").contains(&format!("server {name} {name}:8080")), "{name}");
    }
}

#[tokio::test]
async fn the_manifest_of_a_group_is_right() {
    let documents = manifest("deploy/group/kubernetes.yaml").await;
    let document = |kind: &str, name: &str| {
        let is_it =
            |one: &&serde_json::Value| one["kind"] == kind && one["metadata"]["name"] == name;
        documents.iter().find(is_it).unwrap_or_else(|| panic!("{kind} {name}"))
    };
    let written = document("ConfigMap", "fencepost")["data"]["fencepost.toml"].as_str().unwrap();
    let scratch = Scratch::new();
    for config in [written, &file("fencepost.toml")] {
        let as_written = scratch.path().join("fencepost.toml");
        std::fs::write(&as_written, config).unwrap();
        printed(BINARY, &["check", "-c", as_written.to_str().unwrap()]).await;
        assert!(config.contains("[group]"), "{config}");
    }
    let members = &document("Deployment", "fencepost")["spec"];
    let container = &members["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], concat!("fencepost:", env!("CARGO_PKG_VERSION")));
    let target = &document("Service", "worker")["spec"]["ports"][0]["targetPort"];
    assert_eq!(*target, container["ports"][0]["containerPort"]);
    assert!(written.contains("http://worker-0.unfenced:9000"), "the worker itself");
    assert_eq!(document("StatefulSet", "worker")["spec"]["serviceName"], "unfenced");
    assert_eq!(document("Service", "unfenced")["spec"]["clusterIP"], "None");
    let policy = &document("NetworkPolicy", "worker")["spec"];
    assert_eq!(policy["podSelector"]["matchLabels"]["app"], "worker");
    let allowed = &policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"];
    assert_eq!(*allowed, members["template"]["metadata"]["labels"]);
}
