//! What `docker-compose.yml` describes, started as processes: the same commands, scripts and files,
//! with other addresses; and a stand-in for `docker` that pauses, kills and starts them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fencepost_tests::{Cluster, Endpoint, EtcdVersion, Process, Scratch, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::fencepost::{BINARY, Fencepost};
use crate::programs::{python_binary, workspace, yaml};
use crate::prometheus::Prometheus;

/// All services but Grafana, running.
pub(crate) struct Topology {
    pub(crate) fence: Fencepost,
    pub(crate) prometheus: Prometheus,
    services: Services,
    cluster: Cluster,
}

/// The services that run a script. What they print stays in a file each, over restarts.
struct Services {
    file: Value,
    running: BTreeMap<String, Process>,
    /// Addresses as the files have them, and as they are here.
    addresses: Vec<(String, String)>,
    scratch: Scratch,
}

impl Topology {
    /// Starts one after the other, since each has to be told where the others are.
    pub(crate) async fn up() -> Topology {
        let mut services = Services {
            file: yaml("docker-compose.yml").await,
            running: BTreeMap::new(),
            addresses: vec![("0.0.0.0:".to_owned(), "127.0.0.1:".to_owned())],
            scratch: Scratch::new(),
        };
        let cluster = Cluster::start(EtcdVersion::V3_5, 3).await;
        for (number, endpoint) in cluster.endpoints().iter().enumerate() {
            services.is_at(&format!("etcd-{number}:2379"), endpoint.trim_start_matches("http://"));
        }
        services.is_at(":9000", ":0"); // While it starts: the system chooses its port.
        services.start("worker", "worker", &[]);
        services.addresses.pop();
        let port = services.port_of("worker").await;
        services.is_at("worker:9000", &format!("127.0.0.1:{port}"));

        let fence = services.fencepost().await;
        let Endpoint::Tcp(listener) = &fence.listener else { panic!("{:?}", fence.listener) };
        services.is_at("fencepost:8080", &listener.to_string());
        let prometheus = Prometheus::scraping(fence.admin).await;
        for number in ["1", "2"] {
            let network = format!("network-{number}");
            services.is_at(":8080", ":0");
            services.start(&network, &network, &[]);
            services.addresses.pop();
            let port = services.port_of(&network).await;
            services.is_at(&format!("{network}:8080"), &format!("127.0.0.1:{port}"));
        }
        for master in ["shard-1", "shard-2"] {
            services.start(master, master, &[]);
        }
        Topology { fence, prometheus, services, cluster }
    }

    pub(crate) fn log(&self, name: &str) -> String {
        self.services.log(name)
    }

    /// Runs a script that drives a `docker compose up`, to its end.
    pub(crate) async fn run(&mut self, script: &str) -> Output {
        let engine = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = self.services.scratch.path().join("bin");
        write_docker(&folder);
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut command = tokio::process::Command::new(workspace().join(script));
        command
            .env("PATH", path)
            .env("ENGINE_PORT", engine.local_addr().unwrap().port().to_string());
        let ended = command.kill_on_drop(true).output();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                output = &mut ended => return output.unwrap(),
                accepted = engine.accept() => self.serve(accepted.unwrap().0).await,
            }
        }
    }

    async fn serve(&mut self, mut docker: TcpStream) {
        let mut order = String::new();
        BufReader::new(&mut docker).read_line(&mut order).await.unwrap();
        let printed = self.obey(order.trim_end()).await;
        docker.write_all(printed.as_bytes()).await.unwrap();
    }

    /// Does what docker would have done; returns what it would have printed.
    async fn obey(&mut self, order: &str) -> String {
        let services = &mut self.services;
        match order.split(' ').collect::<Vec<_>>().as_slice() {
            ["compose", "version"] => {}
            ["compose", "pause", name] => services.pause(name).await,
            ["compose", "unpause", name] => services.signal(name, Signal::CONT),
            ["compose", "kill", "-s", "SIGUSR1", name] => services.signal(name, Signal::USR1),
            ["compose", "kill", "-s", "SIGUSR2", name] => services.signal(name, Signal::USR2),
            ["compose", "kill", name] | ["kill", name] => {
                services.running.remove(*name).unwrap().kill()
            }
            ["compose", "start", name] => services.start(name, name, &[]),
            ["compose", "run", rest @ ..] => {
                let ["--detach", "--rm", "--no-deps", "--name", name, "-e", variable, service] =
                    rest
                else {
                    panic!("docker was told to {order:?}")
                };
                services.start(name, service, &[variable.split_once('=').unwrap()]);
            }
            ["compose", "logs", "fencepost"] => return self.fence.log(),
            ["compose", "logs", name] => return services.log(name),
            ["compose", "exec", "-T", "etcd-0", "etcdctl", arguments @ ..] => {
                return self.cluster.members[0].etcdctl(arguments).await;
            }
            _ => panic!("docker was told to {order:?}"),
        }
        String::new()
    }
}

impl Services {
    fn is_at(&mut self, written: &str, here: &str) {
        self.addresses.push((written.to_owned(), here.to_owned()));
    }

    /// A text of the files, with the addresses as they are here.
    fn here(&self, text: &str) -> String {
        self.addresses
            .iter()
            .fold(text.to_owned(), |text, (written, here)| text.replace(written, here))
    }

    /// Starts a service under a name, with more variables.
    fn start(&mut self, name: &str, service: &str, more: &[(&str, &str)]) {
        let service = &self.file["services"][service];
        let texts = |key: &str| {
            service[key].as_array().into_iter().flatten().map(|text| text.as_str().unwrap())
        };
        assert_eq!(texts("volumes").collect::<Vec<_>>(), ["files:/files:ro"], "{name}");
        let mut words = texts("entrypoint").chain(texts("command")).map(|word| match word {
            "fencepost" => BINARY.to_owned(),
            "python" => python_binary().to_str().unwrap().to_owned(),
            word => self.here(word).replace("/files/demo/", DEMO),
        });
        let mut command = Command::new(words.next().unwrap());
        command.args(words).current_dir(workspace());
        let written = service["environment"].as_object().unwrap().iter();
        let variables =
            written.map(|(variable, value)| (variable.as_str(), value.as_str().unwrap()));
        for (variable, value) in variables.chain(more.iter().copied()) {
            command.env(variable, self.here(value));
        }
        let process = Process::start(&command, &self.log_path(name));
        assert!(self.running.insert(name.to_owned(), process).is_none(), "{name} runs already");
    }

    /// Where a service listens, once it says so.
    async fn port_of(&self, name: &str) -> String {
        eventually(&format!("{name} listens"), async || {
            self.log(name)
                .lines()
                .find_map(|line| Some(line.strip_prefix("listening on port ")?.to_owned()))
        })
        .await
    }

    /// Stops all of a service, as a container is paused. Returns once its first process has
    /// stopped.
    async fn pause(&self, name: &str) {
        self.signal(name, Signal::STOP);
        self.running[name].pause().await;
    }

    /// Sends a signal to a service's first process and to those below it.
    fn signal(&self, name: &str, signal: Signal) {
        let first = Pid::from_raw(self.running[name].id().cast_signed()).unwrap();
        let mut pids = vec![first];
        pids.extend(children_of(first));
        for pid in pids {
            // One that has just ended needs none.
            let _ = kill_process(pid, signal);
        }
    }

    async fn fencepost(&self) -> Fencepost {
        let written =
            std::fs::read_to_string(workspace().join(DEMO).join("fencepost.toml")).unwrap();
        let state = self.scratch.path().join("state");
        let here = self.here(&written).replace("/var/lib/fencepost", state.to_str().unwrap());
        let file = self.scratch.path().join("fencepost.toml");
        std::fs::write(&file, here.replace(":8080", ":0").replace(":9901", ":0")).unwrap();
        let fence = Fencepost::launch_with(&["serve", "--config", file.to_str().unwrap()]).await;
        fence.wait_until_ready().await;
        fence
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.log_path(name)).unwrap_or_default()
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(format!("{name}.log"))
    }
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let above = format!("PPid:\t{}\n", parent.as_raw_nonzero());
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let child = |entry: std::fs::DirEntry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        Pid::from_raw(entry.file_name().to_str()?.parse().ok()?).filter(|_| status.contains(&above))
    };
    entries.filter_map(child).collect()
}

/// Where the files are that the containers see in `/files/demo/`.
const DEMO: &str = "deploy/demo/";

/// A `docker` that hands its arguments to the test and prints what that answers.
fn write_docker(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(folder).unwrap();
    let file = folder.join("docker");
    let script = "#!/usr/bin/env bash\nset -e\nexec 3<>\"/dev/tcp/127.0.0.1/$ENGINE_PORT\"\necho \"$*\" >&3\ncat <&3\n";
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
}
