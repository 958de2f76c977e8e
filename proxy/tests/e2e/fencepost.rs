//! The program under test, as a process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use fencepost_tests::{
    Endpoint, Etcd, Process, Response, Scratch, Worker, eventually, request, until,
};

/// The path of the binary.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_fencepost");

/// A running `fencepost serve`. It is killed with this value.
#[derive(Debug)]
pub(crate) struct Fencepost {
    /// `None` once it was killed.
    process: Option<Process>,
    pub(crate) listener: Endpoint,
    /// Where it takes questions of its operator.
    pub(crate) admin: SocketAddr,
    scratch: Scratch,
}

/// What goes into a configuration file, besides the routes.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    endpoints: Vec<String>,
    source: String,
    without_source: bool,
    upstream: String,
    limits: String,
    listener: String,
    listener_more: String,
    threads: usize,
    state_dir: Option<String>,
    sections: String,
    routes: Vec<Route>,
    log: String,
    log_format: String,
    more: String,
}

/// A route of a configuration file.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    name: String,
    path: String,
    lock: String,
    more: String,
}

impl Route {
    /// An enforced route; `lock` is what stands in `lock = { source = "main", … }`.
    pub(crate) fn new(name: &str, path: &str, lock: &str) -> Route {
        Route {
            name: name.to_owned(),
            path: path.to_owned(),
            lock: lock.to_owned(),
            more: String::new(),
        }
    }

    /// An enforced route for everything, under the lock `/k`.
    pub(crate) fn k() -> Route {
        Route::new("k", "/", r#"key = "/k""#)
    }

    pub(crate) fn with(mut self, line: &str) -> Route {
        self.more.push_str(line);
        self.more.push('\n');
        self
    }

    fn toml(&self, upstream: &str) -> String {
        let Route { name, path, lock, more } = self;
        let own_upstream = if more.contains("upstream = ") {
            String::new()
        } else {
            format!("upstream = {upstream:?}\n")
        };
        format!(
            "[[route]]\nname = {name:?}\npath = {path:?}\n{own_upstream}lock = {{ source = \"main\", {lock} }}\n{more}\n"
        )
    }

    fn unfenced_toml(&self, upstream: &str) -> String {
        let Route { name, path, lock: _, more: _ } = self;
        format!(
            "[[route]]\nname = {name:?}\npath = {path:?}\nupstream = {upstream:?}\nmode = \"off\"\n\n"
        )
    }
}

impl Config {
    /// Locks in that etcd, requests to that worker.
    pub(crate) fn of(etcd: &Etcd, worker: &Worker, routes: &[Route]) -> Config {
        Config::new(&[etcd.endpoint()], &worker.endpoint().to_string(), routes)
    }

    /// Locks in these etcd members, requests to that worker.
    pub(crate) fn new(endpoints: &[String], upstream: &str, routes: &[Route]) -> Config {
        Config {
            endpoints: endpoints.to_vec(),
            source: String::new(),
            without_source: false,
            upstream: upstream.to_owned(),
            limits: String::new(),
            listener: "127.0.0.1:0".to_owned(),
            listener_more: String::new(),
            threads: 2,
            state_dir: None,
            sections: String::new(),
            routes: routes.to_vec(),
            log: "info".to_owned(),
            log_format: "text".to_owned(),
            more: String::new(),
        }
    }

    /// With this filter of what is logged.
    pub(crate) fn logging(mut self, filter: &str) -> Config {
        self.log = filter.to_owned();
        self
    }

    pub(crate) fn log_format(mut self, format: &str) -> Config {
        self.log_format = format.to_owned();
        self
    }

    /// With this line under `[limits]`.
    pub(crate) fn limit(mut self, line: &str) -> Config {
        self.limits.push_str(line);
        self.limits.push('\n');
        self
    }

    /// With this section: its heading and its lines.
    pub(crate) fn section(mut self, section: &str) -> Config {
        self.sections.push_str(section);
        self.sections.push('\n');
        self
    }

    pub(crate) fn routes(mut self, routes: &[Route]) -> Config {
        self.routes = routes.to_vec();
        self
    }

    /// With its locks in other etcd members.
    pub(crate) fn endpoints(mut self, endpoints: &[String]) -> Config {
        self.endpoints = endpoints.to_vec();
        self
    }

    /// With these lines of its source beside the endpoints.
    pub(crate) fn source(mut self, lines: &str) -> Config {
        self.source = format!("{lines}\n");
        self
    }

    /// Without its source: no route has a lock.
    pub(crate) fn without_source(mut self) -> Config {
        self.without_source = true;
        self
    }

    /// With these lines at the end of the file.
    pub(crate) fn more(mut self, lines: &str) -> Config {
        self.more.push_str(lines);
        self
    }

    pub(crate) fn listening_on(mut self, address: &str) -> Config {
        self.listener = address.to_owned();
        self
    }

    /// With this line under `[[listener]]`.
    pub(crate) fn listener(mut self, line: &str) -> Config {
        self.listener_more.push_str(line);
        self.listener_more.push('\n');
        self
    }

    /// With so many threads: limits on connections to a worker are per thread.
    pub(crate) fn threads(mut self, threads: usize) -> Config {
        self.threads = threads;
        self
    }

    /// With this `state_dir`.
    pub(crate) fn remembering_in(mut self, state_dir: &Path) -> Config {
        self.state_dir = Some(state_dir.to_str().unwrap().to_owned());
        self
    }

    pub(crate) fn toml(&self) -> String {
        let Config {
            endpoints,
            source,
            without_source,
            upstream,
            limits,
            listener,
            listener_more,
            threads,
            state_dir,
            sections,
            routes,
            more,
            log: _,
            log_format: _,
        } = self;
        let state_dir =
            state_dir.as_ref().map(|path| format!("state_dir = {path:?}\n")).unwrap_or_default();
        let (source, routes): (_, String) = if *without_source {
            (String::new(), routes.iter().map(|route| route.unfenced_toml(upstream)).collect())
        } else {
            let source =
                format!("[source.main]\nkind = \"etcd\"\nendpoints = {endpoints:?}\n{source}");
            (source, routes.iter().map(|route| route.toml(upstream)).collect())
        };
        format!(
            "threads = {threads}\n{state_dir}[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = {listener:?}\n{listener_more}[limits]\n{limits}\n\
             {sections}{source}{routes}{more}"
        )
    }
}

impl Fencepost {
    /// Runs it with that file and waits until it is ready.
    pub(crate) async fn serve(config: &Config) -> Fencepost {
        let fencepost = Fencepost::launch(config).await;
        fencepost.wait_until_ready().await;
        fencepost
    }

    /// Runs it with that file and waits until it listens: it may not know its locks yet.
    pub(crate) async fn launch(config: &Config) -> Fencepost {
        Fencepost::launch_among(config, &[]).await
    }

    /// As [`Fencepost::launch`], with these variables in its environment.
    pub(crate) async fn launch_among(config: &Config, variables: &[(&str, &str)]) -> Fencepost {
        let (scratch, file) = written(&config.toml());
        let mut command = Command::new(BINARY);
        command.arg("serve").arg("-c").arg(&file).arg("--log").arg(&config.log);
        command.arg("--log-format").arg(&config.log_format).envs(variables.iter().copied());
        Fencepost::launch_command(scratch, command).await
    }

    /// As [`Fencepost::launch`], with so many descriptors: `soft:hard`.
    pub(crate) async fn launch_with_descriptors(config: &Config, limit: &str) -> Fencepost {
        let (scratch, file) = written(&config.toml());
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limit}")).arg("--").arg(BINARY);
        command.arg("serve").arg("-c").arg(&file).arg("--log").arg(&config.log);
        Fencepost::launch_command(scratch, command).await
    }

    /// As [`Fencepost::serve`], with its standard output going to that file.
    pub(crate) async fn serve_writing_to(config: &Config, output: &Path) -> Fencepost {
        let (scratch, file) = written(&config.toml());
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(r#"exec "$0" serve -c "$1" > "$2""#)
            .arg(BINARY)
            .arg(&file)
            .arg(output);
        let fencepost = Fencepost::launch_command(scratch, command).await;
        fencepost.wait_until_ready().await;
        fencepost
    }

    /// Runs it with these arguments and waits until it listens.
    pub(crate) async fn launch_with(arguments: &[&str]) -> Fencepost {
        Fencepost::launch_in(Scratch::new(), arguments).await
    }

    /// Runs it with a file of that text and waits until it listens.
    pub(crate) async fn launch_text(text: &str) -> Fencepost {
        let (scratch, file) = written(text);
        Fencepost::launch_in(
            scratch,
            &["serve", "-c", file.to_str().unwrap(), "--log", "info,fencepost=debug"],
        )
        .await
    }

    async fn launch_in(scratch: Scratch, arguments: &[&str]) -> Fencepost {
        let mut command = Command::new(BINARY);
        command.args(arguments);
        Fencepost::launch_command(scratch, command).await
    }

    async fn launch_command(scratch: Scratch, mut command: Command) -> Fencepost {
        command.env("NO_COLOR", "1").env_remove("FENCEPOST_LOG");
        let mut process = Process::start(&command, &scratch.path().join("log"));
        let (listener, admin) = eventually("fencepost listens", async || {
            if let Some(status) = process.ended() {
                panic!("fencepost ended with {status}: {}", process.log());
            }
            addresses(&process.log())
        })
        .await;
        Fencepost { process: Some(process), listener, admin, scratch }
    }

    /// Runs it with that file until it ends of itself; returns its exit code and what it said.
    pub(crate) async fn end_of(config: &Config) -> (Option<i32>, String) {
        let (scratch, file) = written(&config.toml());
        let mut command = Command::new(BINARY);
        command.arg("serve").arg("-c").arg(&file).arg("--log-format").arg(&config.log_format);
        command.env("NO_COLOR", "1").env_remove("FENCEPOST_LOG");
        let mut process = Process::start(&command, &scratch.path().join("log"));
        let status = process.end_of_itself().await;
        (status.code(), process.log())
    }

    /// Its configuration file, if it has one.
    pub(crate) fn file(&self) -> PathBuf {
        self.scratch.path().join("fencepost.toml")
    }

    /// Writes another configuration into its file and has it read; returns what it says to that.
    pub(crate) async fn reload(&self, config: &Config) -> Response {
        std::fs::write(self.file(), config.toml()).unwrap();
        self.admin("POST", "/reload").await
    }

    /// Has another configuration put in force, unless it was faster.
    #[track_caller]
    pub(crate) fn reloads(&self, config: &Config) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let reload = self.reload(config);
        async move {
            let answer = reload.await;
            assert_eq!(answer.status, 200, "at {caller}: {}", answer.text());
        }
    }

    /// Waits until a configuration of that number is in force.
    pub(crate) async fn until_generation(&self, generation: u32) {
        self.until_metric("fencepost_config_generation", f64::from(generation)).await;
    }

    /// Waits until a metric has this value; the series as in [`Fencepost::metric`].
    pub(crate) async fn until_metric(&self, series: &str, value: f64) {
        until(&format!("{series} {value}"), async || self.metric(series).await == value).await;
    }

    #[track_caller]
    pub(crate) fn has_logged(&self, text: &str) {
        assert!(self.log().contains(text), "{text:?} is not in {}", self.log());
    }

    #[track_caller]
    pub(crate) fn has_not_logged(&self, text: &str) {
        assert!(!self.log().contains(text), "{text:?} is in {}", self.log());
    }

    /// Waits until its log has a line with this text.
    pub(crate) async fn until_log(&self, text: &str) {
        until(&format!("{text:?} in the log"), async || self.log().contains(text)).await;
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn wait_until_ready(&self) {
        until("fencepost is ready", async || self.admin("GET", "/readyz").await.status == 200)
            .await;
    }

    pub(crate) async fn admin(&self, method: &str, path: &str) -> Response {
        request(self.admin, method, path, &[], b"").await.unwrap_or_else(|error| {
            panic!(
                "the admin listener does not answer {method} {path}: {error}; the log: {}",
                self.log()
            )
        })
    }

    /// What the admin listener answers, as JSON.
    pub(crate) async fn admin_json(&self, path: &str) -> serde_json::Value {
        let answer = self.admin("GET", path).await;
        assert_eq!(answer.status, 200, "GET {path}: {answer:?}");
        serde_json::from_slice(&answer.body)
            .unwrap_or_else(|error| panic!("GET {path}: {error} in {}", answer.text()))
    }

    /// A metric's present value; the series as it is written in the text format, labels included.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let text = self.admin("GET", "/metrics").await.text();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        self.running().log()
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("it was not killed")
    }

    pub(crate) fn kill(&mut self) {
        self.process.take().expect("it is killed once").kill();
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.running().terminate();
        self.process().end_of_itself().await
    }

    /// The names of its threads, in order, but for those on which files are read: a runtime has as
    /// many of them as it needs, and keeps them for a while.
    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.running().id())).unwrap();
        // One that ends meanwhile has no name any more.
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
        let mut names: Vec<String> =
            tasks.filter_map(|task| name(task.ok()?)).map(|name| name.trim().to_owned()).collect();
        names.retain(|name| name != "tokio-rt-worker");
        names.sort_unstable();
        names
    }

    /// The most memory that it has used so far, in bytes.
    pub(crate) fn memory_peak(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.running().id())).unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .expect("a process has a peak");
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("it was not killed")
    }
}

/// A configuration file of that text, in a directory of its own.
fn written(text: &str) -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let file = scratch.path().join("fencepost.toml");
    std::fs::write(&file, text).unwrap();
    (scratch, file)
}

/// The addresses in the log, once both are there.
pub(crate) fn addresses(log: &str) -> Option<(Endpoint, SocketAddr)> {
    let mut listener = None;
    let mut admin = None;
    // The last line may not be whole yet.
    for line in log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        match listening(line) {
            Some((true, address)) => {
                admin = Some(address.parse().expect("the admin listener's address"))
            }
            Some((false, address)) => {
                listener = Some(match address.strip_prefix("unix:") {
                    Some(path) => Endpoint::Unix(path.into()),
                    None => Endpoint::Tcp(address.parse().expect("a listener's address")),
                });
            }
            None => {}
        }
    }
    Some((listener?, admin?))
}

/// Whether a line is about the admin listener, and the address; `None` if it is about something
/// else.
fn listening(line: &str) -> Option<(bool, String)> {
    if let Ok(line) = serde_json::from_str::<serde_json::Value>(line) {
        let is_admin = match line["message"].as_str()? {
            "listening" => false,
            "admin listening" => true,
            _ => return None,
        };
        return Some((is_admin, line["address"].as_str()?.to_owned()));
    }
    let (before, address) = line.rsplit_once("listening address=")?;
    let address = address.split_whitespace().next()?.trim_matches('"');
    Some((before.ends_with("admin "), address.to_owned()))
}
