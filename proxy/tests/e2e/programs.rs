//! Other people's programs: lock clients and HTTP clients.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use fencepost_tests::{Etcd, PATIENCE, Process, Scratch, eventually};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::store::Tenure;

/// `etcdctl lock` or `etcdctl elect`, held or waiting for its turn. Killed with this value.
pub(crate) struct Etcdctl {
    _child: Child,
    printed: Lines<BufReader<ChildStdout>>,
    /// The command that `etcdctl lock` runs goes on as long as this directory has its file.
    scratch: Scratch,
}

impl Etcdctl {
    /// `etcdctl lock NAME -- sh …`, the shell being a master that says which key and revision it
    /// was handed.
    pub(crate) fn lock(etcd: &Etcd, name: &str) -> Etcdctl {
        let scratch = Scratch::new();
        let held = scratch.path().join("held");
        std::fs::write(&held, "").unwrap();
        let master = format!(
            "echo \"$ETCD_LOCK_KEY $ETCD_LOCK_REV\"; while [ -e {} ]; do sleep 0.02; done",
            held.display()
        );
        Etcdctl::start(etcd, scratch, &["lock", name, "--", "sh", "-c", &master])
    }

    /// `etcdctl elect NAME PROPOSAL`.
    pub(crate) fn elect(etcd: &Etcd, name: &str, proposal: &str) -> Etcdctl {
        Etcdctl::start(etcd, Scratch::new(), &["elect", name, proposal])
    }

    fn start(etcd: &Etcd, scratch: Scratch, arguments: &[&str]) -> Etcdctl {
        let mut command = etcd.etcdctl_command();
        command.args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap()).lines();
        Etcdctl { _child: child, printed, scratch }
    }

    pub(crate) async fn line(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.printed.next_line()).await;
        line.expect("etcdctl prints a line in time").unwrap().expect("etcdctl prints a line")
    }

    /// What the master of `etcdctl lock` was handed, once it holds the lock.
    pub(crate) async fn handed(&mut self) -> Tenure {
        let line = self.line().await;
        let (key, revision) = line.split_once(' ').expect("key and revision");
        Tenure::new(key, revision.parse().unwrap())
    }

    /// Lets the master finish: `etcdctl lock` then gives the lock back.
    pub(crate) fn finish(&self) {
        std::fs::remove_file(self.scratch.path().join("held")).unwrap();
    }
}

/// The lease, in hexadecimal, that a key of etcd's own lock clients is named after.
pub(crate) fn lease_of(key: &str) -> &str {
    key.rsplit('/').next().unwrap()
}

/// For how long a program may run that has work to do: `promtool` takes 3 s of a CPU for the rules
/// of alerts, which others use, too.
const RUN_PATIENCE: Duration = PATIENCE.saturating_mul(4);

/// Runs a program to its end, which must come in time.
pub(crate) async fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).env_remove("FENCEPOST_LOG").stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(RUN_PATIENCE, command.output()).await;
    output
        .unwrap_or_else(|_| panic!("{program} {arguments:?} did not end within {RUN_PATIENCE:?}"))
        .unwrap_or_else(|error| {
            panic!("{program} cannot be started ({error}): run bin/install-tools test")
        })
}

/// What a program printed, if it ended well.
pub(crate) async fn printed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?} ended with {}: {text}{errors}",
        output.status
    );
    text
}

/// Runs one of the scripts beside these tests with the Python that has gRPC and websockets.
pub(crate) async fn python(script: &str, arguments: &[&str]) -> String {
    let (python, script) = (python_binary(), script_path(script));
    let arguments: Vec<&str> =
        std::iter::once(script.to_str().unwrap()).chain(arguments.iter().copied()).collect();
    printed(python.to_str().unwrap(), &arguments).await
}

/// What a YAML file of the repository says.
pub(crate) async fn yaml(path: &str) -> serde_json::Value {
    let reader = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let file = workspace().join(path);
    let text =
        printed(python_binary().to_str().unwrap(), &["-c", reader, file.to_str().unwrap()]).await;
    serde_json::from_str(&text).unwrap()
}

/// All documents of a manifest for Kubernetes, each of which must be right by the schema.
pub(crate) async fn manifest(path: &str) -> Vec<serde_json::Value> {
    let reader = "import json, kubernetes_validate, sys, yaml
documents = list(yaml.safe_load_all(open(sys.argv[1])))
for document in documents: kubernetes_validate.validate(document, '1.30', strict=True)
print(json.dumps(documents))";
    let file = workspace().join(path);
    let text =
        printed(python_binary().to_str().unwrap(), &["-c", reader, file.to_str().unwrap()]).await;
    serde_json::from_str(&text).unwrap()
}

/// A server written in Python that prints its port as its first line.
pub(crate) struct PythonServer {
    process: Process,
    pub(crate) port: u16,
    _scratch: Scratch,
}

impl PythonServer {
    pub(crate) async fn start(script: &str) -> PythonServer {
        let scratch = Scratch::new();
        let mut command = Command::new(python_binary());
        command.arg("-u").arg(script_path(script));
        let mut process = Process::start(&command, &scratch.path().join("log"));
        let port = eventually("the server prints its port", async || {
            assert!(process.ended().is_none(), "{script} has ended: {}", process.log());
            let log = process.log();
            log.lines().find_map(|line| line.strip_prefix("port ")?.parse().ok())
        })
        .await;
        PythonServer { process, port, _scratch: scratch }
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }
}

pub(crate) fn python_binary() -> PathBuf {
    let python = workspace().join("target/tools/venv/bin/python");
    assert!(python.exists(), "no {}: run bin/install-tools test", python.display());
    python
}

fn script_path(name: &str) -> PathBuf {
    workspace().join("proxy/tests/clients").join(name)
}

pub(crate) fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}
