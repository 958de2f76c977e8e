//! A real Prometheus, with the rules and the configuration of `deploy/prometheus`.

use std::net::SocketAddr;
use std::process::Command;

use fencepost_tests::{FreePort, Process, Scratch, eventually, request, until};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::programs::workspace;

/// A running Prometheus that scrapes one fencepost. It is killed with this value.
pub(crate) struct Prometheus {
    _process: Process,
    port: FreePort,
    _scratch: Scratch,
}

impl Prometheus {
    /// Starts it and waits until it has scraped. It looks more often than in the file: a test has
    /// less time.
    pub(crate) async fn scraping(admin: SocketAddr) -> Prometheus {
        let (scratch, port) = (Scratch::new(), FreePort::reserve());
        let folder = workspace().join("deploy/prometheus");
        let written = std::fs::read_to_string(folder.join("prometheus.yml")).unwrap();
        let config = written
            .replace("127.0.0.1:9901", &admin.to_string())
            .replace("interval: 5s", "interval: 250ms");
        let file = scratch.path().join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let rules = "fencepost.rules.yml";
        std::fs::copy(folder.join(rules), scratch.path().join(rules)).unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg("--config.file")
            .arg(&file)
            .arg("--storage.tsdb.path")
            .arg(scratch.path().join("data"));
        command.arg("--web.listen-address").arg(port.address().to_string());
        let mut process = Process::start(&command, &scratch.path().join("log"));
        eventually("Prometheus is ready", async || {
            assert!(process.ended().is_none(), "Prometheus has ended: {}", process.log());
            let answer = request(port.address(), "GET", "/-/ready", &[], b"").await.ok()?;
            (answer.status == 200).then_some(())
        })
        .await;
        let prometheus = Prometheus { _process: process, port, _scratch: scratch };
        until("it has scraped", async || prometheus.value("up").await == Some(1.0)).await;
        prometheus
    }

    /// The series that an expression gives now.
    pub(crate) async fn query(&self, expression: &str) -> Vec<Value> {
        let encoded = utf8_percent_encode(expression, NON_ALPHANUMERIC);
        let data = self.ask(&format!("query?query={encoded}")).await;
        data["result"].as_array().unwrap_or_else(|| panic!("{expression}: {data}")).clone()
    }

    /// The only value that an expression gives now, if it gives any.
    pub(crate) async fn value(&self, expression: &str) -> Option<f64> {
        let series = self.query(expression).await;
        assert!(series.len() <= 1, "{expression}: {series:?}");
        series.first().map(|series| series["value"][1].as_str().unwrap().parse().unwrap())
    }

    /// Name and state of each alert: `inactive`, `pending` or `firing`. All rules have been
    /// evaluated, without an error.
    pub(crate) async fn alerts(&self) -> Vec<(String, String)> {
        eventually("the rules are evaluated", async || {
            let groups = self.ask("rules").await;
            let groups = groups["groups"].as_array()?;
            let rules: Vec<&Value> =
                groups.iter().filter_map(|group| group["rules"].as_array()).flatten().collect();
            assert!(
                !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "err"),
                "{rules:?}"
            );
            let told = |rule: &Value, key: &str| rule[key].as_str().unwrap().to_owned();
            let evaluated = rules.iter().all(|rule| rule["health"] == "ok");
            evaluated.then(|| {
                rules.iter().map(|rule| (told(rule, "name"), told(rule, "state"))).collect()
            })
        })
        .await
    }

    async fn ask(&self, question: &str) -> Value {
        let path = format!("/api/v1/{question}");
        let answer = request(self.port.address(), "GET", &path, &[], b"").await.unwrap();
        assert_eq!(answer.status, 200, "{question}: {}", answer.text());
        serde_json::from_slice::<Value>(&answer.body).unwrap()["data"].take()
    }
}
