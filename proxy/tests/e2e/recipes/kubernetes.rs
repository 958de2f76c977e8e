//! The manifest for Kubernetes: right by its schema, and run with other addresses.

use std::process::Command;

use fencepost_testsupport::{Etcd, EtcdVersion, FreePort, Scratch, Worker, request};
use serde_json::Value;

use super::play::{Place, Recipe};
use crate::fencepost::{BINARY, Fencepost};
use crate::programs::{printed, python_binary, workspace};

/// Reads all documents of the manifest, each of which must be right by the schema.
async fn documents() -> Vec<Value> {
    let file = workspace().join("recipes/kubernetes/fencepost.yaml");
    let reader = "import json, kubernetes_validate, sys, yaml
documents = list(yaml.safe_load_all(open(sys.argv[1])))
for document in documents: kubernetes_validate.validate(document, '1.30', strict=True)
print(json.dumps(documents))";
    let text = printed(python_binary().to_str().unwrap(), &["-c", reader, file.to_str().unwrap()]).await;
    serde_json::from_str(&text).unwrap()
}

fn document<'d>(documents: &'d [Value], kind: &str) -> &'d Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap()
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap())
}

/// The kubelet and Prometheus, which reach the fenced port and nothing else.
async fn whoever_asks_by_the_pods_address_is_answered(documents: &[Value], fence: &Fencepost) {
    let template = &document(documents, "StatefulSet")["spec"]["template"];
    let sidecar = &template["spec"]["initContainers"][0];
    let mut paths = Vec::new();
    for (probe, path) in [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        assert_eq!(sidecar[probe]["httpGet"], serde_json::json!({ "path": path, "port": "fenced" }), "{probe}");
        paths.push(path);
    }
    let annotations = &template["metadata"]["annotations"];
    let port = sidecar["ports"].as_array().unwrap().iter().find(|port| port["name"] == "fenced").unwrap();
    assert_eq!(annotations["prometheus.io/port"], port["containerPort"].to_string());
    paths.push(annotations["prometheus.io/path"].as_str().unwrap());
    let ask = async |method: &str, path: &str| request(fence.listener.clone(), method, path, &[], b"").await.unwrap();
    for path in paths {
        assert_eq!(ask("GET", path).await.status, 200, "{path}");
    }
    // Nothing else of the admin listener is in their reach.
    for (method, path) in [("POST", "/livez/reload"), ("POST", "/metrics"), ("GET", "/metrics/locks")] {
        assert!(matches!(ask(method, path).await.status, 404 | 405), "{method} {path}");
    }
}

#[tokio::test]
async fn the_manifest_says_how_to_get_its_image_and_leaves_the_workers_as_it_is() {
    let documents = documents().await;
    let pod = &document(&documents, "StatefulSet")["spec"]["template"]["spec"];
    let (sidecar, of_the_pod) = (&pod["initContainers"][0], &pod["securityContext"]);
    assert_eq!(
        of_the_pod.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["fsGroup"],
        "it counts for the worker's image too"
    );
    let user = &sidecar["securityContext"]["runAsUser"];
    assert!(user.is_u64() && user == &of_the_pod["fsGroup"], "the image's user has a name only: {user}");
    assert_eq!(sidecar["securityContext"]["runAsNonRoot"], true);

    let image = sidecar["image"].as_str().unwrap();
    assert_eq!(image, concat!("fencepost:", env!("CARGO_PKG_VERSION")));
    for file in ["recipes/kubernetes/fencepost.yaml", "recipes/README.md"] {
        let text = std::fs::read_to_string(workspace().join(file)).unwrap();
        assert!(text.contains(&format!("docker build -t {image} .")), "{file}");
    }
}

#[tokio::test]
async fn the_manifests_sidecar_refuses_a_late_write_of_its_master_under_hold() {
    let documents = documents().await;
    let (etcd, worker, scratch) = (Etcd::start(EtcdVersion::V3_5).await, Worker::start().await, Scratch::new());

    let sidecar = &document(&documents, "StatefulSet")["spec"]["template"]["spec"]["initContainers"][0];
    assert_eq!(texts(&sidecar["args"]).collect::<Vec<_>>(), ["serve", "--config", "/etc/fencepost/fencepost.toml"]);
    let written = document(&documents, "ConfigMap")["data"]["fencepost.toml"].as_str().unwrap();
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
            let argument =
                argument.replace("http://etcd:2379", etcd).replace("http://worker", &format!("http://{fence}"));
            argument.replace("$(POD_NAME)", "$OWNER").replace("/app/master.sh", script.to_str().unwrap())
        });
        let words: Vec<String> = arguments.map(|argument| format!("\"{argument}\"")).collect();
        command.arg("-c").arg(format!("exec {BINARY} hold {}", words.join(" ")));
        command
    };
    lock.play_at(Place { etcd, worker, fence }, command).await;
}
