//! The manifest for Kubernetes: right by its schema, and run with other addresses.

use std::process::Command;

use fencepost_config::Config;
use fencepost_tests::{Etcd, EtcdVersion, FreePort, Scratch, Worker, request};
use serde_json::{Value, json};

use super::play::{Place, Recipe};
use crate::fencepost::{BINARY, Fencepost};
use crate::programs::{manifest, printed, workspace};

async fn documents() -> Vec<Value> {
    manifest("recipes/kubernetes/fencepost.yaml").await
}

fn document<'d>(documents: &'d [Value], kind: &str) -> &'d Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap()
}

/// The pod of the worker, and in it the containers `fencepost` and `worker`, which get SIGTERM at
/// the same time but for their hooks.
fn pod_of_the_worker(documents: &[Value]) -> (&Value, [&Value; 2]) {
    let pod = &document(documents, "StatefulSet")["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().unwrap();
    let named = |name: &str| containers.iter().find(|container| container["name"] == name);
    (
        pod,
        ["fencepost", "worker"]
            .map(|name| named(name).unwrap_or_else(|| panic!("{name} is in containers"))),
    )
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap())
}

fn configuration(documents: &[Value]) -> &str {
    document(documents, "ConfigMap")["data"]["fencepost.toml"].as_str().unwrap()
}

/// The kubelet and Prometheus, which reach the fenced port and nothing else.
async fn whoever_asks_by_the_pods_address_is_answered(documents: &[Value], fence: &Fencepost) {
    let (_, [sidecar, _]) = pod_of_the_worker(documents);
    let mut paths = vec!["/metrics"]; // Prometheus asks for this one where it is told of none.
    for (probe, path) in
        [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
    {
        assert_eq!(sidecar[probe]["httpGet"], json!({ "path": path, "port": "fenced" }), "{probe}");
        paths.push(path);
    }
    let ask = async |method: &str, path: &str| {
        request(fence.listener.clone(), method, path, &[], b"").await.unwrap()
    };
    for path in paths {
        assert_eq!(ask("GET", path).await.status, 200, "{path}");
    }
    // Nothing else of the admin listener is in their reach.
    for (method, path) in
        [("POST", "/livez/reload"), ("POST", "/metrics"), ("GET", "/metrics/locks")]
    {
        assert!(matches!(ask(method, path).await.status, 404 | 405), "{method} {path}");
    }
}

#[tokio::test]
async fn the_manifest_leaves_the_workers_image_as_it_is() {
    let documents = documents().await;
    let (pod, [sidecar, _]) = pod_of_the_worker(&documents);
    let of_the_pod = &pod["securityContext"];
    assert_eq!(
        of_the_pod.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["fsGroup"],
        "it counts for the worker's image too"
    );
    let user = &sidecar["securityContext"]["runAsUser"];
    assert!(
        user.is_u64() && user == &of_the_pod["fsGroup"],
        "the image's user has a name only: {user}"
    );
    assert_eq!(sidecar["securityContext"]["runAsNonRoot"], true);

    let image = sidecar["image"].as_str().unwrap();
    assert_eq!(image, concat!("fencepost:", env!("CARGO_PKG_VERSION")));
    for file in ["recipes/kubernetes/fencepost.yaml", "recipes/README.md"] {
        let text = std::fs::read_to_string(workspace().join(file)).unwrap();
        assert!(text.contains(&format!("docker build -t {image} .")), "{file}");
    }
}

#[tokio::test]
async fn the_service_leads_to_fencepost_by_the_number_of_its_port() {
    let documents = documents().await;
    let (_, [fencepost, _]) = pod_of_the_worker(&documents);
    let target = &document(&documents, "Service")["spec"]["ports"][0]["targetPort"];
    assert!(target.is_u64() && target == &fencepost["ports"][0]["containerPort"], "{target}");
    assert!(configuration(&documents).contains(&format!("address = \"0.0.0.0:{target}\"")));
}

#[tokio::test]
async fn the_worker_outlives_the_drain_of_fencepost() {
    let documents = documents().await;
    let (pod, [fencepost, worker]) = pod_of_the_worker(&documents);
    assert!(
        fencepost["lifecycle"].is_null(),
        "it begins to drain at once: {}",
        fencepost["lifecycle"]
    );
    let sleep = worker["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    let limits = Config::from_toml("fencepost.toml", configuration(&documents)).unwrap().limits;
    assert!(
        sleep > (limits.drain_delay + limits.drain_timeout).as_secs() + 1,
        "the last answers have a second"
    );
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace >= sleep + 10, "the worker gets SIGKILL {grace} s after the pod's end has begun");
}

#[tokio::test]
async fn the_manifests_sidecar_refuses_a_late_write() {
    let documents = documents().await;
    let (etcd, worker, scratch) =
        (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Scratch::new());

    let (_, [sidecar, _]) = pod_of_the_worker(&documents);
    assert_eq!(
        texts(&sidecar["args"]).collect::<Vec<_>>(),
        ["serve", "--config", "/etc/fencepost/fencepost.toml"]
    );
    let written = configuration(&documents);
    let lock = Recipe::new("Kubernetes", "/shards/2/lock").that_goes_on();
    assert!(written.contains(lock.lock()), "the page and the manifest have the same lock");
    let as_written = scratch.path().join("as-written.toml");
    std::fs::write(&as_written, written).unwrap();
    printed(BINARY, &["check", "-c", as_written.to_str().unwrap()]).await;

    let admin = FreePort::reserve();
    let here = [
        ("http://etcd:2379", etcd.endpoint()),
        ("http://127.0.0.1:9000", worker.endpoint().to_string()),
        ("0.0.0.0:8080", "127.0.0.1:0".to_owned()),
        ("127.0.0.1:9901", admin.address().to_string()),
        ("/var/lib/fencepost", scratch.path().join("state").to_str().unwrap().to_owned()),
    ];
    let config = here.iter().fold(written.to_owned(), |text, (written, here)| {
        assert!(text.contains(written), "{written}");
        text.replace(written, here)
    });
    let fence = Fencepost::launch_text(&config).await;
    fence.wait_until_ready().await;
    whoever_asks_by_the_pods_address_is_answered(&documents, &fence).await;

    let master = &document(&documents, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(texts(&master["command"]).collect::<Vec<_>>(), ["fencepost", "hold"]);
    let command = |etcd: &str, fence: &str| {
        let mut command = Command::new("bash");
        // As Kubernetes puts variables into arguments.
        let script = workspace().join("recipes/shell/master.sh");
        let arguments = texts(&master["args"]).map(|argument| {
            let argument = argument
                .replace("http://etcd:2379", etcd)
                .replace("http://worker", &format!("http://{fence}"));
            argument
                .replace("$(POD_NAME)", "$OWNER")
                .replace("/app/master.sh", script.to_str().unwrap())
        });
        let words: Vec<String> = arguments.map(|argument| format!("\"{argument}\"")).collect();
        command.arg("-c").arg(format!("exec {BINARY} hold {}", words.join(" ")));
        command
    };
    lock.play_at(Place { etcd, worker, fence }, command).await;
}
