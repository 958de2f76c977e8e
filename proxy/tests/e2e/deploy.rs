//! What is in `deploy/` and `docker-compose.yml`, used as it will be used.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use fencepost_tests::{EtcdVersion, eventually, until};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

use crate::compose::Topology;
use crate::fencepost::Route;
use crate::programs::{printed, workspace, yaml};
use crate::prometheus::Prometheus;
use crate::scene::Scene;

#[tokio::test]
async fn each_alert_fires_when_it_should_and_only_then() {
    let folder = workspace().join("deploy/prometheus");
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    printed("promtool", &["check", "config", &file("prometheus.yml")]).await;
    let (test, day_test) = ("fencepost.rules.test.yml", "fencepost.rules.day.test.yml");
    printed("promtool", &["test", "rules", &file(test), &file(day_test)]).await;

    let rules = yaml("deploy/prometheus/fencepost.rules.yml").await;
    let mut tests = Vec::new();
    for name in [test, day_test] {
        tests.push(yaml(&format!("deploy/prometheus/{name}")).await);
    }
    let tests = Value::from(tests);
    let alerts = strings(&rules, "alert");
    for alert in &alerts {
        let all =
            nested(&tests, "alert_rule_test").into_iter().filter_map(Value::as_array).flatten();
        let of_it = all.filter(|test| test["alertname"] == alert.as_str());
        let fires = of_it
            .map(|test| test["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()));
        let ways: BTreeSet<bool> = fires.collect();
        assert_eq!(ways.len(), 2, "{alert} is tested both ways");
    }
}

#[tokio::test]
async fn promtool_finds_nothing_wrong_with_the_metrics() {
    let scene = Scene::open(EtcdVersion::V3_5, &[Route::k()]).await;
    let tenure = scene.store.hold("/k", "shard-1").await;
    scene.admits("/", &tenure).await;
    let metrics = scene.fence.admin("GET", "/metrics").await;
    let mut command = tokio::process::Command::new("promtool");
    command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut promtool = command.kill_on_drop(true).spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(&metrics.body).await.unwrap();
    let output = promtool.wait_with_output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
    scene.finish().await;
}

#[tokio::test]
async fn the_compose_file_is_valid_and_its_images_are_pinned() {
    let root = workspace();
    let file = root.join("docker-compose.yml");
    printed("docker-compose", &["--file", file.to_str().unwrap(), "config", "--quiet"]).await;
    let compose = yaml("docker-compose.yml").await;
    for (name, service) in compose["services"].as_object().unwrap() {
        let image = service["image"].as_str().unwrap_or_else(|| panic!("{name} has an image"));
        let tag = image.rsplit_once(':').unwrap_or_else(|| panic!("{image} has a tag")).1;
        let built_here = !service["build"].is_null();
        assert!(built_here || tag.matches('.').count() == 2, "{image} is pinned");
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let host = volume.as_str().unwrap().split(':').next().unwrap();
            let named = compose["volumes"].as_object().unwrap().contains_key(host);
            assert!(named || root.join(host).exists(), "{name} mounts {host}");
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(
                port.as_str().unwrap().starts_with("127.0.0.1:"),
                "{name}: {port} is for this machine only"
            );
        }
    }
    let services = &compose["services"];
    for name in ["fencepost", "prometheus"] {
        assert_eq!(services[name]["network_mode"], "service:fencepost-network");
    }

    let datasources = yaml("deploy/grafana/provisioning/datasources/prometheus.yml").await;
    assert_eq!(datasources["datasources"][0]["url"], "http://fencepost:9090");
    let providers = yaml("deploy/grafana/provisioning/dashboards/fencepost.yml").await;
    let path = providers["providers"][0]["options"]["path"].as_str().unwrap();
    let home = &services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"];
    assert_eq!(home.as_str(), Some(format!("{path}/fencepost.json").as_str()));
    let copied = path.strip_prefix("/files/").map(|path| root.join("deploy").join(path));
    assert!(copied.is_some_and(|folder| folder.join("fencepost.json").exists()), "{path}");

    let dockerfile = std::fs::read_to_string(root.join("Dockerfile")).unwrap();
    let cargo = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let rust = cargo.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    let image = format!("ARG RUST_IMAGE=rust:{}.", rust.trim_matches('"'));
    assert!(dockerfile.contains(&image), "the image is built with the Rust of Cargo.toml");
    assert!(dockerfile.contains("\nUSER 65532:65532\n"));
}

#[tokio::test]
async fn the_compose_topology_tells_its_story() {
    let mut topology = Topology::up().await;
    let output = topology.run("deploy/demo/trouble.sh").await;
    let told = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}; fencepost: {}", topology.fence.log());
    for refused in ["stale-tenure", "replayed-tenure"] {
        let evidence = |line: &str| {
            line.contains("request refused") && line.contains(&format!("reason=\"{refused}\""))
        };
        assert!(
            told.lines().any(evidence),
            "the script shows a write refused as {refused}: {told}"
        );
    }

    no_refused_write_reached_the_worker(&topology);
    tenures_did_not_overlap_at_the_worker(&topology.log("worker"));
    prometheus_saw_it(&topology).await;
    the_dashboard_shows_it(&topology).await;
}

fn no_refused_write_reached_the_worker(topology: &Topology) {
    let worker = topology.log("worker");
    let begun = |write: &str| {
        worker.lines().filter(|line| line.strip_prefix("begin ") == Some(write)).count()
    };
    for master in ["shard-1", "shard-2", "shard-1-again", "shard-2-again"] {
        for (write, outcome) in topology.log(master).lines().filter_map(outcome_of_a_write) {
            if outcome.starts_with("REFUSED") {
                assert_eq!(begun(&write), 0, "{write}: {outcome}");
            } else if !outcome.starts_with("no answer") {
                assert_eq!((begun(&write), outcome), (1, "200"), "{write}");
            }
        }
    }
    let networks = topology.log("network-1") + &topology.log("network-2");
    let late: BTreeSet<&str> =
        networks.lines().filter_map(|line| line.strip_prefix("lets go ")).collect();
    let tenures: BTreeSet<&str> =
        late.iter().map(|write| write.rsplit_once(", ").unwrap().0).collect();
    assert_eq!(tenures.len(), 2, "two late writes, at least: {late:?}");
    for write in late {
        assert_eq!(begun(write), 0, "{write} was held back until its lock was another's");
    }
}

/// Of `shard-1: revision 10, write 3: 200`: the write, as the worker prints it, and what became of
/// it.
fn outcome_of_a_write(line: &str) -> Option<(String, &str)> {
    let (master, rest) = line.split_once(": ")?;
    let (write, outcome) = rest.split_once(": ").filter(|(write, _)| write.contains(", write "))?;
    Some((format!("{master}, {write}"), outcome))
}

fn tenures_did_not_overlap_at_the_worker(log: &str) {
    let revision = |write: &str| -> u64 {
        write.split(", ").nth(1).unwrap()["revision ".len()..].parse().unwrap()
    };
    let mut highest = 0;
    let mut running: BTreeSet<&str> = BTreeSet::new();
    for line in log.lines().skip(1) {
        let (event, write) = line.split_once(' ').unwrap();
        if event == "end" {
            assert!(running.remove(write), "{line}");
            continue;
        }
        assert!(revision(write) >= highest, "{write} comes after one of revision {highest}");
        assert!(
            running.iter().all(|other| revision(other) == revision(write)),
            "{write} meets {running:?}"
        );
        highest = revision(write);
        running.insert(write);
    }
    let tenures: BTreeSet<u64> =
        log.lines().filter_map(|line| Some(revision(line.strip_prefix("begin ")?))).collect();
    assert!(
        tenures.len() >= 4,
        "the script waits for a write of each tenure but the last: {tenures:?}"
    );
}

async fn prometheus_saw_it(topology: &Topology) {
    let alerts: BTreeMap<String, String> = eventually("the alert of a replay fires", async || {
        let alerts: BTreeMap<String, String> =
            topology.prometheus.alerts().await.into_iter().collect();
        (alerts["FencepostReplayedTenure"] == "firing").then_some(alerts)
    })
    .await;
    for quiet in [
        "FencepostDown",
        "FencepostFailOpen",
        "FencepostStoreRegressed",
        "FencepostHandoffTimeouts",
    ] {
        assert_eq!(alerts[quiet], "inactive");
    }
    let tenures = topology.prometheus.value("fencepost_tenures_total").await;
    assert!(tenures >= Some(4.0), "each but the first began before its eyes: {tenures:?}");
}

/// Every expression of the dashboard is understood, and gives something.
async fn the_dashboard_shows_it(topology: &Topology) {
    let expressions = expressions(&dashboard());
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in expressions {
        let series = topology.prometheus.query(&expression).await;
        // What is shown only above zero may not have happened.
        assert!(!series.is_empty() || expression.ends_with(" > 0"), "{expression} gives nothing");
    }
}

#[tokio::test]
async fn dashboard_marks_starts_and_reloads() {
    let scene = Scene::open(EtcdVersion::V3_5, &[Route::k()]).await;
    let prometheus = Prometheus::scraping(scene.fence.admin).await;
    let marks = expressions(&dashboard()["annotations"]);
    let [starts, reloads, rejected] = marks.as_slice() else { panic!("{marks:?}") };
    let started = prometheus.value("1000 * process_start_time_seconds").await;
    assert!(started.is_some() && prometheus.value(starts).await == started);
    for not_yet in [reloads, rejected] {
        assert_eq!(prometheus.value(not_yet).await, None, "{not_yet}");
    }
    scene.fence.reloads(&scene.config.clone().limit("confirm_timeout = \"700ms\"")).await;
    let wrong = scene.config.clone().limit("confirm_timeout = \"1 h\"");
    assert_eq!(scene.fence.reload(&wrong).await.status, 422);
    for mark in [reloads, rejected] {
        until(mark, async || prometheus.value(mark).await.is_some()).await;
    }
    assert!(prometheus.value(reloads).await > started);
    scene.finish().await;
}

fn dashboard() -> Value {
    let file = workspace().join("deploy/grafana/dashboards/fencepost.json");
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// The expressions in a part of the dashboard, with its variables filled in.
fn expressions(part: &Value) -> Vec<String> {
    let fill = |expression: String| {
        let filled = expression
            .replace("\"$instance\"", "\".*\"")
            .replace("\"$route\"", "\".*\"")
            .replace("$__rate_interval", "1m")
            .replace("$__range", "15m");
        assert!(!filled.contains('$'), "{filled}");
        filled
    };
    strings(part, "expr").into_iter().map(fill).collect()
}

/// All values of a key, however deep.
fn nested<'v>(value: &'v Value, key: &str) -> Vec<&'v Value> {
    let inside: Vec<&Value> = match value {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    let own = value.get(key);
    own.into_iter().chain(inside.into_iter().flat_map(|inner| nested(inner, key))).collect()
}

fn strings(value: &Value, key: &str) -> Vec<String> {
    nested(value, key).into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
