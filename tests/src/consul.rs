//! A Consul server.

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::http::request;
use crate::patience::eventually;
use crate::port::FreePort;
use crate::process::Process;
use crate::scratch::Scratch;

/// Names the program, where it is not in `PATH`.
const PROGRAM: &str = "FENCEPOST_CONSUL";

/// A running Consul server in its development mode: alone, in memory. It is killed with this value.
#[derive(Debug)]
pub struct Consul {
    http: FreePort,
    process: Process,
    scratch: Scratch,
    _others: [FreePort; 3],
}

impl Consul {
    /// Starts one and waits until it leads. `None`, with a word about that, where there is no
    /// program.
    pub async fn start() -> Option<Consul> {
        let program = program()?;
        let scratch = Scratch::new();
        let [http, server, lan, wan] = [(); 4].map(|()| FreePort::reserve());
        let mut command = Command::new(&program);
        command.args(["agent", "-dev", "-bind", "127.0.0.1", "-node", "test"]);
        for (option, port) in [
            ("-http-port", &http),
            ("-server-port", &server),
            ("-serf-lan-port", &lan),
            ("-serf-wan-port", &wan),
        ] {
            command.args([option, &port.number().to_string()]);
        }
        command.args(["-dns-port", "-1", "-grpc-port", "-1"]);
        let process = Process::start(&command, &scratch.path().join("log"));
        let consul = Consul { http, process, scratch, _others: [server, lan, wan] };
        // It leads before it knows of its own node, which sessions belong to.
        eventually("Consul makes sessions", async || {
            let nodes = consul.ask("GET", "/v1/health/node/test", b"").await?;
            nodes.as_array().is_some_and(|checks| !checks.is_empty()).then_some(())
        })
        .await;
        Some(consul)
    }

    /// Where its HTTP API is.
    pub fn address(&self) -> SocketAddr {
        self.http.address()
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// A command of its program, for this server.
    pub fn command(&self) -> Command {
        let mut command = Command::new(program().expect("it runs"));
        command.env("CONSUL_HTTP_ADDR", self.address().to_string());
        command.current_dir(self.scratch.path());
        command
    }

    /// What its API answers to a call; `None` if it does not answer, or not with 200.
    pub async fn ask(&self, method: &str, path: &str, body: &[u8]) -> Option<Value> {
        let answer = request(self.address(), method, path, &[], body).await.ok()?;
        (answer.status == 200).then(|| serde_json::from_slice(&answer.body).expect("it is JSON"))
    }

    /// Makes a session whose locks can be taken again as soon as it ends.
    pub async fn session(&self) -> String {
        let made = self.ask("PUT", "/v1/session/create", br#"{"LockDelay":"0s"}"#).await;
        let id = made.and_then(|made| Some(made["ID"].as_str()?.to_owned()));
        id.expect("a session can be made")
    }

    /// Takes a lock for a session. Whether it got it.
    pub async fn acquire(&self, key: &str, session: &str, value: &[u8]) -> bool {
        let path = format!("/v1/kv/{key}?acquire={session}");
        self.ask("PUT", &path, value).await == Some(Value::Bool(true))
    }

    /// The number of the newest write to a key, and the session that holds it.
    pub async fn key(&self, key: &str) -> Option<(u64, Option<String>)> {
        let found = self.ask("GET", &format!("/v1/kv/{key}?consistent"), b"").await?;
        let session = found[0]["Session"].as_str().map(str::to_owned);
        Some((found[0]["ModifyIndex"].as_u64()?, session))
    }
}

fn program() -> Option<PathBuf> {
    if let Some(program) = env::var_os(PROGRAM) {
        return Some(program.into());
    }
    let path = env::var_os("PATH")?;
    let found = env::split_paths(&path)
        .map(|folder| folder.join("consul"))
        .find(|program| program.exists());
    if found.is_none() {
        println!("skipped: there is no consul in PATH; {PROGRAM} can name one");
    }
    found
}
